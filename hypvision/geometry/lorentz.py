r"""The Lorentz model (hyperboloid) of hyperbolic space, as functions of tensors.

With curvature ``c > 0`` (sectional curvature ``-c``) the points are
:math:`\{x \in R^{n+1} : \langle x, x\rangle_L = -1/c,\ x_0 > 0\}`, where
:math:`\langle x, y\rangle_L = -x_0 y_0 + x_s \cdot y_s`. The time coordinate comes first. A point is identified by its
space part ``x_s``: functions read that alone and compute time and, for tangent vectors, its time part anew. Gradients
with respect to the time coordinate of an argument are therefore 0 and those of the space part complete.

Every function takes tensors ``(..., n + 1)`` (points, tangent vectors) or ``(..., n)`` (space parts, tangent vectors at
the origin) and the curvature last: a float, or a tensor that broadcasts with ``(..., 1)``.

The formulas are free of cancellation (hyperbolic half-angle forms): in float32 they are right to a few units of
round-off where the textbook's lose everything, see ``docs/numerics.md``. Radii are capped at ``sqrt(c) * r = 40`` in
float32 and 350 in float64, so that squares do not overflow; points and vectors beyond come back at that radius. Half
precision is computed in float32 and rounded once.

Sources: Nickel and Kiela (ICML 2018); Ganea et al. (NeurIPS 2018); Law et al. (ICML 2019); Nagano et al. (ICML 2019);
Desai et al. "MERU" (ICML 2023); Bdeir et al. (ICLR 2024, NeurIPS 2025).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import Function

from ._typing import Curvature
from .numerics import (
    asinh,
    asinhc_sqrt,
    distance_from_square,
    dot,
    has_float64,
    log_sinhc_sqrt,
    one_each,
    positive,
    safe_sqrt,
    same_list,
    saturate,
    saturate_gradient,
    sinhc_sqrt,
    square_norm,
    squash_factor,
    stable,
    widen,
)

__all__ = [
    "boost",
    "busemann",
    "cdist",
    "centroid",
    "change_curvature",
    "concat",
    "dist",
    "dist0",
    "dist2plane",
    "egrad2rgrad",
    "entailment_loss",
    "expmap",
    "expmap0",
    "exterior_angle",
    "frechet_mean",
    "from_space",
    "geodesic",
    "geodesic_unit",
    "half_aperture",
    "horosphere_dist",
    "hyperplane_logits",
    "inner",
    "logmap",
    "logmap0",
    "matvec",
    "max_distance",
    "minkowski_inner",
    "norm",
    "origin",
    "proju",
    "projx",
    "rescale",
    "rescale_tangent",
    "rotate",
    "scalar_mul",
    "scale_curvature",
    "split",
    "sqdist",
    "time_from_space",
    "transp",
    "transp0",
    "transp0back",
    "unboost",
    "weighted_centroids",
    "wrapped_normal",
    "wrapped_normal_log_prob",
]

# sqrt(c) * radius at which points are capped: squares of sinh(radius) must not overflow
_CAP = {torch.float32: 40.0, torch.float64: 350.0}
_LIMIT = {dtype: math.sinh(cap) ** 2 for dtype, cap in _CAP.items()}
# squared length at which tangent vectors are capped; a vector of length cap at the cap has cap * cosh(cap)
_LONGEST = {torch.float32: 1e37, torch.float64: 1e307}
# from this squared norm of a scaled space part on, vectors are split into a radial and a perpendicular part
_FAR = 0.25


# ---------------------------------------------------------------------------------------------------------------------
# Inner workings, in units of the radius of curvature


def _root(c):
    return c**0.5


def _largest(v: Tensor) -> Tensor:
    """Largest absolute coordinate ``(..., 1)``, without gradient; no temporary as large as ``v``."""
    v = v.detach()
    return torch.maximum(v.amax(-1, keepdim=True), -v.amin(-1, keepdim=True))


def _bound(v: Tensor, c, limit: float) -> tuple[Tensor, Tensor]:
    """Factor ``(..., 1)`` that brings ``c |v|^2`` to at most ``limit``, and that squared norm with the factor.

    The factor is a constant of differentiation: 1 where nothing is capped, and beyond, where vectors are lost anyway,
    its derivative would overflow.
    """
    q = square_norm(v) * c
    with torch.no_grad():
        over = torch.isinf(q)  # there the largest coordinate stands in for the norm
        factor = math.sqrt(limit) / torch.sqrt(torch.where(over, torch.full_like(q, limit), q).clamp(min=limit))
        factor = torch.where(q > limit, factor, torch.ones_like(q))  # exactly 1
        shrink = math.sqrt(limit / v.shape[-1]) / _root(c) / torch.where(over, _largest(v), torch.ones_like(q))
        factor = torch.where(over, shrink, factor)
    return factor, q.clamp(max=limit)


def _scaled(space: Tensor, c) -> tuple[Tensor, Tensor]:
    """Space part times sqrt(c), capped, and its squared norm ``(..., 1)``."""
    factor, q = _bound(space, c, _LIMIT[space.dtype])
    return space * (factor * _root(c)), q


def _capped(space: Tensor, c) -> tuple[Tensor, Tensor]:
    """Space part, capped, and ``c`` times its squared norm ``(..., 1)``."""
    factor, q = _bound(space, c, _LIMIT[space.dtype])
    return space * factor, q


def _scaled_tangent(v: Tensor, c) -> Tensor:
    """Space part of tangent vectors times sqrt(c), capped."""
    factor, _ = _bound(v, c, _LONGEST[v.dtype])
    return v * (factor * _root(c))


def _batch_first(in_dims: tuple, args: tuple) -> list[Tensor]:
    """Arguments of equal rank with the mapped dimension in front, 1 where an argument is not mapped."""
    rank = max(a.dim() - (d is not None) for a, d in zip(args, in_dims))
    out = []
    for a, d in zip(args, in_dims):
        a = a.unsqueeze(0) if d is None else a.movedim(d, 0)
        out.append(a.reshape(a.shape[0], *[1] * (rank + 1 - a.dim()), *a.shape[1:]))
    return out


class _Lift(Function):
    """``[time, factor * space]`` written once: a product and a concatenation would write it twice."""

    @staticmethod
    def forward(time, factor, space):
        shape = torch.broadcast_shapes(time.shape[:-1], factor.shape[:-1], space.shape[:-1])
        out = space.new_empty(*shape, space.shape[-1] + 1)
        torch.mul(space.expand(*shape, space.shape[-1]), factor, out=out[..., 1:])
        out[..., :1] = time
        return out

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shapes = inputs[0].shape, inputs[1].shape, inputs[2].shape
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, grad):
        factor, space = ctx.saved_tensors
        time_shape, factor_shape, space_shape = ctx.shapes
        grad_time, grad_factor, grad_space = grad[..., :1].sum_to_size(time_shape), None, None
        if ctx.needs_input_grad[1]:
            grad_factor = dot(grad[..., 1:], space).sum_to_size(factor_shape)
        if ctx.needs_input_grad[2]:
            grad_space = (grad[..., 1:] * factor).sum_to_size(space_shape)
        return grad_time, grad_factor, grad_space

    @staticmethod
    def vmap(info, in_dims, *args):
        return _Lift.apply(*_batch_first(in_dims, args)), 0


def _lift(time: Tensor, factor: Tensor, space: Tensor) -> Tensor:
    """Vectors ``[time, factor * space]``."""
    if torch.compiler.is_compiling():
        space = space * factor
        return torch.cat([time.expand(*space.shape[:-1], 1), space], -1)
    return _Lift.apply(time, factor, space)


def _join(time: Tensor, space: Tensor) -> Tensor:
    return torch.cat([time.expand(*space.shape[:-1], 1), space], -1)


def _lift_scaled(x: Tensor, c) -> Tensor:
    """Points ``(..., n + 1)`` in units of the radius, capped, time computed anew."""
    factor, q = _bound(x[..., 1:], c, _LIMIT[x.dtype])
    return _lift(torch.sqrt(1 + q), factor * _root(c), x[..., 1:])


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
        self.product = dot(self.delta, self.sum) * c  # |y|^2 - |x|^2
        gap = self.product / torch.where(length > 0, length, one)
        product = self.nx * self.ny
        self.a = gap / torch.sqrt(2 * (1 + self.tx * self.ty + product))
        inner = dot(x, y) * c
        base = square_norm(self.sum) * c
        # where one radius is next to nothing beside the other, the angle is no matter, and the quotient overflows
        acute = (inner > 0) & (product * 1e30 > base)
        # |sum| |across| is the area of the parallelogram; the quotient first, for it is of order 1
        share = base / torch.where(acute, 8 * (product + inner), one)
        across = saturate_gradient(square_norm(_across(x, y, acute)) * c)
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


def _shares(x: Tensor, v: Tensor, grad: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """In the rows ``keep``: unit vectors of ``x``, ``x . v / |x|^2``, ``x . grad / |x|`` and ``x . grad / |x|^2``."""
    length = safe_sqrt(square_norm(x))
    unit = torch.where(keep, x / torch.where(length > 0, length, torch.ones_like(length)), torch.zeros_like(x))
    length = torch.where(keep, length, torch.ones_like(length))
    along = dot(unit, grad)
    return unit, dot(unit, v / length), along, along / length


class _Across(Function):
    """The part of ``y - x`` perpendicular to ``x + y``, in the rows where ``keep`` is 1, computed in float64."""

    @staticmethod
    def forward(x, y, keep):
        once = has_float64(x)
        x, y = widen(x), widen(y)
        delta, total = y - x, x + y
        square = torch.einsum("...d,...d->...", total, total).unsqueeze(-1)
        for _ in range(1 if once else 2):
            amount = torch.einsum("...d,...d->...", delta, total).unsqueeze(-1) / torch.where(keep, square, 1)
            delta.addcmul_(total, torch.where(keep, amount, 0), value=-1)
        return delta.float()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, y, keep = ctx.saved_tensors
        unit, amount, along, share = _shares(x + y, y - x, grad, keep)
        grad_delta = grad - unit * along
        grad_total = unit * (2 * amount * along) - grad * amount - (y - x) * share
        return (grad_total - grad_delta).sum_to_size(x.shape), (grad_total + grad_delta).sum_to_size(y.shape), None

    @staticmethod
    def vmap(info, in_dims, *args):
        return _Across.apply(*_batch_first(in_dims, args)), 0


def _across(x: Tensor, y: Tensor, where: Tensor) -> Tensor:
    """The part of ``y - x`` perpendicular to ``x + y`` in the rows ``where``; the other rows are not for use.

    For points on one ray it is the round-off of their coordinates, and at the radius ``r`` it counts ``sinh(r)`` times.
    """
    if x.dtype == torch.float32 and y.dtype == torch.float32 and not torch.compiler.is_compiling():
        return _Across.apply(x, y, where)
    dtype = torch.promote_types(x.dtype, y.dtype)
    wide = has_float64(x)
    x, y = widen(x), widen(y)
    out, total = y - x, x + y
    square = square_norm(total)
    safe = torch.where(where, square, torch.ones_like(square))
    for _ in range(1 if wide and dtype == torch.float32 else 2):
        out = out - total * torch.where(where, dot(out, total) / safe, torch.zeros_like(square))
    return out.to(dtype)


class _Perpendicular(Function):
    """``v - amount * x`` with ``amount = x . v / |x|^2`` in the rows where ``keep`` is 1, computed in float64."""

    @staticmethod
    def forward(v, x, keep):
        out, wide_x = widen(v), widen(x)
        square = torch.einsum("...d,...d->...", wide_x, wide_x).unsqueeze(-1)
        for _ in range(1 if has_float64(v) else 2):
            amount = torch.einsum("...d,...d->...", wide_x, out).unsqueeze(-1) / torch.where(keep, square, 1)
            out = torch.where(keep, torch.addcmul(out, wide_x, amount, value=-1), out)
        return out.to(v.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        v, x, keep = ctx.saved_tensors
        unit, amount, along, share = _shares(x, v, grad, keep)
        grad_v = (grad - unit * along).sum_to_size(v.shape)
        grad_x = (unit * (2 * amount * along) - grad * amount - v * share).sum_to_size(x.shape)
        return grad_v, grad_x, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return _Perpendicular.apply(*_batch_first(in_dims, args)), 0


def _perpendicular(v: Tensor, x: Tensor, where: Tensor) -> Tensor:
    """``v`` without its part along ``x``, in the rows ``where``.

    What remains is as small as ``|v| / cosh(r)`` for tangent vectors at the radius ``r``: it takes float64, or at least
    a second projection, to keep its digits.
    """
    if v.dtype == torch.float32 and not torch.compiler.is_compiling():
        return _Perpendicular.apply(v, x, where)
    wide = has_float64(v)
    out, x = widen(v), widen(x)
    square = (x * x).sum(-1, keepdim=True)
    safe = torch.where(where, square, torch.ones_like(square))
    for _ in range(1 if wide and v.dtype == torch.float32 else 2):
        out = out - x * torch.where(where, (x * out).sum(-1, keepdim=True) / safe, torch.zeros_like(square))
    return out.to(v.dtype)


def _move(qx: Tensor, radial: Tensor, ahead: Tensor, perp: Tensor, chord: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficient of ``x / |x|`` where one arrives from ``x`` (away from the origin).

    Args:
        qx: squared norm of the space part, in units of the radius of curvature.
        radial: radial part of the velocity times sinh(z) / z, in the unit frame.
        ahead: ``z``, the length of the velocity.
        perp: squared length of the perpendicular part, times (sinh(z) / z)^2.
        chord: sinh(z).
    """
    tx, nx = torch.sqrt(1 + qx), safe_sqrt(qx)
    outward = nx * torch.sqrt(1 + chord * chord) + tx * radial
    inside = radial < -0.01  # nearer, nothing cancels
    one = torch.ones_like(radial)
    bottom = torch.where(inside, chord - radial, one)
    inward = torch.sinh(asinh(nx) - ahead) + tx * (perp / bottom)
    return torch.where(inside, inward, outward)


