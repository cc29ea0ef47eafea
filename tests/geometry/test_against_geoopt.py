"""geoopt's public methods on the same arguments, as the reference, in float64, where they keep
their digits.

geoopt's own test files cannot be run: no release of it on the package index holds them (0.0.1 to
0.5.0 as source, none of 0.5.1). What they ask of a manifold is asked here of ours, with geoopt's
result as the truth: methods and gradients, forth and back, and the two steps of its optimisers.
Radii end at 3, beyond which geoopt itself loses digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hypvision.geometry import Lorentz, PoincareBall

geoopt = pytest.importorskip("geoopt")
pytestmark = pytest.mark.slow

DTYPE = torch.float64
RADII, CURVATURES = (0.01, 3.0), (0.25, 4.0)


class Points(NamedTuple):
    """Points ``x``, ``y``; ``u``, ``v`` tangent vectors at ``x``, ``w`` one at the origin; ``e``
    any vector."""

    x: Tensor
    y: Tensor
    u: Tensor
    v: Tensor
    w: Tensor
    e: Tensor


class Lorentzian:
    """Ours, with tangent vectors at the origin as geoopt has them: with a time, which is 0."""

    theirs = staticmethod(lambda c: geoopt.Lorentz(k=1 / c).double())
    ours = Lorentz
    names = {
        "expmap": "xu",
        "logmap": "xy",
        "expmap0": "w",
        "logmap0": "x",
        "dist": "xy",
        "dist0": "x",
        "transp": "xyu",
        "transp0": "xw",
        "transp0back": "xu",
        "proju": "xe",
        "projx": "x",
        "egrad2rgrad": "xe",
        "inner": "xuv",
        "retr": "xu",
        "expmap_transp": "xuv",
        "retr_transp": "xuv",
    }

    def call(manifold, name: str, *arguments: Tensor):
        if name == "expmap0":
            return manifold.expmap0(arguments[0][..., 1:])
        if name == "transp0":
            return manifold.transp0(arguments[0], arguments[1][..., 1:])
        out = getattr(manifold, name)(*arguments)
        return torch.nn.functional.pad(out, (1, 0)) if name in ("logmap0", "transp0back") else out

    def origin(w: Tensor) -> Tensor:
        return torch.nn.functional.pad(w, (1, 0))


class Ball:
    theirs = staticmethod(lambda c: geoopt.PoincareBallExact(c=c).double())
    ours = PoincareBall
    names = {
        name: places
        for name, places in Lorentzian.names.items()
        if name not in ("retr", "retr_transp")
    } | {
        "geodesic": "txy",
        "geodesic_unit": "txu",
        "norm": "xu",
        "mobius_add": "xy",
        "mobius_scalar_mul": "tx",
        "mobius_matvec": "mx",
        "gyration": "xyu",
        "dist2plane": "xye",
        "lambda_x": "x",
    }

    def call(manifold, name: str, *arguments: Tensor):
        if name == "lambda_x":
            return manifold.conformal_factor(*arguments).squeeze(-1)
        if name == "dist2plane":
            return manifold.dist2plane(*arguments, signed=False)
        return getattr(manifold, name)(*arguments)

    def origin(w: Tensor) -> Tensor:
        return w


MODELS = {"lorentz": Lorentzian, "ball": Ball}
CASES = [(model, name) for model, kind in MODELS.items() for name in kind.names]


def draw(model: type, c: float, radius: float) -> Points:
    torch.manual_seed(0)
    manifold = model.ours(c)
    a, b, s, r, w, e = (torch.randn(40, 5, dtype=DTYPE) for _ in range(6))
    x, y = (
        manifold.from_tangent0(torch.nn.functional.normalize(p, dim=-1) * radius / c**0.5)
        for p in (a, b)
    )
    e = torch.randn_like(x) if model is Lorentzian else e
    return Points(
        x, y, manifold.transp0(x, 0.3 * s), manifold.transp0(x, 0.3 * r), model.origin(0.3 * w), e
    )


def arguments(places: str, points: Points) -> list[Tensor]:
    more = {
        "t": torch.linspace(0.2, 0.9, 40, dtype=DTYPE).unsqueeze(1),
        "m": torch.eye(5, dtype=DTYPE).roll(1, 0) * 0.7,
    }
    return [(more[p] if p in more else getattr(points, p)).clone() for p in places]


def both(function: Callable, given: list[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Results, and gradients by all arguments."""
    given = [g.requires_grad_() for g in given]
    outs = function(*given)
    outs = list(outs) if isinstance(outs, tuple) else [outs]
    weights = [torch.linspace(0.5, 1.5, o.numel(), dtype=DTYPE).view_as(o) for o in outs]
    return outs, torch.autograd.grad(outs, given, weights, allow_unused=True)


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("model, name", CASES)
def test_values_are_those_of_geoopt(model, name, radius, c):
    kind = MODELS[model]
    given = arguments(kind.names[name], draw(kind, c, radius))
    if name == "dist2plane":
        given[2] = given[2] / given[2].norm(dim=-1, keepdim=True)
    theirs = getattr(kind.theirs(c), name)
    if (
        model == "ball" and name == "inner"
    ):  # without keepdim geoopt's is a matrix of all rows with all
        theirs = lambda *given: getattr(kind.theirs(c), name)(*given, keepdim=True).squeeze(-1)  # noqa: E731
    expected = theirs(*[g.clone() for g in given])
    found = kind.call(kind.ours(c), name, *given)
    for out, right in zip(
        *(o if isinstance(o, tuple) else (o,) for o in (found, expected)), strict=True
    ):
        torch.testing.assert_close(out, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("radius", [0.3, 2.0])
@pytest.mark.parametrize(
    "name", ["dist", "logmap", "mobius_add", "expmap", "dist0", "logmap0", "expmap0"]
)
def test_gradients_are_those_of_geoopt(name, radius):
    """On the ball, whose points have no coordinate that the others determine."""
    given = arguments(Ball.names[name], draw(Ball, 1.0, radius))
    expected, gradients = both(getattr(Ball.theirs(1.0), name), [g.clone() for g in given])
    found, ours = both(getattr(PoincareBall(1.0), name), given)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(ours, gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name, places", [("dist", "xy"), ("logmap", "xy"), ("expmap", "xu"), ("transp", "xyu")]
)
def test_gradients_along_the_hyperboloid_are_those_of_geoopt(name, places):
    """geoopt reads the time coordinate of a point and we do not: by the space part both are the
    same."""
    points = draw(Lorentzian, 1.0, 1.0)
    space = [point[..., 1:].clone() for point in (points.x, points.y)]

    def lift(function: Callable) -> Callable:
        def call(a: Tensor, b: Tensor):
            x, y = (
                torch.cat([(1 + p.square().sum(-1, keepdim=True)).sqrt(), p], -1) for p in (a, b)
            )
            u = torch.cat(
                [(a * points.u[..., 1:]).sum(-1, keepdim=True) / x[..., :1], points.u[..., 1:]], -1
            )
            return function(*[{"x": x, "y": y, "u": u}[place] for place in places]) + 0 * b.sum()

        return call

    expected, gradients = both(
        lift(getattr(geoopt.Lorentz().double(), name)), [s.clone() for s in space]
    )
    found, ours = both(lift(getattr(Lorentz(1.0), name)), space)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours, gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("model", MODELS)
def test_geoopt_finds_our_points_and_vectors_on_its_manifold(model, c):
    """Its own checks: ``check_point_on_manifold`` and ``check_vector_on_tangent``."""
    kind = MODELS[model]
    ours, theirs = kind.ours(c), kind.theirs(c).float()
    if model == "ball":
        ours = PoincareBall(c, eps=4e-3)  # as far from the boundary as geoopt stays
    points = draw(kind, c, 1.0)
    x, y, u, v, w, e = (p.float() for p in points)  # its checks compare with float32
    for point in (
        x,
        y,
        ours.expmap(x, u),
        kind.call(ours, "expmap0", w),
        ours.projx(e),
        ours.geodesic(0.3, x, y),
    ):
        assert theirs.check_point_on_manifold(point, atol=1e-4)
    for vector in (u, v, ours.logmap(x, y), ours.proju(x, e), ours.egrad2rgrad(x, e)):
        assert theirs.check_vector_on_tangent(x, vector, atol=1e-4)
    assert theirs.check_vector_on_tangent(y, ours.transp(x, y, u), atol=1e-4)
    torch.testing.assert_close(ours.expmap(x, theirs.logmap(x, y)), y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theirs.expmap(x, ours.logmap(x, y)), y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.transp(y, x, theirs.transp(x, y, u)), u, rtol=1e-4, atol=1e-4)
