"""The aggregation head against the reference implementation, which repeats everything that the head
computes once."""

import pytest
import torch
from helpers.cases import each
from references.hyperclip import ReferenceHead

from hypvision.clip.segmentation.catseg import ABSENT, CATSegHead
from hypvision.io.errors import HypvisionError

SMALL = dict(embed_dim=24, hidden=32, heads=4, window=4, guidance=16, text_guidance=8, decoder=(32,
16),
             decoder_in=(12, 6), decoder_guidance=(8, 4), pad_len=16)  # fmt: skip


def build(**changes):
    torch.manual_seed(0)
    head = CATSegHead(**{**SMALL, **changes}).eval()
    for name, parameter in head.named_parameters():
        if "padding" in name:  # zero at first
            torch.nn.init.normal_(parameter)
    return head


def inputs(grid=(8, 8), classes=5, prompts=1, images=2):
    torch.manual_seed(1)
    h, w = grid
    text = torch.nn.functional.normalize(torch.randn(classes, prompts, 24), dim=-1)
    maps = (torch.randn(images, 12, 2 * h, 2 * w), torch.randn(images, 6, 4 * h, 4 * w))
    return torch.randn(images, 24, h, w), text, maps


def relative(a, b):
    return float((a - b).abs().max() / b.abs().max())


GRIDS = [((8, 8), 5), ((3, 3), 5), ((8, 12), 16), ((8, 8), 23)]


# each kind of attention and of mode, and for one of them grids and classes that are padded
@each(
    "attention, training, grid, classes",
    [
        *(("linear", False, *size) for size in GRIDS),
        *(("full", training, *GRIDS[2]) for training in (False, True)),
        *(("linear", True, *size) for size in GRIDS[2:]),
    ],
)
def test_equals_the_reference(attention, training, grid, classes):
    head = build(attention=attention).train(training)
    reference = ReferenceHead(head.state_dict(), 4, 4, (2, 2), 16, attention)
    features, text, maps = inputs(grid, classes)
    with torch.no_grad():
        logits = head(features, text, maps)
        assert logits.shape == (2, classes, 4 * grid[0], 4 * grid[1])
        for i in range(2):
            expected = reference(features[i : i + 1], text, [m[i : i + 1] for m in maps], training)
            assert ((logits[i] == ABSENT) == (expected[0] == ABSENT)).all()
            seen = expected[0] != ABSENT
            assert relative(logits[i][seen], expected[0][seen]) < 5e-6


def test_several_templates():
    head = build(prompts=3)
    features, text, maps = inputs(prompts=3)
    with torch.no_grad():
        expected = ReferenceHead(head.state_dict(), 4, 4, (2, 2), 16)(
            features[:1], text, [m[:1] for m in maps]
        )
        assert relative(head(features, text, maps)[:1], expected) < 5e-6


def test_gradients_are_those_of_the_reference():
    head = build().train()
    features, text, maps = inputs(images=1)
    weights = {
        name: value.detach().clone().requires_grad_() for name, value in head.state_dict().items()
    }
    head(features, text, maps).square().sum().backward()
    ReferenceHead(weights, 4, 4, (2, 2), 16)(
        features, text, list(maps), True
    ).square().sum().backward()
    for name, parameter in head.named_parameters():
        assert (parameter.grad - weights[name].grad).abs().max() <= 2e-4 * weights[
            name
        ].grad.abs().max() + 1e-6, name


def test_checkpointing_and_chunks_change_nothing():
    head, (features, text, maps) = build().train(), inputs()
    gradients = []
    for head.checkpointing in (False, True):
        head.zero_grad()
        head(features, text, maps).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in head.parameters()])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*gradients))
    head.eval()
    with torch.no_grad():
        whole = head(features, text, maps)
        head.class_chunk = 2
        assert torch.allclose(head(features, text, maps), whole, atol=1e-6)


@each("grid", [(5, 7), (6, 6), (1, 1), (9, 4)])
def test_any_grid(grid):
    features, text, maps = inputs(grid)
    for training in (False, True):
        head = build().train(training)
        logits = head(features, text, maps)
        assert logits.shape == (2, 5, 4 * grid[0], 4 * grid[1]) and logits.isfinite().all()


def test_padding_of_windows_does_not_leak():
    """On a grid that windows do not divide, a place outside must not change the places inside."""
    head = build(layers=1)
    attention = head.layers[0].swin_block.block_2.attn
    x, guide = torch.randn(1, 1, 6, 6, 32), torch.randn(1, 1, 6, 6, 16)
    with torch.no_grad():
        attention.v.bias.fill_(100.0)  # padded places would carry this
        y = attention(x, guide, 4, 2)
        attention.v.bias.fill_(0.0)
        z = attention(x, guide, 4, 2)
        shift = attention.proj.weight.sum(1) * 100
    assert torch.allclose(y - z, shift.expand_as(y), rtol=1e-3, atol=2e-3)


def test_without_guidance():
    head = build(guidance=0, text_guidance=0, decoder_in=(0, 0), pad_len=0)
    features, text, _ = inputs()
    assert head(features, text).shape == (2, 5, 32, 32)
    assert not any("guidance" in name or "padding" in name for name in head.state_dict())


def test_official_sizes():
    """Parameter counts of the official aggregator, and its names."""
    for embed, count in ((512, 2_308_961), (768, 2_636_641)):
        with torch.device("meta"):
            head = CATSegHead(embed)
        assert sum(p.numel() for p in head.parameters()) == count
    shapes = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    for name, shape in {
        "conv1.weight": (128, 1, 7, 7),
        "guidance_projection.0.weight": (128, 768, 3, 3),
        "text_guidance_projection.0.weight": (128, 768),
        "decoder_guidance_projection.1.0.weight": (16, 128, 3, 3),
        "layers.1.swin_block.block_2.attn.q.weight": (128, 256),
        "layers.0.swin_block.block_1.mlp.fc1.weight": (512, 128),
        "layers.0.swin_block.guidance_norm.weight": (128,),
        "layers.1.attention.padding_tokens": (1, 1, 128),
        "layers.1.attention.attention.k.weight": (128, 256),
        "layers.1.attention.MLP.2.weight": (128, 512),
        "decoder1.up.weight": (128, 96, 2, 2),
        "decoder2.conv.double_conv.3.weight": (32, 32, 3, 3),
        "head.weight": (1, 32, 3, 3),
    }.items():
        assert shapes[name] == shape


@pytest.mark.slow
def test_mixed_precision():
    head, (features, text, maps) = build().train(), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(features, text, maps)
    logits.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())
    more = torch.nn.functional.normalize(torch.randn(30, 1, 24), dim=-1)
    with torch.autocast("cpu", torch.bfloat16):
        assert head(features, more, maps).shape[1] == 30  # the official code fails here
    assert (
        build().double()(features.double(), text.double(), tuple(m.double() for m in maps)).dtype
        == torch.double
    )


def test_mistakes_are_explained():
    with pytest.raises(HypvisionError, match="hidden=30 is not divisible"):
        CATSegHead(hidden=30)
    with pytest.raises(HypvisionError, match="attention must be one of 'linear', 'full'"):
        CATSegHead(attention="flash")
    features, text, maps = inputs(prompts=2)
    with pytest.raises(HypvisionError, match="made for 1 prompt template"):
        build()(features, text, maps)
    with pytest.raises(HypvisionError, match="needs 2 maps"):
        build()(features, text[:, :1])
