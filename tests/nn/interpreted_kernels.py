"""Triton kernels beside the plain form in float64.

``test_kernels.py`` runs these tests in a process with ``TRITON_INTERPRET=1``, which Triton reads
when it is imported.
"""

import copy

import pytest
import torch

from hypvision import compat as pub
from hypvision import nn as hnn
from hypvision.geometry import Lorentz
from hypvision.nn import conv, kernels, norm


@pytest.fixture
def interpreted(monkeypatch):
    """Layers on a CPU take the kernels, which Triton's interpreter runs; the list of their
    calls."""
    calls = []
    for name in ("forward", "backward", "boost_forward", "boost_backward"):
        function = getattr(kernels, name)
        monkeypatch.setattr(
            kernels, name, lambda *args, f=function: calls.append(f.__name__) or f(*args)
        )
    for module in (norm, conv):
        monkeypatch.setattr(module, "on_gpu", lambda x: True)
    return calls


def build(kind=hnn.LorentzBatchNorm2d, channels=5, gamma=1.3, **options):
    """A layer in float32 that has been moved from where it starts, and the same in float64."""
    torch.manual_seed(0)
    layer = kind(channels, Lorentz(0.7, learnable=True), **options)
    with torch.no_grad():
        layer.beta.copy_(layer.manifold.expmap0(0.3 * torch.randn(channels)))
        layer.gamma.fill_(gamma)
        layer.running_mean.copy_(0.2 * torch.randn(channels))
        layer.running_var.fill_(0.6)
    return layer, copy.deepcopy(layer).double()


def results(layer, x, cotangent):
    """The layer's output and gradients."""
    x = x.clone().requires_grad_()
    out = layer(x)
    return [out, *torch.autograd.grad(out, [x, *layer.parameters()], cotangent)]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 5, 2, 3), {}),
        ((3, 5, 2, 3), dict(exp_limit=1.0)),
        ((3, 5, 2, 3), dict(gamma=-2.0, eps=0.1, momentum=0.4)),
        ((3, 5, 2, 3), dict(slope=2.0)),
        ((3, 5, 2, 3), dict(slope=2.0, limit=1.5, exp_limit=1.0)),
        ((2, 20, 9, 8), dict(channels=20, slope=1.5, limit=3.0)),
        ((2, 1, 2, 5), dict(channels=1)),
        ((40, 40, 4, 6), dict(channels=40)),
    ],
)
def test_a_step_equals_that_of_the_plain_form(shape, options, interpreted):
    layer, exact = build(**options)
    x, cotangent = 0.5 * torch.randn(shape) + 0.2, torch.randn(shape)
    found = results(layer, x, cotangent)
    assert interpreted == ["forward", "backward"]
    interpreted.clear()
    expected = results(exact, x.double(), cotangent.double())
    assert not interpreted  # float64 takes the plain form
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=0, atol=3e-5 * other.detach().abs().max().item()
        )
    for one, other in zip(layer.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-5, atol=1e-6)


def maps(kind):
    """Maps ``(3, 5, 5, 13)``, of more pixels than one program takes, where clamps act."""
    torch.manual_seed(1)
    x = 0.5 * torch.randn(3, 5, 5, 13)
    if kind == "far":
        return x * torch.logspace(-4, 5, 13)
    if kind == "equal":
        return x[:1, :, :1, :1].expand(3, 5, 5, 13).clone()
    if kind == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    if kind == "strided":
        return x.transpose(2, 3)[:, :, ::2]
    x[1] = 0.0
    x[2, :, 0] = 1e-12
    return x


@pytest.mark.parametrize("kind", ["far", "equal", "channels last", "strided", "origins"])
@pytest.mark.parametrize("slope", [None, 2.0])
def test_where_clamps_act_and_numbers_lie_apart(kind, slope, interpreted):
    layer, exact = build(slope=slope)
    x = maps(kind)
    cotangent = torch.randn(5, 1, 1).expand(x.shape)
    found = results(layer, x, cotangent)
    assert interpreted == ["forward", "backward"]
    # in float64 of float32 products: of far points no digits of their distance are left
    plain = results(copy.deepcopy(exact).float(), x, cotangent)
    expected = results(exact, x.double(), cotangent.double())
    for one, beside, other in zip(found, plain, expected, strict=True):
        most = other.detach().abs().max().item()
        noise = (beside.double() - other).abs().max().item()
        torch.testing.assert_close(one.double(), other, rtol=0, atol=3e-5 * most + 3 * noise)


