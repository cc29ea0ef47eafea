"""Results of models: a class for each task, whose methods draw a result and return its COCO
annotations and the rows of its table; and :class:`Writer`, which writes them: painted images and
videos, JSON in COCO's form, a CSV table, and maps of class or segment numbers.

Boxes are ``(x1, y1, x2, y2)`` in pixels of the image as it is shown; annotations have COCO's
``[x, y, width, height]`` and run-length masks. Classes are numbered from 0 in the order of their
names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from typing_extensions import Self

from hypvision.io import HypvisionError, Names, Plain, StrPath, Values, require
from hypvision.io.files import below, write_json, write_table
from hypvision.io.images import to_rgb
from hypvision.viz.overlay import add_legend, draw_boxes, draw_name, draw_segmentation, paint
from hypvision.viz.palette import label_colours
from hypvision.viz.sheet import save_image
from hypvision.viz.video import frame_rate, writing_video

from .sources import Frame

_TOP = 5
_OPACITY = 0.5


def brief(name: str, names: Sequence[str]) -> str:
    """Return a class name without its synonyms, unless another of the names begins alike.

    >>> brief("lemon, citrus", ["lemon, citrus", "orange"])
    'lemon'
    """
    first = name.partition(", ")[0]
    alike = sum(other.partition(", ")[0] == first for other in names)
    return first if alike == 1 else name


class Result(ABC):
    """The result of a model for one image. ``task`` names the task of the model in a word or two,
    and ``names`` its classes."""

    task: ClassVar[str]
    names: Names

    @abstractmethod
    def annotations(self) -> list[Plain]:
        """Return each thing found as a dict for JSON; the file's writer adds ``id`` and
        ``image_id``."""

    def rows(self) -> list[Plain]:
        """Return the annotations as rows of a table: without masks, and with a box as ``x``, ``y``,
        ``width`` and ``height``."""
        found = []
        for item in self.annotations():
            row = {
                key: item[key] for key in item if key in ("category_id", "name", "score", "area")
            }
            found.append(row | dict(zip(("x", "y", "width", "height"), item.get("bbox", ()))))
        return found

    @abstractmethod
    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image | None:
        """Return the image, in RGB, with the result painted in; None where there is nothing to
        paint.

        With ``legend`` names may stand outside the image, so that the size of the drawing depends
        on how much was found; frames of a video need one size, so they are drawn without.
        """

    def label_image(self) -> Image.Image | None:
        """Return the result as an image of numbers, one a pixel; None for tasks without such a
        map."""
        return None


@dataclass(frozen=True)
class Classes(Result):
    """A classification; ``scores`` is float ``(C,)``, the probability of each class."""

    task = "classification"
    scores: NDArray[Any]
    names: Names

    @property
    def best(self) -> int:
        """The number of the most probable class."""
        return int(self.scores.argmax())

    def __str__(self) -> str:
        """Return the most probable classes with their scores, the best first; of a name with
        synonyms, as ImageNet has them, only the first, unless another class begins with it."""
        found = self.annotations()
        return ", ".join(f"{brief(item['name'], self.names)} {item['score']:.2f}" for item in found)

    def annotations(self) -> list[Plain]:
        """Return the most probable classes (five, unless a subclass shows others), the best
        first."""
        order = np.argsort(-self.scores, kind="stable")[: self._shown()]
        return [
            dict(category_id=int(i), name=self.names[i], score=_rounded(self.scores[i]))
            for i in order
        ]

    def _shown(self) -> int:
        return _TOP

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Return the image with a line of text below it for each of the best classes."""
        lines = [f"{100 * item['score']:5.1f} %  {item['name']}" for item in self.annotations()]
        return add_legend(
            to_rgb(image),
            [(line, None) for line in lines],
            1,
            width=None if legend else max(image.width, 160),
        )


@dataclass(frozen=True)
class PlacedClasses(Classes):
    """A classification by a model that records how far, in its feature space, training images lie
    from its classes.

    Attributes:
        distance: distance of the image's features from the nearest class, see
            :class:`~hypvision.zoo.familiar.Familiar`.
        limit: the distance below which 95 % of images like the training images lie.
    """

    distance: float
    limit: float

    @property
    def foreign(self) -> bool:
        """Whether the image lies farther from every class than the limit for familiar images."""
        return self.distance > self.limit

    def annotations(self) -> list[Plain]:
        place = dict(distance=round(self.distance, 4), foreign=self.foreign)
        return [item | place for item in super().annotations()]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        drawn = super().draw(image, legend)
        if not self.foreign or not legend:
            return drawn
        return add_legend(drawn, [("unlike its training", None)], 1)


