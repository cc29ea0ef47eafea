"""Points of the unit hyperboloid as rows of a matrix, and the row operations of a decoder.

A row is ``[space | time | zeros]``: ``n`` space coordinates, the time at position ``n``, and zeros
up to a width that suits matrix products. Weights have a zero row where the time goes, so a product
leaves that place free, and the time is written into it without a concatenation. A row *without
time* has a zero there. With ``n`` None rows are Euclidean: all space, no time.

The sectional curvature is -1 everywhere but in an expert, whose points satisfy ``<x, x> = -c`` with
HELM's ``c``.

With ``fused`` the times are written in place by :class:`_Lift`, which has a backward written by
hand; compilers, which fuse by themselves, always get plain operations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.geometry.numerics import Function, exact, plain
from hypvision.nn.functional import add_scaled, sized

HALF = (torch.float16, torch.bfloat16)
_ONE = torch.tensor(1.0)
# a number of float32 below 1: a square that is the least one, as without any weight, has a gradient
ALMOST = 1 - 2.0**-24


def upcast(x: Tensor) -> Tensor:
    """Return ``x`` in at least float32, because half precision is too coarse for times and
    norms."""
    return x.float() if x.dtype in HALF else x


def by_hand(fused: bool, x: Tensor) -> bool:
    """Return whether an operation uses its backward written by hand instead of plain operations."""
    return fused and not plain(x)


def lift(
    rows: Tensor,
    n: int | None,
    c: float | Tensor = 1.0,
    fresh: bool = False,
    cut: bool = True,
    width: int | None = None,
) -> Tensor:
    """Return points with :math:`<x, x> = -c` for rows with any number in the place of the time. If
    rows are ``fresh``, which means that nothing else reads them, the points have the same memory.
    Without ``cut`` the gradient in the place of the time is any number, for rows that are made of
    zeros there. With a ``width`` rows have only space, and are filled with zeros up to it."""
    rows = upcast(rows)
    spare = 0 if width is None else width - rows.shape[-1]
    if n is not None and by_hand(fresh, rows):
        return _Lift.apply(rows, n, torch.sqrt(torch.as_tensor(c, dtype=rows.dtype)), cut, spare)
    if spare:
        rows = F.pad(rows, (0, spare))
    if n is None:
        return rows
    time = torch.sqrt(rows[..., :n].square().sum(-1, keepdim=True) + c)
    return torch.where(torch.arange(rows.shape[-1], device=rows.device) == n, time, rows)


class _Lift(Function):
    """Compute :func:`lift` in place, or in new memory where rows are filled with zeros."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, n: int, radius: Tensor, cut: bool, spare: int) -> Tensor:
        points = F.pad(rows, (0, spare)) if spare else rows.detach()
        lift_(points, n, radius)
        ctx.save_for_backward(points, radius)
        ctx.n = n
        ctx.cut = cut
        ctx.size = rows.shape[-1]
        return points

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        points, radius = ctx.saved_tensors
        slot = slice(ctx.n, ctx.n + 1)
        ratio = grad[..., slot] / points[..., slot]
        by_rows = torch.addcmul(grad[..., : ctx.size], points[..., : ctx.size], ratio)
        if ctx.cut:
            by_rows[..., slot].zero_()
        needed = ctx.needs_input_grad[2]
        by_radius = (ratio * radius).sum_to_size(radius.shape) if needed else None
        return by_rows, None, by_radius, None, None


def lift_(rows: Tensor, n: int, radius: Tensor = _ONE) -> None:
    """Write the times of the space parts of ``rows``, for a radius of curvature, to the position
    ``n``."""
    length = torch.linalg.vector_norm(rows[..., :n], dim=-1, keepdim=True)
    torch.hypot(length, radius, out=rows[..., n : n + 1])


# --------------------------------------------------------------------------------------------------
# Norm and residual connection


