"""Configuration of VPT: how many tokens it learns, and in which blocks."""

from __future__ import annotations

from dataclasses import dataclass

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io import at_least


@dataclass(frozen=True)
class VPTConfig(AdapterConfig):
    """The number of learned tokens and their blocks. HyperCLIP's paper compares itself with VPT but
    gives no settings of it.

    Attributes:
        tokens: number of tokens of a block (Jia et al., Sec. 4: chosen from 1 to 200 by
            validation).
        deep: learn tokens for each block (VPT-Deep) and not only for the first (VPT-Shallow).
    """

    tokens: int = 50
    deep: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, integer=True, tokens=self.tokens)
