"""Manifold objects and parameters: how they are made, checked, copied, stored, cast, averaged and
distributed."""

from __future__ import annotations

import io
import math

import pytest
import torch
from helpers.cases import each
from helpers.processes import run_in_two
from timm.utils import ModelEmaV3
from torch import nn

from hypvision.geometry import (
    CurvatureParameter,
    Euclidean,
    Lorentz,
    ManifoldParameter,
    PoincareBall,
    Product,
    lorentz,
    named_manifold_parameters,
    poincare,
)
from hypvision.optim import RiemannianAdam, param_groups

CURVED = each("kind", [Lorentz, PoincareBall])


class Table(nn.Module):
    """Points of a learned curvature, and a layer beside them."""

    def __init__(self, kind=Lorentz):
        super().__init__()
        torch.manual_seed(0)
        self.manifold = kind(0.5, learnable=True)
        self.points = ManifoldParameter(
            self.manifold.from_tangent0(torch.randn(6, 3)).detach(), self.manifold
        )
        self.linear = nn.Linear(3, 2)

    def forward(self):
        return self.manifold.cdist(self.points, self.points).sum() + self.linear.weight.sum() ** 2


# --------------------------------------------------------------------------------------------------
# Arguments


@CURVED
@pytest.mark.parametrize("c", [0, -1.0, math.nan, math.inf])
def test_curvatures_must_be_positive(kind, c):
    with pytest.raises(ValueError, match="curvature c must be positive"):
        kind(c)


@CURVED
@pytest.mark.parametrize("bounds", [(0.0, 2.0), (1.5, 2.0), (0.5, 0.9)])
def test_bounds_must_enclose_the_initial_curvature(kind, bounds):
    with pytest.raises(ValueError, match="bounds"):
        kind(1.0, learnable=True, bounds=bounds)


@each("eps", [0.0, 1.0, -1e-3])
def test_the_distance_from_the_rim_is_a_fraction(eps):
    with pytest.raises(ValueError, match="eps"):
        PoincareBall(eps=eps)


def test_the_clip_of_the_ball_is_an_option():
    x = torch.tensor([[2.0, 0.0]])
    assert PoincareBall(1.0).projx(x)[0, 0].item() == pytest.approx(1 - 1e-5, abs=1e-7)
    assert PoincareBall(1.0, eps=4e-3).projx(x)[0, 0].item() == pytest.approx(1 - 4e-3, abs=1e-7)
    assert PoincareBall(1.0, eps=4e-3).expmap0(100 * x)[0, 0].item() == pytest.approx(
        1 - 4e-3, abs=1e-6
    )
    assert PoincareBall(4.0, eps=4e-3).projx(x)[0, 0].item() == pytest.approx(
        (1 - 4e-3) / 2, abs=1e-7
    )


