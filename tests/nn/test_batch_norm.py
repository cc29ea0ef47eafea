"""Lorentz batch norm with points far outside: the published exponential map cuts vectors at the
length 10."""

import pytest
import timm
import torch
from helpers.cases import each
from references import layers as reference
from references.lorentz_cnn import BatchNorm, Hyperboloid

import hypvision.models  # noqa: F401 - registers
from hypvision import compat as pub
from hypvision import nn as hnn
from hypvision.geometry import Lorentz, PoincareBall
from hypvision.io.errors import HypvisionError
from hypvision.nn import norm


def with_outlier(size, dtype=torch.float64):
    """Points near each other, and one in a batch of many at distance ``size``, which batch norm
    takes even farther."""
    torch.manual_seed(0)
    x = 0.05 * torch.randn(4, 3, 8, 8, dtype=dtype)
    x[0, :, 0, 0] = torch.sinh(torch.tensor(size, dtype=dtype)) * torch.tensor(
        [0.6, 0.0, 0.8], dtype=dtype
    )
    return x


@each("c, exp_limit", [(0.5, 10.0), (1.0, 0.5)])
@each("kind", [hnn.LorentzBatchNorm2d, pub.GyroLorentzBatchNorm2d])
def test_radius_around_beta_stops_exactly_at_the_limit(kind, c, exp_limit):
    """The direction is normalised first, then the length is cut: no growth beyond."""
    layer = kind(3, Lorentz(c), dtype=torch.float64, exp_limit=exp_limit).eval()
    manifold = layer.manifold
    with torch.no_grad():
        layer.beta.copy_(manifold.expmap0(torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)))
    layer.running_var.fill_(4e-3)
    x = torch.linspace(1e-4, 0.09, 64, dtype=torch.float64).view(1, 1, 8, 8) * torch.ones(
        1, 3, 1, 1
    )
    wanted = manifold.dist0(manifold.from_space(x.movedim(1, -1)))
    gain = (
        layer.gamma.exp() / (layer.running_var + layer.eps).sqrt()
        if layer.gyro
        else 1 / (layer.running_var + 1e-5)
    )
    points = manifold.from_space(layer(x).movedim(1, -1))
    found = manifold.dist(layer.beta.expand_as(points), points)
    torch.testing.assert_close(
        found, (gain * wanted).clamp(max=exp_limit / c**0.5).detach(), rtol=1e-6, atol=1e-9
    )
    assert layer.gyro or (found * c**0.5).max() >= 0.99 * exp_limit


def test_limits_of_the_networks():
    def limits(name):
        modules = timm.create_model(name).modules()
        return {module.exp_limit for module in modules if hasattr(module, "exp_limit")}

    assert limits("hcnn_resnet18") == {10.0}
    assert limits("hecnn_resnet50") == {100.0}
    assert pub.GyroLorentzBatchNorm1d(3, Lorentz()).exp_limit is None
    with pytest.raises(ValueError, match="exp_limit"):
        hnn.LorentzBatchNorm1d(3, Lorentz(), exp_limit=0)


@each("training", [True, False])
@each("c, exp_limit", [(1.0, 6.0), (0.5, 10.0)])
def test_equals_the_published_chain_beyond_its_limit(training, c, exp_limit):
    manifold = Hyperboloid(1 / c, exp_limit).double()
    published = BatchNorm(manifold, 3).double().train(training)
    layer = hnn.LorentzBatchNorm2d(3, Lorentz(c), dtype=torch.float64, exp_limit=exp_limit).train(
        training
    )
    published.running_var.fill_(0.07)
    layer.running_var.fill_(0.07)
    x = with_outlier(3.0).requires_grad_()
    weight = torch.randn(x.shape, dtype=x.dtype)
    expected = published(manifold.points(x.permute(0, 2, 3, 1)))[..., 1:].permute(0, 3, 1, 2)
    out = layer(x)
    far = torch.asinh(expected.norm(dim=1).max() * c**0.5)
    torch.testing.assert_close(
        far, torch.full_like(far, exp_limit), rtol=1e-6, atol=0
    )  # the limit is at work
    # the chain adds 1e-8 to squared norms, which near points feel
    torch.testing.assert_close(out, expected, rtol=3e-4, atol=2e-5)
    torch.testing.assert_close(out[0, :, 0, 0], expected[0, :, 0, 0], rtol=1e-6, atol=0)
    loss = lambda y: (weight * torch.asinh(y)).sum()  # noqa: E731
    (gradient,) = torch.autograd.grad(loss(out), x)
    (reference,) = torch.autograd.grad(loss(expected), x)
    torch.testing.assert_close(
        gradient, reference, rtol=1e-3, atol=1e-3 * reference.abs().max().item()
    )


