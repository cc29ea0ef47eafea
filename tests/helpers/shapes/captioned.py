"""Images of drawn shapes with a caption each, for a contrastive training of a small CLIP."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from helpers.shapes.images import TAXONOMY, make_object, make_scene
from helpers.shapes.taxonomy import KIND_OF
from mmengine.registry import DATASETS
from torch.utils.data import Dataset

from hypvision.data.classes import TEMPLATES, with_article

(TEMPLATE,) = TEMPLATES["catseg"]


@DATASETS.register_module()
class ShapeCaptions(Dataset):
    """Images of shapes with a sentence each: even samples show one object, odd ones a scene.

    The caption of a single object names its kind, its shape, its colour and shape, or all of its
    attributes; that of a scene names one of its objects.

    Args:
        split: ``train``, ``val`` or ``test``.
        length: number of samples.
        size: side in pixels.
        scenes: False: single objects only, with their shape's number as ``label``.
    """

    def __init__(
        self, split: str = "train", length: int = 100_000, size: int = 64, scenes: bool = True
    ):
        self.split = split
        self.length = length
        self.size = size
        self.scenes = scenes
        self.metainfo = dict(classes=TAXONOMY.classes["shape"])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """``inputs``: uint8 (3, size, size); ``caption``; ``label``: number of the shape, -1 for
        scenes."""
        rng = np.random.default_rng([index, 7])
        if self.scenes and index % 2:
            scene = make_scene(index // 2, self.split, self.size)
            image = np.asarray(scene.image)
            label = -1
            caption = with_article(scene.objects[int(rng.integers(len(scene.objects)))].name)
        else:
            image, instance = make_object(
                index // 2 if self.scenes else index, self.split, self.size
            )
            label = int(TAXONOMY.ancestors("shape", of="instance")[instance])
            texture, colour, shape = TAXONOMY.instances[instance]
            words = (
                f"{KIND_OF[shape]} shape",
                shape,
                f"{colour} {shape}",
                f"{texture} {colour} {shape}",
            )
            caption = words[int(rng.choice(4, p=(0.05, 0.25, 0.4, 0.3)))]
            caption = TEMPLATE.format(caption) if rng.random() < 0.5 else with_article(caption)
        return dict(
            inputs=torch.from_numpy(np.array(image)).permute(2, 0, 1), caption=caption, label=label
        )
