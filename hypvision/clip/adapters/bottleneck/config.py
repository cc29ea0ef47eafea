"""How wide the modules are, and where they are put."""

from __future__ import annotations

from dataclasses import dataclass

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io.checks import at_least


@dataclass(frozen=True)
class BottleneckConfig(AdapterConfig):
    """How wide and where the modules are. HyperCLIP's paper gives no settings of this rival.

    Attributes:
        width: inner width of a module (Houlsby et al., Sec. 3.2: from 2 to 256).
        text, vision: which towers.
    """

    width: int = 64
    text: bool = True
    vision: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, integer=True, width=self.width)
