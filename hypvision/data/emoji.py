"""Emoji: small images of one thing each in the styles of several vendors, with names, keywords and
a taxonomy.

The user provides a folder of this layout::

    emoji.json                  [{"id", "name", "keywords", "group", "subgroup"}, ...], the words of
                                Unicode's CLDR
    images/STYLE/ID.png         one image an emoji and style
    splits/classes.json         [{"label", "classname", "subgroup", "group_name"}, ...]
    splits/emoji_split.json     {"train": [ID, ...], "val": [...], "test": [...]}, split by emoji

>>> data = EmojiCaptions("data/emoji", "train", styles=("noto", "twemoji"))
>>> data[0]["caption"]
'a drawing of a mammal'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch.utils.data import Dataset

from hypvision.io import HypvisionError, Names, Plain, StrPath, did_you_mean, ensure
from hypvision.io.images import open_image
from hypvision.io.records import Name, read_record

from .usage import Listing, Usage

TEMPLATES = ("a photo of a {}", "a picture of a {}", "a drawing of a {}", "an emoji of a {}")

# beginnings of the names of subgroups whose emoji mean something else when they are mirrored
_ONE_SIDED = ("hand", "time", "transport-sign")
_CLASSES = "splits/classes.json"


@dataclass(frozen=True)
class Emoji:
    """One emoji: what it shows, and its class and group in the taxonomy."""

    id: str  # code points in hex, joined by ``-``; the file name of the images, without suffix
    name: str  # Unicode's name of the emoji; the keywords are Unicode's, too
    keywords: Names
    label: int  # number of the emoji's class, from 0
    classname: str  # readable name of the class; ``group`` is that of the group above it
    group: str
    one_sided: bool = False  # whether the emoji's mirror image means something else


class _Entry(NamedTuple):
    id: Name
    name: str
    keywords: Names
    group: str
    subgroup: str


class _Class(NamedTuple):
    label: int
    classname: str
    subgroup: str
    group_name: str


def read_emoji(root: StrPath, split: str) -> tuple[list[Emoji], Names]:
    """Return the emoji of a split, in the order of the split's list, and the names of all classes,
    in the order of their labels."""
    root = Path(root).expanduser()
    classes = _classes(root)
    by_subgroup = {row.subgroup: row for row in classes}
    known = {row.id: row for row in _read(list[_Entry], root / "emoji.json")}
    splits = _read(dict[str, list[str]], root / "splits/emoji_split.json")
    hint = did_you_mean(split, splits) or f" There are: {', '.join(splits)}."
    ensure(split in splits, f"The emoji in '{root}' have no split '{split}'.{hint}")
    found = []
    for name in splits[split]:
        row = known.get(name)
        place = by_subgroup.get(row.subgroup) if row else None
        if row is None or place is None:
            kind, file = ("class", _CLASSES) if row else ("entry", "emoji.json")
            raise HypvisionError(
                f"The emoji '{name}' of the split '{split}' has no {kind} in '{root / file}'. Add "
                "it, or take it out of the split."
            )
        looks = (row.name, row.keywords, place.label, place.classname, place.group_name)
        found.append(Emoji(name, *looks, _is_one_sided(row)))
    return found, tuple(row.classname for row in classes)


def _is_one_sided(row: _Entry) -> bool:
    """Return whether the mirror image of an emoji means something else, so that it may not be
    mirrored."""
    sides = {"left", "right"}.intersection(row.name.split())
    return row.group == "Symbols" or row.subgroup.startswith(_ONE_SIDED) or bool(sides)


def _classes(root: Path) -> list[_Class]:
    rows = sorted(_read(list[_Class], root / _CLASSES), key=lambda row: row.label)
    right = [row.label for row in rows] == list(range(len(rows)))
    ensure(right, f"The labels in '{root / _CLASSES}' are not 0, 1, 2, ...: renumber them.")
    return rows


def _read(kind: Any, path: Path) -> Any:
    advice = (
        "A folder of emoji has emoji.json, images/STYLE/ID.png, splits/classes.json and "
        "splits/emoji_split.json; give its place: data_root=FOLDER of a config, --root FOLDER of a "
        "command."
    )
    advice = "Replace it by an intact copy." if path.is_file() else advice
    return read_record(kind, path, advice, extra=True)


def class_groups(root: StrPath) -> tuple[Names, ...]:
    """Return for each class, in the order of the labels, a tuple with the name of the group above
    it."""
    return tuple((row.group_name,) for row in _classes(Path(root).expanduser()))


def style_images(
    emoji: Sequence[Emoji], root: StrPath, styles: Sequence[str], usage: Usage, every: bool = True
) -> list[tuple[int, Path]]:
    """Return the image files of emoji in some styles, each with the number of its emoji; ``usage``
    counts them, and those that a style lacks. Of ``every`` style, or else of any, there must be an
    image."""
    listing = Listing()
    found: list[tuple[int, Path]] = []
    for style in styles:
        folder = Path(root).expanduser() / "images" / style
        before = len(found)
        for number, item in enumerate(emoji):
            path = folder / f"{item.id}.png"
            if str(path) in listing:
                found.append((number, path))
                usage.use("images")
            else:
                usage.leave_out("images", "no file", path.name)
        lacks = every and len(found) == before
        ensure(not lacks, f"The style '{style}' has no image of the split in '{folder}'.")
    ensure(found, f"No style of {list(styles)} has an image of the split in '{root}/images'.")
    return found


@DATASETS.register_module()
@dataclass(eq=False, repr=False)
class EmojiCaptions(Dataset):
    """Data set of emoji images with one caption each, to train a small CLIP by contrast.

    A training caption names the emoji's class, its group, the emoji with one to three keywords, or
    the emoji alone; half of the captions are put into one of :data:`TEMPLATES`, and the images are
    augmented. In the other splits each image comes once, without augmentation, and its caption is
    the emoji's name alone.

    Args:
        root: the folder, with the layout that this module's docstring shows.
        split: ``train``, ``val`` or ``test``.
        styles: names of the styles (folders in ``images``) to read. Emoji that a style lacks are
            left out of it.
        length: number of samples of the split ``train``; the other splits have one sample for each
            image.
        size: height and width of a sample in pixels.
        augmented: False: the training images are not augmented either.
        mix: probabilities that a training caption names the class, the group, or the emoji with
            keywords; all other captions are the emoji's name alone.
        seed: seed of all random choices; sample ``i`` is the same in every epoch.
    """

    root: StrPath
    split: str = "train"
    styles: Sequence[str] = ("noto",)
    length: int = 100_000
    size: int = 64
    augmented: bool = True
    mix: Sequence[float] = (0.25, 0.1, 0.25)
    seed: int = 0

    def __post_init__(self) -> None:
        self.emoji, classes = read_emoji(self.root, self.split)
        mix = tuple(self.mix)
        self.mix = (*mix, 1.0 - sum(mix))
        expected = "three probabilities are expected, together at most 1."
        ensure(min(self.mix) >= 0, f"mix={mix}: {expected}")
        self.metainfo = dict(classes=classes, ancestors=class_groups(self.root))
        self.groups = sorted({item.group for item in self.emoji})
        self.usage = Usage(self.root)
        self.items = style_images(self.emoji, self.root, self.styles, self.usage)
        if self.split != "train":
            self.augmented = False
            self.length = len(self.items)
        # resize() copies an image that already has this size, so no case is needed for it.
        side = (self.size, self.size)
        images = (open_image(path).resize(side, Image.Resampling.BICUBIC) for _, path in self.items)
        self._images = [np.asarray(image) for image in images]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Plain:
        """Return a sample: ``inputs``, uint8 (3, size, size); ``caption``; ``label``, the number of
        the class; ``concepts``, int64 (3,), the numbers of the emoji, its class and its group; and
        ``level``, the index of the concept that the caption names (0: emoji, 1: class, 2:
        group)."""
        train = self.split == "train"
        rng = np.random.default_rng([index, self.seed])
        number = int(rng.integers(len(self.items))) if train else index
        owner = self.items[number][0]
        item = self.emoji[owner]
        caption, level = self._caption(rng, item) if train else (item.name, 0)
        pixels = self._images[number]
        if self.augmented:
            pixels = augment(rng, pixels, mirror=not item.one_sided)
        return dict(
            inputs=torch.from_numpy(pixels.copy()).permute(2, 0, 1),
            caption=caption,
            label=item.label,
            concepts=torch.tensor([owner, item.label, self.groups.index(item.group)]),
            level=level,
        )

    def _caption(self, rng: np.random.Generator, item: Emoji) -> tuple[str, int]:
        kind = int(rng.choice(4, p=self.mix))
        words = (item.classname, item.group, item.name, item.name)[kind]
        if kind == 2 and item.keywords:
            count = min(int(rng.integers(1, 4)), len(item.keywords))
            words += ": " + ", ".join(rng.permutation(item.keywords)[:count])
        if rng.random() < 0.5:
            words = TEMPLATES[int(rng.integers(len(TEMPLATES)))].format(words)
        return words, (1, 2, 0, 0)[kind]


def augment(rng: np.random.Generator, pixels: np.ndarray, mirror: bool = True) -> np.ndarray:
    """Return an augmented copy of an image, uint8 (H, W, 3), on white ground: the picture is moved,
    turned, scaled, mirrored (if ``mirror``, half of the time) and changed in colour, or made grey
    or line art."""
    height, width = pixels.shape[:2]
    angle = np.deg2rad(rng.uniform(-15, 15))
    shear = rng.uniform(-0.1, 0.1)
    scale = np.exp(rng.uniform(np.log(0.75), np.log(1.15)))
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1.0, shear], [0.0, 1.0]]) / scale
    if mirror and rng.random() < 0.5:
        matrix[:, 0] *= -1
    middle = np.array([width / 2, height / 2])
    shift = rng.uniform(-0.08, 0.08, 2) * (width, height)
    # The matrix is that of the inverse map: Pillow asks for each pixel of the result where in the
    # source it comes from.
    offset = middle - matrix @ (middle + shift)
    image = Image.fromarray(pixels).transform(
        (width, height), Image.Transform.AFFINE, (*matrix[0], offset[0], *matrix[1], offset[1]),
        Image.Resampling.BILINEAR, fillcolor=(255, 255, 255),
    )  # fmt: skip
    values = np.asarray(image).astype(np.float32)
    way = rng.random()
    if way < 0.1:
        # line art: dark where the brightness changes, white elsewhere
        lines = 255 - 4 * np.hypot(*np.gradient(values.mean(-1)))
        values = np.repeat(lines[..., None], 3, axis=-1)
    elif way < 0.2:
        values = np.repeat(values.mean(-1, keepdims=True), 3, axis=-1)
    else:
        hue = _hue(rng.uniform(-0.1, 0.1) * 2 * np.pi)
        values = 255 - ((255 - values) @ hue.T) * rng.uniform(0.7, 1.2)  # white stays white
    return values.clip(0, 255).astype(np.uint8)


def _hue(angle: float) -> np.ndarray:
    """Return the matrix (3, 3) that turns RGB colours by ``angle`` (radians) about the axis of
    greys."""
    circulant = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    return (
        np.eye(3) * np.cos(angle)
        + (1 - np.cos(angle)) / 3
        + np.sqrt(1 / 3) * np.sin(angle) * circulant
    )
