"""Checks of arguments, in one line each and in one wording, and tables of checks of data.

Every check of an argument raises :class:`~hypvision.io.errors.ArgumentError`, which is a
``ValueError`` too.

>>> at_least(1, depth=2, branching=3)
>>> one_of(("mean", "sum"), reduction="max")
Traceback (most recent call last):
hypvision.io.errors.ArgumentError: reduction must be one of 'mean', 'sum', got 'max'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

from hypvision.io.errors import ArgumentError, HypvisionError, did_you_mean


def refuse(*checks: tuple[object, str]) -> None:
    """Walk over a table of checks, each a truth that must not be and the sentence about it: raise
    a HypvisionError with the first sentence whose truth holds.

    >>> refuse((False, "a.png has no height."), (True, "a.png has no width."))
    Traceback (most recent call last):
    hypvision.io.errors.HypvisionError: a.png has no width.
    """
    for wrong, sentence in checks:
        if wrong:
            raise HypvisionError(sentence)


def ensure(right: object, sentence: str) -> None:
    """Raise a HypvisionError with the sentence unless something is right.

    >>> ensure([], "'names.txt' lists no classes.")
    Traceback (most recent call last):
    hypvision.io.errors.HypvisionError: 'names.txt' lists no classes.
    """
    refuse((not right, sentence))


def one_of(known: Iterable[object], **values: object) -> None:
    """Each value must be one of the known ones; the message lists them and offers the most similar
    name."""
    known = list(known)
    for name, value in values.items():
        if value not in known:
            names = [option for option in known if isinstance(option, str)]
            hint = did_you_mean(value, names, 1, cutoff=0.7) if isinstance(value, str) else ""
            raise ArgumentError(
                f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.{hint}"
            )


def at_least(low: float, integer: bool = False, **values: object) -> None:
    """Each value must be a finite number >= ``low``, and an integer if ``integer``."""
    _check(f"of at least {low:g}", lambda value: value >= low, integer, values)


def more_than(low: float, **values: object) -> None:
    """Each value must be a finite number > ``low``."""
    _check(f"above {low:g}", lambda value: value > low, False, values)


def between(low: float, high: float, integer: bool = False, **values: object) -> None:
    """Each value must be a number from ``low`` to ``high``, both included, and an integer if
    ``integer``."""
    _check(f"from {low:g} to {high:g}", lambda value: low <= value <= high, integer, values)


def depths(**values: object) -> None:
    """Numbers of layers, or of those of each stage, must be at most 1000; more take hours to
    build."""
    for name, value in values.items():
        for number in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(number, Real) and not number <= 1000:
                raise ArgumentError(
                    f"{name} must be at most 1000, because building more takes hours, got "
                    f"{value!r}."
                )


def _check(
    range_: str, inside: Callable[[Any], bool], integer: bool, values: dict[str, Any]
) -> None:
    kind, text = (Integral, "an integer") if integer else (Real, "a finite number")
    for name, value in values.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, kind)
            or not math.isfinite(value)
            or not inside(value)
        ):
            raise ArgumentError(f"{name} must be {text} {range_}, got {value!r}.")


def whole_number(text: str) -> int | None:
    """The number that a text of digits says; None: it is another text, or has more than 18 digits
    (Python refuses those of some thousand)."""
    return int(text) if text.isdecimal() and len(text) < 19 else None
