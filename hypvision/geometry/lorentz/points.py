"""Points of the hyperboloid, and the maps to and from the tangent space at the origin."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..border import stable
from ..numerics import inverse, length, narrow, square_norm, square_root, tiny, widen

# Exponential maps move no further than this, in radii of curvature: the squares of its sinh are
# float32 numbers.
CAP = 40.0
# the same for code that computes in the dtype of the points
CAPS = {torch.float32: CAP, torch.float64: 350.0}


@stable()
def origin(
    n: int,
    c: Curvature,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The origin ``(1 / sqrt(c), 0, ..., 0)`` of ``n`` dimensions, shape ``(n + 1,)``."""
    out = torch.zeros(n + 1, dtype=dtype, device=device)
    out[0] = c**-0.5
    return out


@stable("space", rows=True)
def time_from_space(space: Tensor, c: Curvature) -> Tensor:
    """Time coordinate ``(..., 1)`` of the points with the given space parts ``(..., n)``."""
    return _time(space, inverse(c))


@stable("space", wide=False, rows=True)
def from_space(space: Tensor, c: Curvature) -> Tensor:
    """Points ``(..., n + 1)`` on the hyperboloid with the given space parts ``(..., n)``."""
    return _with_time(space, c)


@stable("x", wide=False, rows=True)
def projx(x: Tensor, c: Curvature) -> Tensor:
    """The point ``(..., n + 1)`` with the space part of ``x``: time is computed anew."""
    return _with_time(x[..., 1:], c)


def _with_time(space: Tensor, c: Curvature) -> Tensor:
    """Points of the dtype of their space parts, whose time alone is computed in float64."""
    return torch.cat([narrow(_time(widen(space), inverse(c)), space.dtype), space], -1)


def _time(space: Tensor, unit: Curvature) -> Tensor:
    """Times ``(..., 1)``; ``unit`` is ``1 / c``, the squared radius of curvature."""
    return torch.sqrt(square_norm(space) + unit)


def _from_space(space: Tensor, c: Curvature) -> Tensor:
    return torch.cat([_time(space, inverse(c)), space], -1)


@stable("x", "y", rows=True)
def minkowski_inner(x: Tensor, y: Tensor) -> Tensor:
    """``-x_0 y_0 + <x_s, y_s>`` of any vectors ``(..., n + 1)``, shape ``(..., 1)``."""
    product = x * y
    return product[..., 1:].sum(-1, keepdim=True) - product[..., :1]


@stable("u", rows=True)
def expmap0(u: Tensor, c: Curvature) -> Tensor:
    r"""Exponential map at the origin.

    .. math:: \exp_0(u) = \left(\cosh(\sqrt c |u|)/\sqrt c,\
              \frac{\sinh(\sqrt c |u|)}{\sqrt c |u|} u\right)

    Args:
        u: space part of tangent vectors at the origin, ``(..., n)``; their time part is 0. The
            distance is cut at 40 radii of curvature.
        c: curvature, ``c > 0``.

    Returns:
        Points ``(..., n + 1)``. The gradient at 0 is the identity on the space part.
    """
    root = square_root(c)
    z = (length(u) * root).clamp_min(tiny(u))
    moved = z.clamp_max(CAP)
    return torch.cat([torch.cosh(moved) / root, u * (torch.sinh(moved) / z)], -1)


@stable("x", rows=True, small=True)
def logmap0(x: Tensor, c: Curvature) -> Tensor:
    """Logarithm at the origin: space part ``(..., n)`` of the tangent vector that leads to ``x``
    ``(..., n + 1)``."""
    space = x[..., 1:]
    z = (length(space) * square_root(c)).clamp_min(tiny(x))
    return space * (torch.asinh(z) / z)


@stable("x", rows=True, small=True)
def dist0(x: Tensor, c: Curvature) -> Tensor:
    """Hyperbolic radius ``(...)``: the distance of points ``(..., n + 1)`` from the origin;
    gradient 0 there."""
    root = square_root(c)
    return (torch.asinh(length(x[..., 1:]) * root) / root).squeeze(-1)
