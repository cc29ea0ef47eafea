"""HyperCLIP on open_clip models of every kind; what all adapters have in common is in
test_contract.py."""

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import clip_models
from helpers.cases import each
from references.hyperclip import map_rows_reference

from hypvision.clip import adapters
from hypvision.clip.adapters.hyperclip import BlockMaps, HyperCLIPConfig, clip_report, layer
from hypvision.io.errors import HypvisionError

KINDS = {"openai": clip_models.openai_clip, "siglip": clip_models.siglip}
OPTIONS = [
    dict(block=1),
    dict(block=32, shared=True),
    dict(projections="qv"),
    dict(text=False),
    dict(vision=False, text_layers=(1,)),
    dict(geometry="euclidean"),
    dict(mobius=False),
]


def outputs(model, seed=0):
    model.eval()
    with torch.no_grad():
        return model(clip_models.random_images(model, seed=seed), clip_models.prompts(seed=seed))[
            :2
        ]


def close(a, b, tolerance=1e-5):
    return all((x - y).abs().max() <= tolerance for x, y in zip(a, b))


def disturb(model, noise=0.1):
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.add_(noise * torch.randn_like(parameter))


@pytest.fixture(params=["packed", "batched"])
def path(request, monkeypatch):
    """How the weights are computed: as on a CPU, as on a GPU."""
    monkeypatch.setattr(layer, "SMALL", 1 if request.param == "packed" else 10**9)


