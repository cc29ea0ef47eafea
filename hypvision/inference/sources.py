"""The inputs of a command: images, folders, patterns, lists and videos, read one after another.
Addresses and the standard input are first saved as files in a temporary folder."""

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
from hypvision.data.usage import Usage, find_white
from hypvision.io import HypvisionError, StrPath, ensure, explaining, without_secrets
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

Source: TypeAlias = StrPath | Image.Image | NDArray[Any]
"""A name that means images (a path, folder, list, pattern or video), or an image in memory."""

LARGEST = 2**30  # largest number of bytes of a downloaded or piped image or video
STREAM = "-"  # the name that stands for the standard input

IN_MEMORY = "image"
"""The name of an image in memory, from which the names of its result files are made."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Frame(NamedTuple):
    """An image, or a frame of a video, to look at.

    Attributes:
        file: the path or address of the image or video; :data:`IN_MEMORY` for an image in memory.
        name: the name from which those of its result files are made.
        number: the number of a frame in its video, from 0; None for an image.
        source: the path of the image, or the image itself.
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
        """The name of a result file of this image or frame, without the suffix."""
        return self.name if self.number is None else f"{self.name}_{self.number:06d}"

    def open(self, channels: int = 3) -> Image.Image:
        """Return the image, in RGB for three channels, or with another number of channels."""
        return open_channels(self.source, channels, self.white)


