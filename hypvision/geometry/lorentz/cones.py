"""Distances from hyperplanes and horospheres, logits, and entailment cones."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import exportable
from .._typing import Curvature
from ..border import STEEPEST, one_each, positive, stable
from ..numerics import (
    along_and_across,
    angle,
    bounded,
    clamped,
    dot,
    heading,
    length,
    radius_of,
    safe_sqrt,
    square_norm,
    square_root,
    tiny,
    widen,
)
from .distances import pair
from .points import CAP, _from_space, _time


@stable("x", space=("z",), timeless=("x",), small=True)
def dist2plane(
    x: Tensor, z: Tensor, a: Tensor | float, c: Curvature, signed: bool = True
) -> Tensor:
    r"""Return the distance ``(...)`` of points ``(..., n + 1)`` from hyperplanes (Bdeir et al.,
    ICLR 2024).

    .. math:: \tfrac{1}{\sqrt c}\,\mathrm{asinh}\left(\sqrt c\,(\cosh(\sqrt c a)\, x_s \cdot \hat z
              - \sinh(\sqrt c a)\, x_t)\right)

    Args:
        x: points ``(..., n + 1)``.
        z: normals ``(..., n)``, not 0.
        a: offset of the hyperplane from the origin along ``z``, ``(...)``; cut at 40 radii of
            curvature.
        c: curvature.
        signed: whether distances are positive on the side to which ``z`` points and negative on the
            other; else they are absolute values.
    """
    root = square_root(c)
    normal, _ = heading(z)
    cosh, sinh = _offset(a, root, z)
    side = cosh * dot(x, normal) - sinh * _time(x, c**-0.5)
    out = (exportable.asinh(root * side) / root).squeeze(-1)
    return out if signed else out.abs()


def _offset(a: Tensor | float, root: Curvature, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosh and the sinh ``(..., 1)`` of the offsets ``a`` in radii of curvature;
    ``root`` is ``sqrt(c)``, ``z`` gives dtype and device."""
    a = torch.as_tensor(a, dtype=z.dtype, device=z.device)
    a = clamped((a.unsqueeze(-1) if a.dim() else a) * root, -CAP, CAP)
    return exportable.cosh(a), exportable.sinh(a)


@stable("x", space=("z",), timeless=("x",), wide=False)
def hyperplane_logits(x: Tensor, z: Tensor, a: Tensor, c: Curvature) -> Tensor:
    """Return the logits of Lorentz multinomial logistic regression: signed distances from ``K``
    hyperplanes, times the lengths of their normals.

    Args:
        x: points ``(..., n + 1)``.
        z: normals ``(K, n)``.
        a: offsets ``(K,)``.
        c: curvature, a float or a tensor without dimensions.

    Returns:
        Logits ``(..., K)``, by one matrix product (Bdeir et al., ICLR 2024, eq. 11).

    Raises:
        ValueError: ``z`` is not a matrix, or ``a`` does not have one offset for each of its rows.
    """
    if z.dim() != 2:
        raise ValueError(
            f"hyperplane_logits: z must be a matrix (K, n), got the shape {tuple(z.shape)}."
        )
    one_each("hyperplane_logits", "a", a, z.shape[0], "hyperplanes")
    return _logits(x, z, a, c)


@stable("x", fits=("z",), wide=False)
def space_logits(x: Tensor, z: Tensor, a: Tensor, c: Curvature) -> Tensor:
    """Return :func:`hyperplane_logits` ``(..., K)`` of the points with the space parts ``x``
    ``(..., n)``."""
    return _logits(x, z, a, c)


def _logits(space: Tensor, z: Tensor, a: Tensor, c: Curvature) -> Tensor:
    c = widen(c, STEEPEST)
    z = widen(z)
    root = square_root(c)
    size = length(z)
    cosh, minus_sinh = _offset(a, -root, z)
    scale = cosh / clamped(size, tiny(z))
    planes = torch.cat([minus_sinh, scale * z], -1)
    points = _from_space(widen(space) * root, 1.0)
    return plane_products(points, planes, size / root, space.dtype)


