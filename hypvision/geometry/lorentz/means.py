"""Means of points: centroids, one by one or by one matrix product, and the Frechet mean."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..border import STEEPEST, one_each, positive, some_points, stable
from ..numerics import (
    bounded,
    clamped,
    divided,
    heading,
    length,
    narrow,
    readable,
    safe_sqrt,
    sinhc_sqrt,
    square_norm,
    tiny,
    widen,
    with_length,
    with_value,
)
from .isometries import boost, unboost
from .points import _from_space, expmap0, logmap0

# the greatest length of a Newton step, times sqrt(c): 1 converges more slowly, 4 diverges for
# distant points
_STEP = 2.0


@stable("x", timeless=("x",), sets=("x",))
def centroid(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0) -> Tensor:
    r"""Return the weighted Lorentz centroid: the point with the least weighted sum of squared
    Lorentz distances.

    It is also known as Einstein midpoint. With :math:`m = \sum_i w_i x_i` it is
    :math:`m / (\sqrt c \sqrt{-\langle m, m\rangle_L})` (Law et al., ICML 2019).

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Their scale does not matter.
            Where all are 0 the result is the origin.
        c: curvature.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there are no points, or not one weight for each.
    """
    shares = _shares("centroid", x, weights)
    radius = c**-0.5
    shares = shares.unsqueeze(-1)
    points = _from_space(x, radius)
    mean = (shares * points).sum(-2)
    space, size = with_length(mean[..., 1:])
    low = with_value(mean[..., :1] - size, _least_time(points, shares, space, radius))
    square = low * (mean[..., :1] + size) * c
    # Rounding may bring the product below 1, its least value for a mean of points.
    return _from_space(divided(space, torch.sqrt(square.clamp_min(1.0))), radius)


@torch.no_grad()
def _least_time(points: Tensor, shares: Tensor, space: Tensor, radius: Curvature) -> Tensor:
    r"""Return the mean time of points ``(..., N, n + 1)`` less the length of their mean space part
    ``space``, ``(..., 1)``, without the cancellation of that difference.

    It is the mean of :math:`t - s \cdot e` for the direction :math:`e` of the mean, and both parts
    of :math:`(t - |s|) + (|s| - s \cdot e)` are computed from positive terms.
    """
    ray, least = heading(space.unsqueeze(-2))
    size = length(points[..., 1:])
    side = square_norm(points[..., 1:] - size * ray) / clamped(2 * size, tiny(size))
    gap = radius * radius / (points[..., :1] + size)
    parts = torch.where(least == 0, points[..., :1], gap + side)
    return (shares * parts).sum(-2)


def _shares(function: str, x: Tensor, weights: Tensor | None) -> Tensor:
    """Return the weights ``(..., N)`` of points, divided by their sum (equal ones if ``weights`` is
    None); weights that are all 0 stay 0."""
    some_points(function, x)
    if weights is None:
        return x.new_full(x.shape[:-1], 1 / x.shape[-2])
    one_each(function, "weights", weights, x.shape[-2])
    return normalised(weights)


def normalised(weights: Tensor) -> Tensor:
    """Return the weights divided by their sum along the last dimension; weights that are all 0 stay
    0."""
    total = weights.sum(-1, keepdim=True)
    return weights / (total + (total == 0))


@stable("x", timeless=("x",), sets=("x",), wide=False)
def weighted_centroids(weights: Tensor, x: Tensor, c: Curvature) -> Tensor:
    """Return many centroids of the same points by one matrix product, as attention needs them.

    The product of float32 points is computed in float32, which is exact up to ``sqrt(c) * r`` of
    about 7, where :func:`centroid` is exact up to 16.

    Args:
        weights: ``(..., M, N)``, at least 0; the scale of a row does not matter. Where a row is all
            0 the result is the origin.
        x: points ``(..., N, n + 1)``.
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Points ``(..., M, n + 1)``.

    Raises:
        ValueError: there are no points, or a row of weights does not have one for each.
    """
    some_points("weighted_centroids", x)
    one_each("weighted_centroids", "weights", weights, x.shape[-2])
    c = widen(c, STEEPEST)
    radius = c**-0.5
    points = bounded(_from_space(widen(x), radius), x.dtype)
    mean = widen(torch.matmul(narrow(normalised(widen(weights)), x.dtype), points))
    return narrow(_from_space(centroid_space(mean[..., :1], mean[..., 1:], c), radius), x.dtype)


def centroid_space(time: Tensor, space: Tensor, c: Curvature, dim: int = -1) -> Tensor:
    """Return the space parts, along ``dim``, of the centroids whose points have the mean ``time``
    and the mean space part ``space``."""
    length = safe_sqrt((space * space).sum(dim, keepdim=True))
    # The product loses fewer digits of far points than the difference of squares. Rounding may
    # bring it below 1, its least value for a mean of points.
    return space / torch.sqrt(((time - length) * (time + length) * c).clamp_min(1.0))


@stable("x", sets=("x",))
def frechet_mean(
    x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0, steps: int = 30
) -> Tensor:
    """Return the weighted Frechet mean: the point with the least weighted sum of squared geodesic
    distances.

    It is found by Newton's method from the centroid, with the Hessian in closed form and steps no
    longer than 2 radii of curvature: 3 steps for points at a distance of 1, about 10 at 30. Only
    the last two steps are differentiated, which gives the exact (implicit) first and second
    derivatives.

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Where all are 0 the result is
            the origin.
        c: curvature.
        steps: the greatest number of steps; on a CPU steps end early once they no longer move the
            mean. On a GPU, while compiling and under ``vmap``, where looking at the numbers would
            cost too much, it is at most 8, which is enough up to a distance of 15.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there are no points, or not one weight for each, or ``steps`` is not positive.
    """
    positive("frechet_mean", "steps", steps)
    shares = _shares("frechet_mean", x, weights)
    look = readable(x) and not torch._C._are_functorch_transforms_active()
    with torch.no_grad():
        mean = centroid(x, shares, c)
        for _ in range((steps if look else min(steps, 8)) - 1):
            step = _newton(mean, x, shares, c)
            mean = boost(mean, expmap0(step, c), c)
            if look and not (step.numel() and step.abs().max() > 4 * torch.finfo(x.dtype).eps):
                break
    mean = mean.detach()
    # A step from the mean itself has the right derivative; a second one also has the right second
    # derivative.
    for _ in range(1 if torch.compiler.is_compiling() else 2):
        mean = boost(mean, expmap0(_newton(mean, x, shares, c), c), c)
    return mean


def _newton(mean: Tensor, x: Tensor, weights: Tensor, c: Curvature) -> Tensor:
    """Return the Newton step ``(..., n)`` from ``mean``, as a tangent vector at the origin."""
    logs = logmap0(unboost(mean.unsqueeze(-2), x, c), c)  # (..., N, n)
    weights = weights.unsqueeze(-1)
    with torch.no_grad():
        q = square_norm(logs)
        stretch = torch.sqrt(1 + c * q * sinhc_sqrt(c * q) ** 2) / sinhc_sqrt(c * q)  # d coth d
        # The Hessian of half a squared distance has the eigenvalue 1 along the geodesic and d coth
        # d across it.
        inverse = (1 - stretch) / clamped(q, tiny(q))
        hessian = torch.matmul((logs * (weights * inverse)).transpose(-1, -2), logs)
        across = (weights * stretch).sum(-2)
        # If all weights are 0, a divisor of 1 makes the step 0.
        across = torch.where(across > 0, across, torch.ones_like(across))
        hessian = hessian + torch.diag_embed(across.expand(*logs.shape[:-2], logs.shape[-1]))
    step: Tensor = torch.linalg.solve(hessian, (weights * logs).sum(-2))
    # The step is limited, because the Hessian far from the mean is a poor guide.
    with torch.no_grad():
        factor = clamped(_STEP / safe_sqrt(c * square_norm(step)), high=1.0)
    return step * factor
