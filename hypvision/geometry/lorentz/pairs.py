r"""Differences of two points of the hyperboloid: a plain form in float64, and an accurate form for points far from the
origin.

Both give the squared chord :math:`q = \langle x - y, x - y\rangle_L`, in units of the radius of curvature, without the
difference of time coordinates that cancels. :class:`PlainPair` takes plain formulas in float64, :class:`Pair`
half-angle forms with sums of positive terms.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import (
    Function,
    backward_of,
    dot,
    has_float64,
    needs_grad,
    plain,
    safe_sqrt,
    saturate_gradient,
    square_norm,
    widen,
)
from ..rows import blocked, in_blocks
from .frame import _FAR, _LIMIT, _capped, _root, _times

# Largest c (|x_s|^2 + |y_s|^2) for which float64 keeps all digits of float32 points, reached by two points of radius 8
_REACH = 2 * math.sinh(8.0) ** 2
# With a = c |x_s - y_s|^2, the squared chord q has lost digits of float32 where _KEPT q < a (t_x + t_y) / t_y: its
# rounding error is that of a, and grows with t_x / t_y by that of t_y. No two points within that radius fall below.
_KEPT = 2.0**23


class PlainPair:
    """Two broadcasting float32 points and their differences in float64, good within that radius and as `_KEPT` says.

    Vectors have all ``n + 1`` coordinates, the first of which is 0: rows without gaps are read faster. They keep the
    unit of the arguments; numbers ``(..., 1)`` are in units of the radius of curvature.
    """

    def __init__(self, x: Tensor, y: Tensor, c: Curvature):
        self.x = space_of(x)
        self.delta = space_of(y)
        self.delta = self.delta.sub_(self.x) if x.shape == y.shape else self.delta - self.x
        self.qx, self.across = _times(square_norm(self.x), c), _times(square_norm(self.delta), c)
        self.along = _times(dot(self.x, self.delta), c)
        gap = self.across + 2 * self.along  # |y|^2 - |x|^2
        self.qy = (self.qx + gap).clamp_(min=0)  # rounding may make it negative for an x far out and a y near
        self.tx, self.ty = torch.sqrt(1 + self.qx), torch.sqrt(1 + self.qy)
        self.ahead = gap / (self.tx + self.ty)  # the difference of times
        self.q = self.across - self.ahead * self.ahead


def space_of(x: Tensor) -> Tensor:
    """Points in float64, with 0 for their time."""
    wide = x.double()
    wide[..., :1] = 0
    return wide


def _float32_on_cpu(x: Tensor, y: Tensor) -> bool:
    """Whether the radii of points may be read: a compiler has no values, and on a GPU the host would wait for them."""
    return x.dtype == y.dtype == torch.float32 and x.device.type == "cpu" and has_float64(x) and not plain(x)


def _within_reach(size: Tensor) -> bool:
    return not size.numel() or size.amax().item() <= _REACH


def near_pair(x: Tensor, y: Tensor, c: Curvature) -> PlainPair | None:
    """The pair of points ``(..., n + 1)``; None where :func:`far_pair` must be taken."""
    if not _float32_on_cpu(x, y):
        return None
    pair = PlainPair(x, y, widen(c))
    return pair if _within_reach(pair.qx + pair.qy) else None


def squared_chord(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """The squared chord ``(..., 1)`` of points ``(..., n + 1)``, in units of the radius of curvature."""
    return _wide_chord(x, y, widen(c)) if _float32_on_cpu(x, y) else _far_chord(x, y, c)


def _wide_chord(x: Tensor, y: Tensor, c: Curvature, again: bool = True) -> Tensor:
    """That of float32 points: in the plain form, in the plain form of exchanged points, or in the accurate one."""
    q: Tensor
    q, doubt = _SquaredChord.apply(x, y, c) if needs_grad(x, y, c) else in_blocks(_plain_chord, (x, y), c)[:2]
    if not doubt.numel() or (most := doubt.amax().item()) <= 0:
        return q
    if not most < math.inf:
        return _far_chord(x, y, c)
    rest = functools.partial(_wide_chord, again=False) if again else _far_chord
    places = (doubt.squeeze(-1) > 0).nonzero(as_tuple=True)
    if 2 * len(places[0]) > q.numel():
        return rest(y, x, c)
    own = _at(c, places) if isinstance(c, Tensor) else c
    return q.index_put(places, rest(_at(y, places), _at(x, places), own))


def _at(rows: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """The rows ``(K, k)`` at these places of the shape that they broadcast to."""
    lead = rows.shape[:-1]
    return rows[tuple(p if n > 1 else 0 * p for n, p in zip(lead, places[len(places) - len(lead) :]))]


@blocked
def _far_chord(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    return far_pair(x, y, c).q


def _plain_chord(x: Tensor, y: Tensor, c: Curvature) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The squared chord, a number above 0 where it has lost digits, and two numbers that its gradient needs.

    That number is infinite beyond the cap of the radius. Points of one radius and different directions lose nothing,
    however far they are; those near one ray do, and a ``y`` much nearer to the origin than ``x``.
    """
    pair = PlainPair(x, y, c)
    doubt = pair.across * (pair.tx + pair.ty) - _KEPT * pair.ty * pair.q
    doubt = doubt.masked_fill_(pair.qx + pair.qy > _LIMIT[torch.float32], math.inf)
    return pair.q, doubt, pair.ahead / pair.tx, pair.ahead / pair.ty


