"""Detection data sets that mmdet does not have, in its registry. Importing this module imports mmdet."""

from __future__ import annotations

from mmdet.datasets import CocoDataset
from mmdet.registry import DATASETS

from hypvision.data.taxonomy import TAXONOMY
from hypvision.viz.palette import palette

__all__ = ["ShapesCocoDataset"]


@DATASETS.register_module()
class ShapesCocoDataset(CocoDataset):
    """The procedural scenes of :mod:`hypvision.data.shapes` as ``hypvision make-data --layout coco`` writes them."""

    METAINFO = dict(
        classes=TAXONOMY.classes["shape"],
        palette=[tuple(colour) for colour in palette(1 + len(TAXONOMY.classes["shape"]))[1:]],
    )
