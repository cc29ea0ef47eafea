"""HCFormer through the compilers and exporters, on other devices and dtypes, and behind frozen
stages."""

import pytest
import timm
import torch
from helpers.cases import each
from torch import nn

import hypvision  # noqa: F401 - registers the models
from hypvision.models.hcformer import HCFormer, MapNorm

MICRO = dict(
    layers=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2), head_dim=4, num_classes=5
)
SIZES = [(64, 64), (67, 101), (160, 96), (224, 224)]


def micro(**kwargs):
    model = timm.create_model("hcformer_nano", **{**MICRO, **kwargs})
    with (
        torch.no_grad()
    ):  # the layer scales are 1e-5 at first and would hide what the blocks compute
        for name, parameter in model.named_parameters():
            if "layer_scale" in name:
                parameter.fill_(0.5)
    return model.eval()


@pytest.mark.slow
def test_export_with_dynamic_sizes():
    """One exported program serves every batch and image size."""
    model, auto = micro(), torch.export.Dim.AUTO
    x = torch.randn(2, 3, 96, 64)
    program = torch.export.export(
        model, (x,), dynamic_shapes={"x": {0: auto, 2: auto, 3: auto}}
    ).module()
    for batch, size in enumerate(SIZES, start=2):
        x = torch.randn(batch, 3, *size)
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_compiled_training_step_without_graph_breaks(autocast):
    model = micro().train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 64, 64)
    grads = []
    for network in (model, compiled):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = network(x)
        out.float().square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    largest = max(grad.abs().max().item() for grad in grads[0])
    for eager, traced in zip(*grads):
        size = eager.abs().max().item()
        tolerance = 0.05 * size + 1e-5 * largest if autocast else 1e-4 * max(1, size)
        assert (eager - traced).abs().max() <= tolerance


def test_sizes_may_change_from_call_to_call():
    model, again = micro(), [torch.randn(1, 3, *size) for size in SIZES]
    first = [model(x) for x in again]
    for x, out in reversed(list(zip(again, first))):
        assert torch.equal(model(x), out)
    assert all(
        name in dict(model.named_parameters()) for name in model.state_dict()
    )  # no caches in buffers


def test_meta_device():
    model = timm.create_model("hcformer_nano", device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in model.parameters())
    assert model(torch.empty(2, 3, 96, 64, device="meta", dtype=torch.bfloat16)).shape == (2, 1000)


def test_double_and_bfloat16_models():
    x = torch.randn(1, 3, 64, 64)
    expected = (model := micro().double())(x.double())
    assert expected.dtype == torch.float64
    half = micro(dtype=torch.bfloat16)
    half.load_state_dict(model.state_dict())
    out = half(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out.double() - expected).norm() / expected.norm() < 0.1


@each("norm, head", [(True, False), (False, True)])
@each("indices", [1, 3, [0, 2]])
def test_pruned_models_use_all_their_parameters(indices, norm, head):
    """What pruning leaves is needed, and gives the same maps as before."""
    model, x = micro(), torch.randn(2, 3, 64, 64)
    expected = model.forward_intermediates(x, indices, intermediates_only=True)
    kept = model.prune_intermediate_layers(indices, prune_norm=norm, prune_head=head)
    final, maps = model.forward_intermediates(x, kept)
    for got, before in zip(maps, expected):
        torch.testing.assert_close(got, before)
    assert model.num_features == final.shape[1] == MICRO["dims"][max(kept)]
    out = model(x)  # the final map, pooled and classified where the head is kept
    (out.square().sum() + sum(m.square().sum() for m in maps)).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@each("shape", [(2, 8, 5, 7), (1, 3, 1, 1)])
@each("layout", [torch.contiguous_format, torch.channels_last])
def test_map_norm_is_a_group_norm(shape, layout):
    ours, theirs = MapNorm(shape[1]), nn.GroupNorm(1, shape[1])
    for parameter in (*ours.parameters(), *theirs.parameters()):
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    x, y = (torch.randn(shape).contiguous(memory_format=layout).requires_grad_() for _ in range(2))
    with torch.no_grad():
        y.copy_(x)
    weight = torch.randn(shape)
    (ours(x) * weight).sum().backward()
    (theirs(y) * weight).sum().backward()
    torch.testing.assert_close(ours(x), theirs(y), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [1, 4])
def test_norms_behind_frozen_stages(frozen):
    """The maps are channels-last and need no gradient: nn.GroupNorm would crash here (PyTorch 2.11,
    CPU)."""
    model = timm.create_model("hcformer_nano", features_only=True, **MICRO).model.train()
    for part in (model.stem, *model.stages[:frozen]):
        part.requires_grad_(False)
    maps = model.forward_intermediates(torch.randn(2, 3, 64, 64), intermediates_only=True)
    sum(m.square().sum() for m in maps).backward()
    for norm in model.feature_norms:
        assert torch.isfinite(norm.weight.grad).all() and norm.weight.grad.abs().sum() > 0
    assert model.stem.weight.grad is None


def test_final_norm_behind_a_frozen_network():
    model = HCFormer(**MICRO)
    for part in (model.stem, model.stages):
        part.requires_grad_(False)
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert torch.isfinite(model.norm.weight.grad).all()


def test_drop_path_rates_rise_with_depth_and_act_in_training_only():
    model = timm.create_model("hcformer_nano", drop_path_rate=0.3)
    blocks = [block for stage in model.stages for block in stage.blocks]
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in blocks]
    assert rates == pytest.approx([0.3 * j / (len(blocks) - 1) for j in range(len(blocks))])
    small, x = micro(drop_path_rate=0.9), torch.randn(8, 3, 64, 64)
    assert torch.equal(small(x), small(x))
    small.train()
    assert not torch.equal(small(x), small(x))


@pytest.mark.parametrize("patch_size", [1, 2])
def test_small_patches_for_small_images(patch_size):
    model = micro(patch_size=patch_size, img_size=32)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 5)
    assert [info["reduction"] for info in model.feature_info] == [
        patch_size * 2**i for i in range(4)
    ]
