r"""The Poincare ball, as functions of tensors.

With curvature ``c > 0`` (sectional curvature ``-c``) the points are the vectors with ``c |x|^2 < 1`` and the metric is
:math:`\lambda_x^2 |dx|^2` with :math:`\lambda_x = 2 / X`, :math:`X = 1 - c|x|^2`. A tangent vector at the origin is
half as long in coordinates as the distance it leads to: ``expmap0(u)`` lies at the distance ``2 |u|``.

Every function takes tensors ``(..., n)`` and the curvature last: a float, or a tensor that broadcasts with
``(..., 1)``. The formulas consist of positive terms but for ``X``, which is computed in float64 where the device has
it, else from a compensated sum (``docs/numerics.md`` shows what that is worth). Points outside count as points at the
largest radius that the dtype holds, ``sqrt(c) * r = 16.6`` in float32; :func:`project` stays off the boundary.
Half precision is computed in float32 and rounded once.

Sources: Ganea et al. "Hyperbolic Neural Networks" (NeurIPS 2018); Ungar (2008); Shimizu et al. "HNN++" (ICLR 2021).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import lorentz
from ._typing import Curvature
from .lorentz.cones import _unit
from .lorentz.distances import _distances
from .lorentz.frame import (
    _LONGEST,
    _bound,
    _largest,
    _lift,
    _lift_scaled,
    _multiple,
    _overflowing,
    _perpendicular,
    _root,
    _times,
)
from .numerics import (
    asinh,
    asinh_sqrt,
    asinhc_sqrt,
    distance_from_square,
    dot,
    gap_to_one,
    has_float64,
    log_beta,
    one_each,
    plain,
    positive,
    root_slope,
    safe_sqrt,
    same_list,
    saturate,
    saturate_gradient,
    scalar,
    sinhc_sqrt,
    square_norm,
    stable,
    wide_square_norm,
    widen,
)

# largest sqrt(c) |x| of a point: 1 minus twice the spacing of numbers just below 1
_BOUNDARY = {torch.float32: 1 - 2.0**-23, torch.float64: 1 - 2.0**-52}
# up to this c |x|^2 (radius 1.76) float32 computes 1 - c |x|^2 precisely
_NEAR = 0.5
# On devices without float64: largest coordinate of a point, largest squared length of a vector that is divided by X,
# and half the distance between opposite boundaries
_MOST, _FASTEST, _ACROSS = 1e15, 1e20, 17.5


# ---------------------------------------------------------------------------------------------------------------------
# Inner workings


def _measure(x: Tensor, c: Curvature, in_float64: bool = False) -> tuple[float | Tensor, Tensor, Tensor]:
    """Factor that brings the point inside, or 1, ``X = 1 - c |x|^2`` and ``c |x|^2`` with it; ``(..., 1)``.

    They are float64. For float32 points on a CPU of which none lies far from the origin they are float32, unless
    ``in_float64``; only a CPU can check this without waiting. The factor is a constant of differentiation. If the
    device has no wider dtype than that of the points, the difference comes from a compensated sum.
    """
    limit = _BOUNDARY[x.dtype] ** 2
    if x.dtype == torch.float32 and has_float64(x):
        if not in_float64 and _eager(x):
            q = _times(square_norm(x), c)
            if _all_below(q, _NEAR):
                return 1.0, 1 - q, q
        q = _times(wide_square_norm(x), widen(c))
        if _all_below(q, limit):
            return 1.0, 1 - q, q
        q = q.masked_fill(q == math.inf, math.nan)  # float64 can hold the squares of all finite float32 rows
        factor = torch.sqrt(limit / q.detach().clamp(min=limit))
        q = q.clamp(max=limit)
        return factor.to(x.dtype), 1 - q, q
    factor = _MOST / _largest(x).clamp(min=_MOST)  # so that squares do not overflow
    gap, q = gap_to_one(x * factor, c)
    if _all_below(q, limit):
        return 1.0, gap, q
    factor = factor * torch.sqrt(limit / q.detach().clamp(min=limit))
    return factor, gap.clamp(min=1 - limit), q.clamp(max=limit)


def _is_near(x: Tensor, gap: Tensor) -> bool:
    """Whether :func:`_measure` found no point far out, and so kept its numbers in float32."""
    return gap.dtype == torch.float32 and has_float64(x)


def _square(v: Tensor, c: Curvature, gap: Tensor) -> Tensor:
    """``c |v|^2`` ``(..., 1)`` in the dtype of the numbers of a point."""
    if v.dtype == gap.dtype:
        return _times(square_norm(v), c)
    return _times(wide_square_norm(v), widen(c))


def _eager(x: Tensor) -> bool:
    """Whether reading the value of a tensor is cheap: on a CPU, outside of compilers."""
    return x.device.type == "cpu" and not plain(x)


def _all_below(q: Tensor, limit: float) -> bool:
    """Whether the value can be read without waiting and no number exceeds the limit, so that the plain formula
    suffices."""
    return _eager(q) and q.numel() > 0 and q.amax().item() <= limit


def _inside(x: Tensor, c: Curvature, in_float64: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The point brought inside, ``X`` and ``c |x|^2``."""
    factor, gap, q = _measure(x, c, in_float64)
    return _times(x, factor), gap, q