@dataclass(frozen=True)
class Sources:
    """The images and videos that a command was given, each once.

    Attributes:
        images: image files, or images in memory.
        videos: video files.
        every: from a video take only every ``every``-th frame.
        white: the value of white in images of 16 bits.
        called: for files saved from an address or the standard input, the name that was given.
    """

    images: tuple[Path | Image.Image | NDArray[Any], ...]
    videos: tuple[Path, ...] = ()
    every: int = 1
    white: int = WHITE
    called: Mapping[Path, str] = field(default_factory=dict, compare=False)

    @property
    def files(self) -> list[Path]:
        """The given files on disk, which results must not overwrite."""
        return [source for source in (*self.images, *self.videos) if isinstance(source, Path)]

    def __len__(self) -> int:
        """Return the number of images and frames, as far as the headers of videos tell it."""
        count = len(self.images)
        for video in self.videos:
            with suppress(HypvisionError):  # the error is raised when its frames are read
                count += -(-frame_count(video) // self.every)
        return count

    def __iter__(self) -> Iterator[Frame]:
        return self.frames()

    def frames(self, failed: list[str] | None = None) -> Iterator[Frame]:
        """Yield the images, then the frames of the videos. Messages about unreadable files go into
        ``failed``; with ``failed=None`` an unreadable file is an error."""
        paths = [source if isinstance(source, Path) else Path(IN_MEMORY) for source in self.images]
        for image, path, name in zip(self.images, paths, output_names(paths)):
            yield Frame(self.called.get(path, str(path)), name, None, image, self.white)
        for video, name in zip(self.videos, output_names(self.videos)):
            with leaving_out(video, failed):
                for number, pixels in read_frames(video, self.every):
                    shown = self.called.get(video, str(video))
                    yield Frame(shown, name, number, pixels, video=video)


def find_files(names: Sequence[StrPath], videos: Collection[str] = ()) -> list[Path]:
    """Return the files that :func:`~hypvision.io.images.find_images` finds, and warn of the files
    in each folder that are left out."""
    found = find_images(names, videos)
    for folder in (Path(name).expanduser() for name in names):
        if folder.is_dir():
            _tell_left_out(folder, sum(folder in file.parents for file in found), videos)
    return found


def _tell_left_out(folder: Path, used: int, videos: Collection[str]) -> None:
    """Warn of the files in a folder that are left out (:func:`~hypvision.io.images.not_taken`);
    ``used`` is the number of files that are used."""
    usage = Usage(folder)
    usage.use("files", used)
    for reason, name in not_taken(folder, videos):
        usage.leave_out("files", reason, name)
    if usage.left_out():
        warnings.warn(str(usage), stacklevel=2)


def find_sources(
    given: Source | Sequence[Source], every: int = 1, white: int | str | None = None
) -> Sources:
    """Return the images and videos that names mean, each file once and in the order given.

    Args:
        given: the path of an image, folder, video or list, or a glob pattern; an image itself (PIL,
            or RGB uint8 (H, W, 3)); or several of these. A list is a ``.txt`` file with a path a
            line, relative to the list; lines that begin with ``#`` do not count. A path in the list
            without a file counts as an image that cannot be opened.
        every: from a video take only every ``every``-th frame.
        white: the value of white in images of 16 bits, or ``"auto"``, see
            :func:`~hypvision.data.usage.find_white`.
    """
    if isinstance(given, (str, Path, Image.Image, np.ndarray)):
        given = [given]
    ensure(
        isinstance(given, Iterable),
        f"An image is a path, a PIL image or an array, got {type(given).__name__}. Give one of "
        "these, or a list of them.",
    )
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
    ensure(
        images + videos,
        "No image is given. Give a path of an image, folder, list or video, or a pattern.",
    )
    paths = [image for image in images if isinstance(image, Path)]
    return Sources(tuple(images), tuple(videos), every, _white_of(paths, white))


def _white_of(paths: list[Path], white: int | str | None) -> int:
    """Return the value of white in images of 16 bits, and warn of what
    :func:`~hypvision.data.usage.find_white` notes about the images."""
    usage = Usage("images")
    value = find_white(paths, white, usage)
    for note in usage.notes:
        warnings.warn(note, stacklevel=3)
    return value


def check_every(every: int, *found: Sources) -> None:
    """Raise an error if ``every`` is below 1, or above 1 without a video whose frames it could
    skip."""
    if not isinstance(every, int) or every < 1:
        raise HypvisionError(f"every must be a whole number, at least 1, got {every!r}.")
    if every > 1 and not any(sources.videos for sources in found):
        raise HypvisionError(
            "every (--every) is for the frames of videos, and no video is given. Leave it out."
        )


def _files_of(name: StrPath) -> list[Path]:
    """Return the files that a name means, or the paths in a list. Paths in a list without a file
    stay in the result, unless none of them has a file."""
    if Path(name).suffix.lower() != ".txt":
        return find_files([name], VIDEO_SUFFIXES)
    lines = [line for line in read_lines(name, "the list of images") if not line.startswith("#")]
    ensure(lines, f"The list '{name}' names no images. Write the path of an image in each line.")
    found: list[Path] = []
    failed: list[str] = []
    for path in (Path(name).expanduser().parent / line for line in lines):
        try:
            found += find_files([path], VIDEO_SUFFIXES)
        except HypvisionError as error:
            found.append(path)  # Opening it fails later, but the other images are still read.
            failed.append(str(error))
    if len(failed) == len(lines):
        require_all(failed, done=0)
    return found


def in_advance(
    function: Callable[[_Item], _Result], items: Iterable[_Item], ahead: int = 16
) -> Iterator[tuple[_Item, _Result]]:
    """Yield each item with the result of ``function`` for it; two threads compute up to ``ahead``
    results in advance."""
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


# Addresses and the standard input


@contextmanager
def fetched(names: Sequence[str]) -> Iterator[tuple[list[str], dict[Path, str]]]:
    """Return the names, with a temporary file in the place of each address and of ``-`` (the
    standard input), and for each such file the name that was given.

    Raises:
        HypvisionError: an address or the standard input gives no image or video.
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
        raise HypvisionError(
            f"The standard input has more than {LARGEST:,} bytes. Send a smaller file."
        )
    folder.mkdir()
    file = folder / "stdin.img"
    file.write_bytes(data)
    return _with_suffix(file, "the standard input")


def _download(address: str, folder: Path) -> Path:
    folder.mkdir()
    with explaining(
        lambda error: f"'{address}': {error}. Check the address.", SourceError, ValueError
    ):
        name = _file_name(urlsplit(address).path)
        file = folder / name
        download(address, file, None, name=name, limit=LARGEST)
    return _with_suffix(file, f"'{address}'")


def _file_name(path: str) -> str:
    """Return a safe file name, with its ending, for the last part of an address."""
    last = Path(unquote(path)).name
    return re.sub(r"[^\w. -]+", "_", last)[-100:].lstrip(".") or "image"


def _with_suffix(file: Path, what: str) -> Path:
    """Return the file, renamed to end with its image format where the name has no known ending."""
    if file.suffix.lower() in (*SUFFIXES, *VIDEO_SUFFIXES):
        return file
    try:
        kind, _ = image_kind(file)
    except HypvisionError as error:
        raise HypvisionError(
            f"What {what} gives is no image that can be read. Give an image or a video."
        ) from error
    return file.rename(file.with_name(f"{file.stem}.{dict(JPEG='jpg').get(kind, kind.lower())}"))