# ---------------------------------------------------------------------------------------------------------------------
# Points


@stable()
def origin(n: int, c: Curvature, *, dtype: torch.dtype | None = None, device=None) -> Tensor:
    """The origin ``(1 / sqrt(c), 0, ..., 0)`` of the ``n``-dimensional model, shape ``(n + 1,)``."""
    out = torch.zeros(n + 1, dtype=dtype, device=device)
    out[0] = 1 / _root(c)
    return out


@stable("space")
def time_from_space(space: Tensor, c: Curvature) -> Tensor:
    """Time coordinate ``(..., 1)`` of the points with the given space parts ``(..., n)``."""
    if torch.jit.is_scripting():
        return torch.sqrt((space * space).sum(-1, keepdim=True) + 1 / c)
    _, q = _bound(space, c, torch.finfo(space.dtype).max)
    return torch.sqrt(q + 1) / _root(c)


@stable("space")
def from_space(space: Tensor, c: Curvature) -> Tensor:
    """Points ``(..., n + 1)`` on the hyperboloid with the given space parts ``(..., n)``."""
    if torch.jit.is_scripting():
        return torch.cat([time_from_space(space, c), space], dim=-1)
    return _from_space(space, c)


def _from_space(space, c):
    factor, q = _bound(space, c, _LIMIT[space.dtype])
    return _lift(torch.sqrt(1 + q) / _root(c), factor, space)


