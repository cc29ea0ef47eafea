"""A folder of images with captions, and optionally boxes with words: ``images/`` and
``captions.csv`` or ``captions.jsonl``.

    image,caption,left,top,right,bottom,words
    a.jpg,a dog under a tree,10,20,80,90,a dog
    a.jpg,a dog under a tree,0,0,100,60,a tree
    b.jpg,two cats,,,,,

or a line for each caption, ``{"image": "a.jpg", "caption": "a dog under a tree", "boxes": [{"box":
[10, 20, 80, 90], "words": "a dog"}, ...]}``. Boxes are in pixels of the image as it is shown, with
right and bottom one past the last pixel; an image may have several captions.
:mod:`hypvision.data.shards` reads data that is too large for a folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from hypvision.io import HypvisionError, Plain, StrPath, ensure
from hypvision.io.files import inside
from hypvision.io.images import open_image, shown_size
from hypvision.io.records import read_json_lines, read_table

from .image_folder import build_transform
from .usage import Listing, Usage

_Box = TypeVar("_Box")
TABLES = ("captions.csv", "captions.jsonl")


class Box(NamedTuple):
    """A box (left, top, right, bottom) in pixels, and the words for what it shows."""

    box: list[float]
    words: str


class Captioned(NamedTuple):
    """A caption of one image, whose path is relative to ``images/``, and the caption's boxes."""

    image: str
    caption: str
    boxes: list[Box] = []


class _Row(NamedTuple):
    """One line of ``captions.csv``: a caption with at most one box."""

    image: str
    caption: str
    left: float = math.nan
    top: float = math.nan
    right: float = math.nan
    bottom: float = math.nan
    words: str = ""


def find_captions(root: StrPath) -> Path | None:
    """Return the path of the table of captions in a folder; None if it has none."""
    return next((path for name in TABLES if (path := Path(root, name)).is_file()), None)


def read_captions(root: StrPath) -> list[Captioned]:
    """Return the captions of a folder, each with its boxes, after a check that the images exist."""
    root = Path(root).expanduser()
    table = find_captions(root)
    if table is None:
        raise HypvisionError(
            f"There is no captions.csv or captions.jsonl in '{root}'. Expected: the folder images/ "
            "and beside it a table with the columns image and caption (docs/data.md)."
        )
    if table.suffix == ".csv":
        rows = _of_csv(table)
    else:
        rows = [
            row
            for _, row in read_json_lines(Captioned, table, "the table of captions", "Correct it.")
        ]
    ensure(
        rows, f"'{table}' has no captions. Write a line for each image: its path and its caption."
    )
    inside([root / "images" / row.image for row in rows], root / "images")
    there = Listing()
    return [_checked(row, root / "images", there, table) for row in rows]


def _checked(row: Captioned, folder: Path, there: Listing, table: Path) -> Captioned:
    """Check the image, caption and boxes of a row; return the row with the path of its image as the
    disk spells it (names may differ in their form of Unicode)."""
    path = folder / row.image
    found = there.find(str(path))
    if found is None:
        raise HypvisionError(
            f"'{table}' names the image '{row.image}', but there is no '{path}'. Correct the "
            "table, or add the image."
        )
    where = f"'{table}', image '{row.image}'"
    ensure(
        row.caption.strip(), f"{where} has a caption without words. Write one, or remove the row."
    )
    height, width = shown_size(found) if row.boxes else (0, 0)
    for box in row.boxes:
        _check_box(box, width, height, where)
    return row if found == str(path) else row._replace(image=os.path.relpath(found, folder))


def cut_box(image: Image.Image, box: Box) -> Image.Image:
    """Return the part of an image inside ``box``, of at least one pixel in height and width."""
    left, top, right, bottom = box.box
    return image.crop((int(left), int(top), int(np.ceil(right)), int(np.ceil(bottom))))


def chosen_boxes(boxes: Sequence[_Box], most: int, draw: Callable[[int], Any]) -> Sequence[_Box]:
    """Return the boxes of a sample: with ``most`` 1 the one whose number ``draw`` draws, otherwise
    the first ``most``."""
    return [boxes[int(draw(len(boxes)))]] if most == 1 else boxes[:most]


