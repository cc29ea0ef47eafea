"""Points of the hyperboloid, and the maps to and from the tangent space at the origin."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import exportable
from .._typing import Curvature
from ..border import stable
from ..numerics import (
    clamped,
    hypotenuse,
    length,
    narrow,
    square_root,
    tiny,
    widen,
    with_hypotenuse,
)

# Exponential maps move points by at most this number of radii of curvature, because the square of
# its sinh still is a float32 number.
CAP = 40.0
# the same limit by dtype, for code that computes in the dtype of the points
CAPS = {torch.float32: CAP, torch.float64: 350.0}


@stable()
def origin(
    n: int,
    c: Curvature,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the origin ``(1 / sqrt(c), 0, ..., 0)`` of ``n`` dimensions, shape ``(n + 1,)``."""
    out = torch.zeros(n + 1, dtype=dtype, device=device)
    out[0] = c**-0.5
    return out


@stable("space")
def time_from_space(space: Tensor, c: Curvature) -> Tensor:
    """Return the time coordinate ``(..., 1)`` of the points with the space parts ``space``
    ``(..., n)``."""
    return _time(space, c**-0.5)


@stable("space", wide=False)
def from_space(space: Tensor, c: Curvature) -> Tensor:
    """Return the points ``(..., n + 1)`` with the space parts ``space`` ``(..., n)``."""
    return _with_time(space, c)


@stable("x", timeless=("x",), wide=False)
def projx(x: Tensor, c: Curvature) -> Tensor:
    """Return the points ``(..., n + 1)`` with the space parts of ``x``; their time is computed
    anew."""
    return _with_time(x, c)


def _with_time(space: Tensor, c: Curvature) -> Tensor:
    """Return points of the dtype of ``space``; only their time is computed in float64."""
    return _joined(narrow(_time(widen(space), c**-0.5), space.dtype), space)


def _joined(time: Tensor, space: Tensor) -> Tensor:
    """Return points of times and space parts; curvatures of their own give one space part several
    times."""
    return torch.cat([time, space.expand(*time.shape[:-1], space.shape[-1])], -1)


def _time(space: Tensor, radius: Curvature) -> Tensor:
    """Return the times ``(..., 1)`` of space parts; ``radius`` is ``1 / sqrt(c)``, the radius of
    curvature."""
    return hypotenuse(space, radius)


def _from_space(space: Tensor, radius: Curvature) -> Tensor:
    space, time = with_hypotenuse(space, radius)
    return _joined(time, space)


@stable("x", "y")
def minkowski_inner(x: Tensor, y: Tensor) -> Tensor:
    """Return the Minkowski product ``-x_0 y_0 + <x_s, y_s>`` of any vectors ``(..., n + 1)``, shape
    ``(..., 1)``."""
    product = x * y
    return product[..., 1:].sum(-1, keepdim=True) - product[..., :1]


@stable("u")
def expmap0(u: Tensor, c: Curvature) -> Tensor:
    r"""Return the exponential map at the origin of the tangent vectors ``u``.

    .. math:: \exp_0(u) = \left(\cosh(\sqrt c |u|)/\sqrt c,\
              \frac{\sinh(\sqrt c |u|)}{\sqrt c |u|} u\right)

    Args:
        u: space part of the tangent vectors, ``(..., n)``; their time part is 0. The distance is
            cut at 40 radii of curvature.
        c: curvature, ``c > 0``.

    Returns:
        Points ``(..., n + 1)``. The gradient at 0 is the identity on the space part.
    """
    root = square_root(c)
    u, size = with_hypotenuse(u, tiny(u))
    z = size * root
    moved = clamped(z, high=CAP)
    return torch.cat([exportable.cosh(moved) / root, u * (exportable.sinh(moved) / z)], -1)


@stable("x", timeless=("x",), small=True)
def logmap0(x: Tensor, c: Curvature) -> Tensor:
    """Return the logarithm at the origin: the space part ``(..., n)`` of the tangent vectors that
    lead to ``x`` ``(..., n + 1)``."""
    space, size = with_hypotenuse(x, tiny(x))
    z = size * square_root(c)
    return space * (exportable.asinh(z) / z)


@stable("x", timeless=("x",), small=True)
def dist0(x: Tensor, c: Curvature) -> Tensor:
    """Return the hyperbolic radius ``(...)`` of ``x`` ``(..., n + 1)``, its distance from the
    origin; the gradient is 0 at the origin."""
    root = square_root(c)
    return (exportable.asinh(length(x) * root) / root).squeeze(-1)
