r"""What two points of the hyperboloid are to each other.

With ``d = y_s - x_s``, ``s = x_s + y_s``, ``k = d.s / |s|^2`` and ``p = d - k s``, in units of the radius of curvature,
the squared chord :math:`q = \langle x - y, x - y\rangle_L` solves :math:`q^2 + B q - C = 0` with :math:`B = |s|^2 + 4 -
|d|^2` and :math:`C = |p|^2 |s|^2 + 4 |d|^2`: no time coordinate, and no difference but that in ``B``. Half-angle forms
(:class:`_Pair`) do the same with sums of positive terms; they are what second derivatives and ``torch.func`` see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..numerics import (
    _FEW,
    Function,
    backward_of,
    distance_from_square,
    dot,
    has_float64,
    needs_grad,
    plain,
    safe_sqrt,
    saturate,
    saturate_gradient,
    square_norm,
    widen,
)
from ..rows import in_blocks
from .frame import _CAP, _FAR, _LIMIT, _capped, _root, _times

# Largest |x_s|^2 + |y_s|^2 at which the chord of float32 (float64) points is exact without wider vectors, and its
# gradient right to 1e-4 for points on one ray: those of two points at radius 4 (10)
_NEAR = {torch.float32: 2 * math.sinh(4.0) ** 2, torch.float64: 2 * math.sinh(10.0) ** 2}


def quick(x: Tensor, y: Tensor, c, *more: Tensor) -> bool:
    """Whether the functions of :class:`Chord` take these: rows of one shape and dtype, one curvature."""
    if plain(x) and not torch.compiler.is_compiling() or isinstance(c, Tensor) and c.dim() or not has_float64(x):
        return False
    return all(v.shape == x.shape and v.dtype == x.dtype for v in (y, *more))


def number(c, x: Tensor):
    """The curvature in the dtype of the numbers of :class:`Chord`."""
    if not isinstance(c, Tensor):
        return c
    return widen(c.detach()) if has_float64(x) else c.detach()


def covector(space: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradients of points: that of the space part, and 0 for time."""
    out = torch.zeros(space.shape[0], space.shape[1] + 1, dtype=dtype, device=space.device)
    out[:, 1:] = saturate(space, dtype)
    return out


def by_rows(function: type[Function], of: Callable, *args) -> Tensor:
    """The function of rows and a curvature; without a backward to come ``of`` alone, in blocks."""
    *rows, c = args
    if torch.compiler.is_compiling() or needs_grad(*(a for a in args if isinstance(a, Tensor))):
        return function.apply(*args)
    return in_blocks(of, rows, number(c, rows[0]))[0]


def keep(ctx, *inputs) -> None:
    """Save the rows and the curvature, the last of the inputs."""
    *rows, c = inputs
    ctx.number = None if isinstance(c, Tensor) else c
    ctx.save_for_backward(*rows, *([c] if isinstance(c, Tensor) else []))


def pulled(ctx, plainly: Callable, back: Callable, grad: Tensor) -> tuple:
    """Gradients of rows and curvature: by ``back`` in blocks, or to be differentiated again."""
    saved = list(ctx.saved_tensors)
    c = saved.pop() if ctx.number is None else ctx.number
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return tuple(backward_of(plainly, [*saved, c], ctx.needs_input_grad, grad))
    *found, by_c = in_blocks(back, (*saved, grad), number(c, saved[0]))
    return *found, saturate(by_c, c.dtype).to(c.dtype) if ctx.number is None else None


