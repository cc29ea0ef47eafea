"""Distances of points of the hyperboloid."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._typing import Curvature
from ..numerics import arcosh1p, distance_from_square, plain, saturate, saturate_gradient, stable, widen
from .frame import _root, _scaled, _times
from .pairs import squared_chord


@stable("x", "y")
def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Geodesic distance ``(...)`` of points ``(..., n + 1)``, as accurate for near points as for far ones.

    The gradient is 0 where the points coincide.
    """
    out = _times(distance_from_square(squared_chord(x, y, c)), 1 / _root(c))
    return out.to(torch.promote_types(x.dtype, y.dtype)).squeeze(-1)


@stable("x", "y")
def sqdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Squared Lorentz distance :math:`\langle x - y, x - y\rangle_L = -2/c - 2\langle x, y\rangle_L`, ``(...)``.

    Not the square of :func:`dist`: the squared chord (Law et al., ICML 2019).
    """
    dtype = torch.promote_types(x.dtype, y.dtype)
    c = widen(c)  # promoted once before both uses: otherwise the sum of the two gradients could overflow
    q = squared_chord(x, y, c)
    return saturate((saturate_gradient(q) if isinstance(c, Tensor) else q) / c, dtype).to(dtype).squeeze(-1)


@stable("x", "y", sets=("x", "y"))
def cdist(x: Tensor, y: Tensor, c: Curvature, dtype: torch.dtype | None = None) -> Tensor:
    r"""Pairwise geodesic distances by one matrix product.

    With :math:`u = \sqrt{1 + c|x_s|^2} - 1` the squared chord is
    :math:`q = 2(u_x + u_y + u_x u_y - c\, x_s \cdot y_s)`, a product of rows of :math:`n + 3` numbers, and the
    distance :math:`\mathrm{arcosh}(1 + q / 2) / \sqrt c`: exact near the origin, where ``arcosh`` of an inner product
    has lost everything. Nothing of shape ``(N, M, n)`` is built.

    Rounding leaves an absolute error of some ``eps (cosh(r_x) cosh(r_y) - 1)`` in ``q``. Pairs for which that is more
    than 1e-4 of ``q`` are computed once more by :func:`dist`; the diagonal of ``cdist(x, x)`` is 0, or not a number
    where the point is not. Compilers and ``torch.func`` use only the product, without this correction: the distance of
    points 0.01 apart at a radius of 3 is then wrong by 10 % in float32.

    Args:
        x: points ``(..., N, n + 1)``.
        y: points ``(..., M, n + 1)``; leading dimensions broadcast.
        c: curvature, ``c > 0``; a tensor must broadcast with ``(..., N, 1)``, ``(..., M, 1)`` and ``(..., N, M)``.
        dtype: of the distances that the product is turned into; default: that of the points. float32 has distances
            between 16 and 32 in steps of 2e-6; differences of far distances keep more digits in float64.

    Returns:
        Distances ``(..., N, M)``; 0 with gradient 0 where two points coincide.
    """
    left, right = _scaled(x[..., 1:], c), _scaled(y[..., 1:], c)
    (x_rows, x_lift), (y_rows, y_lift) = _left(*left), _right(*right)
    h = torch.matmul(x_rows, y_rows.transpose(-1, -2))  # q / 2
    return _distances(h, x, y, x_lift, y_lift, c, dist, dtype)


def _distances(
    h: Tensor,
    x: Tensor,
    y: Tensor,
    x_lift: Tensor,
    y_lift: Tensor,
    c: Curvature,
    each: Callable[..., Tensor],
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Distances from halves ``(..., N, M)`` of squared chords, in ``dtype``, or that of the points; by ``each``, of
    rows, where those are round-off."""
    dtype = dtype or h.dtype
    if plain(h) or not h.numel():
        if x is y:  # the diagonal is 0, but NaN stays NaN
            h = torch.where(torch.eye(h.shape[-1], dtype=torch.bool, device=h.device), h.clamp(0, 0), h)
        return arcosh1p(h.to(dtype)) / _root(c)
    if x is y:
        diagonal = h.detach().diagonal(dim1=-2, dim2=-1)
        own = diagonal.clamp(0, 0)
        diagonal.fill_(math.inf)
    close = _close(h.detach(), x_lift.detach(), y_lift.detach())
    if x is y:
        diagonal.copy_(own)
    out = _times(arcosh1p(h.to(dtype)), 1 / _root(c))
    if close is None:
        return out
    return out.index_put(close, _chosen(x.to(dtype), y.to(dtype), c, out.shape, close, each))


# Rounding error of an inner product of rows; relative to it the smallest chord that is precise to 1e-4
_ROUGH = 2.0**12


def _left(space: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """``[-x, u, u, 1]`` and ``u``."""
    u = q / (1 + torch.sqrt(1 + q))
    return torch.cat([-space, u, u, torch.ones_like(u)], -1), u


def _right(space: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """``[y, 1, u, u]`` and ``u``; the order is that of :func:`_left`."""
    u = q / (1 + torch.sqrt(1 + q))
    return torch.cat([space, torch.ones_like(u), u, u], -1), u


def _close(h: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...] | None:
    """The places where halves ``(..., N, M)`` of squared chords consist of rounding errors to too large a part, from
    ``u``; None if there are none."""
    error = _ROUGH * torch.finfo(h.dtype).eps
    if h.device.type == "cpu" and h.amin().item() >= error * ((1 + x.amax().item()) * (1 + y.amax().item()) - 1):
        return None
    y = y.transpose(-1, -2)
    found = (h < error * (x + y + x * y)).nonzero(as_tuple=True)
    return found if found[0].numel() else None


def _chosen(
    x: Tensor, y: Tensor, c: Curvature, shape: torch.Size, pairs: tuple[Tensor, ...], each: Callable[..., Tensor]
) -> Tensor:
    """Distances ``(K,)`` of the ``K`` pairs of points at these places of the matrix."""
    *batch, rows, columns = pairs
    if isinstance(c, Tensor) and c.dim():
        c = c.expand(shape)[pairs].unsqueeze(-1)

    def part(batch: list[Tensor], rows: Tensor, columns: Tensor, c: Curvature) -> Tensor:
        of_left = (*batch, rows)
        of_right = (*batch, columns)
        left = x.expand(*shape[:-2], *x.shape[-2:])[of_left]
        right = y.expand(*shape[:-2], *y.shape[-2:])[of_right]
        return each(left, right, c)

    step = max(1, 2**22 // x.shape[-1])
    if len(rows) <= step:
        return part(batch, rows, columns, c)
    found = []  # in parts that backward recomputes, to save memory
    for i in range(0, len(rows), step):
        places = slice(i, i + step)
        here = c[places] if isinstance(c, Tensor) and c.dim() else c
        args = ([b[places] for b in batch], rows[places], columns[places], here)
        found.append(checkpoint(part, *args, use_reentrant=False))
    return torch.cat(found)
