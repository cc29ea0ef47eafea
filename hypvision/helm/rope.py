"""RoPE, with YaRN for contexts longer than those of the training.

The paper calls it HoPE: RoPE on the space part of a point, whose time stays unchanged. (It is not
the published method of that name that boosts points.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .config import Architecture


def yarn(
    theta: Tensor, base: float, original: int, factor: float, beta_fast: float, beta_slow: float
) -> Tensor:
    """Return the frequencies ``(d/2,)`` for longer contexts (Peng et al., ICLR 2024), from the
    frequencies ``theta``: slow ones are divided by ``factor``."""
    d = 2 * theta.shape[0]

    def dimension(turns: float) -> float:
        """Return the number of the pair of coordinates that makes this many turns within the
        original context."""
        return d * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

    low = max(math.floor(dimension(beta_fast)), 0)
    high = min(math.ceil(dimension(beta_slow)), d - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(d // 2, device=theta.device) - low) / span).clamp(0, 1)
    return theta / factor * ramp + theta * (1 - ramp)


def extended(config: Architecture) -> bool:
    """Return whether YaRN changes the frequencies: those of HELM-MiCE for contexts longer than the
    original one; HELM-D's never change."""
    rotary = config.positions == "rotary"
    return rotary and config.mixed and config.max_seq_len > config.original_seq_len


def angles(config: Architecture, d: int, device: torch.device | None = None) -> Tensor:
    """Return the frequencies of the pairs of ``d`` space coordinates, ``(d/2,)`` float32."""
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
    """Tables of RoPE's cosines and sines, which grow as they are needed and are in no state
    dict."""

    def __init__(self, config: Architecture, d: int):
        self.config = config
        self.d = d
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @property
    def attention_factor(self) -> float:
        """The factor by which YaRN multiplies the logits; 1 without YaRN."""
        config = self.config
        if not extended(config) or config.rope_factor <= 1:
            return 1.0
        return (0.1 * config.mscale * math.log(config.rope_factor) + 1.0) ** 2

    def __call__(self, start: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines ``(length, d)`` of the positions from ``start`` on, as
        :func:`hypvision.helm.rows.turn` takes them: the sines of the first coordinate of each pair
        are negated."""
        if torch.compiler.is_compiling():  # the graph owns its tensors, so they must not be cached
            return self._table(
                torch.arange(start, start + length, device=device, dtype=torch.float32)
            )
        table = self._tables.get(device)
        if table is None or table[0].shape[0] < start + length:
            # The length is a power of two, so that token-by-token generation rarely computes a new
            # table.
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
