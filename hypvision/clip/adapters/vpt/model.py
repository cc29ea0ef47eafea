"""VPT as an adapter: learned tokens after the class token of an image tower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.clip.adapters.base import Adapter, register
from hypvision.clip.towers import Tower, patch_size, vision_tower
from hypvision.io import HypvisionError

from .config import VPTConfig


class LearnedTokens(nn.Module):
    """Learned tokens ``(layers, n, width)``, which start uniform in the interval of VPT's code."""

    def __init__(self, layers: int, tokens: int, width: int, patch: Sequence[int]):
        super().__init__()
        bound = math.sqrt(6 / (3 * patch[0] * patch[1] + width))
        self.tokens = nn.Parameter(torch.empty(layers, tokens, width).uniform_(-bound, bound))

    def put(
        self, layer: int, present: int, module: nn.Module, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Insert, as a forward pre-hook, the tokens of a layer after the first token of ``(B, L,
        width)``, in place of ``present`` earlier ones."""
        x: Tensor = args[0]
        own = self.tokens[layer].to(x.dtype).expand(len(x), -1, -1)
        return torch.cat([x[:, :1], own, x[:, 1 + present :]], 1), *args[1:]


@register
class VPT(Adapter):
    """Learned tokens in an open_clip ViT that pools its class token. They stand between the class
    token and the patches and enter before the first norm of the tower. They need not be removed,
    because nothing reads their outputs."""

    name = "vpt"
    Config = VPTConfig

    config: VPTConfig

    def __init__(self, model: nn.Module, config: VPTConfig):
        super().__init__(model, config)
        tower = vision_tower(model)
        visual = getattr(model, "visual", None)
        kind = getattr(visual, "pool_type", None)
        if (
            tower.family != "open_clip"
            or kind != "tok"
            or getattr(visual, "attn_pool", None) is not None
        ):
            raise HypvisionError(
                "VPT needs a ViT of open_clip that pools its class token, such as ViT-B-16."
            )
        self.tower: Tower = tower

    def attach(self) -> None:
        visual: Any = self.model.visual
        count = self.config.tokens
        blocks = self.tower.blocks
        layers = len(blocks) if self.config.deep else 1
        learned = LearnedTokens(layers, count, self.tower.width, patch_size(self.model))
        place = self.tower.frozen(blocks[0])
        visual.add_module(
            self.name, learned.to(place.device, torch.promote_types(place.dtype, torch.float32))
        )
        self.handles = [visual.ln_pre.register_forward_pre_hook(partial(learned.put, 0, 0))]
        for number in range(1, layers):
            self.handles.append(
                blocks[number].register_forward_pre_hook(partial(learned.put, number, count))
            )

    def detach(self) -> None:
        super().detach()
        delattr(self.model.visual, self.name)

    def acts_on(self) -> list[tuple[Tower, Sequence[int]]]:
        return [(self.tower, range(len(self.tower.blocks)))]

    def describe(self) -> str:
        where = "each image block" if self.config.deep else "the first image block"
        return f"VPT: {self.config.tokens} tokens in {where}"
