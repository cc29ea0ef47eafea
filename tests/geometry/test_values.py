"""Operations that no difference quotient in mpmath checks, against their definitions: textbook
formulas in float64, written here, and numerical integration.

Points lie where the textbook's cancellations do no harm.
"""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from helpers.cases import each
from torch import Tensor

from hypvision.geometry import lorentz, maps, poincare

c_values = each("c", [0.3, 1.0, 4.0])


@pytest.fixture(autouse=True)
def doubles():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# --------------------------------------------------------------------------------------------------
# The textbook


def lift(space: Tensor, c: float) -> Tensor:
    return torch.cat([torch.sqrt(1 / c + space.square().sum(-1, keepdim=True)), space], -1)


def minkowski(x: Tensor, y: Tensor) -> Tensor:
    return (x[..., 1:] * y[..., 1:]).sum(-1, keepdim=True) - x[..., :1] * y[..., :1]


def distance(x: Tensor, y: Tensor, c: float) -> Tensor:
    return torch.acosh((-c * minkowski(x, y)).clamp(min=1)).squeeze(-1) / c**0.5


def exp0(u: Tensor, c: float) -> Tensor:
    z = c**0.5 * u.norm(dim=-1, keepdim=True)
    return torch.cat([torch.cosh(z) / c**0.5, torch.sinh(z) / z * u], -1)


def log0(x: Tensor, c: float) -> Tensor:
    heading = x[..., 1:] / x[..., 1:].norm(dim=-1, keepdim=True)
    return heading * torch.acosh(c**0.5 * x[..., :1]) / c**0.5


def wrapped(v: Tensor, mean: Tensor, c: float) -> Tensor:
    """The point that the vector ``v`` at the origin gives: transported to ``mean``, then the
    exponential map."""
    tangent = torch.cat([torch.zeros_like(v[..., :1]), v], -1)
    origin = lift(torch.zeros_like(v), c)
    factor = c * minkowski(mean, tangent) / (1 - c * minkowski(origin, mean))
    tangent = tangent + factor * (origin + mean)
    z = torch.sqrt(c * minkowski(tangent, tangent))
    return torch.cosh(z) * mean + torch.sinh(z) / z * tangent


def to_ball(x: Tensor, c: float) -> Tensor:
    return x[..., 1:] / (1 + c**0.5 * x[..., :1])


# --------------------------------------------------------------------------------------------------
# The wrapped normal distribution


@pytest.mark.parametrize("std", [0.7, [0.3, 0.6, 0.9]], ids=["number", "vector"])
@c_values
@pytest.mark.parametrize("model", [lorentz, poincare])
def test_densities_are_a_change_of_variables(model, c, std):
    """The normal density over the Jacobian of the map, in the volume ``dx_s / (sqrt(c) x_t)`` of
    the hyperboloid."""
    mean = exp0(torch.tensor([0.6, -0.2, 0.4]), c)
    std = torch.tensor(std) if isinstance(std, list) else std
    for v in 0.8 * torch.randn(6, 3):
        x = wrapped(v, mean, c)
        jacobian = torch.func.jacrev(lambda v: wrapped(v, mean, c)[1:])(v)
        normal = torch.distributions.Normal(0.0, torch.as_tensor(std).expand(3)).log_prob(v).sum()
        expected = normal - torch.linalg.slogdet(jacobian)[1] + torch.log(c**0.5 * x[0])
        points = (x, mean) if model is lorentz else (to_ball(x, c), to_ball(mean, c))
        got = model.wrapped_normal_log_prob(*points, std, c)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", [lorentz, poincare])
def test_samples_are_those_vectors_wrapped(model):
    c, std = 0.7, torch.tensor([0.2, 0.5, 1.0])
    mean = exp0(torch.tensor([[0.6, -0.2, 0.4], [0.0, 0.9, -0.3]]), c)
    noise = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(3))
    expected = wrapped(noise * std, mean.expand(5, 2, 4), c)
    generator = torch.Generator().manual_seed(3)
    got = model.wrapped_normal(
        mean if model is lorentz else to_ball(mean, c), std, c, (5,), generator
    )
    torch.testing.assert_close(
        got, expected if model is lorentz else to_ball(expected, c), rtol=1e-10, atol=1e-10
    )


# --------------------------------------------------------------------------------------------------
# Concatenation and splits


