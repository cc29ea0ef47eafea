"""The inputs of a command: images, folders, patterns, lists and videos, read one after another, and
those from addresses and from the standard input, as files of a temporary folder."""

from __future__ import annotations

import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hypvision.checkpoints.download import download
from hypvision.data.depth import find_white
from hypvision.data.usage import Usage
from hypvision.io.errors import HypvisionError, without_secrets
from hypvision.io.files import read_lines
from hypvision.io.images import (
    SUFFIXES,
    WHITE,
    find_images,
    image_kind,
    leaving_out,
    not_taken,
    open_channels,
    output_names,
    require_all,
)
from hypvision.io.web import SourceError
from hypvision.viz.video import VIDEO_SUFFIXES, frame_count, read_frames

Source: TypeAlias = str | Path | Image.Image | NDArray[Any]
"""The name of images, or one in memory."""

LARGEST = 2**30  # bytes of one image or video
STREAM = "-"  # the standard input

IN_MEMORY = "image"
"""The name of an image that is in memory, and so of what is written about it."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Frame(NamedTuple):
    """An image to look at.

    Attributes:
        file: where it is from; :data:`IN_MEMORY` of one that is in memory.
        name: what its results are called.
        number: of a frame in its video, from 0; None of an image.
        source: path of the image, or the image itself.
        white: the value of white in an image of 16 bits.
        video: the file of its video; None of an image.
    """

    file: str
    name: str
    number: int | None
    source: Path | Image.Image | NDArray[Any]
    white: int = WHITE
    video: Path | None = None

    @property
    def stem(self) -> str:
        """The name of a file about it, without the suffix."""
        return self.name if self.number is None else f"{self.name}_{self.number:06d}"

    def open(self, channels: int = 3) -> Image.Image:
        """The image, RGB or of other channels."""
        return open_channels(self.source, channels, self.white)


@dataclass(frozen=True)
class Sources:
    """Everything that was named, each once.

    Attributes:
        images: files, or images in memory.
        videos: files.
        every: take every so-many-th frame of a video.
        white: the value of white in images of 16 bits.
        called: the names of files that were fetched.
    """

    images: tuple[Path | Image.Image | NDArray[Any], ...]
    videos: tuple[Path, ...] = ()
    every: int = 1
    white: int = WHITE
    called: Mapping[Path, str] = field(default_factory=dict, compare=False)

    @property
    def files(self) -> list[Path]:
        """What must not be overwritten."""
        return [source for source in (*self.images, *self.videos) if isinstance(source, Path)]

    def __len__(self) -> int:
        """How many frames there are, as far as the headers of videos say."""
        count = len(self.images)
        for video in self.videos:
            with suppress(HypvisionError):  # the error is raised when its frames are read
                count += -(-frame_count(video) // self.every)
        return count

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def frames(self, failed: list[str] | None = None) -> Iterator[Frame]:
        """The images, then the frames of the videos; the messages of unreadable ones go into
        ``failed``. None: they raise."""
        paths = [source if isinstance(source, Path) else Path(IN_MEMORY) for source in self.images]
        for image, path, name in zip(self.images, paths, output_names(paths)):
            yield Frame(self.called.get(path, str(path)), name, None, image, self.white)
        for video, name in zip(self.videos, output_names(self.videos)):
            with leaving_out(video, failed):
                for number, pixels in read_frames(video, self.every):
                    shown = self.called.get(video, str(video))
                    yield Frame(shown, name, number, pixels, video=video)


def find_files(names: Sequence[str | Path], videos: Collection[str] = ()) -> list[Path]:
    """The files that :func:`~hypvision.io.images.find_images` finds; a warning says what each
    folder has that is left out."""
    found = find_images(names, videos)
    for folder in (Path(name).expanduser() for name in names):
        if folder.is_dir():
            _tell_left_out(folder, sum(folder in file.parents for file in found), videos)
    return found


def _tell_left_out(folder: Path, used: int, videos: Collection[str]) -> None:
    """Warn of what a folder has that is left out (:func:`~hypvision.io.images.not_taken`); ``used``
    files are not."""
    usage = Usage(folder)
    usage.use("files", used)
    for reason, name in not_taken(folder, videos):
        usage.leave_out("files", reason, name)
    if usage.left_out():
        warnings.warn(str(usage), stacklevel=2)


def find_sources(
    given: Source | Sequence[Source], every: int = 1, white: int | str | None = WHITE
) -> Sources:
    """The images and videos that names mean, each file once and in their order.

    Args:
        given: the path of an image, folder, video or list, or a glob pattern; an image itself (PIL,
            or RGB uint8 (H, W, 3)); or several of these. A list is a ``.txt`` file with a path a
            line, relative to the list; lines that begin with ``#`` do not count. A path in the list
            without a file counts as an image that cannot be opened.
        every: take every so-many-th frame of a video.
        white: the value of white in images of 16 bits, or ``"auto"``, see
            :func:`~hypvision.data.depth.find_white`.
    """
    if isinstance(given, (str, Path, Image.Image, np.ndarray)):
        given = [given]
    images: list[Path | Image.Image | NDArray[Any]] = []
    videos: list[Path] = []
    seen: set[Path] = set()
    for item in given:
        if not isinstance(item, (str, Path)):
            images.append(item)
            continue
        for file in _files_of(item):
            if file not in seen:
                (videos if file.suffix.lower() in VIDEO_SUFFIXES else images).append(file)
                seen.add(file)
    if not images + videos:
        raise HypvisionError(
            "No image is given. Give a path of an image, folder, list or video, or a pattern."
        )
    paths = [image for image in images if isinstance(image, Path)]
    value = WHITE if white == WHITE else _white_of(paths, white)
    return Sources(tuple(images), tuple(videos), every, value)


def _white_of(paths: list[Path], white: int | str | None) -> int:
    """The value of white in images of 16 bits, where it is not the usual one; warns of what stands
    out."""
    usage = Usage("images")
    value = find_white(paths, white, usage)
    for note in usage.notes:
        warnings.warn(note, stacklevel=3)
    return value


def check_every(every: int, *found: Sources) -> None:
    """Refuse to take every so-many-th frame where there is no video, and numbers below 1."""
    if not isinstance(every, int) or every < 1:
        raise HypvisionError(f"every must be a whole number, at least 1, got {every!r}.")
    if every > 1 and not any(sources.videos for sources in found):
        raise HypvisionError(
            "every (--every) is for the frames of videos, and no video is given. Leave it out."
        )


def _files_of(name: str | Path) -> list[Path]:
    """The files that a name means, or the paths in a list. Paths without a file stay in the result,
    unless no path has one."""
    if Path(name).suffix.lower() != ".txt":
        return find_files([name], VIDEO_SUFFIXES)
    lines = [line for line in read_lines(name, "the list of images") if not line.startswith("#")]
    if not lines:
        raise HypvisionError(
            f"The list '{name}' names no images. Write the path of an image in each line."
        )
    found: list[Path] = []
    failed: list[str] = []
    for path in (Path(name).expanduser().parent / line for line in lines):
        try:
            found += find_files([path], VIDEO_SUFFIXES)
        except HypvisionError as error:
            found.append(path)  # opening it fails, but the other images are still read
            failed.append(str(error))
    if len(failed) == len(lines):
        require_all(failed, done=0)
    return found


def in_advance(
    function: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int = 16
) -> Iterator[tuple[_Item, _Result]]:
    """Each item with what a function makes of it; two threads compute up to ``ahead`` results in
    advance."""
    waiting: deque[tuple[_Item, Future[_Result]]] = deque()
    pool = ThreadPoolExecutor(2)
    try:
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) > ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


# From addresses and from the standard input


@contextmanager
def fetched(names: Sequence[str]) -> Iterator[tuple[list[str], dict[Path, str]]]:
    """The names, with a file in the place of each address and of ``-``, and what these files are
    from.

    Raises:
        HypvisionError: an address gives no image or video, or the standard input none.
    """
    with TemporaryDirectory(prefix="hypvision-", ignore_cleanup_errors=True) as folder:
        found = []
        called = {}
        for number, name in enumerate(names):
            place = Path(folder, str(number))
            if name == STREAM:
                file = _stream(place)
            elif name.lower().startswith(("http://", "https://")):
                file = _download(name, place)
            else:
                found.append(name)
                continue
            found.append(str(file))
            called[file] = without_secrets(name)
        yield found, called


def _stream(folder: Path) -> Path:
    if sys.stdin is None or sys.stdin.isatty():
        raise HypvisionError(
            "'-' is the standard input, but nothing is sent there. Expected: an image, such as "
            "`hypvision predict - ... < photo.jpg`."
        )
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise HypvisionError(f"The standard input has more than {LARGEST:,} bytes.")
    folder.mkdir()
    file = folder / "stdin.img"
    file.write_bytes(data)
    return _with_suffix(file, "the standard input")


def _download(address: str, folder: Path) -> Path:
    folder.mkdir()
    try:
        name = _file_name(urlsplit(address).path)
        file = folder / name
        download(address, file, None, name=name, limit=LARGEST)
    except (SourceError, ValueError) as error:
        raise HypvisionError(f"'{address}': {error}. Check the address.") from error
    return _with_suffix(file, f"'{address}'")


def _file_name(path: str) -> str:
    """A name on this machine for the last part of an address, with its ending."""
    last = Path(unquote(path)).name
    return re.sub(r"[^\w. -]+", "_", last)[-100:].lstrip(".") or "image"


def _with_suffix(file: Path, what: str) -> Path:
    """The file, with the ending of its format where it has none."""
    if file.suffix.lower() in (*SUFFIXES, *VIDEO_SUFFIXES):
        return file
    try:
        kind, _ = image_kind(file)
    except HypvisionError as error:
        raise HypvisionError(f"What {what} gives is no image that can be read.") from error
    return file.rename(file.with_name(f"{file.stem}.{dict(JPEG='jpg').get(kind, kind.lower())}"))
