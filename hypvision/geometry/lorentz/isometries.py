"""Isometries of the hyperboloid and what is built on them: boosts, rotations, gyrovector operations, geodesics."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import asinh, asinhc_sqrt, dot, safe_sqrt, saturate_gradient, square_norm, stable
from .frame import _FAR, _capped, _move, _multiple, _perpendicular
from .pairs import pair_of
from .points import _expmap0, _from_space, logmap0
from .tangents import expmap, inner, logmap


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
    amount = torch.where(far, arrived / nx, ty + inner / (1 + tx))
    return _from_space(perp + x * amount, c)


@stable("x", "y")
def unboost(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Inverse of :func:`boost`: ``y`` as seen from ``x``, :math:`(-x) \oplus y`; accurate for near points too."""
    pair = pair_of(x, y, c)
    far = pair.far()
    one = torch.ones_like(pair.q)
    nx = torch.where(far, pair.nx, one)
    near = dot(pair.x, pair.delta) * c / (1 + pair.tx) - pair.product / (pair.tx + pair.ty)
    amount = torch.where(far, pair.radial() / nx, near)
    return _from_space(_perpendicular(pair.delta, pair.x, far) + pair.x * amount, c)


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
    space, q = _capped(x[..., 1:], c)
    return _expmap0(_multiple(saturate_gradient(space) * asinhc_sqrt(q), r, "scalar_mul: r"), c)


@stable("x", space=("matrix",))
def matvec(matrix: Tensor, x: Tensor, c: Curvature) -> Tensor:
    r"""Moebius matrix-vector product :math:`\exp_0(M \log_0 x)`; ``matrix`` ``(m, n)``, ``x`` ``(..., n + 1)``."""
    return _expmap0(torch.matmul(logmap0(x, c), matrix.transpose(-1, -2)), c)


@stable("x", "y")
def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """The point ``(..., n + 1)`` at the fraction ``t`` (a number, or ``(..., 1)``) of the way from ``x`` to ``y``."""
    return expmap(x, _multiple(logmap(x, y, c), t, "geodesic: t"), c)


@stable("x", "u")
def geodesic_unit(t: float | Tensor, x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """The point at distance ``t`` (a number, or ``(..., 1)``) from ``x`` in the direction of ``u`` ``(..., n + 1)``."""
    length = safe_sqrt(saturate_gradient(inner(x, u, u, c))).unsqueeze(-1)
    none = length <= torch.finfo(u.dtype).tiny ** 0.47  # the square of the inverse must be finite
    unit = u * saturate_gradient(1 / torch.where(none, torch.ones_like(length), length))
    return expmap(x, _multiple(unit, t, "geodesic_unit: t"), c)