@stable("x")
def projx(x: Tensor, c: Curvature) -> Tensor:
    """The point ``(..., n + 1)`` of the hyperboloid with the space part of ``x``: time is computed anew."""
    return _from_space(x[..., 1:], c)


@stable("x", "y")
def minkowski_inner(x: Tensor, y: Tensor) -> Tensor:
    """``-x_0 y_0 + x_s . y_s`` of any vectors ``(..., n + 1)``, shape ``(..., 1)``."""
    largest = torch.finfo(x.dtype).max / x.shape[-1]
    product = (x * y).clamp(-largest, largest)
    return product[..., 1:].sum(-1, keepdim=True) - product[..., :1]


@stable("u")
def expmap0(u: Tensor, c: Curvature) -> Tensor:
    r"""Exponential map at the origin.

    .. math:: \exp_0(u) = \left(\cosh(\sqrt c |u|)/\sqrt c,\ \frac{\sinh(\sqrt c |u|)}{\sqrt c |u|} u\right)

    Args:
        u: space part of tangent vectors at the origin, ``(..., n)``; their time part is 0.
        c: curvature, ``c > 0``.

    Returns:
        Points ``(..., n + 1)``. The gradient at 0 is the identity on the space part.
    """
    if torch.jit.is_scripting():
        q = (u * u).sum(-1, keepdim=True) * c
        space = sinhc_sqrt(q) * u
        return torch.cat([torch.sqrt((space * space).sum(-1, keepdim=True) + 1 / c), space], dim=-1)
    return _expmap0(u, c)


def _expmap0(u, c):
    factor, q = _bound(u, c, _CAP[u.dtype] ** 2)
    stretch = sinhc_sqrt(q)
    return _lift(torch.sqrt(1 + q * stretch * stretch) / _root(c), factor * stretch, u)


@stable("x")
def logmap0(x: Tensor, c: Curvature) -> Tensor:
    """Logarithm at the origin: space part ``(..., n)`` of the tangent vector that leads to ``x`` ``(..., n + 1)``."""
    space = x[..., 1:]
    factor, q = _bound(space, c, _LIMIT[x.dtype])
    return space * (factor * saturate_gradient(asinhc_sqrt(q)))


