r"""The Poincare ball, as functions of tensors.

With curvature ``c > 0`` (sectional curvature ``-c``) the points are the vectors with
``c |x|^2 < 1`` and the metric is :math:`\lambda_x^2 |dx|^2` with :math:`\lambda_x = 2 / X`,
:math:`X = 1 - c|x|^2`. The coordinates of a tangent vector at the origin are half as long as the
distance to which it leads: ``expmap0(u)`` lies at the distance ``2 |u|``.

Every function takes tensors ``(..., n)``, and the curvature last: a float, or a tensor that
broadcasts with ``(..., 1)``. float32 points are computed in float64, because ``X`` needs it
(``docs/numerics.md``). Points outside of the ball count as points at the largest radius that the
dtype holds, ``sqrt(c) * r = 16.6`` in float32; :func:`project` keeps points further off the
boundary.

Sources: Ganea et al. "Hyperbolic Neural Networks" (NeurIPS 2018); Ungar (2008); Shimizu et al.
"HNN++" (ICLR 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import exportable, lorentz
from ._typing import Curvature
from .border import STEEPEST, P, R, check_factor, one_each, same_list, some_points, stable
from .lorentz.cones import plane_products
from .lorentz.curvatures import squashed
from .lorentz.distances import from_products, of_both
from .numerics import (
    along_and_across,
    angle,
    asinhc_sqrt,
    bounded,
    clamped,
    divided,
    dot,
    heading,
    length,
    log_beta,
    narrow,
    square_norm,
    square_root,
    stretched,
    tiny,
    widen,
    with_hypotenuse,
    with_length,
)

# the largest sqrt(c) |x| of a point by its dtype; in float64 the rounding of |x|^2 must not reach
# the boundary
_BOUNDARY = {torch.float32: 1 - 2.0**-23, torch.float64: 1 - 2.0**-42}
# Exponential maps move points by at most twice this number of radii of curvature, which is across
# all of the ball.
_CAP = 40.0


def _inside(x: Tensor, c: Curvature, dtype: torch.dtype) -> Tensor:
    """Return points that lie inside the ball: those outside are moved to the largest radius that
    ``dtype`` holds. The divisor counts as a constant of differentiation."""
    with torch.no_grad():
        divisor = clamped(length(x) * (square_root(c) / _BOUNDARY[dtype]), 1.0)
    return x / divisor


def _ball(
    *points: str, inside: tuple[str, ...] = ("x", "y", "p"), **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return the decorator :func:`stable` that also brings the arguments named in ``inside`` inside
    the ball."""
    brought = {name: _inside for name in points if name in inside}
    return stable(*points, brought=brought, **options)


def _gap(x: Tensor, c: Curvature) -> Tensor:
    """Return ``X = 1 - c |x|^2``, shape ``(..., 1)``."""
    return 1 - c * square_norm(x)


def project(x: Tensor, c: Curvature, eps: float | None = None) -> Tensor:
    """Return the points ``x`` with ``sqrt(c) |x|`` cut at ``1 - eps``.

    By default ``eps`` is 1e-5 in float32 and 1e-10 in float64, for c = 1 a largest radius of 12.2
    and 23.7; geoopt's is 4e-3 in float32 (6.2).

    Raises:
        ValueError: ``eps`` is not at least 0 and below 1.
    """
    eps = _default_eps(x) if eps is None else eps
    _check_eps("project", eps)
    return _project(x, c, eps)


def _default_eps(x: Tensor) -> float:
    return 1e-10 if isinstance(x, Tensor) and x.dtype == torch.float64 else 1e-5


@stable("x", small=True)
def _project(x: Tensor, c: Curvature, eps: float) -> Tensor:
    x, size = with_length(x)
    return x * ((1 - eps) / clamped(size * square_root(c), 1 - eps))


def _check_eps(function: str, eps: float) -> None:
    if not 0 <= eps < 1:
        raise ValueError(
            f"{function}: eps, the distance from the boundary as a share of the radius, must be at "
            f"least 0 and below 1, got {eps}."
        )


