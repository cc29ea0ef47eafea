"""What the manifold objects can do: the same on all, but for what is listed here with its reason;
and aliases."""

from __future__ import annotations

import inspect

import pytest
import torch
from helpers.cases import each
from test_robustness import public
from torch import nn

from hypvision.geometry import (
    Euclidean,
    Lorentz,
    Manifold,
    PoincareBall,
    Product,
    lorentz,
    maps,
    poincare,
)

KINDS = (Lorentz, PoincareBall, Euclidean, Product)
ONE = (Lorentz, PoincareBall)

# Methods that not all manifolds have: which do, and why the others do not.
SPECIAL = {
    # the coordinates of one model
    "from_space": (Lorentz,),
    "time_from_space": (Lorentz,),
    "conformal_factor": (PoincareBall,),
    "lambda_x": (PoincareBall,),
    "from_poincare": (Lorentz,),
    "to_poincare": (Lorentz,),
    "from_lorentz": (PoincareBall,),
    "to_lorentz": (PoincareBall,),
    "from_klein": ONE,
    "to_klein": ONE,
    # published for the ball alone; on the hyperboloid boosts and rotate do the same
    "beta_concat": (PoincareBall,),
    "beta_split": (PoincareBall,),
    "ganea_logits": (PoincareBall,),
    "gyration": (PoincareBall,),
    # of space parts; the points of a product are taken apart by split, along its factors
    "concat": (Lorentz, Euclidean),
    "split": (Lorentz, Euclidean, Product),
    # there is no curvature, or not one
    "change_curvature": ONE,
    "scale_curvature": ONE,
    "max_distance": ONE,
    "half_aperture": (*ONE, Product),
    "entailment_loss": ONE,
    # each factor's numbers; a product of cones has an angle and an aperture for each
    "by_factor": (Product,),
    "exterior_angle": KINDS,
    "exterior_angles": (Lorentz,),  # ATMG's, which has one hyperboloid
    # one direction or hyperplane for all factors would mean nothing
    "busemann": (Lorentz, PoincareBall, Euclidean),
    "horosphere_dist": (Lorentz, PoincareBall, Euclidean),
    "dist2plane": (Lorentz, PoincareBall, Euclidean),
    "hyperplane_logits": (Lorentz, PoincareBall, Euclidean),
    "rotate": (Lorentz, PoincareBall, Euclidean),
    "matvec": (Lorentz, PoincareBall, Euclidean),
    "mobius_matvec": (Lorentz, PoincareBall, Euclidean),
}


def methods(kind: type) -> set[str]:
    """Public methods that are not those of every module."""
    return {
        name
        for name, value in inspect.getmembers(kind, callable)
        if not name.startswith("_") and not hasattr(nn.Module, name)
    }


def test_manifolds_have_the_same_methods():
    every = set().union(*(methods(kind) for kind in KINDS))
    missing = {kind: sorted(every - methods(kind) - set(SPECIAL)) for kind in KINDS}
    assert not any(missing.values()), f"methods that other manifolds have: {missing}"
    listed = {name: tuple(kind for kind in KINDS if name in methods(kind)) for name in SPECIAL}
    assert listed == SPECIAL


RENAMED = {
    "project": "projx",
    "minkowski_inner": None,
    "rescale_tangent": None,
}  # None: no manifold is needed
OWN = {
    "origin",
    "projx",
    "expmap0",
    "change_curvature",
    "scale_curvature",
    "centroid",
    "midpoint",
    "frechet_mean",
    "inner",
}


@pytest.mark.parametrize(("kind", "module"), [(Lorentz, lorentz), (PoincareBall, poincare)])
def test_every_function_is_a_method_of_the_same_arguments(kind, module):
    """But for the curvature and the dtype of ``lorentz.cdist``, which only losses need; those in
    ``OWN`` take the curvature in another place, or options of the manifold instead."""
    for name in public(module):
        method = getattr(kind, RENAMED.get(name, name) or "c")
        if name in RENAMED or name in OWN:
            continue
        function = inspect.signature(getattr(module, name)).parameters
        expected = {
            key: (p.default, p.annotation)
            for key, p in function.items()
            if key not in ("c", "dtype")
        }
        found = {
            key: (p.default, p.annotation)
            for key, p in inspect.signature(method).parameters.items()
        }
        found.pop("keepdim", None)
        assert (
            list(found)[1:] == list(expected) and {key: found[key] for key in expected} == expected
        ), name


@each("name", sorted(set.intersection(*(methods(kind) for kind in KINDS))))
def test_arguments_have_the_same_names(name):
    """But for the origin's dimension, which a product knows; what is passed by name to one can be
    to all."""

    def names(kind):
        parameters = list(inspect.signature(getattr(kind, name)).parameters.values())
        return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]

    lists = {kind.__name__: names(kind) for kind in KINDS}
    first = lists.pop("Lorentz")
    for other, value in lists.items():
        assert value == first, (name, other)