@each("slope", [None, 2.0])
@each("gyro", [False, True])
def test_gradients_beyond_the_limit(slope, gyro):
    kind = pub.GyroLorentzBatchNorm2d if gyro else hnn.LorentzBatchNorm2d
    layer = kind(3, Lorentz(0.5), dtype=torch.float64, slope=slope, exp_limit=4.0)
    with torch.no_grad():
        layer.beta.copy_(
            layer.manifold.expmap0(torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64))
        )
    x = with_outlier(3.0)[:, :, :3, :3].contiguous().requires_grad_()
    weight = torch.randn(x.shape, dtype=x.dtype)

    def loss(x, gamma):
        out = torch.func.functional_call(layer, {"gamma": gamma}, (x,))
        return (weight * torch.asinh(out)).sum()

    gamma = torch.full((1,), 1.0 if gyro else 4.0, dtype=torch.float64, requires_grad=True)
    points = layer.manifold.from_space(
        torch.func.functional_call(layer, {"gamma": gamma}, (x,)).movedim(1, -1)
    )
    radii = layer.manifold.dist(layer.beta.expand_as(points), points) * 0.5**0.5
    assert 0 < (radii > 3.9999).sum() < 5
    assert torch.autograd.gradcheck(loss, (x, gamma), eps=1e-7, atol=1e-4, rtol=1e-3)


@each("training", [True, False])
@each("slope", [None, 2.0])
@each("kind", [hnn.LorentzBatchNorm2d, pub.GyroLorentzBatchNorm2d])
def test_derivatives_in_one_map_are_those_of_plain_operations(kind, slope, training, monkeypatch):
    """By the curvature too."""
    torch.manual_seed(1)
    layer = kind(
        3, Lorentz(0.6, learnable=True).double(), dtype=torch.float64, slope=slope, exp_limit=3.0
    )
    with torch.no_grad():
        layer.beta.copy_(
            layer.manifold.expmap0(torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64))
        )
        layer.running_mean.copy_(torch.tensor([0.2, 0.1, -0.4]))
    layer.train(training)
    x = with_outlier(3.0).requires_grad_()
    inputs = [x, *layer.parameters()]
    weight = torch.randn(x.shape, dtype=x.dtype)

    def results():
        out = layer(x)
        return [out, *torch.autograd.grad((torch.asinh(out) * weight).sum(), inputs)]

    found = results()
    monkeypatch.setattr(norm, "plain", lambda x: True)
    for one, other in zip(found, results(), strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-8, atol=1e-9 * other.detach().abs().max().item()
        )


def test_one_far_point_is_its_own_mean():
    far = torch.tensor([[3e7, -4e7]]).view(1, 2, 1, 1)
    torch.testing.assert_close(
        hnn.LorentzGlobalAvgPool2d(Lorentz())(far), far.flatten(1), rtol=1e-5, atol=0
    )


BALL = PoincareBall(1.0)
NORMS = {
    "Lorentz maps": (lambda: hnn.LorentzBatchNorm2d(3, Lorentz(1.0)), (3, 1, 1)),
    "Lorentz points": (lambda: hnn.LorentzBatchNorm1d(3, Lorentz(2.0), slope=2.0), (3,)),
    "Lorentz tokens": (lambda: hnn.LorentzBatchNorm1d(3, Lorentz(1.0, learnable=True)), (1, 3)),
    "gyro maps": (lambda: pub.GyroLorentzBatchNorm2d(3, Lorentz(1.0)), (3, 1, 1)),
    "gyro points": (lambda: pub.GyroLorentzBatchNorm1d(3, Lorentz(1.0)), (3,)),
    "ball maps": (lambda: pub.PoincareBatchNorm2d(3, BALL), (3, 1, 1)),
    "ball points": (lambda: pub.PoincareBatchNorm1d(3, BALL, mean="frechet"), (3,)),
    "ball, no statistics": (
        lambda: pub.PoincareBatchNorm1d(3, BALL, track_running_stats=False),
        (3,),
    ),
}


@each("name", NORMS)
def test_batches_without_statistics(name):
    """As torch.nn.BatchNorm2d: an empty batch changes nothing, a single point is refused in
    training only."""
    make, shape = NORMS[name]
    layer = make()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    x = torch.zeros(0, *shape, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.shape and x.grad.shape == x.shape
    assert all(p.grad is None or not p.grad.any() for p in layer.parameters())  # NaN counts as any
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    with pytest.raises(HypvisionError, match="more than 1 point"):
        layer(torch.full((1, *shape), 0.1))
    layer(torch.full((2, *shape), 0.1))
    assert layer.eval()(torch.full((1, *shape), 0.1)).isfinite().all()


def test_models_cast_to_half_precision_train():
    """The running mean, kept in bfloat16 then, is moved in float32."""
    manifold, x = Lorentz(1.0), torch.randn(16, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    layers = [hnn.LorentzBatchNorm2d(4, manifold), hnn.LorentzBatchNorm2d(4, manifold).bfloat16()]
    for layer, values in zip(layers, (x, x.bfloat16())):
        assert layer(values).dtype == values.dtype
    for name in ("running_mean", "running_var"):
        full, half = (getattr(layer, name) for layer in layers)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), full, rtol=0.03, atol=0.003)


