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
    dot,
    safe_sqrt,
    square_norm,
    square_root,
    tiny,
    with_hypotenuse,
)
from .distances import chord
from .points import CAP, _from_space


@stable("x", "u")
def expmap(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r"""Return the exponential map: the points that geodesics from ``x`` with the velocities ``u``
    reach after unit time.

    .. math:: \cosh\theta\, s + \frac{\sinh\theta}{\theta} u_s,\quad
              \theta = \sqrt{c (|u_s|^2 - (s \cdot u_s)^2 / t^2)}

    Args:
        x: points ``(..., n + 1)``.
        u: tangent vectors at ``x``, ``(..., n + 1)``; only their space part is read. Vectors longer
            than 40 radii of curvature are shortened to that length.
        c: curvature.
    """
    radius = c**-0.5
    space, time = with_hypotenuse(x[..., 1:], radius)
    velocity = u[..., 1:]
    first = dot(space, velocity) / time
    theta = torch.sqrt(clamped((square_norm(velocity) - first * first) * c, tiny(x)))
    moved = clamped(theta, high=CAP)
    ahead = add_scaled(exportable.cosh(moved) * space, velocity, exportable.sinh(moved) / theta)
    return _from_space(ahead, radius)


@stable("x", "y")
def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the logarithm of ``y`` at ``x``: the tangent vector ``(..., n + 1)`` at ``x`` whose
    geodesic reaches ``y`` after unit time.

    .. math:: \frac{A}{\sinh A} \left(y - x - \tfrac{q}{2} x\right)

    where ``A / sqrt(c)`` is the distance and ``q / c`` the squared chord.
    """
    time, ahead, delta, square = chord(x, y, c**-0.5)
    # Rounding may make the squared chord of far points negative.
    quarter = clamped(square * (c / 4), tiny(x))
    root = torch.sqrt(quarter)
    factor = exportable.asinh(root) / (root * torch.sqrt(1 + quarter))  # A / sinh(A)
    back = 2 * quarter * factor
    return torch.cat([factor * ahead - back * time, factor * delta - back * x[..., 1:]], -1)


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

    .. math:: u_s \cdot v_s - (s \cdot u_s)(s \cdot v_s) / t^2
    """
    return _inner(x[..., 1:], u[..., 1:], v[..., 1:], c).squeeze(-1)


def _inner(space: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return dot(u, v) - dot(space, u) * dot(space, v) / (square_norm(space) + c**-1)


@stable("x", "u")
def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the length ``(...)`` of the tangent vectors ``u`` at ``x``, both ``(..., n + 1)``; its
    gradient is 0 where it is 0."""
    space = x[..., 1:]
    vector = u[..., 1:]
    return safe_sqrt(_inner(space, vector, vector, c)).squeeze(-1)


@stable("x", "y", "v")
def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r"""Return the tangent vectors ``v`` at ``x`` after parallel transport to ``y`` along the
    geodesic, all ``(..., n + 1)``.

    .. math:: v + \frac{c \langle y - x, v\rangle_L}{2 + q / 2} (x + y)

    where ``q / c`` is the squared chord. Only the space part of ``v`` is read.
    """
    radius = c**-0.5
    time, ahead, delta, square = chord(x, y, radius)
    space = x[..., 1:]
    vector = v[..., 1:]
    first = dot(space, vector) / time
    # Rounding may make the squared chord of far points negative.
    share = (dot(delta, vector) - ahead * first) / (2 * radius**2 + clamped(square, 0.0) / 2)
    out = add_scaled(vector, space + y[..., 1:], share)
    return torch.cat([first + share * (2 * time + ahead), out], -1)


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
    radius = c**-0.5
    space, time = with_hypotenuse(x[..., 1:], radius)
    vector = v[..., 1:]
    return vector - space * (dot(space, vector) / (time * (time + radius)))