@dataclass(frozen=True)
class Tags(Classes):
    """The labels of an image that may have any number of them: those with a score of at least
    ``threshold``. Scores are independent probabilities, which need not sum to 1."""

    task = "multi-label classification"
    threshold: float

    def _shown(self) -> int:
        return int((self.scores >= self.threshold).sum())

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Return the image with a line of text for each label; without ``legend``, for a frame of a
        video, with a fixed number of lines for the best classes."""
        return (
            super().draw(image) if legend else Classes(self.scores, self.names).draw(image, legend)
        )


@dataclass(frozen=True)
class Boxes(Result):
    """The boxes that a detector finds in an image.

    Attributes:
        boxes: float ``(N, 4)``, the best first.
        scores: float ``(N,)``, the score of each box.
        labels: int ``(N,)``, the class of each box.
        masks: bool ``(N, H, W)``, the mask of each box; None for a detector without masks.
    """

    task = "detection"
    boxes: NDArray[Any]
    scores: NDArray[Any]
    labels: NDArray[Any]
    names: Names
    masks: NDArray[Any] | None = None

    def annotations(self) -> list[Plain]:
        """Return one annotation a box, as in COCO's instance files, with its ``score``."""
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
        """Draw the boxes with names and scores over their masks; where masks overlap, that of the
        better box is seen."""
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
    """A semantic segmentation; ``labels`` is int ``(H, W)``, the class of each pixel.

    A model with hyperbolic pixels also gives, as float ``(H, W)``, each pixel's distance from the
    origin, ``radius``, and its ``uncertainty`` from 0 to 1; both are None for other models.
    """

    task = "segmentation"
    labels: NDArray[Any]
    names: Names
    radius: NDArray[Any] | None = None
    uncertainty: NDArray[Any] | None = None

    def annotations(self) -> list[Plain]:
        """Return one annotation for each class that occurs, as in COCO's stuff files."""
        present = [number for number in np.unique(self.labels).tolist() if number < len(self.names)]
        return [_entry(number, self.names) | _coded(self.labels == number) for number in present]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Return the image with the classes painted in, and a legend if ``legend``."""
        return draw_segmentation(image, self.labels, self.names, _OPACITY, legend)

    def label_image(self) -> Image.Image:
        """Return the class numbers as an image of 8 bits, or of 16 bits for more than 255
        classes."""
        return Image.fromarray(
            self.labels.astype(np.uint8 if len(self.names) <= 255 else np.uint16)
        )


@dataclass(frozen=True)
class Segments(Result):
    """A panoptic segmentation; ``segments`` is int ``(H, W)``, the number of each pixel's segment,
    from 1, or 0 for no segment, and ``labels`` is int ``(S,)``, the class of each segment."""

    task = "panoptic"
    segments: NDArray[Any]
    labels: NDArray[Any]
    names: Names

    def annotations(self) -> list[Plain]:
        """Return one annotation a segment, whose ``segment`` is its number in the map
        ``segments``."""
        return [
            _entry(label, self.names) | _coded(self.segments == number) | dict(segment=number)
            for number, label in enumerate(self.labels.tolist(), 1)
        ]

    def draw(self, image: Image.Image, legend: bool = True) -> Image.Image:
        """Return the image with each segment in a colour of its own; names stand in the legend, or
        without a legend on the segments."""
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
        """Return the map in the form of COCO's panoptic PNG: segment number ``R + 256 G + 256^2
        B``."""
        numbers = self.segments.astype(np.uint32)
        return Image.fromarray(
            np.stack([numbers >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
        )


@dataclass(frozen=True)
class Embedding(Result):
    """A point in the embedding space of a metric learner; ``vector`` is float ``(D,)``."""

    task = "embedding"
    vector: NDArray[Any]
    names: Names = ()

    def annotations(self) -> list[Plain]:
        return [dict(embedding=[float(value) for value in self.vector])]

    def rows(self) -> list[Plain]:
        """Return one row, with a column for each coordinate."""
        return [{f"e{i}": float(value) for i, value in enumerate(self.vector)}]

    def draw(self, image: Image.Image, legend: bool = True) -> None:
        """Draw nothing: the point of a single image cannot be shown."""


def _rounded(value: float, digits: int = 5) -> float:
    return round(float(value), digits)


def _entry(label: int, names: Names) -> Plain:
    return dict(category_id=label, name=names[label], iscrowd=0)


def _coded(mask: NDArray[Any]) -> Plain:
    """Return COCO's area, box and compressed run-length code of a mask ``(H, W)``."""
    coco = require("pycocotools.mask", "mm")
    code = coco.encode(np.asfortranarray(mask, dtype=np.uint8))
    return dict(
        area=int(coco.area(code)), bbox=[int(value) for value in coco.toBbox(code)],
        segmentation=dict(size=[int(side) for side in code["size"]],
        counts=code["counts"].decode("ascii")),
    )  # fmt: skip


