"""The adapter on open_clip models of every kind: identity at first, mergeable, cached, saved and refused."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import clip_models
from safetensors.torch import save_file

from hypvision.clip.adapters import hyperclip
from hypvision.clip.adapters.block_map import BlockMap
from hypvision.errors import HypvisionError

KINDS = {"openai": clip_models.openai_clip, "siglip": clip_models.siglip, "custom": clip_models.custom_blocks}
OPTIONS = [
    dict(),
    dict(block=1),
    dict(block=32, shared=True),
    dict(projections="qv"),
    dict(text=False),
    dict(vision=False, text_layers=(1,)),
    dict(geometry="euclidean"),
    dict(mobius=False),
    dict(fused=False),
]


def outputs(model, seed=0):
    model.eval()
    with torch.no_grad():
        return model(clip_models.pictures(model, seed=seed), clip_models.prompts(seed=seed))[:2]


def close(a, b, tolerance=1e-5):
    return all((x - y).abs().max() <= tolerance for x, y in zip(a, b))


def disturb(model, noise=0.1):
    with torch.no_grad():
        for parameter in hyperclip.trainable_parameters(model):
            parameter.add_(noise * torch.randn_like(parameter))


@pytest.fixture(params=["packed", "batched"])
def path(request, monkeypatch):
    """How the weights are computed: as on a CPU, as on a GPU."""
    monkeypatch.setattr(hyperclip, "_SMALL", 1 if request.param == "packed" else 10**9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_identity_then_merged_then_removed(kind, options):
    if kind == "custom" and options not in (OPTIONS[0], OPTIONS[3]):
        pytest.skip("the attention class alone differs")
    model = KINDS[kind]()
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    before = outputs(model)
    hyperclip.inject(model, **{"block": 16, **options})
    assert close(outputs(model), before)
    assert {name: value.shape for name, value in model.state_dict().items() if "hyperbolic" not in name} == {
        name: value.shape for name, value in plain.items()
    }
    disturb(model)
    tuned = outputs(model)
    changed = [not torch.allclose(a, b, atol=1e-3) for a, b in zip(tuned, before)]
    assert changed == [options.get("vision", True), options.get("text", True)]
    other = copy.deepcopy(model)
    assert close(outputs(other), tuned, 0)
    hyperclip.merge(model)
    assert set(model.state_dict()) == set(plain) and not hyperclip.is_injected(model)
    assert close(outputs(model), tuned)
    assert all(type(module).__module__ != hyperclip.__name__ for module in model.modules())
    hyperclip.remove(other)
    assert close(outputs(other), before, 1e-6)
    assert all(torch.equal(value, plain[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("kind", ["openai", "siglip"])
def test_adapted_projections_are_the_literal_ones(kind, path):
    """The projection of every block, computed row by row with the literal chain, gives the same model."""
    from hypvision.clip.adapters.block_map import map_rows_literal
    from hypvision.clip.towers import find_towers

    model = KINDS[kind]()
    literal = copy.deepcopy(model)
    hyperclip.inject(model, block=16, c_text=1.0, official_cls_quirk=False)
    disturb(model)
    for tower, base in zip(find_towers(model), find_towers(literal)):
        for block, plain in zip(tower.blocks, base.blocks):
            packed = base.owner(plain)._parameters[base.packed_name]
            parts = [
                map_rows_literal(rows, getattr(block.hyperbolic_attn, f"adapter_attn_{letter}").weights, c)
                for letter, rows in zip("qkv", packed.detach().chunk(3))
                for c in [1.0 if tower.kind == "text" else 0.01]
            ]
            packed.data = torch.cat(parts)
    assert close(outputs(model), outputs(literal), 5e-6)


def test_feature_form_is_the_weight_form_transposed():
    weight = hyperclip.inject(clip_models.openai_clip(), block=16)
    feature = hyperclip.inject(clip_models.openai_clip(), block=16, form="feature")
    disturb(weight)
    turned = {name: value.mT.contiguous() for name, value in hyperclip.adapter_state_dict(weight).items()}
    feature.load_state_dict(turned, strict=False)
    assert close(outputs(weight), outputs(feature))
    sig = hyperclip.inject(clip_models.siglip(), block=16, form="feature")
    before = outputs(sig)
    disturb(sig)
    assert not close(outputs(sig), before, 1e-3)
    with pytest.raises(HypvisionError, match="cannot be merged"):
        hyperclip.merge(feature)
    with pytest.raises(HypvisionError, match="does not reach inside"):
        hyperclip.inject(clip_models.custom_blocks(), block=16, form="feature")


def test_the_hyperbolic_form_equals_the_linear_one_until_the_clip(path):
    def tuned(**options):
        model = hyperclip.inject(clip_models.openai_clip(), block=16, **options)
        torch.manual_seed(5)
        disturb(model)
        return model

    flat = outputs(tuned(geometry="euclidean"))
    assert close(outputs(tuned()), flat)
    with pytest.warns(UserWarning, match="are as long as .* Use a smaller curvature c_(text|vision)"):
        near = tuned(c_text=30.0, c_vision=30.0)
    report = hyperclip.clip_report(near)
    assert report["text"]["clipped_share"] > 0.5 and report["text"]["clip_radius"] < 0.7
    assert not close(outputs(near), flat, 1e-3)


def test_only_the_blocks_train_and_get_finite_gradients():
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    model.train()
    image, text, scale = model(clip_models.pictures(model), clip_models.prompts())
    (image[0] @ text[0] * scale).backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == set(hyperclip.adapter_state_dict(model))
    assert len(trained) == 3 * (3 + 4)
    gradients = [parameter.grad for parameter in hyperclip.trainable_parameters(model)]
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)


@pytest.mark.parametrize("kind", ["openai", "siglip"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_the_literal_path(kind, checkpointing, path):
    gradients = []
    for fused in (True, False):
        model = hyperclip.inject(KINDS[kind](), block=16, fused=fused)
        torch.manual_seed(7)
        disturb(model)
        model.train()
        if fused and checkpointing:
            model.set_grad_checkpointing(True)
        for _ in range(2):  # the second pass must not reuse the graph of the first
            image, text = model(clip_models.pictures(model), clip_models.prompts())[:2]
            F.mse_loss(image, text[:2]).backward()
        gradients.append([parameter.grad for parameter in hyperclip.trainable_parameters(model)])
    # (2 x) because the literal chain is less exact in float32
    assert all((a - b).abs().max() <= 1e-4 * b.abs().max() + 1e-7 for a, b in zip(*gradients))


def test_two_passes_then_two_backwards(path):
    model = hyperclip.inject(clip_models.openai_clip(), block=16).train()
    first, second = (model.encode_image(clip_models.pictures(model, seed=seed)).sum() for seed in (0, 1))
    first.backward()
    second.backward()


def test_adapted_weights_are_kept_while_nothing_changes(monkeypatch):
    calls = []
    original = hyperclip._TowerAdapter._compute
    monkeypatch.setattr(hyperclip._TowerAdapter, "_compute", lambda self, key: calls.append(1) or original(self, key))
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    before = outputs(model)
    assert len(calls) == 2  # one for each tower, for all layers
    outputs(model)
    with torch.inference_mode():
        model.encode_text(clip_models.prompts())
    assert len(calls) == 2
    disturb(model)
    assert not close(outputs(model), before, 1e-3) and len(calls) == 4
    model.load_state_dict({name: torch.eye(16).expand_as(value) for name, value in
                           hyperclip.adapter_state_dict(model).items()}, strict=False)  # fmt: skip
    assert close(outputs(model), before) and len(calls) == 6
    model.double()
    with torch.no_grad():
        assert model.encode_text(clip_models.prompts()).dtype == torch.double


def test_an_optimiser_step_is_seen():
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    optimizer = torch.optim.AdamW(hyperclip.trainable_parameters(model), lr=1e-2)
    target, losses = torch.randn(3, 64), []
    for _ in range(8):
        loss = F.mse_loss(model.encode_text(clip_models.prompts()), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    with torch.no_grad():
        assert F.mse_loss(model.encode_text(clip_models.prompts()), target) < losses[-1]


def test_order_of_parameters_does_not_change_with_use():
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    names = [name for name, _ in model.named_parameters()]
    outputs(model)
    model.train()
    model.encode_text(clip_models.prompts()).sum().backward()
    assert [name for name, _ in model.named_parameters()] == names


def test_copies_are_independent_and_can_be_pickled(path):
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    model.train()
    kept = model.encode_text(clip_models.prompts())  # adapted weights with a graph exist now
    other = copy.deepcopy(model)
    third = pickle.loads(pickle.dumps(model))
    assert kept.requires_grad and close(outputs(third), outputs(model), 0)
    disturb(other)
    assert not close(outputs(other), outputs(model), 1e-3)
    hyperclip.remove(other)
    assert hyperclip.is_injected(model) and close(outputs(other), outputs(model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = clip_models.openai_clip().to(dtype)
    before = outputs(model.float())[1]
    model = hyperclip.inject(model.to(dtype), block=16)
    assert all(parameter.dtype == torch.float32 for parameter in hyperclip.trainable_parameters(model))
    with torch.no_grad():
        after = model.encode_text(clip_models.prompts(), normalize=True)
    assert after.dtype == dtype and (after.float() - before).abs().max() < 0.05


def test_autocast_trains():
    model = hyperclip.inject(clip_models.openai_clip(), block=16).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.encode_image(clip_models.pictures(model)).float().square().mean()
    loss.backward()
    gradients = [p.grad for name, p in model.named_parameters() if name.startswith("visual") and "hyperbolic" in name]
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)


def test_official_quirks():
    layers = hyperclip.HyperCLIPConfig(official_layer_quirk=True)
    assert layers.layers("vision", 24) == (*range(11), 23) and layers.layers("vision", 12) == tuple(range(12))
    assert layers.layers("text", 12) == tuple(range(12))
    assert hyperclip.HyperCLIPConfig(official_text_curvature=True).curvature("text") == 1.0

    from hypvision.clip.towers import encode_dense

    options = dict(block=16, text=False, vision_layers=(3,))
    model = hyperclip.inject(clip_models.openai_clip(), official_cls_quirk=True, **options)
    usual = hyperclip.inject(clip_models.openai_clip(), **options)
    images, before = clip_models.pictures(model), outputs(model)
    with torch.no_grad():
        dense = encode_dense(model, images)[0]
        for adapted in (model, usual):
            torch.manual_seed(0)
            disturb(adapted)
        assert close(outputs(model), before, 0) and not close(outputs(usual), before, 1e-3)
        tuned = encode_dense(model, images)[0]
        assert not torch.allclose(tuned, dense, atol=1e-3)
        assert torch.allclose(tuned, encode_dense(usual, images)[0], atol=1e-6)
    # What it computes is not that of any plain weights.
    with pytest.raises(HypvisionError, match="two sets of weights"):
        hyperclip.merge(model)
    blocks = hyperclip.adapter_state_dict(model)
    plain = hyperclip.inject(clip_models.openai_clip(), **options)
    plain.load_state_dict(blocks, strict=False)
    assert torch.allclose(encode_dense(hyperclip.merge(plain), images)[0], tuned, atol=1e-5)


def test_counts_and_names():
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    names = hyperclip.adapter_state_dict(model)
    assert names["visual.transformer.resblocks.3.hyperbolic_attn.adapter_attn_v.weights"].shape == (4, 16, 16)
    assert names["transformer.resblocks.0.hyperbolic_attn.adapter_attn_q.weights"].shape == (2, 16, 16)
    count = sum(value.numel() for value in names.values())
    assert count == 3 * 3 * 32 * 16 + 4 * 3 * 64 * 16
    text = hyperclip.summary(model)
    assert f"{count:,} of " in text and "3 of 3 text blocks" in text and "c = 0.01" in text and "\n" not in text
    model.logit_scale.requires_grad_()
    assert "1 others train" in hyperclip.summary(model)


# Files


def test_saved_and_loaded(tmp_path):
    model = hyperclip.inject(clip_models.openai_clip(), block=16, c_text=1.0, projections="qv")
    disturb(model)
    path = hyperclip.save_adapter(model, tmp_path / "new" / "adapter.safetensors")
    assert [file.name for file in path.parent.iterdir()] == ["adapter.safetensors"]
    fresh = hyperclip.load_adapter(clip_models.openai_clip(), path)
    assert hyperclip.config_of(fresh) == hyperclip.config_of(model)
    assert close(outputs(fresh), outputs(model), 0)
    assert path.stat().st_size < 1.2 * 4 * sum(p.numel() for p in hyperclip.trainable_parameters(model)) + 10_000


def test_adapters_of_other_models_are_refused(tmp_path):
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    path = hyperclip.save_adapter(model, tmp_path / "a.safetensors")

    def fails(match, target, file=path, **options):
        with pytest.raises(HypvisionError, match=match):
            hyperclip.load_adapter(target, file, **options)
        assert not hyperclip.is_injected(target) or target is model

    fails("of another model: its text tower has 3 blocks of width 32, this one's 2", clip_models.openai_clip(2))
    other = clip_models.openai_clip()
    for parameter in other.parameters():
        parameter.data.mul_(1.5)
    fails("trained on other weights", other)
    hyperclip.load_adapter(other, path, strict=False)
    fails("There is no adapter", clip_models.openai_clip(), tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"x" * 100)
    fails("cannot be read", clip_models.openai_clip(), tmp_path / "broken.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "plain.safetensors")
    fails("is not an adapter", clip_models.openai_clip(), tmp_path / "plain.safetensors")
    fails("carries a HyperCLIP adapter already", model)
    for content in ("{}", '{"config": {"rank": 1}, "base": {}}'):
        save_file({"a": torch.ones(1)}, tmp_path / "plain.safetensors", metadata={"hyperclip": content})
        fails("is not an adapter", clip_models.openai_clip(), tmp_path / "plain.safetensors")
    # As two random initialisations: of the same sizes, with nothing else in common.
    half = hyperclip.save_adapter(
        hyperclip.inject(clip_models.openai_clip().bfloat16(), block=16), tmp_path / "b.safetensors"
    )
    hyperclip.load_adapter(clip_models.openai_clip(), half)
    for parameter in (other := clip_models.openai_clip()).parameters():
        parameter.data.neg_()
    fails("begin differently", other, half)


def test_mistakes_are_explained(tmp_path):
    def fails(match, function, *args, **kwargs):
        with pytest.raises(HypvisionError, match=match) as caught:
            function(*args, **kwargs)
        assert "\n" not in str(caught.value)

    model = clip_models.openai_clip()
    fails("carries no HyperCLIP adapter", hyperclip.trainable_parameters, model)
    fails("carries no HyperCLIP adapter", hyperclip.merge, model)
    fails("does not divide the width 32", hyperclip.inject, model, block=64)
    assert not hyperclip.is_injected(model)
    fails("has blocks 0 to 3", hyperclip.inject, model, block=16, vision_layers=(4,))
    fails("no option blocks", hyperclip.inject, model, blocks=16)
    fails("use some of the letters", hyperclip.inject, model, projections="qo")
    fails("form is 'both'", hyperclip.inject, model, form="both")
    fails("nothing would be adapted", hyperclip.inject, model, text=False, vision=False)
    fails("no transformer tower", hyperclip.inject, model, text_layers=(), vision_layers=())
    fails("For none use geometry='euclidean'", hyperclip.inject, model, c_text=0)
    fails("no transformer tower", hyperclip.inject, torch.nn.Linear(2, 2))
    fails("written as .safetensors", hyperclip.save_adapter, hyperclip.inject(model, block=16), tmp_path / "a.pth")


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    model = hyperclip.inject(clip_models.openai_clip(), block=16)
    path = tmp_path / "adapter.safetensors"
    path.write_text("old")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(HypvisionError, match="was not written: the disk is full"):
        hyperclip.save_adapter(model, path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_real_vit_b16():
    """Random weights in ViT-B/16: the counts of the official model, identity, merge; SigLIP's real image tower."""
    import open_clip

    model = open_clip.create_model("ViT-B-16", force_quick_gelu=True).eval()
    before = [model.encode_image(torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))).detach()]
    hyperclip.inject(model)
    assert sum(p.numel() for p in hyperclip.trainable_parameters(model)) == 5_898_240
    assert len(hyperclip.trainable_parameters(model)) == 72
    assert sum(p.numel() for p in model.parameters()) == 155_518_977
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    assert close([model.encode_image(image).detach()], before)
    disturb(model, 0.02)
    tuned = model.encode_image(image).detach()
    hyperclip.merge(model)
    assert close([model.encode_image(image).detach()], [tuned])
    assert isinstance(model.visual, torch.nn.Module) and not any(isinstance(m, BlockMap) for m in model.modules())
