"""Images with captions made of tags, the classes that a crop shows by its label map. The captions
name classes of the whole crop, without positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch.utils.data import Dataset

from hypvision.io import HypvisionError, NameList, Plain, StrPath, at_least, between, ensure, one_of
from hypvision.io.images import open_image

from .classes import enumerated, load_classes
from .label_maps import check_size, find_pairs, read_label_map
from .usage import Usage

TEMPLATES = ("a photo of {}", "A photo of {} in the scene")


def caption_of(names: Sequence[str], template: str = TEMPLATES[0]) -> str:
    """Return a caption that names the classes: ``("road", "apple")`` gives ``"a photo of a road and
    an apple"``."""
    return template.format(enumerated(names))


@DATASETS.register_module()
@dataclass(eq=False, repr=False)
class TagCaptions(Dataset):
    """Data set of crops of labelled images with captions that name what they show, to train a small
    CLIP by contrast.

    A crop is drawn around a random pixel of a random class and has the image's aspect ratio; it is
    then resized to a square. Its caption names the classes that cover at least ``share`` of the
    crop, the largest first.

    Args:
        data_root: folder of the images and label maps, with the layout of
            :class:`~hypvision.openmmlab.open_vocabulary.segmentation.OpenVocabSegDataset`.
        data_prefix: folders in ``data_root``, ``dict(img_path=..., seg_map_path=...)``, as in
            mmseg.
        classes: class names in the order of the labels, in any form that
            :func:`hypvision.data.classes.load_classes` accepts. Labels beyond the list (void) are
            never named.
        length: number of samples.
        size: height and width of a sample in pixels.
        zoom: smallest and largest side of a crop as a share of the image's side; drawn uniformly on
            a logarithmic scale.
        share: least part of the crop that a class must cover to be named; if none does, the class
            for which the crop was drawn is named.
        most: largest number of classes that a caption names.
        balance: exponent: a class is drawn with a probability proportional to its share of all
            pixels to this power; 0: all classes are equally likely.
        jitter: contrast, brightness and each colour channel change at random by up to this factor;
            0: never.
        unnamed: classes of the list that no caption names and for which no crop is drawn, such as a
            background.
        single: whether to draw only crops of which one class covers more than half, with its number
            as ``label``; for measuring.
        seed: seed of all random choices; sample ``i`` is the same in every epoch.
    """

    data_root: StrPath
    data_prefix: dict[str, str]
    classes: NameList
    length: int = 100_000
    size: int = 64
    zoom: Sequence[float] = (0.15, 0.8)
    share: float = 0.05
    most: int = 3
    balance: float = 0.5
    jitter: float = 0.0
    unnamed: Sequence[str] = ()
    single: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        between(0, 1, share=self.share, jitter=self.jitter)
        at_least(1, integer=True, most=self.most)
        small, large = self.zoom
        ensure(
            0 < small <= large <= 1 and self.share < 1 and self.jitter < 1,
            f"zoom={(small, large)}, share={self.share}, jitter={self.jitter}: expected are 0 < "
            "zoom[0] <= zoom[1] <= 1, and a share and a jitter below 1.",
        )
        self.names = load_classes(self.classes)
        self.metainfo = dict(classes=self.names)
        images, maps = (
            Path(self.data_root, self.data_prefix[key]) for key in ("img_path", "seg_map_path")
        )
        self.usage = Usage(images)
        self.files = find_pairs(images, maps, self.usage)
        # Images are decoded at first use and kept, for data sets that fit into memory.
        self._images: dict[int, np.ndarray] = {}
        self._labels = [_read_labels(labels) for _, labels in self.files]
        one_of(self.names, **{f"unnamed[{i}]": name for i, name in enumerate(self.unnamed)})
        self._named = np.array([name not in self.unnamed for name in self.names])
        counts = np.stack([self._count(labels) for labels in self._labels])
        total = counts.sum(0)
        ensure(
            total.any(),
            f"No label map in '{self.data_root}' has a label from 0 to {len(self.names) - 1}, so "
            "there is nothing to name. Check data_prefix and the class list.",
        )
        shares = (total / total.sum()).clip(1e-9) ** self.balance
        weights = np.where(total > 0, shares, 0.0)
        self._chances = weights / weights.sum()
        # for each class the indices of the images that show it, from which a crop is drawn
        self._where = [np.flatnonzero(column) for column in counts.T]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Plain:
        """Return a sample: ``inputs``, uint8 (3, size, size); ``caption``; and ``label``, the
        number of the class that covers more than half of the crop.

        The label is -1 if no class covers more than half.
        """
        rng = np.random.default_rng([index, self.seed, int(self.single)])
        number, box, covered, drawn = self._drawn(rng)
        order = np.argsort(-covered, kind="stable")
        shown = [k for k in order if covered[k] >= max(self.share, 1e-12)][: self.most] or [drawn]
        template = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
        caption = caption_of([self.names[k] for k in shown], template)
        side = (self.size, self.size)
        image = self._image(number).resize(side, Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(image)
        if rng.random() < 0.5 and not self.single:
            pixels = pixels[:, ::-1]
        if self.jitter:
            pixels = _jittered(rng, pixels, self.jitter)
        label = int(covered.argmax()) if covered.max() > 0.5 else -1
        inputs = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        return dict(inputs=inputs, caption=caption, label=label)

    def _drawn(
        self, rng: np.random.Generator
    ) -> tuple[int, tuple[int, int, int, int], np.ndarray, int]:
        """Return the index of an image, a crop of it, the share of the crop that each class covers,
        and the class for which the crop was drawn."""
        for _ in range(1000):
            number, drawn, box = self._crop(rng)
            left, top, right, bottom = box
            part = self._labels[number][top:bottom, left:right]
            covered = self._count(part) / part.size
            if covered.max() > 0.5 or not self.single:
                return number, box, covered, drawn
        raise HypvisionError(
            "No class covers more than half of any of 1,000 crops. Set 'zoom' to smaller crops."
        )

    def _count(self, labels: np.ndarray) -> np.ndarray:
        """Return the number of pixels of each class; 0 for classes that are never named."""
        return np.bincount(labels.ravel(), minlength=256)[: len(self.names)] * self._named

    def _crop(self, rng: np.random.Generator) -> tuple[int, int, tuple[int, int, int, int]]:
        """Return the index of an image, the class for which a crop is drawn, and the crop (left,
        top, right, bottom)."""
        drawn = int(rng.choice(len(self.names), p=self._chances))
        number = int(rng.choice(self._where[drawn]))
        labels = self._labels[number]
        place = int(rng.choice(np.flatnonzero(labels.ravel() == drawn)))
        height, width = labels.shape
        zoom = float(np.exp(rng.uniform(*np.log(self.zoom))))
        sides = (max(1, round(zoom * height)), max(1, round(zoom * width)))
        # The drawn pixel may lie anywhere in the crop, not only in its middle, so that crops reach
        # the edges of the image.
        top = int(np.clip(place // width - rng.integers(sides[0]), 0, height - sides[0]))
        left = int(np.clip(place % width - rng.integers(sides[1]), 0, width - sides[1]))
        return number, drawn, (left, top, left + sides[1], top + sides[0])

    def _image(self, number: int) -> Image.Image:
        if number not in self._images:
            path, label_map = self.files[number]
            pixels = np.asarray(open_image(path))
            check_size(label_map, self._labels[number].shape, path, pixels.shape)
            self._images[number] = pixels
        return Image.fromarray(self._images[number])


def _jittered(rng: np.random.Generator, pixels: np.ndarray, jitter: float) -> np.ndarray:
    contrast, brightness = rng.uniform(1 - jitter, 1 + jitter, 2)
    colour = rng.uniform(1 - jitter / 3, 1 + jitter / 3, 3)
    mean = pixels.mean()
    return (((pixels - mean) * contrast + mean * brightness) * colour).clip(0, 255).astype(np.uint8)


def _read_labels(path: StrPath) -> np.ndarray:
    labels = read_label_map(path)
    if labels.min(initial=0) < 0 or labels.max(initial=0) > 255:
        raise HypvisionError(
            f"The label map '{path}' has labels from {labels.min()} to {labels.max()}; 0 to 255 "
            "are expected. Correct it, or take its image out of the data."
        )
    return labels.astype(np.uint8)
