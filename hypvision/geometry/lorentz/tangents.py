"""Tangent vectors of the hyperboloid: exponential and logarithm, projections, inner products, parallel transport."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import (
    Function,
    asinhc_sqrt,
    backward_of,
    dot,
    has_float64,
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
from ..rows import blocked, in_blocks
from .frame import (
    _CAP,
    _FAR,
    _LONGEST,
    _bound,
    _capped,
    _join,
    _move,
    _perpendicular,
    _root,
    _scaled,
    _scaled_tangent,
    _times,
)
from .pairs import Chord, _Pair, _pair, by_rows, chord, covector, keep, near, number, pulled, quick
from .points import _from_space

__all__ = ["egrad2rgrad", "expmap", "inner", "logmap", "norm", "proju", "transp", "transp0", "transp0back"]


@stable("x", "u")
def expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Exponential map: where one arrives from ``x`` with the velocity ``u`` after unit time.

    Args:
        x: points ``(..., n + 1)``.
        u: tangent vectors at ``x``, ``(..., n + 1)``; only their space part is read. Longer than 43 (355 in float64) in
            units of the radius of curvature they count as that long.
        c: curvature.
    """
    return _expmap(x, u, c)


@blocked
def _expmap(x: Tensor, u: Tensor, c) -> Tensor:
    if x.dtype == u.dtype == torch.float32 and x.device.type == "cpu" and not plain(x):
        found = _expmap_level(x[..., 1:], u[..., 1:], c)
        if found is None:
            found = _expmap_near(widen(x[..., 1:]), widen(u[..., 1:]), c)
        if found is not None:
            return found
    return _expmap_far(x, u, c)


# Largest sinh(r)^2 of a point, and squared length of a tangent vector, at which the textbook's sum is right to a few
# units of round-off: radius 1.5, length 2
_NEARBY = math.sinh(1.5) ** 2, 4.0
# Norm of all vectors together at which no product of theirs with points of that time (radius 10) overflows
_SHORT, _MODERATE = 1e15, math.cosh(10.0)


def _expmap_level(x: Tensor, v: Tensor, c) -> Tensor | None:
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


# Largest sinh(r)^2 of a point, and squared length of a tangent vector, at which float64 needs no other forms: radius 10
_REACH = math.sinh(10.0) ** 2, 100.0


def _expmap_near(x: Tensor, v: Tensor, c) -> Tensor | None:
    """In float64, from space parts: what two large parts leave of each other keeps the digits of float32.

    None where points or vectors are too long for that.
    """
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


def _expmap_far(x: Tensor, u: Tensor, c) -> Tensor:
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
    keep = torch.where(far, arrived / nx, cosh)
    return _from_space(x * keep + perp * factor, c)


@stable("x", "y")
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Logarithm: the tangent vector ``(..., n + 1)`` at ``x`` whose geodesic reaches ``y`` after unit time."""
    return by_rows(_Logmap, _logmap_of, x, y, c) if quick(x, y, c) else _logmap(x, y, c)


def _logmap_of(x: Tensor, y: Tensor, c) -> tuple[Tensor]:
    pair = chord(x[:, 1:], y[:, 1:], c)
    factor, dtype = pair.ratio()[1], pair.d.dtype
    back = factor * pair.q / -2  # before it meets the coordinates: their product with q may overflow
    both, gap = pair.ahead()
    time = _times(factor * gap + back * pair.time_x(both, gap, c), 1 / _root(c))
    space = pair.d.mul_(factor.to(dtype)).addcmul_(pair.x, back.to(dtype))
    return (_vector(time, space, x, pair.level),)


def _vector(time: Tensor, space: Tensor, like: Tensor, level: bool) -> Tensor:
    """``[time, space]`` in the dtype and shape of ``like``."""
    if level:
        return torch.cat([time, space], -1).to(like.dtype)
    out = like.new_empty(like.shape)
    out[:, 1:] = saturate(space, like.dtype)
    out[:, :1] = saturate(time, like.dtype)
    return out


def _logmap_back(x: Tensor, y: Tensor, grad: Tensor, c) -> tuple[Tensor, Tensor, Tensor | None]:
    pair = chord(x[:, 1:], y[:, 1:], c)
    q, dtype = pair.q, pair.d.dtype
    grad = grad.to(dtype)
    g, g_time = grad[:, 1:], _times(widen(grad[:, :1]), 1 / _root(c))
    both, gap = pair.ahead()
    tx, ty = pair.time_x(both, gap, c), pair.time_y(both, gap, c)
    factor = pair.ratio()[1]
    along = widen((g * pair.x).sum(-1, keepdim=True)) + g_time * tx
    ahead = widen((g * pair.d).sum(-1, keepdim=True)) + g_time * gap
    slope, sloped = _slope(q, factor)
    gx, gy, by_c = pair.pull(slope * ahead - (sloped + factor) / 2 * along, c)
    back = -factor * (1 + q / 2)
    gx.addcmul_(g, back.to(dtype)).addcmul_(pair.x, _times(back * g_time / tx, c).to(dtype))
    gy.addcmul_(g, factor.to(dtype)).addcmul_(pair.y, _times(factor * g_time / ty, c).to(dtype))
    if by_c is not None:
        by_c = (by_c + g_time * factor / 2 * (1 / tx - 1 / ty + q / (2 * tx))).sum() / c
    return covector(gx, x.dtype), covector(gy, y.dtype), by_c


def _slope(q: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Derivative of ``d / sinh(d)``, which is ``factor``, by ``q = 4 sinh(d / 2)^2``, from float64; and ``q`` times it.

    Far out in float64 the first is 0, and the second is not.
    """
    sloped = (1 - factor * (1 + q / 2)) / (2 + q / 2)
    small, series = q < 1e-5, q / 15 - 1 / 6
    return torch.where(small, series, sloped / q), torch.where(small, q * series, sloped)