KINDS = ("json", "csv", "overlay", "labels")
JSON = "predictions.json"
CSV = "predictions.csv"


class Writer:
    """Writes results into a folder. The JSON and CSV files about all images are written at the end;
    after an error they contain the images that were finished.

    Args:
        folder: the folder for the files; made if missing.
        kinds: the files to write, some of :data:`KINDS`. ``json``: ``predictions.json`` with
            ``images``, ``categories`` and ``annotations`` in COCO's form. ``csv``:
            ``predictions.csv``, a row for each thing found. ``overlay``: ``NAME_overlay.png``, or
            ``NAME_overlay.mp4`` for a video, which the two others call ``drawing``. ``labels``:
            ``NAME_labels.png`` with the class numbers of a segmented image, or COCO's panoptic
            segment numbers; for frames of videos only the JSON file has them.
        info: facts for the entry ``info`` of the JSON file.
        every: only every ``every``-th frame of a video is given, so the written video has as many
            times fewer frames a second.
    """

    def __init__(
        self,
        folder: StrPath,
        kinds: Sequence[str] = KINDS,
        info: Values | None = None,
        every: int = 1,
    ):
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise HypvisionError(
                f"There is no kind of results '{min(unknown)}'. Known: {', '.join(KINDS)}."
            )
        self.folder = Path(folder)
        self.kinds = frozenset(kinds)
        self.every = every
        self.written: dict[Path, None] = {}
        self._file: Plain = dict(info=dict(info or {}), images=[], categories=[], annotations=[])
        self._rows: list[Plain] = []
        self._video = ExitStack()  # closing it finishes the video file that is being written
        self._append: Callable[[Image.Image], None] | None = None
        self._name = ""  # name of the video that is being written

    def __enter__(self) -> Self:
        return self

    def add(self, frame: Frame, image: Image.Image, result: Result) -> None:
        """Write the files of one image, and record its result for the files about all images."""
        still = frame.number is None
        drawing = result.draw(image, legend=still) if "overlay" in self.kinds else None
        name = f"{frame.name}_overlay.{'png' if still else 'mp4'}"
        self._note(frame, image, result, "" if drawing is None else name)
        if "labels" in self.kinds and still:
            self._write(result.label_image(), f"{frame.name}_labels.png")
        if still:
            self._write(drawing, name)
        elif drawing is not None:
            self._write_frame(drawing, frame, name)

    def _note(self, frame: Frame, image: Image.Image, result: Result, drawing: str) -> None:
        """Record an image, its result and the file of its drawing for the JSON and CSV files, which
        are about all images."""
        at: Plain = {} if frame.number is None else dict(frame=frame.number)
        at |= dict(drawing=drawing) if drawing else {}
        number = len(self._file["images"])
        about = dict(id=number, file_name=frame.file, width=image.width, height=image.height)
        self._file["images"].append(about | at)
        if not self._file["categories"]:
            self._file["categories"] = [dict(id=i, name=n) for i, n in enumerate(result.names)]
        if "json" in self.kinds:
            known = self._file["annotations"]
            for item in result.annotations():
                known.append(dict(id=len(known), image_id=number, **item))
        if "csv" in self.kinds:
            source = dict(file=frame.file, frame=at.get("frame", ""), drawing=drawing)
            self._rows += [source | row for row in result.rows()]

    def _write(self, image: Image.Image | None, name: str) -> None:
        if image is not None:
            self.written[save_image(image, below(self.folder, name))] = None

    def _write_frame(self, drawing: Image.Image, frame: Frame, name: str) -> None:
        if self._append is None or frame.name != self._name:
            self._video.close()
            target = below(self.folder, name)
            rate = frame_rate(frame.video or Path(frame.file)) / self.every
            self._append = self._video.enter_context(writing_video(target, rate))
            self._name = frame.name
            self.written[target] = None
        self._append(drawing)

    def __exit__(self, *error: Any) -> None:
        self._video.__exit__(*error)
        if error[0] is not None and not self._file["images"]:
            return
        if "json" in self.kinds:
            write_json(self.folder / JSON, self._file, indent=None)
            self.written[self.folder / JSON] = None
        if "csv" in self.kinds:
            write_table(self.folder / CSV, self._rows, empty="file")
            self.written[self.folder / CSV] = None
