"""What models find in images, each task with its drawing, its annotations as COCO writes them, and its rows of a table.

Boxes are ``(x1, y1, x2, y2)`` in pixels of the image as it is shown; annotations have COCO's ``[x, y, width, height]``
and run-length masks; the categories of a file are numbered from 0 in the order of the class names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageDraw

from hypvision.errors import require
from hypvision.images import to_rgb
from hypvision.viz.palette import palette
from hypvision.viz.segmentation import draw_segmentation

__all__ = ["Boxes", "Classes", "Embedding", "Labels", "Result", "Segments"]

_TOP = 5
_OPACITY = 0.5


class Result(ABC):
    """What a model found in one image.

    Attributes:
        task: in a word.
        names: the classes.
    """

    task: ClassVar[str]
    names: tuple[str, ...]

    @abstractmethod
    def annotations(self) -> list[dict[str, Any]]:
        """One dict of plain values for each thing found; what the file adds are ``id`` and ``image_id``."""

    def rows(self) -> list[dict[str, Any]]:
        """The annotations without masks, one value a column: a box is ``x``, ``y``, ``width`` and ``height``."""
        rows = []
        for item in self.annotations():
            row = {key: item[key] for key in ("category_id", "name", "score", "area") if key in item}
            row.update(zip(("x", "y", "width", "height"), item.get("bbox", ())))
            rows.append(row)
        return rows

    @abstractmethod
    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image | None:
        """The image, RGB, with what was found painted in; None where there is nothing to paint.

        Args:
            image: the one that was looked at.
            legend: below the image, where the task has one, whose height depends on what was found.
        """

    def label_image(self) -> Image.Image | None:
        """A map of numbers beside the file, where the task has one."""
        return None


@dataclass(frozen=True)
class Classes(Result):
    """A classification.

    Attributes:
        scores: float (C,), a probability for each class.
    """

    task = "classification"
    scores: np.ndarray
    names: tuple[str, ...]

    @property
    def best(self) -> int:
        """Number of the most probable class."""
        return int(self.scores.argmax())

    def annotations(self) -> list[dict[str, Any]]:
        """The five most probable classes, the best first."""
        order = np.argsort(-self.scores, kind="stable")[:_TOP]
        return [dict(category_id=int(i), name=self.names[i], score=_rounded(self.scores[i])) for i in order]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """The image above a line for each of the best classes."""
        lines = [f"{100 * item['score']:5.1f} %  {item['name']}" for item in self.annotations()]
        image = to_rgb(image)
        width = max(image.width, 160)
        sheet = Image.new("RGB", (width, image.height + 14 * len(lines) + 6), "white")
        sheet.paste(image, ((width - image.width) // 2, 0))
        draw = ImageDraw.Draw(sheet)
        for place, line in enumerate(lines):
            draw.text((4, image.height + 3 + 14 * place), _latin(line), fill="black")
        return sheet


@dataclass(frozen=True)
class Boxes(Result):
    """A detection.

    Attributes:
        boxes: float (N, 4), the best first.
        scores: float (N,).
        labels: int (N,).
        masks: bool (N, H, W); None of a detector without.
    """

    task = "detection"
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    masks: np.ndarray | None = None

    def annotations(self) -> list[dict[str, Any]]:
        """One a box, as COCO's files of instances have them, with ``score``."""
        found = []
        for i, (x1, y1, x2, y2) in enumerate(self.boxes.tolist()):
            label, size = int(self.labels[i]), (x2 - x1, y2 - y1)
            item = dict(
                category_id=label, name=self.names[label], score=_rounded(self.scores[i]),
                bbox=[_rounded(value, 2) for value in (x1, y1, *size)], area=_rounded(size[0] * size[1], 2), iscrowd=0,
            )  # fmt: skip
            if self.masks is not None:
                item.update(segmentation=_run_lengths(self.masks[i]), area=int(self.masks[i].sum()))
            found.append(item)
        return found

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Boxes with names and scores, above their masks."""
        colours = _colours(len(self.names))
        pixels = np.array(to_rgb(image))
        for i in range(len(self.boxes) if self.masks is not None else 0):
            inside = self.masks[i]
            pixels[inside] = (1 - _OPACITY) * pixels[inside] + _OPACITY * colours[self.labels[i]]
        painted = Image.fromarray(pixels)
        draw = ImageDraw.Draw(painted)
        for box, score, label in reversed(list(zip(self.boxes, self.scores, self.labels))):  # the best lies on top
            colour = tuple(colours[label].tolist())
            x, y, *_ = corners = [float(value) for value in box]
            draw.rectangle([*corners[:2], max(corners[0], corners[2]), max(corners[1], corners[3])], outline=colour)
            _label(draw, (x, y), f"{self.names[label]} {score:.2f}", colour)
        return painted


@dataclass(frozen=True)
class Labels(Result):
    """A semantic segmentation.

    Attributes:
        labels: int (H, W), a class for each pixel.
    """

    task = "segmentation"
    labels: np.ndarray
    names: tuple[str, ...]

    def annotations(self) -> list[dict[str, Any]]:
        """One a class that occurs, as COCO's files of stuff have them."""
        return [
            _region(self.labels == number, int(number), self.names)
            for number in np.unique(self.labels)
            if number < len(self.names)
        ]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """The classes painted in, and a legend."""
        return draw_segmentation(image, self.labels, self.names, _OPACITY, legend)

    def label_image(self) -> Image.Image:
        """The class numbers as an image of 8 bits, or 16 with more than 255 classes."""
        return Image.fromarray(self.labels.astype(np.uint8 if len(self.names) <= 255 else np.uint16))


