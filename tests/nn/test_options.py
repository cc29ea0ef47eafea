"""What options, initial values and refusals of layers promise, beside what they compute."""

from __future__ import annotations

import inspect
import math

import mpmath
import pytest
import torch
from helpers.cases import each

from hypvision import compat as pub
from hypvision import nn as hnn
from hypvision.geometry import Lorentz, PoincareBall
from hypvision.io.errors import HypvisionError
from hypvision.nn import functional, norm

LORENTZ, BALL = Lorentz(0.5), PoincareBall(0.5)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# --------------------------------------------------------------------------------------------------
# Initial values


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ("lorentz_kaiming", 200**-0.5),
        ("kaiming", (2 / 200) ** 0.5),
        ("xavier", 700**-0.5),
        ("mlr", (5 / 200) ** 0.5),
    ],
)
def test_standard_deviations(init, std):
    layer = pub.FGGLinear(200, 500, LORENTZ, init=init)
    assert layer.weight.std().item() == pytest.approx(std, rel=0.02)


def test_a_reset_restores_the_scale():
    layer = hnn.LorentzLinear(3, 4, LORENTZ, normalize=True, scale=1.5)
    layer.scale.data.fill_(7.0)
    layer.reset_parameters()
    assert layer.scale == 1.5


@pytest.mark.parametrize("sizes", [(3, 5), (4, 4)])
def test_identities(sizes):
    columns, rows = sizes
    layer = pub.FGGLinear(columns, rows, LORENTZ, init="identity")
    assert (
        torch.equal(layer.weight[:columns], 0.5 * torch.eye(columns))
        and (layer.offset == 0.5).all()
    )
    assert (layer.weight[columns:].norm(dim=-1) > 0).all()
    layer = pub.PoincareFullyConnected(columns, rows, BALL, init="identity")
    (weight,) = (p for p in layer.parameters() if p.dim() == 2)
    assert torch.equal(weight, 0.5 * torch.eye(rows, columns))
    many = pub.FGGLinear(100, 400, LORENTZ, init="identity").weight[100:]
    assert many.std().item() == pytest.approx(0.05, rel=0.02)


def test_uniform_weights_reach_their_bounds():
    layer = hnn.LorentzLinear(60, 50, LORENTZ, init="uniform")
    for weight in (layer.weight, layer.time_weight.repeat(50)):
        assert 0.018 < weight.abs().max() <= 0.02


def test_layers_without_biases():
    x = torch.randn(2, 6)
    assert pub.PLFCLinear(6, 4, LORENTZ, bias=False)(x).shape == (2, 4)
    for normalize in ("time", True):
        layer = hnn.LorentzLinear(6, 4, LORENTZ, bias=False, normalize=normalize)
        assert layer.norm_bias is None and layer(x).isfinite().all()
    layer = hnn.LorentzAttention(6, 2, LORENTZ, bias=False, join="points")
    assert layer.out.bias is None and layer(x[None]).shape == (1, 2, 6)


def test_defaults():
    assert hnn.LorentzBatchNorm2d(3, LORENTZ).exp_limit == 10
    for kind in (pub.GyroLorentzBatchNorm1d, pub.GyroLorentzBatchNorm2d):
        layer = kind(3, LORENTZ)
        assert layer.gyro and layer.joint and layer.gamma.item() == 0
    x = BALL.expmap0(torch.randn(1, 5, 5, 3)).movedim(-1, 1)
    assert pub.PoincareConv2d(3, 2, 3, BALL)(x).shape == (1, 2, 3, 3)
    assert pub.PoincareConv2d(3, 2, 3, BALL, stride=2, padding=1)(x).shape == (1, 2, 3, 3)


# --------------------------------------------------------------------------------------------------
# Numbers at the ends of their range


def test_radii_end_at_the_cap():
    """Features that grow in every layer stay numbers whose squares are."""
    layer = pub.FGGLinear(4, 4, LORENTZ, init="kaiming", weight_norm=False)
    with torch.no_grad():
        layer.weight.mul_(1e3)
    out = layer(torch.full((1, 4), 1e16))
    assert out.abs().max().item() == pytest.approx(math.sinh(40) / 2, rel=1e-5)
    assert LORENTZ.from_space(out)[..., 0].isfinite().all()


def test_squares_of_half_precision_are_those_of_single():
    for dtype in (torch.float16, torch.bfloat16):
        square = functional.space_square(torch.full((2, 4), 300.0, dtype=dtype))
        assert square.dtype == torch.float32
        torch.testing.assert_close(square, torch.full((2, 1), 36e4), rtol=1e-2, atol=0)


@pytest.mark.parametrize("gain", [0.5, 0.9, 1.7])
def test_radial_factor_of_near_points(gain):
    """A batch norm at the origin multiplies vectors by ``sinh(g r) / sinh(r)``, to 10 digits also
    for near points."""
    square = torch.tensor(
        [0.0, 1e-20, 1e-12, 1e-6, 1e-4, 2e-3, 0.02, 1.0, 1e4], dtype=torch.float64
    ).view(1, 1, -1)
    one = torch.ones((), dtype=torch.float64)
    basis, products = (
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(1, 2, 9, dtype=torch.float64),
    )
    options = norm._Options(eps=0.0, gyro=False, joint=False, slope=None, limit=None, longest=40.0)
    running = (basis[0], one)
    found, *_ = norm._numbers(
        square, products[:, :1], products[:, 1:], basis, gain * one, one, running, options
    )
    for value, q in zip(found.flatten().tolist(), square.flatten().tolist()):
        r = mpmath.asinh(mpmath.sqrt(max(q, 1e-30)))
        assert value == pytest.approx(float(mpmath.sinh(gain * r) / mpmath.sinh(r)), rel=1e-10)


