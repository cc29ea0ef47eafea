"""Tangent vectors of the hyperboloid: exponential and logarithm, projections, inner products, parallel transport."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import (
    Function,
    asinhc_sqrt,
    backward_of,
    dot,
    needs_grad,
    plain,
    safe_sqrt,
    saturate,
    saturate_gradient,
    sinhc_sqrt,
    square_norm,
    stable,
    widen,
)
from ..rows import blocked
from .frame import (
    _CAP,
    _FAR,
    _LONGEST,
    _bound,
    _capped,
    _capped_tangent,
    _join,
    _move,
    _perpendicular,
    _root,
    _scaled,
    _times,
)
from .pairs import far_pair, near_pair, space_of
from .points import _from_space


@stable("x", "u")
def expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Exponential map: the point that the geodesic from ``x`` with the velocity ``u`` reaches after unit time.

    Args:
        x: points ``(..., n + 1)``.
        u: tangent vectors at ``x``, ``(..., n + 1)``; only their space part is read. Vectors longer than 43 (355 in
            float64) radii of curvature are shortened to that length.
        c: curvature.
    """
    return _expmap(x, u, c)


@blocked
def _expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    if x.dtype == u.dtype == torch.float32 and x.device.type == "cpu" and not plain(x):
        found = _expmap_textbook(x[..., 1:], u[..., 1:], c)
        if found is None:
            found = _expmap_near(widen(x[..., 1:]), widen(u[..., 1:]), c)
        if found is not None:
            return found
    return _expmap_far(x, u, c)


# Up to this sinh(r)^2 of the point (r = 1.5) and squared length of the tangent vector (length 2) the textbook formula
# errs by a few units of round-off.
_NEARBY = math.sinh(1.5) ** 2, 4.0
# While the norm of all vectors and the time of the points (radius 10) stay below these, no product overflows.
_SHORT, _MODERATE = 1e15, math.cosh(10.0)


def _expmap_textbook(x: Tensor, v: Tensor, c: Curvature) -> Tensor | None:
    """``cosh(z) x + sinh(z) / z v`` of space parts in their dtype; None where points or vectors are too long."""
    qx, qv = _times(square_norm(x), c), _times(square_norm(v), c)
    if qx.numel() and not (qx.amax().item() <= _NEARBY[0] and qv.amax().item() <= _NEARBY[1]):
        return None
    along = _times(dot(x, v), c)
    time2 = 1 + qx
    z2 = (qv - along * along / time2).clamp(min=0)
    stretch = sinhc_sqrt(z2)
    cosh = torch.sqrt(1 + z2 * stretch * stretch)
    time = torch.sqrt(time2) * cosh + along * torch.rsqrt(time2) * stretch
    return _join(_times(time, 1 / _root(c)), torch.addcmul(x * cosh, v, stretch))


# Up to this sinh(r)^2 of a point (radius 10) and squared length of a tangent vector the float64 formula is exact.
_REACH = math.sinh(10.0) ** 2, 100.0


def _expmap_near(x: Tensor, v: Tensor, c: Curvature) -> Tensor | None:
    """In float64, from space parts, so that differences keep the digits of float32; None for points or vectors that are
    too long for that."""
    qx, along = _times((x * x).sum(-1, keepdim=True), c), _times((x * v).sum(-1, keepdim=True), c)
    far = qx > _FAR
    share = torch.where(far, along / torch.where(far, qx, 1.0), 0.0)
    across = torch.addcmul(v, x, share, value=-1)
    z2 = _times((across * across).sum(-1, keepdim=True), c) + torch.where(far, share, -along) * along / (1 + qx)
    if qx.numel() and not (qx.amax().item() <= _REACH[0] and z2.amax().item() <= _REACH[1]):
        return None
    z2 = z2.clamp(min=0)
    stretch = sinhc_sqrt(z2)
    out = torch.addcmul(across * stretch, x, torch.sqrt(1 + z2 * stretch * stretch) + share * stretch)
    time = torch.sqrt((out * out).sum(-1, keepdim=True) + 1 / c)
    return torch.cat([time, out], -1).float()