def _plain_chord_back(
    x: Tensor, y: Tensor, ax: Tensor, ay: Tensor, grad: Tensor, c: Curvature
) -> tuple[Tensor, Tensor]:
    """Gradients of ``q = c |d|^2 - (t_y - t_x)^2`` with respect to ``x`` and ``y``."""
    x, y = space_of(x), space_of(y)
    twice = 2 * c * grad
    delta = (y - x).mul_(twice)
    gx = (x * (twice * ax)).sub_(delta)
    return gx.float(), delta.addcmul_(y, twice * ay, value=-1).float()


class _SquaredChord(Function):
    """:func:`_plain_chord` with its own gradient: autograd stores several times as much."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, c: Curvature) -> tuple[Tensor, Tensor]:
        ctx.c = None if isinstance(c, Tensor) else c
        q, doubt, ax, ay = in_blocks(_plain_chord, (x, y), c)
        ctx.mark_non_differentiable(doubt)
        ctx.save_for_backward(x, y, q, ax, ay, *([c] if isinstance(c, Tensor) else []))
        return q, doubt

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, y, q, ax, ay, *learned = ctx.saved_tensors
        c = learned[0] if learned else ctx.c
        if torch.is_grad_enabled():
            return tuple(backward_of(lambda *args: PlainPair(*args).q, [x, y, c], ctx.needs_input_grad, grad))
        gx, gy = in_blocks(_plain_chord_back, (x, y, ax, ay, grad), c)
        by_c = (grad * (q - ax * ay) / c).sum_to_size(c.shape) if ctx.needs_input_grad[2] else None
        return gx.sum_to_size(x.shape), gy.sum_to_size(y.shape), by_c


def far_pair(x: Tensor, y: Tensor, c: Curvature) -> Pair:
    """The pair of points ``(..., n + 1)``, at the cap of the radius at most; float32 points are taken in float64."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    (x, qx), (y, qy) = (_capped(saturate_gradient(p, last=True)[..., 1:], c) for p in (x, y))
    if dtype == torch.float32 and has_float64(x):
        c = widen(c)
        x, y = (saturate_gradient(widen(p), last=True, dtype=dtype) for p in (x, y))
        qx, qy = square_norm(x) * c, square_norm(y) * c
    return Pair(x, qx, y, qy, c)


