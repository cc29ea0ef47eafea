"""HCFormer against its reference implementation, and everything that timm's users expect of a
backbone."""

import math

import pytest
import timm
import timm.optim
import torch
import torch.nn.functional as F
from helpers.cases import each
from references.hcformer import ReferenceHCFormer

import hypvision  # noqa: F401 - registers the models
from hypvision.models.hcformer import Mlp, checkpoint_filter_fn
from hypvision.models.hcformer_checkpoint import hcformer_from_official, hcformer_to_official

MICRO = dict(
    layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2), head_dim=4, num_classes=5
)


def micro(name="hcformer_nano", **kwargs):
    return timm.create_model(name, **{**MICRO, **kwargs})


def fill(model):
    """Deterministic weights, the same on every machine: no random generator is involved."""
    with torch.no_grad():
        for k, (name, parameter) in enumerate(sorted(model.named_parameters())):
            ramp = torch.arange(parameter.numel(), dtype=torch.float64)
            wave = torch.sin(0.7 * ramp + k).reshape(parameter.shape).to(parameter.dtype)
            if parameter.dim() > 1 and "position" not in name:
                parameter.copy_(wave * math.sqrt(2 / parameter[0].numel()))
            else:
                parameter.copy_(0.5 + 0.3 * wave)
    return model


def image(batch=2, height=96, width=128):
    grid = torch.arange(batch * 3 * height * width, dtype=torch.float64).reshape(
        batch, 3, height, width
    )
    return torch.sin(0.013 * grid + 0.1 * torch.cos(0.37 * grid)).float()


