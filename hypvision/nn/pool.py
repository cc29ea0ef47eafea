"""Pooling of maps of space parts by Lorentz centroids."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.geometry.lorentz.means import centroid_space

from .checks import check_features, check_manifold, integers
from .functional import precise, space_time, to_centroids, with_time


class LorentzGlobalAvgPool2d(nn.Module):
    """Pool a map to the centroid of its pixels: space parts ``(B, C, H, W)`` to ``(B, C)``, or to
    ``(B, C, 1, 1)`` with ``keepdim``."""

    def __init__(self, manifold: Lorentz, keepdim: bool = False):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        self.manifold = manifold
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, dim=1, rank=4)
        c = self.manifold.c
        means = with_time(x.movedim(1, -1), c).mean((1, 2))
        out = to_centroids(means, c)[..., 1:].to(x.dtype)
        return out[..., None, None] if self.keepdim else out


class LorentzAvgPool2d(nn.Module):
    """Pool the windows of a map of space parts ``(B, C, H, W)`` to centroids ``(B, C, H', W')``;
    arguments are those of ``nn.AvgPool2d``, and padding is by origins."""

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        manifold: Lorentz,
        stride: int | tuple[int, int] | None = None,
        padding: int | tuple[int, int] = 0,
    ):
        super().__init__()
        check_manifold(self, Lorentz, manifold=manifold)
        self.kernel_size = integers(kernel_size, 2, "kernel_size", 1)
        self.stride = self.kernel_size if stride is None else integers(stride, 2, "stride", 1)
        self.padding = integers(padding, 2, "padding", 0)
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, dim=1, rank=4)
        c = self.manifold.c
        wide = precise(x)
        # The pooled number is time - 1/sqrt(c), so that padding with zeros adds origins.
        time = F.avg_pool2d(
            space_time(wide, c, 1) - 1 / c**0.5, self.kernel_size, self.stride, self.padding
        )
        space = F.avg_pool2d(wide, self.kernel_size, self.stride, self.padding)
        return centroid_space(time + 1 / c**0.5, space, c, 1).to(x.dtype)