def _bounded(v: Tensor, limit: float | None = None) -> Tensor:
    """Tangent vectors whose squares do not overflow."""
    limit = limit or _LONGEST[v.dtype]
    if v.dtype == torch.float64 or not has_float64(v):
        return _times(v, _bound(v.detach(), 1.0, limit)[0])
    q = wide_square_norm(v.detach())
    return v if _all_below(q, limit) else v * torch.sqrt(limit / q.clamp(min=limit)).to(v.dtype)


def _plain_tanhc_sqrt(q: Tensor) -> Tensor:
    small = q < 1e-3
    root = torch.sqrt(torch.where(small, torch.ones_like(q), q))
    safe = torch.where(small, q, torch.zeros_like(q))
    tail = 1 - safe * 62 / 153 * (1 - safe * 6910 / 17050)
    series = 1 - safe / 3 * (1 - safe * 2 / 5 * (1 - safe * 17 / 42 * tail))
    return torch.where(small, series, torch.tanh(root) / root)


def _tanhc_values(q: Tensor) -> Tensor:
    root = (q + torch.finfo(q.dtype).tiny).sqrt_()
    return torch.tanh(root).div_(root)


def _tanhc_back(q: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    end = torch.addcmul(torch.ones_like(q), q * out, out, value=-1)
    return root_slope(q, out, end, (-1 / 3, 4 / 15, -17 / 105, 248 / 2835)).mul_(grad)


def _atanhc_values(q: Tensor) -> Tensor:
    root = (q + torch.finfo(q.dtype).tiny).sqrt_()
    return torch.atanh(root).div_(root)


def _atanhc_back(q: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    return root_slope(q, out, 1 / (1 - q), (1 / 3, 2 / 5, 3 / 7, 4 / 9)).mul_(grad)


def _plain_atanhc_sqrt(q: Tensor) -> Tensor:
    return asinhc_sqrt(q / (1 - q)) / torch.sqrt(1 - q)


def _tanhc_sqrt(q: Tensor) -> Tensor:
    """``tanh(sqrt(q)) / sqrt(q)``, smooth in ``q``."""
    return scalar(q, _tanhc_values, _tanhc_back, _plain_tanhc_sqrt)


# ---------------------------------------------------------------------------------------------------------------------
# Points


@stable("x")
def project(x: Tensor, c: Curvature, eps: float | None = None) -> Tensor:
    """Points with ``sqrt(c) |x|`` cut at ``1 - eps``.

    The default is 1e-5 in float32 (a radius of 12.2) and 1e-10 in float64 (23.7); geoopt's is 4e-3 in float32 (6.2).

    Raises:
        ValueError: ``eps`` is not at least 0 and below 1.
    """
    eps = _default_eps(x) if eps is None else eps
    _check_eps("project", eps)
    limit = (1 - eps) ** 2
    if not has_float64(x):
        return x * _bound(x, c, limit)[0]
    if _eager(x) and _all_below(_times(square_norm(x), c), limit / 2):
        return x * 1.0
    x = _bounded(x)  # so that products with the gradient do not overflow
    q = _times(wide_square_norm(x), widen(c))
    return x * torch.sqrt(limit / q.clamp(min=limit)).to(x.dtype)


@stable("x")
def conformal_factor(x: Tensor, c: Curvature) -> Tensor:
    r""":math:`\lambda_x = 2 / (1 - c|x|^2)`, shape ``(..., 1)``."""
    _, gap, _ = _measure(x, c)
    return (2 / gap).to(x.dtype)


@stable("u")
def expmap0(u: Tensor, c: Curvature, eps: float = 0.0) -> Tensor:
    r"""Exponential map at the origin, :math:`\tanh(\sqrt c |u|)\, u / (\sqrt c |u|)`; identity gradient at 0.

    With ``eps`` the point is also projected, ``sqrt(c) |x| <= 1 - eps``, at no cost.

    Raises:
        ValueError: ``eps`` is not at least 0 and below 1.
    """
    _check_eps("expmap0", eps)
    return _expmap0(u, c, eps)


def _check_eps(function: str, eps: float) -> None:
    if not 0 <= eps < 1:
        raise ValueError(
            f"{function}: eps, the distance from the boundary as a share of the radius, must be at least 0 and below "
            f"1, got {eps}."
        )


def _default_eps(x: Tensor) -> float:
    """Distance that projected points keep from the boundary by default."""
    return 1e-5 if x.dtype == torch.float32 else 1e-10


def _expmap0(u: Tensor, c: Curvature, eps: float = 0.0) -> Tensor:
    most = min(_BOUNDARY[u.dtype], 1 - eps)
    limit = math.atanh(most) ** 2
    square = square_norm(u)
    q = _times(square, c)
    if _all_below(q, limit):
        return u * _tanhc_sqrt(q)
    over = torch.isinf(q)
    # not the infinite square, which would give the curvature the gradient infinity times 0
    q = torch.where(over, limit, torch.where(over, 0.0, square) * c)
    factor = torch.sqrt(limit / q.clamp(min=limit)) * _tanhc_sqrt(q.clamp(max=limit))
    with torch.no_grad():  # such long vectors would overflow in products
        boundary = most / math.sqrt(u.shape[-1]) / _overflowing(u, over) / _root(c)
    return u * torch.where(over, boundary, factor)


@stable("x")
def logmap0(x: Tensor, c: Curvature) -> Tensor:
    r"""Logarithm at the origin, :math:`\mathrm{artanh}(\sqrt c |x|)\, x / (\sqrt c |x|)`.

    Half as long as the distance of ``x`` from the origin.
    """
    return _logmap0(x, c)


def _logmap0(x: Tensor, c: Curvature) -> Tensor:
    x, gap, q = _inside(x, c)
    if _is_near(x, gap):
        return x * scalar(q, _atanhc_values, _atanhc_back, _plain_atanhc_sqrt)
    # artanh(z) = asinh(z / sqrt(1 - z^2))
    return x * (asinhc_sqrt(q / gap) / torch.sqrt(gap)).to(x.dtype)


@stable("x", "u")
def expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r"""Exponential map, :math:`x \oplus \tanh(\sqrt c |u| / X)\, u / (\sqrt c |u|)`, all ``(..., n)``."""
    x, gap, _ = _inside(x, c)
    u = _bounded(u)
    longest = 43.0**2  # tanh rounds to 1 long before this length
    if not has_float64(u):  # half the distance between opposite boundaries; for longer vectors quotients overflow
        longest = _ACROSS**2
        ratio = safe_sqrt(square_norm(u.detach())) * (_root(c) / gap)
        u = u * (_ACROSS / ratio.clamp(min=_ACROSS)).detach()
    z2 = wide_square_norm(u) * widen(c) / (gap * gap)
    short = torch.sqrt(longest / z2.clamp(min=longest))
    z2 = z2.clamp(max=longest)
    # x + w with w = tanh(z) u / |u|, so 1 - |w|^2 = 1 / cosh(z)^2
    w = saturate_gradient(u * saturate_gradient(_tanhc_sqrt(z2) * short / gap).to(x.dtype))
    return _add(x, w, gap, 1 / (1 + z2 * sinhc_sqrt(z2) ** 2), c)


def _add(x: Tensor, y: Tensor, x_gap: Tensor, y_gap: Tensor, c: Curvature) -> Tensor:
    """Moebius addition from ``x``, ``y`` and their ``1 - c |.|^2``."""
    both = x + y
    gaps = x_gap * y_gap
    q = _square(both, c, gaps)
    bottom = gaps + q
    out = both * (x_gap / bottom).to(x.dtype) + x * (q / bottom).to(x.dtype)
    if _is_near(x, gaps):
        return out
    limit = _BOUNDARY[x.dtype] ** 2
    size = (1 - x_gap * y_gap / bottom).clamp(min=limit)
    factor = torch.sqrt(limit / size).to(x.dtype)
    # between opposite boundaries both terms, and the direction of their sum, are only round-off
    with torch.no_grad():
        length = square_norm(out) * c
        astray = torch.where(length > 1 + 1e-5, torch.rsqrt(length), torch.ones_like(length))
    return out * (factor * astray.to(x.dtype))


@stable("x", "y")
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Logarithm: the tangent vector ``(..., n)`` at ``x`` whose geodesic reaches ``y`` after unit time."""
    x, x_gap, _ = _inside(x, c)
    y, y_gap, _ = _inside(y, c)
    delta = y - x
    both = x_gap * y_gap
    q = _square(delta, c, both)
    scale = x_gap * asinhc_sqrt(q / both) / torch.sqrt(both * (both + q))
    return delta * (scale * x_gap).to(x.dtype) - x * (scale * q).to(x.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Distances


@stable("x", "y")
def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Geodesic distance ``(...)``, :math:`\frac{2}{\sqrt c}\mathrm{asinh}(\sqrt c|x - y| / \sqrt{XY})`.

    The gradient is 0 where the points coincide.
    """
    x, x_gap, _ = _inside(x, c)
    y, y_gap, _ = _inside(y, c)
    both = x_gap * y_gap
    q = 4 * _square(y - x, c, both) / both
    return _times(distance_from_square(q), 1 / _root(widen(c))).squeeze(-1).to(x.dtype)


@stable("x", "y")
def sqdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Squared Lorentz distance ``(...)`` of the points, :math:`4|x - y|^2 / (XY)`.

    Not the square of :func:`dist`: the squared chord on the hyperboloid (Law et al., ICML 2019).
    """
    x, x_gap, _ = _inside(x, c)
    y, y_gap, _ = _inside(y, c)
    both = x_gap * y_gap
    return (4 * _square(y - x, 1, both) / both).squeeze(-1).to(x.dtype)


@stable("x")
def dist0(x: Tensor, c: Curvature) -> Tensor:
    """Hyperbolic radius ``(...)``: the distance from the origin; gradient 0 there."""
    _, gap, q = _measure(x, c)
    return (asinh_sqrt(q / gap) * (2 / _root(widen(c)))).squeeze(-1).to(x.dtype)


@stable("x", "y", sets=("x", "y"))
def cdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Pairwise geodesic distances by one matrix product.

    Nothing of shape ``(N, M, n)`` is built. Pairs that lost more than 1e-4 of the squared chord to rounding are
    computed once more by :func:`dist`, and the diagonal of ``cdist(x, x)`` is 0, as in the Lorentz model's ``cdist``.

    Args:
        x: points ``(..., N, n)``.
        y: points ``(..., M, n)``; leading dimensions broadcast.
        c: curvature, ``c > 0``; a tensor must broadcast with ``(..., N, 1)``, ``(..., M, 1)`` and ``(..., N, M)``.

    Returns:
        Distances ``(..., N, M)``; 0 with gradient 0 where two points coincide.
    """
    dtype = torch.promote_types(x.dtype, y.dtype)
    (left, x_lift), (right, y_lift) = _chord_rows(x, c), _chord_columns(y, c)
    h = torch.matmul(left.to(dtype), right.to(dtype).transpose(-1, -2))
    return _distances(h, x, y, x_lift, y_lift, c, dist)


def _chord_rows(x: Tensor, c: Curvature) -> tuple[Tensor, Tensor]:
    """``a [-2 x, |x|^2, 1]`` with ``a = 2 / X``, in units of the radius: a factor of the halves of squared chords; and
    ``cosh(r) - 1``."""
    x, gap, q = _inside(x, c)
    a = 2 / gap
    rows = torch.cat([x * (-2 * a * _root(widen(c))).to(x.dtype), (a * q).to(x.dtype), a.to(x.dtype)], -1)
    return rows, (a * q).to(x.dtype)


def _chord_columns(y: Tensor, c: Curvature) -> tuple[Tensor, Tensor]:
    """``b [y, 1, |y|^2]`` with ``b = 1 / Y``: the other factor, and ``cosh(r) - 1``."""
    y, gap, q = _inside(y, c)
    b = 1 / gap
    columns = torch.cat([y * (b * _root(widen(c))).to(y.dtype), b.to(y.dtype), (b * q).to(y.dtype)], -1)
    return columns, (2 * b * q).to(y.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Tangent vectors


@stable("x", "v")
def egrad2rgrad(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Riemannian gradient from the Euclidean one: :math:`v X^2 / 4`."""
    _, gap, _ = _measure(x, c)
    return _bounded(v) * (gap * gap / 4).to(v.dtype)


@stable("x", "u", "v")
def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Inner product ``(...)`` of tangent vectors at ``x``: :math:`\lambda_x^2\, u \cdot v`."""
    _, gap, _ = _measure(x, c, in_float64=True)  # float32 loses the derivative for long vectors
    factor = 2 / gap
    limit = None if has_float64(u) else _FASTEST
    product = dot(_bounded(u, limit), _bounded(v, limit)).to(factor.dtype) * factor * factor
    return saturate(product, v.dtype).to(v.dtype).squeeze(-1)


@stable("x", "u")
def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Length ``(...)`` of tangent vectors at ``x``; gradient 0 where it is 0."""
    _, gap, _ = _measure(x, c)
    return (safe_sqrt(square_norm(_bounded(u))) * (2 / gap).to(u.dtype)).squeeze(-1)


@stable("x", "y", "v")
def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Parallel transport of ``v`` from ``x`` to ``y``: :math:`\mathrm{gyr}[y, -x] v\; \lambda_x / \lambda_y`."""
    x, x_gap, qx = _inside(x, c)
    y, y_gap, _ = _inside(y, c)
    return _gyrate(_bounded(v), y - x, x, qx, x_gap, y_gap, y_gap / x_gap, c)


def _gyrate(
    v: Tensor, delta: Tensor, x: Tensor, qx: Tensor, x_gap: Tensor, y_gap: Tensor, scale: Tensor, c: Curvature
) -> Tensor:
    r"""``scale`` times :math:`\mathrm{gyr}[y, -x] v` from ``delta``, ``y - x``: accurate where that is small."""
    q = _square(delta, c, x_gap)
    c = widen(c)
    along, ahead = dot(x, v).to(q.dtype), dot(delta, v).to(q.dtype)
    share = 2 * scale / (x_gap * y_gap + q)
    across = -c * ((y_gap + q) * along + qx * ahead) * share
    back = c * (x_gap * ahead - q * along) * share
    return v * scale.to(v.dtype) + delta * across.to(v.dtype) + x * back.to(v.dtype)


@stable("x", "u")
def transp0(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Parallel transport from the origin to ``x``: ``X u``."""
    _, gap, _ = _measure(x, c)
    return _bounded(u) * gap.to(u.dtype)


@stable("x", "v")
def transp0back(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Parallel transport from ``x`` to the origin: ``v / X``."""
    _, gap, _ = _measure(x, c)
    return _bounded(v) * (1 / gap).to(v.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Gyrovector operations


@stable("x", "y")
def mobius_add(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Moebius addition :math:`x \oplus y`."""
    x, x_gap, _ = _inside(x, c)
    y, y_gap, _ = _inside(y, c)
    return _add(x, y, x_gap, y_gap, c)


@stable("x", "y")
def mobius_sub(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r""":math:`(-x) \oplus y`: ``y`` as seen from ``x``; accurate for near points too."""
    x, x_gap, _ = _inside(-x, c)
    y, y_gap, _ = _inside(y, c)
    return _add(x, y, x_gap, y_gap, c)


@stable("x")
def mobius_scalar_mul(r: float | Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Points on the same rays at ``r`` times the radius, :math:`r \otimes x`; ``r`` a number or ``(..., 1)``."""
    return _expmap0(_multiple(_logmap0(x, c), r, "mobius_scalar_mul: r"), c)


@stable("x", fits=("matrix",))
def rotate(x: Tensor, matrix: Tensor, c: Curvature) -> Tensor:
    """Points ``R x`` ``(..., m)``, for ``R`` ``(m, n)`` with orthonormal columns: distances stay as they are."""
    x, _, _ = _inside(x, c)
    return torch.matmul(x, matrix.transpose(-1, -2))


@stable("x", fits=("matrix",))
def mobius_matvec(matrix: Tensor, x: Tensor, c: Curvature) -> Tensor:
    r""":math:`M \otimes x = \exp_0(M \log_0 x)`; ``matrix`` ``(m, n)``, ``x`` ``(..., n)``."""
    return _expmap0(torch.matmul(_logmap0(x, c), matrix.transpose(-1, -2)), c)


@stable("u", "v", "w")
def gyration(u: Tensor, v: Tensor, w: Tensor, c: Curvature) -> Tensor:
    r""":math:`\mathrm{gyr}[u, v] w = -(u \oplus v) \oplus (u \oplus (v \oplus w))`, a rotation of ``w``."""
    u, u_gap, _ = _inside(u, c)
    v, v_gap, qv = _inside(v, c)
    return _gyrate(_bounded(w), u + v, -v, qv, v_gap, u_gap, torch.ones_like(u_gap), c)


@stable("x", "y")
def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """The point at the fraction ``t`` (a number, or ``(..., 1)``) of the way from ``x`` to ``y``."""
    return expmap(x, _multiple(logmap(x, y, c), t, "geodesic: t"), c)


@stable("x", "u")
def geodesic_unit(t: float | Tensor, x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """The point at distance ``t`` (a number, or ``(..., 1)``) from ``x`` in the direction of ``u``."""
    length = norm(x, u, c).unsqueeze(-1)
    none = length <= torch.finfo(u.dtype).tiny ** 0.47  # so that the square of the inverse is finite
    unit = _bounded(u) * saturate_gradient(1 / torch.where(none, torch.ones_like(length), length))
    return expmap(x, _multiple(unit, t, "geodesic_unit: t"), c)


@stable("x", "u")
def retr(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Retraction ``project(x + u)``: the cheap first-order step of geoopt's ball."""
    return project(x + _bounded(u), c)


# ---------------------------------------------------------------------------------------------------------------------
# Through the Lorentz model


@stable("x")
def to_lorentz(x: Tensor, c: Curvature) -> Tensor:
    r"""The point ``(..., n + 1)`` of the hyperboloid: ``s = 2 x / X``, ``t = (2 - X) / (sqrt(c) X)``."""
    x, gap, _ = _inside(x, c)
    time = (2 - gap) / gap / _root(widen(c))
    return _lift(time.to(x.dtype), (2 / gap).to(x.dtype), x)


@stable("x")
def from_lorentz(x: Tensor, c: Curvature) -> Tensor:
    """The point ``(..., n)`` of the ball for ``x`` ``(..., n + 1)``: ``s / (1 + sqrt(c) t)``."""
    space = x[..., 1:]
    q = wide_square_norm(space) * widen(c)
    factor = 1 / (1 + torch.sqrt(1 + q))
    # far above the largest radius the derivative of the factor would overflow
    return space * torch.where(q > 1e38, factor.detach(), factor).to(space.dtype)


@stable("x", sets=("x",))
def midpoint(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0) -> Tensor:
    """Weighted Moebius gyromidpoint ``(..., n)`` of ``x`` ``(..., N, n)``: the Lorentz centroid of the points.

    Args as for :func:`hypvision.geometry.lorentz.centroid`.
    """
    if weights is not None:
        one_each("midpoint", "weights", weights, x.shape[-2])
    dtype = x.dtype
    x, _, _ = _inside(x, c)
    return from_lorentz(lorentz.centroid(to_lorentz(widen(x), c), weights, c), c).to(dtype)


@stable("x", sets=("x",))
def weighted_centroids(weights: Tensor, x: Tensor, c: Curvature) -> Tensor:
    """Many midpoints ``(..., M, n)`` of the same points by one matrix product.

    Args as for :func:`hypvision.geometry.lorentz.weighted_centroids`.
    """
    return from_lorentz(lorentz.weighted_centroids(weights, to_lorentz(x, c), c), c)


@stable("x", sets=("x",))
def frechet_mean(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0, steps: int = 30) -> Tensor:
    """Weighted Frechet mean ``(..., n)`` of ``x`` ``(..., N, n)``.

    Args as for :func:`hypvision.geometry.lorentz.frechet_mean`.
    """
    return from_lorentz(lorentz.frechet_mean(to_lorentz(x, c), weights, c, steps), c)


def half_aperture(x: Tensor, c: Curvature, min_radius: float = 0.1) -> Tensor:
    r"""Half-aperture ``(...)`` of the entailment cone at ``x``, :math:`\arcsin(K X / (\sqrt c |x|))`, in radians.

    ``min_radius`` is ``K``, not negative (Ganea et al., ICML 2018).
    """
    return lorentz.half_aperture(to_lorentz(x, c), c, min_radius)


@stable("x", "y")
def exterior_angle(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Angle ``(...)`` at ``x`` between the ray from the origin and the geodesic to ``y``, in radians.

    0 where ``y`` lies behind ``x`` on its ray, and where the points coincide.
    """
    x, gap, q = _inside(x, c, in_float64=True)
    y, _, _ = _inside(y, c)
    # -x + y has the direction of X delta - c |delta|^2 x
    delta = y - x
    away = q > torch.finfo(x.dtype).tiny
    length = torch.sqrt(torch.where(away, q, torch.ones_like(q)) / widen(c))
    side = safe_sqrt(square_norm(_perpendicular(delta, x, away))).to(gap.dtype) * gap
    along = dot(delta.to(gap.dtype), x.to(gap.dtype)) / length
    radial = gap * along - _square(delta, c, gap) * length
    same = (side == 0) & (radial == 0)
    return torch.atan2(side, torch.where(same, torch.ones_like(radial), radial)).squeeze(-1).to(x.dtype)


def entailment_loss(x: Tensor, y: Tensor, c: Curvature, min_radius: float = 0.1, aperture_scale: float = 1.0) -> Tensor:
    """``max(0, exterior angle - aperture_scale * half-aperture)`` ``(...)``: 0 where ``x`` entails ``y``."""
    return torch.relu(exterior_angle(x, y, c) - aperture_scale * half_aperture(x, c, min_radius))


@stable("mean")
def wrapped_normal(
    mean: Tensor,
    std: Tensor | float,
    c: Curvature,
    size: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Samples ``(*size, ..., n)`` of the wrapped normal distribution around ``mean`` ``(..., n)``.

    ``std`` measures distances, as in the Lorentz model, not ball coordinates.
    """
    return from_lorentz(lorentz.wrapped_normal(to_lorentz(mean, c), std, c, size, generator), c)


@stable("x", "mean")
def wrapped_normal_log_prob(x: Tensor, mean: Tensor, std: Tensor | float, c: Curvature) -> Tensor:
    """Log density ``(...)`` at ``x`` of :func:`wrapped_normal`, with respect to the Riemannian volume."""
    return lorentz.wrapped_normal_log_prob(to_lorentz(x, c), to_lorentz(mean, c), std, c)


@stable("x")
def rescale(x: Tensor, c: Curvature, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
    """Maximum-distance rescaling of the radii; see :func:`hypvision.geometry.lorentz.rescale`."""
    limit = lorentz.max_distance(c) if limit is None else limit
    positive("rescale", "limit", limit)
    positive("rescale", "slope", slope)
    return _expmap0(lorentz.rescale_tangent(2 * _logmap0(x, c), limit, slope) / 2, c)


# ---------------------------------------------------------------------------------------------------------------------
# Hyperplanes and horospheres


@stable("x", "p", "a")
def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, signed: bool = True) -> Tensor:
    r"""Distance ``(...)`` of ``x`` from the hyperplane through ``p`` with the normal ``a``, all ``(..., n)``.

    .. math:: \tfrac{1}{\sqrt c}\,\mathrm{asinh}\frac{2 \sqrt c\, (P\, \Delta \cdot \hat a - c|\Delta|^2\, p \cdot \hat
              a)}{X P}, \quad \Delta = x - p

    which is Ganea et al.'s (NeurIPS 2018, eq. 25) from terms that do not cancel near the boundary.
    """
    x, x_gap, _ = _inside(x, c)
    p, p_gap, _ = _inside(p, c)
    c = widen(c)
    delta, a = widen(x - p), widen(_bounded(a))
    # do not divide the normal by its length: rounding would tilt the plane
    square = square_norm(a)
    away = square > torch.finfo(x.dtype).tiny
    length = torch.sqrt(torch.where(away, square, torch.ones_like(square)))
    q = square_norm(delta) * c
    top = (p_gap * dot(delta, a) - q * dot(widen(p), a)) / length
    out = (asinh(2 * _root(c) * top / (x_gap * p_gap)) / _root(c)).squeeze(-1).to(x.dtype)
    return out if signed else out.abs()


@stable("x", fits=("p", "a"))
def ganea_logits(x: Tensor, p: Tensor, a: Tensor, c: Curvature) -> Tensor:
    r"""Logits :math:`\lambda_p |a|\, d(x, H_{p,a})` of multinomial logistic regression (Ganea et al., eq. 25).

    Args:
        x: points ``(..., n)``.
        p: points ``(K, n)`` of the hyperplanes.
        a: normals ``(K, n)`` in ball coordinates at the origin (they are transported to ``p``).
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Logits ``(..., K)``, by one matrix product: a hyperplane of the ball is one of the hyperboloid.

    Raises:
        ValueError: ``p`` and ``a`` are not matrices of the same shape.
    """
    if p.dim() != 2 or p.shape != a.shape:
        raise ValueError(
            f"ganea_logits: p and a must be matrices (K, n) of one shape, got {tuple(p.shape)} and {tuple(a.shape)}."
        )
    p, gap, q = _inside(p, c)
    away, length = _unit(a)
    # With a normal of length 1, sinh(distance) is the inner product <x, normal>_L.
    along = dot(p, away) * _root(c)
    scaled = p * _root(c)
    time = 2 * along / gap.to(p.dtype)
    space = away + scaled * (2 * along / gap.to(p.dtype))
    points = _lift_scaled(to_lorentz(x, c)[..., 1:], c)
    logits = asinh(torch.matmul(points, torch.cat([-time, space], -1).t()))
    return logits * (2 * length / _root(c)).squeeze(-1)


@stable("x", fits=("v",))
def hyperplane_logits(x: Tensor, v: Tensor, r: Tensor, c: Curvature, g: Tensor | None = None) -> Tensor:
    r"""Unidirectional logits of HNN++ (Shimizu et al., ICLR 2021, eq. 6).

    .. math:: \tfrac{2 g}{\sqrt c}\,\mathrm{asinh}\left(\lambda_x\langle \sqrt c x, \hat v\rangle\cosh(2\sqrt c r) -
              (\lambda_x - 1)\sinh(2\sqrt c r)\right)

    Args:
        x: points ``(..., n)``.
        v: normals ``(K, n)``.
        r: offsets ``(K,)``.
        c: curvature, a float or a tensor without dimensions.
        g: factors ``(K,)``; the lengths of the normals if left out.

    Returns:
        Logits ``(..., K)``, by one matrix product.

    Raises:
        ValueError: ``v`` is not a matrix, or ``r`` or ``g`` does not have one number for each of its rows.
    """
    if v.dim() != 2:
        raise ValueError(f"hyperplane_logits: v must be a matrix (K, n), got the shape {tuple(v.shape)}.")
    one_each("hyperplane_logits", "r", r, v.shape[0], "hyperplanes")
    if g is not None:
        one_each("hyperplane_logits", "g", g, v.shape[0], "hyperplanes")
    normals, length = _unit(v)
    g = length.squeeze(-1) if g is None else g
    largest = torch.finfo(r.dtype).max / 2  # twice this number is finite
    return lorentz.hyperplane_logits(to_lorentz(x, c), normals, 2 * r.clamp(-largest, largest), c) * (2 * g)


@stable("x", "p")
def busemann(x: Tensor, p: Tensor, c: Curvature) -> Tensor:
    r"""Busemann function :math:`\tfrac{1}{\sqrt c}\log(|p - \sqrt c x|^2 / X)`, ``(...)``.

    ``p`` are ideal points, unit vectors ``(..., n)``.
    """
    return lorentz.busemann(to_lorentz(x, c), p, c)


def horosphere_dist(x: Tensor, p: Tensor, tau: float | Tensor, c: Curvature) -> Tensor:
    """Distance ``(...)`` of ``x`` from the horosphere around ``p``: the points whose :func:`busemann` is ``tau``."""
    return (busemann(x, p, c) - tau).abs()


# ---------------------------------------------------------------------------------------------------------------------
# Curvatures, concatenation


def change_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    r"""Points of curvature ``c_new`` with the same tangent vector at the origin, :math:`\exp_0^{c'}(\log_0^{c} x)`."""
    return expmap0(logmap0(x, c_old), c_new)


@stable("x")
def scale_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    """Points ``x * sqrt(c_old / c_new)``: all distances scale by that factor, angles stay."""
    return x * _root(c_old / c_new)


def beta_concat(points: list[Tensor], c: Curvature) -> Tensor:
    """Beta-concatenation ``(..., sum n_i)`` of HNN++: keeps the expected radius of random points."""
    same_list("beta_concat", points)
    n = sum(x.shape[-1] for x in points)
    parts = [logmap0(x, c) * math.exp(log_beta(n) - log_beta(x.shape[-1])) for x in points]
    return expmap0(torch.cat(parts, -1), c)


@stable("x")
def beta_split(x: Tensor, sizes: list[int], c: Curvature) -> list[Tensor]:
    """Beta-split of HNN++, the inverse of :func:`beta_concat`; ``sizes`` must add up to ``n``.

    Raises:
        ValueError: they do not.
    """
    n = x.shape[-1]
    if sum(sizes) != n:
        raise ValueError(f"beta_split: sizes must add up to the dimension {n}, got {sizes}.")
    parts = logmap0(x, c).split(sizes, -1)
    return [expmap0(u * math.exp(log_beta(u.shape[-1]) - log_beta(n)), c) for u in parts]
