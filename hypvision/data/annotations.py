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

from hypvision.io import HypvisionError, Plain, refuse, some
from hypvision.io.images import MAX_PIXELS

from .usage import Usage

MAX_POINTS = 100_000  # largest number of polygon points that one object may have
MASK_FORMAT = (
    "Expected as segmentation: polygons [[x1, y1, x2, y2, x3, y3, ...], ...] of three points or "
    'more, or run lengths {"size": [height, width], "counts": ...} for the size of the image.'
)
NAME_THEM = (
    "Give the names of the file, in any order, as metainfo=dict(classes=(...)) of the data set in "
    'the config, and the names that shall not count as ignored=(...), or set ignored="others".'
)


class Box(NamedTuple):
    """The box of an annotated object, in pixels, with the size of its image and the flags of the
    file."""

    left: float
    top: float
    right: float
    bottom: float
    height: float  # height and width of the image
    width: float
    area: float = 1.0  # the object's area as the annotation file gives it
    crowd: bool = False
    difficult: bool = False


class Fault(NamedTuple):
    """A reason why a box is not used in training: ``reason`` for messages, ``found`` to test a box
    for it, and ``no_box``, whether metrics leave the box out of the ground truth, too, because it
    contains no object."""

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
    """Check of the boxes of one file or folder; ``usage`` counts those that are left out, and
    ``expected`` says in messages what the four numbers of a box mean in the file."""

    def __init__(self, usage: Usage, expected: str):
        self.usage = usage
        self.expected = expected
        self.share = ""  # sentence about the first box whose numbers all lie between 0 and 1
        self.beyond = ""  # sentence about the first box that ends a tenth beyond its image
        self.all_shares = True
        self.all_corners = True  # whether all boxes so far could be (left, top, right, bottom)

    def numbers(self, where: str, values: Any, height: Any, width: Any) -> None:
        """Raise an error unless ``values``, the box of the object ``where``, are four finite
        numbers; note whether they look like shares of the image or like corners."""
        four = isinstance(values, (list, tuple)) and len(values) == 4
        if not four or not all(map(is_number, values)):
            raise HypvisionError(
                f"{where} has the box {str(values):.200}. Expected: {self.expected}, four finite "
                "numbers. Correct it."
            )
        if 0 <= min(values) < max(values) <= 1 < min(height, width):
            self.share = self.share or f"{where} has the box {values}"
        else:
            self.all_shares = False
        a, b, c, d = values
        self.all_corners &= a < c <= width + 1 and b < d <= height + 1
        if a + c > 1.1 * width or b + d > 1.1 * height:
            box = f"{where} has the box {values} in an image of {width} x {height}"
            self.beyond = self.beyond or box

    def fault(self, name: str, box: Box) -> Fault | None:
        """Return the reason why ``box`` is left out, or None if it is used; a box that is left out
        is counted, with the ``name`` of its object."""
        fault = next((fault for fault in FAULTS if fault.found(box)), None)
        if fault is not None:
            self.usage.leave_out("boxes", fault.reason, name)
        return fault

    def finish(self) -> None:
        """Raise an error if the boxes as a whole show that their numbers mean something else; to be
        called after the last box.

        Raises:
            HypvisionError: all boxes lie between 0 and 1, or the last two numbers of each are its
                right and bottom instead of width and height.
        """
        place = self.usage.place
        refuse(
            (
                self.beyond and self.all_corners and "width" in self.expected,
                f"{self.beyond}, and all boxes of '{place}' lie inside as [left, top, right, "
                f"bottom]. Expected: {self.expected}. Subtract left and top from the last two "
                "numbers.",
            ),
            (
                self.share and self.all_shares,
                f"{self.share}, and all boxes of '{place}' lie between 0 and 1: they are shares of "
                f"the image. Expected: {self.expected} in pixels. Multiply them by the width and "
                "height of the image.",
            ),
        )


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a number that a pixel coordinate can be: finite and within the
    range of an index of 32 bits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**31


