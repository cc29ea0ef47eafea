"""A folder of images with captions, and boxes with words: ``images/`` and ``captions.csv`` or
``captions.jsonl``.

    image,caption,left,top,right,bottom,words
    a.jpg,a dog under a tree,10,20,80,90,a dog
    a.jpg,a dog under a tree,0,0,100,60,a tree
    b.jpg,two cats,,,,,

or, a line for each caption, ``{"image": "a.jpg", "caption": "a dog under a tree", "boxes": [{"box":
[10, 20, 80, 90], "words": "a dog"}, ...]}``. Boxes are in pixels of the image as it is shown, right
and bottom outside; an image may have several captions. :mod:`hypvision.data.shards` reads data that
is too large for a folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2 import functional

from hypvision.data.folders import Listing
from hypvision.data.image_folder import build_transform
from hypvision.data.usage import Usage
from hypvision.io.checks import ensure
from hypvision.io.errors import HypvisionError
from hypvision.io.files import inside
from hypvision.io.images import open_image, shown_size
from hypvision.io.records import read_json_lines, read_table

TABLES = ("captions.csv", "captions.jsonl")


class Box(NamedTuple):
    """A box in pixels (left, top, right, bottom), and its words."""

    box: list[float]
    words: str


class Captioned(NamedTuple):
    """A caption of an image, by its path below ``images/``, and boxes."""

    image: str
    caption: str
    boxes: list[Box] = []


class _Row(NamedTuple):
    """A line of ``captions.csv``."""

    image: str
    caption: str
    left: float = math.nan
    top: float = math.nan
    right: float = math.nan
    bottom: float = math.nan
    words: str = ""


def find_captions(root: str | Path) -> Path | None:
    """The table of captions in a folder, if it has one."""
    return next((path for name in TABLES if (path := Path(root, name)).is_file()), None)


def read_captions(root: str | Path) -> list[Captioned]:
    """The captions of a folder, with the boxes of each."""
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
    """A row, with the path of its image as the disk has it."""
    path = folder / row.image
    found = there.find(str(path))
    if found is None:
        raise HypvisionError(
            f"'{table}' names the image '{row.image}', but there is no '{path}'. Correct one."
        )
    where = f"'{table}', image '{row.image}'"
    ensure(row.caption.strip(), f"{where} has a caption without words. Write or remove it.")
    height, width = shown_size(found) if row.boxes else (0, 0)
    for box in row.boxes:
        _check_box(box, width, height, where)
    return row if found == str(path) else row._replace(image=os.path.relpath(found, folder))


def cut_box(image: Image.Image, box: Box) -> Image.Image:
    """A box of an image, of one pixel at least."""
    left, top, right, bottom = box.box
    return image.crop((int(left), int(top), int(np.ceil(right)), int(np.ceil(bottom))))


def box_fields(cuts: Sequence[tuple[Tensor, str]], most: int) -> dict[str, Any]:
    """The fields of a sample for boxes, pixels (3, H, W) with their words.

    Returns:
        ``box_inputs`` and ``box_caption`` of the one box; or with ``most`` above 1 of so many,
        (most, 3, H, W) and a list, filled up with black boxes without words, and ``box_count``.
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
    """Images with a caption each: ``inputs`` (3, H, W), ``caption``, ``image``, the name of the
    image, and with boxes ``box_inputs``, ``box_caption``.

    Args:
        root: the folder, see this module.
        transform: as for :class:`~hypvision.data.image_folder.ImageFolderDataset`, of the image and
            of its box; ``normalize=False`` leaves bytes, as
            :class:`~hypvision.tasks.contrastive.CLIPContrast` takes them. None: pixels as they are,
            uint8.
        boxes: give one box of each image with its words, drawn at random; a number: the first so
            many, see :func:`box_fields`. Images without any are left out.
    """

    def __init__(self, root: str | Path, transform: Any = None, boxes: int = False):
        self.root = Path(root).expanduser()
        self.boxes = boxes
        self.transform = (
            functional.pil_to_tensor if transform is None else build_transform(transform)
        )
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
            f"No image has a box. {self.usage} Add boxes to its table, or leave out boxes=True.",
        )

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> Image.Image:
        """The image of a sample."""
        return open_image(self.name(index))

    def name(self, index: int) -> str:
        """Its path."""
        return str(self.root / "images" / self.rows[index].image)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.read(index)
        row = self.rows[index]
        found = dict(
            inputs=self.transform(image), caption=row.caption.strip(), image=self.name(index)
        )
        if self.boxes:
            boxes = row.boxes[: self.boxes]
            if self.boxes == 1:
                boxes = [row.boxes[int(torch.randint(len(row.boxes), ()))]]
            cuts = [(self.transform(cut_box(image, box)), box.words.strip()) for box in boxes]
            found |= box_fields(cuts, self.boxes)
        return found


def _of_csv(table: Path) -> list[Captioned]:
    """Lines of the same image and caption together, each with a box."""
    found: dict[tuple[str, str], list[Box]] = {}
    for _, row in read_table(_Row, table):
        boxes = found.setdefault((row.image, row.caption), [])
        box = [row.left, row.top, row.right, row.bottom]
        given = [not math.isnan(value) for value in box] + [bool(row.words)]
        if any(given):
            if not all(given):
                raise HypvisionError(
                    f"'{table}': a box of '{row.image}' is not complete. It needs left, top, "
                    "right, bottom and words."
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
            f"{width} x {height} pixels, or empty. It takes left, top, right and bottom, in pixels "
            "of the image as it is shown."
        )
    ensure(box.words.strip(), f"{where}: a box has no words. Write them, or remove the box.")
