"""Points of the unit hyperboloid as rows of a matrix, and what a decoder does with them.

A row is ``[space | time | zeros]``: ``n`` space coordinates, the time in slot ``n``, zeros up to a width that matrix
products like. Weights carry a zero row where the time goes, so the product itself leaves the slot free, and the time
is written into it: no concatenation, no copy. A row *without time* has a zero there.

Everywhere the curvature is -1, save that of an expert, whose ``c`` is HELM's: points satisfy ``<x, x> = -c``. Each
function is there twice: in plain operations (``fused=False``; compilers, which fuse by themselves, always take these),
and with a backward written by hand, which reads and writes each row as seldom as it can. With ``n`` None rows are
Euclidean: all space, no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hypvision.geometry.numerics import Function, plain

__all__ = ["by_hand", "centroid", "combine", "lift", "norm", "residual_norm", "swiglu", "turn"]

HALF = (torch.float16, torch.bfloat16)


def upcast(x: Tensor) -> Tensor:
    """At least float32: times and norms are not for half precision."""
    return x.float() if x.dtype in HALF else x


def by_hand(fused: bool, x: Tensor) -> bool:
    """Whether a function takes its backward by hand, rather than plain operations."""
    return fused and not plain(x)


def _length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def _with_time(rows: Tensor, n: int, c: float | Tensor = 1.0) -> Tensor:
    """Rows without time to points, in plain operations."""
    time = torch.sqrt(rows.square().sum(-1, keepdim=True) + c)
    slot = torch.arange(rows.shape[-1], device=rows.device) == n
    return torch.where(slot, time, rows)


def _timeless(rows: Tensor, n: int) -> Tensor:
    slot = torch.arange(rows.shape[-1], device=rows.device) == n
    return rows.masked_fill(slot, 0.0)


def _product(x: Tensor, y: Tensor, n: int) -> Tensor:
    """The Minkowski product, kept."""
    return (_timeless(x, n) * y).sum(-1, keepdim=True) - x[..., n : n + 1] * y[..., n : n + 1]


def floor_of(weight: Tensor, safe: bool) -> Tensor | float:
    r"""What :math:`-\langle x + w y, x + w y\rangle` is cut at: 1 for points and ``w >= 0``, else the published."""
    return torch.where(weight >= 0, 1.0, 1e-4) if safe else 1e-4


# ---------------------------------------------------------------------------------------------------------------------
# Lift


class _Lift(Function):
    @staticmethod
    def forward(ctx, rows, n, c):
        out = rows.detach()
        out[..., n : n + 1] = torch.sqrt(_length(out).square_() + c)
        ctx.save_for_backward(out)
        ctx.n, ctx.shape = n, c.shape if isinstance(c, Tensor) else None
        return out.view_as(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        ratio = grad[..., ctx.n : ctx.n + 1] / out[..., ctx.n : ctx.n + 1]
        found = torch.addcmul(grad, out, ratio)
        found[..., ctx.n] = 0
        return found, None, None if ctx.shape is None else (ratio.sum() / 2).view(ctx.shape)


def lift(rows: Tensor, n: int | None, c: float | Tensor = 1.0, fused: bool = True) -> Tensor:
    """Rows without time, fresh ones, to points with :math:`<x, x> = -c`; fused, it writes into them."""
    rows = upcast(rows)
    if n is None:
        return rows
    return _Lift.apply(rows, n, c) if by_hand(fused, rows) else _with_time(rows, n, c)


# ---------------------------------------------------------------------------------------------------------------------
# Norm and residual


def norm(rows: Tensor, gain: Tensor, n: int | None, size: int, eps: float) -> Tensor:
    """RMSNorm of the space parts, and their time; ``size`` coordinates, ``gain`` with zeros where there are none."""
    rows = upcast(rows)
    rows = rows if n is None else _timeless(rows, n)
    rows = rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) / size + eps) * gain.to(rows.dtype)
    return rows if n is None else _with_time(rows, n)


class _Residual(Function):
    r"""``x`` and ``y``, the row ``u`` lifted, to :math:`x' = \alpha (x + w y)` and its norm.

    With :math:`a = x + w y, q = |a_s|^2, m = a_t^2 - q, \alpha = S / \sqrt m` and
    :math:`\rho = \alpha / \sqrt{\alpha^2 q / n + \epsilon}` the results are
    :math:`x' = [\alpha a_s, \sqrt{\alpha^2 q + 1}]` and :math:`h = [\rho g a_s, \cdot]`. Of a far ``x`` the difference
    of squares would leave no digit of ``m``, which is :math:`1 + w^2 - 2 w \langle x, y\rangle`.
    """

    @staticmethod
    def forward(ctx, x, u, w, gain, n, scale, eps, safe):
        slot = slice(n, n + 1)
        y_time = torch.sqrt(_length(u).square_() + 1)
        a = torch.addcmul(x, u, w)
        a_time = torch.addcmul(x[..., slot], y_time, w)
        a[..., n] = 0
        length = _length(a)
        inner = (x[..., slot] * y_time).sub_(torch.linalg.vecdot(x, u)[..., None])  # the slot of u is 0
        m = torch.addcmul(1 + w * w, w, inner, value=2)
        sign = torch.where(w >= 0, torch.ones_like(m), m.sign())
        m = m.mul_(sign).clamp_(min=floor_of(w, safe))
        alpha = m.rsqrt().mul_(scale)
        out = a * alpha
        reached = length * alpha
        out[..., slot] = time = torch.sqrt(reached.square() + 1)
        ctx.n, ctx.eps = n, eps
        if gain is None:
            ctx.save_for_backward(a, u, w, y_time, a_time, m, sign, alpha, time)
            return out, None
        mean = reached.square_().div_(n).add_(eps)
        rho = alpha / mean.sqrt()
        h = (a * rho).mul_(gain)
        h[..., slot] = torch.sqrt(_length(h).square_() + 1)
        ctx.save_for_backward(a, u, w, y_time, a_time, m, sign, alpha, time, gain, mean, rho, h)
        return out, h

    @staticmethod
    @once_differentiable
    def backward(ctx, by_out, by_h):
        a, u, w, y_time, a_time, m, sign, alpha, time, *normed = ctx.saved_tensors
        n, slot = ctx.n, slice(ctx.n, ctx.n + 1)
        e = by_out[..., slot] / time
        along = (by_out * a).sum(-1, keepdim=True)  # the slot of a is 0
        total = torch.addcmul(alpha * along, e, time * time - 1)
        coefficient = e * alpha * alpha
        by_gain = None
        if normed:
            gain, mean, rho, h = normed
            grad = torch.addcmul(by_h, h, by_h[..., slot] / h[..., slot])
            grad[..., n] = 0
            product = grad * a
            by_gain = torch.mv(product.flatten(0, -2).T, rho.flatten())
            ahead = torch.mv(product.flatten(0, -2), gain).view_as(rho).mul_(rho)
            total.addcmul_(ahead, ctx.eps / mean)
            coefficient -= ahead * alpha * alpha / (mean * n)
            by_a = grad.mul_(gain).mul_(rho).addcmul_(by_out, alpha)
        else:
            by_a = by_out * alpha
        total.mul_(sign).div_(m)
        by_a.addcmul_(a, coefficient + total)
        by_time = -total * a_time
        by_a[..., n] = 0
        by_w = (by_a * u).sum() + (by_time * y_time).sum()
        by_u = torch.addcmul(by_a, u, by_time / y_time).mul_(w)
        by_a[..., slot] = by_time
        return by_a, by_u, by_w.view_as(w), by_gain, None, None, None, None


class _FlatResidual(Function):
    """:class:`_Residual` of Euclidean rows: a sum and its RMSNorm."""

    @staticmethod
    def forward(ctx, x, u, gain, size, eps):
        out = x + u
        rho = _length(out).square_().div_(size).add_(eps).rsqrt_()
        ctx.save_for_backward(out, gain, rho)
        ctx.size = size
        return out, (out * rho).mul_(gain)

    @staticmethod
    @once_differentiable
    def backward(ctx, by_out, by_h):
        out, gain, rho = ctx.saved_tensors
        product = by_h * out
        by_gain = torch.mv(product.flatten(0, -2).T, rho.flatten())
        ahead = torch.mv(product.flatten(0, -2), gain).view_as(rho)
        by_x = (by_h * gain).mul_(rho).add_(by_out).addcmul_(out, ahead * rho.pow(3) / -ctx.size)
        return by_x, by_x, by_gain, None, None


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
    r"""HELM's residual connection, the normalised sum :math:`x + w y`, and the RMSNorm behind it.

    Args:
        x: points, rows ``(..., width)``.
        u: the branch, rows without time.
        weight: ``w``; None for Euclidean rows.
        gain: of the RMSNorm, ``(width,)`` with zeros where there is no space; None for no norm.
        n: slot of the time; None for Euclidean rows.
        size: number of space coordinates.
        scale: factor ``S`` of the space part of the sum.
        eps: of the RMSNorm.
        safe: see :class:`hypvision.helm.config.Architecture`.
        fused: by hand.

    Returns:
        The points and, if there is a gain, the normalised ones.
    """
    u = upcast(u)
    x, gain = x.to(u.dtype), None if gain is None else gain.to(u.dtype)
    if n is None:
        if gain is not None and by_hand(fused, x):
            return _FlatResidual.apply(x, u, gain, size, eps)
        x = x + u
        return x, None if gain is None else norm(x, gain, None, size, eps)
    weight = weight.to(u.dtype)
    if by_hand(fused, x):
        return _Residual.apply(x, u, weight, gain, n, scale, eps, safe)
    y = _with_time(u, n)
    # of value 0: the gradient is that of the difference of squares in all coordinates, the time's too
    off = -_product(x, x, n)
    m = 1 + off - off.detach() + weight * weight - 2 * weight * _product(x, y, n)
    space = _timeless(x + weight * y, n)
    m = torch.where(weight >= 0, m, m.abs()).clamp(min=floor_of(weight, safe))
    out = _with_time(space * (scale * torch.rsqrt(m)), n)
    return out, None if gain is None else norm(out, gain, n, size, eps)


# ---------------------------------------------------------------------------------------------------------------------
# SwiGLU


class _SwiGLU(Function):
    @staticmethod
    def forward(ctx, z, n, c):
        gate, up = z.chunk(2, -1)
        h = F.silu(gate).mul_(up)
        if n is not None:
            h[..., n : n + 1] = torch.sqrt(_length(h).square_() + c)
        ctx.save_for_backward(z, *([] if n is None else [h]))
        ctx.n, ctx.shape = n, c.shape if isinstance(c, Tensor) and n is not None else None
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        z, *lifted = ctx.saved_tensors
        ratio = None
        if lifted:
            (h,) = lifted
            ratio = grad[..., ctx.n : ctx.n + 1] / h[..., ctx.n : ctx.n + 1]
            grad = torch.addcmul(grad, h, ratio)  # of the slot nothing arrives below: its factors are 0
        gate, up = z.chunk(2, -1)
        found = torch.empty_like(z)
        by_gate, by_up = found.chunk(2, -1)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=by_gate)
        torch.mul(F.silu(gate), grad, out=by_up)
        return found, None, None if ctx.shape is None else (ratio.sum() / 2).view(ctx.shape)


def swiglu(z: Tensor, n: int | None, c: float | Tensor = 1.0, fused: bool = True) -> Tensor:
    """``silu(gate) * up`` of rows ``[gate | up]`` without time, lifted: ``(..., 2 width)`` to ``(..., width)``."""
    z = upcast(z)
    if by_hand(fused, z):
        return _SwiGLU.apply(z, n, c)
    gate, up = z.chunk(2, -1)
    h = F.silu(gate) * up
    return h if n is None else _with_time(h, n, c)


# ---------------------------------------------------------------------------------------------------------------------
# Rotary code, and the means of attention


def turn(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
    """Rotate pairs ``(j, j + d/2)`` of the last dimension; the angles broadcast. The inverse has ``-sin``.

    Official weights have the pairs side by side; the converter permutes their rows once.
    """
    first, second = x.chunk(2, -1)
    if out is None:
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    left, right = first * cos - second * sin, second * cos + first * sin  # before x changes, should it be out
    half = left.shape[-1]
    out[..., :half], out[..., half:] = left, right
    return out


class _Centroid(Function):
    @staticmethod
    def forward(ctx, heads, size, width, floor):
        b, length, h, _ = heads.shape
        a, n = heads[..., :size], size - 1
        time, space = a[..., n:], _length(a[..., :n])
        m = ((time - space) * (time + space)).clamp_(min=floor)
        r = m.rsqrt()
        out = heads.new_empty(b, length, width)
        out[..., h * size :] = 0
        torch.mul(a, r, out=out[..., : h * size].view(b, length, h, size))
        ctx.save_for_backward(heads, m, r)
        ctx.size = size
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        heads, m, r = ctx.saved_tensors
        size, (b, length, h, _) = ctx.size, heads.shape
        a, grad = heads[..., :size], grad[..., : h * size].view(b, length, h, size)
        along = (grad * a).sum(-1, keepdim=True).mul_(r).div_(m)
        found = heads.new_empty(heads.shape)
        found[..., size:] = 0
        part = torch.mul(grad, r, out=found[..., :size])
        part[..., : size - 1].addcmul_(a[..., : size - 1], along)
        part[..., size - 1 :].addcmul_(a[..., size - 1 :], along, value=-1)
        return found, None, None, None


def centroid(heads: Tensor, size: int, width: int, safe: bool = True, fused: bool = True) -> Tensor:
    """Sums of weighted points, one a head, to their centroids side by side.

    Args:
        heads: ``(B, L, H, size or more)``, space first, time in ``size - 1``; what is behind it is left out.
        size: coordinates of a point.
        width: of the result, ``H size`` or more, filled with zeros.
        safe, fused: see above.

    Returns:
        Rows ``(B, L, width)``.
    """
    heads, floor = upcast(heads), 1.0 if safe else 1e-6
    if by_hand(fused, heads):
        return _Centroid.apply(heads, size, width, floor)
    a = heads[..., :size]
    time, space = a[..., -1:], torch.sqrt(a[..., :-1].square().sum(-1, keepdim=True))
    m = ((time - space) * (time + space)).clamp(min=floor)
    return join(a * torch.rsqrt(m), width)


def join(heads: Tensor, width: int) -> Tensor:
    """Heads ``(B, L, H, size)`` side by side, filled with zeros up to ``width``."""
    flat = heads.flatten(-2)
    return F.pad(flat, (0, width - flat.shape[-1])) if width > flat.shape[-1] else flat


# ---------------------------------------------------------------------------------------------------------------------
# Experts


class _Gram(Function):
    """The inner products of R tensors of rows ``(N, width)``: ``(R, R, N)``."""

    @staticmethod
    def forward(ctx, *rows):
        ctx.save_for_backward(*rows)
        return _gram(rows, lambda x: _length(x).square_()[:, 0])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, found = ctx.saved_tensors, []
        grad = (grad + grad.transpose(0, 1))[..., None]
        for factors in grad:
            found.append(rows[0] * factors[0])
            for x, factor in zip(rows[1:], factors[1:]):
                found[-1].addcmul_(x, factor)
        return tuple(found)


def _gram(rows: Sequence[Tensor], square: Callable[[Tensor], Tensor]) -> Tensor:
    r = range(len(rows))
    dots = {(i, j): square(rows[i]) if i == j else (rows[i] * rows[j]).sum(-1) for i in r for j in r if i <= j}
    return torch.stack([dots[min(i, j), max(i, j)] for i in r for j in r]).unflatten(0, (len(rows), -1))


class _Mix(Function):
    """``sum_i f_i x_i`` of rows ``(N, width)`` with factors ``(count, N)``."""

    @staticmethod
    def forward(ctx, factors, *rows):
        ctx.save_for_backward(factors, *rows)
        out = rows[0] * factors[0, :, None]
        for x, factor in zip(rows[1:], factors[1:, :, None]):
            out.addcmul_(x, factor)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        factors, *rows = ctx.saved_tensors
        return torch.stack([(grad * x).sum(-1) for x in rows]), *(grad * f for f in factors[..., None])


def combine(
    shared: list[Tensor],
    experts: list[Tensor],
    weights: Tensor,
    w_y: Tensor,
    scale: Tensor,
    released: bool,
    safe: bool = True,
    fused: bool = True,
) -> Tensor:
    r"""The points of the experts of a token, and of the shared one, to one.

    All that happens stays in the span of the given rows, so that it is done with their inner products; the result is
    one linear combination.

    Args:
        shared: rows ``(N, width)`` without time; one at most if released.
        experts: for each of the k experts of a token its row without time, in ascending order of the expert.
        weights: ``(N, k)``, of the experts, none below 0.
        w_y, scale: of the connection with the shared one, scalars.
        released: the connections one after the other, each scaled by 2, and the shared one by ``exp(scale)``; or the
            paper's centroid of all, in which shared ones weigh 1.
        safe, fused: see above.

    Returns:
        Rows ``(N, width)`` without time.
    """
    rows = [*experts, *shared]
    handmade, k = by_hand(fused, rows[0]), len(experts)
    gram = _Gram.apply(*rows) if handmade else _gram(rows, lambda x: x.square().sum(-1))
    times = torch.sqrt(torch.diagonal(gram).T + 1)
    weights = weights.T
    if released:
        factors, time = weights[:0], torch.ones_like(times[0])  # the origin, where it begins, is all time
        for i, w in enumerate(weights):
            inner = time * times[i]
            if i:
                inner = inner - (factors * gram[i, :i]).sum(0)
            # of y + w e with <y, y> = <e, e> = -1
            m = torch.addcmul(1 + w * w, w, inner, value=2).clamp(min=1.0 if safe else 1e-4)
            r = 2 * torch.rsqrt(m)
            factors = torch.cat([factors * r, (w * r)[None]])
            # the space part of the result has twice the length that makes <y, y> = -1
            time = torch.sqrt((r * torch.addcmul(time, w, times[i])).square() - 3)
        if shared:
            inner = times[k] * time - (factors * gram[k, :k]).sum(0)
            m = 1 + w_y * w_y + 2 * w_y * inner
            r = torch.exp(scale) * torch.rsqrt(torch.where(w_y >= 0, m, m.abs()).clamp(min=floor_of(w_y, safe)))
            factors = torch.cat([factors * (w_y * r), r[None]])
    else:
        factors = torch.cat([weights, torch.ones_like(times[k:])])
        # -<a, a> of the sum, in which -<x, x> = 1 of each is not a difference of squares
        own = torch.eye(len(rows), dtype=torch.bool, device=gram.device)[..., None]
        inner = torch.where(own, 1.0, times[:, None] * times - gram)
        m = (factors * (factors * inner).sum(1)).sum(0)
        factors = factors * torch.rsqrt(m.clamp(min=factors.sum(0).square() if safe else torch.full_like(m, 1e-6)))
    return _Mix.apply(factors, *rows) if handmade else sum(x * f for x, f in zip(rows, factors[..., None]))
