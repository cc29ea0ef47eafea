"""Configuration of bottleneck adapters: the width of the modules, and the towers that have them."""

from __future__ import annotations

from dataclasses import dataclass

from hypvision.clip.adapters.base import AdapterConfig
from hypvision.io import at_least


@dataclass(frozen=True)
class BottleneckConfig(AdapterConfig):
    """The width of the modules and the towers that have them. HyperCLIP's paper compares itself
    with this method but gives no settings of it.

    Attributes:
        width: inner width of a module (Houlsby et al., Sec. 3.2: from 2 to 256).
        text, vision: whether the text tower and the image tower are adapted.
    """

    width: int = 64
    text: bool = True
    vision: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, integer=True, width=self.width)
