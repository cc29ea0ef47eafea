"""Layers of Busemann functions: the number of the published comparison, and points so far that the
ball's formula has no digits left. The layers' contract is in test_layers.py."""

import zlib

import mpmath
import numpy as np
import pytest
import torch
from helpers.cases import each

from hypvision.geometry import Lorentz, lorentz
from hypvision.nn import BusemannLinear, BusemannMLR


def published(name, *shape):
    """Numbers that the comparison with the official code was made with."""
    numbers = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    return torch.from_numpy(numbers.standard_normal(shape).astype(np.float32))


def test_logits_of_the_published_code():
    layer = BusemannMLR(5, 7, Lorentz(0.5))
    layer.weight_v.data = 0.3**0.5 * published("weight_v", 7, 5)
    layer.weight_g.data = 0.05 * published("weight_g", 7)
    layer.bias.data = 0.05 * published("bias", 7)
    tangent = published("tangent", 4, 5)
    tangent = 2 * tangent / tangent.norm(dim=-1, keepdim=True)
    logits = layer(lorentz.expmap0(tangent, 0.5)[..., 1:])
    expected = torch.tensor([-0.78807, -0.08458, -0.14907])
    torch.testing.assert_close(logits[0, :3], expected, rtol=0, atol=1e-5)


@each("radius", [1e-6, 0.5, 14.0, 35.0])
@each("angle", [0.0, 1e-3, 1.0, 3.14])
def test_far_points_keep_their_digits(radius, angle):
    """log(cosh r - sinh r cos(angle)) with 60 digits, of float32 space parts."""
    layer = BusemannMLR(2, 1, Lorentz(1.0))
    layer.weight_v.data = torch.tensor([[3.0, 0.0]])
    layer.weight_g.data.zero_()
    space = np.sinh(radius) * torch.tensor([[np.cos(angle), np.sin(angle)]])
    space = space.float()
    with mpmath.workdps(60):
        x, y = (mpmath.mpf(float(value)) for value in space[0])
        expected = -float(mpmath.log(mpmath.sqrt(1 + x * x + y * y) - x))
    # float64 has the difference of the time and the coordinate up to the distance 18
    if radius < 18 or angle:
        assert layer(space).item() == pytest.approx(expected, rel=2e-6, abs=1e-7)
    assert layer(space).isfinite()


def test_coordinates_end_before_they_overflow():
    layer = BusemannLinear(3, 4, Lorentz(2.0), translation=False)
    layer.weight_g.data.fill_(6.0)
    x = torch.tensor([[1e10, 0.0, 0.0]], requires_grad=True)
    out = layer(x)
    assert out.abs().amax().item() == pytest.approx(float(np.sinh(40) / 2**0.5), rel=1e-5)
    out.sum().backward()
    assert x.grad.isfinite().all()


def test_initial_values_are_as_published():
    """Directions of variance 1 / n, of fully connected layers 1 / (2 n m); factors are their
    lengths."""
    manifold = Lorentz(1.0)
    for layer, std in (
        (BusemannMLR(200, 300, manifold), 200**-0.5),
        (BusemannLinear(200, 300, manifold), (2 * 200 * 300) ** -0.5),
    ):
        assert layer.weight_v.std().item() == pytest.approx(std, rel=0.02)
        torch.testing.assert_close(layer.weight_g, layer.weight_v.norm(dim=-1).log())
        assert not layer.bias.any()


def test_as_many_points_as_ideal_points_in_a_large_batch():
    layer = BusemannMLR(256, 1024, Lorentz(1.0))
    x = 0.05 * torch.randn(1024, 256)
    torch.testing.assert_close(layer(x)[:7], layer(x[:7]))
