"""Distances of points of the hyperboloid."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..border import STEEPEST, stable
from ..numerics import bounded, dot, inverse, narrow, safe_sqrt, square_norm, widen
from .points import _time


def chord(x: Tensor, y: Tensor, c: Curvature) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Time of ``x``, differences ``t' - t`` and ``s' - s``, squared chord :math:`\langle y - x, y - x\rangle_L`.

    The difference of times is :math:`(s' - s) \cdot (s' + s) / (t' + t)`, which keeps the digits of near points.
    """
    start, end, unit = x[..., 1:], y[..., 1:], inverse(c)
    time, delta = _time(start, unit), end - start
    ahead = dot(delta, start + end) / (time + _time(end, unit))
    return time, ahead, delta, square_norm(delta) - ahead * ahead


@stable("x", "y", rows=True, small=True)
def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Geodesic distance ``(...)`` of points ``(..., n + 1)``: :math:`\tfrac{2}{\sqrt c} \mathrm{asinh}\tfrac{\sqrt q}
    {2}` of the squared chord ``q / c``.

    The gradient is 0 where the points coincide.
    """
    *_, square = chord(x, y, c)
    half = c**0.5 / 2
    return (torch.asinh(safe_sqrt(square) * half) / half).squeeze(-1)


@stable("x", "y", rows=True)
def sqdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Squared Lorentz distance :math:`\langle x - y, x - y\rangle_L = -2/c - 2\langle x, y\rangle_L`, ``(...)``.

    Not the square of :func:`dist`: the squared chord (Law et al., ICML 2019).
    """
    return chord(x, y, c)[3].clamp_min(0).squeeze(-1)


# up to this many distances a matrix is computed in float64
WIDEST = 2**24


@stable("x", "y", sets=("x", "y"), wide=False)
def cdist(x: Tensor, y: Tensor, c: Curvature, dtype: torch.dtype | None = None) -> Tensor:
    r"""Pairwise geodesic distances by one matrix product.

    With :math:`u = \sqrt c t - 1` the fourth part of the squared chord is
    :math:`(u + (u + 1) u' - c\, s \cdot s') / 2`, a product of rows of :math:`n + 2` numbers, and the distance
    :math:`\tfrac{2}{\sqrt c} \mathrm{asinh}` of its root. Nothing of shape ``(N, M, n)`` is built.

    Up to 2^24 distances the product is float64: those of points at the radius ``r`` that are ``d`` apart have the
    relative error ``1e-16 (sinh(r) / d)^2``. Larger matrices are float32, with 6e-8 in place of 1e-16.

    Args:
        x: points ``(..., N, n + 1)``.
        y: points ``(..., M, n + 1)``; leading dimensions broadcast.
        c: curvature, ``c > 0``; a tensor must broadcast with ``(..., N, 1)``, ``(..., M, 1)`` and ``(..., N, M)``.
        dtype: of the result; default: that of the points. float32 has distances between 16 and 32 in steps of 2e-6.

    Returns:
        Distances ``(..., N, M)``; 0 with gradient 0 on the diagonal of ``cdist(x, x)``.
    """
    c = widen(c, STEEPEST)
    (s, time, u), (s_, _, u_) = _scaled(x, c), _scaled(y, c)
    rows = torch.cat([-s, u, time], -1)
    columns = torch.cat([s_, torch.ones_like(u_), u_], -1) / 2
    half = c**0.5 / 2
    squares = product(rows, columns, y is x, dtype or torch.promote_types(x.dtype, y.dtype))
    return torch.asinh(safe_sqrt(squares)) / half


def _scaled(x: Tensor, c: Curvature) -> tuple[Tensor, Tensor, Tensor]:
    """``sqrt(c) s``, ``sqrt(c) t``, and the latter minus 1 from positive terms."""
    space = widen(x[..., 1:]) * c**0.5
    square = square_norm(space)
    time = torch.sqrt(square + 1)
    return space, time, square / (time + 1)


def product(rows: Tensor, columns: Tensor, same: bool, dtype: torch.dtype) -> Tensor:
    """Products ``(..., N, M)``, in ``dtype``, of all float64 rows ``(..., N, k)`` and ``columns`` ``(..., M, k)``.

    Computed in float64, or in ``dtype`` where there are many; 0 on the diagonal if both are of the same points.
    """
    # An exported program takes any number, so it is not asked for.
    if not torch.compiler.is_exporting() and rows.shape[:-1].numel() * columns.shape[-2] > WIDEST:
        rows, columns = bounded(rows, dtype), bounded(columns, dtype)
    out = narrow(torch.matmul(rows, columns.transpose(-1, -2)), dtype)
    if same:
        out = out * (1 - torch.eye(out.shape[-1], dtype=out.dtype, device=out.device))
    return out
