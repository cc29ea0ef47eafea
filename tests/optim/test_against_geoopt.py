"""The optimisers step by step against geoopt's, in float64."""

import geoopt
import pytest
import torch

from hypvision.geometry import Euclidean, Lorentz, ManifoldParameter, PoincareBall, Product
from hypvision.optim import RiemannianAdam, RiemannianSGD

C = 0.5  # geoopt keeps curvatures in float32: a number that these have
DIMS = 4


def manifolds(kind):
    if kind == "lorentz":
        return Lorentz(C), geoopt.Lorentz(k=1 / C)
    if kind == "ball":
        return PoincareBall(C), geoopt.PoincareBall(c=C)
    return PoincareBall(C, exact=True), geoopt.PoincareBallExact(c=C)


def race(kind, ours, theirs, steps=12, zeroed=True, **options):
    """Largest difference of the points after every step, and of the Euclidean parameter."""
    torch.manual_seed(0)
    manifold, peer = manifolds(kind)
    start = manifold.expmap0(0.7 * torch.randn(6, DIMS, dtype=torch.float64))
    target = torch.randn_like(start)
    weight = torch.arange(1.0, target.shape[-1] + 1, dtype=torch.float64)
    x, y = ManifoldParameter(start.clone(), manifold), geoopt.ManifoldParameter(start.clone(), manifold=peer)
    flat = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    a = ours([x, flat[0]], **options)
    options.pop("geoopt_first_step", None)
    b = theirs([y, flat[1]], **options)
    if zeroed and options.get("momentum"):
        # geoopt starts its buffers with the Euclidean gradient; ours start empty, like torch's
        for parameter in (y, flat[1]):
            b.state[parameter].update(momentum_buffer=torch.zeros_like(parameter), step=0)
    worst = 0.0
    for _ in range(steps):
        for points, euclidean, optimizer in ((x, flat[0], a), (y, flat[1], b)):
            optimizer.zero_grad()
            loss = ((points - target).square() * weight).sum() + (euclidean - 3).square().sum()
            loss.backward()
            optimizer.step()
        worst = max(worst, (x - y).abs().max().item())
    assert (x - start).abs().max() > 1e-3, "nothing moved"
    return worst, (flat[0] - flat[1]).abs().max().item()


@pytest.mark.parametrize("kind", ["lorentz", "ball", "exact ball"])
@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.01},
        {"lr": 0.01, "weight_decay": 0.1},
        {"lr": 0.002, "momentum": 0.9},
        {"lr": 0.002, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"lr": 0.002, "momentum": 0.9, "nesterov": True},
    ],
)
def test_sgd(kind, options):
    points, flat = race(kind, RiemannianSGD, geoopt.optim.RiemannianSGD, **options)
    assert points < 1e-6  # geoopt clamps some of its intermediate results at 1e-8
    if not options.get("dampening"):  # the first step of torch's SGD has none
        assert flat < 1e-12


@pytest.mark.parametrize("kind", ["lorentz", "ball", "exact ball"])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"betas": (0.5, 0.9), "eps": 1e-3}])
def test_adam(kind, options):
    points, flat = race(kind, RiemannianAdam, geoopt.optim.RiemannianAdam, lr=0.1, **options)
    assert points < 1e-6
    assert flat < 1e-12


def test_geoopt_first_step():
    """With the option the momentum of points in the ball starts as geoopt's does."""
    points, _ = race(
        "ball", RiemannianSGD, geoopt.optim.RiemannianSGD, zeroed=False, lr=0.002, momentum=0.9, geoopt_first_step=True
    )
    assert points < 1e-6


@pytest.mark.parametrize("kind", ["lorentz", "ball", "exact ball"])
@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        (RiemannianAdam, geoopt.optim.SparseRiemannianAdam, {"lr": 0.1}),
        (RiemannianAdam, geoopt.optim.SparseRiemannianAdam, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3}),
        (RiemannianSGD, geoopt.optim.SparseRiemannianSGD, {"lr": 0.05}),
        (RiemannianSGD, geoopt.optim.SparseRiemannianSGD, {"lr": 0.02, "momentum": 0.9}),
    ],
)
def test_sparse_tables_step_by_step(kind, ours, theirs, options):
    """Rows that come and go, some of them twice in a batch, after every step."""
    torch.manual_seed(0)
    manifold, peer = manifolds(kind)
    start = manifold.expmap0(0.7 * torch.randn(8, DIMS, dtype=torch.float64))
    target = torch.randn_like(start)
    x, y = ManifoldParameter(start.clone(), manifold), geoopt.ManifoldParameter(start.clone(), manifold=peer)
    a, b = ours([x], **options), theirs([y], **options)
    if options.get("momentum"):
        b.state[y]["momentum_buffer"] = torch.zeros_like(y)  # geoopt starts with the Euclidean gradient
    for rows in ([0, 1, 1, 5], [5, 2], [7, 7, 7, 0], [1, 2, 3, 4, 5, 6], [0], [5, 1, 5]):
        rows = torch.tensor(rows)
        before = x.detach().clone()
        for points, optimizer in ((x, a), (y, b)):
            optimizer.zero_grad()
            loss = (torch.nn.functional.embedding(rows, points, sparse=True) - target[rows]).square().sum()
            loss.backward()
            assert points.grad.is_sparse
            optimizer.step()
        torch.testing.assert_close(x.detach(), y.detach(), rtol=0, atol=1e-6)
        moved = (x.detach() != before).any(-1)
        assert moved.nonzero().flatten().tolist() == sorted(set(rows.tolist()))


def test_product():
    """A product is updated as its factors are, apart from a shared step count."""
    torch.manual_seed(0)
    parts = [(Lorentz(C), 3), (PoincareBall(C), 2), (Euclidean(), 2)]
    product = Product(*parts)
    start = product.expmap0(torch.randn(5, 7, dtype=torch.float64) / 2)
    target = torch.randn_like(start)
    whole = ManifoldParameter(start.clone(), product)
    pieces = [ManifoldParameter(p.clone(), m) for p, (m, _) in zip(product.split(start), parts[:2])]
    optimizers = [RiemannianAdam([whole], lr=0.1), RiemannianAdam(pieces, lr=0.1)]
    for _ in range(5):
        for optimizer, points in zip(optimizers, ([whole], pieces)):
            optimizer.zero_grad()
            joined = torch.cat(points, -1)
            (joined - target[:, : joined.shape[-1]]).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(whole[:, :6], torch.cat(pieces, -1))
    assert (whole[:, 6:] - start[:, 6:]).abs().max() > 0.1