class Pair:
    """Two broadcasting points ``x``, ``y`` (space parts, capped) and their differences.

    With radii ``r_x, r_y`` and the angle ``theta`` at the origin, ``A = sinh((r_y - r_x) / 2)`` and
    ``B^2 = sinh(r_x) sinh(r_y) sin^2(theta / 2)``; the squared chord is ``q = 4 (A^2 + B^2)``. Vectors keep the unit of
    the arguments, numbers are in units of the radius of curvature: rounding ``sqrt(c) x`` would move near points.
    """

    def __init__(self, x: Tensor, qx: Tensor, y: Tensor, qy: Tensor, c: Curvature):
        self.x, self.qx, self.y, self.qy, self.root = x, qx, y, qy, _root(c)
        self.tx, self.ty = torch.sqrt(1 + qx), torch.sqrt(1 + qy)
        self.nx, self.ny = safe_sqrt(qx), safe_sqrt(qy)
        self.delta, self.sum = y - x, x + y
        one = torch.ones_like(self.nx * self.ny)
        length = self.nx + self.ny
        # scaled by sqrt(c) before the product, because squares of long vectors overflow where c is small
        total = _times(self.sum, self.root)
        self.product = dot(_times(self.delta, self.root), total)  # |y|^2 - |x|^2
        gap = self.product / torch.where(length > 0, length, one)
        product = self.nx * self.ny
        self.a = gap / torch.sqrt(2 * (1 + self.tx * self.ty + product))
        inner = dot(_times(x, self.root), _times(y, self.root))
        base = square_norm(total)
        # If one radius is tiny compared with the other, skip the angle: it does not matter, but its quotient would
        # overflow.
        acute = (inner > 0) & (product * 1e30 > base)
        acute = acute & (product * 1e36 > base / torch.where(acute, product, one))
        # |sum| |across| is the area of the parallelogram; divide first, because the quotient is about 1
        share = base / torch.where(acute, 8 * (product + inner), one)
        apart = acute & ((qx - qy).abs() > 0.9 * (qx + qy))
        across = _across(x, y, acute, apart & (qx < qy), apart & (qx > qy))
        across = saturate_gradient(square_norm(_times(across, self.root)))
        share = saturate_gradient(torch.where(acute, share, 0 * one))
        same = (self.delta == 0).all(-1, keepdim=True)
        self.b2 = saturate_gradient(torch.where(acute, share * across, (product - inner) / 2).masked_fill(same, 0))
        self.q = 4 * (self.a * self.a + self.b2)

    def radial(self) -> Tensor:
        """Radial part ``(..., 1)`` of ``y`` as seen from ``x``, times sinh(distance); ``x`` is not the origin."""
        away = self.qx > 0
        slope = torch.where(away, self.tx / torch.where(away, self.nx, torch.ones_like(self.nx)), 0 * self.nx)
        return 2 * self.a * torch.sqrt(1 + self.a * self.a) - 2 * slope * self.b2

    def far(self) -> Tensor:
        return self.qx > _FAR


def _across(x: Tensor, y: Tensor, where: Tensor, short_x: Tensor, short_y: Tensor) -> Tensor:
    """The part of ``y - x`` perpendicular to ``x + y`` in the rows ``where``; other rows have no meaning.

    For points on one ray it is the round-off of their coordinates, and at the radius ``r`` it counts ``sinh(r)`` times.
    Where one vector is much shorter it is twice that vector's part, up to the sign.
    """
    dtype = torch.promote_types(x.dtype, y.dtype)
    in_float64 = has_float64(x)
    x, y = widen(x), widen(y)
    total = x + y
    out = torch.where(short_x, 2 * x, torch.where(short_y, 2 * y, y - x))
    square = square_norm(total)
    safe = torch.where(where, square, torch.ones_like(square))
    for _ in range(1 if in_float64 and dtype == torch.float32 else 2):
        out = out - total * torch.where(where, dot(out, total) / safe, torch.zeros_like(square))
    return out.to(dtype)


def pair_of(x: Tensor, y: Tensor, c: Curvature) -> Pair:
    """The pair of points ``(..., n + 1)`` in their own dtype."""
    return Pair(*_capped(x[..., 1:], c), *_capped(y[..., 1:], c), c)
