"""Scenes of emoji on photos, with exact boxes and masks, a caption, and words for each box.

>>> data = EmojiScenes("data/emoji", "data/grocery/images/train")
>>> data[0]["caption"], data[0]["box_caption"]
('a dog face and a banana', 'fruit')
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch.utils.data import Dataset

from hypvision.io import Plain, StrPath, at_least, between
from hypvision.io.files import replacing
from hypvision.io.images import images_in, open_image

from .caption_folder import box_fields, chosen_boxes
from .classes import enumerated
from .emoji import Emoji, augment, read_emoji, style_images
from .masks import box_of
from .usage import Usage

# A pixel is white if all of its channels have at least this value; white pixels that are connected
# to the border of an emoji's image are background.
_WHITE = 235
_WORDS = 400  # bytes that the cache file reserves for each caption


class Placed(NamedTuple):
    """An emoji at its place in a scene."""

    emoji: int  # index of the emoji in :attr:`EmojiScenes.emoji`
    # left, top, right, bottom in pixels; right and bottom are one past the last pixel
    box: tuple[int, int, int, int]
    mask: np.ndarray  # bool (size, size): the pixels of the emoji that no other emoji covers


class Scene(NamedTuple):
    """A drawn scene: the image, uint8 (size, size, 3), and its emoji from back to front."""

    image: np.ndarray
    objects: list[Placed]


def cut_out(pixels: np.ndarray) -> np.ndarray:
    """Return the mask, bool (H, W), of an emoji on white ground (H, W, 3): all pixels but the white
    ones that are connected to the border."""
    white = np.pad((pixels.min(-1) >= _WHITE).astype(np.uint8), 1, constant_values=1)
    cv2.floodFill(white, None, (0, 0), 2)
    return white[1:-1, 1:-1] != 2


def _as_drawn(value: Any) -> Any:
    """Return a field of a sample that was read from the cache in the type that it was drawn in."""
    if isinstance(value, bytes):
        return value.decode()
    if value.dtype.kind == "S":
        return [text.decode() for text in value.tolist()]
    return torch.from_numpy(value.copy()) if value.ndim else int(value)


@DATASETS.register_module()
@dataclass(eq=False, repr=False)
class EmojiScenes(Dataset):
    """Data set of scenes with two to four emoji on a crop of a photo; sample ``i`` depends on the
    seed, the split and ``i`` alone.

    A sample has ``inputs``, uint8 (3, size, size), and ``caption``, and with ``boxes`` also
    ``box_inputs`` (one box, cut out with a margin and resized) and ``box_caption``, as
    :class:`~hypvision.data.emoji.EmojiCaptions` gives them, but no ``concepts``.

    Args:
        root: the folder of emoji (:mod:`hypvision.data.emoji`).
        photos: the folder of photos, which may lie in folders below it.
        split: split of the emoji: ``train``, ``val`` or ``test``.
        styles: names of the emoji's styles. Images that are nearly all white are not used.
        length: number of scenes.
        size: height and width of a scene in pixels.
        count: smallest and largest number of emoji in a scene.
        side: smallest and largest length of an emoji's longer side, as a share of ``size``.
        boxes: True or 1: a sample has one box of its scene, drawn at random; a number above 1: at
            most so many boxes, the first ones, see
            :func:`~hypvision.data.caption_folder.box_fields`.
        general: probabilities that a word names an emoji's class, or (for boxes only) its group,
            instead of the emoji itself.
        augmented: whether the emoji are turned, mirrored and recoloured.
        pale: share of white that is mixed into the photos; 0 leaves them as they are.
        seed: seed of all random choices.
        cache: folder for a file with all samples as they were drawn, from which later epochs, and
            other trainings with the same settings, read them, since drawing takes 5 ms of a core
            for each. None: samples are drawn each time.
    """

    root: StrPath
    photos: StrPath
    split: str = "train"
    styles: Sequence[str] = ("noto",)
    length: int = 100_000
    size: int = 96
    count: Sequence[int] = (2, 4)
    side: Sequence[float] = (0.3, 0.5)
    boxes: int = False
    general: Sequence[float] = (0.25, 0.1)
    augmented: bool = True
    pale: float = 0.0
    seed: int = 0
    cache: StrPath | None = None

    def __post_init__(self) -> None:
        settings = {name: value for name, value in vars(self).items() if name != "cache"}
        between(0, 1, pale=self.pale)
        at_least(1, length=self.length, count=min(self.count), size=self.size)
        self.emoji, classes = read_emoji(self.root, self.split)
        self.metainfo = dict(classes=classes)
        self._photos = images_in(self.photos)
        self.usage = Usage(self.root)
        self.items = style_images(self.emoji, self.root, self.styles, self.usage, every=False)
        self._seed = [self.seed, ("train", "val", "test").index(self.split)]
        self._cache = self.cache and Path(self.cache).expanduser() / self._name(settings)

    def __getstate__(self) -> Plain:
        # The open cache file is not copied to worker processes: each opens the file itself.
        return {name: value for name, value in self.__dict__.items() if name != "_rows"}

    def __len__(self) -> int:
        return self.length

    def _name(self, settings: Plain) -> str:
        """Return the name of the cache file, with a hash of the settings, the words and the
        images."""
        files = [*self._photos, *(path for _, path in self.items)]
        about = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        words = repr(
            (sorted((name, str(value)) for name, value in settings.items()), self.emoji, about)
        )
        return (
            f"scenes-{hashlib.sha256(words.encode(errors='surrogateescape')).hexdigest()[:12]}.dat"
        )

    def __getitem__(self, index: int) -> Plain:
        if self._cache is None:
            return self._sample(index)
        row = self._rows[index]
        if not row["drawn"]:  # no lock: processes that draw one sample at once write equal pixels
            sample = self._sample(index)
            texts = [sample["caption"], *np.atleast_1d(sample.get("box_caption", []))]
            if max(len(text.encode()) for text in texts) > _WORDS:
                return sample
            for name, value in sample.items():
                row[name] = np.char.encode(value) if "caption" in name else value
            row["drawn"] = True
        names = [name for name in row.dtype.names if name != "drawn"]
        return {name: _as_drawn(row[name]) for name in names}

    @cached_property
    def _rows(self) -> np.ndarray:
        """The cache file of all samples, as an array with a row for each. A sample whose caption is
        too long for a row is drawn each time."""
        picture = ("u1", (3, self.size, self.size))
        kinds: list[Any] = [("drawn", "?"), ("inputs", *picture), ("caption", f"S{_WORDS}")]
        if self.boxes:
            several = (self.boxes,) if self.boxes > 1 else ()
            pixels = (*several, 3, self.size, self.size)
            kinds += [("box_inputs", "u1", pixels), ("box_caption", f"S{_WORDS}", several)]
            kinds += [("box_count", "i8")] if several else []
        path = Path(self._cache or "")
        if not path.is_file():
            with replacing(path) as temporary, open(temporary, "wb") as file:
                size = np.dtype(kinds).itemsize * self.length
                file.truncate(size)
                # The disk space is reserved now: a full disk is an error here, but would crash the
                # process at a later write to the memory map.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(path, kinds, "r+", shape=(self.length,))

    def _sample(self, index: int) -> Plain:
        scene, rng = self._draw(index)
        names = [self._words(rng, self.emoji[placed.emoji]) for placed in scene.objects]
        found = dict(
            inputs=_tensor(scene.image),
            caption=enumerated([names[i] for i in rng.permutation(len(names))]),
        )
        if self.boxes:
            chosen = chosen_boxes(scene.objects, self.boxes, rng.integers)
            cuts = [
                (self._cut(scene, placed), self._words(rng, self.emoji[placed.emoji], box=True))
                for placed in chosen
            ]
            found |= box_fields(cuts, self.boxes)
        return found

    def _cut(self, scene: Scene, placed: Placed) -> torch.Tensor:
        """Return the pixels, uint8 (3, size, size), of an emoji's box with a margin, resized."""
        left, top, right, bottom = placed.box
        margin = max(1, round(0.1 * max(right - left, bottom - top)))
        area = (left - margin, top - margin, right + margin, bottom + margin)
        box = Image.fromarray(scene.image).crop(tuple(np.clip(area, 0, self.size).tolist()))
        return _tensor(np.asarray(box.resize((self.size, self.size), Image.Resampling.BICUBIC)))

    def scene(self, index: int) -> Scene:
        """Return scene number ``index`` with its boxes and masks."""
        return self._draw(index)[0]

    def _draw(self, index: int) -> tuple[Scene, np.random.Generator]:
        rng = np.random.default_rng([*self._seed, index])
        image = self._background(rng)
        objects: list[Placed] = []
        wanted = int(rng.integers(self.count[0], self.count[1] + 1))
        for _ in range(10 * wanted):
            number, pixels, mask = self._emoji(rng)
            place = self._place(rng, mask.shape, [placed.box for placed in objects])
            if place is None:
                continue
            top, left = place
            seen = np.zeros((self.size, self.size), bool)
            seen[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
            image[seen] = pixels[mask]
            objects = [placed._replace(mask=placed.mask & ~seen) for placed in objects]
            objects.append(
                Placed(number, (left, top, left + mask.shape[1], top + mask.shape[0]), seen)
            )
            if len(objects) == wanted:
                break
        return Scene(image, objects), rng

    def _background(self, rng: np.random.Generator) -> np.ndarray:
        photo = open_image(self._photos[int(rng.integers(len(self._photos)))])
        side = int(min(photo.size) * rng.uniform(0.5, 1.0))
        left, top = (int(rng.integers(whole - side + 1)) for whole in photo.size)
        crop = photo.resize(
            (self.size, self.size), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
        )
        pixels = np.array(crop)
        return (
            (pixels * (1 - self.pale) + 255 * self.pale).astype(np.uint8) if self.pale else pixels
        )

    def _emoji(self, rng: np.random.Generator) -> tuple[int, np.ndarray, np.ndarray]:
        """Return the index of a random emoji, and its pixels and mask, cut to its own box and
        scaled."""
        while True:
            number, path = self.items[int(rng.integers(len(self.items)))]
            pixels = _read(str(path))
            if self.augmented:
                pixels = augment(rng, pixels, mirror=not self.emoji[number].one_sided)
            mask = cut_out(pixels)
            if mask.mean() < 0.15:  # a white emoji on white ground, of which almost nothing is left
                continue
            left, top, right, bottom = box_of(mask)
            cut = slice(top, bottom), slice(left, right)
            height, width = mask[cut].shape
            scale = rng.uniform(self.side[0], self.side[1]) * self.size / max(height, width)
            shape = max(2, round(width * scale)), max(2, round(height * scale))
            small = Image.fromarray(mask[cut]).resize(shape, Image.Resampling.NEAREST)
            picture = Image.fromarray(np.ascontiguousarray(pixels[cut])).resize(
                shape, Image.Resampling.BILINEAR
            )
            mask = np.asarray(small)
            if mask[0].any() and mask[-1].any() and mask[:, 0].any() and mask[:, -1].any():
                return number, np.asarray(picture), mask

    def _place(
        self, rng: np.random.Generator, shape: tuple[int, ...], boxes: list[Any]
    ) -> tuple[int, int] | None:
        """Return a random place (top, left) at which the new box overlaps each of ``boxes`` by at
        most a fifth of the smaller of the two; None if twenty tries find no such place."""
        height, width = shape
        for _ in range(20):
            top = int(rng.integers(self.size - height + 1))
            left = int(rng.integers(self.size - width + 1))
            for x0, y0, x1, y1 in boxes:
                across = min(x1, left + width) - max(x0, left)
                down = min(y1, top + height) - max(y0, top)
                if max(across, 0) * max(down, 0) > 0.2 * min((x1 - x0) * (y1 - y0), height * width):
                    break
            else:
                return top, left
        return None

    def _words(self, rng: np.random.Generator, item: Emoji, box: bool = False) -> str:
        way = rng.random()
        if way < self.general[0]:
            return item.classname
        return item.group if box and way < sum(self.general) else item.name


@lru_cache(maxsize=20_000)
def _read(path: str) -> np.ndarray:
    return np.asarray(open_image(path))


def _tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)