def as_number(text: Any) -> float:
    """Return a text from a file as a number; NaN if it is none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def whole_size(height: Any, width: Any) -> bool:
    """Return whether the two values can be the height and width of an image that is opened."""
    whole = all(is_number(side) and side > 0 and side == int(side) for side in (height, width))
    return whole and height * width <= MAX_PIXELS


def mask_fault(mask: Any, height: int, width: int) -> str:
    """Return the fault of a mask in COCO's format as the end of a sentence that begins "its
    segmentation ..."; an empty string if the mask is valid.

    This check comes first, since pycocotools reads beyond the end of damaged run lengths, and takes
    a polygon of two points for a box.
    """
    if isinstance(mask, dict):
        return _run_length_fault(mask, height, width)
    if mask in (None, [], ""):
        return "is empty"
    if not isinstance(mask, list):
        return f"is {_kind(mask)}"
    count = 0
    for polygon in mask:
        fault = _polygon_fault(polygon, height, width)
        if fault:
            return fault
        count += len(polygon) // 2
        if count > MAX_POINTS:
            return f"has more than {MAX_POINTS:,} points"
    return ""


def _polygon_fault(polygon: Any, height: int, width: int) -> str:
    if not isinstance(polygon, list):
        return f"is a list of {_kind(polygon)}"
    try:
        values = array("d", polygon)
    except OverflowError:
        return "has a point that is not finite"
    except TypeError:
        wrong = next(value for value in polygon if not isinstance(value, (int, float)))
        return f"has a polygon of {_kind(wrong)}"
    if len(values) < 6 or len(values) % 2:
        return f"has a polygon of {len(values)} numbers"
    if not math.isfinite(sum(values)):
        return "has a point that is not finite"
    if _far(values[0::2], width) or _far(values[1::2], height):
        return f"has a point beyond the image of {width} x {height} by more than its own size"
    return ""


def _far(values: array[float], side: int) -> bool:
    return min(values) < -side or max(values) > 2 * side


def _kind(value: Any) -> str:
    kinds = {list: "lists in a list", dict: "a dict", str: "text", float: "numbers", int: "numbers"}
    return {**kinds, bool: "true or false"}.get(type(value), f"{value!r:.40}")


def _run_length_fault(mask: Plain, height: int, width: int) -> str:
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
    """Return the run lengths in COCO's compressed text; ``[-1]`` if the text is damaged.

    Each character holds six bits: five bits of the number, the low ones first, and one bit that is
    set if more characters of this number follow. From the fourth number on, the text stores the
    difference from the number two places before.
    """
    runs: list[int] = []
    number = 0
    bits = 0
    for byte in text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text:
        code = byte - 48
        # A run length has at most 32 bits, so an eighth character of five bits shows damage.
        if not 0 <= code < 64 or bits > 30:
            return [-1]
        number |= (code & 31) << bits
        bits += 5
        if not code & 32:
            number -= (1 << bits) if code & 16 else 0
            runs.append(number + (runs[-2] if len(runs) > 2 else 0))
            number = 0
            bits = 0
    return runs if runs and not bits else [-1]


def refuse_masks(faults: Iterable[tuple[str, str]], whole: str) -> None:
    """Raise an error if an object of the file ``whole`` has a :func:`mask_fault`; ``faults`` are
    pairs of the object's place in the file and its fault, or "" if it has none."""
    found = [f"{where}: its segmentation {fault}" for where, fault in faults if fault]
    advice = f"{MASK_FORMAT} Correct it, or remove the annotation."
    refuse((found, f"{''.join(found[:1])} ({len(found)} faults in '{whole}'). {advice}"))


def check_names(classes: Any) -> None:
    """Raise an error for class names that are a single string, each letter of which would become a
    class."""
    text = f"The classes of the data set are the text '{classes}', not a list of names."
    refuse((isinstance(classes, str), f'{text} Write classes=("{classes}",) with a comma.'))


def compare_names(
    own: Sequence[str], classes: Sequence[str], where: str, ignored: Sequence[str] | str = ()
) -> None:
    """Raise an error unless the class names of a file, ``own``, and the ``classes`` of the config
    are the same in any order. The file may also have the ``ignored`` names, or any others if
    ``ignored`` is ``"others"``. ``where`` names the file in the message."""
    missing = _only(classes, own)
    extra = [] if ignored == "others" else _only(own, [*classes, *ignored])
    refuse(
        (
            extra or missing,
            f"{where} has other classes than the config. Only in the config: {some(missing)}. Only "
            f"in the file: {some(extra)}. {NAME_THEM}",
        )
    )


def _only(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the names that are not among ``others``."""
    known = set(others)
    return [name for name in names if name not in known]


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def name_difference(names: Sequence[str], place: str, others: Sequence[str], source: str) -> str:
    """Return a message about the class names that only one of two lists has: ``names`` from
    ``place``, ``others`` from ``source``. Names that differ only in case or punctuation are pointed
    out."""
    mine = _only(names, others)
    theirs = _only(others, names)
    if not mine and not theirs:
        label = next(i for i, name in enumerate(names) if name != others[i])
        return (
            f"{place} has the classes of {source} in another order: label {label} is "
            f"'{names[label]}' here and '{others[label]}' there."
        )
    similar = {_letters(name): name for name in theirs}
    renamed = [
        f" '{name}' is called '{similar[_letters(name)]}' there."
        for name in mine
        if _letters(name) in similar
    ]
    return (
        f"The class names differ. {place}: {len(names)} classes, {some(mine, 20)} only here; "
        f"{source}: {len(others)} classes, {some(theirs, 20)} only there.{''.join(renamed)}"
    )
