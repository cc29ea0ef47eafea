"""Isometries of the hyperboloid: boosts, rotations, gyrovector operations, geodesics."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..border import check_factor, stable
from ..numerics import (
    add_scaled,
    bounded,
    divided,
    radius_of,
    square_norm,
    stretched,
    with_hypotenuse,
)
from .distances import pair, way
from .points import _from_space, expmap0, from_space, logmap0
from .tangents import expmap, logmap, norm


@stable("x", "y", timeless=("x", "y"))
def boost(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return ``y`` after the boost that takes the origin to ``x``; both are ``(..., n + 1)``.

    The result is the gyrovector (Moebius) sum :math:`x \oplus y` of the model, :func:`expmap` at
    ``x`` of the transported :func:`logmap0` of ``y`` (Chami et al., NeurIPS 2019):
    :math:`w + \frac{|w|^2}{2 R (R + t')} s` with :math:`w = s' + \frac{R + t'}{R + t} s` and the
    radius of curvature :math:`R = 1 / \sqrt c`.
    """
    radius = radius_of(c, x, y)
    space, time = with_hypotenuse(x, radius)
    end, end_time = with_hypotenuse(y, radius)
    lever = end_time + radius
    between = add_scaled(end, space, divided(lever, time + radius))
    ahead = divided(square_norm(between), 2 * radius * lever)
    return _from_space(add_scaled(between, space, ahead), radius)


@stable("x", "y", timeless=("x", "y"))
def unboost(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return ``y`` as seen from ``x``, :math:`(-x) \oplus y`: the inverse of :func:`boost` for the
    same ``x``; accurate for near points too."""
    radius = radius_of(c, x, y)
    found = pair(x, y, radius)
    between = way(found)
    back = divided(square_norm(between), 2 * radius * found.end_lever)
    return _from_space(add_scaled(between, found.start, -back), radius)


@stable("x", space=("matrix",), timeless=("x",), wide=False)
def rotate(x: Tensor, matrix: Tensor, c: Curvature) -> Tensor:
    """Return the points ``(..., m + 1)`` with the space parts ``R x_s``, for a ``matrix`` ``R``
    ``(m, n)`` and ``x`` ``(..., n + 1)``: an isometry if the columns of ``R`` are orthonormal."""
    return from_space(torch.matmul(bounded(x, x.dtype), matrix.transpose(-1, -2)), c)


@stable("x")
def scalar_mul(r: float | Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Return the points on the same rays at ``r`` times the radius, :math:`\exp_0(r \log_0 x)`;
    ``r`` is a number or ``(..., 1)``."""
    check_factor(r, "scalar_mul: r")
    return expmap0(r * logmap0(x, c), c)


@stable("x", space=("matrix",), wide=False)
def matvec(matrix: Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Return the Moebius product :math:`\exp_0(M \log_0 x)` ``(..., m + 1)`` of the ``matrix``
    ``M`` ``(m, n)`` and ``x`` ``(..., n + 1)``."""
    return expmap0(torch.matmul(logmap0(x, c), matrix.transpose(-1, -2)), c)


@stable("x", "y")
def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """Return the point at the fraction ``t``, a number or ``(..., 1)``, of the way from ``x`` to
    ``y``."""
    check_factor(t, "geodesic: t")
    return expmap(x, t * logmap(x, y, c), c)


@stable("x", "u")
def geodesic_unit(t: float | Tensor, x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Return the point at the distance ``t``, a number or ``(..., 1)``, from ``x`` in the direction
    of the tangent vector ``u`` ``(..., n + 1)``."""
    check_factor(t, "geodesic_unit: t")
    return expmap(x, stretched(u, norm(x, u, c).unsqueeze(-1), t), c)