def test_what_is_not_a_number_stays_so(interpreted):
    layer, exact = build()
    x = torch.randn(2, 5, 3, 3)
    x[1, 2, 1, 1] = float("nan")
    assert layer(x).isnan().all() and exact(x.double()).isnan().all()
    assert interpreted == ["forward"]


@pytest.mark.parametrize("slope", [None, 2.0])
def test_evaluation(slope, interpreted):
    layer, exact = (module.eval() for module in build(slope=slope))
    x = torch.randn(2, 5, 3, 3)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), exact(x.double()).float(), rtol=1e-5, atol=1e-6)
    assert interpreted == ["forward"]
    for one, other in zip(layer.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-6, atol=0)


def test_what_takes_the_plain_form(interpreted):
    """The gyrogroup's statistics, and gradients in evaluation."""
    gyro, _ = build(pub.GyroLorentzBatchNorm2d)
    layer, _ = build()
    x = torch.randn(2, 5, 3, 3)
    gyro(x).sum().backward()
    layer.eval()(x).sum().backward()
    assert not interpreted and gyro.gamma.grad is not None and layer.gamma.grad is not None
    # three sums of a pixel must have a place that 32 bits count
    single, _ = build(channels=1)
    scale = torch.empty((), device="meta")
    assert single._fused(torch.empty(2**10, 1, 2**18, device="meta"), scale, True)
    assert not single._fused(torch.empty(2**10, 1, 2**19, device="meta"), scale, True)


def test_half_precision_and_second_derivatives(interpreted):
    layer, exact = build()
    x = torch.randn(2, 5, 2, 2)
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    second = []
    for module, given in ((build()[0], x), (exact, x.double())):
        given = given.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(module(given).sin().sum(), given, create_graph=True)
        second.append(torch.autograd.grad(gradient.square().sum(), given)[0])
    torch.testing.assert_close(
        second[0].double(), second[1], rtol=1e-3, atol=1e-4 * second[1].abs().max().item()
    )


@pytest.mark.parametrize(
    ("channels", "options"),
    [
        ((6, 4), {}),
        ((6, 4), dict(slope=None)),
        ((6, 4), dict(slope=1.5, limit=2.0, norm_match="sum")),
        ((6, 4), dict(norm_match="none")),
        ((2, 40), dict(slope=2.0)),
    ],
)
def test_numbers_of_a_convolution(channels, options, interpreted):
    torch.manual_seed(0)
    layer = hnn.EfficientLorentzConv2d(
        *channels, 3, Lorentz(0.7, learnable=True), stride=2, padding=1, **options
    )
    with torch.no_grad():
        layer.boost_weight.fill_(0.6)
    exact = copy.deepcopy(layer).double()
    x, cotangent = torch.randn(2, channels[0], 9, 8), torch.randn(2, channels[1], 5, 4)
    x[0, :, :5, :5] = 0.0  # patches of origins
    x[1] *= 1e4
    x = x.contiguous(memory_format=torch.channels_last)
    found = results(layer, x, cotangent)
    assert interpreted == ["boost_forward", "boost_backward"]
    interpreted.clear()
    expected = results(exact, x.double(), cotangent.double())
    assert not interpreted
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=0, atol=3e-5 * other.detach().abs().max().item()
        )


def test_second_derivatives_of_a_convolution(interpreted):
    torch.manual_seed(0)
    layer = hnn.EfficientLorentzConv2d(4, 3, 2, Lorentz(0.7, learnable=True))
    x, second = torch.randn(2, 4, 3, 3), []
    for module in (layer, copy.deepcopy(layer).double()):
        given = x.to(module.weight.dtype).requires_grad_()
        gradients = torch.autograd.grad(
            module(given).sin().sum(), [given, module.boost_weight], create_graph=True
        )
        second.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), given)[0])
    torch.testing.assert_close(
        second[0].double(), second[1], rtol=1e-3, atol=1e-4 * second[1].abs().max().item()
    )