class Chord(NamedTuple):
    """Two rows of points: vectors in the unit of the arguments, numbers ``(N, 1)`` in units of the radius, float64.

    The vectors are float64 and capped where rows of the block lie far out. ``level`` are float32 points in float64, not
    far out: differences of their numbers keep the digits of float32.
    """

    x: Tensor
    y: Tensor
    d: Tensor
    s: Tensor
    ds: Tensor
    ss: Tensor
    dd: Tensor
    q: Tensor
    root: Tensor  # 2 t_x t_y, the root of (B / 2)^2 + C
    across: tuple[Tensor, Tensor, Tensor] | None = None  # k, p and |p|^2
    level: bool = False

    def ratio(self) -> tuple[Tensor, Tensor]:
        """The distance, and what it is of its hyperbolic sine, in units of the radius."""
        half = self.q / 2 + (1e-60 if self.q.dtype == torch.float64 else 1e-30)
        sinh = torch.sqrt(half) * torch.sqrt(half + 2)  # the product under one root may overflow
        distance = torch.log1p(half + sinh)
        return distance, distance / sinh

    def ahead(self) -> tuple[Tensor, Tensor]:
        """``t_x + t_y`` and ``t_y - t_x``."""
        both = torch.sqrt(self.ss + 4 + self.q)
        return both, self.ds / both

    def time_x(self, both: Tensor, gap: Tensor, c) -> Tensor:
        """``t_x``, from :meth:`ahead`."""
        return (both - gap) / 2 if self.level else torch.sqrt(1 + _sum(self.x, self.x, c))

    def time_y(self, both: Tensor, gap: Tensor, c) -> Tensor:
        """``t_y``, from :meth:`ahead`."""
        return (both + gap) / 2 if self.level else torch.sqrt(1 + _sum(self.y, self.y, c))

    def pull(self, gq: Tensor, c) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the gradient ``gq`` of ``q`` adds to those of ``x``, ``y`` and, times ``c``, of a learned one, by row.

        Both vectors are multiples of ``(t_x + t_y)^2 p + (4 + q) k s``.
        """
        k, p, pp = self.across or _across_sum(self.d, self.s, self.ds, self.ss, c)
        four = 4 + self.q
        times = self.ss + four
        b = self.ds / times
        along = p * (times / self.root).to(p.dtype)
        along.addcmul_(self.s, (four * k / self.root).to(p.dtype))
        # quotients first: products of the far numbers of float64 overflow
        by_c = gq / 2 * (times / self.root * pp + four / self.root * four * k * b) if isinstance(c, Tensor) else None
        gq = _times(gq, c)
        gx = along * (gq * (-1 - b)).to(along.dtype)
        return gx, along.mul_((gq * (1 - b)).to(along.dtype)), by_c


def _across_sum(d: Tensor, s: Tensor, ds: Tensor, ss: Tensor, c) -> tuple[Tensor, Tensor, Tensor]:
    """``k = d.s / |s|^2``, ``p = d - k s`` and ``|p|^2``."""
    k = ds / (ss + (1e-60 if ss.dtype == torch.float64 else 1e-30))  # in range where s is 0
    p = torch.addcmul(d, s, k.to(s.dtype), value=-1)
    return k, p, _sum(p, p, c)


def _sum(u: Tensor, v: Tensor, c) -> Tensor:
    """``c u.v`` ``(N, 1)`` in float64."""
    if torch.compiler.is_compiling():  # times c at once: products of far points overflow where c is small
        return widen((_times(u, c) * v).sum(-1, keepdim=True))
    if u is v:
        total = widen(torch.linalg.vector_norm(u, dim=-1, keepdim=True)).square()
    else:
        total = widen((u * v).sum(-1, keepdim=True))
    return _times(total, c)


def near(x: Tensor, y: Tensor, c, limit: float | None = None) -> Chord | None:
    """The chord of space parts ``(N, n)`` in vectors of their dtype, ``c`` in float64; None where rows lie too far out.

    On a CPU one look at the rows of a block decides: float32 rows beyond radius 4 (10 for float64) do, or those whose
    ``|x|^2 + |y|^2`` exceeds ``limit``. Compilers do not look: they project once more, and cap the coordinates: a norm
    of its own would be half of the time again.
    """
    if torch.compiler.is_compiling():
        most = math.sinh(_CAP[x.dtype]) / c**0.5
        if isinstance(most, Tensor):
            most = most.to(x.dtype)
        x, y = (v.clamp(-most, most).masked_fill(v.abs() == math.inf, math.nan) for v in (x, y))
        return _chord(x, y, c, True)
    if x.device.type != "cpu":
        return None
    level = x.dtype == torch.float32 and x.numel() <= _FEW
    if level:  # where a call costs more than its numbers
        x, y, limit = widen(x), widen(y), None
    found = _level_chord(x, y, c) if level else _chord(x, y, c, False)
    limit = 2 * (_NEAR[x.dtype] if limit is None else limit)
    # not a number is not near
    return found if not x.numel() or (found.ss + found.dd).amax().item() <= limit else None


def chord(x: Tensor, y: Tensor, c) -> Chord:
    """As :func:`near`, with float64 vectors where rows lie too far out."""
    found = near(x, y, c)
    return _chord(_cut(x, c), _cut(y, c), c, True) if found is None else found


def _cut(x: Tensor, c) -> Tensor:
    """Space parts in float64, at the cap of the radius at most."""
    limit = _LIMIT[x.dtype]
    if x.dtype == torch.float64 or not has_float64(x):
        return _capped(x, c)[0]
    x = widen(x)
    q = _sum(x, x, c)
    if x.device.type == "cpu" and x.numel() and q.amax().item() <= limit:
        return x
    return x * torch.sqrt(limit / q.clamp(min=limit))


def _level_chord(x: Tensor, y: Tensor, c) -> Chord:
    """The product of squares loses ``|s|^2 / 4`` units of round-off of float64 on one ray: 1e-8 at radius 10."""
    d, s = y - x, x + y
    ss, ds, dd = _sum(s, s, c), _sum(d, s, c), _sum(d, d, c)
    four = ss + 4
    b, product = (four - dd).mul_(0.5), torch.addcmul(dd * four, ds, ds, value=-1)
    root = torch.addcmul(product, b, b).sqrt_()
    return Chord(x, y, d, s, ds, ss, dd, product.div_(b.add_(root)), root, level=True)


def _chord(x: Tensor, y: Tensor, c, careful: bool) -> Chord:
    d, s = y - x, x + y
    ss, ds = _sum(s, s, c), _sum(d, s, c)
    k, p, pp = _across_sum(d, s, ds, ss, c)
    if careful:
        # Beside a point far out the other's coordinates would be lost in d: the area of the parallelogram then comes
        # from the shorter vector. A second projection takes out the round-off of the first, but costs compilers, which
        # fuse the rest into two passes over the rows, a third.
        compiling, safe = torch.compiler.is_compiling(), ss + (1e-60 if ss.dtype == torch.float64 else 1e-30)
        apart = ds.abs() > 0.95 * ss
        if compiling or x.device.type != "cpu" or apart.any():
            along = torch.where(apart, torch.where(ds > 0, -2 * _sum(x, s, c), 2 * _sum(y, s, c)), ds) / safe
            p = torch.where(apart, torch.where(ds > 0, x * -2, y * 2), d)
            p = torch.addcmul(p, s, along.to(s.dtype), value=-1)
        if not compiling:
            p = torch.addcmul(p, s, (_sum(p, s, c) / safe).to(s.dtype), value=-1)
        pp = _sum(p, p, c)
    dd = torch.addcmul(pp, k, ds)
    if not careful:  # b = B / 2 and C
        b, product = torch.sub(ss, dd).mul_(0.5).add_(2), torch.addcmul(dd * 4, pp, ss)
        root = torch.addcmul(product, b, b).sqrt_()
        total = b.abs().add_(root)
        return Chord(x, y, d, s, ds, ss, dd, torch.where(b > 0, product / total, total), root, (k, p, pp))
    size = ss + 4 + dd  # squares of the largest do not fit into any dtype
    b, product = (2 + 2 * _sum(x, y, c)) / size, (pp / size) * (ss / size) + 4 * (dd / size) / size
    root = torch.sqrt(product + b * b)
    total = b.abs() + root
    q = torch.where(b > 0, product / total, total) * size
    # a step of the fixed point, which has no such quotients
    q = pp + k * (ds / (ss + 4 + q)) * (4 + q)
    return Chord(x, y, d, s, ds, ss, dd, q, root * size, (k, p, pp))


class _Pair:
    """Two broadcasting points ``x``, ``y`` (space parts, capped) and what they are to each other.

    With radii ``r_x, r_y`` and the angle ``theta`` at the origin, ``A = sinh((r_y - r_x) / 2)`` and
    ``B^2 = sinh(r_x) sinh(r_y) sin^2(theta / 2)``; the squared chord is ``q = 4 (A^2 + B^2)``. Vectors keep the unit of
    the arguments, numbers are in units of the radius of curvature: rounding ``sqrt(c) x`` would move near points.
    """

    def __init__(self, x: Tensor, qx: Tensor, y: Tensor, qy: Tensor, c):
        self.x, self.qx, self.y, self.qy, self.root = x, qx, y, qy, _root(c)
        self.tx, self.ty = torch.sqrt(1 + qx), torch.sqrt(1 + qy)
        self.nx, self.ny = safe_sqrt(qx), safe_sqrt(qy)
        self.delta, self.sum = y - x, x + y
        one = torch.ones_like(self.nx * self.ny)
        length = self.nx + self.ny
        # in units of the radius before they are multiplied: squares of the longest would overflow where c is small
        total = _times(self.sum, self.root)
        self.product = dot(_times(self.delta, self.root), total)  # |y|^2 - |x|^2
        gap = self.product / torch.where(length > 0, length, one)
        product = self.nx * self.ny
        self.a = gap / torch.sqrt(2 * (1 + self.tx * self.ty + product))
        inner = dot(_times(x, self.root), _times(y, self.root))
        base = square_norm(total)
        # where one radius is next to nothing beside the other, the angle is no matter, and the quotient overflows, or
        # its derivative
        acute = (inner > 0) & (product * 1e30 > base)
        acute = acute & (product * 1e36 > base / torch.where(acute, product, one))
        # |sum| |across| is the area of the parallelogram; the quotient first, for it is of order 1
        share = base / torch.where(acute, 8 * (product + inner), one)
        apart = acute & ((qx - qy).abs() > 0.9 * (qx + qy))
        across = _across(x, y, acute, apart & (qx < qy), apart & (qx > qy))
        across = saturate_gradient(square_norm(_times(across, self.root)))
        share = saturate_gradient(torch.where(acute, share, 0 * one))
        self.b2 = saturate_gradient(torch.where(acute, share * across, (product - inner) / 2))
        self.q = 4 * (self.a * self.a + self.b2)

    def distance(self) -> Tensor:
        """Unit-curvature distance ``(..., 1)``."""
        return distance_from_square(self.q)

    def radial(self) -> Tensor:
        """Radial part ``(..., 1)`` of ``y`` as seen from ``x``, times sinh(distance); ``x`` is not the origin."""
        away = self.qx > 0
        slope = torch.where(away, self.tx / torch.where(away, self.nx, torch.ones_like(self.nx)), 0 * self.nx)
        return 2 * self.a * torch.sqrt(1 + self.a * self.a) - 2 * slope * self.b2

    def far(self) -> Tensor:
        return self.qx > _FAR


def _across(x: Tensor, y: Tensor, where: Tensor, short_x: Tensor, short_y: Tensor) -> Tensor:
    """The part of ``y - x`` perpendicular to ``x + y`` in the rows ``where``; the other rows are not for use.

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


def _pair(x: Tensor, y: Tensor, c) -> _Pair:
    """Of points ``(..., n + 1)``."""
    return _Pair(*_capped(x[..., 1:], c), *_capped(y[..., 1:], c), c)