@stable("x", "u")
def expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Exponential map: where one arrives from ``x`` with the velocity ``u`` after unit time.

    Args:
        x: points ``(..., n + 1)``.
        u: tangent vectors at ``x``, ``(..., n + 1)``; only their space part is read. Longer than 43 (355 in float64) in
            units of the radius of curvature they count as that long.
        c: curvature.
    """
    root = _root(c)
    x, qx = _capped(x[..., 1:], c)
    factor, _ = _bound(u[..., 1:], c, _LONGEST[u.dtype])
    v = u[..., 1:] * factor
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


def _arrive(space: Tensor, c) -> Tensor:
    """Points from scaled space parts that may lie beyond the cap."""
    factor, q = _bound(space, 1.0, _LIMIT[space.dtype])
    root = _root(c)
    return _lift(torch.sqrt(1 + q) / root, factor / root, space)


@stable("x", "y")
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Logarithm: the tangent vector ``(..., n + 1)`` at ``x`` whose geodesic reaches ``y`` after unit time."""
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


def _pair(x: Tensor, y: Tensor, c) -> _Pair:
    return _Pair(*_capped(x[..., 1:], c), *_capped(y[..., 1:], c), c)


# ---------------------------------------------------------------------------------------------------------------------
# Distances


@stable("x", "y")
def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Geodesic distance ``(...)`` of points ``(..., n + 1)``, as accurate for near points as for far ones.

    The gradient is 0 where the points coincide.
    """
    return (_pair(x, y, c).distance() / _root(c)).squeeze(-1)


@stable("x")
def dist0(x: Tensor, c: Curvature) -> Tensor:
    """Hyperbolic radius ``(...)``: the distance of points ``(..., n + 1)`` from the origin; gradient 0 there."""
    _, q = _bound(x[..., 1:], c, _LIMIT[x.dtype])
    return (asinh(safe_sqrt(q)) / _root(c)).squeeze(-1)


@stable("x", "y")
def sqdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Squared Lorentz distance :math:`\langle x - y, x - y\rangle_L = -2/c - 2\langle x, y\rangle_L`, ``(...)``.

    Not the square of :func:`dist`: the squared chord (Law et al., ICML 2019).
    """
    return (_pair(x, y, c).q / c).squeeze(-1)


@stable("x", "y", sets=("x", "y"))
def cdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Pairwise geodesic distances by one matrix product.

    With :math:`q = |x_s - y_s|^2 - (x_0 - y_0)^2` the distance is
    :math:`\frac{2}{\sqrt c}\,\mathrm{asinh}(\tfrac12\sqrt{c q})`, and the difference of times is
    ``(|x_s|^2 - |y_s|^2) / (x_0 + y_0)``, free of the cancellation that makes ``arcosh`` forms lose everything near 0.
    Nothing of shape ``(N, M, n)`` is built. Points that are both near each other and beyond ``sqrt(c) * r = 3`` lose
    accuracy as in every form by a matrix product; use :func:`dist` for those that matter.

    Args:
        x: points ``(..., N, n + 1)``.
        y: points ``(..., M, n + 1)``; leading dimensions broadcast.
        c: curvature, ``c > 0``; a tensor must broadcast with ``(..., N, 1)``, ``(..., M, 1)`` and ``(..., N, M)``.

    Returns:
        Distances ``(..., N, M)``; 0 with gradient 0 where two points coincide.
    """
    if torch.jit.is_scripting():
        x, y = x[..., 1:] * c**0.5, y[..., 1:] * c**0.5
        qx, qy = (x * x).sum(-1, keepdim=True), (y * y).sum(-1, keepdim=True)
        times = torch.sqrt(1 + qx) + torch.sqrt(1 + qy).transpose(-1, -2)
        qy = qy.transpose(-1, -2)
        gap = (qx - qy) / times
        return distance_from_square(qx + qy - 2 * torch.matmul(x, y.transpose(-1, -2)) - gap * gap) / c**0.5
    return _cdist(x, y, c)


class _SquareChords(Function):
    """Squared chords ``(..., N, M)`` of scaled space parts: one matrix product and an epilogue in place."""

    @staticmethod
    def forward(x, qx, y, qy):
        tx, ty = torch.sqrt(1 + qx), torch.sqrt(1 + qy)
        qy, ty = qy.transpose(-1, -2), ty.transpose(-1, -2)
        gap = (qx - qy).div_(tx + ty)
        out = torch.matmul(x, y.transpose(-1, -2)).mul_(-2).add_(qx).add_(qy)
        return out.addcmul_(gap, gap, value=-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, qx, y, qy = ctx.saved_tensors
        tx, ty = torch.sqrt(1 + qx), torch.sqrt(1 + qy).transpose(-1, -2)
        # gap = t_x - t_y, so that -d(gap^2) = -2 gap (d q_x / 2 t_x - d q_y / 2 t_y)
        lever = grad * ((qx - qy.transpose(-1, -2)) / (tx + ty))
        total, levers = grad.sum(-1, keepdim=True), lever.sum(-1, keepdim=True)
        grad_x = -2 * torch.matmul(grad, y)
        grad_qx = total - levers / tx
        total, levers = grad.sum(-2).unsqueeze(-1), lever.sum(-2).unsqueeze(-1)
        grad_y = -2 * torch.matmul(grad.transpose(-1, -2), x)
        grad_qy = total + levers / ty.transpose(-1, -2)
        grads = zip((grad_x, grad_qx, grad_y, grad_qy), (x, qx, y, qy))
        return tuple(g.sum_to_size(value.shape) for g, value in grads)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _SquareChords.apply(*_batch_first(in_dims, args)), 0


def _cdist(x, y, c):
    x, qx = _scaled(x[..., 1:], c)
    y, qy = _scaled(y[..., 1:], c)
    if torch.compiler.is_compiling():
        gap = (qx - qy.transpose(-1, -2)) / (torch.sqrt(1 + qx) + torch.sqrt(1 + qy).transpose(-1, -2))
        q = qx + qy.transpose(-1, -2) - 2 * torch.matmul(x, y.transpose(-1, -2)) - gap * gap
    else:
        q = _SquareChords.apply(x, qx, y, qy)
    return distance_from_square(q) / _root(c)


# ---------------------------------------------------------------------------------------------------------------------
# Tangent vectors


@stable("x", "v")
def proju(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Orthogonal projection :math:`v + c\langle x, v\rangle_L x` of ``v`` ``(..., n + 1)`` to the tangent space."""
    space, q = _scaled(x[..., 1:], c)
    time = torch.sqrt(1 + q)
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
    time = torch.sqrt(1 + q)
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

    In float64 inside, where the device has it: what two large parts of the vector leave of each other must keep its
    digits.
    """
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
    space, q = _capped(x[..., 1:], c)
    u, root = _scaled_tangent(u, 1.0), _root(c)
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
    along = dot(space, v) * c
    keep = torch.where(far, 1 / (time * torch.where(far, q, torch.ones_like(q))), -1 / (time * (1 + time)))
    return _perpendicular(v, space, far) + space * (along * keep)


# ---------------------------------------------------------------------------------------------------------------------
# Isometries and what is built on them


@stable("x", "y")
def boost(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""The boost that takes the origin to ``x``, applied to ``y``; both ``(..., n + 1)``.

    It is the gyrovector (Moebius) addition :math:`x \oplus y` of the model, :func:`expmap` at ``x`` of the transported
    :func:`logmap0` of ``y`` (Chami et al., NeurIPS 2019).
    """
    x, qx = _capped(x[..., 1:], c)
    y, qy = _capped(y[..., 1:], c)
    tx, ty, ny = torch.sqrt(1 + qx), torch.sqrt(1 + qy), safe_sqrt(qy)
    far = qx > _FAR
    nx = torch.where(far, safe_sqrt(qx), torch.ones_like(qx))
    inner = dot(x, y) * c
    perp = _perpendicular(y, x, far)
    arrived = _move(qx, inner / nx, asinh(ny), square_norm(perp) * c, ny)
    keep = torch.where(far, arrived / nx, ty + inner / (1 + tx))
    return _from_space(perp + x * keep, c)


