"""Means of points: centroids, one by one or by one matrix product, and the Frechet mean."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..border import STEEPEST, one_each, positive, stable
from ..numerics import bounded, narrow, safe_sqrt, sinhc_sqrt, square_norm, tiny, widen
from .isometries import boost, unboost
from .points import _from_space, expmap0, logmap0

# longest Newton step as sqrt(c) times its length: 1 converges more slowly, 4 diverges for distant
# points
_STEP = 2.0


@stable("x", sets=("x",))
def centroid(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0) -> Tensor:
    r"""Weighted Lorentz centroid: the minimiser of the weighted sum of squared Lorentz distances.

    Also known as Einstein midpoint. With :math:`m = \sum_i w_i x_i` it is
    :math:`m / (\sqrt c \sqrt{-\langle m, m\rangle_L})` (Law et al., ICML 2019).

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Their scale does not matter.
            Where all are 0, or there are no points, the result is the origin.
        c: curvature.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there is not one weight for each point.
    """
    shares = _shares("centroid", x, weights)
    mean = (shares.unsqueeze(-1) * _from_space(x[..., 1:], c)).sum(-2)
    return _from_space(centroid_space(mean[..., :1], mean[..., 1:], c), c)


def _shares(function: str, x: Tensor, weights: Tensor | None) -> Tensor:
    """Weights ``(..., N)`` of points, of sum 1 or all 0."""
    if weights is None:
        return x.new_full(x.shape[:-1], 1 / max(x.shape[-2], 1))
    one_each(function, "weights", weights, x.shape[-2])
    return normalised(weights)


def normalised(weights: Tensor) -> Tensor:
    """Weights whose sum along the last dimension is 1, or that are all 0."""
    total = weights.sum(-1, keepdim=True)
    return weights / (total + (total == 0))


@stable("x", sets=("x",), wide=False)
def weighted_centroids(weights: Tensor, x: Tensor, c: Curvature) -> Tensor:
    """Many centroids of the same points by one matrix product, as attention needs them.

    The product is float32: right up to ``sqrt(c) * r`` of about 7, where :func:`centroid` is to 16.

    Args:
        weights: ``(..., M, N)``, not negative; the scale of a row does not matter. Where it is all
            0 the result is the origin.
        x: points ``(..., N, n + 1)``.
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Points ``(..., M, n + 1)``.

    Raises:
        ValueError: a row of weights does not have one weight for each point.
    """
    one_each("weighted_centroids", "weights", weights, x.shape[-2])
    c = widen(c, STEEPEST)
    points = bounded(_from_space(widen(x[..., 1:]), c), x.dtype)
    mean = widen(torch.matmul(narrow(normalised(widen(weights)), x.dtype), points))
    return narrow(_from_space(centroid_space(mean[..., :1], mean[..., 1:], c), c), x.dtype)


def lorentz_square(time: Tensor, space: Tensor, dim: int = -1) -> Tensor:
    """``t^2 - |s|^2`` of means of points, along ``dim``, which is kept: the square of what a
    centroid divides by.

    As a product, which loses half as many digits for far points as the difference. In units of the
    radius of curvature a mean has at least 1.
    """
    length = safe_sqrt((space * space).sum(dim, keepdim=True))
    return (time - length) * (time + length)


def centroid_space(time: Tensor, space: Tensor, c: Curvature, dim: int = -1) -> Tensor:
    """Space parts, along ``dim``, of the centroids with these mean times and mean space parts."""
    # for distant points the square cancels, but a mean of points has at least 1
    return space / torch.sqrt((lorentz_square(time, space, dim) * c).clamp_min(1.0))


@stable("x", sets=("x",))
def frechet_mean(
    x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0, steps: int = 30
) -> Tensor:
    """Weighted Frechet mean: the minimiser of the weighted sum of squared geodesic distances.

    Newton's method from the centroid, with the Hessian in closed form and steps no longer than 2
    radii of curvature: 3 steps for points at a distance of 1, about 10 at 30. Only the last two
    steps are differentiated, which gives the exact (implicit) first and second derivatives.

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Where all are 0 the result is
            the origin.
        c: curvature.
        steps: most steps to take; 8 where a look at the numbers, which may end them early, would
            cost: on a GPU, while compiling and under ``vmap``. 8 are enough up to a distance of 15.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there is not one weight for each point, or ``steps`` is not positive.
    """
    positive("frechet_mean", "steps", steps)
    shares = _shares("frechet_mean", x, weights)
    look = x.device.type == "cpu" and not torch.compiler.is_compiling()
    look = look and not torch._C._are_functorch_transforms_active()
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
    """Newton step ``(..., n)`` in the tangent space of the origin moved to ``mean``."""
    logs = logmap0(unboost(mean.unsqueeze(-2), x, c), c)  # (..., N, n)
    weights = weights.unsqueeze(-1)
    with torch.no_grad():
        q = square_norm(logs)
        stretch = torch.sqrt(1 + c * q * sinhc_sqrt(c * q) ** 2) / sinhc_sqrt(c * q)  # d coth d
        # eigenvalues: 1 along the geodesic, d coth d perpendicular to it
        inverse = (1 - stretch) / q.clamp_min(tiny(q))
        hessian = torch.matmul((logs * (weights * inverse)).transpose(-1, -2), logs)
        across = (weights * stretch).sum(-2)
        # all weights are 0: do not move
        across = torch.where(across > 0, across, torch.ones_like(across))
        hessian = hessian + torch.diag_embed(across.expand(*logs.shape[:-2], logs.shape[-1]))
    step: Tensor = torch.linalg.solve(hessian, (weights * logs).sum(-2))
    # limit the step, because far from the mean the Hessian there is a poor guide
    with torch.no_grad():
        factor = (_STEP / safe_sqrt(c * square_norm(step))).clamp(max=1)
    return step * factor
