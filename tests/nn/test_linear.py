"""How layers start: the published initialisations of :mod:`hypvision.nn.linear`."""

import math

import pytest
import torch

from hypvision import nn as hnn
from hypvision.geometry import Lorentz

C = 0.7


def spread(weight, limit):
    """Whether entries are uniform in +-limit: range, and standard deviation."""
    assert -limit <= weight.min() < -0.95 * limit and 0.95 * limit < weight.max() <= limit
    torch.testing.assert_close(weight.std().item(), limit / 3**0.5, rtol=0.1, atol=0)


def test_uniform():
    torch.manual_seed(0)
    layer = hnn.LorentzLinear(500, 600, Lorentz(C), init="uniform", normalize="time")
    for weight in (layer.weight, layer.time_weight, layer.norm_weight):
        spread(weight.detach(), 0.02)
    assert not layer.bias.any() and not layer.norm_bias.any()


def test_xavier():
    """Time is one more input."""
    torch.manual_seed(0)
    layer = hnn.LorentzLinear(299, 600, Lorentz(C), init="xavier")
    for weight in (layer.weight, layer.time_weight):
        spread(weight.detach(), math.sqrt(2 * 6 / (300 + 600)))


@pytest.mark.parametrize("bias", [0.0, 1.2e-5])
def test_near_the_origin_the_normalised_layer_gives_the_origin(bias):
    """As published: below a length of 1e-5 there is no direction to go."""
    layer = hnn.LorentzLinear(2, 2, Lorentz(C), normalize=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias[0] = bias
    length = layer(torch.zeros(1, 2)).norm().item()
    torch.testing.assert_close(length, 0.0 if bias == 0 else 0.5 * layer.scale.exp().item(), rtol=1e-4, atol=0)
