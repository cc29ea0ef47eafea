"""Embedding of image patches as points of the hyperboloid."""

from __future__ import annotations

from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.nn.checks import check_manifold, check_sizes
from hypvision.nn.conv import LorentzConv2d

__all__ = ["LorentzPatchEmbed"]


class LorentzPatchEmbed(nn.Module):
    """Image to tokens on the hyperboloid: pixels are space parts, patches pass a :class:`LorentzConv2d`.

    Args:
        in_chans: image channels.
        embed_dim: space dimension of the tokens.
        patch_size: side of a patch, in pixels.
        manifold: the hyperboloid.
        flatten: tokens ``(B, N, n)`` if true, else a map ``(B, n, H', W')``.

    Shapes:
        images ``(B, C, H, W)``; what does not fill a patch at the right and bottom is left out.
    """

    def __init__(
        self, in_chans: int, embed_dim: int, patch_size: int, manifold: Lorentz, flatten: bool = True, **factory
    ):
        super().__init__()
        check_manifold(self, manifold, Lorentz)
        check_sizes(self, in_chans=in_chans, embed_dim=embed_dim)
        self.proj = LorentzConv2d(in_chans, embed_dim, patch_size, manifold, stride=patch_size, **factory)
        self.flatten = flatten

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        return x.flatten(2).transpose(1, 2) if self.flatten else x