@_ball("x")
def conformal_factor(x: Tensor, c: Curvature) -> Tensor:
    r"""Return the conformal factor :math:`\lambda_x = 2 / (1 - c|x|^2)`, shape ``(..., 1)``."""
    return 2 / _gap(x, c)


@stable("u", small=True)
def expmap0(u: Tensor, c: Curvature, eps: float = 0.0) -> Tensor:
    r"""Return the exponential map at the origin, :math:`\tanh(\sqrt c |u|)\, u / (\sqrt c |u|)`;
    its gradient at 0 is the identity.

    With ``eps`` the points are also projected, to ``sqrt(c) |x| <= 1 - eps``.

    Raises:
        ValueError: ``eps`` is not at least 0 and below 1.
    """
    _check_eps("expmap0", eps)
    u, size = with_hypotenuse(u, tiny(u))
    z = size * square_root(c)
    return u * (clamped(torch.tanh(z), high=1 - eps) / z)


@_ball("x", small=True)
def logmap0(x: Tensor, c: Curvature) -> Tensor:
    r"""Return the logarithm at the origin,
    :math:`\mathrm{artanh}(\sqrt c |x|)\, x / (\sqrt c |x|)`.

    Its length is half of the distance of ``x`` from the origin.
    """
    x, size = with_hypotenuse(x, tiny(x))
    z = size * square_root(c)
    return x * (exportable.atanh(z) / z)


@_ball("x", "u", small=True)
def expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r"""Return the exponential map at ``x`` of the tangent vectors ``u``,
    :math:`x \oplus \tanh(\sqrt c |u| / X)\, u / (\sqrt c |u|)`, all ``(..., n)``."""
    gap = _gap(x, c)
    u, size = with_hypotenuse(u, tiny(u))
    size = size * square_root(c)
    z = clamped(size / gap, high=_CAP)
    return _add(x, u * (torch.tanh(z) / size), gap, exportable.cosh(z) ** -2, c)


def _add(x: Tensor, y: Tensor, x_gap: Tensor, y_gap: Tensor, c: Curvature) -> Tensor:
    r"""Return the Moebius sum of ``x`` and ``y`` from their gaps ``X``, ``Y``, without
    cancellation:

    :math:`\frac{X (x + y) + c|x + y|^2 x}{X Y + c |x + y|^2}`.
    """
    both = x + y
    square = c * square_norm(both)
    share = (x_gap * y_gap + square).reciprocal()
    return (x_gap * share) * both + (square * share) * x


@_ball("x", "y")
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the logarithm of ``y`` at ``x``: the tangent vector ``(..., n)`` at ``x`` whose
    geodesic reaches ``y`` after unit time.

    .. math:: \frac{A}{\sqrt{X Y + c|\Delta|^2}} \frac{X}{\sqrt c |\Delta|}
              (X \Delta - c|\Delta|^2 x),\quad \Delta = y - x

    where ``A`` is half of the distance, times ``sqrt(c)``.
    """
    gap = _gap(x, c)
    delta = y - x
    both = gap * _gap(y, c)
    square = c * square_norm(delta)
    factor = gap * asinhc_sqrt(square / both) / torch.sqrt(both * (both + square))
    return (factor * gap) * delta - (factor * square) * x


# --------------------------------------------------------------------------------------------------
# Distances of points of the ball


@_ball("x", "y", small=True)
def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the geodesic distance ``(...)`` between ``x`` and ``y``,
    :math:`\frac{2}{\sqrt c}\mathrm{asinh}(\sqrt c|x - y| / \sqrt{XY})`.

    The gradient is 0 where the points coincide.
    """
    root = square_root(c)
    side = length(y - x) * torch.rsqrt(_gap(x, c) * _gap(y, c))
    return (exportable.asinh(root * side) / (root / 2)).squeeze(-1)


