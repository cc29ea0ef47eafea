"""Segmentation data sets that mmseg does not have, in its registry. Importing this module imports mmseg."""

from __future__ import annotations

from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from hypvision.data.taxonomy import TAXONOMY
from hypvision.viz.palette import palette

_CAMVID = {
    "Sky": (128, 128, 128), "Building": (128, 0, 0), "Pole": (192, 192, 128), "Road": (128, 64, 128),
    "Pavement": (60, 40, 222), "Tree": (128, 128, 0), "SignSymbol": (192, 128, 128), "Fence": (64, 64, 128),
    "Car": (64, 0, 128), "Pedestrian": (64, 64, 0), "Bicyclist": (0, 128, 192), "Void": (0, 0, 0),
}  # fmt: skip


@DATASETS.register_module()
class CamVidDataset(BaseSegDataset):
    """CamVid (Brostow et al., 2008) with SegNet's 11 classes; label 11 is void and ignored.

    Layout: ``img/SPLIT/NAME.jpg`` and ``ann/SPLIT/NAME.png`` below ``data_root``.
    """

    METAINFO = dict(classes=tuple(_CAMVID), palette=[list(colour) for colour in _CAMVID.values()])

    def __init__(self, img_suffix: str = ".jpg", seg_map_suffix: str = ".png", **kwargs):
        # A subset of METAINFO's classes: mmseg maps what is left out (void) to the ignored label 255.
        kwargs.setdefault("metainfo", dict(classes=tuple(_CAMVID)[:-1]))
        super().__init__(img_suffix=img_suffix, seg_map_suffix=seg_map_suffix, reduce_zero_label=False, **kwargs)


@DATASETS.register_module()
class ShapesSegDataset(BaseSegDataset):
    """The procedural scenes of :mod:`hypvision.data.shapes` as ``hypvision data make --layout ade`` writes them.

    Args:
        level: the level of the hierarchy that they were exported at: ``"kind"`` or ``"shape"``.
    """

    def __init__(self, level: str = "shape", img_suffix: str = ".jpg", seg_map_suffix: str = ".png", **kwargs):
        classes = ("background", *TAXONOMY.classes[level])
        kwargs.setdefault("metainfo", dict(classes=classes, palette=palette(len(classes))))
        super().__init__(img_suffix=img_suffix, seg_map_suffix=seg_map_suffix, reduce_zero_label=True, **kwargs)