class TestAliases:
    """Names under which an operation is found in either model."""

    def setup_method(self):
        torch.manual_seed(0)
        self.space, self.ball = Lorentz(0.7), PoincareBall(0.7)
        self.x, self.y = self.space.random(2, 4, 3)
        self.p, self.q = self.space.to_poincare(self.x), self.space.to_poincare(self.y)

    def same(self, on_the_hyperboloid, in_the_ball):
        torch.testing.assert_close(
            self.space.to_poincare(on_the_hyperboloid), in_the_ball, rtol=2e-5, atol=1e-6
        )
        torch.testing.assert_close(
            self.ball.to_lorentz(in_the_ball), on_the_hyperboloid, rtol=2e-5, atol=1e-5
        )

    @pytest.mark.parametrize(
        "manifold", [Lorentz(0.7), PoincareBall(0.7), Euclidean(), Product((Lorentz(1.0), 3))]
    )
    def test_they_are_one_operation(self, manifold):
        x, y = manifold.random(2, 4, 3)
        assert torch.equal(manifold.boost(x, y), manifold.mobius_add(x, y))
        assert torch.equal(manifold.unboost(x, y), manifold.mobius_sub(x, y))
        assert torch.equal(manifold.scalar_mul(0.3, x), manifold.mobius_scalar_mul(0.3, x))
        assert torch.equal(manifold.midpoint(x), manifold.centroid(x))
        if not isinstance(manifold, Product):
            matrix = torch.randn(2, 3)
            assert torch.equal(manifold.matvec(matrix, x), manifold.mobius_matvec(matrix, x))

    def test_the_models_agree(self):
        matrix, weights = torch.randn(3, 3), torch.rand(2, 4) + 0.1
        self.same(self.space.mobius_sub(self.x, self.y), self.ball.unboost(self.p, self.q))
        self.same(self.space.mobius_scalar_mul(-0.4, self.x), self.ball.scalar_mul(-0.4, self.p))
        self.same(self.space.mobius_matvec(matrix, self.x), self.ball.matvec(matrix, self.p))
        self.same(
            self.space.weighted_centroids(weights, self.x),
            self.ball.weighted_centroids(weights, self.p),
        )
        rotation = torch.linalg.qr(matrix)[0]
        self.same(self.space.rotate(self.x, rotation), self.ball.rotate(self.p, rotation))
        torch.testing.assert_close(
            self.space.sqdist(self.x, self.y), self.ball.sqdist(self.p, self.q)
        )
        assert self.space.max_distance() == self.ball.max_distance()

    def test_maps_between_the_models(self):
        assert torch.equal(self.p, maps.lorentz_to_poincare(self.x, 0.7))
        torch.testing.assert_close(self.space.from_poincare(self.p), self.x)
        torch.testing.assert_close(self.ball.to_klein(self.p), self.space.to_klein(self.x))
        torch.testing.assert_close(
            self.space.from_klein(self.space.to_klein(self.x)), self.x, rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(self.ball.from_klein(self.ball.to_klein(self.p)), self.p)

    @pytest.mark.parametrize("method", ["change_curvature", "scale_curvature"])
    def test_curvatures_change(self, method):
        new = getattr(self.space, method)(self.x, 2.0)
        assert torch.equal(new, getattr(lorentz, method)(self.x, 0.7, 2.0))
        Lorentz(2.0).check_point(new)
        ball = getattr(self.ball, method)(self.p, 2.0)
        torch.testing.assert_close(Lorentz(2.0).to_poincare(new), ball)
        # what comes near the boundary is projected, as everything else
        boundary = PoincareBall(0.01, eps=4e-3).change_curvature(torch.tensor([9.0, 0.0]), 10.0)
        assert boundary[0].item() * 10**0.5 == pytest.approx(1 - 4e-3, rel=1e-5)


def test_one_standard_deviation_for_all_factors():
    """Of every row, as a tensor."""
    manifold = Product((Lorentz(0.7), 2), (PoincareBall(0.5), 1))
    x, y = manifold.random(2, 4, 3)
    found = manifold.wrapped_normal_log_prob(x, y, torch.full((4, 1), 0.5))
    torch.testing.assert_close(found, manifold.wrapped_normal_log_prob(x, y, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: Lorentz(0.7, learnable=True),
        lambda: PoincareBall(0.7, learnable=True),
        Euclidean,
        lambda: Product((Lorentz(0.7), 2), (PoincareBall(0.5), 1)),
    ],
    ids=["lorentz", "ball", "euclidean", "product"],
)
def test_methods_compile_in_one_graph(make):
    manifold = make()
    x, y = manifold.random(2, 4, 3).detach()
    weights = torch.rand(2, 4) + 0.1
    calls = {
        "centroid": (x, weights[0]),
        "weighted_centroids": (weights, x),
        "mobius_sub": (x, y),
        "scalar_mul": (0.3, x),
        "geodesic_unit": (0.3, x, manifold.logmap(x, y).detach()),
        "wrapped_normal_log_prob": (x, y, 0.5),
        "rescale": (x, 2.0),
        "sqdist": (x, y),
    }
    for name, arguments in calls.items():
        torch._dynamo.reset()
        compiled = torch.compile(getattr(manifold, name), fullgraph=True, backend="eager")
        torch.testing.assert_close(
            compiled(*arguments), getattr(manifold, name)(*arguments), rtol=1e-4, atol=1e-5
        )


# --------------------------------------------------------------------------------------------------
# Products and flat space, by their definitions

FACTORS = ((Lorentz(1.5), 2), (PoincareBall(0.5), 3), (Euclidean(), 2))


def parts(product: Product, x: torch.Tensor):
    return [(manifold, part) for (manifold, _), part in zip(FACTORS, product.split(x))]


def test_products_do_everything_factor_by_factor():
    torch.manual_seed(0)
    product = Product(*FACTORS)
    x, y, z = product.random(3, 6, 7)
    weights = torch.rand(6) + 0.1

    def joined(name, *arguments):
        pieces = zip(*(parts(product, a) for a in arguments))
        return torch.cat([getattr(p[0][0], name)(*(part for _, part in p)) for p in pieces], -1)

    assert torch.equal(product.mobius_sub(x, y), joined("mobius_sub", x, y))
    for name, extra in (
        ("frechet_mean", (weights,)),
        ("midpoint", (weights,)),
        ("rescale", (3.0,)),
    ):
        expected = torch.cat([getattr(m, name)(part, *extra) for m, part in parts(product, x)], -1)
        assert torch.equal(getattr(product, name)(x, *extra), expected)
    many = torch.rand(2, 6) + 0.1
    expected = torch.cat([m.weighted_centroids(many, part) for m, part in parts(product, x)], -1)
    assert torch.equal(product.weighted_centroids(many, x), expected)
    torch.testing.assert_close(
        product.weighted_centroids(many.expand(4, 2, 6), x.expand(4, 6, -1))[3], expected
    )
    assert torch.equal(product.rescale(x.expand(4, 6, -1))[3], product.rescale(x))
    expected = torch.cat([m.scalar_mul(0.5, part) for m, part in parts(product, x)], -1)
    assert torch.equal(product.scalar_mul(0.5, x), expected)
    squares = [m.sqdist(a, b) for (m, a), (_, b) in zip(parts(product, x), parts(product, y))]
    torch.testing.assert_close(product.sqdist(x, y), sum(squares))
    u = product.logmap(x, z)
    torch.testing.assert_close(
        product.geodesic_unit(product.norm(x, u).unsqueeze(-1), x, u), z, rtol=1e-4, atol=1e-5
    )


def test_the_frechet_mean_of_a_product_minimises_its_squared_distances():
    torch.manual_seed(1)
    product = Product(*((m, n) for m, n in FACTORS))
    x = product.random(6, 7, dtype=torch.float64)
    u = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    mean = product.frechet_mean(x)
    moved = product.expmap(mean, product.transp0(mean, u))
    (gradient,) = torch.autograd.grad((product.dist(moved, x) ** 2).sum(), u)
    assert gradient.abs().max() < 1e-9


@each("std", [0.5, torch.full((1,), 0.5), torch.linspace(0.2, 0.8, 7)])
def test_normal_distributions_of_products(std):
    product = Product(*FACTORS)
    mean = product.random(7, generator=torch.Generator().manual_seed(1), std=0.3)
    samples = product.wrapped_normal(mean, std, (2000,), torch.Generator().manual_seed(0))
    product.check_point(samples)
    vectors = [
        m.to_tangent0(m.unboost(a, b))
        for (m, a), (_, b) in zip(parts(product, mean), parts(product, samples))
    ]
    spread = torch.cat(vectors, -1).std(0)
    torch.testing.assert_close(spread, torch.as_tensor(std).expand(7), rtol=0.08, atol=0)
    stds = std.split((2, 3, 2)) if isinstance(std, torch.Tensor) and len(std) == 7 else [std] * 3
    pieces = zip(parts(product, samples), parts(product, mean), stds)
    expected = sum(m.wrapped_normal_log_prob(a, b, s) for (m, a), (_, b), s in pieces)
    torch.testing.assert_close(product.wrapped_normal_log_prob(samples, mean, std), expected)


def test_hyperplanes_of_flat_space_have_an_offset_each():
    with pytest.raises(
        ValueError, match="the last dimension of a must be 2, the number of hyperplanes; got 3"
    ):
        Euclidean().hyperplane_logits(torch.zeros(5, 3), torch.ones(2, 3), torch.zeros(3))


@pytest.mark.parametrize("length", [1e-3, 3.0])
def test_angles_of_flat_space(length):
    """At the end of a vector along the first axis, towards points around it."""
    angle = torch.linspace(0, 3.1, 9, dtype=torch.float64)
    x = torch.tensor([length, 0.0], dtype=torch.float64)
    y = x + 0.5 * torch.stack([angle.cos(), angle.sin()], -1)
    torch.testing.assert_close(Euclidean().exterior_angle(x.expand_as(y), y), angle)


def test_flat_space_is_the_limit_of_small_curvature():
    """Every operation that all manifolds have, at c = 1e-10 in float64, where tangent vectors are
    differences."""
    torch.manual_seed(0)
    flat, curved = Euclidean(), Lorentz(1e-10)
    x, y, u = torch.randn(3, 5, 3, dtype=torch.float64)
    p, q = curved.from_space(x), curved.from_space(y)
    close = dict(rtol=1e-6, atol=1e-6)
    matrix, weights, a = (
        torch.randn(2, 3).double(),
        torch.rand(5).double() + 0.1,
        torch.randn(2).double(),
    )
    heading = nn.functional.normalize(u, dim=-1)
    at = curved.transp0(p, u)
    numbers = {
        "dist": (x, y), "sqdist": (x, y), "dist0": (x,), "cdist": (x, y), "exterior_angle": (x, y),
    }  # fmt: skip
    for name, arguments in numbers.items():
        given = [p if a is x else q for a in arguments]
        torch.testing.assert_close(
            getattr(flat, name)(*arguments), getattr(curved, name)(*given), **close
        )
    wide = dict(rtol=1e-4, atol=1e-4)  # horospheres are curved by sqrt(c)
    torch.testing.assert_close(flat.busemann(x, heading), curved.busemann(p, heading), **wide)
    torch.testing.assert_close(
        flat.horosphere_dist(x, heading, 0.2), curved.horosphere_dist(p, heading, 0.2), **wide
    )
    torch.testing.assert_close(flat.dist2plane(x, u, 0.3), curved.dist2plane(p, u, 0.3), **close)
    assert (flat.dist2plane(x, u, 0.3, signed=False) >= 0).all()
    normals = torch.randn(2, 3).double()
    torch.testing.assert_close(
        flat.hyperplane_logits(x, normals, a), curved.hyperplane_logits(p, normals, a), **close
    )
    points = {
        "mobius_add": ((x, y), (p, q)),
        "mobius_sub": ((x, y), (p, q)),
        "geodesic": ((0.3, x, y), (0.3, p, q)),
        "geodesic_unit": ((0.3, x, u), (0.3, p, at)),
        "expmap": ((x, u), (p, at)),
        "centroid": ((x, weights), (p, weights)),
        "frechet_mean": ((x, weights), (p, weights)),
        "weighted_centroids": ((weights[None], x), (weights[None], p)),
        "scalar_mul": ((0.3, x), (0.3, p)),
        "matvec": ((matrix, x), (matrix, p)),
        "rotate": ((x, matrix), (p, matrix)),
        "rescale": ((x, 2.0), (p, 2.0)),
        "concat": (([x, y],), ([p, q],)),
    }
    for name, (arguments, given) in points.items():
        torch.testing.assert_close(
            getattr(flat, name)(*arguments), getattr(curved, name)(*given)[..., 1:], **close
        )
    for got, expected in zip(flat.split(x, [1, 2]), curved.split(p, [1, 2])):
        torch.testing.assert_close(got, expected[..., 1:], **close)
    std = torch.tensor([0.3, 0.5, 1.0], dtype=torch.float64)
    torch.testing.assert_close(
        flat.wrapped_normal_log_prob(x, y, std),
        curved.wrapped_normal_log_prob(p, q, std),
        rtol=1e-5,
        atol=1e-5,
    )
    samples = [
        m.wrapped_normal(at, std, (4,), torch.Generator().manual_seed(2))
        for m, at in ((flat, x), (curved, p))
    ]
    torch.testing.assert_close(samples[0], samples[1][..., 1:], **close)
    assert torch.equal(
        flat.centroid(x, torch.zeros(5, dtype=torch.float64)), torch.zeros(3, dtype=torch.float64)
    )
    assert isinstance(flat, Manifold) and flat.rescale(x) is x


@each("manifold", [Lorentz(0.7), PoincareBall(0.7), Euclidean()])
def test_no_rows_have_no_midpoints(manifold):
    points = manifold.expmap0(torch.randn(0, 5, 3, dtype=torch.float64))
    found = manifold.weighted_midpoint(points, reducedim=[1])
    assert found.shape == (0, points.shape[-1])