def _expmap_far(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    root = _root(c)
    x, qx = _capped(x[..., 1:], c)
    factor, _ = _bound(u[..., 1:], c, _LONGEST[u.dtype])
    v = _times(u[..., 1:], factor)
    far = qx > _FAR
    one = torch.ones_like(qx)
    nx, tx = torch.where(far, safe_sqrt(qx), one), torch.sqrt(1 + qx)
    along = dot(x, v * root) * root
    perp = _perpendicular(v, x, far)
    perp2 = square_norm(perp * root)
    radial = along / (nx * tx)
    time = along / tx
    z2 = torch.where(far, radial * radial + perp2, perp2 - time * time).clamp(min=0)
    longest = (_CAP[v.dtype] + (3 if v.dtype == torch.float32 else 5)) ** 2
    short = torch.sqrt(longest / z2.detach().clamp(min=longest))
    z2 = z2.clamp(max=longest)
    stretch = sinhc_sqrt(z2)
    factor = stretch * short
    z = safe_sqrt(z2)
    chord = z * stretch
    cosh = torch.sqrt(1 + chord * chord)
    arrived = _move(qx, radial * factor, z, perp2 * factor * factor, chord)
    amount = torch.where(far, arrived / nx, cosh)
    return _from_space(x * amount + perp * factor, c)


@stable("x", "y")
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Logarithm: the tangent vector ``(..., n + 1)`` at ``x`` whose geodesic reaches ``y`` after unit time."""
    return _logmap(x, y, c)


@blocked
def _logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    pair = near_pair(x, y, c)
    if pair is None:
        return _logmap_far(x, y, c)
    half = pair.q / 2
    factor = asinhc_sqrt(half / 2) * torch.rsqrt(1 + half / 2)  # distance / sinh(distance)
    out = torch.addcmul(pair.delta, pair.x, half, value=-1) * factor
    out[..., :1] = _times((pair.along - half * pair.qx) * factor / pair.tx, 1 / _root(c))
    return out.float()


def _logmap_far(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    dtype = torch.promote_types(x.dtype, y.dtype)
    pair, root = far_pair(x, y, c), _root(c)
    # distance / sinh(distance) as two factors, so that large numbers are divided before they are multiplied
    bottom = 1 + pair.q / 4
    scale = saturate_gradient(asinhc_sqrt(pair.q / 4) * torch.sqrt(bottom))
    far = pair.far()
    one = torch.ones_like(pair.q)
    nx = torch.where(far, pair.nx, one)
    radial = pair.radial() / bottom * scale
    vector = _perpendicular(pair.delta, pair.x, far)
    back = pair.q / bottom * scale / 2
    amount = torch.where(far, pair.tx * radial / nx, -back)
    time = torch.where(far, pair.nx * radial, (dot(pair.delta, pair.x) * c / bottom * scale - back * pair.qx) / pair.tx)
    return saturate(_join(time / root, vector / bottom * scale + pair.x * amount), dtype).to(dtype)


@stable("x", "v")
def proju(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Orthogonal projection :math:`v + c\langle x, v\rangle_L x` of ``v`` ``(..., n + 1)`` to the tangent space."""
    one_curvature = not (isinstance(c, Tensor) and c.dim())
    if one_curvature and not plain(x) and x.device.type == "cpu" and x.shape == v.shape and x.numel():
        point = _near_points(x, v, c)
        if point is not None:
            return _Proju.apply(x, v, c, point) if needs_grad(x, v, c) else _projected(point, v, c)[0]
    return _proju(x, v, c)


def _near_points(x: Tensor, v: Tensor, c: Curvature) -> Tensor | None:
    """The points as ``[-time, space]``; None if they or the vectors are so long that products overflow."""
    point = x.detach().clone()
    first, root = point[..., :1], _root(c.detach() if isinstance(c, Tensor) else c)
    first.fill_(1 / root)
    time = torch.linalg.vector_norm(point, dim=-1, keepdim=True)
    largest = (time * root).max().item() if isinstance(c, Tensor) else time.max().item() * root
    if not (largest <= _MODERATE and torch.linalg.vector_norm(v.detach()).item() <= _SHORT):
        return None
    first.copy_(time.neg_())
    return point


def _projected(point: Tensor, v: Tensor, c: Curvature) -> tuple[Tensor, Tensor]:
    """The projection, and the multiple of the point that it adds to ``v``; the time of the point is made positive."""
    amount = _times((point * v).sum(-1, keepdim=True), c)
    point[..., :1].neg_()
    return torch.addcmul(v, amount, point), amount


class _Proju(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, v: Tensor, c: Curvature, point: Tensor) -> Tensor:
        out, amount = _projected(point, v, c)
        ctx.c = None if isinstance(c, Tensor) else c
        ctx.save_for_backward(x, v, point, amount, *([c] if isinstance(c, Tensor) else []))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, v, point, amount, *c = ctx.saved_tensors
        c = c[0] if c else ctx.c
        if torch.is_grad_enabled():
            return *backward_of(_proju, [x, v, c], ctx.needs_input_grad[:3], grad), None
        time = point[..., :1]
        by_amount = (grad * point).sum(-1, keepdim=True)
        share = _times(by_amount, c)
        gv = torch.addcmul(grad, share, point)
        gv[..., :1].addcmul_(share, time, value=-2)
        gx = (grad * amount).addcmul_(v, share)
        first = gx[..., :1]
        by_time = torch.addcmul(first, share, v[..., :1], value=-2).div_(time)
        gx.addcmul_(point, by_time)
        first.zero_()
        by_c = None
        if ctx.needs_input_grad[2]:  # the gradient through the time, which decreases with the curvature
            by_c = ((by_amount * amount).sum() - by_time.sum() / (2 * c)) / c
        return gx, gv, by_c, None


def _proju(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    space, q = _scaled(x[..., 1:], c)
    space, time = saturate_gradient(space), torch.sqrt(1 + q)
    v = _capped_tangent(v)
    vector = v[..., 1:]
    amount = saturate(dot(space, vector) - time * v[..., :1])
    out = saturate(vector + space * amount)
    # without the product with the tangent vector, which may overflow
    return _join(saturate(dot(space, vector) / time + amount * (q / time)), out)


@stable("x", "v")
def egrad2rgrad(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Riemannian gradient ``(..., n + 1)`` from the Euclidean gradient ``v`` ``(..., n + 1)`` at ``x``."""
    space, q = _scaled(x[..., 1:], c)
    space, time = saturate_gradient(space), torch.sqrt(1 + q)
    v = _capped_tangent(v)
    # the derivative along the hyperboloid as a function of the space part
    covector = v[..., 1:] + (space / time) * v[..., :1]
    along = dot(space, covector)
    return _join(saturate(time * along), saturate(covector + space * along))


@stable("x", "u", "v")
def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Inner product ``(...)`` of tangent vectors ``u``, ``v`` at ``x``, all ``(..., n + 1)``."""
    space, q = _capped(x[..., 1:], c)
    u, v = _capped_tangent(u[..., 1:]), _capped_tangent(v[..., 1:])
    far = q > _FAR
    one = torch.ones_like(q)
    lever = torch.sqrt(1 + q) * torch.where(far, safe_sqrt(q), one) / _root(c)
    along = (dot(space, u) / lever) * (dot(space, v) / lever)
    across = dot(_perpendicular(u, space, far), _perpendicular(v, space, far))
    return (across + torch.where(far, one, -one) * along).squeeze(-1)


@stable("x", "u")
def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Length ``(...)`` of tangent vectors ``u`` at ``x``, both ``(..., n + 1)``; gradient 0 where it is 0."""
    return safe_sqrt(inner(x, u, u, c))


@stable("x", "y", "v")
def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Parallel transport of tangent vectors ``v`` from ``x`` to ``y`` along the geodesic, all ``(..., n + 1)``.

    Points far from the origin are computed in float64, if the device has it: the result is the small difference of
    two large parts of the vector.
    """
    return _transp(x, y, v, c)


@blocked
def _transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    pair = near_pair(x, y, c) if v.dtype == torch.float32 else None
    if pair is None or torch.linalg.vector_norm(v.detach()).item() > _SHORT:
        return _transp_far(x, y, v, c)
    v, root = space_of(v), _root(c)
    radial, beyond = _times(dot(pair.x, v), root), _times(dot(pair.delta, v), root)
    share = (beyond - radial * pair.ahead / pair.tx) / (2 + pair.q / 2)
    out = torch.addcmul(v, torch.add(pair.delta, pair.x, alpha=2), _times(share, root))
    out[..., :1] = (radial + beyond + share * (pair.qx + pair.qy + pair.along)) / pair.ty
    return out.float()


def _transp_far(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    dtype = torch.promote_types(x.dtype, torch.promote_types(y.dtype, v.dtype))
    pair, v = far_pair(x, y, c), _capped_tangent(v[..., 1:])
    if pair.q.dtype != v.dtype:
        v = saturate_gradient(widen(v), last=True, dtype=dtype)
    far = pair.far()
    one = torch.ones_like(pair.q)
    nx = torch.where(far, pair.nx, one)
    root = pair.root
    along = dot(pair.x, v) * root
    across = _perpendicular(pair.delta, pair.x, far)
    bottom = 2 + pair.q / 2  # divide first, because products of large numbers overflow
    perp = dot(across * root / bottom, _perpendicular(v, pair.x, far))
    polar = pair.radial() / bottom * (along / (nx * pair.tx)) + perp
    plain = dot(pair.delta * root / bottom, v) - pair.product / bottom / (pair.tx + pair.ty) * (along / pair.tx)
    share = torch.where(far, polar, plain)
    out = v + pair.sum * (share * root)
    return saturate(_join(dot(pair.y * (root / pair.ty), out), out), dtype).to(dtype)


@stable("x", space=("u",))
def transp0(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Parallel transport from the origin to ``x`` ``(..., n + 1)`` of ``u`` ``(..., n)``; returns ``(..., n + 1)``."""
    if isinstance(c, Tensor):  # one curvature per row, so that each row's gradient is limited
        c = saturate_gradient(c * torch.ones_like(x[..., :1]))
    space, q = _capped(x[..., 1:], c)
    u, root = _capped_tangent(u), _root(c)
    if isinstance(root, Tensor):
        root = saturate_gradient(root)
    # in float64, because the product may be tiny compared with the lengths
    along = dot(widen(space), widen(u)).to(u.dtype) * root
    return _join(along, u + space * (along * root / (1 + torch.sqrt(1 + q))))


@stable("x", "v")
def transp0back(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Parallel transport of ``v`` from ``x`` to the origin, both ``(..., n + 1)``.

    Returns:
        The space part ``(..., n)``.
    """
    space, q = _capped(x[..., 1:], c)
    v = _capped_tangent(v[..., 1:])
    time = torch.sqrt(1 + q)
    far = q > _FAR
    scaled = saturate_gradient(_times(space, _root(c)))
    factor = torch.where(far, 1 / (time * torch.where(far, q, torch.ones_like(q))), -1 / (time * (1 + time)))
    return _perpendicular(v, space, far) + scaled * (dot(scaled, v) * saturate_gradient(factor))
