"""Distances between points of the hyperboloid, in pairs or all at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import exportable
from .._typing import Curvature
from ..border import STEEPEST, stable
from ..numerics import (
    Function,
    add_scaled,
    bounded,
    clamped,
    divided,
    dot,
    has_float64,
    length,
    needs_grad,
    plain,
    radius_of,
    square_norm,
    square_root,
    widen,
    with_hypotenuse,
    with_value,
)


class Pair(NamedTuple):
    """What functions of two points ``x`` and ``y`` need: ``s``, ``t`` are the space part and the
    time of ``x``, ``s'``, ``t'`` those of ``y``, and ``R`` is the radius of curvature."""

    start: Tensor  # s
    end: Tensor  # s'
    time: Tensor  # t
    ahead: Tensor  # t' - t
    delta: Tensor  # s' - s
    lever: Tensor  # R + t
    end_lever: Tensor  # R + t'


def pair(x: Tensor, y: Tensor, radius: Curvature) -> Pair:
    """Return the differences of two points with the space parts ``x`` and ``y`` ``(..., n)``;
    ``radius`` is ``1 / sqrt(c)``, the radius of curvature."""
    start, time = with_hypotenuse(x, radius)
    end, end_time = with_hypotenuse(y, radius)
    delta = end - start
    if has_float64(x):
        # The gradient needs no such care: each point has its own.
        with torch.no_grad():
            value = _ahead(start, delta, time + end_time)
        ahead = with_value(end_time - time, value)
    else:
        ahead = _ahead(start, delta, time + end_time)
    return Pair(start, end, time, ahead, delta, time + radius, end_time + radius)


def _ahead(start: Tensor, delta: Tensor, times: Tensor) -> Tensor:
    r"""Return :math:`t' - t = (|\Delta|^2 + 2 \Delta \cdot s) / (t' + t)` with
    :math:`\Delta = s' - s`, which keeps the digits of near points."""
    return torch.add(square_norm(delta), dot(delta, start), alpha=2) / times


def way(found: Pair) -> Tensor:
    r"""Return :math:`w = s' - s - \frac{t' - t}{R + t} s`, which is ``R + t'`` times the difference
    of the points in the Poincare ball of radius 1."""
    return add_scaled(found.delta, found.start, -divided(found.ahead, found.lever))


def stretch(found: Pair) -> Tensor:
    r"""Return :math:`\frac{R + t}{R + t'}`, by which the squared chord
    :math:`\langle y - x, y - x\rangle_L` is larger than :math:`|w|^2` of :func:`way`.

    That product loses the digits of one ``cosh(r)`` of far points, and the difference of squares
    those of ``cosh(r)^2``.
    """
    return divided(found.lever, found.end_lever)


@stable("x", "y", timeless=("x", "y"), small=True)
def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the geodesic distance ``(...)`` between points ``(..., n + 1)``:
    :math:`\tfrac{2}{\sqrt c} \mathrm{asinh}\tfrac{\sqrt q} {2}` of the squared chord ``q / c``.

    The gradient is 0 where the points coincide.
    """
    radius = radius_of(c, x, y)
    diameter = 2 * radius
    found = pair(x, y, radius)
    chord = length(way(found)) * torch.sqrt(stretch(found))
    return (exportable.asinh(divided(chord, diameter)) * diameter).squeeze(-1)


