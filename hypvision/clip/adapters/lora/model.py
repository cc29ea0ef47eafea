"""LoRA as an adapter: low-rank changes of the packed projections, where HyperCLIP has its
blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hypvision.clip.adapters.base import register
from hypvision.clip.adapters.hyperclip.layer import PackedMap
from hypvision.clip.adapters.hyperclip.model import PackedAdapter, as_owner, check_packed
from hypvision.clip.towers import Tower
from hypvision.geometry.numerics import exact

from .config import LoRAConfig


class LowRankMap(PackedMap):
    """The map from W to ``W + alpha / rank * B A`` for the projections of one attention block with
    rows of length ``dim``: A ``(rank, dim)`` starts as a linear layer's weight, B ``(dim, rank)``
    at zero."""

    def __init__(self, dim: int, config: LoRAConfig):
        super().__init__()
        self.projections = config.projections
        self.scale = config.alpha / config.rank
        for letter in config.projections:
            down = nn.Parameter(torch.empty(config.rank, dim))
            nn.init.kaiming_uniform_(down, a=math.sqrt(5))
            self.register_parameter(f"{letter}_down", down)
            self.register_parameter(f"{letter}_up", nn.Parameter(torch.zeros(dim, config.rank)))

    def adapted(self, packed: Tensor) -> Tensor:
        """Return the packed projection ``(3d, d)`` with the changes, computed at least in
        float32."""
        chunks = []
        with exact(packed.device):
            for letter, chunk in zip("qkv", packed.detach().chunk(3)):
                if letter in self.projections:
                    up = getattr(self, f"{letter}_up")
                    down = getattr(self, f"{letter}_down")
                    chunk = (chunk.to(up.dtype) + self.scale * (up @ down)).to(packed.dtype)
                chunks.append(chunk)
        return torch.cat(chunks)


@register
class LoRA(PackedAdapter):
    """The adapter LoRA: low-rank changes of the attention projections of any open_clip ViT, timm
    ViT or text transformer."""

    name = "lora"
    Config = LoRAConfig

    config: LoRAConfig

    def layers(self, tower: Tower) -> Sequence[int]:
        return range(len(tower.blocks)) if getattr(self.config, tower.modality) else ()

    def make_maps(self, tower: Tower, number: int) -> PackedMap:
        packed = check_packed(tower, number, "LoRA")
        return as_owner(
            LowRankMap(packed.shape[1], self.config), tower.owner(tower.blocks[number]), packed
        )

    def describe(self) -> str:
        towers = [f"{len(numbers)} {tower.modality} blocks" for tower, numbers in self.acts_on()]
        letters = ", ".join(self.config.projections)
        return f"LoRA: rank {self.config.rank} on {letters} of {' and '.join(towers)}"
