"""RoPE, with YaRN for contexts longer than those of the training.

The paper calls it HoPE: RoPE on the space part of a point, whose time it leaves as
it is. (It is not the code of that name that boosts.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import Architecture


def yarn(
    theta: Tensor, base: float, original: int, factor: float, beta_fast: float, beta_slow: float
) -> Tensor:
    """Frequencies ``(d/2,)`` for longer contexts (Peng et al., ICLR 2024): slow ones are divided by
    ``factor``."""
    d = 2 * theta.shape[0]

    def dimension(turns: float) -> float:
        """The pair of coordinates that makes this many turns within the original context."""
        return d * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low = max(math.floor(dimension(beta_fast)), 0)
    high = min(math.ceil(dimension(beta_slow)), d - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(d // 2, device=theta.device) - low) / span).clamp(0, 1)
    return theta / factor * ramp + theta * (1 - ramp)


def extended(config: Architecture) -> bool:
    """Whether YaRN stretches the code: that of HELM-MiCE beyond its original context. HELM-D's
    never is."""
    rotary = config.positions == "rotary"
    return rotary and config.mixed and config.max_seq_len > config.original_seq_len


def angles(config: Architecture, d: int, device: torch.device | None = None) -> Tensor:
    """Frequencies of the pairs of ``d`` space coordinates, ``(d/2,)`` float32."""
    if config.positions == "learned":
        return torch.zeros(d // 2, device=device)
    theta = config.rope_theta ** (-torch.arange(0, d, 2, device=device, dtype=torch.float32) / d)
    if extended(config):
        theta = yarn(
            theta,
            config.rope_theta,
            config.original_seq_len,
            config.rope_factor,
            config.beta_fast,
            config.beta_slow,
        )
    return theta


class Rotary:
    """Tables of cosines and sines, grown as they are needed; no part of any state dict."""

    def __init__(self, config: Architecture, d: int):
        self.config = config
        self.d = d
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @property
    def attention_factor(self) -> float:
        """YaRN's factor of the logits."""
        config = self.config
        if not extended(config) or config.rope_factor <= 1:
            return 1.0
        return (0.1 * config.mscale * math.log(config.rope_factor) + 1.0) ** 2

    def __call__(self, start: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``(length, d)`` of the positions from ``start``, those of the first of
        a pair negated: what :func:`hypvision.helm.rows.turn` multiplies by."""
        if torch.compiler.is_compiling():  # the graph owns its tensors, so they must not be cached
            return self._table(
                torch.arange(start, start + length, device=device, dtype=torch.float32)
            )
        table = self._tables.get(device)
        if table is None or table[0].shape[0] < start + length:
            # a power of two, so that token-by-token generation rarely computes a new table
            count = 1 << max(start + length - 1, 1).bit_length()
            table = self._table(torch.arange(count, device=device, dtype=torch.float32))
            self._tables[device] = table
        return table[0][start : start + length], table[1][start : start + length]

    @torch.no_grad()
    def _table(self, position: Tensor) -> tuple[Tensor, Tensor]:
        angle = torch.outer(position, angles(self.config, self.d, position.device))
        cos = angle.cos()
        sin = angle.sin()
        return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)

    def __deepcopy__(self, memo: dict) -> Rotary:
        return Rotary(self.config, self.d)
