"""How the published layers start, and where their outputs end."""

import math

import pytest
import torch

from hypvision import nn as hnn
from hypvision.geometry import Lorentz, PoincareBall
from hypvision.nn import published as pub

C = 0.7


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ("lorentz_kaiming", 400**-0.5),
        ("kaiming", (2 / 400) ** 0.5),
        ("xavier", (400 + 300) ** -0.5),
        ("mlr", (5 / 400) ** 0.5),
    ],
)
def test_fgg_layers_start_with_the_published_spread(init, std):
    torch.manual_seed(0)
    layer = pub.FGGLinear(400, 300, Lorentz(C), init=init)
    torch.testing.assert_close(layer.weight.std().item(), std, rtol=0.02, atol=0)
    assert not layer.offset.any()


@pytest.mark.parametrize("size", [(40, 30), (40, 40), (300, 600)])
def test_fgg_layers_start_at_half_the_identity(size):
    """Rows beyond it have a direction, of about the same length."""
    torch.manual_seed(0)
    layer = pub.FGGLinear(*size, Lorentz(C), init="identity")
    torch.testing.assert_close(layer.weight[: size[0]], 0.5 * torch.eye(min(size), size[0]))
    torch.testing.assert_close(layer.offset, torch.full(size[1:], 0.5))
    if size[1] > size[0]:
        torch.testing.assert_close(layer.weight[size[0] :].std().item(), 0.5 * size[0] ** -0.5, rtol=0.02, atol=0)


@pytest.mark.parametrize("size", [(30, 40), (40, 40), (60, 40)])
def test_planes_of_the_ball_start_at_half_the_identity(size):
    """Where the width does not grow; else, with small numbers."""
    torch.manual_seed(0)
    layer = pub.PoincareFullyConnected(*size, PoincareBall(C), init="identity")
    if size[0] <= size[1]:
        torch.testing.assert_close(layer.weight, 0.5 * torch.eye(size[1], size[0]))
    else:
        std = (2 * size[0] * size[1]) ** -0.5
        torch.testing.assert_close(layer.weight.std().item(), std, rtol=0.05, atol=0)


def test_fgg_layers_end_at_radius_forty():
    layer = pub.FGGLinear(2, 3, Lorentz(), init="kaiming")
    with torch.no_grad():
        layer.weight.fill_(1e3)
    out = layer(torch.tensor([[1e16, 1e16], [-1e16, -1e16]], dtype=torch.float32))
    limit = math.sinh(40) / 3**0.5
    torch.testing.assert_close(out, torch.tensor([[limit] * 3, [-limit] * 3]))


@pytest.mark.parametrize("sign", [1, -1])
def test_hyperplanes_lie_no_farther_out_than_forty(sign):
    layer = hnn.LorentzMLR(2, 1, Lorentz())
    with torch.no_grad():
        layer.z.copy_(torch.tensor([[1.0, 0.0]]))
        layer.a.fill_(sign * 1000.0)
    # signed distance of the origin from a plane at 40
    torch.testing.assert_close(layer(torch.zeros(1, 2)).item(), -sign * 40.0, rtol=1e-5, atol=0)
