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
    square_norm,
    square_root,
    tiny,
    with_hypotenuse,
)
from .distances import pair, stretch, way
from .points import CAP, _from_space


@stable("x", "u")
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
    half = square_root(c) / 2
    start, time = with_hypotenuse(x[..., 1:] * half, 0.5)
    vector = u[..., 1:] * half
    place = divided(start, time + 0.5)
    level = add_scaled(vector, place, -divided(dot(start, vector), time))
    level, step = with_hypotenuse(level, tiny(x))
    moved = clamped(step, high=CAP / 2)
    cosh = exportable.cosh(moved)
    middle = add_scaled(level * divided(exportable.sinh(moved), step), place, cosh)
    ahead = add_scaled(middle * cosh, start, square_norm(middle))
    return divided(_from_space(ahead, 0.5), half)


@stable("x", "y")
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the logarithm of ``y`` at ``x``: the tangent vector ``(..., n + 1)`` at ``x`` whose
    geodesic reaches ``y`` after unit time.

    .. math:: \frac{A}{\sinh A} \left(y - x - \tfrac{q}{2} x\right)

    where ``A / sqrt(c)`` is the distance and ``q / c`` the squared chord.
    """
    half = square_root(c) / 2
    found = pair(x, y, half)
    square = clamped(square_norm(way(found)) * stretch(found), tiny(x))
    root = torch.sqrt(square)
    # A / sinh(A)
    factor = divided(divided(exportable.asinh(root), root), torch.sqrt(1 + square))
    back = 2 * square * factor
    time = factor * found.ahead - back * found.time
    space = factor * found.delta - back * found.start
    return divided(torch.cat([time, space], -1), half)


@stable("x", "v")
def proju(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the orthogonal projection :math:`v + c\langle x, v\rangle_L x` of ``v``
    ``(..., n + 1)`` to the tangent space at ``x``."""
    x = _from_space(x[..., 1:] * square_root(c), 1.0)
    signs = torch.ones(x.shape[-1], 1, dtype=x.dtype, device=x.device)
    signs[:1].neg_()
    return add_scaled(v, x, torch.matmul(x * v, signs))


@stable("x", "v")
def egrad2rgrad(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Return the Riemannian gradient ``(..., n + 1)`` at ``x`` for the Euclidean gradient ``v``
    ``(..., n + 1)``."""
    space, time = with_hypotenuse(x[..., 1:], c**-0.5)
    # the derivative with respect to the space part when the point moves on the hyperboloid
    covector = v[..., 1:] + (space / time) * v[..., :1]
    along = c * dot(space, covector)
    return torch.cat([time * along, add_scaled(covector, space, along)], -1)


@stable("x", "u", "v")
def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the inner product ``(...)`` of the tangent vectors ``u``, ``v`` at ``x``, all
    ``(..., n + 1)``.

    .. math:: u' \cdot v',\quad v' = v_s - \frac{s \cdot v_s}{t (R + t)} s

    where ``R`` is the radius of curvature: the Euclidean product after transport to the origin.
    """
    start, time = with_hypotenuse(x[..., 1:] * (square_root(c) / 2), 0.5)
    first = _level(start, time, u[..., 1:])
    return dot(first, _level(start, time, v[..., 1:])).squeeze(-1)


def _level(start: Tensor, time: Tensor, vector: Tensor) -> Tensor:
    """Return tangent vectors after parallel transport to the origin; the space part ``start`` and
    the ``time`` of their points are given in units of two radii of curvature."""
    return add_scaled(vector, start, -divided(dot(start, vector), time * (time + 0.5)))


@stable("x", "u")
def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the length ``(...)`` of the tangent vectors ``u`` at ``x``, both ``(..., n + 1)``; its
    gradient is 0 where it is 0."""
    start, time = with_hypotenuse(x[..., 1:] * (square_root(c) / 2), 0.5)
    return length(_level(start, time, u[..., 1:])).squeeze(-1)


@stable("x", "y", "v")
def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the tangent vectors ``v`` at ``x`` after parallel transport to ``y`` along the
    geodesic, all ``(..., n + 1)``.

    .. math:: v + \frac{c \langle y - x, v\rangle_L}{2 + q / 2} (x + y)

    where ``q / c`` is the squared chord. Only the space part of ``v`` is read. The factor is
    computed from ``v`` after transport to the origin, because the product has no digit left of far
    points on one ray: in units of two radii of curvature it is
    :math:`(2 w \cdot v' - \tfrac q 4 \tfrac{s \cdot v_s}{t (t + 1/2)}) / (1 + \tfrac q 4)`, with
    :math:`w` of :func:`hypvision.geometry.lorentz.distances.way`.
    """
    found = pair(x, y, square_root(c) / 2)
    vector = v[..., 1:]
    first = divided(dot(found.start, vector), found.time)
    turn = divided(first, found.lever)
    level = add_scaled(vector, found.start, -turn)
    between = way(found)
    square = square_norm(between) * stretch(found)
    share = divided(2 * dot(between, level) - square * turn, 1 + square)
    out = add_scaled(vector, 2 * found.start + found.delta, share)
    return torch.cat([first + share * (2 * found.time + found.ahead), out], -1)


@stable("x", space=("u",))
def transp0(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the tangent vectors ``u`` ``(..., n)`` at the origin after parallel transport to ``x``
    ``(..., n + 1)``, as ``(..., n + 1)``."""
    radius = c**-0.5
    space, time = with_hypotenuse(x[..., 1:], radius)
    along = dot(space, u) / radius
    return torch.cat([along, add_scaled(u, space, along / (time + radius))], -1)


@stable("x", "v")
def transp0back(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """Return the tangent vectors ``v`` ``(..., n + 1)`` at ``x`` after parallel transport to the
    origin, as their space part ``(..., n)``."""
    start, time = with_hypotenuse(x[..., 1:] * (square_root(c) / 2), 0.5)
    return _level(start, time, v[..., 1:])
