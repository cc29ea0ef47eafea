"""Points of the unit hyperboloid as rows of a matrix, and the row operations of a decoder.

A row is ``[space | time | zeros]``: ``n`` space coordinates, the time in slot ``n``, zeros up to a
width that suits matrix products. Weights have a zero row where the time goes, so a product leaves
that slot free, and the time is written into it without a concatenation. A row *without time* has a
zero there. With ``n`` None rows are Euclidean: all space, no time.

The curvature is -1 everywhere but in an expert, whose points satisfy ``<x, x> = -c`` with HELM's
``c``.

With ``fused`` the times are written in place, by :class:`_Lift`, whose backward is by hand;
compilers, which fuse by themselves, take plain operations always.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.geometry.numerics import Function, plain
from hypvision.nn.functional import sized

HALF = (torch.float16, torch.bfloat16)
_ONE = torch.tensor(1.0)


def upcast(x: Tensor) -> Tensor:
    """At least float32: half precision is too coarse for times and norms."""
    return x.float() if x.dtype in HALF else x


def by_hand(fused: bool, x: Tensor) -> bool:
    """Whether an operation takes its backward written by hand, rather than plain operations."""
    return fused and not plain(x)


def lift(rows: Tensor, n: int | None, c: float | Tensor = 1.0, fresh: bool = False) -> Tensor:
    """Rows with any number in the slot of the time to points with :math:`<x, x> = -c`; those of
    ``fresh`` rows, which nothing else reads, are the same memory."""
    rows = upcast(rows)
    if n is None:
        return rows
    if by_hand(fresh, rows):
        return _Lift.apply(rows, n, torch.sqrt(torch.as_tensor(c, dtype=rows.dtype)))
    time = torch.sqrt(rows[..., :n].square().sum(-1, keepdim=True) + c)
    return torch.where(torch.arange(rows.shape[-1], device=rows.device) == n, time, rows)


class _Lift(Function):
    """:func:`lift` in place."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, n: int, radius: Tensor) -> Tensor:
        points = rows.detach()
        lift_(points, n, radius)
        ctx.save_for_backward(points, radius)
        ctx.n = n
        return points

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None]:
        points, radius = ctx.saved_tensors
        slot = slice(ctx.n, ctx.n + 1)
        ratio = grad[..., slot] / points[..., slot]
        by_rows = torch.addcmul(grad, points, ratio)
        by_rows[..., slot].zero_()
        needed = ctx.needs_input_grad[2]
        return by_rows, None, (ratio * radius).sum_to_size(radius.shape) if needed else None


def lift_(rows: Tensor, n: int, radius: Tensor = _ONE) -> None:
    """Write the times of space parts for a radius of curvature into the slot ``n``."""
    length = torch.linalg.vector_norm(rows[..., :n], dim=-1, keepdim=True)
    torch.hypot(length, radius, out=rows[..., n : n + 1])


# --------------------------------------------------------------------------------------------------
# Norm and residual


