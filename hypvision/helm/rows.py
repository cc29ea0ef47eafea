"""Points of the unit hyperboloid as rows of a matrix, and the row operations of a decoder.

A row is ``[space | time | zeros]``: ``n`` space coordinates, the time in slot ``n``, zeros up to a
width that suits matrix products. Weights have a zero row where the time goes, so a product leaves
that slot free, and the time is written into it without a concatenation. A row *without time* has a
zero there. With ``n`` None rows are Euclidean: all space, no time.

The curvature is -1 everywhere but in an expert, whose points satisfy ``<x, x> = -c`` with HELM's
``c``.

:func:`residual_norm` and :func:`swiglu` have two forms: plain operations (``fused=False``;
compilers, which fuse by themselves, always take these), and a backward written by hand, which reads
and writes each row as seldom as it can.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hypvision.geometry.numerics import Function, plain

HALF = (torch.float16, torch.bfloat16)


def upcast(x: Tensor) -> Tensor:
    """At least float32: half precision is too coarse for times and norms."""
    return x.float() if x.dtype in HALF else x


def by_hand(fused: bool, x: Tensor) -> bool:
    """Whether an operation takes its backward written by hand, rather than plain operations."""
    return fused and not plain(x)


def _length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def lift(rows: Tensor, n: int | None, c: float | Tensor = 1.0) -> Tensor:
    """Rows without time to points with :math:`<x, x> = -c`."""
    rows = upcast(rows)
    if n is None:
        return rows
    time = torch.sqrt(rows.square().sum(-1, keepdim=True) + c)
    return torch.where(torch.arange(rows.shape[-1], device=rows.device) == n, time, rows)


def lift_(rows: Tensor, n: int, c: float | Tensor = 1.0) -> None:
    """:func:`lift` in place, of rows with any number in the slot of the time."""
    time = rows[..., n : n + 1]
    if isinstance(c, Tensor):
        time.copy_(torch.sqrt(c))
    else:
        time.fill_(c**0.5)  # not an assignment, which makes a tensor of the number first
    time.copy_(_length(rows))


def _timeless(rows: Tensor, n: int) -> Tensor:
    return rows.masked_fill(torch.arange(rows.shape[-1], device=rows.device) == n, 0.0)


def _product(x: Tensor, y: Tensor, n: int) -> Tensor:
    """The Minkowski product of points, ``(..., 1)``."""
    return (_timeless(x, n) * y).sum(-1, keepdim=True) - x[..., n : n + 1] * y[..., n : n + 1]


def _floor(weight: Tensor, safe: bool) -> Tensor | float:
    r"""Least value of :math:`-\langle x + w y, x + w y\rangle`: 1 for points and ``w >= 0``, else
    as published."""
    return torch.where(weight >= 0, 1.0, 1e-4) if safe else 1e-4


# --------------------------------------------------------------------------------------------------
# Norm and residual


def norm(rows: Tensor, gain: Tensor, n: int | None, size: int, eps: float) -> Tensor:
    """RMSNorm of the space parts, and their time; ``size`` coordinates, ``gain`` with zeros where
    there are none."""
    rows = upcast(rows)
    rows = rows if n is None else _timeless(rows, n)
    rows = (
        rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) / size + eps) * gain.to(rows.dtype)
    )
    return lift(rows, n)


class _Residual(Function):
    r"""``x`` and ``y``, the row ``u`` lifted, to :math:`x' = \alpha (x + w y)` and its norm.

    With :math:`a = x + w y, q = |a_s|^2, m = a_t^2 - q, \alpha = S / \sqrt m` and
    :math:`\rho = \alpha / \sqrt{\alpha^2 q / n + \epsilon}` the results are
    :math:`x' = [\alpha a_s, \sqrt{\alpha^2 q + 1}]` and :math:`h = [\rho g a_s, \cdot]`. Where
    ``x`` is far from the origin, :math:`a_t^2 - q` has no correct digit;
    :math:`m = 1 + w^2 - 2 w \langle x, y\rangle` has.
    """

    @staticmethod
    def forward(ctx, x, u, w, gain, n, scale, eps, safe):
        slot = slice(n, n + 1)
        y_time = torch.sqrt(_length(u).square_() + 1)
        a = torch.addcmul(x, u, w)
        a_time = torch.addcmul(x[..., slot], y_time, w)
        a[..., slot].zero_()
        length = _length(a)
        # u has 0 at the slot of the time
        inner = torch.linalg.vecdot(x, u)[..., None].addcmul_(x[..., slot], y_time, value=-1)
        if safe:  # it is at most -1, and m at least 1 where w >= 0
            inner.clamp_(max=-1.0)
        signed = torch.addcmul(-1 - w * w, w, inner, value=2)
        minus = signed.abs().clamp_(min=1e-4)
        alpha = minus.rsqrt().mul_(scale)
        out = a * alpha
        square = (length * alpha).square_()
        out[..., slot] = time = (square + 1).sqrt_()
        minus.copysign_(signed)  # -m
        ctx.n = n
        ctx.eps = eps
        if gain is None:
            ctx.save_for_backward(a, u, w, y_time, a_time, minus, alpha, square, time)
            return out, None
        mean = torch.rsub(square, eps, alpha=-1 / n)  # square / n + eps
        rho = mean.rsqrt().mul_(alpha)
        h = (a * rho).mul_(gain)
        lift_(h, n)
        normed = (gain, mean, rho, h)
        ctx.save_for_backward(a, u, w, y_time, a_time, minus, alpha, square, time, *normed)
        return out, h

    @staticmethod
    @once_differentiable
    def backward(ctx, by_out, by_h):
        a, u, w, y_time, a_time, minus, alpha, square, time, *normed = ctx.saved_tensors
        n = ctx.n
        slot = slice(ctx.n, ctx.n + 1)
        e = by_out[..., slot] / time
        along = (by_out * a).sum(-1, keepdim=True)  # a has 0 at the slot of the time
        total = torch.addcmul(alpha * along, e, square)
        by_gain = None
        if normed:
            gain, mean, rho, h = normed
            grad = torch.addcmul(by_h, h, by_h[..., slot] / h[..., slot])
            product = grad * a  # 0 at the slot of the time, as the gain is
            by_gain = torch.mv(product.flatten(0, -2).T, rho.flatten())
            ahead = torch.mv(product.flatten(0, -2), gain).view_as(rho).mul_(rho).div_(mean)
            total.add_(ahead, alpha=ctx.eps)
            e.sub_(ahead, alpha=1 / n)
            by_a = grad.mul_(gain).mul_(rho).addcmul_(by_out, alpha)
        else:
            by_a = by_out * alpha
        total.div_(minus)
        by_a.addcmul_(a, torch.addcmul(total, e, alpha * alpha, value=-1), value=-1)
        by_time = total * a_time
        by_a[..., slot].zero_()
        by_w = torch.dot(by_a.flatten(), u.flatten()) + torch.dot(
            by_time.flatten(), y_time.flatten()
        )
        by_u = torch.addcmul(by_a, u, by_time / y_time).mul_(w)
        by_a[..., slot] = by_time
        return by_a, by_u, by_w.view_as(w), by_gain, None, None, None, None


def residual_norm(
    x: Tensor,
    u: Tensor,
    weight: Tensor | None,
    gain: Tensor | None,
    n: int | None,
    size: int,
    scale: float,
    eps: float,
    safe: bool = True,
    fused: bool = True,
) -> tuple[Tensor, Tensor | None]:
    r"""HELM's residual connection, the normalised sum :math:`x + w y` of points ``x`` and the
    branch ``u``, rows without time ``(..., width)``, with its space part times ``scale``; and, if
    there is a ``gain`` ``(width,)`` with zeros where there is no space, the RMSNorm behind it over
    ``size`` coordinates. For Euclidean rows ``weight`` and ``n`` are None."""
    u = upcast(u)
    x = x.to(u.dtype)
    gain = None if gain is None else gain.to(u.dtype)
    if n is None or weight is None:
        out = x + u
    else:
        weight = weight.to(u.dtype)
        if by_hand(fused, x):
            return _Residual.apply(x, u, weight, gain, n, scale, eps, safe)
        y = lift(u, n)
        # <x, x> + 1 is 0, but its gradient is that of the difference of squares of all coordinates
        # including the time
        off = -_product(x, x, n)
        m = 1 + off - off.detach() + weight * weight - 2 * weight * _product(x, y, n)
        m = torch.where(weight >= 0, m, m.abs()).clamp(min=_floor(weight, safe))
        out = lift(_timeless(x + weight * y, n) * (scale * torch.rsqrt(m)), n)
    return out, None if gain is None else norm(out, gain, n, size, eps)


# --------------------------------------------------------------------------------------------------
# SwiGLU


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx, z, n, c):
        gate, up = z.chunk(2, -1)
        h = F.silu(gate).mul_(up)
        if n is not None:
            lift_(h, n, c)
        ctx.save_for_backward(z, *([] if n is None else [h]))
        ctx.n = n
        ctx.shape = c.shape if isinstance(c, Tensor) and n is not None else None
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        z, *lifted = ctx.saved_tensors
        by_c = None
        if lifted:
            (h,) = lifted
            ratio = grad[..., ctx.n : ctx.n + 1] / h[..., ctx.n : ctx.n + 1]
            # the gradient of the time slot is 0, as both factors are 0 there
            grad = torch.addcmul(grad, h, ratio)
            by_c = None if ctx.shape is None else (ratio / 2).sum_to_size(ctx.shape)
        gate, up = z.chunk(2, -1)
        found = torch.empty_like(z)
        by_gate, by_up = found.chunk(2, -1)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=by_gate)
        torch.mul(F.silu(gate), grad, out=by_up)
        return found, None, by_c


def swiglu(z: Tensor, n: int | None, c: float | Tensor = 1.0, fused: bool = True) -> Tensor:
    """``silu(gate) * up`` of rows ``[gate | up]`` without time, lifted: ``(..., 2 width)`` to
    ``(..., width)``."""
    z = upcast(z)
    if by_hand(fused, z):
        return _SwiGLU.apply(z, n, c)
    gate, up = z.chunk(2, -1)
    return lift(F.silu(gate) * up, n, c)


# --------------------------------------------------------------------------------------------------
# Rotary code, and the means of attention


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs ``(j, j + d/2)`` of the last dimension; the angles broadcast. The inverse has
    ``-sin``.

    Official weights have the pairs side by side; the converter permutes their rows once.
    """
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def turn_(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> None:
    """:func:`turn` in place; back with the sign -1."""
    first, second = x.chunk(2, -1)
    left = (first * cos).addcmul_(second, sin, value=-sign)
    second.mul_(cos).addcmul_(first, sin, value=sign)
    first.copy_(left)


def centroid(heads: Tensor, size: int, width: int, safe: bool = True) -> Tensor:
    """Sums of weighted points, one a head, to their centroids side by side: rows ``(B, L, width)``,
    filled with zeros, of heads ``(B, L, H, size or more)``, space first and time in ``size - 1``;
    coordinates after that are dropped. ``safe``: see
    :class:`hypvision.helm.config.Architecture`."""
    points = upcast(heads)[..., :size]
    signs = points.new_full((size,), -1.0)
    signs[-1:].fill_(1.0)
    square = torch.linalg.vecdot(points * signs, points)[..., None]
    m = F.hardtanh(square, 1.0 if safe else 1e-6, math.inf)  # a backward of one operation
    return join(points * torch.rsqrt(m), width)


def join(heads: Tensor, width: int) -> Tensor:
    """Heads ``(B, L, H, size)`` side by side, filled with zeros up to ``width``."""
    flat = heads.flatten(-2)
    return F.pad(flat, (0, width - flat.shape[-1])) if width > flat.shape[-1] else flat


# --------------------------------------------------------------------------------------------------
# Experts


def combine(
    shared: list[Tensor],
    experts: list[Tensor],
    weights: Tensor,
    w_y: Tensor | None,
    scale: Tensor | None,
    released: bool,
    safe: bool = True,
) -> Tensor:
    r"""The points of the experts of a token, and of the shared one, to one.

    The result lies in the span of the given rows ``(N, width)`` without time: one linear
    combination, whose factors follow from inner products.

    Args:
        shared: of the shared experts; one at most if released.
        experts: of each of the k experts of a token, in ascending order of the expert.
        weights: ``(N, k)``, of the experts, none below 0.
        w_y, scale: of the released connection with the shared one, scalars; None where there is
            none.
        released: the connections one after the other, each scaled by 2, and the shared one by
            ``exp(scale)``; or the paper's centroid of all, in which shared ones weigh 1.
        safe: see :class:`hypvision.helm.config.Architecture`.
    """
    rows = [*experts, *shared]
    k = len(experts)
    r = range(len(rows))
    # square() has a cheaper backward than the product of a row with itself
    dots = {
        (i, j): (rows[i].square() if i == j else rows[i] * rows[j]).sum(-1)
        for i in r
        for j in r
        if i <= j
    }
    gram = torch.stack([dots[min(i, j), max(i, j)] for i in r for j in r]).unflatten(
        0, (len(rows), -1)
    )
    times = torch.sqrt(torch.diagonal(gram).T + 1)
    weights = weights.T
    if released:
        # the sum begins with the origin, whose space part is 0
        factors = weights[:0]
        time = torch.ones_like(times[0])
        for i, w in enumerate(weights):
            inner = time * times[i]
            if i:
                inner = inner - (factors * gram[i, :i]).sum(0)
            # minus the Minkowski square of y + w e, with <y, y> = <e, e> = -1
            m = torch.addcmul(1 + w * w, w, inner, value=2).clamp(min=1.0 if safe else 1e-4)
            step = 2 * torch.rsqrt(m)
            factors = torch.cat([factors * step, (w * step)[None]])
            # the space part of the result is twice as long as needed for <y, y> = -1
            time = torch.sqrt((step * torch.addcmul(time, w, times[i])).square() - 3)
        if w_y is not None and scale is not None:
            inner = times[k] * time - (factors * gram[k, :k]).sum(0)
            m = 1 + w_y * w_y + 2 * w_y * inner
            step = torch.exp(scale) * torch.rsqrt(
                torch.where(w_y >= 0, m, m.abs()).clamp(min=_floor(w_y, safe))
            )
            factors = torch.cat([factors * (w_y * step), step[None]])
    else:
        factors = torch.cat([weights, torch.ones_like(times[k:])])
        # -<a, a> of the sum; use -<x, x> = 1 for each point instead of a difference of squares
        own = torch.eye(len(rows), dtype=torch.bool, device=gram.device)[..., None]
        inner = torch.where(own, 1.0, times[:, None] * times - gram)
        m = (factors * (factors * inner).sum(1)).sum(0)
        factors = factors * torch.rsqrt(
            m.clamp(min=factors.sum(0).square() if safe else torch.full_like(m, 1e-6))
        )
    out = rows[0] * factors[0, :, None]
    for row, factor in zip(rows[1:], factors[1:, :, None]):
        out = torch.addcmul(out, row, factor)
    return out
