"""What a command is given to look at: images, folders, patterns, lists and videos, read one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from hypvision.errors import HypvisionError
from hypvision.images import find_images, open_image, output_names
from hypvision.viz.video import frame_count, read_frames, separate_videos

__all__ = ["Frame", "Sources", "find_sources", "in_advance"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Frame(NamedTuple):
    """An image to look at.

    Attributes:
        file: where it is from; ``"image"`` of one that is in memory.
        name: what results are called.
        number: of a frame in its video, from 0; None of an image.
        source: path of the image, or the image itself.
    """

    file: str
    name: str
    number: int | None
    source: Path | Image.Image | np.ndarray

    def open(self) -> Image.Image:
        """The image, RGB.

        Raises:
            HypvisionError: it cannot be read.
        """
        return open_image(self.source)


class Sources(NamedTuple):
    """Everything that was named, each once.

    Attributes:
        images: files, or images in memory.
        videos: files.
        every: take each so-many-th frame of a video.
    """

    images: tuple[Path | Image.Image | np.ndarray, ...]
    videos: tuple[Path, ...] = ()
    every: int = 1

    @property
    def files(self) -> list[Path]:
        """What must not be overwritten."""
        return [source for source in (*self.images, *self.videos) if isinstance(source, Path)]

    def __len__(self) -> int:
        """How many frames there are, as far as the headers of videos say."""
        return len(self.images) + sum(-(-frame_count(video) // self.every) for video in self.videos)

    def __iter__(self) -> Iterator[Frame]:
        """The images, then the frames of the videos.

        Raises:
            HypvisionError: a video that cannot be read.
        """
        paths = [source if isinstance(source, Path) else Path("image") for source in self.images]
        for image, path, name in zip(self.images, paths, output_names(paths)):
            yield Frame(str(path), name, None, image)
        for video, name in zip(self.videos, output_names(self.videos)):
            for number, pixels in read_frames(video, self.every):
                yield Frame(str(video), name, number, pixels)


def find_sources(given: Any, every: int = 1) -> Sources:
    """The images and videos that names mean.

    Args:
        given: a path of an image, a folder, a glob pattern, a list (``.txt``, a path a line, relative to the list; not
            lines that begin with ``#``), a video; an image itself (PIL, or RGB uint8 (H, W, 3)); or several of these.
        every: take each so-many-th frame of a video.

    Raises:
        HypvisionError: one of them names nothing.
    """
    if isinstance(given, (str, Path, Image.Image, np.ndarray)):
        given = [given]
    held = [item for item in given if not isinstance(item, (str, Path))]
    names, videos = separate_videos([str(name) for name in _listed(given)])
    images = find_images(names)
    if not (held or images or videos):
        raise HypvisionError("No image is given. Give a path of an image, folder, list or video, or a pattern.")
    return Sources((*images, *held), tuple(videos), every)


def _listed(given: Sequence[Any]) -> Iterator[str | Path]:
    for name in given:
        if not isinstance(name, (str, Path)):
            continue
        path = Path(name)
        if path.suffix.lower() != ".txt":
            yield name
            continue
        try:
            lines = path.expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError, RuntimeError) as error:
            raise HypvisionError(
                f"The list '{name}' cannot be read ({error}). Give a text file in UTF-8 with the path of an image in "
                "each line."
            ) from error
        paths = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not paths:
            raise HypvisionError(f"The list '{name}' names no images. Write the path of an image in each line.")
        yield from (path.expanduser().parent / line for line in paths)


def in_advance(
    function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int = 2, ahead: int = 16
) -> Iterator[tuple[_Item, _Result]]:
    """Each item with what a function makes of it, computed by threads while the caller works on those before."""
    waiting: deque[tuple[_Item, Future[_Result]]] = deque()
    pool = ThreadPoolExecutor(workers)
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
