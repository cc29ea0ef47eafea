"""Hyperplanes, horospheres and entailment cones."""

from __future__ import annotations

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import asinh, dot, one_each, positive, safe_sqrt, saturate_gradient, square_norm, stable
from .frame import _CAP, _FAR, _LIMIT, _LONGEST, _bound, _lift_scaled, _perpendicular, _root, _scaled
from .pairs import pair_of


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
    root = _root(c)
    space, q = _scaled(x[..., 1:], c)
    normals, length = _unit(z)
    cosh, sinh = _offset(a, root, z, length)
    along = dot(space, normals)
    out = (asinh(cosh * along - sinh * torch.sqrt(1 + q)) / root).squeeze(-1)
    return out if signed else out.abs()


def _unit(z: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (0 for 0) and lengths ``(..., 1)`` of normals, whose squares must not overflow."""
    factor, q = _bound(z, 1.0, _LONGEST[z.dtype])
    length = safe_sqrt(q)
    return z * (factor / torch.where(length > 0, length, torch.ones_like(length))), length


def _offset(a: Tensor | float, root: Curvature, z: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
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
        ValueError: ``z`` is not a matrix, or ``a`` does not have one offset for each of its rows.
    """
    if z.dim() != 2:
        raise ValueError(f"hyperplane_logits: z must be a matrix (K, n), got the shape {tuple(z.shape)}.")
    one_each("hyperplane_logits", "a", a, z.shape[0], "hyperplanes")
    return _logits(x[..., 1:], z, a, c)


@stable("x", fits=("z",))
def space_logits(x: Tensor, z: Tensor, a: Tensor, c: Curvature) -> Tensor:
    """:func:`hyperplane_logits` of points that are given by their space parts ``(..., n)``."""
    return _logits(x, z, a, c)


def _logits(space: Tensor, z: Tensor, a: Tensor, c: Curvature) -> Tensor:
    root = _root(c)
    normals, length = _unit(z)
    cosh, sinh = _offset(a, root, z, length)
    planes = saturate_gradient(torch.cat([-sinh, normals * cosh], -1))
    points = saturate_gradient(_lift_scaled(space, c))
    return asinh(torch.matmul(points, planes.t())) * (length.squeeze(-1) / root)


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
    # x_t - x_s . p as a sum of positive terms
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

    0 where ``y`` lies behind ``x`` on its ray, and where the points coincide, as those of equal texts do: a point is
    in its own cone. No clamp: an ``atan2`` of the parts of :func:`logmap` (Desai et al., ICML 2023, compute an ``acos``
    which loses half of the digits, and gives pi/2 where points coincide).
    """
    pair = pair_of(x, y, c)
    radial, away = pair.radial(), pair.qx > 0
    side = safe_sqrt(square_norm(_perpendicular(pair.delta, pair.x, away))) * pair.root
    same = (side == 0) & (radial == 0)
    return torch.atan2(side, torch.where(same, torch.ones_like(radial), radial)).squeeze(-1)


def entailment_loss(x: Tensor, y: Tensor, c: Curvature, min_radius: float = 0.1, aperture_scale: float = 1.0) -> Tensor:
    """``max(0, exterior angle - aperture_scale * half-aperture)`` ``(...)``: 0 where ``x`` entails ``y``."""
    return torch.relu(exterior_angle(x, y, c) - aperture_scale * half_aperture(x, c, min_radius))
