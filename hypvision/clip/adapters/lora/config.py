"""What LoRA adapts, and how."""

from __future__ import annotations

from dataclasses import dataclass

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io.checks import at_least, more_than


@dataclass(frozen=True)
class LoRAConfig(AdapterConfig):
    """What is adapted and how. HyperCLIP's paper gives no settings of this rival.

    Attributes:
        rank: of a change (Hu et al., Sec. 4.1).
        alpha: the change is multiplied by ``alpha / rank``.
        projections: which of q, k, v, as a string (Hu et al., Table 5: q and v).
        text, vision: which towers.
    """

    rank: int = 8
    alpha: float = 8.0
    projections: str = "qv"
    text: bool = True
    vision: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, integer=True, rank=self.rank)
        more_than(0, alpha=self.alpha)
