"""Embedding of image patches, and of vectors, as points of the hyperboloid."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.geometry.numerics import sinhc_sqrt
from hypvision.nn.checks import check_features, check_manifold, check_sizes
from hypvision.nn.conv import LorentzConv2d
from hypvision.nn.functional import radial_map


class LorentzPatchEmbed(nn.Module):
    """Map an image to tokens on the hyperboloid: its pixels are taken as space parts, and each
    patch passes through a :class:`LorentzConv2d`.

    Images ``(B, in_chans, H, W)`` become tokens ``(B, N, embed_dim)`` or, without ``flatten``, a
    map ``(B, embed_dim, H', W')``. Pixels at the right and bottom that do not fill a patch of
    ``patch_size`` are dropped.
    """

    def __init__(
        self,
        in_chans: int,
        embed_dim: int,
        patch_size: int,
        manifold: Lorentz,
        flatten: bool = True,
        **factory: Any,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        check_sizes(self, in_chans=in_chans, embed_dim=embed_dim)
        self.proj = LorentzConv2d(
            in_chans, embed_dim, patch_size, manifold, stride=patch_size, **factory
        )
        self.flatten = flatten

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        return x.flatten(2).transpose(1, 2) if self.flatten else x


class HypformerLift(nn.Module):
    r"""Map Euclidean vectors ``(..., n)`` to space parts as Hypformer's code does (Yang et al., KDD
    2024): the exponential map of the tangent vector whose time is 1, not 0.

    Vectors shorter than 1 stay as they are; longer ones become
    :math:`x \sinh(\sqrt c\, r) / (\sqrt c\, r)` with :math:`r^2 = |x|^2 - 1`. The published
    curvature is 1.
    """

    def __init__(self, manifold: Lorentz):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x)
        return radial_map(x, _timed_factor, self.manifold.c)


def _timed_factor(square: Tensor, c: float | Tensor) -> Tensor:
    # Beyond the distance 40 / sqrt(c) the factor stays, before sinh overflows.
    return sinhc_sqrt(((square - 1) * c).clamp(min=0, max=1600))
