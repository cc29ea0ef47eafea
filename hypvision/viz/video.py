"""Reading and writing videos frame by frame. Needs OpenCV."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hypvision.io import HypvisionError, require
from hypvision.io.files import replacing, why_no_file
from hypvision.io.images import MAX_PIXELS

VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm")
# Least and largest frames per second: OpenCV's writer hangs at infinity, and takes at most 65,535.
_RATES = (0.01, 1000.0)


def _is_video(path: Path) -> bool:
    """Return whether a file begins like the formats of :data:`VIDEO_SUFFIXES`.

    FFmpeg would also open other files, such as playlists, which can refer to any file or address.
    """
    with path.open("rb") as file:
        start = file.read(12)
    matroska = start[:4] == b"\x1aE\xdf\xa3"
    avi = start[:4] == b"RIFF" and start[8:] == b"AVI "
    return (
        matroska
        or avi
        or start[4:8] in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
    )


def _name(path: Path) -> str:
    """Return a path as text that OpenCV accepts; OpenCV crashes with names that are not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise HypvisionError(
            f"The name of the video '{path}' is not UTF-8, which OpenCV needs. Rename the file, or "
            "its folder."
        ) from error
    return str(path)


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    cv2 = require("cv2", "mm")
    if not path.is_file():
        raise HypvisionError(f"{why_no_file(path, 'video')} Check the path.")
    if not _is_video(path):
        raise HypvisionError(
            f"The video '{path}' cannot be read: its content is none of "
            f"{', '.join(VIDEO_SUFFIXES)}, whatever its name says. Convert it to .mp4 (H.264) "
            "first."
        )
    # CAP_FFMPEG, because OpenCV's other readers also accept images and name patterns.
    reader = cv2.VideoCapture(_name(path), cv2.CAP_FFMPEG)
    try:
        if not reader.isOpened():
            raise HypvisionError(
                f"The video '{path}' cannot be read. Convert it to .mp4 (H.264) first."
            )
        width, height = (
            int(reader.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        )
        if width * height > MAX_PIXELS:
            raise HypvisionError(
                f"The video '{path}' was not read: its frames are {width} x {height} pixels, more "
                f"than {MAX_PIXELS:,} in all. Make them smaller."
            )
        yield reader
    finally:
        reader.release()


def frame_count(path: Path) -> int:
    """Return the number of frames that a video's header gives; 0 if it gives none."""
    with _reading(path) as reader:
        return max(0, int(reader.get(require("cv2", "mm").CAP_PROP_FRAME_COUNT)))


def frame_rate(path: Path) -> float:
    """Return the frames per second of a video; 25 if its header gives none, or an impossible
    rate."""
    with _reading(path) as reader:
        rate = reader.get(require("cv2", "mm").CAP_PROP_FPS)
        return rate if _RATES[0] <= rate <= _RATES[1] else 25.0


def read_frames(path: Path, every: int = 1) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number, from 0, and the pixels, RGB uint8 (H, W, 3), of each ``every``-th frame of
    a video; warn if the video ends before the frames that its header promises."""
    with _reading(path) as reader:
        number = 0
        while reader.grab():
            if number % every == 0:
                good, frame = reader.retrieve()
                if not good:
                    break
                yield number, np.ascontiguousarray(frame[..., ::-1])
            number += 1
        if number == 0:
            raise HypvisionError(f"The video '{path}' has no frames that can be read.")
        count = reader.get(require("cv2", "mm").CAP_PROP_FRAME_COUNT)
        if number < 0.95 * count:  # some headers hold an estimate
            warnings.warn(
                f"The video '{path}' ends after {number} of the {count:.0f} frames that its header "
                "promises: it may be cut off or damaged. If so, take an intact copy.",
                stacklevel=2,
            )


@contextmanager
def writing_video(target: Path, rate: float) -> Iterator[Callable[[Image.Image], None]]:
    """Yield a function that appends an RGB image to an MP4; the file appears when it is complete.

    The video has the size of the first image. Frame rates outside of the possible range are clamped
    to it.
    """
    cv2 = require("cv2", "mm")
    writer = None
    count = 0
    rate = min(max(rate, _RATES[0]), _RATES[1])

    def append(image: Image.Image) -> None:
        nonlocal writer, count
        if writer is None:
            writer = cv2.VideoWriter(
                _name(temporary), cv2.VideoWriter_fourcc(*"mp4v"), rate, image.size
            )
            if not writer.isOpened():
                raise HypvisionError(
                    f"'{target}' was not written: OpenCV has no encoder for MP4 here, or the disk "
                    "is full. Install OpenCV with FFmpeg, or make room."
                )
        writer.write(np.asarray(image.convert("RGB"))[..., ::-1])
        count += 1

    with replacing(target) as temporary:
        try:
            yield append
        finally:
            if writer is not None:
                writer.release()
        if count and not _has_frames(temporary, count):  # OpenCV reports no error for a full disk
            raise OSError("OpenCV could not write the whole video, as happens if the disk is full")


def _has_frames(path: Path, count: int) -> bool:
    try:
        return frame_count(path) >= count
    except HypvisionError:
        return False