def norm(
    rows: Tensor, gain: Tensor, n: int | None, size: int, eps: float, fused: bool = True
) -> Tensor:
    """Return the RMSNorm of the space parts, ``size`` coordinates, and their time; ``gain`` is as
    wide as rows."""
    space = upcast(rows)[..., :size]
    out = F.rms_norm(space, (size,), gain[:size].to(space.dtype), eps=eps)
    return lift(out, n, fresh=fused, cut=False, width=rows.shape[-1])


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
    r"""Return HELM's residual connection, and the RMSNorm after it.

    The residual connection is the normalised sum :math:`x + w y` of points ``x`` and of the points
    ``y`` of the branch ``u``, rows without time ``(..., width)``, with its space part times
    ``scale``. The norm is over ``size`` coordinates, and None without a ``gain`` ``(width,)``. For
    Euclidean rows ``weight`` and ``n`` are None.
    """
    u = upcast(u)
    x = x.to(u.dtype)
    if n is None or weight is None:
        out = x + u
    else:
        weight = weight.to(u.dtype)
        y = lift(u, n, fresh=fused)
        square = _sum_square(x, y, weight, n, safe)
        moved = sized(add_scaled(x, y, weight), 1.0, 1e-4, scale, n, square)
        out = lift(moved, n, fresh=fused)
    return out, None if gain is None else norm(out, gain, n, size, eps, fused)


@torch.no_grad()
def _sum_square(x: Tensor, y: Tensor, weight: Tensor, n: int, safe: bool) -> Tensor:
    r"""Return :math:`-\langle x + w y, x + w y\rangle = 1 + w^2 - 2 w \langle x, y\rangle` of
    points.

    In this form digits are kept also where ``x`` is so far from the origin that the difference of
    squares has no correct digit.
    """
    products = x * y
    inner = torch.sub(products.sum(-1, keepdim=True), products[..., n : n + 1], alpha=2)
    if safe:
        inner.clamp_(max=-1.0)
    return torch.addcmul(weight * weight + 1, weight, inner, value=-2)


# --------------------------------------------------------------------------------------------------
# SwiGLU


def swiglu(z: Tensor, n: int | None, c: float | Tensor = 1.0, fused: bool = True) -> Tensor:
    """Return the points ``(..., width)`` with the space part ``silu(gate) * up`` of rows
    ``[gate | up]`` without time, ``(..., 2 width)``."""
    gate, up = upcast(z).chunk(2, -1)
    return lift(F.silu(gate) * up, n, c, fresh=fused, cut=False)


