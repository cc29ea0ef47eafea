"""The embedded scenes for open-vocabulary detection and panoptic segmentation; drawn on the spot,
some shapes held out.

Importing this module imports mmdet and mmseg.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.shapes.segmentation import BASE, CLASSES, GROUND, NOVEL, drawn_scene
from mmdet.datasets.base_det_dataset import BaseDetDataset
from mmdet.registry import DATASETS
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks

from hypvision.data.usage import Usage
from hypvision.io.checks import one_of
from hypvision.viz.palette import palette


def scene_classes(
    level: str = "shape", which: str = "all", ground: bool = False
) -> tuple[str, ...]:
    """Names of the drawn objects; ``which="base"`` without those held out, ``"novel"`` only those;
    the ground last."""
    choices = dict(all=CLASSES, base=BASE, novel=NOVEL)
    one_of(CLASSES, level=level)
    one_of(choices, which=which)
    names = tuple(name for name in choices[which][level] if name != GROUND)
    return (*names, GROUND) if ground else names


@DATASETS.register_module()
class OpenVocabScenesDataset(BaseDetDataset):
    """Scenes with boxes, masks and segments; nothing is read from disk.

    Args:
        split, length, size, level: see :class:`~.open_vocabulary_shapes.ColourShapeDataset`.
        which: ``"all"`` classes, or ``"base"``: the held-out ones have no label.
        panoptic: the ground is a segment, too (stuff), and the last class.
    """

    def __init__(
        self,
        split: str = "train",
        length: int = 1000,
        size: int = 96,
        level: str = "shape",
        which: str = "all",
        panoptic: bool = False,
        **kwargs: Any,
    ):
        self.split = split
        self.length = length
        self.size = size
        self.level = level
        self.panoptic = panoptic
        names = scene_classes(level, which, panoptic)
        self.usage = Usage(f"scenes, {split}")
        self.usage.use("images", length)
        self._number = {name: number for number, name in enumerate(names)}
        metainfo = dict(
            classes=names,
            thing_classes=names[:-1] if panoptic else names,
            palette=palette(len(names)),
        )
        super().__init__(metainfo=metainfo, data_prefix={}, serialize_data=False, **kwargs)

    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(img_id=i, img_path=f"{self.split}_{i:06d}.png") for i in range(self.length)]

    def filter_data(self) -> list[dict]:
        """All scenes: whether a scene has objects is known only when it is drawn."""
        return self.data_list

    def prepare_data(self, idx: int) -> Any:
        """A scene through the pipeline, which begins after loading; None (take another) if nothing
        has a label."""
        scene, names, read = drawn_scene(self, idx)
        found = [
            (self._number[name], item.box, scene.instances == number, number + 1)
            for number, (name, item) in enumerate(zip(names, scene.objects), start=1)
            if name in self._number
        ]
        if self.panoptic:
            found.append(
                (self._number[GROUND], (0, 0, self.size, self.size), scene.instances == 0, 1)
            )
        if not found and not self.test_mode:
            return None
        labels = [label for label, *_ in found]
        boxes = np.array([box for _, box, *_ in found], dtype=np.float32).reshape(-1, 4)
        ids = np.zeros(scene.instances.shape, dtype=np.int64)  # 0 means no label
        for _, _, mask, number in found:
            ids[mask] = number
        truth = dict(
            gt_bboxes=HorizontalBoxes(boxes),
            gt_bboxes_labels=np.array(labels, dtype=np.int64),
            gt_ignore_flags=np.zeros(len(found), dtype=bool),
            gt_masks=BitmapMasks(
                [mask.astype(np.uint8) for _, _, mask, _ in found], self.size, self.size
            ),
            instances=[
                dict(bbox=box.tolist(), bbox_label=label, ignore_flag=0)
                for box, label in zip(boxes, labels)
            ],
            panoptic_ids=ids,
            segments_info=[
                dict(id=number, category=label, iscrowd=0) for label, _, _, number in found
            ],
        )
        return self.pipeline(dict(read, img_id=idx, scale_factor=(1.0, 1.0), **truth))
