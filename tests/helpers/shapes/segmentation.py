"""The embedded scenes with a class for every shape, or every pair of colour and shape; some are
held out."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from helpers.shapes.images import COLOURS, TAXONOMY, Scene, make_scene

import hypvision.openmmlab  # noqa: F401 - before mmseg, which needs mmcv's operations

# isort: split
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from hypvision.io.checks import one_of
from hypvision.viz.palette import palette

GROUND = "grey ground"
_SHAPES = TAXONOMY.classes["shape"]
CLASSES = {
    "shape": (GROUND, *_SHAPES),
    "colour-shape": (GROUND, *(f"{colour} {shape}" for colour in COLOURS for shape in _SHAPES)),
}
"""Names by level: 17 with the ground, or 97 with every colour of every shape."""

NOVEL = {
    "shape": ("cross", "house", "pentagon", "ring"),  # one shape of each kind
    "colour-shape": tuple(
        f"{colour} {shape}"
        for i, colour in enumerate(COLOURS)
        for j, shape in enumerate(_SHAPES)
        if (i + j) % 4 == 0
    ),
}
"""Those that training does not see; of the pairs every colour and every shape is seen, in other
pairs."""

BASE = {
    level: tuple(name for name in names if name not in NOVEL[level])
    for level, names in CLASSES.items()
}


@lru_cache(maxsize=8192)
def _scene(index: int, split: str, size: int) -> Scene:
    return make_scene(index, split, size)


def drawn_scene(data: Any, index: int) -> tuple[Scene, list[str], dict[str, Any]]:
    """A scene of a data set with ``split``, ``size`` and ``level``, the class names of its objects,
    and what loading transforms of mmseg and mmdet would have set."""
    scene = _scene(index, data.split, data.size)
    image = np.ascontiguousarray(np.asarray(scene.image)[..., ::-1])  # their pipelines take BGR
    names = [
        item.shape if data.level == "shape" else f"{item.colour} {item.shape}"
        for item in scene.objects
    ]
    path = f"{data.split}_{index:06d}.png"
    size = image.shape[:2]
    return scene, names, dict(img=image, img_path=path, img_shape=size, ori_shape=size)


@DATASETS.register_module()
class ColourShapeDataset(BaseSegDataset):
    """Scenes drawn on the spot; nothing is read from disk.

    Args:
        split: ``train``, ``val`` or ``test``.
        length: number of scenes.
        size: side in pixels.
        level: what a class is: ``"shape"`` or ``"colour-shape"``.
        which: ``"all"`` classes, or ``"base"``: pixels of the held-out ones are ignored (255).
    """

    def __init__(
        self,
        split: str = "train",
        length: int = 1000,
        size: int = 96,
        level: str = "shape",
        which: str = "all",
        **kwargs: Any,
    ):
        one_of(CLASSES, level=level)
        one_of(("all", "base"), which=which)
        self.split = split
        self.length = length
        self.size = size
        self.level = level
        names = (CLASSES if which == "all" else BASE)[level]
        self._number = {name: number for number, name in enumerate(names)}
        metainfo = dict(classes=names, palette=palette(len(names)))
        super().__init__(
            metainfo=metainfo,
            data_prefix={},
            reduce_zero_label=False,
            serialize_data=False,
            **kwargs,
        )

    def load_data_list(self) -> list[dict[str, Any]]:
        """The numbers of the scenes."""
        return [dict(index=i, img_path=f"{self.split}_{i:06d}.png") for i in range(self.length)]

    def prepare_data(self, idx: int) -> Any:
        """A scene through the pipeline, which begins after loading."""
        scene, names, read = drawn_scene(self, idx)
        labels = [0] + [self._number.get(name, 255) for name in names]
        truth = dict(
            gt_seg_map=np.array(labels, dtype=np.uint8)[scene.instances], seg_fields=["gt_seg_map"]
        )
        return self.pipeline(dict(read, reduce_zero_label=False, **truth))
