r"""The Lorentz model (hyperboloid) of hyperbolic space, as functions of tensors.

With curvature ``c > 0`` (sectional curvature ``-c``) the points are
:math:`\{x \in R^{n+1} : \langle x, x\rangle_L = -1/c,\ x_0 > 0\}`, where
:math:`\langle x, y\rangle_L = -x_0 y_0 + x_s \cdot y_s`. The time coordinate comes first. A point is identified by its
space part ``x_s``; its time ``sqrt(1/c + |x_s|^2)`` can always be computed anew.

Every function takes tensors ``(..., n + 1)`` (points) or ``(..., n)`` (space parts, tangent vectors at the origin) and
the curvature last, a float or a tensor that broadcasts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._typing import Curvature
from .numerics import asinh, safe_sqrt, sinhc

__all__ = ["cdist", "expmap0", "from_space", "time_from_space"]


def time_from_space(space: Tensor, c: Curvature) -> Tensor:
    """Time coordinate ``(..., 1)`` of the points with the given space parts ``(..., n)``."""
    return torch.sqrt((space * space).sum(-1, keepdim=True) + 1 / c)


def from_space(space: Tensor, c: Curvature) -> Tensor:
    """Points ``(..., n + 1)`` on the hyperboloid with the given space parts ``(..., n)``."""
    return torch.cat([time_from_space(space, c), space], dim=-1)


def expmap0(u: Tensor, c: Curvature) -> Tensor:
    r"""Exponential map at the origin.

    .. math:: \exp_0(u) = \left(\cosh(\sqrt c |u|)/\sqrt c,\ \frac{\sinh(\sqrt c |u|)}{\sqrt c |u|} u\right)

    Args:
        u: space part of tangent vectors at the origin, ``(..., n)``; their time part is 0.
        c: curvature, ``c > 0``.

    Returns:
        Points ``(..., n + 1)``. The gradient at ``u = 0`` is the identity on the space part.
    """
    norm = safe_sqrt((u * u).sum(-1, keepdim=True))
    return from_space(sinhc(norm * c**0.5) * u, c)


def cdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Pairwise geodesic distances by one matrix product.

    With :math:`q = |x_s - y_s|^2 - (x_0 - y_0)^2` the distance is
    :math:`\frac{2}{\sqrt c}\,\mathrm{asinh}(\tfrac12\sqrt{c q})`, and the difference of times is
    ``(|x_s|^2 - |y_s|^2) / (x_0 + y_0)``, free of the cancellation that makes ``arcosh`` forms lose everything near 0.
    Nothing of shape ``(N, M, n)`` is built.

    Args:
        x: points ``(..., N, n + 1)``.
        y: points ``(..., M, n + 1)``; leading dimensions broadcast.
        c: curvature, ``c > 0``.

    Returns:
        Distances ``(..., N, M)``; 0 with gradient 0 where two points coincide.
    """
    x_space, y_space = x[..., 1:], y[..., 1:]
    x_square = (x_space * x_space).sum(-1, keepdim=True)
    y_square = (y_space * y_space).sum(-1, keepdim=True).transpose(-1, -2)
    time_difference = (x_square - y_square) / (x[..., :1] + y[..., :1].transpose(-1, -2))
    gram = torch.matmul(x_space, y_space.transpose(-1, -2))
    q = x_square + y_square - 2 * gram - time_difference * time_difference
    return asinh(safe_sqrt(c * q) / 2) * (2 / c**0.5)
