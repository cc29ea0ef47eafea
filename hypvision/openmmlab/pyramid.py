"""Feature pyramids for networks with maps of one resolution, such as plain ViTs."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from hypvision.io import HypvisionError


def _branch(dim: int, scale: float) -> tuple[nn.Module, int]:
    """Return a module that resizes a map by the factor ``scale``, and its output channels."""
    if scale == 4:
        half = nn.ConvTranspose2d(dim, dim // 2, 2, stride=2)
        return nn.Sequential(
            half, LayerNorm2d(dim // 2), nn.GELU(), nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2)
        ), dim // 4
    if scale == 2:
        return nn.ConvTranspose2d(dim, dim // 2, 2, stride=2), dim // 2
    return (nn.Identity() if scale == 1 else nn.MaxPool2d(2, stride=2)), dim


def _pooled(maps: list[Tensor], count: int) -> tuple[Tensor, ...]:
    """Return the maps, with further ones pooled from the last map until there are ``count``."""
    while len(maps) < count:
        maps.append(F.max_pool2d(maps[-1], 1, stride=2))
    return tuple(maps)


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """A neck that makes maps of four resolutions from the last map alone, by transposed
    convolutions and pooling (ViTDet, Li et al., ECCV 2022).

    Args:
        in_channels: channels of the maps that the backbone returns, of which the last is used.
        out_channels: channels of every map of the pyramid.
        scales: sizes of the maps relative to that of the backbone, out of 4, 2, 1 and 0.5.
        num_outs: number of maps to return; those beyond ``scales`` are pooled from the last one (5
            for FPN-like detectors).
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int = 256,
        scales: Sequence[float] = (4, 2, 1, 0.5),
        num_outs: int = 4,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        if not set(scales) <= {4, 2, 1, 0.5} or num_outs < len(scales):
            raise HypvisionError(
                "model.neck takes scales out of 4, 2, 1, 0.5 and num_outs not below their number; "
                f"got {tuple(scales)} and {num_outs}."
            )
        self.in_channels = list(in_channels)
        self.out_channels = out_channels
        self.num_outs = num_outs
        self.levels = nn.ModuleList()
        for scale in scales:
            resize, dim = _branch(self.in_channels[-1], scale)
            self.levels.append(
                nn.Sequential(
                    resize,
                    nn.Conv2d(dim, out_channels, 1, bias=False),
                    LayerNorm2d(out_channels),
                    nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                    LayerNorm2d(out_channels),
                )
            )

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return maps ``(B, out_channels, H_i, W_i)``, the largest first, from the last of
        ``inputs``."""
        found = [level(inputs[-1]) for level in self.levels]
        return _pooled(found, self.num_outs)


@MODELS.register_module()
class BlockPyramid(BaseModule):
    """A neck that makes maps of several resolutions, each from one block of a plain ViT, and joins
    them from the coarsest to the finest as a feature pyramid network does (Lin et al., CVPR 2017).

    Args:
        in_channels: channels of the maps that the backbone returns, all of one resolution.
        out_channels, num_outs: see :class:`SimpleFeaturePyramid`.
        scales: size of each block's map after resizing, relative to the backbone's, out of 4, 2, 1
            and 0.5 in falling order.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int = 256,
        scales: Sequence[float] = (4, 2, 1, 0.5),
        num_outs: int = 4,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        falling = set(scales) <= {4, 2, 1, 0.5} and list(scales) == sorted(
            set(scales), reverse=True
        )
        if not falling or len(scales) != len(in_channels) or num_outs < len(scales):
            raise HypvisionError(
                "model.neck takes scales out of 4, 2, 1, 0.5 in falling order, one scale for each "
                f"block, and at least as many outputs; got {tuple(scales)}, {len(in_channels)} "
                f"blocks and num_outs={num_outs}."
            )
        self.out_channels = out_channels
        self.num_outs = num_outs
        branches = [_branch(dim, scale) for dim, scale in zip(in_channels, scales)]
        self.resize = nn.ModuleList(module for module, _ in branches)
        self.lateral = nn.ModuleList(nn.Conv2d(dim, out_channels, 1) for _, dim in branches)
        self.smooth = nn.ModuleList(
            nn.Conv2d(out_channels, out_channels, 3, padding=1) for _ in branches
        )
        self.norm = nn.ModuleList(LayerNorm2d(out_channels) for _ in branches)

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return maps ``(B, out_channels, H_i, W_i)``, the largest first."""
        maps = [lateral(resize(x)) for lateral, resize, x in zip(self.lateral, self.resize, inputs)]
        for k in range(len(maps) - 2, -1, -1):
            maps[k] = maps[k] + F.interpolate(maps[k + 1], maps[k].shape[-2:], mode="nearest")
        found = [norm(smooth(x)) for norm, smooth, x in zip(self.norm, self.smooth, maps)]
        return _pooled(found, self.num_outs)