@_ball("x", "y")
def sqdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the squared Lorentz distance ``(...)`` between ``x`` and ``y``,
    :math:`4|x - y|^2 / (XY)`.

    It is not the square of :func:`dist` but the squared chord on the hyperboloid (Law et al., ICML
    2019).
    """
    return (4 * square_norm(y - x) / (_gap(x, c) * _gap(y, c))).squeeze(-1)


@_ball("x", small=True)
def dist0(x: Tensor, c: Curvature) -> Tensor:
    """Return the hyperbolic radius ``(...)`` of ``x``, its distance from the origin; the gradient
    is 0 at the origin."""
    root = square_root(c)
    return (exportable.atanh(length(x) * root) / (root / 2)).squeeze(-1)


@stable("x", "y", sets=("x", "y"), wide=False)
def cdist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Return all geodesic distances between two sets of points, by one matrix product.

    No tensor of shape ``(N, M, n)`` is built. For the numerical error see
    :func:`hypvision.geometry.lorentz.cdist`.

    Args:
        x: points ``(..., N, n)``.
        y: points ``(..., M, n)``; leading dimensions broadcast.
        c: curvature, ``c > 0``; a tensor must broadcast with ``(..., N, 1)``, ``(..., M, 1)`` and
            ``(..., N, M)``.

    Returns:
        Distances ``(..., N, M)``; 0 with gradient 0 on the diagonal of ``cdist(x, x)``.
    """
    root = square_root(widen(c, STEEPEST))
    (left,), (right,) = of_both(_weighted, x, y, root)
    space, square, weight = right.split([x.shape[-1], 1, 1], -1)
    # The products of rows and columns are |x - y|^2 / (X Y), the fourth part of the squared chord.
    columns = torch.cat([-2 * space, weight, square], -1)
    return from_products(left, columns, y is x, torch.promote_types(x.dtype, y.dtype), root / 2)


def _weighted(x: Tensor, root: Curvature) -> tuple[Tensor]:
    """Return ``sqrt(c) x``, its squared norm and 1, side by side and divided by ``-X``: the signs
    of two of them cancel; ``root`` is ``sqrt(c)``."""
    x = _inside(widen(x) * root, 1.0, x.dtype)
    square = dot(x, x)  # a sum of products, as it meets the matrix's
    return (divided(torch.cat([x, square, torch.ones_like(square)], -1), square - 1),)


# --------------------------------------------------------------------------------------------------
# Tangent vectors: gradients, inner products, parallel transport


