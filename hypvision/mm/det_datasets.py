"""Detection data sets that mmdet does not have, in its registry. Importing this module imports mmdet."""

from __future__ import annotations

from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS

from hypvision.data.taxonomy import TAXONOMY
from hypvision.viz.palette import palette

__all__ = ["ShapesCocoDataset"]


@DATASETS.register_module()
class ShapesCocoDataset(CocoDataset):
    """The procedural scenes of :mod:`hypvision.data.shapes` as ``hypvision make-data --layout coco`` writes them.

    Args:
        level: the level of the hierarchy that they were exported at: ``"kind"`` or ``"shape"``.
    """

    def __init__(self, *args, level: str = "shape", **kwargs):
        classes = TAXONOMY.classes[level]
        colours = [tuple(colour) for colour in palette(1 + len(classes))[1:]]
        super().__init__(*args, metainfo=dict(classes=classes, palette=colours), **kwargs)