@each("options", OPTIONS)
def test_identity_then_merged_then_removed(options):
    model = clip_models.openai_clip()
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    before = outputs(model)
    adapters.inject(model, **{"block": 16, **options})
    assert close(outputs(model), before)
    assert {
        name: value.shape for name, value in model.state_dict().items() if "hyperclip" not in name
    } == {name: value.shape for name, value in plain.items()}
    disturb(model)
    tuned = outputs(model)
    changed = [not torch.allclose(a, b, atol=1e-3) for a, b in zip(tuned, before)]
    assert changed == [options.get("vision", True), options.get("text", True)]
    other = copy.deepcopy(model)
    assert close(outputs(other), tuned, 0)
    adapters.merge(model)
    assert set(model.state_dict()) == set(plain) and not adapters.is_injected(model)
    assert close(outputs(model), tuned)
    assert not any(isinstance(module, BlockMaps) for module in model.modules())
    adapters.remove(other)
    assert close(outputs(other), before, 1e-6)
    assert all(torch.equal(value, plain[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("kind", ["openai", "siglip"])
def test_adapted_projections_are_those_of_the_reference(kind, path):
    """The projection of every block, computed row by row by the reference implementation, gives the
    same model."""
    from hypvision.clip.towers import find_towers

    model = KINDS[kind]()
    reference = copy.deepcopy(model)
    adapters.inject(model, block=16, c_text=1.0, official_dense_only=False)
    disturb(model)
    for tower, base in zip(find_towers(model), find_towers(reference)):
        for block, plain in zip(tower.blocks, base.blocks):
            packed = base.owner(plain)._parameters[base.packed_name]
            chunks = [
                map_rows_reference(rows, getattr(block.hyperclip, letter), c)
                for letter, rows in zip("qkv", packed.detach().chunk(3))
                for c in [1.0 if tower.modality == "text" else 0.01]
            ]
            packed.data = torch.cat(chunks)
    assert close(outputs(model), outputs(reference), 5e-6)


def test_feature_form_is_the_weight_form_transposed():
    weight = adapters.inject(clip_models.openai_clip(), block=16)
    feature = adapters.inject(clip_models.openai_clip(), block=16, form="feature")
    disturb(weight)
    turned = {
        name: value.mT.contiguous() for name, value in adapters.adapter_state_dict(weight).items()
    }
    feature.load_state_dict(turned, strict=False)
    assert close(outputs(weight), outputs(feature))
    x = torch.randn(5, 1, 32)
    assert (
        feature.transformer.resblocks[0].attn(x, x, x, None, False)[1] is None
    )  # need_weights=False by its place
    sig = clip_models.siglip()
    with torch.no_grad():
        for name, bias in sig.named_parameters():
            if name.endswith("qkv.bias"):
                bias.normal_()
    before = outputs(sig)
    assert close(outputs(adapters.inject(sig, block=16, form="feature")), before)
    disturb(sig)
    assert not close(outputs(sig), before, 1e-3)
    with pytest.raises(HypvisionError, match="cannot be merged"):
        adapters.merge(feature)
    with pytest.raises(HypvisionError, match="does not reach inside"):
        adapters.inject(clip_models.custom_blocks(), block=16, form="feature")


def test_the_hyperbolic_form_equals_the_linear_one_until_the_clip(path):
    def tuned(**options):
        model = adapters.inject(clip_models.openai_clip(), block=16, **options)
        torch.manual_seed(5)
        disturb(model)
        return model

    flat = outputs(tuned(geometry="euclidean"))
    assert close(outputs(tuned()), flat)
    with pytest.warns(
        UserWarning, match="are as long as .* Use a smaller curvature c_(text|vision)"
    ):
        near = tuned(c_text=30.0, c_vision=30.0)
    report = clip_report(near)
    assert report["text"]["clipped_share"] > 0.5 and report["text"]["clip_radius"] < 0.7
    assert not close(outputs(near), flat, 1e-3)


@pytest.mark.parametrize("geometry", ["hyperbolic", "euclidean"])
def test_report_of_the_clip_on_known_rows(geometry):
    """Norms of the rows of the base model, tower by tower; blocks that double them."""
    model = clip_models.openai_clip()
    blocks = {"text": model.transformer.resblocks, "vision": model.visual.transformer.resblocks}
    rows = {
        kind: torch.cat(
            [
                block.attn.in_proj_weight.detach().norm(dim=-1).view(3, -1)[::2].flatten()
                for block in tower
            ]
        )
        for kind, tower in blocks.items()
    }  # of q and v
    middle = {kind: 2 * float(lengths.median()) for kind, lengths in rows.items()}
    # half of the doubled rows are beyond the radius
    curvature = (
        {f"c_{kind}": (3.80020 / middle[kind]) ** 2 for kind in rows}
        if geometry == "hyperbolic"
        else {}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapters.inject(
            clip_models.openai_clip(), block=16
        )  # rows far inside of the radius are nothing to warn of
        warnings.simplefilter("ignore")
        adapters.inject(model, block=16, projections="qv", geometry=geometry, **curvature)
    with torch.no_grad():
        for parameter in adapters.trainable_parameters(model):
            parameter.mul_(2)
    report = clip_report(model)
    assert set(report) == {"text", "vision"}
    for kind, found in report.items():
        assert found["largest_row"] == pytest.approx(float(rows[kind].max()), rel=1e-6)
        assert found["largest_mapped_row"] == pytest.approx(2 * float(rows[kind].max()), rel=1e-6)
        flat = geometry == "euclidean"
        assert found["clip_radius"] == (math.inf if flat else pytest.approx(middle[kind], rel=1e-5))
        assert found["clipped_share"] == (0 if flat else pytest.approx(0.5, abs=0.01))


def gradients(model, times=1):
    """Of the trained blocks, after as many steps with new weights."""
    for _ in range(times):
        model.zero_grad()
        images, texts = model(clip_models.random_images(model), clip_models.prompts())[:2]
        (images.square().sum() + texts[:, 0].sum()).backward()
        disturb(model, 0.01)
    return [parameter.grad.clone() for parameter in adapters.trainable_parameters(model)]


@pytest.mark.parametrize(
    "options", [{}, dict(projections="qv"), dict(mobius=False), dict(geometry="euclidean")]
)
def test_the_blocks_of_a_tower_are_mapped_together(options, path, monkeypatch):
    model = adapters.inject(clip_models.openai_clip(), block=16, **options)
    disturb(model)
    apart = copy.deepcopy(model)
    for module in apart.modules():
        if isinstance(module, BlockMaps):
            module.together = None
    calls = []
    several = layer.BlockMaps.adapted_together

    def counted(maps, packed):
        calls.append(len(maps))
        return several(maps, packed)

    monkeypatch.setattr(layer.BlockMaps, "adapted_together", staticmethod(counted))
    torch.manual_seed(1)
    found = gradients(model.train(), times=2)
    assert len(calls) == 4 and min(calls) > 1  # two steps, two towers, all blocks of each
    torch.manual_seed(1)
    for ours, expected in zip(found, gradients(apart.train(), times=2), strict=True):
        torch.testing.assert_close(ours, expected)


def test_what_no_block_took_is_not_kept():
    model = adapters.inject(clip_models.openai_clip(), block=16).train()
    first, *_, last = (maps for maps in model.modules() if isinstance(maps, BlockMaps))
    assert first.together is not last.together  # of the two towers
    packed = first.together.tower.frozen(first.together.tower.blocks[0])
    own = first.together.take(first, True)
    assert torch.equal(own, first.adapted(packed)) and first.together.waiting
    assert not copy.deepcopy(first).together.waiting
    own.sum().backward()
    assert not first.together.waiting
    second = first.together.maps[1]
    first.together.take(first, True)
    with torch.no_grad():
        second.q.add_(1.0)
    assert first.together.take(second, True) is None  # its weights have changed


def step_by_step(several, blocks_of, c, thirds):
    found = []
    for packed, s in zip(several, blocks_of):
        chunks = zip(packed.detach().chunk(3), s)
        found.append(torch.cat([map_rows_reference(rows, blocks, c) for rows, blocks in chunks]))
    return found


@pytest.mark.parametrize(("kind", "checkpointing"), [("openai", True), ("siglip", False)])
def test_gradients_are_those_of_the_reference(kind, checkpointing, path, monkeypatch):
    gradients = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr(layer, "map_several", step_by_step)
            monkeypatch.setattr(layer, "map_rows", map_rows_reference)
        model = adapters.inject(KINDS[kind](), block=16)
        torch.manual_seed(7)
        disturb(model)
        model.train()
        if fast and checkpointing:
            model.set_grad_checkpointing(True)
        for _ in range(2):  # the second pass must not reuse the graph of the first
            image, text = model(clip_models.random_images(model), clip_models.prompts())[:2]
            F.mse_loss(image, text[:2]).backward()
        gradients.append([parameter.grad for parameter in adapters.trainable_parameters(model)])
    # (2 x) because the reference is less exact in float32
    assert all((a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-7 for a, b in zip(*gradients))


@each("options", [
        dict(official_text_curvature=True, c_text=0.05), dict(text=False, c_text=0.05),
        dict(text=False, text_layers=(0,)), dict(vision=False, vision_layers=(0,)),
        dict(vision=False, c_vision=0.05), dict(official_twelve_layers=True, vision_layers=(0,)),
        dict(geometry="euclidean", c_text=0.05), dict(geometry="euclidean", c_vision=0.05),
        dict(geometry="euclidean", mobius=False),
        dict(geometry="euclidean", official_text_curvature=True),
        dict(text=False, official_text_curvature=True),
        dict(vision=False, official_dense_only=True),
        dict(vision=False, official_twelve_layers=True),
    ])  # fmt: skip
def test_options_that_exclude_each_other(options):
    with pytest.raises(HypvisionError, match="has no effect with .*Leave out one"):
        HyperCLIPConfig(**options)


def test_official_options():
    layers = HyperCLIPConfig(official_twelve_layers=True)
    assert layers.layers("vision", 24) == (*range(11), 23) and layers.layers("vision", 12) == tuple(
        range(12)
    )
    assert layers.layers("text", 24) == HyperCLIPConfig().layers("vision", 24) == tuple(range(24))
    assert layers.layers("text", 12) == tuple(range(12)) and layers.layers("vision", 4) == (
        0,
        1,
        2,
        3,
    )
    assert HyperCLIPConfig(text_layers=2, vision_layers=[3, 0]).layers("vision", 4) == (0, 3)
    assert HyperCLIPConfig(text_layers=2).layers("text", 4) == (2,) and HyperCLIPConfig(
        text_layers=[2]
    ).text_layers == (2,)
    assert HyperCLIPConfig(official_text_curvature=True).curvature("text") == 1.0
    assert HyperCLIPConfig(official_dense_only=True, vision_layers=[3]).layers("vision", 4) == (3,)
    with pytest.raises(
        HypvisionError,
        match="official_dense_only has no effect with vision_layers=.0,., without block 3",
    ):
        HyperCLIPConfig(official_dense_only=True, vision_layers=[0]).layers("vision", 4)

    from hypvision.clip.towers import encode_dense

    options = dict(block=16, text=False, vision_layers=(3,))
    model = adapters.inject(clip_models.openai_clip(), official_dense_only=True, **options)
    usual = adapters.inject(clip_models.openai_clip(), **options)
    images, before = clip_models.random_images(model), outputs(model)
    with torch.no_grad():
        dense = encode_dense(model, images)[0]
        for adapted in (model, usual):
            torch.manual_seed(0)
            disturb(adapted)
        assert close(outputs(model), before, 0) and not close(outputs(usual), before, 1e-3)
        tuned = encode_dense(model, images)[0]
        assert not torch.allclose(tuned, dense, atol=1e-3)
        assert torch.allclose(tuned, encode_dense(usual, images)[0], atol=1e-6)
    # Where it is not used its gradients are zeros, not missing: distributed training waits for all.
    model.train().encode_image(images).sum().backward()
    assert all(not parameter.grad.any() for parameter in adapters.trainable_parameters(model))
    # What it computes is not that of any plain weights.
    with pytest.raises(HypvisionError, match="two sets of weights"):
        adapters.merge(model)
    blocks = adapters.adapter_state_dict(model)
    plain = adapters.inject(clip_models.openai_clip(), **options)
    plain.load_state_dict(blocks, strict=False)
    assert torch.allclose(encode_dense(adapters.merge(plain), images)[0], tuned, atol=1e-5)


def test_counts_and_names():
    model = adapters.inject(clip_models.openai_clip(), block=16)
    names = adapters.adapter_state_dict(model)
    assert names["visual.transformer.resblocks.3.hyperclip.v"].shape == (4, 16, 16)
    assert names["transformer.resblocks.0.hyperclip.q"].shape == (2, 16, 16)
    count = sum(value.numel() for value in names.values())
    assert count == 3 * 3 * 32 * 16 + 4 * 3 * 64 * 16
    text = adapters.summary(model)
    assert (
        f"{count:,} of " in text
        and "3 of 3 text blocks" in text
        and "c = 0.01" in text
        and "\n" not in text
    )


@pytest.mark.parametrize("form,frozen", [("feature", {"q", "k"}), ("weight", set())])
def test_what_a_dense_prediction_never_meets(form, frozen):
    model = adapters.inject(clip_models.openai_clip(), block=16, form=form)
    adapters.adapter_of(model).freeze_unused()
    still = {
        name
        for name, parameter in model.named_parameters()
        if "hyperclip" in name and not parameter.requires_grad
    }
    assert still == {f"visual.transformer.resblocks.3.hyperclip.{letter}" for letter in frozen}


def test_fingerprint_of_the_base_model():
    """As it stands in files: over the adapted blocks alone, unchanged by what the adapter
    learns."""
    model = adapters.inject(clip_models.openai_clip(), block=16, text_layers=(1, 2), vision=False)
    weights = [
        clip_models.openai_clip().transformer.resblocks[i].attn.in_proj_weight for i in (1, 2)
    ]
    for _ in range(2):
        found = adapters.adapter_of(model).fingerprint()
        assert set(found) == {"text"} and (found["text"]["width"], found["text"]["depth"]) == (
            32,
            3,
        )
        mean = sum(float(weight.detach().abs().mean()) for weight in weights) / 2
        assert found["text"]["mean_abs"] == pytest.approx(mean, rel=1e-6)
        expected = [
            float(weights[0].detach().flatten()[192 * k]) for k in range(16)
        ]  # of 96 x 32 numbers
        assert found["text"]["sample"] == pytest.approx(expected)
        disturb(model)
