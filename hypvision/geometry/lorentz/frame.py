"""Helpers of the functions of the Lorentz model: caps, points from time and space parts, projections."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import Function, asinh, dot, has_float64, plain, safe_sqrt, saturate_gradient, square_norm, widen

# sqrt(c) * radius is capped at this value, so that squares of sinh(radius) do not overflow
_CAP = {torch.float32: 40.0, torch.float64: 350.0}
_LIMIT = {dtype: math.sinh(cap) ** 2 for dtype, cap in _CAP.items()}
# Cap of the squared norm of the coordinates of tangent vectors. At a capped point, a tangent vector of Riemannian
# length cap has coordinates up to cap * cosh(cap).
_LONGEST = {torch.float32: 1e37, torch.float64: 1e307}
# vectors are split into a radial and a perpendicular part if the squared norm of the scaled space part exceeds this
_FAR = 0.25


def _root(c: Curvature) -> Curvature:
    return c**0.5


def _largest(v: Tensor) -> Tensor:
    """Largest absolute coordinate ``(..., 1)``, without gradient; no temporary as large as ``v``."""
    v = v.detach()
    return torch.maximum(v.amax(-1, keepdim=True), -v.amin(-1, keepdim=True))


def _overflowing(v: Tensor, over: Tensor) -> Tensor:
    """Largest absolute coordinate in the rows ``over``, whose squares overflow, and 1 in others; no gradient.

    NaN for rows with an infinite coordinate, which no factor can scale back.
    """
    largest = torch.where(over, _largest(v), 1.0)
    return largest.masked_fill(largest == math.inf, math.nan)


def _times(v: Tensor, factor: float | Tensor) -> Tensor:
    """The product, without a copy where the factor is the number 1."""
    return v if isinstance(factor, (int, float)) and factor == 1 else v * factor


def _multiple(v: Tensor, t: float | Tensor, name: str) -> Tensor:
    """``t v``, cut where a number would overflow: the direction stays, for an infinite ``t`` too.

    Raises:
        ValueError: ``t``, the argument ``name`` of a function, would scale each coordinate by itself.
    """
    if isinstance(t, Tensor) and t.dim() and t.shape[-1] != 1:
        raise ValueError(
            f"{name} must be a number, or end in a dimension of 1 that stands for the coordinates: (..., 1). Got the "
            f"shape {tuple(t.shape)}; unsqueeze(-1) adds that dimension."
        )
    most, tiny = torch.finfo(v.dtype).max, torch.finfo(v.dtype).tiny
    longest = (most / 2 / _largest(v).clamp(min=tiny)).clamp(max=most)
    t = t if isinstance(t, Tensor) else torch.full_like(longest, t)
    return saturate_gradient(v) * torch.minimum(torch.maximum(t, -longest), longest)


def _bound(v: Tensor, c: Curvature, limit: float) -> tuple[float | Tensor, Tensor]:
    """Factor ``(..., 1)``, or 1, that brings ``c |v|^2`` to at most ``limit``, and that squared norm with the factor.

    The factor is a constant of differentiation: 1 where nothing is capped, and beyond, where vectors are lost anyway,
    its derivative would overflow.
    """
    square = square_norm(v)
    q = _times(square, c)
    # on a CPU reading the maximum is cheap, so most calls return here; a maximum of NaN does not
    if v.device.type == "cpu" and not plain(v) and q.numel() and q.amax().item() <= limit:
        return 1.0, q
    over = torch.isinf(q)  # in these rows the norm overflows: use the largest coordinate
    largest = _overflowing(v, over)
    # 0 instead of the infinite square: otherwise the gradient of the curvature would be infinity times 0
    q = torch.where(over, largest * math.inf, torch.where(over, 0.0, square) * c)
    with torch.no_grad():
        factor = math.sqrt(limit) / torch.sqrt(torch.where(over, torch.full_like(q, limit), q).clamp(min=limit))
        factor = torch.where(q > limit, factor, torch.ones_like(q))  # rows within the limit get exactly 1
        factor = torch.where(over, math.sqrt(limit / v.shape[-1]) / _root(c) / largest, factor)
    return factor, q.clamp(max=limit)


def _scaled(space: Tensor, c: Curvature) -> tuple[Tensor, Tensor]:
    """Space part times sqrt(c), capped, and its squared norm ``(..., 1)``."""
    space, q = _capped(space, c)
    return _times(space, _root(c)), q


def _capped(space: Tensor, c: Curvature) -> tuple[Tensor, Tensor]:
    """Space part, capped, and ``c`` times its squared norm ``(..., 1)``."""
    factor, q = _bound(space, c, _LIMIT[space.dtype])
    return _times(space, factor), q


def _capped_tangent(v: Tensor) -> Tensor:
    """Tangent vectors, capped so that their squares do not overflow."""
    factor, _ = _bound(v, 1.0, _LONGEST[v.dtype])
    return _times(v, factor)


def _lift(time: Tensor, factor: float | Tensor, space: Tensor) -> Tensor:
    """Vectors ``[time, factor * space]``."""
    return _join(time, _times(space, factor))


def _join(time: Tensor, space: Tensor) -> Tensor:
    return torch.cat([time.expand(*space.shape[:-1], 1), space], -1)


def _lift_scaled(space: Tensor, c: Curvature) -> Tensor:
    """Points ``(..., n + 1)`` in units of the radius, capped, from space parts."""
    space, q = _capped(space, c)
    return _lift(torch.sqrt(1 + q), _root(c), space)


def _arrive(space: Tensor, c: Curvature) -> Tensor:
    """Points from scaled space parts that may lie beyond the cap."""
    factor, q = _bound(space, 1.0, _LIMIT[space.dtype])
    root = _root(c)
    return _lift(torch.sqrt(1 + q) / root, factor / root, space)


def _shares(x: Tensor, v: Tensor, grad: Tensor, where: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In the rows ``where``: unit vectors of ``x``, ``x . v / |x|^2``, ``x . grad / |x|`` and ``x . grad / |x|^2``."""
    length = safe_sqrt(square_norm(x))
    unit = torch.where(where, x / torch.where(length > 0, length, torch.ones_like(length)), torch.zeros_like(x))
    length = torch.where(where, length, torch.ones_like(length))
    along = dot(unit, grad)
    return unit, dot(unit, v / length), along, along / length