# --------------------------------------------------------------------------------------------------
# RoPE's rotation, and the means of attention


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return ``x`` with the pairs ``(j, j + d/2)`` of its last dimension rotated. ``cos`` and
    ``sin`` are tables of :class:`hypvision.helm.rope.Rotary` and broadcast; ``-sin`` gives the
    inverse.

    Official weights have the pairs side by side; the converter permutes their rows once.
    """
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def turn_(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> None:
    """Rotate ``x`` in place as :func:`turn` does; with the sign -1 rotate it back."""
    rolled = x.roll(x.shape[-1] // 2, -1)
    x.mul_(cos).addcmul_(rolled, sin, value=sign)


def centroid(heads: Tensor, size: int, width: int, safe: bool = True) -> Tensor:
    """Return the centroids of heads side by side, rows ``(B, L, width)`` filled with zeros, from
    sums of weighted points ``(B, L, H, size or more)``, with space first and the time at
    ``size - 1``; coordinates after the time are dropped. For ``safe`` see ``safe_clamp`` of
    :class:`hypvision.helm.config.Architecture`."""
    points = upcast(heads)[..., :size]
    return join(sized(points, 1.0, 1.0 if safe else 1e-6, slot=size - 1), width)


def join(heads: Tensor, width: int) -> Tensor:
    """Return heads ``(B, L, H, size)`` side by side, filled with zeros up to ``width``."""
    flat = heads.flatten(-2)
    return F.pad(flat, (0, width - flat.shape[-1])) if width > flat.shape[-1] else flat


# --------------------------------------------------------------------------------------------------
# Combination of experts


def combine(
    rows: Tensor,
    weights: Tensor,
    w_y: Tensor | None,
    scale: Tensor | None,
    released: bool,
    safe: bool = True,
) -> Tensor:
    r"""Return one point for each token, combined from the points of its experts and of shared ones.

    The result lies in the span of the given rows ``(N, width)`` without time, so it is one linear
    combination, whose factors follow from inner products.

    Args:
        rows: rows without time ``(K, N, width)``: those of each of the k experts of a token, in
            ascending order of the expert, then those of shared experts, at most one if
            ``released``.
        weights: weights ``(N, k)`` of the experts, none below 0.
        w_y, scale: weight and scale of the released connection with the shared expert, scalars;
            None where there is none.
        released: whether experts are connected one after the other as in the released code, each
            connection scaled by 2 and the shared one by ``exp(scale)``; else the result is the
            paper's centroid of all, in which shared experts have the weight 1.
        safe: see ``safe_clamp`` of :class:`hypvision.helm.config.Architecture`.
    """
    with exact(rows.device):
        own = rows.transpose(0, 1)
        gram = torch.bmm(own, own.mT).permute(1, 2, 0)
        times = torch.sqrt(torch.diagonal(gram).T + 1)
        if released:
            factors = _one_by_one(gram, times, weights.T, w_y, scale, safe)
        else:
            factors = _at_once(gram, times, weights.T, safe)
        return torch.bmm(factors.T[:, None], own)[:, 0]


def _one_by_one(
    gram: Tensor,
    times: Tensor,
    weights: Tensor,
    w_y: Tensor | None,
    scale: Tensor | None,
    safe: bool,
) -> Tensor:
    """Return the factors ``(rows, N)`` of the released sum, which connects one row after the
    other."""
    least = 1.0 if safe else 1e-4
    # The sum begins with the origin, whose space part is 0.
    factors = weights[:0]
    time: Tensor | float = 1.0
    for i, w in enumerate(weights):
        inner = time * times[i] - (factors * gram[i, :i]).sum(0) if i else times[i]
        # m is minus the Minkowski square of y + w e, with <y, y> = <e, e> = -1
        m = 1 + w * torch.add(w, inner, alpha=2)
        step = 2 * torch.rsqrt(F.threshold(m, least * ALMOST, least))
        own = (w * step)[None]
        factors = torch.cat([factors * step, own]) if i else own
        # The space part of the result is twice as long as that of a point with <y, y> = -1, which
        # the time accounts for.
        time = torch.sqrt((step * (time + w * times[i])).square() - 3)
    if w_y is None or scale is None:
        return factors
    k = len(weights)
    inner = times[k] * time - (factors * gram[k, :k]).sum(0)
    m = 1 + w_y * torch.add(w_y, inner, alpha=2)
    # For points and weights of at least 0 the square is at least 1; for negative weights the clamp
    # is as published.
    least_m = torch.where(w_y >= 0, 1.0, 1e-4) if safe else 1e-4
    step = torch.exp(scale) * torch.rsqrt(torch.where(w_y >= 0, m, m.abs()).clamp(min=least_m))
    return torch.cat([factors * (w_y * step), step[None]])


def _at_once(gram: Tensor, times: Tensor, weights: Tensor, safe: bool) -> Tensor:
    """Return the factors ``(rows, N)`` of the paper's centroid of all rows."""
    factors = torch.cat([weights, torch.ones_like(times[len(weights) :])])
    # m is -<a, a> of the sum a. For each point itself -<x, x> = 1 is used instead of a difference
    # of squares.
    own = torch.eye(len(gram), dtype=torch.bool, device=gram.device)[..., None]
    inner = torch.where(own, 1.0, times[:, None] * times - gram)
    m = (factors * (factors * inner).sum(1)).sum(0)
    least = factors.sum(0).square() if safe else torch.full_like(m, 1e-6)
    return factors * torch.rsqrt(m.clamp(min=least))
