"""Embedding of image patches as points of the hyperboloid."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.nn.checks import check_manifold, check_sizes
from hypvision.nn.conv import LorentzConv2d


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
