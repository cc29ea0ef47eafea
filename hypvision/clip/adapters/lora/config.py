"""Configuration of LoRA: which projections it adapts, and how."""

from __future__ import annotations

from dataclasses import dataclass

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io import at_least, more_than


@dataclass(frozen=True)
class LoRAConfig(AdapterConfig):
    """The adapted projections and the form of their change. HyperCLIP's paper compares itself with
    LoRA but gives no settings of it.

    Attributes:
        rank: rank of a change (Hu et al., Sec. 4.1).
        alpha: the change is multiplied by ``alpha / rank``.
        projections: the adapted ones of q, k, v, as a string (Hu et al., Table 5: q and v).
        text, vision: whether the text tower and the image tower are adapted.
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
