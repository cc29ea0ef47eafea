"""Busemann loss and ideal prototypes against the paper's formulas, mpmath and optimal layouts."""

import math
import zlib

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.cases import each

from hypvision.geometry import Euclidean, Lorentz, PoincareBall
from hypvision.io.errors import HypvisionError
from hypvision.losses import BusemannPrototypeLoss, IdealPrototypes, MetricLoss, PrototypeHead


def det(name, shape):
    seed = zlib.crc32(name.encode()) & 0x7FFFFFFF
    return torch.tensor(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


def test_the_number_of_the_specification():
    prototypes = F.normalize(det("polars", (6, 5)), dim=-1)
    loss = BusemannPrototypeLoss(0.1)(
        det("features", (4, 5)), torch.tensor([0, 3, 5, 1]), prototypes
    )
    assert float(loss) == pytest.approx(5.81779, abs=2e-5)


def test_busemann_functions_give_the_logits_of_the_specification():
    """Those of a Busemann regression: minus a weight times the function, plus a bias."""
    c = 0.5
    tangents = 2 * F.normalize(det("tangent", (4, 5)).double(), dim=-1)
    root = c**0.5
    points = math.sinh(2 * root) / root * tangents / 2
    points = torch.cat([(1 / c + points.square().sum(-1, keepdim=True)).sqrt(), points], -1)
    ideal = F.normalize(det("weight_v", (7, 5)).double(), dim=-1)
    weights = torch.exp(0.05 * det("weight_g", (7,)).double())
    functions = Lorentz(c).busemann(points[:, None], ideal)
    logits = -weights * functions + 0.05 * det("bias", (7,)).double()
    assert logits[0, :3].tolist() == pytest.approx([-0.78807, -0.08458, -0.14907], abs=1e-5)


def exact(u, p, c, phi):
    """Of one feature, with 60 digits; p is made a unit vector in them."""
    with mpmath.workdps(60):
        u = [mpmath.mpf(float(v)) for v in u]
        p = [mpmath.mpf(float(v)) for v in p]
        norm = mpmath.sqrt(sum(v * v for v in p))
        p = [v / norm for v in p]
        size = mpmath.sqrt(sum(v * v for v in u))
        d = 2 * mpmath.sqrt(c) * size
        cosine = sum(a * b for a, b in zip(u, p)) / size
        busemann = mpmath.log(mpmath.cosh(d) - mpmath.sinh(d) * cosine)
        return float(
            busemann + 2 * phi * mpmath.log(mpmath.cosh(mpmath.sqrt(c) * size))
            + phi * mpmath.log(2)
        )  # fmt: skip


@each("c", [0.1, 1.0, 4.0])
@each("size", [1e-6, 0.3, 5.0, 60.0, 1e4])
def test_near_and_far_features(c, size):
    generator = torch.Generator().manual_seed(0)
    p = F.normalize(torch.randn(4, 3, generator=generator, dtype=torch.float64), dim=-1)
    u = size * F.normalize(torch.randn(4, 3, generator=generator, dtype=torch.float64), dim=-1)
    loss = BusemannPrototypeLoss(0.1, c=c)
    for i in range(4):
        label = torch.tensor([i])
        wanted = exact(u[i], p[i], c, 0.3)
        assert float(loss(u[i : i + 1], label, p)) == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        single = loss(u[i : i + 1].float(), label, p.float())
        assert float(single) == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@each("size", [0.0, 1e-30, 15.0, 1e8])
def test_gradients_are_finite_towards_and_away_from_the_prototype(size):
    p = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    u = torch.tensor([[size, 0.0, 0.0], [size, 0.0, 0.0]], requires_grad=True)
    BusemannPrototypeLoss(0.0)(u, torch.tensor([0, 1]), p).backward()
    assert u.grad.isfinite().all()
    if size == 15.0:  # the distance grows by 2 a unit, towards or away from the ideal point
        torch.testing.assert_close(u.grad[:, 0], torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_origin_and_the_way_to_a_prototype(dtype):
    """There the Busemann function is 0 and minus the distance, however far."""
    p = torch.tensor([[0.6, 0.8, 0.0]], dtype=dtype)
    label = torch.tensor([0])
    loss = BusemannPrototypeLoss(0.0)
    assert float(loss(torch.zeros(1, 3, dtype=dtype), label, p)) == 0
    for size in (1e-20, 1e-3, 3.0, 60.0, 1e4):
        u = torch.tensor([[0.0, 0.0, size]], dtype=dtype)
        ahead = torch.tensor([[0.0, 0.0, 1.0]], dtype=dtype)
        assert float(loss(u, label, ahead)) == pytest.approx(-2 * size, rel=1e-6)
        assert float(loss(-u, label, ahead)) == pytest.approx(2 * size, rel=1e-6)


@each("size", [0.0, 1e-13, 1e-10, 1e-6, 1e-3, 0.2, 0.3, 2.0])
def test_gradients_near_the_origin(size):
    """Of float32 features beside float64 ones by the plain formula, and finite second ones."""
    torch.manual_seed(0)
    p, u = F.normalize(torch.randn(2, 20, 8, dtype=torch.float64), dim=-1)
    u = (size * u).float()
    loss = BusemannPrototypeLoss(0.1)
    labels = torch.arange(20)

    def plain(u):
        square = u.square().sum(-1)
        root = torch.where(square > 0, square, 1.0).sqrt()
        ratio = torch.where(square > 0, torch.tanh(root) / root, 1.0)
        x = ratio.unsqueeze(-1) * u
        gap = 1 - x.square().sum(-1)
        towards = torch.log((x - p).square().sum(-1) / gap)
        return (towards - 0.8 * torch.log(gap) + 0.8 * math.log(2)).mean()

    wide = u.double().requires_grad_()
    (expected,) = torch.autograd.grad(plain(wide), wide)
    u.requires_grad_()
    (found,) = torch.autograd.grad(loss(u, labels, p.float()), u, create_graph=True)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    (second,) = torch.autograd.grad(found.square().sum(), u)
    assert second.isfinite().all()


def test_prototypes_are_as_far_apart_as_they_can_be():
    simplex = IdealPrototypes(6, 7).prototypes
    cosines = (simplex @ simplex.T)[~torch.eye(6, dtype=torch.bool)]
    torch.testing.assert_close(cosines, torch.full_like(cosines, -1 / 5))
    circle = IdealPrototypes(8, 2).prototypes
    assert (circle @ circle.roll(1, 0).T).diagonal().tolist() == pytest.approx(
        [math.cos(math.pi / 4)] * 8
    )
    # six in three dimensions: an octahedron has cosines of 0
    many = IdealPrototypes(6, 3).prototypes
    largest = (many @ many.T - 3 * torch.eye(6)).amax(-1)
    assert largest.mean() < 0.05
    torch.testing.assert_close(many.norm(dim=-1), torch.ones(6))


def test_the_nearest_prototype_has_the_smallest_loss():
    prototypes = IdealPrototypes(5, 4)
    u = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    loss = BusemannPrototypeLoss()
    losses = [
        [float(loss(row[None], torch.tensor([k]), prototypes.prototypes)) for k in range(5)]
        for row in u
    ]
    assert prototypes(u).argmax(-1).tolist() == torch.tensor(losses).argmin(-1).tolist()


def test_refusals():
    with pytest.raises(HypvisionError, match="num_classes"):
        IdealPrototypes(1, 3)
    with pytest.raises(HypvisionError, match="method"):
        IdealPrototypes(3, 3, "far")
    with pytest.raises(HypvisionError, match=r"\(3, 4\)"):
        IdealPrototypes(3, 4, torch.ones(3, 3))
    with pytest.raises(HypvisionError, match="zeros"):
        IdealPrototypes(2, 2, torch.tensor([[1.0, 0], [0, 0]]))
    with pytest.raises(HypvisionError, match="prototypes"):
        BusemannPrototypeLoss()(torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(2, 4))


@pytest.mark.parametrize("c", [0.1, 2.0])
def test_logits_of_the_head_are_the_losses_of_the_classes(c):
    torch.manual_seed(0)
    head = PrototypeHead(6, 9, dim=4, slope=0.2, c=c).double()
    x = 3 * torch.randn(20, 6, dtype=torch.float64)
    x[0] = -1e6 * x[1]  # at the border
    logits = head(x).detach()
    u = head.linear(x).detach()
    loss = BusemannPrototypeLoss(0.2, c)
    for label in range(9):
        labels = torch.full((1,), label)
        for row in range(20):
            wanted = loss(u[row : row + 1], labels, head.ideal.prototypes)
            assert float(logits[row, label]) == pytest.approx(-float(wanted), rel=1e-12)
    cosines = F.normalize(u, dim=-1) @ head.ideal.prototypes.T
    assert (logits.argmax(-1)[1:] == cosines.argmax(-1)[1:]).all()
    labels = torch.arange(20) % 9
    torch.testing.assert_close(F.nll_loss(logits, labels), loss(u, labels, head.ideal.prototypes))


@pytest.mark.parametrize("c", [0.1, 2.0])
def test_the_metric_loss_is_that_of_the_tangent_vectors(c):
    torch.manual_seed(0)
    u = torch.randn(12, 5, dtype=torch.float64)
    labels = torch.arange(12) % 7
    ball, hyperboloid = PoincareBall(c), Lorentz(c)
    options = dict(num_classes=7, dim=5, distance="hyperbolic", slope=0.3)
    on_ball = MetricLoss("PrototypeMetricLoss", ball, **options)
    wanted = BusemannPrototypeLoss(0.3, c)(u, labels, on_ball.loss.ideal.prototypes)
    points = ball.expmap0(u)
    torch.testing.assert_close(on_ball(points, labels), wanted, rtol=1e-9, atol=1e-9)
    there = MetricLoss("PrototypeMetricLoss", hyperboloid, **options)
    found = there(hyperboloid.expmap0(2 * u), labels)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert not [*there.parameters()]


def test_where_there_is_no_infinity():
    with pytest.raises(HypvisionError, match="at infinity: set distance='hyperbolic'"):
        MetricLoss("PrototypeMetricLoss", Lorentz(1.0), num_classes=7, dim=5)
    with pytest.raises(HypvisionError, match="needs hyperbolic embeddings"):
        MetricLoss("PrototypeMetricLoss", Euclidean(), num_classes=7, dim=5, distance="hyperbolic")