def norm(
    rows: Tensor, gain: Tensor, n: int | None, size: int, eps: float, fused: bool = True
) -> Tensor:
    """RMSNorm of the space parts, ``size`` coordinates, and their time; ``gain`` is as wide as
    rows."""
    space = upcast(rows)[..., :size]
    out = F.rms_norm(space, (size,), gain[:size].to(space.dtype), eps=eps)
    return lift(F.pad(out, (0, rows.shape[-1] - size)), n, fresh=fused)


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
    there is a ``gain`` ``(width,)``, the RMSNorm behind it over ``size`` coordinates. For Euclidean
    rows ``weight`` and ``n`` are None."""
    u = upcast(u)
    x = x.to(u.dtype)
    if n is None or weight is None:
        out = moved = x + u
    else:
        weight = weight.to(u.dtype)
        y = lift(u, n, fresh=fused)
        square = _sum_square(x, y, weight, n, safe)
        moved = sized(x + weight * y, 1.0, 1e-4, scale, n, square)
        # the norm reads the space part as it is
        out = lift(moved.clone(), n, fresh=fused)
    return out, None if gain is None else norm(moved, gain, n, size, eps, fused)


@torch.no_grad()
def _sum_square(x: Tensor, y: Tensor, weight: Tensor, n: int, safe: bool) -> Tensor:
    r""":math:`-\langle x + w y, x + w y\rangle = 1 + w^2 - 2 w \langle x, y\rangle` of points.

    Where ``x`` is far from the origin, the difference of squares has no correct digit.
    """
    times = x[..., n : n + 1] * y[..., n : n + 1]
    inner = torch.sub((x * y).sum(-1, keepdim=True), times, alpha=2)
    if safe:
        inner.clamp_(max=-1.0)
    return torch.addcmul(weight * weight + 1, weight, inner, value=-2)


# --------------------------------------------------------------------------------------------------
# SwiGLU


def swiglu(z: Tensor, n: int | None, c: float | Tensor = 1.0, fused: bool = True) -> Tensor:
    """``silu(gate) * up`` of rows ``[gate | up]`` without time, lifted: ``(..., 2 width)`` to
    ``(..., width)``."""
    gate, up = upcast(z).chunk(2, -1)
    return lift(F.silu(gate) * up, n, c, fresh=fused)


# --------------------------------------------------------------------------------------------------
# Rotary code, and the means of attention


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs ``(j, j + d/2)`` of the last dimension; the tables of
    :class:`hypvision.helm.rope.Rotary` broadcast. The inverse has ``-sin``.

    Official weights have the pairs side by side; the converter permutes their rows once.
    """
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def turn_(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> None:
    """:func:`turn` in place; back with the sign -1."""
    rolled = x.roll(x.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(rolled, sin, value=sign)


def centroid(heads: Tensor, size: int, width: int, safe: bool = True) -> Tensor:
    """Sums of weighted points, one a head, to their centroids side by side: rows ``(B, L, width)``,
    filled with zeros, of heads ``(B, L, H, size or more)``, space first and time in ``size - 1``;
    coordinates after that are dropped. ``safe``: see
    :class:`hypvision.helm.config.Architecture`."""
    points = upcast(heads)[..., :size]
    return join(sized(points, 1.0, 1.0 if safe else 1e-6, slot=size - 1), width)


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
    dots = [[_dot(x, y) for y in rows[: i + 1]] for i, x in enumerate(rows)]
    places = range(len(rows))
    gram = torch.stack([dots[max(i, j)][min(i, j)] for i in places for j in places])
    gram = gram.unflatten(0, (len(rows), -1))
    times = torch.sqrt(torch.diagonal(gram).T + 1)
    if released:
        factors = _one_by_one(gram, times, weights.T, w_y, scale, safe)
    else:
        factors = _at_once(gram, times, weights.T, safe)
    out = rows[0] * factors[0, :, None]
    for row, factor in zip(rows[1:], factors[1:, :, None]):
        out = torch.addcmul(out, row, factor)
    return out


def _dot(x: Tensor, y: Tensor) -> Tensor:
    # square() has a cheaper backward than the product of a row with itself
    return (x.square() if x is y else x * y).sum(-1)


def _one_by_one(
    gram: Tensor,
    times: Tensor,
    weights: Tensor,
    w_y: Tensor | None,
    scale: Tensor | None,
    safe: bool,
) -> Tensor:
    """Factors ``(rows, N)`` of the released sum: connections one after the other."""
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
    if w_y is None or scale is None:
        return factors
    k = len(weights)
    inner = times[k] * time - (factors * gram[k, :k]).sum(0)
    m = 1 + w_y * w_y + 2 * w_y * inner
    # at least 1 for points and a weight from 0 on, else as published
    least = torch.where(w_y >= 0, 1.0, 1e-4) if safe else 1e-4
    step = torch.exp(scale) * torch.rsqrt(torch.where(w_y >= 0, m, m.abs()).clamp(min=least))
    return torch.cat([factors * (w_y * step), step[None]])


def _at_once(gram: Tensor, times: Tensor, weights: Tensor, safe: bool) -> Tensor:
    """Factors ``(rows, N)`` of the paper's centroid of all."""
    factors = torch.cat([weights, torch.ones_like(times[len(weights) :])])
    # -<a, a> of the sum; use -<x, x> = 1 for each point instead of a difference of squares
    own = torch.eye(len(gram), dtype=torch.bool, device=gram.device)[..., None]
    inner = torch.where(own, 1.0, times[:, None] * times - gram)
    m = (factors * (factors * inner).sum(1)).sum(0)
    least = factors.sum(0).square() if safe else torch.full_like(m, 1e-6)
    return factors * torch.rsqrt(m.clamp(min=least))
