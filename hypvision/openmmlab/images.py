"""mmcv, by which mmseg reads label maps, opens with Pillow the formats of :mod:`hypvision.images` and no others."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import mmcv.image.io
from PIL import Image

from hypvision.images import FORMATS

__all__ = ["install"]


def install() -> None:
    """Let mmcv's reader know these formats alone; an EPS called .png would start a PostScript interpreter."""
    mmcv.image.io.Image = SimpleNamespace(**{**vars(Image), "open": partial(Image.open, formats=FORMATS)})
