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
    square_norm,
    square_root,
    stretched,
    with_hypotenuse,
)
from .distances import pair, way
from .points import _from_space, expmap0, from_space, logmap0
from .tangents import expmap, logmap, norm


@stable("x", "y")
def boost(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return ``y`` after the boost that takes the origin to ``x``; both are ``(..., n + 1)``.

    The result is the gyrovector (Moebius) sum :math:`x \oplus y` of the model, :func:`expmap` at
    ``x`` of the transported :func:`logmap0` of ``y`` (Chami et al., NeurIPS 2019):
    :math:`w + \frac{|w|^2}{2 R (R + t')} s` with :math:`w = s' + \frac{R + t'}{R + t} s` and the
    radius of curvature :math:`R = 1 / \sqrt c`.
    """
    half = square_root(c) / 2
    space, time = with_hypotenuse(x[..., 1:] * half, 0.5)
    end, end_time = with_hypotenuse(y[..., 1:] * half, 0.5)
    lever = end_time + 0.5
    between = add_scaled(end, space, divided(lever, time + 0.5))
    ahead = add_scaled(between, space, divided(square_norm(between), lever))
    return divided(_from_space(ahead, 0.5), half)


@stable("x", "y")
def unboost(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return ``y`` as seen from ``x``, :math:`(-x) \oplus y`: the inverse of :func:`boost` for the
    same ``x``; accurate for near points too."""
    half = square_root(c) / 2
    found = pair(x, y, half)
    between = way(found)
    back = divided(square_norm(between), found.end_time + 0.5)
    return divided(_from_space(add_scaled(between, found.start, -back), 0.5), half)


@stable("x", space=("matrix",), wide=False)
def rotate(x: Tensor, matrix: Tensor, c: Curvature) -> Tensor:
    """Return the points ``(..., m + 1)`` with the space parts ``R x_s``, for a ``matrix`` ``R``
    ``(m, n)`` and ``x`` ``(..., n + 1)``: an isometry if the columns of ``R`` are orthonormal."""
    return from_space(torch.matmul(bounded(x[..., 1:], x.dtype), matrix.transpose(-1, -2)), c)


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