class _Logmap(Function):
    @staticmethod
    def forward(ctx, x, y, c):
        keep(ctx, x, y, c)
        return in_blocks(_logmap_of, (x, y), number(c, x))[0]

    @staticmethod
    def backward(ctx, grad):
        return pulled(ctx, _logmap, _logmap_back, grad)


def _logmap(x: Tensor, y: Tensor, c) -> Tensor:
    root = _root(c)
    pair = _pair(x, y, c)
    # distance / sinh(distance) in two factors: large numbers are divided before anything is multiplied by them
    bottom = 1 + pair.q / 4
    scale = saturate_gradient(asinhc_sqrt(pair.q / 4) * torch.sqrt(bottom))
    far = pair.far()
    one = torch.ones_like(pair.q)
    nx = torch.where(far, pair.nx, one)
    radial = pair.radial() / bottom * scale
    vector = _perpendicular(pair.delta, pair.x, far)
    back = pair.q / bottom * scale / 2
    keep = torch.where(far, pair.tx * radial / nx, -back)
    time = torch.where(far, pair.nx * radial, (dot(pair.delta, pair.x) * c / bottom * scale - back * pair.qx) / pair.tx)
    return _join(time / root, vector / bottom * scale + pair.x * keep)


@stable("x", "v")
def proju(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Orthogonal projection :math:`v + c\langle x, v\rangle_L x` of ``v`` ``(..., n + 1)`` to the tangent space."""
    if not plain(x) and x.device.type == "cpu" and x.shape == v.shape and x.numel():
        tensor = isinstance(c, Tensor)
        if not (tensor and c.dim()) and (point := _near_points(x, v, c)) is not None:
            if needs_grad(x, v, c) if tensor else needs_grad(x, v):
                return _Proju.apply(x, v, c, point)
            return _projected(point, v, c)[0]
    return _proju(x, v, c)


def _near_points(x: Tensor, v: Tensor, c) -> Tensor | None:
    """The points as ``[-time, space]``, if nothing of them or of the vectors is so long that products overflow.

    In few calls, for they are what a projection of some points costs.
    """
    point = x.detach().clone()
    first, root = point[..., :1], _root(c.detach() if isinstance(c, Tensor) else c)
    first.copy_(1 / root) if isinstance(c, Tensor) else first.fill_(1 / root)
    time = torch.linalg.vector_norm(point, dim=-1, keepdim=True)
    largest = (time * root).max().item() if isinstance(c, Tensor) else time.max().item() * root
    if not (largest <= _MODERATE and torch.linalg.vector_norm(v.detach()).item() <= _SHORT):
        return None
    first.copy_(time.neg_())
    return point


def _projected(point: Tensor, v: Tensor, c) -> tuple[Tensor, Tensor]:
    """The projection, and how much of the point, whose time it makes positive, it adds to ``v``."""
    amount = _times((point * v).sum(-1, keepdim=True), c)
    point[..., :1].neg_()
    return torch.addcmul(v, amount, point), amount


class _Proju(Function):
    @staticmethod
    def forward(ctx, x, v, c, point):
        out, amount = _projected(point, v, c)
        keep(ctx, x, v, point, amount, c)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, v, point, amount, *c = ctx.saved_tensors
        c = c[0] if c else ctx.number
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
        if ctx.needs_input_grad[2]:  # the time falls with the curvature
            by_c = ((by_amount * amount).sum() - by_time.sum() / (2 * c)) / c
        return gx, gv, by_c, None


def _proju(x: Tensor, v: Tensor, c) -> Tensor:
    space, q = _scaled(x[..., 1:], c)
    space, time = saturate_gradient(space), torch.sqrt(1 + q)
    v = _scaled_tangent(v, 1.0)
    vector = v[..., 1:]
    amount = saturate(dot(space, vector) - time * v[..., :1])
    out = saturate(vector + space * amount)
    # not the product with the vector, which may have overflowed
    return _join(saturate(dot(space, vector) / time + amount * (q / time)), out)


@stable("x", "v")
def egrad2rgrad(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Riemannian gradient ``(..., n + 1)`` from the Euclidean gradient ``v`` ``(..., n + 1)`` at ``x``."""
    space, q = _scaled(x[..., 1:], c)
    space, time = saturate_gradient(space), torch.sqrt(1 + q)
    v = _scaled_tangent(v, 1.0)
    # the derivative along the hyperboloid as a function of the space part
    covector = v[..., 1:] + (space / time) * v[..., :1]
    along = dot(space, covector)
    return _join(saturate(time * along), saturate(covector + space * along))


@stable("x", "u", "v")
def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Inner product ``(...)`` of tangent vectors ``u``, ``v`` at ``x``, all ``(..., n + 1)``."""
    space, q = _capped(x[..., 1:], c)
    u, v = _scaled_tangent(u[..., 1:], 1.0), _scaled_tangent(v[..., 1:], 1.0)
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

    For points far out in float64 inside, where the device has it: what two large parts of the vector leave of each
    other must keep its digits.
    """
    return by_rows(_Transp, _transp_of, x, y, v, c) if quick(x, y, c, v) else _transp_wide(x, y, v, c)


def _transp_of(x: Tensor, y: Tensor, v: Tensor, c) -> tuple[Tensor]:
    pair = _transp_pair(x, y, c)
    if pair is None:
        return (_transp_wide(x, y, v, c),)
    v, root = v[:, 1:].to(pair.d.dtype), _root(c)
    both, gap = pair.ahead()
    tx = pair.time_x(both, gap, c)
    along = widen((pair.x * v).sum(-1, keepdim=True)) / tx
    share = _times(widen((pair.d * v).sum(-1, keepdim=True)) - gap * along, c) / (2 + pair.q / 2)
    out = torch.addcmul(v, pair.s, share.to(v.dtype))
    return (_vector(_times(along, root) + _times(share * both, 1 / root), out, x, pair.level),)


def _transp_pair(x: Tensor, y: Tensor, c) -> Chord | None:
    """A chord in which what two parts of a vector leave of each other keeps its digits; None for points too far out."""
    pair = near(x[:, 1:], y[:, 1:], c, _LEVEL)
    if pair is None and x.dtype == torch.float32 and has_float64(x):
        pair = near(widen(x[:, 1:]), widen(y[:, 1:]), c)
    return pair


# Largest |x_s|^2 + |y_s|^2 at which the parts of transported vectors along and across the radius differ little in size
_LEVEL = 2 * math.sinh(1.2) ** 2


def _transp_back(x: Tensor, y: Tensor, v: Tensor, grad: Tensor, c) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    pair = _transp_pair(x, y, c)
    if pair is None:
        return _transp_far_back(x, y, v, grad, c)
    v, grad = v[:, 1:].to(pair.d.dtype), grad.to(pair.d.dtype)
    g, g_time, root = grad[:, 1:], widen(grad[:, :1]), _root(c)
    times, gap = pair.ahead()
    tx, ty = pair.time_x(times, gap, c), pair.time_y(times, gap, c)
    bottom = 2 + pair.q / 2  # 1 + cosh of the distance
    along = widen((pair.x * v).sum(-1, keepdim=True))
    product = widen((pair.d * v).sum(-1, keepdim=True)) - gap / tx * along
    share = product * c / bottom
    ahead = widen((g * pair.s).sum(-1, keepdim=True))
    by_share = ahead + g_time * times / root
    by_product = by_share * c / bottom
    # g_time root / t_x - by_product t_y / t_x, which cancels
    by_v = -(g_time * root * (pair.ss + pair.ds) / 2 + c * ahead * ty) / (bottom * tx)
    by_along = g_time * root / tx - by_product * gap / tx
    by_tx = g_time * share / root + (by_product * along * ty - g_time * root * along) / (tx * tx)
    by_ty = g_time * share / root - by_product * along / tx
    gx, gy, by_c = pair.pull(-by_share * share / (2 * bottom), c)
    narrow = lambda t: t.to(v.dtype)  # noqa: E731
    gx.addcmul_(g, narrow(share)).addcmul_(v, narrow(by_v)).addcmul_(pair.x, narrow(by_tx * c / tx))
    gy.addcmul_(g, narrow(share)).addcmul_(v, narrow(by_product)).addcmul_(pair.y, narrow(by_ty * c / ty))
    gv = torch.addcmul(g, pair.d, narrow(by_product)).addcmul_(pair.x, narrow(by_along))
    if by_c is not None:
        by_c = by_c + by_share * share + g_time * (along * root / tx - share * times / root) / 2
        by_c = (by_c + (by_tx * (tx - 1 / tx) + by_ty * (ty - 1 / ty)) / 2).sum() / c
    return covector(gx, x.dtype), covector(gy, x.dtype), covector(gv, x.dtype), by_c


def _transp_far_back(x: Tensor, y: Tensor, v: Tensor, grad: Tensor, c) -> tuple[Tensor, ...]:
    inputs = [t.detach().requires_grad_() for t in (x, y, v, torch.as_tensor(c, dtype=torch.float64))]
    with torch.enable_grad():
        return torch.autograd.grad(_transp_wide(*inputs), inputs, grad)


class _Transp(Function):
    @staticmethod
    def forward(ctx, x, y, v, c):
        keep(ctx, x, y, v, c)
        return in_blocks(_transp_of, (x, y, v), number(c, x))[0]

    @staticmethod
    def backward(ctx, grad):
        return pulled(ctx, _transp_wide, _transp_back, grad)


def _transp_wide(x: Tensor, y: Tensor, v: Tensor, c) -> Tensor:
    dtype = torch.promote_types(x.dtype, torch.promote_types(y.dtype, v.dtype))
    (x, qx), (y, qy) = (_capped(saturate_gradient(p, last=True)[..., 1:], c) for p in (x, y))
    v = _scaled_tangent(v[..., 1:], 1.0)
    if dtype == torch.float32 and has_float64(x):
        c = widen(c)
        x, y, v = (saturate_gradient(widen(p), last=True, dtype=dtype) for p in (x, y, v))
        qx, qy = square_norm(x) * c, square_norm(y) * c
    return saturate(_transp(_Pair(x, qx, y, qy, c), v), dtype).to(dtype)


def _transp(pair: _Pair, v: Tensor) -> Tensor:
    far = pair.far()
    one = torch.ones_like(pair.q)
    nx = torch.where(far, pair.nx, one)
    root = pair.root
    along = dot(pair.x, v) * root
    across = _perpendicular(pair.delta, pair.x, far)
    bottom = 2 + pair.q / 2  # divided by first of all: the products of large numbers overflow
    perp = dot(across * root / bottom, _perpendicular(v, pair.x, far))
    polar = pair.radial() / bottom * (along / (nx * pair.tx)) + perp
    plain = dot(pair.delta * root / bottom, v) - pair.product / bottom / (pair.tx + pair.ty) * (along / pair.tx)
    share = torch.where(far, polar, plain)
    out = v + pair.sum * (share * root)
    return _join(dot(pair.y * (root / pair.ty), out), out)


@stable("x", space=("u",))
def transp0(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Parallel transport from the origin to ``x`` ``(..., n + 1)`` of ``u`` ``(..., n)``; returns ``(..., n + 1)``."""
    if isinstance(c, Tensor):  # one for each row, whose gradients may be as large as numbers get
        c = saturate_gradient(c * torch.ones_like(x[..., :1]))
    space, q = _capped(x[..., 1:], c)
    u, root = _scaled_tangent(u, 1.0), saturate_gradient(_root(c)) if isinstance(c, Tensor) else _root(c)
    # exact, for it may be next to nothing beside the lengths
    along = dot(widen(space), widen(u)).to(u.dtype) * root
    return _join(along, u + space * (along * root / (1 + torch.sqrt(1 + q))))


@stable("x", "v")
def transp0back(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Parallel transport of ``v`` from ``x`` to the origin, both ``(..., n + 1)``.

    Returns:
        The space part ``(..., n)``.
    """
    space, q = _capped(x[..., 1:], c)
    v = _scaled_tangent(v[..., 1:], 1.0)
    time = torch.sqrt(1 + q)
    far = q > _FAR
    scaled = saturate_gradient(_times(space, _root(c)))
    keep = torch.where(far, 1 / (time * torch.where(far, q, torch.ones_like(q))), -1 / (time * (1 + time)))
    return _perpendicular(v, space, far) + scaled * (dot(scaled, v) * saturate_gradient(keep))