@stable("x", "y", timeless=("x", "y"))
def sqdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the squared Lorentz distance ``(...)`` between ``x`` and ``y``,
    :math:`\langle x - y, x - y\rangle_L = -2/c - 2\langle x, y\rangle_L`.

    It is not the square of :func:`dist` but the squared chord (Law et al., ICML 2019).
    """
    found = pair(x, y, radius_of(c, x, y))
    return (square_norm(way(found)) * stretch(found)).squeeze(-1)


# the largest number of distances of a matrix that is computed in float64
WIDEST = 2**24
# a float32 number whose root has a finite inverse
_LEAST = 1e-37


@stable("x", "y", sets=("x", "y"), wide=False)
def cdist(x: Tensor, y: Tensor, c: Curvature, dtype: torch.dtype | None = None) -> Tensor:
    r"""Return all geodesic distances between two sets of points, by one matrix product.

    With :math:`u = (\sqrt c t - 1) / 2` the fourth part of the squared chord is
    :math:`u + (1 + 2 u) u' - \tfrac c 2 s \cdot s'`, a product of rows of :math:`n + 2` numbers,
    and the distance is :math:`\tfrac{2}{\sqrt c} \mathrm{asinh}` of its root. No tensor of shape
    ``(N, M, n)`` is built.

    Up to 2^24 distances the product is computed in float64: the distance of points at the radius
    ``r`` that are ``d`` apart has the relative error ``1e-16 (sinh(r) / d)^2``. Larger matrices are
    computed in float32, with 6e-8 in place of 1e-16.

    Args:
        x: points ``(..., N, n + 1)``.
        y: points ``(..., M, n + 1)``; leading dimensions broadcast.
        c: curvature, ``c > 0``; a tensor must broadcast with ``(..., N, 1)``, ``(..., M, 1)`` and
            ``(..., N, M)``.
        dtype: the dtype of the result; None: that of the points. float32 has steps of 2e-6 between
            distances of 16 and 32.

    Returns:
        Distances ``(..., N, M)``; 0 with gradient 0 on the diagonal of ``cdist(x, x)``.
    """
    half = square_root(widen(c, STEEPEST)) / 2
    (s, u), (s_, u_) = of_both(_scaled, x, y, half)
    rows = torch.cat([-2 * s, u, 1 + 2 * u], -1)
    columns = torch.cat([s_, torch.ones_like(u_), u_], -1)
    return from_products(
        rows, columns, y is x, dtype or torch.promote_types(x.dtype, y.dtype), half
    )


def _scaled(x: Tensor, half: Curvature) -> tuple[Tensor, Tensor]:
    """Return ``sqrt(c) s / 2``, and ``(sqrt(c) t - 1) / 2`` computed from positive terms; ``half``
    is ``sqrt(c) / 2``."""
    space = widen(x[..., 1:]) * half
    square = square_norm(space)
    time = torch.sqrt(square + 0.25)
    return space, with_value(time, square / (time + 0.5))


def of_both(
    function: Callable[[Tensor, Curvature], tuple[Tensor, ...]],
    x: Tensor,
    y: Tensor,
    scale: Curvature,
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return the results of ``function`` for the points ``x`` and for the points ``y``, computed in
    one pass where that is possible.

    Args:
        function: a function of points ``(..., N, k)`` and ``scale``, whose results have a row for
            each point.
        x, y: points ``(..., N, k)`` and ``(..., M, k)``.
        scale: the number, or the curvature's tensor, that ``function`` takes.
    """
    if y is x:
        found = function(x, scale)
        return found, found
    single = not isinstance(scale, Tensor) or scale.dim() == 0
    if not single or x.shape[:-2] != y.shape[:-2] or x.dtype != y.dtype:
        return function(x, scale), function(y, scale)
    sizes = [x.shape[-2], y.shape[-2]]
    parts = [part.split(sizes, -2) for part in function(torch.cat([x, y], -2), scale)]
    return [part[0] for part in parts], [part[1] for part in parts]


def from_products(
    rows: Tensor, columns: Tensor, same: bool, dtype: torch.dtype, half: Curvature
) -> Tensor:
    """Return distances ``(..., N, M)`` in ``dtype``: the asinh of the roots of the products of rows
    and columns, divided by ``half``, which is ``sqrt(c) / 2``.

    The products of float64 ``rows`` ``(..., N, k)`` and ``columns`` ``(..., M, k)`` are the fourth
    parts of squared chords. They are computed in float64, or in ``dtype`` if there are many. The
    diagonal is 0 if both are of the ``same`` points.
    """
    # An exported program takes any number of points, so its number is not asked for.
    if not torch.compiler.is_exporting() and rows.shape[:-1].numel() * columns.shape[-2] > WIDEST:
        rows = bounded(rows, dtype)
        columns = bounded(columns, dtype)
    squares = torch.matmul(rows, columns.transpose(-1, -2))
    function = _asinh_root if plain(squares) or not needs_grad(squares) else _AsinhRoot.apply
    out = divided(function(squares, dtype), half)
    if same:
        out = out * (1 - torch.eye(out.shape[-1], dtype=out.dtype, device=out.device))
    return out


def _asinh_root(squares: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``asinh(sqrt(q))`` in ``dtype``, half of the angle whose chord has the square ``4 q``.

    Rounding may make squares negative; at the bounds the gradient is 0.
    """
    return exportable.asinh(torch.sqrt(clamped(squares, _LEAST, torch.finfo(dtype).max).to(dtype)))


class _AsinhRoot(Function):
    """Compute :func:`_asinh_root`. Its gradient is ``1 / sinh(2 a)`` of the result ``a``, which is
    all that is kept; PyTorch keeps three matrices, and takes twice as many operations."""

    @staticmethod
    def forward(ctx: Any, squares: Tensor, dtype: torch.dtype) -> Tensor:
        cut = clamped(squares, _LEAST, torch.finfo(dtype).max)
        out = torch.sqrt(cut, out=torch.empty_like(cut, dtype=dtype)).asinh_()
        ctx.save_for_backward(out)
        ctx.dtype = squares.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        # the results at the bounds, but for rounding
        low = 1.001 * _LEAST**0.5
        high = 0.999 * math.asinh(torch.finfo(out.dtype).max ** 0.5)
        slope = grad / torch.sinh(2 * out)
        return torch.ops.aten.hardtanh_backward(slope, out, low, high).to(ctx.dtype), None
