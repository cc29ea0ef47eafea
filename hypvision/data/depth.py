"""The value of white in images of 16 bits, in which cameras and microscopes often store only 10 or
12 bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hypvision.data.usage import Usage
from hypvision.io.checks import ensure
from hypvision.io.images import (
    WHITE,
    image_kind,
    is_deep_colour,
    leaving_out,
    open_image,
    read_labels,
)

_BITS = (8, 10, 12, 14, 16)
_DEEP = (".png", ".tif", ".tiff", ".pgm")  # suffixes of formats that can have 16 bits
_PROBED = 20  # number of images that are probed if the user gives no value of white


def check_white(white: int | str | None) -> None:
    """Raise an error if ``white`` is neither None, nor ``"auto"``, nor a value that 16 bits can
    hold."""
    number = isinstance(white, int) and not isinstance(white, bool) and 0 < white <= WHITE
    ensure(
        white in (None, "auto") or number,
        f"white must be 'auto' or the value of white in images of 16 bits, from 1 to {WHITE} "
        f"(4095 of 12 bits), got {white!r}.",
    )


def find_white(paths: Sequence[str | Path], white: int | str | None, usage: Usage) -> int:
    """Return the value that means white in a data set's images of 16 bits.

    Args:
        paths: the paths of the images.
        white: the value itself; ``"auto"``: the largest value of as many bits (8, 10, 12, 14 or 16)
            as the largest value in all images needs; None: 65535, with a note for the user if the
            values of about 20 probed images fit into fewer bits.
        usage: the counts whose ``notes`` get the note.
    """
    check_white(white)
    deep = [path for path in paths if Path(path).suffix.lower() in _DEEP]
    _tell_dark_colours(deep[:: max(1, len(deep) // _PROBED)], usage)
    if isinstance(white, int):
        return white
    if white is None:
        deep = deep[:: max(1, len(deep) // _PROBED)]
    largest = 0
    for path in deep:
        with leaving_out(path, []):  # a damaged image is reported when the data set reads it
            if image_kind(path)[1].startswith("I"):
                largest = max(largest, int(read_labels(path).max(initial=0)))
    if not largest:
        return WHITE
    bits = next((bits for bits in _BITS if largest < 2**bits), _BITS[-1])
    if white == "auto":
        usage.notes.append(
            f"Images of 16 bits: the largest value is {largest}, so {2**bits - 1} ({bits} bits) is "
            "white."
        )
        return 2**bits - 1
    if bits < _BITS[-1]:
        usage.notes.append(
            f"Images of 16 bits: the largest value in those probed is {largest}, of {WHITE}, so "
            f"they are nearly black here. If they have {bits} bits, set white={2**bits - 1} (or "
            "'auto') in the data set; for boxes and label maps, in LoadImageFromFile; for predict, "
            "--white."
        )
    return WHITE


def _tell_dark_colours(paths: Sequence[str | Path], usage: Usage) -> None:
    """Note that images of 16 bits a colour are nearly black: Pillow reads their upper 8 bits alone,
    and no value of white changes that."""
    largest = 0
    for path in paths:
        with leaving_out(path, []):
            if is_deep_colour(path):
                largest = max(largest, int(np.asarray(open_image(path)).max()))
    if 0 < largest < 64:
        usage.notes.append(
            "Colour images of 16 bits: only the upper 8 bits are read, and their largest value in "
            f"those probed is {largest}, so they are nearly black here. Save them with 8 bits."
        )
