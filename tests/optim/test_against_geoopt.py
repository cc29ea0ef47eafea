"""The optimisers step by step against geoopt's, in float64."""

import geoopt
import torch
from helpers.cases import each

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


def race(kind, ours, theirs, steps=6, buffer="zero", **options):
    """Largest difference of the points after every step, and of the Euclidean parameter.

    ``buffer`` is how geoopt's momentum starts: at zero as ours, or with the Euclidean gradient, of
    which points take all as geoopt has it or the "tangent" part.
    """
    torch.manual_seed(0)
    manifold, peer = manifolds(kind)
    start = manifold.expmap0(0.7 * torch.randn(6, DIMS, dtype=torch.float64))
    target = torch.randn_like(start)
    weight = torch.arange(1.0, target.shape[-1] + 1, dtype=torch.float64)
    x, y = (
        ManifoldParameter(start.clone(), manifold),
        geoopt.ManifoldParameter(start.clone(), manifold=peer),
    )
    flat = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    a = ours([x, flat[0]], **options)
    options.pop("geoopt_first_step", None)
    b = theirs([y, flat[1]], **options)
    worst = 0.0
    for step in range(steps):
        for points, euclidean, optimizer in ((x, flat[0], a), (y, flat[1], b)):
            optimizer.zero_grad()
            loss = ((points - target).square() * weight).sum() + (euclidean - 3).square().sum()
            loss.backward()
            if optimizer is b and not step and options.get("momentum") and buffer != "euclidean":
                for parameter in (y, flat[1]):
                    first = (
                        parameter.grad.clone()
                        if buffer == "tangent"
                        else torch.zeros_like(parameter)
                    )
                    first = peer.proju(parameter, first) if parameter is y else first
                    b.state[parameter].update(momentum_buffer=first)
            optimizer.step()
        worst = max(worst, (x - y).abs().max().item())
    assert (x - start).abs().max() > 1e-3, "nothing moved"
    return worst, (flat[0] - flat[1]).abs().max().item()


@each("kind", ["lorentz", "ball", "exact ball"])
@each(
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


@each("kind", ["lorentz", "ball", "exact ball"])
@each("options", [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"betas": (0.5, 0.9), "eps": 1e-3}])
def test_adam(kind, options):
    points, flat = race(kind, RiemannianAdam, geoopt.optim.RiemannianAdam, lr=0.1, **options)
    assert points < 1e-6
    assert flat < 1e-12


@each(
    "options", [{}, {"nesterov": True}, {"dampening": 0.3}, {"nesterov": True, "weight_decay": 0.1}]
)
@each("kind, buffer", [("ball", "euclidean"), ("exact ball", "euclidean"), ("lorentz", "tangent")])
def test_geoopt_first_step(kind, buffer, options):
    """With the option momenta start as geoopt's do, without what is normal to the hyperboloid."""
    options = {"lr": 0.002, "momentum": 0.9} | options
    points, flat = race(
        kind,
        RiemannianSGD,
        geoopt.optim.RiemannianSGD,
        buffer=buffer,
        geoopt_first_step=True,
        **options,
    )
    assert points < 1e-6
    assert flat < 1e-12


def test_geoopts_first_momentum_is_no_tangent_vector():
    """Two losses that are one on the hyperboloid: our steps are the same, geoopt's are not."""
    ends = {}
    for kind in (ManifoldParameter, geoopt.ManifoldParameter):
        for outside in (0.0, 1.0):
            torch.manual_seed(0)
            x = kind(
                Lorentz(C).random(6, DIMS, dtype=torch.float64),
                manifold=manifolds("lorentz")[kind is not ManifoldParameter],
            )
            optimizer = (
                RiemannianSGD if kind is ManifoldParameter else geoopt.optim.RiemannianSGD
            )([x], lr=0.01, momentum=0.9)
            for _ in range(4):
                optimizer.zero_grad()
                constraint = x[:, 1:].square().sum(-1) - x[:, 0].square() + 1 / C
                (x[:, 1].sum() + outside * constraint.sum()).backward()
                optimizer.step()
            ends[kind, outside] = x.detach()
    ours, theirs = (
        (ends[kind, 0.0] - ends[kind, 1.0]).abs().max()
        for kind in (ManifoldParameter, geoopt.ManifoldParameter)
    )
    assert ours < 1e-12
    assert theirs > 1e-3


@each("kind", ["lorentz", "ball", "exact ball"])
@each(
    "ours, theirs, options",
    [
        (RiemannianAdam, geoopt.optim.SparseRiemannianAdam, {"lr": 0.1}),
        (
            RiemannianAdam,
            geoopt.optim.SparseRiemannianAdam,
            {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3},
        ),
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
    x, y = (
        ManifoldParameter(start.clone(), manifold),
        geoopt.ManifoldParameter(start.clone(), manifold=peer),
    )
    a, b = ours([x], **options), theirs([y], **options)
    if options.get("momentum"):
        b.state[y]["momentum_buffer"] = torch.zeros_like(
            y
        )  # geoopt starts with the Euclidean gradient
    for rows in ([0, 1, 1, 5], [5, 2], [7, 7, 7, 0], [1, 2, 3, 4, 5, 6], [0], [5, 1, 5]):
        rows = torch.tensor(rows)
        before = x.detach().clone()
        for points, optimizer in ((x, a), (y, b)):
            optimizer.zero_grad()
            loss = (
                (torch.nn.functional.embedding(rows, points, sparse=True) - target[rows])
                .square()
                .sum()
            )
            loss.backward()
            assert points.grad.is_sparse
            optimizer.step()
        torch.testing.assert_close(x.detach(), y.detach(), rtol=0, atol=1e-6)
        moved = (x.detach() != before).any(-1)
        assert moved.nonzero().flatten().tolist() == sorted(set(rows.tolist()))


@each(
    "kind, options",
    [
        (RiemannianSGD, {"momentum": 0.9, "geoopt_first_step": True}),
        (RiemannianSGD, {"momentum": 0.9, "dampening": 0.3}),
        (RiemannianSGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
        (RiemannianSGD, {}),
        (RiemannianAdam, {"amsgrad": True}),
        (RiemannianAdam, {"maximize": True}),
    ],
)
def test_first_step_of_a_sparse_table(kind, options):
    """Rows without a manifold start as they do in a dense table."""
    found = []
    for sparse in (True, False):
        table = torch.nn.Parameter(torch.arange(8.0, dtype=torch.float64).reshape(4, 2))
        optimizer = kind([table], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            torch.nn.functional.embedding(
                torch.arange(4), table, sparse=sparse
            ).square().sum().backward()
            optimizer.step()
        found.append(table.detach())
    torch.testing.assert_close(*found)


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
