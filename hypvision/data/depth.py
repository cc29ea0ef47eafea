"""The range of images of 16 bits: cameras and microscopes store 12 or 10 bits in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypvision.data.usage import Usage
from hypvision.io.checks import ensure
from hypvision.io.images import WHITE, image_kind, leaving_out, read_labels

_BITS = (8, 10, 12, 14, 16)
_DEEP = (".png", ".tif", ".tiff", ".pgm")  # the formats that have 16 bits
_PROBED = 20  # images that are looked at where nothing is asked for


def check_white(white: int | str | None) -> None:
    """Refuse a ``white`` that is neither None, ``"auto"`` nor a value of 16 bits."""
    number = isinstance(white, int) and not isinstance(white, bool) and 0 < white <= WHITE
    ensure(
        white in (None, "auto") or number,
        f"white must be 'auto' or the value of white in images of 16 bits, from 1 to {WHITE} "
        f"(4095 of 12 bits), got {white!r}.",
    )


def find_white(paths: Sequence[str | Path], white: int | str | None, usage: Usage) -> int:
    """The value that is white in the images of 16 bits of a data set.

    Args:
        paths: the images.
        white: the value; ``"auto"``: the largest of the next whole number of bits (8, 10, 12, 14,
            16) that the largest value of all these images needs; None: 65535, and a note if 20 of
            the images need fewer bits.
        usage: where the note goes.
    """
    check_white(white)
    if isinstance(white, int):
        return white
    deep = [path for path in paths if Path(path).suffix.lower() in _DEEP]
    if white is None:
        deep = deep[:: max(1, len(deep) // _PROBED)]
    largest = 0
    for path in deep:
        with leaving_out(path, []):  # a damaged image is told when it is read
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
            f"Images of 16 bits: the largest value of those looked at is {largest}, of {WHITE}, so "
            f"they are nearly black here. If they have {bits} bits, set white={2**bits - 1} (or "
            "'auto') in the data set; for boxes and label maps in LoadImageFromFile."
        )
    return WHITE
