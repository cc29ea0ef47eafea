"""How many tokens VPT learns, and where."""

from __future__ import annotations

from dataclasses import dataclass

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io.checks import at_least


@dataclass(frozen=True)
class VPTConfig(AdapterConfig):
    """How many tokens are learned, and where. HyperCLIP's paper gives no settings of this rival.

    Attributes:
        tokens: of a block (Jia et al., Sec. 4: chosen from 1 to 200 by validation).
        deep: tokens of each block (VPT-Deep), in place of those of the first alone (VPT-Shallow).
    """

    tokens: int = 50
    deep: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, integer=True, tokens=self.tokens)
