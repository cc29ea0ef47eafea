"""Intermediate tokens of the hyperbolic transformers, with the arguments of timm's."""

import itertools

import pytest
import timm
import torch
from helpers.cases import each
from torch import Tensor

import hypvision  # noqa: F401 - registers
from hypvision.io.errors import HypvisionError

SIZES = dict(img_size=16, patch_size=4, embed_dim=12, depth=3, num_heads=2, num_classes=5)
NETWORKS = [
    ("lvit_tiny", dict(head_dim=6, hidden_dim=16)),
    ("lvit_tiny", dict(head_dim=6, hidden_dim=16, class_token=True, global_pool="token")),
    ("hexformer_tiny", {}),
]


def make(name, **options):
    torch.manual_seed(0)
    return timm.create_model(name, **SIZES, **options).eval()


def normed(name, model, tokens):
    """The final norm of space parts ``(B, C, ...)``; HexFormer's takes channels last."""
    if name.startswith("hexformer"):
        return model.norm(tokens.transpose(1, 2)).transpose(1, 2)
    return model.norm(tokens)


def shapes(found):
    if isinstance(found, Tensor):
        return tuple(found.shape)
    return [shapes(one) for one in found]


@torch.no_grad()
@each("name, options", NETWORKS)
def test_shapes_are_those_of_timm_s_transformer(name, options):
    model = make(name, **options)
    has_token = model.stem.class_token is not None
    pool = "token" if has_token else "avg"
    plain = make("vit_tiny_patch16_224", class_token=has_token, global_pool=pool)
    images = torch.randn(2, 3, 16, 16)
    switches = itertools.product(("NCHW", "NLC"), (False, True), (False, True), ([0, 2], 2, None))
    for output_fmt, prefix, norm, indices in switches:
        arguments = dict(
            indices=indices,
            output_fmt=output_fmt,
            return_prefix_tokens=prefix,
            norm=norm,
            intermediates_only=True,
        )
        found = model.forward_intermediates(images, **arguments)
        assert shapes(found) == shapes(plain.forward_intermediates(images, **arguments))
    for reshape, prefix in itertools.product((False, True), (False, True)):
        arguments = dict(n=[1, 2], reshape=reshape, return_prefix_tokens=prefix, norm=True)
        found = model.get_intermediate_layers(images, **arguments)
        assert shapes(found) == shapes(plain.get_intermediate_layers(images, **arguments))
    assert shapes(model.get_intermediate_layers(images)) == [(2, 16, 12)]


@torch.no_grad()
@each("name, options", NETWORKS)
def test_tokens_are_those_of_the_blocks(name, options):
    model = make(name, **options)
    images = torch.randn(2, 3, 16, 16)
    outputs = []
    for stage in model.stages:
        stage.register_forward_hook(lambda *call: outputs.append(call[-1]))
    count = int(model.stem.class_token is not None)
    for norm in (False, True):
        outputs.clear()
        last, found = model.forward_intermediates(
            images, norm=norm, output_fmt="NLC", return_prefix_tokens=True
        )
        assert torch.equal(last, normed(name, model, outputs[-1]))
        for output, one in zip(outputs, found, strict=True):
            tokens = model.to_tangent(normed(name, model, output) if norm else output)
            tokens = tokens.flatten(2).transpose(1, 2)
            prefix = one[1] if count else tokens[:, :0]
            patches = one[0] if count else one
            assert torch.equal(torch.cat([prefix, patches], 1), tokens)
        maps = model.forward_intermediates(images, norm=norm, intermediates_only=True)
        for one, level in zip(found, maps):
            patches = one[0] if count else one
            assert torch.equal(level.flatten(2).transpose(1, 2), patches)


@torch.no_grad()
def test_stopping_early_and_refusals():
    model = make("hexformer_tiny")
    images = torch.randn(2, 3, 16, 16)
    last, (found,) = model.forward_intermediates(images, [1], stop_early=True)
    (expected,) = model.forward_intermediates(images, [1], intermediates_only=True)
    assert torch.equal(found, expected)
    assert torch.equal(model.to_tangent(last)[..., 1:], found.flatten(2))
    with pytest.raises(HypvisionError, match="output_fmt.*NHWC"):
        model.forward_intermediates(images, output_fmt="NHWC")
