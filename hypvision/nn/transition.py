"""Layers between Euclidean features and the space parts of points, with channels in dimension 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.geometry.numerics import asinhc_sqrt, clamped, sinhc_sqrt, squash_factor
from hypvision.io import ArgumentError

from .checks import check_features, check_manifold, check_rescaling
from .functional import radial_map, rescale_limit


class ToLorentz(nn.Module):
    """Map Euclidean features ``(B, C, ...)``, channels in dimension 1, to the space parts of
    points.

    With ``slope`` the lengths of the vectors are rescaled to at most the maximum distance, and the
    vectors are taken as space parts (Bdeir et al., NeurIPS 2025). Without, vectors longer than
    ``clip`` are cut to that length and go through the exponential map at the origin (hybrid
    networks of the ICLR 2024 paper, after Guo et al., CVPR 2022).

    Args:
        manifold: the hyperboloid.
        slope: slope of the rescaling; None for no rescaling.
        clip: largest length of the vectors without rescaling; 1 by default.
        limit: the length that no vector exceeds after the rescaling; by default
            :func:`~hypvision.geometry.lorentz.max_distance`.

    Raises:
        HypvisionError: ``clip`` is given together with ``slope``, or ``limit`` without it.
    """

    def __init__(
        self,
        manifold: Lorentz,
        slope: float | None = None,
        clip: float | None = None,
        limit: float | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_rescaling(self, slope, limit, clip=clip)
        if clip is not None and slope is not None:
            raise ArgumentError(
                f"ToLorentz: clip={clip:g} is for features without rescaling, but slope={slope:g} "
                "rescales them. Leave out one of the two; limit is the largest length of the "
                "rescaling."
            )
        self.manifold = manifold
        self.slope = slope
        self.clip = 1.0 if clip is None else clip
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, dim=1)
        return radial_map(x, self.factor, self.manifold.c, dim=1)

    def factor(self, square: Tensor, c: float | Tensor) -> Tensor:
        """Return the factor by which vectors of the squared lengths ``square`` become space
        parts."""
        if self.slope is not None:
            return squash_factor(square, rescale_limit(c, self.limit), self.slope)
        shrink = self.clip / torch.sqrt(clamped(square, self.clip**2))
        return shrink * sinhc_sqrt(square * (shrink * shrink) * c)

    def extra_repr(self) -> str:
        return f"clip={self.clip}" if self.slope is None else f"slope={self.slope}"


class ToTangent(nn.Module):
    """Map space parts to tangent vectors at the origin by the logarithm; channels in dimension
    1."""

    def __init__(self, manifold: Lorentz):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, dim=1)
        return radial_map(x, lambda square, c: asinhc_sqrt(square * c), self.manifold.c, dim=1)


class ChangeManifold(nn.Module):
    """Map points of one hyperboloid to the points of another that have the same tangent vectors at
    the origin.

    With ``slope`` the lengths of the tangent vectors are rescaled to the maximum distance of the
    target, or to ``limit`` if it is given (an error without ``slope``). Features are space parts
    with channels in dimension 1.
    """

    def __init__(
        self,
        source: Lorentz,
        target: Lorentz,
        slope: float | None = None,
        limit: float | None = None,
    ):
        super().__init__()
        check_manifold(self, Lorentz, source=source, target=target)
        check_rescaling(self, slope, limit)
        self.source = source
        self.target = target
        self.slope = slope
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, dim=1)
        return radial_map(x, self.factor, self.source.c, self.target.c, dim=1)

    def factor(self, square: Tensor, source: float | Tensor, target: float | Tensor) -> Tensor:
        """Return the factor that maps space parts of the squared lengths ``square`` from the
        curvature ``source`` to ``target``."""
        factor = asinhc_sqrt(square * source)
        if self.slope is not None:
            limit = rescale_limit(target, self.limit)
            factor = factor * squash_factor(square * (factor * factor), limit, self.slope)
        return factor * sinhc_sqrt(square * (factor * factor) * target)

    def extra_repr(self) -> str:
        return f"slope={self.slope}"