@_ball("x", "v")
def egrad2rgrad(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the Riemannian gradient :math:`v X^2 / 4` at ``x`` for the Euclidean gradient
    ``v``."""
    return v * (_gap(x, c) / 2) ** 2


@_ball("x", "u", "v")
def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the inner product ``(...)`` of the tangent vectors ``u`` and ``v`` at ``x``,
    :math:`\lambda_x^2\, u \cdot v`."""
    return (dot(u, v) * (2 / _gap(x, c)) ** 2).squeeze(-1)


@_ball("x", "u")
def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the length ``(...)`` of the tangent vectors ``u`` at ``x``; its gradient is 0 where it
    is 0."""
    return (length(u) * (2 / _gap(x, c))).squeeze(-1)


@_ball("x", "y", "v")
def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the tangent vectors ``v`` at ``x`` after parallel transport to ``y``,
    :math:`\mathrm{gyr}[y, -x] v\; \lambda_x / \lambda_y`."""
    x_gap = _gap(x, c)
    y_gap = _gap(y, c)
    return _gyrate(v, y - x, x, x_gap, y_gap, c) * (y_gap / x_gap)


def _gyrate(
    v: Tensor, delta: Tensor, x: Tensor, x_gap: Tensor, y_gap: Tensor, c: Curvature
) -> Tensor:
    r"""Return :math:`\mathrm{gyr}[y, -x] v` from ``delta = y - x``, accurately where ``delta`` is
    small.

    .. math:: v + 2c \frac{(X\, \Delta \cdot v - c|\Delta|^2\, x \cdot v)\, x
              - ((Y + c|\Delta|^2)\, x \cdot v + c|x|^2 \Delta \cdot v)\, \Delta}
              {X Y + c|\Delta|^2}
    """
    square = c * square_norm(delta)
    along = dot(x, v)
    ahead = dot(delta, v)
    share = 2 * c / (x_gap * y_gap + square)
    across = (y_gap + square) * along + (1 - x_gap) * ahead
    back = x_gap * ahead - square * along
    return v + (share * back) * x - (share * across) * delta


@_ball("x", "u")
def transp0(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the tangent vectors ``u`` at the origin after parallel transport to ``x``: ``X u``."""
    return u * _gap(x, c)


@_ball("x", "v")
def transp0back(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Return the tangent vectors ``v`` at ``x`` after parallel transport to the origin:
    ``v / X``."""
    return v / _gap(x, c)


# --------------------------------------------------------------------------------------------------
# Gyrovector operations: sums, products, rotations and geodesics


@_ball("x", "y", small=True)
def mobius_add(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the Moebius sum :math:`x \oplus y`, ``(..., n)``."""
    return _add(x, y, _gap(x, c), _gap(y, c), c)


@_ball("x", "y", small=True)
def mobius_sub(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return ``y`` as seen from ``x``, :math:`(-x) \oplus y`; accurate for near points too."""
    return _add(-x, y, _gap(x, c), _gap(y, c), c)


@_ball("x")
def mobius_scalar_mul(r: float | Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Return the points :math:`r \otimes x` on the same rays at ``r`` times the radius; ``r`` is a
    number or ``(..., 1)``."""
    check_factor(r, "mobius_scalar_mul: r")
    return expmap0(r * logmap0(x, c), c)


@_ball("x", fits=("matrix",), wide=False)
def rotate(x: Tensor, matrix: Tensor, c: Curvature) -> Tensor:
    """Return the points ``R x`` ``(..., m)`` for a ``matrix`` ``R`` ``(m, n)``: an isometry if its
    columns are orthonormal."""
    return torch.matmul(x, matrix.transpose(-1, -2))


@_ball("x", fits=("matrix",), wide=False)
def mobius_matvec(matrix: Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Return the Moebius product :math:`M \otimes x = \exp_0(M \log_0 x)` ``(..., m)`` of the
    ``matrix`` ``M`` ``(m, n)`` and ``x`` ``(..., n)``."""
    return expmap0(torch.matmul(logmap0(x, c), matrix.transpose(-1, -2)), c)


@_ball("u", "v", "w", inside=("u", "v"))
def gyration(u: Tensor, v: Tensor, w: Tensor, c: Curvature) -> Tensor:
    r"""Return the vectors ``w`` rotated by the gyration of ``u`` and ``v``,
    :math:`\mathrm{gyr}[u, v] w = -(u \oplus v) \oplus (u \oplus (v \oplus w))`."""
    return _gyrate(w, u + v, -v, _gap(v, c), _gap(u, c), c)


@_ball("x", "y")
def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Return the point at the fraction ``t``, a number or ``(..., 1)``, of the way from ``x`` to
    ``y``."""
    check_factor(t, "geodesic: t")
    return expmap(x, t * logmap(x, y, c), c)


@_ball("x", "u")
def geodesic_unit(t: float | Tensor, x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the point at the distance ``t``, a number or ``(..., 1)``, from ``x`` in the direction
    of the tangent vector ``u``."""
    check_factor(t, "geodesic_unit: t")
    return expmap(x, stretched(u, norm(x, u, c).unsqueeze(-1), t), c)


def retr(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the retraction ``project(x + u)``: the cheap first-order step of geoopt's ball."""
    return _retr(x, u, c, _default_eps(x))


@stable("x", "u", small=True)
def _retr(x: Tensor, u: Tensor, c: Curvature, eps: float) -> Tensor:
    return _project(x + u, c, eps)


# --------------------------------------------------------------------------------------------------
# The Lorentz model, and functions that are computed in it


@_ball("x")
def to_lorentz(x: Tensor, c: Curvature) -> Tensor:
    r"""Return the points ``(..., n + 1)`` of the hyperboloid for ``x``: ``s = 2 x / X``,
    ``t = (2 - X) / (sqrt(c) X)``."""
    gap = _gap(x, c)
    return torch.cat([(2 - gap) / (square_root(c) * gap), x * (2 / gap)], -1)


@stable("x", small=True)
def from_lorentz(x: Tensor, c: Curvature) -> Tensor:
    """Return the points ``s / (1 + sqrt(c) t)`` ``(..., n)`` of the ball for points ``x``
    ``(..., n + 1)`` of the hyperboloid."""
    space = x[..., 1:]
    return space / (1 + torch.sqrt(1 + c * square_norm(space)))


@_ball("x", sets=("x",))
def midpoint(x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0) -> Tensor:
    """Return the weighted Moebius gyromidpoint ``(..., n)`` of ``x`` ``(..., N, n)``, which is the
    Lorentz centroid.

    The arguments are those of :func:`hypvision.geometry.lorentz.centroid`.
    """
    some_points("midpoint", x)
    if weights is not None:
        one_each("midpoint", "weights", weights, x.shape[-2])
    return from_lorentz(lorentz.centroid(to_lorentz(x, c), weights, c), c)


@_ball("x", sets=("x",), wide=False)
def weighted_centroids(weights: Tensor, x: Tensor, c: Curvature) -> Tensor:
    """Return M midpoints ``(..., M, n)`` of the same points ``x`` ``(..., N, n)`` by one matrix
    product.

    The arguments are those of :func:`hypvision.geometry.lorentz.weighted_centroids`.
    """
    return from_lorentz(lorentz.weighted_centroids(weights, to_lorentz(x, c), c), c)


@_ball("x", sets=("x",))
def frechet_mean(
    x: Tensor, weights: Tensor | None = None, c: Curvature = 1.0, steps: int = 30
) -> Tensor:
    """Return the weighted Frechet mean ``(..., n)`` of ``x`` ``(..., N, n)``.

    The arguments are those of :func:`hypvision.geometry.lorentz.frechet_mean`.
    """
    return from_lorentz(lorentz.frechet_mean(to_lorentz(x, c), weights, c, steps), c)


def half_aperture(x: Tensor, c: Curvature, min_radius: float = 0.1) -> Tensor:
    r"""Return the half-aperture ``(...)`` of the entailment cone at ``x``,
    :math:`\arcsin(K X / (\sqrt c |x|))`, in radians.

    ``min_radius`` is ``K``, at least 0 (Ganea et al., ICML 2018).
    """
    return lorentz.half_aperture(to_lorentz(x, c), c, min_radius)


@_ball("x", "y", small=True)
def exterior_angle(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Return the angle ``(...)`` at ``x`` between the ray from the origin and the geodesic to
    ``y``, in radians.

    It is 0 where ``y`` lies behind ``x`` on its ray, and where the points coincide.
    """
    # The geodesic to y starts in the direction of the Moebius sum (-x) + y, which is that of X
    # delta - c |delta|^2 x.
    gap = _gap(x, c)
    delta = y - x
    size, along, across = along_and_across(x, delta)
    return angle(gap * across, gap * along - c * square_norm(delta) * size)


def entailment_loss(
    x: Tensor, y: Tensor, c: Curvature, min_radius: float = 0.1, aperture_scale: float = 1.0
) -> Tensor:
    """Return ``max(0, exterior angle - aperture_scale * half-aperture)`` ``(...)``, in radians: 0
    where ``x`` entails ``y``."""
    return torch.relu(exterior_angle(x, y, c) - aperture_scale * half_aperture(x, c, min_radius))


@stable("mean", rows=False)
def wrapped_normal(
    mean: Tensor,
    std: Tensor | float,
    c: Curvature,
    size: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return samples ``(*size, ..., n)`` of the wrapped normal distribution around ``mean``
    ``(..., n)``.

    ``std`` is measured in distances, as in the Lorentz model, not in ball coordinates.
    """
    return from_lorentz(lorentz.wrapped_normal(to_lorentz(mean, c), std, c, size, generator), c)


@stable("x", "mean")
def wrapped_normal_log_prob(x: Tensor, mean: Tensor, std: Tensor | float, c: Curvature) -> Tensor:
    """Return the log density ``(...)`` of :func:`wrapped_normal` at ``x``, for the Riemannian
    volume."""
    return lorentz.wrapped_normal_log_prob(to_lorentz(x, c), to_lorentz(mean, c), std, c)


@stable("x")
def rescale(
    x: Tensor, c: Curvature, limit: float | Tensor | None = None, slope: float = 2.0
) -> Tensor:
    """Return the points with their radii squashed below ``limit``: maximum-distance rescaling; see
    :func:`hypvision.geometry.lorentz.rescale`."""
    limit = lorentz.max_distance(c) if limit is None else limit
    return expmap0(squashed("rescale", 2 * logmap0(x, c), limit, slope) / 2, c)


# --------------------------------------------------------------------------------------------------
# Distances from hyperplanes and horospheres, logits


@_ball("x", "p", "a", small=True)
def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, signed: bool = True) -> Tensor:
    r"""Return the distance ``(...)`` of ``x`` from the hyperplane through ``p`` with the normal
    ``a``, all ``(..., n)``; with ``signed`` positive on the side that ``a`` points to.

    .. math:: \tfrac{1}{\sqrt c}\,\mathrm{asinh}
              \frac{2 \sqrt c\, (P\, \Delta \cdot \hat a - c|\Delta|^2\, p \cdot \hat a)}{X P},
              \quad \Delta = x - p

    This is Ganea et al.'s distance (NeurIPS 2018, eq. 25), written in terms that do not cancel near
    the boundary.
    """
    gap = _gap(p, c)
    delta = x - p
    root = square_root(c)
    size = clamped(length(a), tiny(a))
    top = (gap * dot(delta, a) - c * square_norm(delta) * dot(p, a)) / size
    out = (exportable.asinh(2 * root * top / (_gap(x, c) * gap)) / root).squeeze(-1)
    return out if signed else out.abs()


@stable("x", fits=("p", "a"), wide=False)
def ganea_logits(x: Tensor, p: Tensor, a: Tensor, c: Curvature) -> Tensor:
    r"""Return the logits :math:`\lambda_p |a|\, d(x, H_{p,a})` of logistic regression (Ganea et
    al., eq. 25).

    Args:
        x: points ``(..., n)``.
        p: points ``(K, n)`` of the hyperplanes.
        a: normals ``(K, n)`` in ball coordinates at the origin, from where they are transported to
            ``p``.
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Logits ``(..., K)``, by one matrix product: a hyperplane of the ball is one of the
        hyperboloid.

    Raises:
        ValueError: ``p`` and ``a`` are not matrices of the same shape.
    """
    if p.dim() != 2 or p.shape != a.shape:
        raise ValueError(
            f"ganea_logits: p and a must be matrices (K, n) of one shape, got {tuple(p.shape)} and "
            f"{tuple(a.shape)}."
        )
    c = widen(c, STEEPEST)
    root = square_root(c)
    p = _inside(widen(p), c, p.dtype)
    away, size = heading(widen(a))
    # With a normal of length 1, sinh(distance) is the Lorentz product <x, normal>_L.
    time = 2 * root * dot(p, away) / _gap(p, c)
    planes = torch.cat([-time, away + root * time * p], -1)
    points = to_lorentz(widen(x), c) * root
    return plane_products(points, planes, (2 / root) * size, x.dtype)


@stable("x", fits=("v",), wide=False)
def hyperplane_logits(
    x: Tensor, v: Tensor, r: Tensor, c: Curvature, g: Tensor | None = None
) -> Tensor:
    r"""Return the unidirectional logits of HNN++ (Shimizu et al., ICLR 2021, eq. 6).

    .. math:: \tfrac{2 g}{\sqrt c}\,\mathrm{asinh}\left(
              \lambda_x\langle \sqrt c x, \hat v\rangle\cosh(2\sqrt c r)
              - (\lambda_x - 1)\sinh(2\sqrt c r)\right)

    Args:
        x: points ``(..., n)``.
        v: normals ``(K, n)``.
        r: offsets ``(K,)``.
        c: curvature, a float or a tensor without dimensions.
        g: factors ``(K,)``; None: the lengths of the normals.

    Returns:
        Logits ``(..., K)``, by one matrix product.

    Raises:
        ValueError: ``v`` is not a matrix, or ``r`` or ``g`` does not have one number for each of
            its rows.
    """
    if v.dim() != 2:
        raise ValueError(
            f"hyperplane_logits: v must be a matrix (K, n), got the shape {tuple(v.shape)}."
        )
    one_each("hyperplane_logits", "r", r, v.shape[0], "hyperplanes")
    if g is not None:
        one_each("hyperplane_logits", "g", g, v.shape[0], "hyperplanes")
    away, size = heading(widen(v))
    factor = 2 * (size.squeeze(-1) if g is None else widen(g))
    normals = narrow(away, x.dtype)
    return lorentz.hyperplane_logits(to_lorentz(x, c), normals, 2 * widen(r), c) * bounded(
        factor, x.dtype
    )


@stable("x", "p")
def busemann(x: Tensor, p: Tensor, c: Curvature) -> Tensor:
    r"""Return the Busemann function :math:`\tfrac{1}{\sqrt c}\log(|p - \sqrt c x|^2 / X)`,
    ``(...)``, of ``x`` for the ideal points ``p``, unit vectors ``(..., n)``."""
    return lorentz.busemann(to_lorentz(x, c), p, c)


def horosphere_dist(x: Tensor, p: Tensor, tau: float | Tensor, c: Curvature) -> Tensor:
    """Return the distance ``(...)`` of ``x`` from the horosphere around ``p``, on which
    :func:`busemann` is ``tau``."""
    return (busemann(x, p, c) - tau).abs()


# --------------------------------------------------------------------------------------------------
# Changes of curvature, concatenation


def change_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    r"""Return the points of curvature ``c_new`` with the same tangent vectors at the origin,
    :math:`\exp_0^{c'}(\log_0^{c} x)`."""
    return expmap0(logmap0(x, c_old), c_new)


@stable("x")
def scale_curvature(x: Tensor, c_old: Curvature, c_new: Curvature) -> Tensor:
    """Return the points ``x * sqrt(c_old / c_new)``: all distances are multiplied by that root,
    angles stay."""
    return x * (c_old / c_new) ** 0.5


def beta_concat(points: list[Tensor], c: Curvature) -> Tensor:
    """Return the beta-concatenation ``(..., sum n_i)`` of ``points`` ``(..., n_i)`` (HNN++), which
    keeps the expected radius of random points."""
    same_list("beta_concat", points)
    n = sum(x.shape[-1] for x in points)
    parts = [logmap0(x, c) * math.exp(log_beta(n) - log_beta(x.shape[-1])) for x in points]
    return expmap0(torch.cat(parts, -1), c)


@stable("x", rows=False)
def beta_split(x: Tensor, sizes: list[int], c: Curvature) -> list[Tensor]:
    """Return points of the dimensions ``sizes``, the beta-split of ``x`` (HNN++) and inverse of
    :func:`beta_concat`; ``sizes`` must add up to ``n``.

    Raises:
        ValueError: ``sizes`` do not add up to ``n``.
    """
    n = x.shape[-1]
    if sum(sizes) != n:
        raise ValueError(f"beta_split: sizes must add up to the dimension {n}, got {sizes}.")
    parts = logmap0(x, c).split(sizes, -1)
    return [expmap0(u * math.exp(log_beta(u.shape[-1]) - log_beta(n)), c) for u in parts]