@dataclass(frozen=True)
class Segments(Result):
    """A panoptic segmentation.

    Attributes:
        segments: int (H, W), the number of the segment of each pixel, from 1; 0 for none.
        labels: int (S,), the class of each segment.
    """

    task = "panoptic"
    segments: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]

    def annotations(self) -> list[dict[str, Any]]:
        """One a segment; ``segment`` is its number in the map."""
        return [
            dict(_region(self.segments == number, int(label), self.names), segment=number)
            for number, label in enumerate(self.labels.tolist(), 1)
        ]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Each segment in a colour of its own, with its name."""
        colours = np.concatenate([np.zeros((1, 3), np.uint8), _colours(len(self.labels))])
        pixels, inside = np.array(to_rgb(image)), self.segments > 0
        pixels[inside] = (1 - _OPACITY) * pixels[inside] + _OPACITY * colours[self.segments[inside]]
        painted = Image.fromarray(pixels)
        draw = ImageDraw.Draw(painted)
        for number, label in enumerate(self.labels.tolist(), 1):
            rows, columns = np.nonzero(self.segments == number)
            if len(rows):
                place = (float(np.median(columns)), float(np.median(rows)))
                _label(draw, place, self.names[label], tuple(colours[number].tolist()))
        return painted

    def label_image(self) -> Image.Image:
        """COCO's panoptic PNG: the number of a segment is ``R + 256 G + 256^2 B``."""
        numbers = self.segments.astype(np.uint32)
        return Image.fromarray(np.stack([numbers >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8))


@dataclass(frozen=True)
class Embedding(Result):
    """A point in the space of a metric learner.

    Attributes:
        vector: float (D,).
    """

    task = "embedding"
    vector: np.ndarray
    names: tuple[str, ...] = ()

    def annotations(self) -> list[dict[str, Any]]:
        """The vector."""
        return [dict(embedding=[float(value) for value in self.vector])]

    def rows(self) -> list[dict[str, Any]]:
        """A column a coordinate."""
        return [{f"e{i}": float(value) for i, value in enumerate(self.vector)}]

    def draw(self, image: Image.Image, legend: bool = True) -> None:
        """An embedding of one image is no image."""


def _rounded(value: float, digits: int = 5) -> float:
    return round(float(value), digits)


def _colours(count: int) -> np.ndarray:
    return np.array(palette(count + 1)[1:], dtype=np.uint8).reshape(-1, 3)


def _region(mask: np.ndarray, label: int, names: Sequence[str]) -> dict[str, Any]:
    rows, columns = np.nonzero(mask)
    box = (columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1)
    return dict(
        category_id=label, name=names[label], area=len(rows), bbox=[int(value) for value in box],
        segmentation=_run_lengths(mask), iscrowd=0,
    )  # fmt: skip


def _run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """COCO's compressed run-length code of a mask (H, W)."""
    code = require("pycocotools.mask", "mm").encode(np.asfortranarray(mask, dtype=np.uint8))
    return dict(size=[int(side) for side in code["size"]], counts=code["counts"].decode("ascii"))


def _latin(text: str) -> str:
    """What Pillow's own font can write."""
    return text.encode("latin-1", "replace").decode("latin-1")


def _label(draw: ImageDraw.ImageDraw, corner: tuple[float, float], text: str, colour: tuple[int, ...]) -> None:
    text = _latin(text)
    box = draw.textbbox(corner, text)
    draw.rectangle(box, fill=colour)
    draw.text(corner, text, fill="black" if sum(colour) > 384 else "white")