@each(
    "name, millions",
    [
        ("hcformer_nano", 5.33),
        ("hcformer_tiny", 6.95),
        ("hcformer_small", 16.11),
        ("hcformer_medium", 33.65),
    ],
)
def test_parameter_counts(name, millions):
    model = timm.create_model(name, device="meta")
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize(
    "name", ["hcformer_nano", pytest.param("hcformer_medium", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("curvature", [1.0, 0.1])
def test_equals_the_reference(name, curvature):
    reference = fill(ReferenceHCFormer(name, curvature=curvature)).eval()
    model = timm.create_model(name, curvature=curvature).eval()
    model.load_state_dict(hcformer_from_official(reference.state_dict()))
    x = image()
    with torch.no_grad():
        expected, out = reference(x), model(x)
    assert (out - expected).norm() / expected.norm() < 2e-6


def test_dense_maps_equal_the_reference():
    reference = fill(ReferenceHCFormer("hcformer_nano", dense=True)).eval()
    model = timm.create_model("hcformer_nano", features_only=True).eval()
    model.model.load_state_dict(hcformer_from_official(reference.state_dict()))
    with torch.no_grad():
        expected, out = reference(image()), model(image())
    assert len(out) == 4
    for theirs, ours in zip(expected, out):
        assert (ours - theirs).norm() / theirs.norm() < 5e-6


def test_golden_numbers():
    """Pinned on the day the two formulations agreed: a change in both at once would show."""
    model = timm.create_model("hcformer_nano", num_classes=4)
    reference = fill(ReferenceHCFormer("hcformer_nano", num_classes=4))
    model.load_state_dict(hcformer_from_official(reference.state_dict()))
    with torch.no_grad():
        out = model.eval()(image(1, 64, 64))[0]
    torch.testing.assert_close(out, torch.tensor(GOLDEN), rtol=1e-4, atol=1e-4)


GOLDEN = [-0.926904, 0.176675, 1.229489, 2.109557]


def test_gradients_equal_the_reference():
    reference = fill(ReferenceHCFormer("hcformer_nano", num_classes=3)).double()
    model = timm.create_model("hcformer_nano", num_classes=3).double()
    model.load_state_dict(hcformer_from_official(reference.state_dict()))
    x = image(1, 64, 64).double()
    reference(x).square().sum().backward()
    model(x).square().sum().backward()
    expected = hcformer_from_official({name: p.grad for name, p in reference.named_parameters()})
    for name, parameter in model.named_parameters():
        scale = expected[name].abs().max() + 1e-12
        assert (parameter.grad - expected[name]).abs().max() / scale < 1e-6, name


def test_conversion_goes_both_ways_and_accepts_wrappers():
    reference = ReferenceHCFormer("hcformer_nano")
    official = reference.state_dict()
    back = hcformer_to_official(hcformer_from_official(official))
    curvatures = {
        n for n in back if n.endswith("token_mixer.manifold.k")
    }  # which the reference does not store
    assert set(back) - curvatures == set(official)
    assert curvatures == {f"{n[:-10]}manifold.k" for n in official if n.endswith(".sim_alpha2")}
    assert all(
        torch.equal(back[name].reshape(value.shape), value) for name, value in official.items()
    )
    model = timm.create_model("hcformer_nano")
    for wrapped in (official, {"state_dict": official}, {"model": official, "epoch": 3}):
        model.load_state_dict(checkpoint_filter_fn(wrapped, model))


def test_position_biases_of_another_size_are_resized():
    source, target = micro(img_size=224), micro(img_size=96)
    target.load_state_dict(checkpoint_filter_fn(source.state_dict(), target))
    assert target.stages[0].blocks[0].mixer.bias.shape[-1] == 24


@each("size", [(32, 32), (33, 47), (64, 224), (130, 96)])
def test_any_size(size):
    model = micro().eval()
    assert model(torch.randn(1, 3, *size)).shape == (1, 5)
    maps = timm.create_model("hcformer_nano", features_only=True, **MICRO)(torch.randn(1, 3, *size))
    assert [m.shape[1] for m in maps] == list(MICRO["dims"])


def test_bad_arguments():
    with pytest.raises(ValueError, match="per-stage"):
        micro(fold=(7, 7, 1))
    with pytest.raises(ValueError, match="img_size"):
        micro(img_size=16)
    with pytest.raises(ValueError, match="curvature"):
        micro(curvature=0)


@each(
    "name, value",
    [
        ("fold", 3),
        ("fold", ()),
        ("layers", (1, 0, 1, 1)),
        ("heads", (1, 2.0, 1, 1)),
        ("dims", (8, -8, 8, 8)),
        ("mlp_ratios", (2, 0, 2, 2)),
        ("mlp_ratios", (2, "2", 2, 2)),
        ("layer_scale", (0.1,)),
        ("layer_scale", (0.1, "a")),
        ("layer_scale", float("nan")),
        ("layer_scale", -0.1),
        ("alpha", "3"),
        ("window_alpha", float("inf")),
        ("locality", "2"),
        ("locality", -1.0),
        ("patch_size", 0),
        ("patch_size", 2.5),
        ("head_dim", 0),
        ("img_size", (64, 0)),
        ("curvature", "1"),
        ("curvature", float("inf")),
        ("curvature", float("nan")),
        ("curvature", True),
    ],
)
def test_arguments_out_of_their_range_are_named(name, value):
    with pytest.raises(
        ValueError, match=rf"^{name}(\[1\]|, minus the sectional curvature,)? must "
    ):
        micro(**{name: value})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_locality_learns_without_decay_also_under_autocast(dtype):
    model = micro(locality=2.0, alpha=3.0, center=True, layer_scale=0.1).train()
    spared = {name for name in model.no_weight_decay() if name.endswith("locality")}
    assert (
        spared == {name for name, _ in model.named_parameters() if name.endswith("locality")}
        and spared
    )
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = model(torch.randn(2, 3, 64, 64)).square().mean()
    loss.backward()
    for i, stage in enumerate(model.stages):
        mixer = stage.blocks[0].mixer
        grad = mixer.locality.grad
        assert grad.isfinite().all() and (grad.abs().max() > 0) == (mixer.prop > 1), i


def test_layer_scales_of_mixers_and_mlps():
    block = micro(layer_scale=(0.0, 0.3)).stages[1].blocks[0]
    assert block.layer_scale1.eq(0).all() and block.layer_scale2.eq(0.3).all()
    assert micro(layer_scale=0.2).stages[1].blocks[0].layer_scale1.eq(0.2).all()


def test_features_of_a_network_of_two_stages():
    per_stage = dict(layers=(1, 1), dims=(16, 32), heads=(2, 2), mlp_ratios=(2, 2), fold=(2, 1),
    prop=(2, 2),
                     win=(2, 1), window_level=(True, False))  # fmt: skip
    model = timm.create_model(
        "hcformer_nano", features_only=True, head_dim=8, img_size=64, **per_stage
    )
    assert [m.shape for m in model(torch.randn(1, 3, 64, 64))] == [(1, 16, 16, 16), (1, 32, 8, 8)]
    with pytest.raises(ValueError, match="^layers must be a tuple"):
        timm.create_model("hcformer_nano", features_only=True, layers=2)


def test_classifier_and_head():
    model = micro(in_chans=1, drop_path_rate=0.2).eval()
    features = model.forward_features(torch.randn(2, 1, 64, 64))
    assert model.forward_head(features, pre_logits=True).shape == (2, 32)
    model.reset_classifier(7)
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 7)
    model.reset_classifier(0, "")
    assert model(torch.randn(2, 1, 64, 64)).shape == (2, 32, 2, 2)


@each("indices", [(0, 1, 2, 3), (1, 3), (2,), (0,)])
def test_features_only_has_no_unused_parameters(indices):
    model = timm.create_model("hcformer_nano", features_only=True, out_indices=indices, **MICRO)
    maps = model(torch.randn(1, 3, 64, 64))
    assert [m.shape[1:] for m in maps] == [(MICRO["dims"][i], 16 >> i, 16 >> i) for i in indices]
    sum(m.square().sum() for m in maps).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_intermediates_agree():
    model, x = micro().eval(), torch.randn(1, 3, 64, 64)
    final, maps = model.forward_intermediates(x)
    torch.testing.assert_close(final, model.forward_features(x))
    for i in range(4):
        early = model.forward_intermediates(
            x, indices=[i], stop_early=True, intermediates_only=True
        )
        torch.testing.assert_close(early[0], maps[i])


def test_parameter_groups():
    model = micro()
    names = {name for name, _ in model.named_parameters()}
    assert model.no_weight_decay() <= names
    exempt = model.no_weight_decay()
    assert (
        "stages.0.blocks.0.mixer.window_alpha" in exempt
        and "stages.0.blocks.0.mixer.bias" not in exempt
    )
    groups = timm.optim.param_groups_layer_decay(model, weight_decay=0.1, layer_decay=0.5)
    assert len({group["lr_scale"] for group in groups}) > 4


def test_assignments_of_every_block():
    model, x = micro().eval(), torch.randn(2, 3, 64, 96)
    found = model.forward_assignments(x)
    assert [(f.stage, f.block) for f in found] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert found[0].assignment.patch.shape == (2, 2, 16, 16, 24)
    assert found[3].assignment.window is None
    for item in found:
        total = item.assignment.patch.sum(2)
        torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.slow
def test_compiles_without_graph_breaks_for_changing_sizes():
    model = micro().eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for size in ((64, 64), (96, 128), (80, 160)):
        x = torch.randn(1, 3, *size)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_bfloat16_autocast():
    model, x = micro(), torch.randn(2, 3, 64, 64)
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    out.float().sum().backward()
    assert (out.float() - expected).abs().max() < 0.05
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_mlp_gradients_twice():
    """The MLP recomputes GELU in backward: first and second derivatives against finite
    differences."""
    mlp = Mlp(3, 4).double()
    x = torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mlp, (x,))
    assert torch.autograd.gradgradcheck(mlp, (x,))


def test_mlp_keeps_one_hidden_map():
    mlp, x, kept = Mlp(8, 64), torch.randn(2, 5, 5, 8), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        mlp(x)
    assert sum(t.numel() for t in kept if t.shape[-1] == 64 and t.dim() == 4) == 2 * 5 * 5 * 64


def test_mlp_under_autocast_matches_plain_operations():
    mlp, x = Mlp(8, 32), torch.randn(2, 5, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = mlp(x)
        plain = mlp.fc2(F.gelu(mlp.fc1(x)))
    assert out.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(out, plain)
    found = torch.autograd.grad(out.float().sum(), list(mlp.parameters()))
    expected = torch.autograd.grad(plain.float().sum(), list(mlp.parameters()))
    for one, other in zip(found, expected):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * other.abs().max().item())


@pytest.mark.parametrize("stem", ["conv", "residual"])
def test_stems_and_local_convolutions(stem):
    x = image(2, 64, 64)
    for patch_size in (1, 2, 4, 8):
        model = micro(stem=stem, patch_size=patch_size, local_conv=True)
        convolutions = sum(isinstance(module, torch.nn.Conv2d) for module in model.stem.modules())
        levels = 3 if patch_size == 8 else 2
        assert convolutions == (levels if stem == "conv" else levels + 2 * (levels - 1))
        assert model.stem(x).shape[-2:] == (64 // patch_size, 64 // patch_size)
        assert model(x).shape == (2, 5)
    with pytest.raises(ValueError, match="power of two, got 6"):
        micro(stem=stem, patch_size=6, img_size=64)
    with pytest.raises(ValueError, match="stem"):
        micro(stem="fancy")


@each("stem, first", [("patch", "stem"), ("conv", "stem.0"), ("residual", "stem.0.conv")])
def test_the_first_convolution_of_every_stem_is_named(stem, first):
    model = timm.create_model("hcformer_nano", stem=stem, patch_size=8, device="meta")
    assert model.pretrained_cfg["first_conv"] == first
    assert model.get_submodule(first).in_channels == 3


def test_local_convolutions_start_as_the_identity_and_then_mix_neighbours():
    torch.manual_seed(0)
    model = micro(local_conv=True).eval()
    plain = micro().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    x = image(1, 64, 64)
    torch.testing.assert_close(model(x), plain(x))
    seen = [entry.assignment.patch for entry in model.forward_assignments(x)]
    torch.nn.init.constant_(model.stages[0].blocks[0].local.conv.weight, 0.5)
    assert (model(x) - plain(x)).abs().max() > 1e-4
    assert (model.forward_assignments(x)[0].assignment.patch - seen[0]).abs().max() > 1e-4


def test_mixers_start_as_the_convolutions_that_they_are():
    """The published f, v and proj are Conv2d of kernel 1 with PyTorch's own initialisation, uniform
    in 1/sqrt(in)."""
    torch.manual_seed(0)
    mixer = timm.create_model("hcformer_nano").stages[2].blocks[0].mixer
    for layer in (mixer.feature, mixer.value, mixer.proj):
        bound = layer.in_features**-0.5
        assert layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
        assert layer.bias.abs().max() > 0
