"""Means of points: centroids by one matrix product or one by one, and the Frechet mean."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import (
    has_float64,
    one_each,
    plain,
    positive,
    safe_sqrt,
    saturate_gradient,
    sinhc_sqrt,
    square_norm,
    stable,
    widen,
)
from .frame import _arrive, _capped, _join, _root, _scaled
from .isometries import boost, unboost
from .points import _expmap0, logmap0

_STEP = 2.0  # longest Newton step as sqrt(c) times its length: 1 converges more slowly, 4 diverges for distant points


@stable("x", sets=("x",))
def centroid(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0) -> Tensor:
    r"""Weighted Lorentz centroid: the minimiser of the weighted sum of squared Lorentz distances.

    Also known as Einstein midpoint. With :math:`m = \sum_i w_i x_i` it is :math:`m / (\sqrt c \sqrt{-\langle m,
    m\rangle_L})` (Law et al., ICML 2019). The root is computed from positive terms, and in float64 where the device has
    it: in float32 the result is right to round-off up to ``sqrt(c) * r`` of about 30, for near points and points on one
    ray too.

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Their scale does not matter. Where all are 0, or
            there are no points, the result is the origin.
        c: curvature.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there is not one weight for each point.
    """
    dtype = x.dtype
    if weights is not None:
        one_each("centroid", "weights", weights, x.shape[-2])
    space, _ = _capped(x[..., 1:], c)
    space, c = widen(space), widen(c)
    q = square_norm(space) * c
    space = space * _root(c)
    if weights is None:
        weights = torch.full_like(q[..., 0], 1 / max(q.shape[-2], 1))
    weights = saturate_gradient(weights.unsqueeze(-1).to(space.dtype), last=True, dtype=weights.dtype)
    weights, some = _normalised(weights, -2)
    if not has_float64(x):
        weights = saturate_gradient(weights)
    size, time = safe_sqrt(q), torch.sqrt(1 + q)
    mean = torch.matmul(weights.transpose(-1, -2), space)  # (..., 1, n)
    square = square_norm(mean)
    away = square > 0
    one = torch.ones_like(square)
    length = safe_sqrt(square)
    heading = mean / torch.where(away, length, one)
    # |s| - s . heading, as half a squared difference
    sides = square_norm(space - heading * size) / torch.where(size > 0, 2 * size, torch.ones_like(size))
    sides = torch.where(size > 0, sides, torch.zeros_like(sides))
    slack = (weights * (1 / (time + size) + torch.where(away, sides, size))).sum(-2, keepdim=True)
    total = (weights * time).sum(-2, keepdim=True) + length
    square = torch.where(some, slack * total, one)
    return _arrive((mean / torch.sqrt(square)).squeeze(-2), c).to(dtype)


def _normalised(weights: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Weights whose sum along ``dim`` is 1, or that are all 0, and whether they are not."""
    total = weights.sum(dim, keepdim=True)
    some = total > 0
    return weights / torch.where(some, total, torch.ones_like(total)), some


@stable("x", sets=("x",))
def weighted_centroids(weights: Tensor, x: Tensor, c: Curvature) -> Tensor:
    """Many centroids of the same points by one matrix product, as attention needs them.

    Faster than :func:`centroid`, and accurate up to ``sqrt(c) * r`` of about 7 in float32.

    Args:
        weights: ``(..., M, N)``, not negative; the scale of a row does not matter. Where it is all 0 the result is the
            origin.
        x: points ``(..., N, n + 1)``.
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Points ``(..., M, n + 1)``.

    Raises:
        ValueError: a row of weights does not have one weight for each point.
    """
    one_each("weighted_centroids", "weights", weights, x.shape[-2])
    weights, _ = _normalised(weights, -1)  # squares of the sums must not overflow
    space, q = _scaled(x[..., 1:], c)
    return _weighted_centroids(weights, space, q, c)


def _weighted_centroids(weights: Tensor, space: Tensor, q: Tensor, c: Curvature) -> Tensor:
    mean = torch.matmul(weights, _join(torch.sqrt(1 + q), space))
    time, space = mean[..., :1], mean[..., 1:]
    slack = lorentz_square(time, space).clamp(min=torch.finfo(space.dtype).eps)
    return _arrive(space / torch.sqrt(slack), c)


