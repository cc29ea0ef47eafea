"""Rescaling of radii, changes of curvature, concatenation and splitting."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import exportable
from .._typing import Curvature
from ..border import positive, same_list, stable
from ..numerics import clamped, square_norm, squash_factor
from .points import expmap0, from_space, logmap0

# the smallest product of curvature and time with which max_distance computes
_LEAST_TIME = 20.0


@stable()
def max_distance(c: Curvature, largest: float = 2000.0) -> float | Tensor:
    r"""Return the default limit of :func:`rescale` for float32, the radius
    :math:`\mathrm{arcosh}(c\, t) / \sqrt c` with ``t = largest``.

    It is 8.29 for c = 1 (Bdeir et al., NeurIPS 2025, who write
    :math:`\sqrt k\, \mathrm{arcosh}(t / k)` with :math:`k = 1 / c`). A point at that radius has the
    time coordinate :math:`\sqrt c\, t`.

    A product ``c * largest`` below 20, which by default occurs for ``c < 0.01``, counts as 20: the
    published limit would fall with the curvature, to 0 at ``c = 1 / largest``, although it should
    grow as the space becomes flatter. Below 20 the limit is 3.69 radii of curvature,
    ``3.69 / sqrt(c)``.
    """
    root = c**0.5
    x = c * largest
    if isinstance(x, Tensor):
        return exportable.acosh(clamped(x, _LEAST_TIME)) / root
    return math.acosh(max(x, _LEAST_TIME)) / root


@stable("space")
def rescale_tangent(space: Tensor, limit: float | Tensor, slope: float = 2.0) -> Tensor:
    """Return the vectors ``space`` ``(..., n)`` with their lengths ``r`` squashed to
    ``D tanh(atanh(0.99) r / (s D))``, where ``D`` is ``limit`` and ``s`` is ``slope``, as in
    :func:`rescale`.

    Raises:
        ValueError: ``limit`` or ``slope`` is a number that is not positive.
    """
    return squashed("rescale_tangent", space, limit, slope)


def squashed(function: str, u: Tensor, limit: float | Tensor, slope: float) -> Tensor:
    """Return the vectors ``u`` ``(..., n)`` as :func:`rescale_tangent` squashes them; errors name
    the ``function`` that was called."""
    positive(function, "limit", limit)
    positive(function, "slope", slope)
    return u * squash_factor(square_norm(u), limit, slope)


@stable("x")
def rescale(
    x: Tensor, c: Curvature, limit: float | Tensor | None = None, slope: float = 2.0
) -> Tensor:
    r"""Return the points with their radii ``r`` squashed to ``D tanh(atanh(0.99) r / (s D))``:
    maximum-distance rescaling.

    Args:
        x: points ``(..., n + 1)``.
        c: curvature.
        limit: ``D``, the radius that no point exceeds; None: :func:`max_distance`.
        slope: ``s``; at ``r = s D`` 99 % of the limit are reached. Below 2.65 small radii grow.

    Returns:
        Points ``(..., n + 1)`` (Bdeir et al., NeurIPS 2025).

    Raises:
        ValueError: ``limit`` or ``slope`` is a number that is not positive.
    """
    limit = max_distance(c) if limit is None else limit
    return expmap0(squashed("rescale", logmap0(x, c), limit, slope), c)


def change_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    r"""Return the points of curvature ``c_new`` with the same tangent vectors at the origin,
    :math:`\exp_0^{c'}(\log_0^{c} x)`.

    Their distances from the origin stay the same. When a curvature is learned, parameters change in
    this way.
    """
    return expmap0(logmap0(x, c_old), c_new)


@stable("x")
def scale_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    """Return the points ``x * sqrt(c_old / c_new)`` of curvature ``c_new``: all distances are
    multiplied by that root, angles stay."""
    return from_space(x[..., 1:] * (c_old / c_new) ** 0.5, c_new)


def concat(points: list[Tensor], c: Curvature) -> Tensor:
    """Return the points whose space parts are those of ``points`` ``(..., n_i + 1)`` side by side,
    with their time computed anew: direct concatenation (Qu and Zou, 2022)."""
    same_list("concat", points)
    return from_space(torch.cat([x[..., 1:] for x in points], -1), c)


@stable("x", rows=False)
def split(x: Tensor, sizes: list[int], c: Curvature) -> list[Tensor]:
    """Return points whose space parts are slices of the space part of ``x``; ``sizes`` must add up
    to ``n``.

    Raises:
        ValueError: ``sizes`` do not add up to ``n``.
    """
    if sum(sizes) != x.shape[-1] - 1:
        raise ValueError(
            f"split: sizes must add up to the space dimension {x.shape[-1] - 1}, got {sizes}."
        )
    return [from_space(space, c) for space in x[..., 1:].split(sizes, -1)]
