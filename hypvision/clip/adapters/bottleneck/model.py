"""Bottleneck adapters: a small residual MLP after the MLP of every block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.clip.adapters.base import Adapter, register
from hypvision.clip.towers import Tower, find_towers
from hypvision.io import HypvisionError

from .config import BottleneckConfig


class SmallMLP(nn.Module):
    """The map ``y + up(gelu(down(y)))`` of tokens ``(..., dim)``; ``up`` starts at zero."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.down = nn.Linear(dim, width)
        self.act = nn.GELU()
        self.up = nn.Linear(width, dim)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, y: Tensor) -> Tensor:
        change: Tensor = self.up(self.act(self.down(y.to(self.down.weight.dtype))))
        return y + change.to(y.dtype)

    def change_output(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Change the output of a block's MLP, as its forward hook."""
        return self(output)


@register
class Bottleneck(Adapter):
    """An adapter: a small MLP in every block of any open_clip ViT, timm ViT or text transformer."""

    name = "bottleneck"
    Config = BottleneckConfig

    config: BottleneckConfig

    def __init__(self, model: nn.Module, config: BottleneckConfig):
        super().__init__(model, config)
        self.towers = [tower for tower in find_towers(model) if getattr(config, tower.modality)]
        if not self.towers:
            raise HypvisionError(
                f"{type(model).__name__} has no transformer tower that a bottleneck could adapt "
                f"with text={config.text}, vision={config.vision}. Use a model such as ViT-B-16."
            )

    def attach(self) -> None:
        for tower in self.towers:
            for block in tower.blocks:
                frozen = tower.frozen(block)
                dtype = torch.promote_types(frozen.dtype, torch.float32)
                own = SmallMLP(tower.width, self.config.width).to(frozen.device, dtype)
                block.add_module(self.name, own)
                mlp: Any = block.mlp
                self.handles.append(mlp.register_forward_hook(own.change_output))

    def detach(self) -> None:
        super().detach()
        for tower in self.towers:
            for block in tower.blocks:
                delattr(block, self.name)

    def acts_on(self) -> list[tuple[Tower, Sequence[int]]]:
        return [(tower, range(len(tower.blocks))) for tower in self.towers]

    def describe(self) -> str:
        towers = " and ".join(
            f"{len(tower.blocks)} {tower.modality} blocks" for tower in self.towers
        )
        return f"Adapter: small MLPs of width {self.config.width} in {towers}"