@each("slope", [None, 2.0])
@each("gamma", [0.02, 0.1])
@each("spread", [0.003, 0.03])
def test_gradients_of_a_tight_cluster(slope, gamma, spread):
    """Where differences of cosh and sinh would cancel; logarithms and exponentials one by one have
    nine digits."""
    torch.manual_seed(0)
    layer = hnn.LorentzBatchNorm1d(4, Lorentz(0.7), dtype=torch.float64, slope=slope)
    with torch.no_grad():
        layer.beta.copy_(
            layer.manifold.expmap0(torch.tensor([0.3, -0.2, 0.1, 0.0], dtype=torch.float64))
        )
        layer.gamma.fill_(gamma)
    x = (0.5 + spread * torch.randn(8, 3, 4, dtype=torch.float64)).requires_grad_()
    weight = torch.randn(x.shape, dtype=x.dtype)
    out, expected = layer(x), reference.batch_norm(layer, x, 0.7)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    found = torch.autograd.grad((out * weight).sum(), [x, layer.gamma])
    for one, other in zip(found, torch.autograd.grad((expected * weight).sum(), [x, layer.gamma])):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7 * other.abs().max().item())


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_gradients_of_pixels_at_the_mean(gamma):
    """There sinh(s) / sinh(r) is 0 / 0, and smooth; beside central differences, in evaluation."""
    layer = hnn.LorentzBatchNorm1d(3, Lorentz(0.7), dtype=torch.float64).eval()
    mean = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
    with torch.no_grad():
        layer.gamma.fill_(gamma)
        layer.beta.copy_(
            layer.manifold.expmap0(torch.tensor([0.1, 0.5, -0.2], dtype=torch.float64))
        )
        layer.running_mean.copy_(mean)
    x = layer.manifold.expmap0(mean)[1:].expand(2, 3).clone().requires_grad_()
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.7, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer.beta[1:].expand(2, 3), rtol=0, atol=1e-12)
    (found,) = torch.autograd.grad((layer(x) * weight).sum(), x)
    for i in range(6):
        step = 1e-4 * torch.eye(6, dtype=torch.float64)[i].view(2, 3)
        expected = ((layer(x + step) - layer(x - step)) * weight).sum() / 2e-4
        torch.testing.assert_close(found.flatten()[i], expected, rtol=1e-6, atol=1e-6)


@each("kind", [hnn.LorentzBatchNorm2d, pub.GyroLorentzBatchNorm2d])
@each("value", [0.0, 1e-20, 0.3, 50.0])
def test_constant_maps(kind, value):
    """The variance is 0, but for rounding: gradients are finite, and where nothing is rounded all
    goes to beta."""
    layer = kind(3, Lorentz(0.7, learnable=True))
    with torch.no_grad():
        layer.beta.copy_(layer.manifold.expmap0(torch.tensor([0.1, 0.5, -0.2])))
    x = torch.full((2, 3, 4, 4), value, requires_grad=True)
    out = layer(x)
    if value < 0.3:
        torch.testing.assert_close(
            out, layer.beta[1:].view(1, 3, 1, 1).expand_as(out), rtol=0, atol=2e-6
        )
    out.square().sum().backward()
    assert all(g.grad.isfinite().all() for g in (x, *layer.parameters()))


@pytest.mark.slow
def test_published_network_does_not_blow_up():
    """Without the limit the loss of this network is NaN after a few steps: outliers grow from layer
    to layer."""
    torch.manual_seed(0)
    model = timm.create_model(
        "hcnn_resnet18", num_classes=10, stem="imagenet", widths=(16, 32, 64, 128)
    )
    x = torch.randn(64, 3, 32, 32) * torch.logspace(-2, 0.7, 64).view(-1, 1, 1, 1)
    labels = torch.randint(10, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    radii = []
    model.stages[3].register_forward_hook(
        lambda module, args, out: radii.append(out.detach().norm(dim=1).max())
    )
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in model.parameters() if p.grad is not None]
        )
        optimizer.step()
        assert loss.isfinite() and norm < 1e3
    assert max(radii) < 1e6