def exact_beta_concat(parts: list[list[float]], c: float) -> list[float]:
    """Shimizu et al., section 3.2, with mpmath's beta function."""
    n, tangent = sum(map(len, parts)), []
    for part in parts:
        norm = mpmath.sqrt(sum(mpmath.mpf(v) ** 2 for v in part))
        root = mpmath.sqrt(c)
        stretch = mpmath.beta(n / 2, 0.5) / mpmath.beta(len(part) / 2, 0.5)
        tangent += [v * mpmath.atanh(root * norm) / (root * norm) * stretch for v in part]
    norm = mpmath.sqrt(sum(v**2 for v in tangent))
    return [
        float(v * mpmath.tanh(mpmath.sqrt(c) * norm) / (mpmath.sqrt(c) * norm)) for v in tangent
    ]


@c_values
def test_beta_concatenation_and_its_inverse(c):
    parts = [to_ball(exp0(torch.randn(4, n) / n**0.5, c), c) for n in (1, 2, 5)]
    got = poincare.beta_concat(parts, c)
    expected = [exact_beta_concat([part[i].tolist() for part in parts], c) for i in range(4)]
    torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-12, atol=1e-13)
    for part, back in zip(parts, poincare.beta_split(got, [1, 2, 5], c)):
        torch.testing.assert_close(back, part, rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match="sizes must add up to the dimension 8"):
        poincare.beta_split(got, [1, 2, 4], c)


@c_values
def test_concatenation_adds_the_squares_of_times(c):
    """Qu and Zou: ``t^2 = sum t_i^2 - (N - 1) / c``."""
    points = [exp0(torch.randn(3, n), c) for n in (1, 2, 4)]
    got = lorentz.concat(points, c)
    time = torch.sqrt(sum(p[:, 0] ** 2 for p in points) - 2 / c)
    torch.testing.assert_close(got[:, 0], time, rtol=1e-12, atol=1e-12)
    assert torch.equal(got[:, 1:], torch.cat([p[:, 1:] for p in points], -1))
    for point, back in zip(points, lorentz.split(got, [1, 2, 4], c)):
        torch.testing.assert_close(back, point, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="sizes must add up to the space dimension 7"):
        lorentz.split(got, [3, 3], c)


# --------------------------------------------------------------------------------------------------
# Means, products, rescaling


@c_values
def test_weighted_centroids(c):
    """The weighted sums, brought back to the hyperboloid: minimisers of the sum of squared
    chords."""
    x, weights = exp0(torch.randn(2, 5, 3), c), torch.rand(2, 4, 5) + 0.05
    got = lorentz.weighted_centroids(weights, x, c)
    mean = weights @ x
    torch.testing.assert_close(
        got, mean / torch.sqrt(-c * minkowski(mean, mean)), rtol=1e-12, atol=1e-12
    )
    for row in range(4):
        torch.testing.assert_close(
            got[:, row], lorentz.centroid(x, weights[:, row], c), rtol=1e-11, atol=1e-11
        )
    space = got[0, 0, 1:].clone().requires_grad_()
    chords = -2 / c - 2 * minkowski(lift(space, c), x[0]).squeeze(-1)
    (gradient,) = torch.autograd.grad((weights[0, 0] * chords).sum(), space)
    assert gradient.abs().max() < 1e-12


@c_values
def test_frechet_means_minimise_squared_distances(c):
    x, weights = exp0(torch.randn(6, 3), c), torch.rand(6) + 0.05
    mean = lorentz.frechet_mean(x, weights, c)
    space = mean[1:].clone().requires_grad_()
    (gradient,) = torch.autograd.grad((weights * distance(lift(space, c), x, c) ** 2).sum(), space)
    assert gradient.abs().max() < 1e-10
    ball = poincare.frechet_mean(to_ball(x, c), weights, c)
    torch.testing.assert_close(ball, to_ball(mean, c), rtol=1e-10, atol=1e-11)


@c_values
def test_frechet_means_of_far_sets(c):
    """At the mean the logarithms of the points add up to 0, by the textbook's formulas in 60
    digits."""
    length = 30 * torch.rand(8, 6, 1) / c**0.5
    x = exp0(length * torch.nn.functional.normalize(torch.randn(8, 6, 3), dim=-1), c)
    with mpmath.workdps(60):

        def point(row):
            space = [mpmath.mpf(value) for value in row.tolist()]
            return [mpmath.sqrt(1 / mpmath.mpf(c) + sum(s * s for s in space)), *space]

        def product(a, b):
            return sum(s * t for s, t in zip(a[1:], b[1:])) - a[0] * b[0]

        for mean, points in zip(lorentz.frechet_mean(x, None, c)[:, 1:], x[..., 1:]):
            mean, total = point(mean), [mpmath.mpf(0)] * 4
            for row in map(point, points):
                alpha = -c * product(mean, row)
                scale = mpmath.acosh(alpha) / mpmath.sqrt(alpha**2 - 1)
                total = [t + scale * (r - alpha * m) for t, r, m in zip(total, row, mean)]
            assert mpmath.sqrt(c * product(total, total)) < 1e-6