class _Perpendicular(Function):
    """``v - amount * x`` with ``amount = x . v / |x|^2`` in the rows ``where``, computed in float64."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, x: Tensor, where: Tensor) -> Tensor:
        ctx.save_for_backward(v, x, where)
        out, x64 = widen(v), widen(x)
        square = torch.einsum("...d,...d->...", x64, x64).unsqueeze(-1)
        for _ in range(1 if has_float64(v) else 2):
            amount = torch.einsum("...d,...d->...", x64, out).unsqueeze(-1) / torch.where(where, square, 1)
            out = torch.where(where, torch.addcmul(out, x64, amount, value=-1), out)
        return out.to(v.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        v, x, where = ctx.saved_tensors
        unit, amount, along, share = _shares(x, v, grad, where)
        grad_v = (grad - unit * along).sum_to_size(v.shape)
        grad_x = (unit * (2 * amount * along) - grad * amount - v * share).sum_to_size(x.shape)
        return grad_v, grad_x, None


def _perpendicular(v: Tensor, x: Tensor, where: Tensor) -> Tensor:
    """``v`` without its part along ``x``, in the rows ``where``.

    What remains is as small as ``|v| / cosh(r)`` for tangent vectors at the radius ``r``: it takes float64, or at least
    a second projection, to keep its digits.
    """
    if v.dtype == torch.float32 and not plain(v):
        found: Tensor = _Perpendicular.apply(v, x, where)
        return found
    in_float64 = has_float64(v)
    out, x = widen(v), widen(x)
    square = (x * x).sum(-1, keepdim=True)
    safe = torch.where(where, square, torch.ones_like(square))
    for _ in range(1 if in_float64 and v.dtype == torch.float32 else 2):
        out = out - x * torch.where(where, (x * out).sum(-1, keepdim=True) / safe, torch.zeros_like(square))
    return out.to(v.dtype)


def _move(qx: Tensor, radial: Tensor, ahead: Tensor, perp: Tensor, chord: Tensor) -> Tensor:
    """Coefficient of ``x / |x|`` of the point that is reached from ``x``, in the direction away from the origin.

    Args:
        qx: squared norm of the space part, in units of the radius of curvature.
        radial: radial part of the velocity times sinh(z) / z, in the unit frame.
        ahead: ``z``, the length of the velocity.
        perp: squared length of the perpendicular part, times (sinh(z) / z)^2.
        chord: sinh(z).
    """
    tx, nx = torch.sqrt(1 + qx), safe_sqrt(qx)
    outward = nx * torch.sqrt(1 + chord * chord) + tx * radial
    inside = radial < -0.01  # for other directions nothing cancels
    one = torch.ones_like(radial)
    bottom = torch.where(inside, chord - radial, one)
    inward = torch.sinh(asinh(nx) - ahead) + tx * (perp / bottom)
    return torch.where(inside, inward, outward)
