"""Pooling by Lorentz centroids, over space-only maps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypvision.geometry import Lorentz
from hypvision.geometry.lorentz.means import centroid_space

from .checks import check_features, check_manifold, integers
from .functional import space_time

__all__ = ["LorentzAvgPool2d", "LorentzGlobalAvgPool2d"]


class LorentzGlobalAvgPool2d(nn.Module):
    """Centroid over the pixels: space parts ``(B, C, H, W)`` to ``(B, C)``, or ``(B, C, 1, 1)`` with ``keepdim``."""

    def __init__(self, manifold: Lorentz, keepdim: bool = False):
        super().__init__()
        check_manifold(self, manifold, Lorentz)
        self.manifold, self.keepdim = manifold, keepdim

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, dim=1, rank=4)
        c = self.manifold.c
        time = space_time(x, c, 1).mean((2, 3))
        out = centroid_space(time, x.to(time.dtype).mean((2, 3)), c, 1).to(x.dtype)
        return out[..., None, None] if self.keepdim else out


class LorentzAvgPool2d(nn.Module):
    """Centroid over windows of space parts ``(B, C, H, W)``; arguments as ``nn.AvgPool2d``, padding is by origins."""

    def __init__(self, kernel_size, manifold: Lorentz, stride=None, padding=0):
        super().__init__()
        check_manifold(self, manifold, Lorentz)
        integers(kernel_size, 2, "kernel_size", 1)
        if stride is not None:
            integers(stride, 2, "stride", 1)
        integers(padding, 2, "padding", 0)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        check_features(self, x, dim=1, rank=4)
        c = self.manifold.c
        precise = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        # the mean of 1/sqrt(c) is itself: pool what is beyond it, so that padding counts as origins
        time = space_time(precise, c, 1) - 1 / c**0.5
        time = F.avg_pool2d(time, self.kernel_size, self.stride, self.padding) + 1 / c**0.5
        return centroid_space(time, F.avg_pool2d(precise, self.kernel_size, self.stride, self.padding), c, 1).to(
            x.dtype
        )
