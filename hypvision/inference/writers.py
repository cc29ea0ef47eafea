"""Writing results to disk: painted images and videos, JSON in COCO's form, a CSV table, and maps of
class or segment numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic

from PIL import Image
from typing_extensions import NamedTuple, Self, TypeVar

from hypvision.inference.knowledge import Known
from hypvision.inference.results import Result
from hypvision.inference.sources import Frame
from hypvision.io.errors import HypvisionError
from hypvision.io.files import below, write_json, write_table
from hypvision.io.types import Plain, StrPath, Values
from hypvision.viz.sheet import save_image
from hypvision.viz.video import frame_rate, writing_video

KINDS = ("json", "csv", "overlay", "labels")
JSON = "predictions.json"
CSV = "predictions.csv"

_R = TypeVar("_R", bound=Result, default=Result, covariant=True)


class Prediction(NamedTuple, Generic[_R]):
    """The result of a model for one image or frame.

    Attributes:
        file: the path or address of the image or video.
        frame: number of the frame in its video; None for an image.
        size: width and height in pixels.
        result: the result, such as :class:`~hypvision.inference.results.Classes` or
            :class:`~hypvision.inference.results.Boxes`.
        known: the model's classes, where they come from, and the size of its training images.
        doubts: reasons to doubt the result, see :func:`hypvision.inference.knowledge.doubts`.
    """

    file: str
    frame: int | None
    size: tuple[int, int]
    result: _R
    known: Known = Known()
    doubts: tuple[str, ...] = ()


class Writer:
    """Writes results into a folder. The JSON and CSV files about all images are written at the end;
    after an error they contain the images that were finished.

    Args:
        folder: the folder for the files; made if missing.
        kinds: the files to write, some of :data:`KINDS`. ``json``: ``predictions.json`` with
            ``images``, ``categories`` and ``annotations`` in COCO's form. ``csv``:
            ``predictions.csv``, a row for each thing found. ``overlay``: ``NAME_overlay.png``, or
            ``NAME_overlay.mp4`` for a video. ``labels``: ``NAME_labels.png`` with the class numbers
            of a segmented image, or COCO's panoptic segment numbers; for frames of videos only the
            JSON file has them.
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
        self._note(frame, image, result)
        still = frame.number is None
        if "labels" in self.kinds and still:
            self._write(result.label_image(), f"{frame.name}_labels.png")
        if "overlay" in self.kinds:
            drawing = result.draw(image, legend=still)
            if still:
                self._write(drawing, f"{frame.name}_overlay.png")
            elif drawing is not None:
                self._write_frame(drawing, frame)

    def _note(self, frame: Frame, image: Image.Image, result: Result) -> None:
        """Record an image and its result for the JSON and CSV files, which are about all images."""
        at = {} if frame.number is None else dict(frame=frame.number)
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
            source = dict(file=frame.file, frame=at.get("frame", ""))
            self._rows += [source | row for row in result.rows()]

    def _write(self, image: Image.Image | None, name: str) -> None:
        if image is not None:
            self.written[save_image(image, below(self.folder, name))] = None

    def _write_frame(self, drawing: Image.Image, frame: Frame) -> None:
        if self._append is None or frame.name != self._name:
            self._video.close()
            target = below(self.folder, f"{frame.name}_overlay.mp4")
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
