"""Tangent vectors of the hyperboloid: exponential, logarithm, projections, parallel transport.

In the formulas ``s`` and ``t`` are the space part and the time of ``x``, ``s'`` and ``t'`` those of
``y``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import exportable
from .._typing import Curvature
from ..border import stable
from ..numerics import (
    add_scaled,
    clamped,
    divided,
    dot,
    length,
    radius_of,
    square_norm,
    square_root,
    tiny,
    with_hypotenuse,
)
from .distances import pair, stretch, way
from .points import CAP, _from_space


@stable("x", "u", timeless=("x", "u"))
def expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r"""Return the exponential map: the points that geodesics from ``x`` with the velocities ``u``
    reach after unit time.

    With the radius of curvature :math:`R = 1 / \sqrt c`, :math:`h = s / (R + t)`, the velocity
    transported to the origin, :math:`w = u_s - (s \cdot u_s / t)\, h`, and
    :math:`\theta = |w| / R` it is

    .. math:: 2 R \cosh\tfrac\theta 2\, p + |p|^2 s,\quad
              p = \cosh\tfrac\theta 2\, h + \sinh\tfrac\theta 2\, \frac{w}{|w|}

    The textbooks' :math:`\cosh\theta\, s + \sinh\theta\, u_s / \theta` is the same, but loses the
    digits of ``cosh(r)^2`` in long steps towards the origin; this form loses those of ``cosh(r)``.

    Args:
        x: points ``(..., n + 1)``.
        u: tangent vectors at ``x``, ``(..., n + 1)``; only their space part is read. Vectors longer
            than 40 radii of curvature are shortened to that length.
        c: curvature.
    """
    radius = radius_of(c, x)
    diameter = 2 * radius
    start, time = with_hypotenuse(x, radius)
    lever = time + radius
    level, step = with_hypotenuse(_level(start, time, lever, u), tiny(x))
    moved = clamped(divided(step, diameter), high=CAP / 2)
    cosh = exportable.cosh(moved)
    middle = add_scaled(level * divided(exportable.sinh(moved), step), start, divided(cosh, lever))
    ahead = add_scaled(middle * (diameter * cosh), start, square_norm(middle))
    return _from_space(ahead, radius)


@stable("x", "y", timeless=("x", "y"))
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the logarithm of ``y`` at ``x``: the tangent vector ``(..., n + 1)`` at ``x`` whose
    geodesic reaches ``y`` after unit time.

    .. math:: \frac{A}{\sinh A} \left(y - x - \tfrac{q}{2} x\right)

    where ``A / sqrt(c)`` is the distance and ``q / c`` the squared chord.
    """
    found = pair(x, y, radius_of(c, x, y))
    square = clamped(square_norm(way(found)) * stretch(found) * (c / 4), tiny(x))
    root = torch.sqrt(square)
    # A / sinh(A)
    factor = divided(divided(exportable.asinh(root), root), torch.sqrt(1 + square))
    back = 2 * square * factor
    time = factor * found.ahead - back * found.time
    space = factor * found.delta - back * found.start
    return torch.cat([time, space], -1)


@stable("x", "v", timeless=("x",))
def proju(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the orthogonal projection :math:`v + c\langle x, v\rangle_L x` of ``v``
    ``(..., n + 1)`` to the tangent space at ``x``."""
    x = _from_space(x * square_root(c), 1.0)
    signs = torch.ones(x.shape[-1], 1, dtype=x.dtype, device=x.device)
    signs[:1].neg_()
    return add_scaled(v, x, torch.matmul(x * v, signs))


@stable("x", "v", timeless=("x",))
def egrad2rgrad(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Return the Riemannian gradient ``(..., n + 1)`` at ``x`` for the Euclidean gradient ``v``
    ``(..., n + 1)``."""
    space, time = with_hypotenuse(x, c**-0.5)
    # the derivative with respect to the space part when the point moves on the hyperboloid
    covector = v[..., 1:] + (space / time) * v[..., :1]
    along = c * dot(space, covector)
    return torch.cat([time * along, add_scaled(covector, space, along)], -1)


@stable("x", "u", "v", timeless=("x", "u", "v"))
def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the inner product ``(...)`` of the tangent vectors ``u``, ``v`` at ``x``, all
    ``(..., n + 1)``.

    .. math:: u' \cdot v',\quad v' = v_s - \frac{s \cdot v_s}{t (R + t)} s

    where ``R`` is the radius of curvature: the Euclidean product after transport to the origin.
    """
    radius = radius_of(c, x)
    start, time = with_hypotenuse(x, radius)
    lever = time + radius
    first = _level(start, time, lever, u)
    return dot(first, _level(start, time, lever, v)).squeeze(-1)


def _level(start: Tensor, time: Tensor, lever: Tensor, vector: Tensor) -> Tensor:
    """Return the space part of tangent vectors after parallel transport to the origin from the
    points with the space part ``start`` and the ``time``; ``lever`` is ``R + t``."""
    return add_scaled(vector, start, -divided(dot(start, vector), time * lever))


@stable("x", "u", timeless=("x", "u"))
def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the length ``(...)`` of the tangent vectors ``u`` at ``x``, both ``(..., n + 1)``; its
    gradient is 0 where it is 0."""
    return length(_to_origin(x, u, radius_of(c, x))).squeeze(-1)


def _to_origin(x: Tensor, vector: Tensor, radius: Curvature) -> Tensor:
    """Return :func:`_level` of tangent vectors at the points with the space part ``x``."""
    start, time = with_hypotenuse(x, radius)
    return _level(start, time, time + radius, vector)


@stable("x", "y", "v", timeless=("x", "y", "v"))
def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the tangent vectors ``v`` at ``x`` after parallel transport to ``y`` along the
    geodesic, all ``(..., n + 1)``.

    .. math:: v + \frac{c \langle y - x, v\rangle_L}{2 + q / 2} (x + y)

    where ``q / c`` is the squared chord. Only the space part of ``v`` is read. The factor is
    computed from ``v`` after transport to the origin, because the product has no digit left of far
    points on one ray: it is
    :math:`(2 w \cdot v' - \tfrac q c \tfrac{s \cdot v_s}{t (R + t)}) / (\tfrac 4 c + \tfrac q c)`,
    with :math:`w` of :func:`hypvision.geometry.lorentz.distances.way`.
    """
    found = pair(x, y, radius_of(c, x, y))
    first = divided(dot(found.start, v), found.time)
    turn = divided(first, found.lever)
    level = add_scaled(v, found.start, -turn)
    between = way(found)
    square = square_norm(between) * stretch(found)
    share = divided(2 * dot(between, level) - square * turn, 4 / c + square)
    out = add_scaled(v, found.start + found.end, share)
    return torch.cat([first + share * (2 * found.time + found.ahead), out], -1)


@stable("x", space=("u",), timeless=("x",))
def transp0(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the tangent vectors ``u`` ``(..., n)`` at the origin after parallel transport to ``x``
    ``(..., n + 1)``, as ``(..., n + 1)``."""
    radius = c**-0.5
    space, time = with_hypotenuse(x, radius)
    along = dot(space, u) / radius
    return torch.cat([along, add_scaled(u, space, along / (time + radius))], -1)


@stable("x", "v", timeless=("x", "v"))
def transp0back(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Return the tangent vectors ``v`` ``(..., n + 1)`` at ``x`` after parallel transport to the
    origin, as their space part ``(..., n)``."""
    return _to_origin(x, v, radius_of(c, x))
