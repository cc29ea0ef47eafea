"""CLIP's few-shot benchmark: 15 data sets in CoOp's folder layout, the official draw of shots, and
the base and new classes.

Zhou et al., "Learning to Prompt for Vision-Language Models" (IJCV 2022) and "Conditional Prompt
Learning" (CVPR 2022).
"""

from .dataset import FewShotDataset
from .layouts import LAYOUTS, Layout, load_split
from .splits import Item, Split, draw_shots, take_subset

__all__ = [
    "LAYOUTS",
    "FewShotDataset",
    "Item",
    "Layout",
    "Split",
    "draw_shots",
    "load_split",
    "take_subset",
]