def test_points_off_the_manifold_are_named():
    off = torch.tensor([[5.0, 1.0, 1.0]])
    on = lorentz.expmap0(torch.ones(1, 2), 1.0)
    with pytest.raises(
        ValueError, match=r"^y is not on the hyperboloid.*expmap0, from_space or projx"
    ):
        Lorentz(1.0, check=True).dist(on, off)
    Lorentz(1.0).dist(on, off)  # without the check
    with pytest.raises(ValueError, match=r"^x is not in the ball"):
        PoincareBall(1.0, check=True).logmap(torch.tensor([[1.5, 0.0]]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="not finite"):
        Euclidean().check_point(torch.tensor([math.nan]))
    product = Product((Lorentz(1.0), 2), (PoincareBall(1.0), 2))
    with pytest.raises(ValueError, match="hyperboloid"):
        product.check_point(torch.cat([off, torch.zeros(1, 2)], -1))


def test_every_point_is_checked():
    ball, outside, inside = (
        PoincareBall(1.0, check=True),
        torch.tensor([[1.5, 0.0]]),
        torch.tensor([[0.5, 0.0]]),
    )
    on = lorentz.expmap0(torch.ones(1, 2), 1.0)
    torch.testing.assert_close(
        ball.from_lorentz(on), poincare.from_lorentz(on, 1.0)
    )  # not a point of the ball
    for call in (
        lambda: ball.dist2plane(inside, outside, inside),
        lambda: ball.gyration(inside, outside, inside),
        lambda: ball.retr(outside, inside),
        lambda: ManifoldParameter(outside, ball),
    ):
        with pytest.raises(ValueError, match="is not in the ball"):
            call()
    product = Product((Lorentz(1.0), 2), (Euclidean(), 1), check=True)
    with pytest.raises(ValueError, match="hyperboloid"):
        product.dist(torch.tensor([[5.0, 1.0, 1.0, 0.0]]), torch.tensor([[5.0, 1.0, 1.0, 0.0]]))
    inside = product.random(2, 3)
    with pytest.raises(ValueError, match="^y is not on the hyperboloid"):
        product.dist(inside, 3 * inside)
    with pytest.raises(ValueError, match="weights must be numbers of at least 0"):
        product.centroid(inside, torch.tensor([1.0, -1.0]))
    with pytest.raises(TypeError, match="floating point"):
        ball.dist0(torch.tensor([[0, 0]]))


def test_a_factor_for_each_coordinate_is_refused_by_every_manifold():
    for manifold in (
        Lorentz(1.0),
        PoincareBall(1.0),
        Euclidean(),
        Product((Lorentz(1.0), 1), (Euclidean(), 1)),
    ):
        x = manifold.random(3, 2)
        with pytest.raises(ValueError, match="geodesic_unit: t must be a number"):
            manifold.geodesic_unit(torch.ones(x.shape[-1]), x, torch.zeros_like(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_flat_distances_do_not_depend_on_the_number_of_points(dtype):
    x = 100 + torch.randn(64, 8, dtype=dtype)
    y = x + 1e-3 * torch.randn(64, 8, dtype=dtype)
    truth = (x.double()[:, None] - y.double()).norm(dim=-1)
    for space, points, others in (
        (Euclidean(), x, y),
        (Product((Euclidean(), 3), (Euclidean(), 5)), x, y),
    ):
        for count in (3, 64):  # torch.cdist takes another way from 25 points on
            found = space.cdist(points[:count], others[:count])
            torch.testing.assert_close(found.double(), truth[:count, :count], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(
                found.diagonal(), space.dist(x, y)[:count], rtol=1e-4, atol=1e-6
            )
    assert Euclidean().cdist(x.bfloat16(), y.bfloat16()).dtype == torch.bfloat16
    x.requires_grad_()
    (first,) = torch.autograd.grad(Euclidean().cdist(x, y).square().sum(), x, create_graph=True)
    first.sum().backward()  # the second derivative of sum |x - y|^2 is 2 for each y
    torch.testing.assert_close(x.grad, torch.full_like(x, 128.0))


@pytest.mark.parametrize("space", [Lorentz, PoincareBall])
def test_a_loaded_curvature_out_of_bounds_is_told(space, recwarn):
    weights = space(20.0, learnable=True).state_dict()
    with pytest.warns(
        UserWarning, match="curvature 20 of these weights is out of the bounds.*10 counts"
    ):
        manifold = space(1.0, learnable=True)
        manifold.load_state_dict(weights)
    assert manifold.c.item() == pytest.approx(10)
    space(2.0, learnable=True).load_state_dict(weights)  # on the bound
    space(2.0, learnable=True).load_state_dict({"log_c": weights["log_c"].bfloat16()})
    assert not recwarn.list


@pytest.mark.parametrize("manifold", [Lorentz(1.0, check=True), PoincareBall(1.0, check=True)])
def test_numbers_are_looked_at_when_asked(manifold):
    """Weights and standard deviations in tensors, which are not looked at otherwise: the host would
    have to wait."""
    x = manifold.random(5, 3)
    with pytest.raises(ValueError, match="weights must not all be 0"):
        manifold.centroid(x, torch.zeros(5))
    with pytest.raises(ValueError, match="weights must be numbers of at least 0"):
        manifold.frechet_mean(x, torch.tensor([1.0, -1, 1, 1, 1]))
    with pytest.raises(ValueError, match="weights must be numbers of at least 0"):
        manifold.weighted_centroids(torch.full((2, 5), math.nan), x)
    with pytest.raises(ValueError, match="std must be positive"):
        manifold.wrapped_normal(x, torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(ValueError, match="^x is not"):
        manifold.change_curvature(3 * torch.ones(5, 4), 2.0)
    assert torch.isfinite(type(manifold)(1.0).centroid(x, torch.zeros(5))).all()


@each("manifold", [Lorentz(1.0), PoincareBall(1.0), Euclidean(), Product((Lorentz(1.0), 3))])
def test_arguments_are_named_by_every_manifold(manifold):
    x = manifold.random(5, 3)
    with pytest.raises(
        ValueError, match="the last dimension of weights must be 5, the number of points; got 4"
    ):
        manifold.centroid(x, torch.ones(4))
    with pytest.raises(
        ValueError, match="the last dimension of weights must be 5, the number of points; got 4"
    ):
        manifold.weighted_centroids(torch.ones(2, 4), x)
    with pytest.raises(ValueError, match="std must be positive, got 0"):
        manifold.wrapped_normal(x, 0.0)
    with pytest.raises(
        ValueError, match="the last dimension of std must be 3, the number of dimensions; got 2"
    ):
        manifold.wrapped_normal_log_prob(x, x, torch.ones(2))
    with pytest.raises(ValueError, match="std must be 0 or more, got -1"):
        manifold.random(5, 3, std=-1)


def test_parameters_need_points_and_a_manifold():
    points = torch.zeros(2, 3)
    for manifold in (None, Lorentz, "lorentz", torch.nn.Linear(1, 1)):
        with pytest.raises(TypeError, match="manifold must be a manifold object"):
            ManifoldParameter(points, manifold)
    with pytest.raises(
        TypeError, match="data must be a tensor of floating point numbers, got torch.int64"
    ):
        ManifoldParameter(points.long(), Lorentz(1.0))
    with pytest.raises(
        TypeError, match="data must be a tensor of floating point numbers, got list"
    ):
        ManifoldParameter([1.0, 0.0], Lorentz(1.0))
    with pytest.raises(ValueError, match="data must end in the at least 2 coordinates"):
        ManifoldParameter(torch.zeros(4, 1), Lorentz(1.0))
    with pytest.raises(ValueError, match="data must end in the 6 coordinates"):
        ManifoldParameter(torch.zeros(4, 7), Product((Lorentz(1.0), 2), (Euclidean(), 3)))
    with pytest.raises(TypeError, match="pairs of a manifold and its dimension"):
        Product(Lorentz(1.0), PoincareBall(1.0))


def test_curvature_parameters_are_numbers_with_bounds():
    for data in (0.5, torch.tensor(1), torch.zeros(1)):
        with pytest.raises(TypeError, match="data, the logarithm of a curvature, must be"):
            CurvatureParameter(data, (-1.0, 1.0))
    for bounds in ((1.0, -1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="log_bounds must be"):
            CurvatureParameter(torch.tensor(0.0), bounds)


def test_parameters_print_once():
    manifold = Lorentz(1.0, learnable=True)
    assert (
        repr(manifold.log_c) == "CurvatureParameter containing the log of a curvature:\ntensor(0.)"
    )
    text = repr(ManifoldParameter(manifold.origin(2).detach(), manifold))
    assert text.count("ManifoldParameter") == 1 and text.endswith("tensor([1., 0., 0.])")


def test_products_name_wrong_sizes():
    product = Product((Lorentz(1.0), 2), (Euclidean(), 3))
    with pytest.raises(ValueError, match="6 coordinates, got 5"):
        product.dist(torch.zeros(5), torch.zeros(5))
    with pytest.raises(ValueError, match="5 coordinates, got 6"):
        product.expmap0(torch.zeros(6))
    with pytest.raises(ValueError, match="at least one"):
        Product()
    with pytest.raises(ValueError, match="cannot be a Product"):
        Product((product, 5))
    with pytest.raises(ValueError, match="dimension 5, got a size that ends in 3"):
        product.origin(3)


def test_methods_bind_the_functions():
    """Positional and named arguments, and geoopt's names."""
    manifold, x = Lorentz(0.7), lorentz.expmap0(torch.randn(4, 3), 0.7)
    y = lorentz.expmap0(torch.randn(4, 3), 0.7)
    expected = lorentz.geodesic(0.3, x, y, 0.7)
    assert torch.equal(manifold.geodesic(0.3, x, y), expected)
    assert torch.equal(manifold.geodesic(t=0.3, y=y, x=x), expected)
    assert torch.equal(manifold.mobius_add(x, y), lorentz.boost(x, y, 0.7))
    with pytest.raises(TypeError, match="takes 3 positional arguments"):
        manifold.dist(x, y, 0.7)
    ball, z = PoincareBall(0.7), poincare.expmap0(torch.randn(4, 3), 0.7)
    assert torch.equal(ball.conformal_factor(z), poincare.conformal_factor(z, 0.7))


@each("manifold", [Lorentz(0.7), PoincareBall(0.7), Product((Lorentz(2.0), 2), (Euclidean(), 1))])
def test_origins_and_random_points(manifold):
    origin = manifold.origin() if isinstance(manifold, Product) else manifold.origin(3)
    manifold.check_point(origin)
    assert manifold.dist0(origin).item() == 0
    several = manifold.origin(5, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(several, origin.double().expand(5, 4, -1), rtol=1e-6, atol=0)
    points = manifold.random(1000, 3, std=0.3, generator=torch.Generator().manual_seed(0))
    manifold.check_point(points)
    assert (manifold.dist0(points) ** 2).mean().item() == pytest.approx(3 * 0.3**2, rel=0.1)


# --------------------------------------------------------------------------------------------------
# Learned curvatures


@CURVED
def test_curvature_is_learned_in_log_space_and_bounded(kind):
    manifold = kind(2.0, learnable=True, bounds=(0.5, 2.0))
    assert manifold.log_c.dtype == torch.float32 and isinstance(manifold.log_c, CurvatureParameter)
    assert manifold.c.item() == pytest.approx(2.0)
    manifold.log_c.data.fill_(100.0)
    assert manifold.c.item() == pytest.approx(4.0, rel=1e-4)
    manifold.c.backward()
    assert manifold.log_c.grad.item() == pytest.approx(4.0, rel=1e-4)  # the way back is open
    manifold.clamp_()
    assert manifold.log_c.item() == pytest.approx(math.log(4.0))


# --------------------------------------------------------------------------------------------------
# Copies, files, casts


def same_points(a: ManifoldParameter, b: ManifoldParameter) -> None:
    assert type(b) is ManifoldParameter and torch.equal(a, b) and b.requires_grad == a.requires_grad
    assert type(b.manifold) is type(a.manifold) and torch.equal(a.manifold.log_c, b.manifold.log_c)


@CURVED
def test_state_dicts_are_plain_tensors(kind):
    model, other = Table(kind), Table(kind)
    other.points.data.copy_(other.manifold.from_tangent0(torch.randn(6, 3)))
    other.manifold.log_c.data.fill_(0.25)
    state = other.state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert all(type(t) is torch.Tensor for t in state.values())
    model.load_state_dict(state)
    same_points(other.points, model.points)
    assert model.points.manifold is model.manifold


def test_listed_parameters_are_found_without_the_class():
    """What is left of a parameter after a wrapper has replaced it."""
    model = Table()
    model.manifold_parameters = ("points",)
    model.points = nn.Parameter(model.points.detach())
    assert [(name, manifold) for name, _, manifold in named_manifold_parameters(model)] == [
        ("points", model.manifold)
    ]


def test_tied_parameters_are_named_once():
    model = nn.ModuleList([Table(), nn.Module()])
    model[1].tied = model[0].points
    assert [name for name, _, _ in named_manifold_parameters(model)] == ["0.points"]


@CURVED
def test_averages_of_weights(kind):
    """timm's EMA copies the model: its points keep their class, and are points again after a
    projection."""
    model = Table(kind)
    ema = ModelEmaV3(model, decay=0.5)
    optimizer = RiemannianAdam(param_groups(model, lr=0.05))
    for _ in range(3):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        ema.update(model)
    points = ema.module.points
    assert type(points) is ManifoldParameter and points.manifold is ema.module.manifold
    distances = model.manifold.dist(model.manifold.projx(points), model.points)
    assert (distances > 0).all() and distances.max() < 0.2


# --------------------------------------------------------------------------------------------------
# Processes

WORKER = """
import torch, torch.distributed as dist
from test_manifolds import Table
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from hypvision.geometry import named_manifold_parameters
from hypvision.optim import RiemannianAdam, param_groups, unsharded_parameters

dist.init_process_group("gloo")
rank = dist.get_rank()


class Rows(Table):
    manifold_parameters = ("points",)

    def forward(self, rows):
        return self.manifold.dist(self.points[rows], self.points[rows.flip(0) // 2]).square().mean()


def train(model, rows, steps=4):
    groups = param_groups(model, lr=0.05)
    optimizer = RiemannianAdam(groups)
    for step in range(steps):
        optimizer.zero_grad()
        model(rows[step]).backward()
        optimizer.step()


generator = torch.Generator().manual_seed(3)
rows = torch.randint(6, (4, 2, 8), generator=generator)


class Both(Rows):
    # the mean over both halves, as two processes see it
    def forward(self, rows):
        return (super().forward(rows[0]) + super().forward(rows[1])) / 2


alone = Both()
train(alone, rows)
model = Rows()
fully_shard(model, mesh=init_device_mesh("cpu", (2,)), ignored_params=unsharded_parameters(model))
assert [name for name, _, _ in named_manifold_parameters(model)] == ["points"]
train(model, rows[:, rank])
points, log_c = model.points.full_tensor(), model.manifold.log_c
torch.testing.assert_close(points.detach(), alone.points.detach(), rtol=1e-5, atol=1e-6)
torch.testing.assert_close(log_c.detach(), alone.manifold.log_c.detach(), rtol=1e-5, atol=1e-6)
assert (points.detach() - Rows().points.detach()).abs().max() > 0.01
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_rows_of_points_like_one(tmp_path):
    run_in_two(WORKER, tmp_path, __file__)


@each(
    "factors",
    [
        [(Lorentz(0.5), 3), (Lorentz(2.0, learnable=True), 3)],
        [(PoincareBall(0.5), 3), (PoincareBall(2.0), 3)],
        [(Lorentz(0.5), 3), (Lorentz(2.0), 4)],
        [(Lorentz(0.5), 3), (Euclidean(), 3)],
        [(Lorentz(1.3), 4)],
    ],
)
def test_numbers_by_factor_are_those_of_the_factors(factors):
    """Equal factors in one pass, and others one by one, with the same gradients."""
    torch.manual_seed(0)
    product = Product(*factors)
    size = sum(product.dims)
    tangents = torch.randn(2, 5, size, dtype=torch.float64, requires_grad=True)
    x, y = product.expmap0(tangents)
    parts = [*zip(product.manifolds, product.split(x), product.split(y))]
    for found, expected in (
        (product.by_factor("dist", x=x, y=y), [m.dist(a, b) for m, a, b in parts]),
        (product.by_factor("cdist", x=x, y=y), [m.cdist(a, b) for m, a, b in parts]),
        (product.exterior_angle(x, y), [m.exterior_angle(a, b) for m, a, b in parts]),
    ):
        expected = torch.stack(expected, -1)
        torch.testing.assert_close(found, expected)
        grads = [
            torch.autograd.grad(values.square().sum(), tangents, retain_graph=True)[0]
            for values in (found, expected)
        ]
        torch.testing.assert_close(*grads)


@each("kind", [Lorentz, PoincareBall])
def test_a_curvature_with_a_gradient_is_refused(kind):
    """It would silently become a number."""
    c = nn.Parameter(torch.tensor(2.0))
    for arguments in (dict(c=c), dict(c=2 * c), dict(k=c if kind is Lorentz else -c)):
        with pytest.raises(ValueError, match="learnable=True"):
            kind(**arguments)
    assert kind(torch.tensor(2.0)).c == 2.0


def test_the_ball_shows_its_options():
    ball = PoincareBall(1.0, eps=1e-3, exact=True)
    assert repr(ball) == "PoincareBall(c=1, eps=0.001, exact=True)"


def test_flat_distances_have_the_derivatives_of_their_formula():
    x = torch.randn(4, 3)
    y = torch.randn(5, 3)

    def formula(x):
        return (x[:, None] - y).square().sum(-1).sqrt()

    def ours(x):
        return Euclidean().cdist(x, y)

    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        found = transform(ours)(x)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, transform(formula)(x), rtol=1e-4, atol=1e-5)