@stable("x", "y")
def unboost(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Inverse of :func:`boost`: ``y`` as seen from ``x``, :math:`(-x) \oplus y`; accurate for near points too."""
    pair = _pair(x, y, c)
    far = pair.far()
    one = torch.ones_like(pair.q)
    nx = torch.where(far, pair.nx, one)
    near = dot(pair.x, pair.delta) * c / (1 + pair.tx) - pair.product / (pair.tx + pair.ty)
    keep = torch.where(far, pair.radial() / nx, near)
    return _from_space(_perpendicular(pair.delta, pair.x, far) + pair.x * keep, c)


@stable("x", space=("matrix",))
def rotate(x: Tensor, matrix: Tensor, c: Curvature) -> Tensor:
    """Points ``(..., m + 1)`` with the space parts ``R x_s``, for ``R`` ``(m, n)`` and ``x`` ``(..., n + 1)``.

    A ``matrix`` with orthonormal columns leaves distances as they are.
    """
    space, _ = _capped(x[..., 1:], c)
    return _from_space(torch.matmul(space, matrix.transpose(-1, -2)), c)


@stable("x")
def scalar_mul(r: float | Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Points on the same rays at ``r`` times the radius: :math:`\exp_0(r \log_0 x)`."""
    space = x[..., 1:]
    factor, q = _bound(space, c, _LIMIT[x.dtype])
    log = saturate_gradient(space) * (factor * asinhc_sqrt(q))
    return _expmap0(saturate(saturate_gradient(log) * r), c)


@stable("x", space=("matrix",))
def matvec(matrix: Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Moebius matrix-vector product :math:`\exp_0(M \log_0 x)`; ``matrix`` ``(m, n)``, ``x`` ``(..., n + 1)``."""
    return _expmap0(torch.matmul(logmap0(x, c), matrix.transpose(-1, -2)), c)


@stable("x", "y")
def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """The point ``(..., n + 1)`` at the fraction ``t`` (a number, or ``(..., 1)``) of the way from ``x`` to ``y``."""
    return expmap(x, saturate(saturate_gradient(logmap(x, y, c)) * t), c)


@stable("x", "u")
def geodesic_unit(t: float | Tensor, x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """The point at distance ``t`` (a number, or ``(..., 1)``) from ``x`` in the direction of ``u`` ``(..., n + 1)``."""
    length = safe_sqrt(saturate_gradient(inner(x, u, u, c))).unsqueeze(-1)
    one = torch.ones_like(length)
    away = length > torch.finfo(u.dtype).tiny ** 0.47  # the square of the inverse must be finite
    unit = saturate_gradient(u * saturate_gradient(one / torch.where(away, length, one)))
    return expmap(x, saturate(unit * t), c)


# ---------------------------------------------------------------------------------------------------------------------
# Means


@stable("x", sets=("x",))
def centroid(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0) -> Tensor:
    r"""Weighted Lorentz centroid: the minimiser of the weighted sum of squared Lorentz distances.

    Also known as Einstein midpoint. With :math:`m = \sum_i w_i x_i` it is :math:`m / (\sqrt c \sqrt{-\langle m,
    m\rangle_L})` (Law et al., ICML 2019). The root is computed from positive terms, and in float64 where the device has
    it: in float32 the result is right to round-off up to ``sqrt(c) * r`` of about 30, for near points and points on one
    ray too.

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Their scale does not matter. Where all are 0 the
            result is the origin.
        c: curvature.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there is not one weight for each point.
    """
    dtype = x.dtype
    if weights is not None:
        one_each("centroid", "weights", weights, x.shape[-2])
    space, _ = _capped(x[..., 1:], c)
    space, c = widen(space), widen(c)
    q = square_norm(space) * c
    space = space * _root(c)
    if weights is None:
        weights = torch.full_like(q[..., 0], 1 / q.shape[-2])
    weights = saturate_gradient(weights.unsqueeze(-1).to(space.dtype), last=True, dtype=weights.dtype)
    weights, some = _normalised(weights, -2)
    if not has_float64(x):
        weights = saturate_gradient(weights)
    size, time = safe_sqrt(q), torch.sqrt(1 + q)
    mean = torch.matmul(weights.transpose(-1, -2), space)  # (..., 1, n)
    square = square_norm(mean)
    away = square > 0
    one = torch.ones_like(square)
    length = safe_sqrt(square)
    heading = mean / torch.where(away, length, one)
    # |s| - s . heading, as half a squared difference
    sides = square_norm(space - heading * size) / torch.where(size > 0, 2 * size, torch.ones_like(size))
    sides = torch.where(size > 0, sides, torch.zeros_like(sides))
    slack = (weights * (1 / (time + size) + torch.where(away, sides, size))).sum(-2, keepdim=True)
    total = (weights * time).sum(-2, keepdim=True) + length
    square = torch.where(some, slack * total, one)
    return _arrive((mean / torch.sqrt(square)).squeeze(-2), c).to(dtype)


def _normalised(weights: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Weights whose sum along ``dim`` is 1, or that are all 0, and whether they are not."""
    total = weights.sum(dim, keepdim=True)
    some = total > 0
    return weights / torch.where(some, total, torch.ones_like(total)), some


@stable("x", sets=("x",))
def weighted_centroids(weights: Tensor, x: Tensor, c: Curvature) -> Tensor:
    """Many centroids of the same points by one matrix product, as attention needs them.

    Faster than :func:`centroid`, and accurate up to ``sqrt(c) * r`` of about 7 in float32.

    Args:
        weights: ``(..., M, N)``, not negative. Where a row is all 0 the result is the origin.
        x: points ``(..., N, n + 1)``.
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Points ``(..., M, n + 1)``.

    Raises:
        ValueError: a row of weights has not one for each point.
    """
    one_each("weighted_centroids", "weights", weights, x.shape[-2])
    space, q = _scaled(x[..., 1:], c)
    return _weighted_centroids(weights, space, q, c)


def _weighted_centroids(weights, space, q, c):
    mean = torch.matmul(weights, _join(torch.sqrt(1 + q), space))
    time, space = mean[..., :1], mean[..., 1:]
    length = safe_sqrt(square_norm(space))
    slack = ((time - length) * (time + length)).clamp(min=torch.finfo(space.dtype).eps)
    return _arrive(space / torch.sqrt(slack), c)


@stable("x", sets=("x",))
def frechet_mean(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0, steps: int = 30) -> Tensor:
    """Weighted Frechet mean: the minimiser of the weighted sum of squared geodesic distances.

    Newton's method from the centroid, with the Hessian in closed form; it converges in a few steps. The last step alone
    is differentiated, which gives the exact (implicit) gradient.

    Args:
        x: points ``(..., N, n + 1)``.
        weights: ``(..., N)``, not negative; equal ones if left out. Where all are 0 the result is the origin.
        c: curvature.
        steps: most steps to take; 8 where they cannot end early, while compiling and under ``vmap``.

    Returns:
        Points ``(..., n + 1)``.

    Raises:
        ValueError: there is not one weight for each point, or ``steps`` is not positive.
    """
    positive("frechet_mean", "steps", steps)
    if weights is None:
        weights = x.new_full(x.shape[:-1], 1 / x.shape[-2])
    else:
        one_each("frechet_mean", "weights", weights, x.shape[-2])
    weights, _ = _normalised(weights, -1)
    with torch.no_grad():
        mean = centroid(x, weights, c)
        ask = _answers(mean)
        for _ in range((steps if ask else min(steps, 8)) - 1):
            step = _newton(mean, x, weights, c)
            mean = boost(mean, _expmap0(step, c), c)
            if ask and not step.abs().max() > 4 * torch.finfo(x.dtype).eps:
                break
    return boost(mean.detach(), _expmap0(_newton(mean, x, weights, c), c), c)


def _answers(x: Tensor) -> bool:
    """Whether a condition on numbers of ``x`` can be asked: not while tracing, nor under ``vmap``."""
    return not (torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x))


def _newton(mean: Tensor, x: Tensor, weights: Tensor, c) -> Tensor:
    """Newton step ``(..., n)`` in the tangent space of the origin moved to ``mean``."""
    logs = saturate_gradient(logmap0(unboost(mean.unsqueeze(-2), x, c), c))  # (..., N, n)
    weights = weights.unsqueeze(-1)
    with torch.no_grad():
        q = square_norm(logs)
        stretch = torch.sqrt(1 + c * q * sinhc_sqrt(c * q) ** 2) / sinhc_sqrt(c * q)  # d coth d
        # along the geodesic 1, across d coth d
        inverse = torch.where(q > 0, (1 - stretch) / torch.where(q > 0, q, torch.ones_like(q)), torch.zeros_like(q))
        hessian = torch.matmul((logs * (weights * inverse)).transpose(-1, -2), logs)
        across = (weights * stretch).sum(-2)
        across = torch.where(across > 0, across, torch.ones_like(across))  # no weights, no step
        hessian = hessian + torch.diag_embed(across.expand(*logs.shape[:-2], logs.shape[-1]))
    return torch.linalg.solve(hessian, (weights * logs).sum(-2))


# ---------------------------------------------------------------------------------------------------------------------
# Hyperplanes, horospheres, cones


@stable("x", space=("z",))
def dist2plane(x: Tensor, z: Tensor, a: Tensor | float, c: Curvature, signed: bool = True) -> Tensor:
    r"""Distance ``(...)`` of points ``(..., n + 1)`` from hyperplanes (Bdeir et al., ICLR 2024).

    .. math:: \tfrac{1}{\sqrt c}\,\mathrm{asinh}\left(\sqrt c\,(\cosh(\sqrt c a)\, x_s \cdot \hat z
              - \sinh(\sqrt c a)\, x_t)\right)

    Args:
        x: points.
        z: normals ``(..., n)``, not 0.
        a: offset of the hyperplane from the origin along ``z``, ``(...)``.
        c: curvature.
        signed: positive on the side that ``z`` points to; otherwise the absolute value.
    """
    out = _dist2plane(x, z, a, c)
    return out if signed else out.abs()


def _dist2plane(x: Tensor, z: Tensor, a: Tensor | float, c: Curvature) -> Tensor:
    root = _root(c)
    space, q = _scaled(x[..., 1:], c)
    normals, length = _unit(z)
    cosh, sinh = _offset(a, root, z, length)
    along = dot(space, normals)
    return (asinh(cosh * along - sinh * torch.sqrt(1 + q)) / root).squeeze(-1)


def _unit(z: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (0 for 0) and lengths ``(..., 1)`` of normals, whose squares must not overflow."""
    factor, q = _bound(z, 1.0, _LONGEST[z.dtype])
    length = safe_sqrt(q)
    return z * (factor / torch.where(length > 0, length, torch.ones_like(length))), length


def _offset(a, root, z: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """cosh and sinh ``(..., 1)`` of the scaled offset, capped."""
    a = torch.as_tensor(a, dtype=z.dtype, device=z.device)
    a = a.unsqueeze(-1) if a.dim() else a
    a = (a * root).clamp(-_CAP[z.dtype], _CAP[z.dtype]).expand_as(length)
    return torch.cosh(a), torch.sinh(a)


@stable("x", space=("z",))
def hyperplane_logits(x: Tensor, z: Tensor, a: Tensor, c: Curvature) -> Tensor:
    """Signed distances from ``K`` hyperplanes, each times the length of its normal: the logits of Lorentz MLR.

    Args:
        x: points ``(..., n + 1)``.
        z: normals ``(K, n)``.
        a: offsets ``(K,)``.
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Logits ``(..., K)``, by one matrix product (Bdeir et al., ICLR 2024, eq. 11).

    Raises:
        ValueError: ``z`` is not a matrix, or ``a`` has not one offset for each of its rows.
    """
    if z.dim() != 2:
        raise ValueError(f"hyperplane_logits: z must be a matrix (K, n), got the shape {tuple(z.shape)}.")
    one_each("hyperplane_logits", "a", a, z.shape[0], "hyperplanes")
    root = _root(c)
    normals, length = _unit(z)
    cosh, sinh = _offset(a, root, z, length)
    planes = saturate_gradient(torch.cat([-sinh, normals * cosh], -1))
    return asinh(torch.matmul(_lift_scaled(x, c), planes.t())) * (length.squeeze(-1) / root)


@stable("x", space=("p",))
def busemann(x: Tensor, p: Tensor, c: Curvature) -> Tensor:
    r"""Busemann function :math:`\tfrac{1}{\sqrt c} \log(\sqrt c(x_t - x_s \cdot p))`, ``(...)``.

    Args:
        x: points ``(..., n + 1)``.
        p: ideal points, unit vectors ``(..., n)``.
        c: curvature.
    """
    space, q = _scaled(x[..., 1:], c)
    time, size = torch.sqrt(1 + q), safe_sqrt(q)
    far = q > _FAR
    one = torch.ones_like(size)
    # x_t - x_s . p from positive terms
    side = square_norm(space - p * size) / torch.where(far, 2 * size, one)
    apart = torch.log(torch.where(far, 1 / (time + size) + side, one))
    close = torch.log1p(torch.where(far, 0 * one, q / (1 + time) - dot(space, p)))
    return (torch.where(far, apart, close) / _root(c)).squeeze(-1)


def horosphere_dist(x: Tensor, p: Tensor, tau: float | Tensor, c: Curvature) -> Tensor:
    """Distance ``(...)`` of ``x`` from the horosphere around ``p``: the points whose :func:`busemann` is ``tau``."""
    return (busemann(x, p, c) - tau).abs()


@stable("x")
def half_aperture(x: Tensor, c: Curvature, min_radius: float = 0.1) -> Tensor:
    """Half-aperture ``asin(min(1, 2 K / (sqrt(c) |x_s|)))`` ``(...)`` of the entailment cone at ``x``, in radians.

    ``min_radius`` is the ``K`` of MERU (Desai et al., ICML 2023, after Ganea et al., ICML 2018). Near the origin the
    cone is a half-space, with gradient 0.

    Raises:
        ValueError: ``min_radius`` is negative.
    """
    positive("half_aperture", "min_radius", min_radius, zero=True)
    _, q = _bound(x[..., 1:], c, _LIMIT[x.dtype])
    top = torch.full_like(q, 2 * min_radius)
    return torch.atan2(top, safe_sqrt(q - 4 * min_radius**2)).squeeze(-1)


@stable("x", "y")
def exterior_angle(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Angle ``(...)`` at ``x`` between the ray from the origin and the geodesic to ``y``, in radians.

    0 where ``y`` lies behind ``x`` on its ray, and where the points coincide. No clamp: an ``atan2`` of the parts of
    :func:`logmap` (Desai et al., ICML 2023, compute an ``acos`` which loses half of the digits).
    """
    pair = _pair(x, y, c)
    radial, away = pair.radial(), pair.qx > 0
    side = safe_sqrt(square_norm(_perpendicular(pair.delta, pair.x, away))) * pair.root
    same = (side == 0) & (radial == 0)
    return torch.atan2(side, torch.where(same, torch.ones_like(radial), radial)).squeeze(-1)


def entailment_loss(x: Tensor, y: Tensor, c: Curvature, min_radius: float = 0.1, aperture_scale: float = 1.0) -> Tensor:
    """``max(0, exterior angle - aperture_scale * half-aperture)`` ``(...)``: 0 where ``x`` entails ``y``."""
    return torch.relu(exterior_angle(x, y, c) - aperture_scale * half_aperture(x, c, min_radius))


# ---------------------------------------------------------------------------------------------------------------------
# Sizes and curvatures


@stable()
def max_distance(c: Curvature, largest: float = 2000.0) -> float | Tensor:
    r"""Radius :math:`\mathrm{arcosh}(c\, t) / \sqrt c` at which the time coordinate is ``largest`` (8.29 for c = 1).

    The default limit of :func:`rescale` in float32 (Bdeir et al., NeurIPS 2025).
    """
    root = _root(c)
    x = c * largest
    if isinstance(x, Tensor):
        return torch.log(x + torch.sqrt((x - 1).clamp(min=0) * (x + 1))) / root
    return math.acosh(max(x, 1.0)) / root


@stable("space")
def rescale_tangent(space: Tensor, limit: float | Tensor, slope: float = 2.0) -> Tensor:
    """Vectors ``(..., n)`` whose length ``r`` becomes ``D tanh(atanh(0.99) r / (s D))``.

    ``D`` is ``limit`` and ``s`` is ``slope``, as in :func:`rescale`.

    Raises:
        ValueError: one of them is a number that is not positive.
    """
    positive("rescale_tangent", "limit", limit)
    positive("rescale_tangent", "slope", slope)
    factor, q = _bound(space, 1.0, _LONGEST[space.dtype])
    return space * (factor * squash_factor(q, limit, slope))


@stable("x")
def rescale(x: Tensor, c: Curvature, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
    r"""Maximum-distance rescaling: the radius ``r`` of points becomes ``D tanh(atanh(0.99) r / (s D))``.

    Args:
        x: points ``(..., n + 1)``.
        c: curvature.
        limit: ``D``, the radius that no point exceeds; :func:`max_distance` by default.
        slope: ``s``; at ``r = s D`` 99 % of the limit are reached. Below 2.65 small radii grow.

    Returns:
        Points ``(..., n + 1)`` (Bdeir et al., NeurIPS 2025).

    Raises:
        ValueError: ``limit`` or ``slope`` is a number that is not positive. (The default limit is 0 for curvatures
            below 1 / 2000.)
    """
    limit = max_distance(c) if limit is None else limit
    positive("rescale", "limit", limit)
    positive("rescale", "slope", slope)
    space = x[..., 1:]
    factor, q = _bound(space, c, _LIMIT[x.dtype])
    shrink = asinhc_sqrt(q)
    return _expmap0(space * (factor * shrink * squash_factor(q * shrink * shrink / c, limit, slope)), c)


def change_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    r"""Points of curvature ``c_new`` with the same tangent vector at the origin: :math:`\exp_0^{c'}(\log_0^{c} x)`.

    Distances from the origin stay. This is what happens to parameters when a curvature is learned.
    """
    return expmap0(logmap0(x, c_old), c_new)


@stable("x")
def scale_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    """Points ``x * sqrt(c_old / c_new)`` of curvature ``c_new``: all distances scale by that factor, angles stay."""
    return from_space(x[..., 1:] * _root(c_old / c_new), c_new)


def concat(points: list[Tensor], c: Curvature) -> Tensor:
    """Direct concatenation (Qu and Zou, 2022): the space parts of ``(..., n_i + 1)`` side by side, time anew."""
    same_list("concat", points)
    return from_space(torch.cat([x[..., 1:] for x in points], -1), c)


@stable("x")
def split(x: Tensor, sizes: list[int], c: Curvature) -> list[Tensor]:
    """Points whose space parts are slices of the space part of ``x``; ``sizes`` must add up to ``n``.

    Raises:
        ValueError: they do not.
    """
    if sum(sizes) != x.shape[-1] - 1:
        raise ValueError(f"split: sizes must add up to the space dimension {x.shape[-1] - 1}, got {sizes}.")
    return [from_space(space, c) for space in x[..., 1:].split(sizes, -1)]


# ---------------------------------------------------------------------------------------------------------------------
# Wrapped normal distribution


def _check_std(function: str, std: Tensor | float, n: int) -> None:
    positive(function, "std", std)
    if isinstance(std, Tensor) and std.dim() and std.shape[-1] != 1:
        one_each(function, "std", std, n, "dimensions")


@stable("mean")
def wrapped_normal(
    mean: Tensor,
    std: Tensor | float,
    c: Curvature,
    size: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Samples ``(*size, ..., n + 1)`` of the wrapped normal distribution around ``mean`` (Nagano et al., ICML 2019).

    A normal vector with the standard deviations ``std`` (a number, or ``(..., n)``) at the origin is transported to
    ``mean`` ``(..., n + 1)`` and mapped. Differentiable with respect to ``mean`` and ``std``.

    Raises:
        ValueError: ``std`` is a number that is not positive, or has not one for each dimension.
    """
    _check_std("wrapped_normal", std, mean.shape[-1] - 1)
    shape = (*size, *mean.shape[:-1], mean.shape[-1] - 1)
    noise = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)
    return boost(mean, expmap0(noise * std, c), c)


@stable("x", "mean")
def wrapped_normal_log_prob(x: Tensor, mean: Tensor, std: Tensor | float, c: Curvature) -> Tensor:
    """Log density ``(...)`` at ``x`` of :func:`wrapped_normal`, with respect to the Riemannian volume."""
    _check_std("wrapped_normal_log_prob", std, mean.shape[-1] - 1)
    v = logmap0(unboost(mean, x, c), c)
    n = v.shape[-1]
    std = torch.as_tensor(std, dtype=v.dtype, device=v.device)
    scaled = v / std
    log_std = torch.log(std).expand_as(v).sum(-1)
    gauss = -0.5 * square_norm(scaled).squeeze(-1) - log_std - 0.5 * n * math.log(2 * math.pi)
    return gauss - (n - 1) * log_sinhc_sqrt(c * square_norm(v)).squeeze(-1)