def box_fields(cuts: Sequence[tuple[Tensor, str]], most: int) -> Plain:
    """Return the fields of a sample for its boxes, of which each is given as pixels (3, H, W) with
    its words.

    Returns:
        With ``most`` 1: ``box_inputs`` (3, H, W) and ``box_caption`` of the one box. Otherwise:
        ``box_inputs`` (most, 3, H, W) and ``box_caption``, a list of ``most`` texts, both filled
        up with black boxes without words, and ``box_count``, the number of real boxes.
    """
    inputs = [pixels for pixels, _ in cuts]
    words = [text for _, text in cuts]
    if most == 1:
        return dict(box_inputs=inputs[0], box_caption=words[0])
    missing = most - len(cuts)
    inputs += [torch.zeros_like(inputs[0])] * missing
    return dict(
        box_inputs=torch.stack(inputs),
        box_caption=[*words, *[""] * missing],
        box_count=len(cuts),
    )


@DATASETS.register_module()
class CaptionFolder(Dataset):
    """Data set of images with one caption each. A sample has ``inputs`` (3, H, W), ``caption``,
    ``image``, the path of the image, and if boxes are wanted ``box_inputs`` and ``box_caption``.

    Args:
        root: the folder, with the layout that this module's docstring shows.
        transform: of the image and of its boxes, as for
            :class:`~hypvision.data.image_folder.ImageFolderDataset`; ``normalize=False`` leaves
            bytes, which :class:`~hypvision.tasks.contrastive.CLIPContrast` expects. None: the
            pixels as they are, uint8.
        boxes: True or 1: a sample has one box of its image, drawn at random, with its words; a
            number above 1: at most so many boxes, the first ones, see :func:`box_fields`. Images
            without a box are left out.
    """

    def __init__(self, root: StrPath, transform: Any = None, boxes: int = False):
        self.root = Path(root).expanduser()
        self.boxes = boxes
        self.transform = build_transform(transform)
        self.usage = Usage(self.root)
        self.rows = []
        for row in read_captions(root):
            if boxes and not row.boxes:
                self.usage.leave_out("captions", "no box", row.image)
            else:
                self.rows.append(row)
        self.usage.use("captions", len(self.rows))
        ensure(
            self.rows,
            f"No image has a box. {self.usage} Add boxes to the table, or leave out boxes=True.",
        )

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> Image.Image:
        """Return the image of sample ``index``."""
        return open_image(self.name(index))

    def name(self, index: int) -> str:
        """Return the path of the image of sample ``index``."""
        return str(self.root / "images" / self.rows[index].image)

    def __getitem__(self, index: int) -> Plain:
        image = self.read(index)
        row = self.rows[index]
        found = dict(
            inputs=self.transform(image), caption=row.caption.strip(), image=self.name(index)
        )
        if self.boxes:
            boxes = chosen_boxes(row.boxes, self.boxes, lambda count: torch.randint(count, ()))
            cuts = [(self.transform(cut_box(image, box)), box.words.strip()) for box in boxes]
            found |= box_fields(cuts, self.boxes)
        return found


def _of_csv(table: Path) -> list[Captioned]:
    """Return the captions in a CSV file: lines of the same image and caption become one caption,
    with the box of each line."""
    found: dict[tuple[str, str], list[Box]] = {}
    for _, row in read_table(_Row, table):
        boxes = found.setdefault((row.image, row.caption), [])
        box = [row.left, row.top, row.right, row.bottom]
        given = [not math.isnan(value) for value in box] + [bool(row.words)]
        if any(given):
            if not all(given):
                raise HypvisionError(
                    f"'{table}': a box of '{row.image}' is not complete. Give all of left, "
                    "top, right, bottom and words, or none."
                )
            boxes.append(Box(box, row.words))
    return [Captioned(image, caption, boxes) for (image, caption), boxes in found.items()]


def _check_box(box: Box, width: int, height: int, where: str) -> None:
    ensure(
        len(box.box) == 4,
        f"{where}: a box has {len(box.box)} numbers, not left, top, right and bottom. Correct it.",
    )
    left, top, right, bottom = box.box
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise HypvisionError(
            f"{where}: the box {[round(value, 1) for value in box.box]} is not inside the image of "
            f"{width} x {height} pixels, or it is empty. Give left, top, right and bottom in "
            "pixels of the image as it is shown."
        )
    ensure(box.words.strip(), f"{where}: a box has no words. Write some, or remove the box.")
