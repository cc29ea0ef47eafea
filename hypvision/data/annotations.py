"""Checks of the objects in an annotation file, for COCO's JSON, VOC's XML and other formats.

An object that cannot be used is left out and counted. An object that shows that the whole file is
wrong raises an error.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hypvision.data.usage import Usage
from hypvision.io.errors import HypvisionError

MAX_POINTS = 100_000  # largest number of polygon points of one object
MASK_FORMAT = (
    "Expected as segmentation: polygons [[x1, y1, x2, y2, x3, y3, ...], ...] of three points or "
    'more, or run lengths {"size": [height, width], "counts": ...} of the size of the image.'
)
NAME_THEM = (
    "Give the names of the file, in any order, as metainfo=dict(classes=(...)) of the data set in "
    'the config, or what shall not count as ignored=(...), or ignored="others".'
)


class Box(NamedTuple):
    """An object of an annotation, in pixels of its image."""

    left: float
    top: float
    right: float
    bottom: float
    height: float  # size of the image
    width: float
    area: float = 1.0  # the area that the file gives
    crowd: bool = False
    difficult: bool = False


class Fault(NamedTuple):
    """A reason why a box is not used in training: its text for messages, a function that tests a
    box, and whether the box is left out of the ground truth of metrics too, because it contains no
    object."""

    reason: str
    found: Callable[[Box], bool]
    no_box: bool = False


FAULTS = (
    Fault(
        "negative width or height",
        lambda box: box.right < box.left or box.bottom < box.top,
        no_box=True,
    ),
    Fault(
        "no width or no height",
        lambda box: box.right == box.left or box.bottom == box.top,
        no_box=True,
    ),
    Fault(
        "outside the image",
        lambda box: (
            box.right <= 0 or box.bottom <= 0 or box.left >= box.width or box.top >= box.height
        ),
        no_box=True,
    ),
    Fault(
        "narrower or lower than a pixel",
        lambda box: box.right - box.left < 1 or box.bottom - box.top < 1,
    ),
    Fault("area 0 or less: correct it, or remove the key", lambda box: box.area <= 0),
    Fault("crowd", lambda box: box.crowd),
    Fault("difficult", lambda box: box.difficult),
)


class BoxCheck:
    """Checks the boxes of one file or folder and counts in ``usage`` those that are left out;
    ``expected`` says, for messages, what the four numbers of a box mean in the file."""

    def __init__(self, usage: Usage, expected: str):
        self.usage = usage
        self.expected = expected
        self._shares: list[str] = []  # boxes between 0 and 1, as the file has them
        self._others = 0
        self._beyond = ""  # a box that reaches beyond its image by more than a tenth
        self._corners = True  # whether all boxes could be corners

    def numbers(self, where: str, values: Any, height: Any, width: Any) -> None:
        """Refuse ``values``, the box of the object ``where``, that are not four finite numbers."""
        if not (
            isinstance(values, (list, tuple)) and len(values) == 4 and all(map(is_number, values))
        ):
            raise HypvisionError(
                f"{where} has the box {str(values):.200}. Expected: {self.expected}, four finite "
                "numbers. Correct it."
            )
        if 0 <= min(values) < max(values) <= 1 and min(height, width) > 1:
            self._shares.append(f"{where} has the box {values}")
        else:
            self._others += 1
        a, b, c, d = values
        self._corners &= a < c <= width + 1 and b < d <= height + 1
        if a + c > 1.1 * width or b + d > 1.1 * height:
            self._beyond = (
                self._beyond or f"{where} has the box {values} in an image of {width} x {height}"
            )

    def fault(self, name: str, box: Box) -> Fault | None:
        """Why a box is left out, or None if it is used; boxes left out are counted under the
        ``name`` of the object."""
        fault = next((fault for fault in FAULTS if fault.found(box)), None)
        if fault is not None:
            self.usage.leave_out("boxes", fault.reason, name)
        return fault

    def finish(self) -> None:
        """After the last box.

        Raises:
            HypvisionError: all boxes lie between 0 and 1, or their last two numbers are a corner
                instead of width and height.
        """
        if self._beyond and self._corners and "width" in self.expected:
            raise HypvisionError(
                f"{self._beyond}, and all boxes of '{self.usage.place}' lie inside as [left, top, "
                f"right, bottom]. Expected: {self.expected}. Subtract left and top from the last "
                "two numbers."
            )
        if self._shares and not self._others:
            raise HypvisionError(
                f"{self._shares[0]}, and all boxes of '{self.usage.place}' lie between 0 and 1: "
                f"they are shares of the image. Expected: {self.expected} in pixels. Multiply them "
                "by the width and height of the image."
            )


def is_number(value: Any) -> bool:
    """Whether this is a number that pixels can have: finite, not too large for a float of 32 bits
    or an index."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**31


def whole_size(height: Any, width: Any) -> bool:
    """Whether these can be the height and width of an image."""
    return all(is_number(side) and side > 0 and side == int(side) for side in (height, width))


def mask_fault(mask: Any, height: int, width: int) -> str:
    """The fault of a mask in COCO's format, to complete the sentence "its segmentation ..."; empty
    if there is none.

    pycocotools reads beyond the end of damaged run lengths, and takes a polygon of two points for a
    box.
    """
    if isinstance(mask, dict):
        return _run_length_fault(mask, height, width)
    if not isinstance(mask, list) or not mask:
        return "is empty" if mask in (None, [], "") else f"is {_kind(mask)}"
    count = 0
    for polygon in mask:
        if not isinstance(polygon, list):
            return f"is a list of {_kind(polygon)}"
        try:
            values = array("d", polygon)
        except (TypeError, OverflowError):
            wrong = [value for value in polygon if type(value) not in (int, float)]
            return (
                f"has a polygon of {_kind(wrong[0])}" if wrong else "has a point that is not finite"
            )
        if len(values) < 6 or len(values) % 2:
            return f"has a polygon of {len(values)} numbers"
        if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
            return "has a point that is not finite"
        x = values[0::2]
        y = values[1::2]
        if min(x) < -width or max(x) > 2 * width or min(y) < -height or max(y) > 2 * height:
            return (
                f"has a point that lies beyond the image of {width} x {height} by more than its "
                "own size"
            )
        count = count + len(x)
        if count > MAX_POINTS:
            return f"has more than {MAX_POINTS:,} points"
    return ""


