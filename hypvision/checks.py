"""Checks at the border, one line each and in one wording: arguments, settings, files and folders.

Every check raises :class:`~hypvision.errors.ArgumentError`, which is a ``ValueError`` too.

>>> at_least(1, depth=2, branching=3)
>>> one_of(("mean", "sum"), reduction="max")
Traceback (most recent call last):
hypvision.errors.ArgumentError: reduction must be 'mean' or 'sum', got 'max'.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import TypeVar

from hypvision.errors import ArgumentError, did_you_mean

T = TypeVar("T")


def check(condition: object, message: str) -> None:
    """Raise ``message`` unless the condition holds. For conditions that the other functions do not name."""
    if not condition:
        raise ArgumentError(message)


def given(value: T | None, message: str) -> T:
    """The value, which is not None; ``message`` says what to do where it is."""
    if value is None:
        raise ArgumentError(message)
    return value


def one_of(known: Iterable[object], **values: object) -> None:
    """Each value must be one of the known ones; the message lists them and offers the most similar."""
    known = list(known)
    for name, value in values.items():
        if value not in known:
            *most, last = map(repr, known)
            listed = f"{', '.join(most)} or {last}" if most else last
            close = did_you_mean(value, [k for k in known if isinstance(k, str)]) if isinstance(value, str) else ""
            raise ArgumentError(f"{name} must be {listed}, got {value!r}.{close if len(known) > 4 else ''}")


def _numbers(expected: str, inside: object, whole: bool, values: dict[str, object]) -> None:
    for name, value in values.items():
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not number or (whole and value != int(value)) or not inside(value):  # type: ignore[operator, call-overload]
            kind = "a whole number" if whole else "a finite number"
            raise ArgumentError(f"{name} must be {kind} {expected}, got {value!r}.")


def at_least(low: float, whole: bool = False, **values: object) -> None:
    """Each value must be a finite number >= ``low``, and a whole one with ``whole``."""
    _numbers(f">= {low}", lambda value: value >= low, whole, values)


def above(low: float, whole: bool = False, **values: object) -> None:
    """Each value must be a finite number > ``low``, and a whole one with ``whole``."""
    _numbers(f"> {low}", lambda value: value > low, whole, values)


def between(low: float, high: float, whole: bool = False, **values: object) -> None:
    """Each value must be a number from ``low`` to ``high``, both included, and a whole one with ``whole``."""
    _numbers(f"from {low} to {high}", lambda value: low <= value <= high, whole, values)


def folder(path: str | os.PathLike[str], what: str, remedy: str) -> Path:
    """The path, which must be a folder. ``what`` is its part in the sentence ("of images"); ``remedy`` ends it."""
    if not Path(path).is_dir():
        raise ArgumentError(f"There is no folder {what} at '{path}'. {remedy}")
    return Path(path)


def file(path: str | os.PathLike[str], what: str, remedy: str) -> Path:
    """The path, which must be a file. ``what`` names its content ("the annotations"); ``remedy`` ends the message."""
    if not Path(path).is_file():
        raise ArgumentError(f"There is no file with {what} at '{path}'. {remedy}")
    return Path(path)
