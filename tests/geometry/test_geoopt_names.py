"""Methods under geoopt's names, against geoopt's own in float64."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import each

from hypvision.geometry import Euclidean, Lorentz, PoincareBall, Product

geoopt = pytest.importorskip("geoopt")
C = 0.7
BALLS = PoincareBall(C), geoopt.PoincareBallExact(c=C).double()
SPACES = Lorentz(C), geoopt.Lorentz(k=1 / C).double()
KINDS = (Lorentz(C), PoincareBall(C), Euclidean(), Product((Lorentz(C), 2), (PoincareBall(C), 1)))


def draw(manifold, *shape):
    """Points ``x``, ``y`` within a radius of about 2, where geoopt keeps its digits; tangent
    vectors at ``x``."""
    generator = torch.Generator().manual_seed(0)
    a, b, s, r = (
        torch.randn(*shape, 3, dtype=torch.float64, generator=generator) for _ in range(4)
    )
    x, y = manifold.from_tangent0(a / 2), manifold.from_tangent0(b / 2)
    return x, y, manifold.transp0(x, s), manifold.transp0(x, r)


CALLS = {
    "dist2": lambda m, x, y, u, v: m.dist2(x, y),
    "dist2 kept": lambda m, x, y, u, v: m.dist2(x, y, keepdim=True),
    "transp_follow_expmap": lambda m, x, y, u, v: m.transp_follow_expmap(x, u, v),
    "lambda_x": lambda m, x, y, u, v: m.lambda_x(x),
    "lambda_x kept": lambda m, x, y, u, v: m.lambda_x(x, keepdim=True),
    "mobius_coadd": lambda m, x, y, u, v: m.mobius_coadd(x, y),
    "mobius_cosub": lambda m, x, y, u, v: m.mobius_cosub(x, y),
    "mobius_fn_apply": lambda m, x, y, u, v: m.mobius_fn_apply(torch.nn.functional.softplus, x),
    "mobius_fn_apply with arguments": lambda m, x, y, u, v: m.mobius_fn_apply(
        torch.add, x, y[0], alpha=0.1
    ),
    "inner of one": lambda m, x, y, u, v: m.inner(x, u, keepdim=True),
    "mobius_pointwise_mul": lambda m, x, y, u, v: m.mobius_pointwise_mul(y[0] + 2, x),
    "midpoint of all": lambda m, x, y, u, v: m.weighted_midpoint(x),
    "midpoint": lambda m, x, y, u, v: m.weighted_midpoint(x, u.square().sum(-1), reducedim=[0]),
    "linear combination": lambda m, x, y, u, v: m.weighted_midpoint(
        x, u.square().sum(-1) / 40, reducedim=[-2], lincomb=True
    ),
}


@each("name", CALLS)
def test_values_are_those_of_geoopt(name):
    shared = ("dist2", "transp_follow_expmap", "inner of one")
    for ours, theirs in (BALLS, SPACES) if name in shared else (BALLS,):
        given = draw(ours, 4, 6)
        torch.testing.assert_close(
            CALLS[name](ours, *given), CALLS[name](theirs, *given), rtol=1e-5, atol=1e-7
        )


@each("manifold", KINDS)
def test_numbers_keep_the_last_dimension(manifold):
    x, y, u, v = draw(manifold, 5)
    for method, given in (
        ("dist", (x, y)),
        ("sqdist", (x, y)),
        ("dist0", (x,)),
        ("inner", (x, u, v)),
        ("norm", (x, u)),
    ):
        call = getattr(manifold, method)
        assert torch.equal(call(*given, keepdim=True), call(*given).unsqueeze(-1)), method
    torch.testing.assert_close(
        manifold.transp_follow_retr(x, u, v), manifold.transp(x, manifold.retr(x, u), v)
    )


@each("manifold", KINDS)
def test_coaddition_commutes_and_is_undone_by_an_addition(manifold):
    x, y, *_ = draw(manifold, 5)
    torch.testing.assert_close(
        manifold.mobius_coadd(x, y), manifold.mobius_coadd(y, x), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(
        manifold.mobius_add(manifold.mobius_cosub(x, y), y), x, rtol=1e-6, atol=1e-6
    )


def test_curvatures_as_geoopt_names_them():
    assert Lorentz(k=4.0).c == 1 / geoopt.Lorentz(k=4.0).k == 0.25
    assert PoincareBall(k=-0.5).c == 0.5 and PoincareBall(0.5).k == pytest.approx(
        geoopt.PoincareBall(c=0.5).k.item()
    )
    assert Lorentz(0.25).k == 4.0
    for kind, k, word in (
        (Lorentz, -1.0, "positive"),
        (Lorentz, 0.0, "positive"),
        (PoincareBall, 1.0, "negative"),
    ):
        with pytest.raises(ValueError, match=f"^k, the .* must be {word}, got {k}"):
            kind(k=k)
    for kind in (Lorentz, PoincareBall):
        with pytest.raises(ValueError, match="both given"):
            kind(1.0, k=-1.0 if kind is PoincareBall else 1.0)


def test_normal_points_have_the_length_std():
    """Of their tangent vectors, on average; on the ball as geoopt's, whose hyperboloid draws
    others."""
    torch.manual_seed(0)
    ball, theirs = BALLS
    for manifold in (ball, SPACES[0]):
        length = (
            manifold.logmap0(manifold.random_normal(20000, 3, std=0.5, dtype=torch.float64))
            .square()
            .sum(-1)
        )
        assert length.mean().sqrt().item() == pytest.approx(0.5, rel=0.02)
    length = ball.logmap0(theirs.random_normal(20000, 3, std=0.5).detach()).square().sum(-1)
    assert length.mean().sqrt().item() == pytest.approx(0.5, rel=0.02)
    torch.manual_seed(0)
    moved = ball.logmap0(ball.random_normal(2000, 3, mean=torch.tensor([1.0, 0.0, 0.0]), std=0.01))
    torch.testing.assert_close(moved.mean(0), torch.tensor([1.0, 0.0, 0.0]), rtol=0, atol=1e-3)


@each("manifold", KINDS)
def test_points_and_vectors_are_checked(manifold):
    x, _, u, _ = draw(manifold, 5)
    manifold.assert_check_point_on_manifold(x)
    assert manifold.check_point_on_manifold(x) and manifold.check_vector_on_tangent(x, u)
    assert not manifold.check_point_on_manifold(torch.full_like(x, torch.nan))
    assert not manifold.check_vector_on_tangent(x, torch.full_like(u, torch.nan))
    with pytest.raises(ValueError, match="x "):
        manifold.assert_check_point_on_manifold(torch.full_like(x, torch.nan))
    manifold.assert_check_vector_on_tangent(x, u)
    with pytest.raises(ValueError, match="u is not a tangent vector at x"):
        manifold.assert_check_vector_on_tangent(x, torch.full_like(u, torch.nan))
    if isinstance(manifold, Lorentz):
        assert not manifold.check_vector_on_tangent(x, u + x)


@pytest.mark.parametrize(("ours", "theirs"), [BALLS, SPACES], ids=lambda manifold: manifold.name)
def test_origins_are_those_of_geoopt(ours, theirs):
    """Whose sizes count the time of the hyperboloid."""
    found = ours.origin(5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        found,
        theirs.origin(5, 3 + ours.extra, dtype=torch.float64).detach().as_subclass(torch.Tensor),
    )


@each("manifold", [Lorentz(1.0), PoincareBall(1.0), Euclidean()])
def test_sizes_are_numbers_or_one_tuple(manifold):
    for make in (manifold.origin, manifold.random, manifold.random_normal):
        assert make((5, 2)).shape == make(5, 2).shape == (5, 2 + manifold.extra)
        with pytest.raises(ValueError, match="must end in the dimension"):
            make()
    product = Product((manifold, 2), (Euclidean(), 3))
    assert product.origin((4, 5)).shape == product.origin(4, 5).shape


def test_checks_of_no_vectors_and_of_integers():
    none = torch.zeros(0, 4)
    assert Lorentz(1.0).check_vector_on_tangent(none, none)
    with pytest.raises(TypeError, match="floating point numbers, got torch.int64"):
        PoincareBall(1.0).check_point_on_manifold(torch.ones(2, 3, dtype=torch.long))