@pytest.mark.parametrize("slope", [None, 2.0])
@pytest.mark.parametrize("gain", [0.5, 1.7])
def test_gradients_of_batch_norm_near_the_mean(gain, slope):
    """Against differences of the radii in mpmath."""
    limit = None if slope is None else 2.0
    layer = hnn.LorentzBatchNorm1d(
        1, Lorentz(1.0), dtype=torch.float64, slope=slope, limit=limit
    ).eval()
    layer.running_var.fill_(1 / gain - layer.eps)
    x = torch.tensor(
        [[1e-4], [0.01], [0.03], [0.055], [0.3]], dtype=torch.float64, requires_grad=True
    )
    (found,) = torch.autograd.grad(layer(x).sum(), x)

    def exact(x):
        s = gain * mpmath.asinh(x)
        if slope is not None:
            kappa = mpmath.atanh("0.99") / slope
            s = 2 * mpmath.tanh(kappa * s / 2)
        return mpmath.sinh(s)

    for value, at in zip(found.flatten().tolist(), x.flatten().tolist()):
        with mpmath.workdps(50):
            assert value == pytest.approx(float(mpmath.diff(exact, mpmath.mpf(at))), rel=1e-6)


@pytest.mark.parametrize("bias", [0.0, 1.2e-5])
def test_near_the_origin_the_normalised_layer_gives_the_origin(bias):
    """As published: below a length of 1e-5 there is no direction to go."""
    layer = hnn.LorentzLinear(2, 2, LORENTZ, normalize=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias[0] = bias
    length = layer(torch.zeros(1, 2)).norm().item()
    assert length == pytest.approx(0.0 if bias == 0 else 0.5 * layer.scale.exp().item(), rel=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_hyperplanes_lie_no_farther_out_than_the_cap(sign):
    layer = hnn.LorentzMLR(2, 1, Lorentz())
    with torch.no_grad():
        layer.z.copy_(torch.tensor([[1.0, 0.0]]))
        layer.a.fill_(sign * 1000.0)
    # the signed distance of the origin
    assert layer(torch.zeros(1, 2)).item() == pytest.approx(-sign * 40, rel=1e-5)


# --------------------------------------------------------------------------------------------------
# What layers compute with them


@pytest.mark.parametrize("join", ["space", "points", "centroid"])
def test_attention_to_equal_values_does_not_feel_dropout(join):
    """The weights that remain are brought back to the sum of 1."""
    layer = hnn.LorentzAttention(6, 2, LORENTZ, dropout=0.3, join=join)
    context = torch.randn(1, 1, 6).expand(1, 40, 6)
    x = torch.randn(1, 3, 6)
    torch.testing.assert_close(layer(x, context), layer.eval()(x, context), rtol=1e-4, atol=1e-5)


def test_batch_norm_without_momentum_keeps_its_statistics():
    layer = hnn.LorentzBatchNorm1d(3, LORENTZ, momentum=0)
    layer(torch.randn(8, 3))
    assert torch.equal(layer.running_var, torch.ones(1)) and not layer.running_mean.any()


# --------------------------------------------------------------------------------------------------
# Refusals


def test_numbers_within_their_range_are_taken():
    assert hnn.LorentzBatchNorm2d(3, LORENTZ, exp_limit=0.5, limit=0.5, slope=0.5).exp_limit == 0.5


def _takers():
    """The layers with a limit of the rescaling, by name."""
    layers = {
        name: kind
        for module in (hnn, pub)
        for name, kind in vars(module).items()
        if inspect.isclass(kind)
    }
    return {
        name: kind for name, kind in layers.items() if "limit" in inspect.signature(kind).parameters
    }


@each("name", _takers())
def test_a_limit_needs_the_slope_of_its_rescaling(name):
    kind = _takers()[name]
    sizes = (
        "in_features",
        "out_features",
        "in_channels",
        "out_channels",
        "num_features",
        "kernel_size",
    )
    spaces = dict.fromkeys(("manifold", "source", "target"), LORENTZ)
    known = inspect.signature(kind).parameters
    arguments = {
        key: value for key, value in {**dict.fromkeys(sizes, 3), **spaces}.items() if key in known
    }
    kind(**arguments, slope=2.0, limit=1.0)
    with pytest.raises(
        HypvisionError, match=f"{name}: limit=1 is the limit of the rescaling.*slope=2.0"
    ):
        kind(**arguments, slope=None, limit=1.0)


@each("kind", [hnn.LorentzLayerNorm, hnn.LorentzRMSNorm])
def test_a_norm_says_that_it_needs_no_manifold(kind):
    with pytest.raises(TypeError, match=f"{kind.__name__} takes no manifold, got Lorentz"):
        kind(8, LORENTZ)
    with pytest.raises(HypvisionError, match="eps must be a finite number of at least 0"):
        kind(8, -1.0)
    assert kind(8, 1e-3).eps == 1e-3 and kind(8, elementwise_affine=False).weight is None


def test_wrong_shapes_are_refused_and_one_extra_coordinate_is_reported_as_time():
    layer = hnn.LorentzLinear(4, 2, LORENTZ)
    with pytest.raises(ValueError, match="at least 1 dimension,"):
        layer(torch.tensor(1.0))
    for width, suspected in ((5, True), (6, False), (3, False)):
        with pytest.raises(ValueError, match="must have 4 features") as error:
            layer(torch.zeros(2, width))
        assert ("points with time" in str(error.value)) == suspected
