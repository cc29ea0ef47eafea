"""Videos, frame by frame. Needs OpenCV."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from hypvision.errors import HypvisionError, require
from hypvision.files import replacing

__all__ = ["VIDEO_SUFFIXES", "separate_videos", "transform_video"]

VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm")


def separate_videos(names: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Of paths and glob patterns those that are no videos, for :func:`hypvision.images.find_images`, and the videos.

    Raises:
        HypvisionError: a video that does not exist.
    """
    videos: dict[Path, None] = {}
    others: list[str] = []
    for name in names:
        path = Path(name).expanduser()
        matches = [path]
        if not path.exists() and glob.has_magic(str(path)):
            matches = [match for match in map(Path, sorted(glob.glob(str(path), recursive=True))) if match.is_file()]
        clips = [match for match in matches if match.suffix.lower() in VIDEO_SUFFIXES and not match.is_dir()]
        if missing := [match for match in clips if not match.is_file()]:
            raise HypvisionError(f"There is no video '{missing[0]}'. Check the path.")
        videos.update(dict.fromkeys(clips))
        others += [str(match) for match in matches if match not in clips] if clips else [name]
    return others, list(videos)


def transform_video(
    path: Path, target: Path, function: Callable[[np.ndarray], Image.Image], every: int = 1
) -> Path:  # pragma: no cover - the test runs where OpenCV has a codec
    """Write an MP4 of what a function makes of each frame, RGB uint8 (H, W, 3); returns its path.

    Args:
        path: the video.
        target: file to write.
        function: frames to images of one size.
        every: take each so-many-th frame; the speed of what happens stays.

    Raises:
        HypvisionError: the video cannot be read, has no frames, or ``target`` cannot be written.
    """
    cv2 = require("cv2", "mm")
    reader = cv2.VideoCapture(str(path))
    writer = None
    try:
        if not reader.isOpened():
            raise HypvisionError(f"The video '{path}' cannot be read. Convert it to .mp4 (H.264) first.")
        rate, number = reader.get(cv2.CAP_PROP_FPS) or 25.0, 0
        count = int(reader.get(cv2.CAP_PROP_FRAME_COUNT)) or None
        with replacing(target) as temporary, tqdm(total=count, unit="frame") as bar:
            while True:
                good, frame = reader.read()
                if not good:
                    break
                if number % every == 0:
                    image = function(np.ascontiguousarray(frame[..., ::-1]))
                    if writer is None:
                        code = cv2.VideoWriter_fourcc(*"mp4v")
                        writer = cv2.VideoWriter(str(temporary), code, rate / every, image.size)
                    writer.write(np.asarray(image)[..., ::-1])
                number += 1
                bar.update()
            if writer is None:
                raise HypvisionError(f"The video '{path}' has no frames that can be read.")
            writer.release()
    finally:
        reader.release()
        if writer is not None:
            writer.release()
    return target