def _kind(value: Any) -> str:
    kinds = {list: "lists in a list", dict: "a dict", str: "text", float: "numbers", int: "numbers"}
    return {**kinds, bool: "true or false"}.get(type(value), f"{value!r:.40}")


def _run_length_fault(mask: dict[str, Any], height: int, width: int) -> str:
    size = mask.get("size")
    counts = mask.get("counts")
    if not isinstance(size, list) or not isinstance(counts, (list, str, bytes)):
        return "is a dict without the lists 'size' and 'counts'"
    if size != [height, width]:
        return f"has the size {str(size):.60} (height, width), but its image {[height, width]}"
    runs = counts if isinstance(counts, list) else decode_counts(counts)
    if not all(type(run) is int and run >= 0 for run in runs):
        return "has run lengths that are damaged"
    if sum(runs) != height * width:
        return f"has run lengths of {sum(runs):,} pixels in all, but its image {height * width:,}"
    return ""


def decode_counts(text: str | bytes) -> list[int]:
    """The run lengths in COCO's compressed text; ``[-1]`` if it is damaged.

    A character holds six bits: five of the number, the low ones first, and one that is set if more
    follow. From the fourth number on, the text has the difference from the last number but one.
    """
    runs: list[int] = []
    number = bits = 0
    for code in (
        ord(letter) - 48 for letter in (text if isinstance(text, str) else text.decode("latin-1"))
    ):
        if not 0 <= code < 64 or bits > 30:  # 35 bits: the run length would need more than 32
            return [-1]
        number = number | (code & 31) << bits
        bits = bits + 5
        if not code & 32:
            number -= (1 << bits) if code & 16 else 0
            runs.append(number + (runs[-2] if len(runs) > 2 else 0))
            number = bits = 0
    return runs if runs and not bits else [-1]


def refuse_masks(faults: Iterable[tuple[str, str]], whole: str) -> None:
    """Raise a HypvisionError if an object of a file, ``whole``, has a :func:`mask_fault`;
    ``faults``: object and fault."""
    found = [(where, fault) for where, fault in faults if fault]
    if found:
        more = f" So have {len(found) - 1} more of '{whole}' a fault." if len(found) > 1 else ""
        raise HypvisionError(
            f"{found[0][0]}: its segmentation {found[0][1]}.{more} {MASK_FORMAT} Correct it, or "
            "remove the annotation."
        )


def check_names(classes: Any) -> None:
    """Refuse class names that are a single string: each letter would become a class."""
    if isinstance(classes, str):
        raise HypvisionError(
            f"The classes of the data set are the text '{classes}', not a list of names. Python "
            f'takes ("{classes}") for a text in brackets: write classes=("{classes}",) with a '
            "comma."
        )


def compare_names(
    own: Sequence[str], classes: Sequence[str], where: str, ignored: Sequence[str] | str = ()
) -> None:
    """Compare the class names of a file, ``own``, with the ``classes`` of the config, in any order.
    ``ignored`` names of the file to ignore; ``"others"``: all that are not among the classes.
    ``where`` names the file in the message.
    """
    known = {*classes, *ignored}
    there = set(own)
    extra = [name for name in own if name not in known and ignored != "others"]
    missing = [name for name in classes if name not in there]
    if extra or missing:
        lacks = [f"lacks {some(missing, 5)}"] if missing else []
        lacks += [f"has {some(extra, 5)}, which the config does not list"] if extra else []
        raise HypvisionError(
            f"{where} {' and '.join(lacks)}. Classes of the config: {some(classes)}. Of the file: "
            f"{some(own)}. {NAME_THEM}"
        )


def name_difference(names: Sequence[str], place: str, others: Sequence[str], source: str) -> str:
    """A message about the class names that only one side has, with similar names: ``names`` from
    ``place``, ``others`` from ``source``."""
    mine, theirs = (
        [n for n in one if n not in other]
        for one, other in ((names, set(others)), (others, set(names)))
    )
    if not mine and not theirs:
        label = next(i for i, name in enumerate(names) if name != others[i])
        return (
            f"{place} has the classes of {source} in another order: label {label} is "
            f"'{names[label]}' here and '{others[label]}' there."
        )
    said = f"The class names differ. {place}: {len(names)} classes"
    said += f", of which {some(mine, 20)} only here. " if mine else ". "
    said += f"{source[0].upper()}{source[1:]}: {len(others)} classes"
    said += f", of which {some(theirs, 20)} only there." if theirs else "."
    plain = {re.sub(r"[\W_]+", "", name).casefold(): name for name in theirs}
    close = [(name, plain.get(re.sub(r"[\W_]+", "", name).casefold())) for name in mine]
    similar = [f"'{name}' is called '{other}' there" for name, other in close if other]
    return f"{said} {'; '.join(similar)}." if similar else said


def some(names: Sequence[str], limit: int = 8) -> str:
    """The first names, for a message."""
    return ", ".join(f"'{name}'" for name in names[:limit]) + (
        ", ..." if len(names) > limit else ""
    )