@c_values
def test_matrices_act_on_the_tangent_space_of_the_origin(c):
    x, matrix = exp0(torch.randn(5, 3), c), torch.randn(2, 3)
    expected = exp0(log0(x, c) @ matrix.T, c)
    torch.testing.assert_close(lorentz.matvec(matrix, x, c), expected, rtol=1e-11, atol=1e-11)
    # Ganea et al., eq. 27
    z = to_ball(x, c)
    size, moved = z.norm(dim=-1, keepdim=True), z @ matrix.T
    length = moved.norm(dim=-1, keepdim=True)
    expected = torch.tanh(length / size * torch.atanh(c**0.5 * size)) * moved / length / c**0.5
    torch.testing.assert_close(
        poincare.mobius_matvec(matrix, z, c), expected, rtol=1e-11, atol=1e-11
    )


@c_values
def test_rotations_of_the_space_part(c):
    x, matrix = exp0(torch.randn(5, 3), c), torch.linalg.qr(torch.randn(3, 3))[0]
    got = lorentz.rotate(x, matrix, c)
    torch.testing.assert_close(
        got, torch.cat([x[:, :1], x[:, 1:] @ matrix.T], -1), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(("c_old", "c_new"), [(0.5, 2.0), (3.0, 0.2)])
def test_curvatures_change_by_scaling_or_along_the_tangent_space(c_old, c_new):
    x, y = exp0(torch.randn(5, 3), c_old), exp0(torch.randn(5, 3), c_old)
    stretch = math.sqrt(c_old / c_new)
    scaled = lorentz.scale_curvature(x, c_old, c_new)
    torch.testing.assert_close(scaled, x * stretch, rtol=1e-12, atol=1e-12)  # time too
    far = distance(scaled, lorentz.scale_curvature(y, c_old, c_new), c_new)
    torch.testing.assert_close(far, stretch * distance(x, y, c_old), rtol=1e-9, atol=1e-9)
    ball = poincare.scale_curvature(to_ball(x, c_old), c_old, c_new)
    torch.testing.assert_close(ball, to_ball(scaled, c_new), rtol=1e-12, atol=1e-12)
    kept = lorentz.change_curvature(x, c_old, c_new)
    torch.testing.assert_close(kept, exp0(log0(x, c_old), c_new), rtol=1e-11, atol=1e-11)
    ball = poincare.change_curvature(to_ball(x, c_old), c_old, c_new)
    torch.testing.assert_close(ball, to_ball(kept, c_new), rtol=1e-11, atol=1e-11)


@c_values
def test_maximum_distance_rescaling(c):
    """Bdeir et al.: the radius becomes ``D tanh(atanh(0.99) r / (2 D))``."""
    limit = lorentz.max_distance(c)
    u = torch.randn(6, 3)
    radius = u.norm(dim=-1, keepdim=True)
    expected = u / radius * limit * torch.tanh(math.atanh(0.99) * radius / (2 * limit))
    torch.testing.assert_close(
        lorentz.rescale(exp0(u, c), c), exp0(expected, c), rtol=1e-10, atol=1e-11
    )
    torch.testing.assert_close(lorentz.rescale_tangent(u, limit), expected, rtol=1e-12, atol=1e-12)
    ball = poincare.rescale(to_ball(exp0(u, c), c), c)
    torch.testing.assert_close(ball, to_ball(exp0(expected, c), c), rtol=1e-10, atol=1e-11)


EVERY_CURVATURE = [1e-6, 1e-5, 1e-4, 4e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1e3]


def test_the_default_limit_of_rescaling():
    """As published from ``c = 0.01`` on; below, where that falls to 0, the flatter the space the
    larger."""
    limits = [lorentz.max_distance(c) for c in EVERY_CURVATURE]
    assert limits == sorted(limits, reverse=True)
    for c, limit in zip(EVERY_CURVATURE, limits):
        assert limit == pytest.approx(
            math.acosh(2000 * c) / c**0.5 if c >= 0.01 else math.acosh(20) / c**0.5, rel=1e-12
        )
        assert lorentz.max_distance(torch.tensor(c)).item() == pytest.approx(limit, rel=1e-12)
        point = lorentz.expmap0(torch.tensor([limit]), c)
        if c >= 0.01:
            assert point[0].item() == pytest.approx(2000 * c**0.5, rel=1e-9)  # its time
        assert lorentz.max_distance(c, largest=1e5) == pytest.approx(
            math.acosh(max(1e5 * c, 20)) / c**0.5, rel=1e-12
        )


@each("c", EVERY_CURVATURE)
@each("learned", [False, True])
def test_rescaling_keeps_points_apart_at_every_curvature(c, learned):
    """In float32, with the default limit: radii grow with the given ones, below the limit, and have
    gradients."""
    limit = lorentz.max_distance(c)
    radii = torch.tensor([0.0, 1e-3, 0.1, 0.3, 0.8]) * limit
    u = (radii[:, None] * torch.tensor([0.6, -0.8])).requires_grad_()
    given = torch.tensor(c, requires_grad=True) if learned else c
    for rescaled in (
        lorentz.dist0(lorentz.rescale(lorentz.expmap0(u, given), given), given),
        poincare.dist0(poincare.rescale(poincare.expmap0(u / 2, given), given), given),
    ):
        expected = limit * torch.tanh(math.atanh(0.99) * radii / (2 * limit))
        torch.testing.assert_close(rescaled, expected, rtol=1e-5, atol=1e-6)
        for gradient in torch.autograd.grad(rescaled.sum(), [u, given] if learned else [u]):
            assert gradient.isfinite().all() and gradient.any()


# --------------------------------------------------------------------------------------------------
# Cones, horospheres, other models


@c_values
@pytest.mark.parametrize(("min_radius", "scale"), [(0.1, 1.0), (0.2, 0.7)])
def test_entailment_losses(c, min_radius, scale):
    """MERU's formulas (Desai et al., eqs. 5 to 7), whose cancellations do no harm here."""
    x, y = exp0(torch.randn(40, 3), c), exp0(1.5 * torch.randn(40, 3), c)
    y[:10] = exp0(log0(x[:10], c) * 1.5 + 1e-6 * torch.randn(10, 3), c)  # within the cones
    size = x[:, 1:].norm(dim=-1)
    aperture = torch.asin((2 * min_radius / (c**0.5 * size)).clamp(max=1))
    product = c * minkowski(x, y).squeeze(-1)
    angle = torch.acos((y[:, 0] + x[:, 0] * product) / (size * torch.sqrt(product**2 - 1)))
    expected = (angle - scale * aperture).clamp(min=0)
    assert (expected[:10] == 0).all() and (expected > 0.1).any()
    got = lorentz.entailment_loss(x, y, c, min_radius, scale)
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)
    ball = poincare.entailment_loss(to_ball(x, c), to_ball(y, c), c, min_radius, scale)
    torch.testing.assert_close(ball, expected, rtol=1e-7, atol=1e-9)


