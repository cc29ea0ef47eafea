"""Results of models: a class for each task, with methods for its drawing, its COCO annotations and
its rows of a table.

Boxes are ``(x1, y1, x2, y2)`` in pixels of the image as it is shown; annotations have COCO's
``[x, y, width, height]`` and run-length masks. Classes are numbered from 0 in the order of their
names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hypvision.io.errors import require
from hypvision.io.images import to_rgb
from hypvision.viz.overlay import add_legend, draw_boxes, draw_name, draw_segmentation, paint
from hypvision.viz.palette import label_colours

_TOP = 5
_OPACITY = 0.5


class Result(ABC):
    """The result of a model for one image: what the model does, in a word, and the names of its
    classes."""

    task: ClassVar[str]
    names: tuple[str, ...]

    @abstractmethod
    def annotations(self) -> list[dict[str, Any]]:
        """Each thing found as a dict that JSON can write; the file adds ``id`` and ``image_id``."""

    def rows(self) -> list[dict[str, Any]]:
        """The annotations for a table: without masks, a box as ``x``, ``y``, ``width`` and
        ``height``."""
        found = []
        for item in self.annotations():
            row = {
                key: item[key] for key in item if key in ("category_id", "name", "score", "area")
            }
            found.append(row | dict(zip(("x", "y", "width", "height"), item.get("bbox", ()))))
        return found

    @abstractmethod
    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image | None:
        """The image, RGB, with what was found painted in; None where there is nothing to paint.

        With ``legend`` names may stand outside of the image, and the size of the drawing depends on
        how much was found; frames of a video need one size.
        """

    def label_image(self) -> Image.Image | None:
        """A map of numbers to write beside the JSON file; None for tasks without one."""
        return None


@dataclass(frozen=True)
class Classes(Result):
    """A classification; ``scores`` is float (C,), a probability for each class."""

    task = "classification"
    scores: NDArray[Any]
    names: tuple[str, ...]

    @property
    def best(self) -> int:
        """Number of the most probable class."""
        return int(self.scores.argmax())

    def annotations(self) -> list[dict[str, Any]]:
        """The five most probable classes, the best first."""
        order = np.argsort(-self.scores, kind="stable")[: self._shown()]
        return [
            dict(category_id=int(i), name=self.names[i], score=_rounded(self.scores[i]))
            for i in order
        ]

    def _shown(self) -> int:
        return _TOP

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """The image above a line for each of the best classes."""
        lines = [f"{100 * item['score']:5.1f} %  {item['name']}" for item in self.annotations()]
        return add_legend(
            to_rgb(image),
            [(line, None) for line in lines],
            1,
            width=None if legend else max(image.width, 160),
        )


@dataclass(frozen=True)
class PlacedClasses(Classes):
    """A classification by a model that knows how far its own images lie from its classes, in the
    space of features.

    Attributes:
        distance: of the image from the nearest class, see
            :class:`~hypvision.zoo.familiar.Familiar`.
        limit: 95 % of images like those of the training are nearer.
    """

    distance: float
    limit: float

    @property
    def foreign(self) -> bool:
        """Whether the image is unlike anything that the model was trained on."""
        return self.distance > self.limit

    def annotations(self) -> list[dict[str, Any]]:
        place = dict(distance=round(self.distance, 4), foreign=self.foreign)
        return [item | place for item in super().annotations()]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        drawn = super().draw(image, legend)
        if not self.foreign or not legend:
            return drawn
        return add_legend(drawn, [("unlike its training", None)], 1)


@dataclass(frozen=True)
class Tags(Classes):
    """The labels of an image that has any number of them: those whose score, a probability by
    itself, is at least ``threshold``."""

    task = "multi-label classification"
    threshold: float

    def _shown(self) -> int:
        return int((self.scores >= self.threshold).sum())

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """The image above a line for each label; of a video, whose frames are of one size, for the
        best classes."""
        return (
            super().draw(image) if legend else Classes(self.scores, self.names).draw(image, legend)
        )


@dataclass(frozen=True)
class Boxes(Result):
    """A detection.

    Attributes:
        boxes: float (N, 4), the best first.
        scores: float (N,).
        labels: int (N,), classes.
        masks: bool (N, H, W); None of a detector without masks.
    """

    task = "detection"
    boxes: NDArray[Any]
    scores: NDArray[Any]
    labels: NDArray[Any]
    names: tuple[str, ...]
    masks: NDArray[Any] | None = None

    def annotations(self) -> list[dict[str, Any]]:
        """One a box, as COCO's files of instances have them, with ``score``."""
        found = []
        for i, (x1, y1, x2, y2) in enumerate(self.boxes.tolist()):
            item = _entry(int(self.labels[i]), self.names)
            item.update(score=_rounded(self.scores[i]), area=_rounded((x2 - x1) * (y2 - y1), 2))
            if self.masks is not None:
                item.update(_coded(self.masks[i]))
            item["bbox"] = [_rounded(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]
            found.append(item)
        return found

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Boxes with names and scores, above their masks; where masks overlap, the better one is
        seen."""
        colours = label_colours(len(self.names))[self.labels]
        image = to_rgb(image)
        if self.masks is not None and len(self.masks):
            owner = np.where(self.masks.any(0), self.masks.argmax(0), -1)
            image = paint(image, owner, colours, _OPACITY)
        texts = [
            f"{self.names[label]} {score:.2f}" for label, score in zip(self.labels, self.scores)
        ]
        return draw_boxes(image, self.boxes, texts, colours, strips=legend)


@dataclass(frozen=True)
class Labels(Result):
    """A semantic segmentation; ``labels`` is int (H, W), a class for each pixel.

    Of a model with hyperbolic pixels also float (H, W) their distance from the origin, ``radius``,
    and ``uncertainty``, 0 to 1; else None.
    """

    task = "segmentation"
    labels: NDArray[Any]
    names: tuple[str, ...]
    radius: NDArray[Any] | None = None
    uncertainty: NDArray[Any] | None = None

    def annotations(self) -> list[dict[str, Any]]:
        """One a class that occurs, as COCO's files of stuff have them."""
        present = [number for number in np.unique(self.labels).tolist() if number < len(self.names)]
        return [_entry(number, self.names) | _coded(self.labels == number) for number in present]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """The classes painted in, and a legend."""
        return draw_segmentation(image, self.labels, self.names, _OPACITY, legend)

    def label_image(self) -> Image.Image:
        """The class numbers as an image of 8 bits, or 16 with more than 255 classes."""
        return Image.fromarray(
            self.labels.astype(np.uint8 if len(self.names) <= 255 else np.uint16)
        )


@dataclass(frozen=True)
class Segments(Result):
    """A panoptic segmentation; ``segments`` is int (H, W), the number of the segment of each pixel,
    from 1, or 0 for none, and ``labels`` is int (S,), the class of each segment."""

    task = "panoptic"
    segments: NDArray[Any]
    labels: NDArray[Any]
    names: tuple[str, ...]

    def annotations(self) -> list[dict[str, Any]]:
        """One a segment; ``segment`` is its number in the map."""
        return [
            _entry(label, self.names) | _coded(self.segments == number) | dict(segment=number)
            for number, label in enumerate(self.labels.tolist(), 1)
        ]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Each segment in a colour of its own, with its name: in the legend, or else on the
        segment."""
        colours = label_colours(len(self.labels))
        painted = paint(image, self.segments - 1, colours, _OPACITY)
        names = [self.names[label] for label in self.labels]
        if legend:
            return add_legend(painted, [(name, colour) for name, colour in zip(names, colours)])
        for number, name in enumerate(names, 1):
            rows, columns = np.nonzero(self.segments == number)
            if len(rows):
                draw_name(painted, name, (float(np.median(columns)), float(np.median(rows))))
        return painted

    def label_image(self) -> Image.Image:
        """COCO's panoptic PNG: the number of a segment is ``R + 256 G + 256^2 B``."""
        numbers = self.segments.astype(np.uint32)
        return Image.fromarray(
            np.stack([numbers >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
        )


@dataclass(frozen=True)
class Embedding(Result):
    """A point in the space of a metric learner; ``vector`` is float (D,)."""

    task = "embedding"
    vector: NDArray[Any]
    names: tuple[str, ...] = ()

    def annotations(self) -> list[dict[str, Any]]:
        return [dict(embedding=[float(value) for value in self.vector])]

    def rows(self) -> list[dict[str, Any]]:
        """A column a coordinate."""
        return [{f"e{i}": float(value) for i, value in enumerate(self.vector)}]

    def draw(self, image: Image.Image, legend: bool = True) -> None:
        """None: the point of one image alone shows nothing."""


def _rounded(value: float, digits: int = 5) -> float:
    return round(float(value), digits)


def _entry(label: int, names: tuple[str, ...]) -> dict[str, Any]:
    return dict(category_id=label, name=names[label], iscrowd=0)


def _coded(mask: NDArray[Any]) -> dict[str, Any]:
    """COCO's area, box and compressed run lengths of a mask (H, W)."""
    coco = require("pycocotools.mask", "mm")
    code = coco.encode(np.asfortranarray(mask, dtype=np.uint8))
    return dict(
        area=int(coco.area(code)), bbox=[int(value) for value in coco.toBbox(code)],
        segmentation=dict(size=[int(side) for side in code["size"]],
        counts=code["counts"].decode("ascii")),
    )  # fmt: skip