def lorentz_square(time: Tensor, space: Tensor, dim: int = -1) -> Tensor:
    """``t^2 - |s|^2`` of means of points, along ``dim``, which is kept: the square of what a centroid divides by.

    As a product, which loses half as many digits for far points as the difference. In units of the radius of curvature
    a mean has at least 1.
    """
    length = safe_sqrt((space * space).sum(dim, keepdim=True))
    return (time - length) * (time + length)


def centroid_space(time: Tensor, space: Tensor, c: Curvature, dim: int = -1) -> Tensor:
    """Space parts, along ``dim``, of the centroids with these mean times and mean space parts."""
    # for distant points the square cancels, but a mean of points has at least 1
    return space / torch.sqrt((lorentz_square(time, space, dim) * c).clamp(min=1.0))


@stable("x", sets=("x",))
def frechet_mean(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0, steps: int = 30) -> Tensor:
    """Weighted Frechet mean: the minimiser of the weighted sum of squared geodesic distances.

    Newton's method from the centroid, with the Hessian in closed form and steps no longer than 2 radii of curvature: 3
    steps for points at a distance of 1, about 10 at 30. Only the last two steps are differentiated, which gives the
    exact (implicit) first and second derivatives.

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Where all are 0 the result is the origin.
        c: curvature.
        steps: most steps to take; 8 where they cannot end early, while compiling and under ``vmap``: enough up to a
            distance of 15.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there is not one weight for each point, or ``steps`` is not positive.
    """
    positive("frechet_mean", "steps", steps)
    if weights is None:
        weights = x.new_full(x.shape[:-1], 1 / max(x.shape[-2], 1))
    else:
        one_each("frechet_mean", "weights", weights, x.shape[-2])
    weights, _ = _normalised(weights, -1)
    with torch.no_grad():
        mean = centroid(x, weights, c)
        ask = not plain(mean)  # whether the values of the tensor can be read by Python
        for _ in range((steps if ask else min(steps, 8)) - 1):
            step = _newton(mean, x, weights, c)
            mean = boost(mean, _expmap0(step, c), c)
            if ask and not (step.numel() and step.abs().max() > 4 * torch.finfo(x.dtype).eps):
                break
    mean = mean.detach()
    # A step from the mean itself has the right derivative; a second one also has the right second derivative.
    for _ in range(1 if torch.compiler.is_compiling() else 2):
        mean = boost(mean, _expmap0(_newton(mean, x, weights, c), c), c)
    return mean


def _newton(mean: Tensor, x: Tensor, weights: Tensor, c: Curvature) -> Tensor:
    """Newton step ``(..., n)`` in the tangent space of the origin moved to ``mean``."""
    logs = saturate_gradient(logmap0(unboost(mean.unsqueeze(-2), x, c), c))  # (..., N, n)
    weights = weights.unsqueeze(-1)
    with torch.no_grad():
        q = square_norm(logs)
        stretch = torch.sqrt(1 + c * q * sinhc_sqrt(c * q) ** 2) / sinhc_sqrt(c * q)  # d coth d
        # eigenvalues: 1 along the geodesic, d coth d perpendicular to it
        inverse = torch.where(q > 0, (1 - stretch) / torch.where(q > 0, q, torch.ones_like(q)), torch.zeros_like(q))
        hessian = torch.matmul((logs * (weights * inverse)).transpose(-1, -2), logs)
        across = (weights * stretch).sum(-2)
        across = torch.where(across > 0, across, torch.ones_like(across))  # all weights are 0: do not move
        hessian = hessian + torch.diag_embed(across.expand(*logs.shape[:-2], logs.shape[-1]))
    step: Tensor = torch.linalg.solve(hessian, (weights * logs).sum(-2))
    with torch.no_grad():  # limit the step, because far from the mean the Hessian there is a poor guide
        factor = (_STEP / safe_sqrt(c * square_norm(step))).clamp(max=1)
    return step * factor