@c_values
def test_horospheres(c):
    """Along the geodesic to an ideal point the Busemann function falls by the length of the way."""
    p = torch.nn.functional.normalize(torch.randn(3), dim=0)
    x = exp0(torch.randn(5, 3), c)
    ahead = torch.cat([torch.ones(1), p])  # the light-like vector
    direction = -ahead / (c * minkowski(x, ahead)) - x * 1.0
    unit = direction / torch.sqrt(minkowski(direction, direction))
    way = 0.8
    there = math.cosh(c**0.5 * way) * x + math.sinh(c**0.5 * way) / c**0.5 * unit
    before = lorentz.busemann(x, p, c)
    torch.testing.assert_close(lorentz.busemann(there, p, c), before - way, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(lorentz.horosphere_dist(there, p, before, c), torch.full((5,), way))
    torch.testing.assert_close(
        poincare.horosphere_dist(to_ball(there, c), p, before, c), torch.full((5,), way)
    )
    torch.testing.assert_close(lorentz.busemann(lift(torch.zeros(3), c), p, c), torch.zeros(()))


@c_values
def test_klein_coordinates_make_geodesics_straight(c):
    x, y = exp0(torch.randn(2, 4, 3), c)
    middle = x + y
    middle = middle / torch.sqrt(-c * minkowski(middle, middle))
    a, b, m = (maps.lorentz_to_klein(p, c) for p in (x, y, middle))
    cosine = torch.nn.functional.cosine_similarity(m - a, b - m, dim=-1)
    torch.testing.assert_close(cosine, torch.ones(4), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(a, x[:, 1:] / (c**0.5 * x[:, :1]), rtol=1e-12, atol=1e-12)