def plane_products(points: Tensor, planes: Tensor, sizes: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``sizes`` ``(K, 1)`` times the asinh of the products ``(..., K)`` of points and
    ``planes`` ``(K, n + 1)``, computed in ``dtype``."""
    sides = torch.matmul(bounded(points, dtype), bounded(planes, dtype).t())
    return exportable.asinh(sides) * bounded(sizes.squeeze(-1), dtype)


@stable("x", space=("p",), timeless=("x",), small=True)
def busemann(x: Tensor, p: Tensor, c: Curvature) -> Tensor:
    r"""Return the Busemann function :math:`\tfrac{1}{\sqrt c} \log(\sqrt c(x_t - x_s \cdot p))`,
    ``(...)``.

    Args:
        x: points ``(..., n + 1)``.
        p: ideal points, unit vectors ``(..., n)``.
        c: curvature.
    """
    radius = c**-0.5
    size = length(x)
    # The two parts x_t - |x_s| and |x_s| - x_s . p are computed from positive terms, without
    # cancellation.
    gap = radius * radius / (_time(x, radius) + size)
    side = square_norm(x - size * p) / clamped(2 * size, tiny(size))
    return (torch.log((gap + side) / radius) * radius).squeeze(-1)


@stable("x", fits=("p",), rows=False, small=True)
def space_busemann(x: Tensor, p: Tensor, c: Curvature) -> Tensor:
    """Return :func:`busemann` ``(..., K)`` of the points with the space parts ``x`` ``(..., n)``,
    for the ideal points in the directions ``p`` ``(K, n)``, of any length but 0, by one matrix
    product."""
    radius = c**-0.5
    size = length(x)
    # x_t - |x_s| has no cancellation; |x_s| - x_s . p has at least 0, whatever is rounded.
    gap = radius * radius / (_time(x, radius) + size)
    side = clamped(size - torch.matmul(x, heading(p)[0].t()), 0.0)
    return torch.log((gap + side) / radius) * radius


def horosphere_dist(x: Tensor, p: Tensor, tau: float | Tensor, c: Curvature) -> Tensor:
    """Return the distance ``(...)`` of ``x`` from the horosphere around ``p``, on which
    :func:`busemann` is ``tau``."""
    return (busemann(x, p, c) - tau).abs()


@stable("x", timeless=("x",), small=True)
def half_aperture(x: Tensor, c: Curvature, min_radius: float = 0.1) -> Tensor:
    """Return the half-aperture ``asin(min(1, 2 K / (sqrt(c) |x_s|)))`` ``(...)`` of the entailment
    cone at ``x``, in radians.

    ``min_radius`` is the ``K`` of MERU (Desai et al., ICML 2023, after Ganea et al., ICML 2018).
    Near the origin the cone is a half-space, with gradient 0.

    Raises:
        ValueError: ``min_radius`` is negative.
    """
    positive("half_aperture", "min_radius", min_radius, zero=True)
    square = square_norm(x) * c
    top = 0 * square + 2 * min_radius  # NaN where a coordinate is infinite
    return exportable.atan2(top, safe_sqrt(square - 4 * min_radius**2)).squeeze(-1)


@stable("x", "y", timeless=("x", "y"), small=True)
def exterior_angle(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return the angle ``(...)`` at ``x`` between the ray from the origin and the geodesic to
    ``y``, in radians.

    It is 0 where ``y`` lies behind ``x`` on its ray, and where the points coincide, as those of
    equal texts do: a point is in its own cone. No clamp is needed: the angle is the ``atan2`` of
    the parts of :func:`logmap` across and along the ray, :math:`|s_\perp| / \sqrt c` and
    :math:`t\, \hat s \cdot (s' - s) - |s| (t' - t)` (Desai et al., ICML 2023, compute an ``acos``,
    which loses half of the digits, and gives pi/2 where points coincide).
    """
    radius = radius_of(c, x, y)
    found = pair(x, y, radius)
    size, along, across = along_and_across(found.start, found.delta)
    return angle(across * radius, found.time * along - size * found.ahead)


@stable("x", "y", timeless=("x", "y"), sets=("x", "y"))
def exterior_angles(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Return all exterior angles ``(..., N, M)`` at the points ``x`` ``(..., N, n + 1)`` towards
    the points ``y`` ``(..., M, n + 1)``, in radians, by one matrix product; ``c`` is a float or a
    tensor without dimensions.

    They are those of :func:`exterior_angle`, whose parts along and across the ray are also
    :math:`t\, \hat s \cdot s' - |s| t'` and the root of :math:`(|s'|^2 - (\hat s \cdot s')^2) / c`.
    This form has an error of 1e-8 where a point lies on the ray of the other, its angle of points
    that coincide means nothing, and points at the radius ``r`` that are ``d`` apart have the
    relative error ``1e-16 (sinh(r) / d)^2`` as in :func:`cdist`: for near points take
    :func:`exterior_angle`.
    """
    radius = c**-0.5
    ray, size = heading(x)
    ahead = torch.matmul(ray, y.mT)
    across = safe_sqrt(square_norm(y).mT - ahead * ahead) * radius
    along = _time(x, radius) * ahead - size * _time(y, radius).mT
    return angle(across[..., None], along[..., None])


def entailment_loss(
    x: Tensor, y: Tensor, c: Curvature, min_radius: float = 0.1, aperture_scale: float = 1.0
) -> Tensor:
    """Return ``max(0, exterior angle - aperture_scale * half-aperture)`` ``(...)``, in radians: 0
    where ``x`` entails ``y``."""
    return torch.relu(exterior_angle(x, y, c) - aperture_scale * half_aperture(x, c, min_radius))
