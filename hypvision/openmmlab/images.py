"""Make mmcv, by which mmseg and mmdet read images and label maps, accept the same files as
:mod:`hypvision.io.images` and decode them in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import cv2
import mmcv.image.io
import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.registry import TRANSFORMS
from PIL import Image

from hypvision.data.usage import Usage, check_white, find_white
from hypvision.io import HypvisionError, Plain, StrPath
from hypvision.io.files import read_bytes
from hypvision.io.images import FORMATS, WHITE, image_kind, image_size, open_image


def install() -> None:
    """Restrict mmcv's reader to the image formats that hypvision reads: an EPS file named .png
    would start a PostScript interpreter."""
    mmcv.image.io.Image = SimpleNamespace(
        **{**vars(Image), "open": partial(Image.open, formats=FORMATS)}
    )


def read_bgr(path: StrPath, white: int = WHITE) -> np.ndarray:
    """Read an image as :func:`hypvision.io.images.open_image` does, and return it as uint8 ``(H, W,
    3)`` in OpenCV's order, BGR. ``white`` is the value of white in an image of 16 bits.

    OpenCV decodes JPEG files to the same pixels in half the time, so it reads them, except for CMYK
    and truncated files, and for files whose orientation is in XMP, which OpenCV does not read.
    """
    if image_kind(path) in (("JPEG", "RGB"), ("JPEG", "L")):
        content = read_bytes(path)
        # A file with another end may be truncated: OpenCV would fill the rest with grey.
        whole = content.endswith(b"\xff\xd9")
        if whole and b"tiff:Orientation" not in content:
            image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
            if image is not None:
                return image
    return np.ascontiguousarray(np.asarray(open_image(path, white=white))[..., ::-1])


@TRANSFORMS.register_module(name="LoadImageFromFile", force=True)
class LoadShownImage(LoadImageFromFile):
    """mmcv's transform that reads an image, by :func:`read_bgr`: 16 bits are scaled to 8,
    transparent parts become white, and files that are not images are refused.

    The size is compared with that in the annotation, if it has one.

    The additional argument ``white`` is the value of white in images of 16 bits, 4095 for those
    that hold 12 bits.

    If the config asks for other channels, or for files in a remote store, mmcv's own reader is
    used.
    """

    def __init__(self, *args: Any, white: int = WHITE, **options: Any):
        super().__init__(*args, **options)
        check_white(white)
        self.white = white

    def transform(self, results: Plain) -> Plain | None:
        if self.color_type != "color" or self.backend_args or self.file_client_args:
            return super().transform(results)
        try:
            image = read_bgr(results["img_path"], self.white)
        except HypvisionError:
            if self.ignore_empty:
                return None
            raise
        results["img"] = image.astype(np.float32) if self.to_float32 else image
        results["img_shape"] = results["ori_shape"] = image.shape[:2]
        check_size(results)
        return results


def tell_depth(steps: Sequence[Any], paths: Sequence[str], usage: Usage) -> None:
    """Note images of 16 bits that hold fewer bits, unless a step of the pipeline has their
    ``white``."""
    loaders = [step for step in steps if isinstance(step, LoadShownImage)]
    if loaders and loaders[0].white == WHITE:
        find_white(paths, None, usage)


def check_size(results: Plain) -> None:
    """Raise an error if the size of an image as displayed differs from that in its annotation,
    because its boxes would be misplaced."""
    path = results["img_path"]
    (height, width) = results["ori_shape"]
    given = (results.get("height", height), results.get("width", width))
    if given == (height, width):
        return
    remedy = (
        "Take the image that was annotated, or correct the size and the boxes in the annotation."
    )
    if given == image_size(path):
        remedy = (
            f"The camera stored it as {given[1]} x {given[0]} with a note to turn it (EXIF), which "
            "the annotation leaves out. Turn its pixels for good and annotate it again, or remove "
            "the note from the file."
        )
    raise HypvisionError(
        f"The image '{path}' is {width} x {height} pixels as it is shown, but its annotation says "
        f"{given[1]} x {given[0]} (width x height), so its boxes and masks would lie elsewhere. "
        f"{remedy}"
    )
