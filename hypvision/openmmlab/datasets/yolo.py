"""Data sets in YOLO's layout for mmdet's models. Importing this module imports mmdet."""

from __future__ import annotations

from typing import Any

from mmdet.registry import DATASETS
from mmengine.utils import is_abs

from hypvision.data.yolo import read_yolo, yolo_as_coco
from hypvision.io import Plain

from .detection import CheckedCocoDataset


@DATASETS.register_module()
class YOLODataset(CheckedCocoDataset):
    """One part of a data set in the layout of YOLO (:mod:`hypvision.data.yolo`).

    Args:
        ann_file: the ``data.yaml`` of the data set.
        part: ``"train"``, ``"val"`` or ``"test"``.
        metainfo: its ``classes``, if given, are the file's class names in any order; without them
            the file's order is used.
    """

    def __init__(
        self,
        ann_file: str,
        part: str = "train",
        data_root: str = "",
        metainfo: Plain | None = None,
        **kwargs: Any,
    ):
        path = ann_file if is_abs(ann_file) or not data_root else f"{data_root}/{ann_file}"
        self.yolo = read_yolo(path, part)
        self.part = part
        known = {"classes": self.yolo.names, **(metainfo or {})}
        super().__init__(ann_file=ann_file, data_root=data_root, metainfo=known, **kwargs)

    def _content(self, path: str) -> Plain:
        return yolo_as_coco(self.yolo, self.part, self.usage)

    def _places(self) -> list[str]:
        """Return the folders of the images, which may be anywhere that the file names."""
        return sorted({str(path.absolute().parent) for path in self.yolo.images[self.part]})
