"""What every manifold must satisfy, whatever its model, curvature and dtype, and that the models
agree.

Points lie within about two radii of curvature of the origin, where the conditioning of every
property is mild; what happens further out is measured by test_precision, and at the ends of the
number range by test_robustness. Errors are lengths, as a multiple of the size of the case: the
space near the origin is held to the same relative accuracy as the rest.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from hypvision.geometry import Euclidean, Lorentz, PoincareBall, Product, lorentz, maps

MANIFOLDS = {
    "lorentz": (lambda c: Lorentz(c), 3),
    "poincare": (lambda c: PoincareBall(c), 3),
    "euclidean": (lambda c: Euclidean(), 3),
    "product": (lambda c: Product((Lorentz(c), 3), (PoincareBall(2 * c), 2), (Euclidean(), 2)), 7),
}
curvatures = st.floats(-2, 1).map(lambda power: 10**power)
scales = st.sampled_from([1e-4, 1e-2, 0.3, 1.0])
vectors = arrays(np.float64, (5, 7), elements=st.floats(-1, 1))
few_examples = settings(deadline=None, max_examples=12, derandomize=True, database=None)

every = pytest.mark.parametrize("name", MANIFOLDS)
curved = pytest.mark.parametrize("name", ["lorentz", "poincare"])
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])


class Case:
    """Three points ``x, y, z`` and two tangent vectors ``u, v`` at ``x`` of a manifold."""

    def __init__(self, name: str, dtype: torch.dtype, values, scale: float, c: float):
        make, n = MANIFOLDS[name]
        self.m, self.n, self.c = make(c), n, c
        scale = scale / c**0.5
        self.tangents = torch.as_tensor(values[:, :n] * scale).to(dtype)
        self.points = self.m.from_tangent0(self.tangents)
        self.x, self.y, self.z = self.points[:3]
        self.u, self.v = (self.m.transp0(self.x, t) for t in self.tangents[3:])
        self.tolerance = 4000 * torch.finfo(dtype).eps
        # the unit of errors; gradual underflow below it is no concern
        self.size = scale * 2

    def same_point(self, got: Tensor, expected: Tensor) -> None:
        error = self.m.dist(got, expected).max().item()
        assert error <= self.tolerance * self.size, (error, got, expected)

    def same_vector(self, at: Tensor, got: Tensor, expected: Tensor) -> None:
        error = self.m.norm(at, got - expected).max().item()
        assert error <= self.tolerance * self.size, (error, got, expected)

    def same_number(self, got: Tensor, expected: Tensor | float, unit: float | None = None) -> None:
        error = (got - expected).abs().max().item()
        assert error <= self.tolerance * (self.size if unit is None else unit), (
            error,
            got,
            expected,
        )


def cases(function):
    """Run a test on cases of every manifold and dtype."""
    signature = inspect.signature(function)
    assert list(signature.parameters) == ["case"]

    @few_examples
    @given(values=vectors, scale=scales, c=curvatures)
    def run(name, dtype, values, scale, c):
        function(Case(name, dtype, values, scale, c))

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return dtypes(run)


# --------------------------------------------------------------------------------------------------
# Every manifold


@every
@cases
def test_exponential_map_and_logarithm_are_inverse(case):
    m = case.m
    case.same_point(m.expmap(case.x, m.logmap(case.x, case.y)), case.y)
    case.same_vector(case.x, m.logmap(case.x, m.expmap(case.x, case.u)), case.u)
    case.same_point(m.expmap0(m.logmap0(case.points)), case.points)
    case.same_point(m.from_tangent0(m.to_tangent0(case.points)), case.points)
    case.same_number(m.to_tangent0(case.points), case.tangents)


@every
@cases
def test_distances_are_a_metric(case):
    m, points = case.m, case.points
    d = m.dist(points[:, None], points[None])
    assert (d >= 0).all()
    assert (d.diagonal() == 0).all()
    assert torch.equal(d, d.T) or (d - d.T).abs().max() <= 8 * torch.finfo(d.dtype).eps * case.size
    assert (d[:, None, :] <= d[:, :, None] + d[None] + case.tolerance * case.size).all()
    case.same_number(m.dist0(points), m.to_tangent0(points).norm(dim=-1))
    origin = m.from_tangent0(torch.zeros_like(case.tangents[0]))
    case.same_number(m.dist(origin, points), m.dist0(points))
    # the matrix product loses the digits of near points, by about the root of the round-off
    loss = 30 * torch.finfo(d.dtype).eps ** 0.5
    assert (m.cdist(points, points) - d).abs().max() <= loss * case.size
    case.same_number(m.norm(case.x, m.logmap(case.x, case.y)), m.dist(case.x, case.y))
    case.same_number(m.dist(case.x, m.expmap(case.x, case.u)), m.norm(case.x, case.u))


@every
@cases
def test_transport_is_an_isometry_and_has_an_inverse(case):
    m, x, y, u, v = case.m, case.x, case.y, case.u, case.v
    moved_u, moved_v = m.transp(x, y, u), m.transp(x, y, v)
    case.same_number(m.inner(y, moved_u, moved_v), m.inner(x, u, v), case.size**2)
    case.same_number(m.norm(y, moved_u), m.norm(x, u))
    case.same_vector(y, m.proju(y, moved_u), moved_u)
    case.same_vector(x, m.transp(y, x, moved_u), u)
    case.same_vector(x, m.transp(x, x, u), u)
    # the velocity of a geodesic stays its velocity
    case.same_vector(y, m.transp(x, y, m.logmap(x, y)), -m.logmap(y, x))


@every
@cases
def test_transport_from_the_origin(case):
    m, x, u = case.m, case.x, case.u
    at_origin = case.tangents[3]
    case.same_number(m.transp0back(x, u), at_origin)
    zero = torch.zeros_like(at_origin)
    origin = m.from_tangent0(zero)
    there = m.transp0(origin, at_origin)
    case.same_vector(x, m.transp(origin, x, there), u)
    case.same_number(m.transp0back(origin, m.transp(x, origin, u)), at_origin)


@pytest.mark.quick("single-lorentz", "single-poincare", "double-poincare", "single-product")
@every
@cases
def test_geodesics(case):
    m, x, y, u = case.m, case.x, case.y, case.u
    d = m.dist(x, y)
    case.same_point(m.geodesic(0.0, x, y), x)
    case.same_point(m.geodesic(1.0, x, y), y)
    case.same_point(m.geodesic(0.5, x, y), m.geodesic(0.5, y, x))
    for t in (0.25, 0.5, 0.75):
        point = m.geodesic(t, x, y)
        case.same_number(m.dist(x, point), t * d)
        case.same_number(m.dist(point, y), (1 - t) * d)
    fractions = torch.tensor([[0.0], [0.5], [1.0]], dtype=x.dtype)
    case.same_point(m.geodesic(fractions, x, y)[1], m.geodesic(0.5, x, y))
    case.same_point(m.centroid(torch.stack([x, y])), m.geodesic(0.5, x, y))
    if hasattr(m, "geodesic_unit"):
        length = 0.7 * case.size
        end = m.geodesic_unit(length, x, u)
        case.same_number(m.dist(x, end), length if m.norm(x, u) > 0 else 0.0)
        case.same_point(m.geodesic_unit(m.norm(x, u), x, u), m.expmap(x, u))


def pushed(move, x: Tensor, u: Tensor) -> Tensor:
    """The image of the tangent vector ``u`` at ``x`` under the differential of ``move``."""
    return torch.autograd.functional.jvp(move, x, u)[1]


@pytest.mark.quick("single-lorentz", "double-poincare", "single-product")
@every
@cases
def test_everything_commutes_with_translations(case):
    """Translations are isometries: ``mobius_add`` on the left (the boost of the hyperboloid)."""
    m, x, y, u = case.m, case.x, case.y, case.u
    check_isometry(case, lambda p: m.mobius_add(case.z, p))
    case.same_point(
        m.mobius_add(case.z, m.from_tangent0(torch.zeros_like(case.tangents[0]))), case.z
    )
    # adding y is to walk its logarithm, transported to x
    case.same_point(m.mobius_add(x, y), m.expmap(x, m.transp0(x, m.logmap0(y))))
    assert u.shape == x.shape


@curved
@cases
def test_everything_commutes_with_rotations(case):
    generator = torch.Generator().manual_seed(1)
    matrix = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator))[0].to(
        case.x.dtype
    )
    check_isometry(
        case, (lambda p: case.m.rotate(p, matrix)) if case.m.extra else (lambda p: p @ matrix.T)
    )


def check_isometry(case: Case, move) -> None:
    m, x, y, u, v = case.m, case.x, case.y, case.u, case.v
    fx, fy = move(x), move(y)
    fu, fv = pushed(move, x, u), pushed(move, x, v)
    case.same_number(m.dist(fx, fy), m.dist(x, y))
    case.same_number(m.inner(fx, fu, fv), m.inner(x, u, v), case.size**2)
    case.same_point(m.expmap(fx, fu), move(m.expmap(x, u)))
    case.same_vector(fx, m.logmap(fx, fy), pushed(move, x, m.logmap(x, y)))
    case.same_vector(fy, m.transp(fx, fy, fu), pushed(move, y, m.transp(x, y, u)))
    weights = torch.tensor([0.5, 0.2, 0.3, 0.0, 1.0], dtype=x.dtype)
    case.same_point(m.centroid(move(case.points), weights), move(m.centroid(case.points, weights)))
    if hasattr(m, "frechet_mean"):
        case.same_point(
            m.frechet_mean(move(case.points), weights), move(m.frechet_mean(case.points, weights))
        )


@every
@cases
def test_projections_are_idempotent(case):
    m, x = case.m, case.x
    case.same_point(m.projx(case.points), case.points)
    off = case.points * 1.25
    inside = m.projx(off)
    m.check_point(inside)
    assert torch.equal(m.projx(inside), inside)
    raw = torch.linspace(-1, 2, x.shape[-1], dtype=x.dtype) * case.size
    tangent = m.proju(x, raw)
    case.same_vector(x, m.proju(x, tangent), tangent)
    case.same_vector(x, m.proju(x, case.u), case.u)
    # orthogonal: nothing of the tangent space is lost
    if isinstance(m, Lorentz):
        case.same_number(
            m.inner(x, tangent, case.u), lorentz.minkowski_inner(raw, case.u)[0], case.size**2
        )


@every
@cases
def test_inner_products_and_norms(case):
    m, x, u, v = case.m, case.x, case.u, case.v
    unit = case.size**2
    case.same_number(m.norm(x, u) ** 2, m.inner(x, u, u), unit)
    case.same_number(m.inner(x, u, v), m.inner(x, v, u), unit)
    case.same_number(m.inner(x, u + 2 * v, u), m.inner(x, u, u) + 2 * m.inner(x, v, u), 4 * unit)
    assert m.inner(x, u, u) >= 0
    assert m.inner(x, u, v).abs() <= m.norm(x, u) * m.norm(x, v) + case.tolerance * unit


@every
@cases
def test_riemannian_gradients(case):
    """``<grad f, u>`` is the derivative of f along u, for functions that read all coordinates and
    those that do not."""
    m, u, v = case.m, case.u, case.v
    x = case.x.clone().requires_grad_()
    linear = torch.linspace(-1, 2, x.shape[-1], dtype=x.dtype)
    gradient = m.egrad2rgrad(case.x, linear)
    case.same_number(m.inner(case.x, gradient, u), (linear * u).sum(), 4 * case.size)
    assert (m.proju(case.x, gradient) - gradient).abs().max() <= case.tolerance * 10
    point = m.expmap(case.x, v).detach()
    (egrad,) = torch.autograd.grad((m.dist(x, point) ** 2 / 2).sum(), x)
    # the gradient of half the squared distance is minus the logarithm
    case.same_vector(case.x, m.egrad2rgrad(case.x, egrad), -m.logmap(case.x, point))


@every
@cases
def test_retractions(case):
    m, x, u = case.m, case.x, case.u
    # of first order: the distance from the geodesic falls with the square of the step
    step = 0.01 * u
    bound = 4 * (m.norm(x, step) * case.c**0.5) ** 2 / case.c**0.5
    assert m.dist(m.retr(x, step), m.expmap(x, step)) <= bound + case.tolerance * case.size
    m.check_point(m.retr(x, u))
    y, moved = m.retr_transp(x, u, case.v)
    case.same_point(y, m.retr(x, u))
    case.same_vector(y, moved, m.transp(x, y, case.v))
    y, moved, other = m.expmap_transp(x, u, case.v, u)
    case.same_point(y, m.expmap(x, u))
    case.same_vector(y, moved, m.transp(x, y, case.v))
    case.same_vector(y, other, -m.logmap(y, x))
    if isinstance(m, PoincareBall):
        exact = PoincareBall(case.c, exact=True)
        assert torch.equal(exact.retr(x, u), m.expmap(x, u))


# --------------------------------------------------------------------------------------------------
# The models are isometric


@pytest.mark.quick("single")
@dtypes
@few_examples
@given(values=vectors, scale=scales, c=curvatures)
def test_the_models_agree(dtype, values, scale, c):
    """Every operation commutes with the isometry of the two models."""
    h, b = (Case(name, dtype, values, scale, c) for name in ("lorentz", "poincare"))
    h.tolerance = b.tolerance = 2 * h.tolerance

    def same(got, expected):  # a point of the hyperboloid, and one of the ball
        h.same_point(maps.poincare_to_lorentz(expected, c), got)
        b.same_point(maps.lorentz_to_poincare(got, c), expected)

    def to_ball(p):
        return maps.lorentz_to_poincare(p, c)

    same(h.points, b.points)
    same(h.m.projx(maps.klein_to_lorentz(maps.lorentz_to_klein(h.points, c), c)), b.points)
    same(h.points, maps.klein_to_poincare(maps.poincare_to_klein(b.points, c), c))
    for name in ("dist", "cdist"):
        unit = None if name == "dist" else h.size * 30 / torch.finfo(dtype).eps ** 0.5 / 4000
        h.same_number(
            getattr(h.m, name)(h.points[:2], h.points[1:3]),
            getattr(b.m, name)(b.points[:2], b.points[1:3]),
            unit,
        )
    h.same_number(h.m.dist0(h.points), b.m.dist0(b.points))
    same(h.m.mobius_add(h.x, h.y), b.m.mobius_add(b.x, b.y))
    same(h.m.unboost(h.x, h.y), b.m.mobius_sub(b.x, b.y))
    same(h.m.scalar_mul(0.7, h.points), b.m.mobius_scalar_mul(0.7, b.points))
    same(h.m.geodesic(0.3, h.x, h.y), b.m.geodesic(0.3, b.x, b.y))
    same(h.m.centroid(h.points), b.m.midpoint(b.points))
    same(h.m.frechet_mean(h.points), b.m.frechet_mean(b.points))
    same(h.m.rescale(h.points), b.m.rescale(b.points))
    # tangent vectors through the differential: u at x is the transported tangents[3] in both
    same(h.m.expmap(h.x, h.u), b.m.expmap(b.x, b.u / 2))
    moved = pushed(to_ball, h.x, h.m.logmap(h.x, h.y))
    b.same_vector(b.x, moved, b.m.logmap(b.x, b.y))
    moved = pushed(to_ball, h.y, h.m.transp(h.x, h.y, h.u))
    b.same_vector(b.y, moved, b.m.transp(b.x, b.y, b.u / 2))
    h.same_number(h.m.inner(h.x, h.u, h.v), b.m.inner(b.x, b.u, b.v) / 4, h.size**2)
