"""Check arguments in one line and with one wording, and check data by tables of conditions.

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
from os import PathLike
from pathlib import Path
from typing import Any

from .errors import ArgumentError, HypvisionError, did_you_mean
from .types import Plain

_NAME_AND_WEIGHTS = (
    "Give timm's name of the network, or the config of the training, as --model, and the file as "
    "--weights."
)
_WEIGHTS = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".safetensors")


def refuse(*checks: tuple[object, str]) -> None:
    """Raise a HypvisionError with the first sentence whose condition is true.

    >>> refuse((False, "a.png has no height."), (True, "a.png has no width."))
    Traceback (most recent call last):
    hypvision.io.errors.HypvisionError: a.png has no width.
    """
    for wrong, sentence in checks:
        if wrong:
            raise HypvisionError(sentence)


def ensure(right: object, sentence: str) -> None:
    """Raise a HypvisionError with the sentence unless ``right`` is true.

    >>> ensure([], "'names.txt' lists no classes.")
    Traceback (most recent call last):
    hypvision.io.errors.HypvisionError: 'names.txt' lists no classes.
    """
    refuse((not right, sentence))


def one_of(known: Iterable[object], **values: object) -> None:
    """Raise an error unless each value is one of the known ones; the message lists these and offers
    the most similar name."""
    known = list(known)
    for name, value in values.items():
        if value not in known:
            names = [option for option in known if isinstance(option, str)]
            hint = did_you_mean(value, names, 1, cutoff=0.7) if isinstance(value, str) else ""
            raise ArgumentError(
                f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.{hint}"
            )


def at_least(low: float, integer: bool = False, **values: object) -> None:
    """Raise an error unless each value is a finite number >= ``low``, and an integer if
    ``integer``."""
    _check(f"of at least {low:g}", lambda value: value >= low, integer, values)


def more_than(low: float, **values: object) -> None:
    """Raise an error unless each value is a finite number > ``low``."""
    _check(f"above {low:g}", lambda value: value > low, False, values)


def between(low: float, high: float, integer: bool = False, **values: object) -> None:
    """Raise an error unless each value is a number from ``low`` to ``high``, both included, and an
    integer if ``integer``."""
    _check(f"from {low:g} to {high:g}", lambda value: low <= value <= high, integer, values)


def depths(**values: object) -> None:
    """Raise an error unless each number of layers, or each in a list for the stages, is at most
    1000; larger networks take hours to build."""
    for name, value in values.items():
        for number in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(number, Real) and not number <= 1000:
                raise ArgumentError(
                    f"{name} must be at most 1000, because building more takes hours, got "
                    f"{value!r}."
                )


def _check(range_: str, inside: Callable[[Any], bool], integer: bool, values: Plain) -> None:
    kind, text = (Integral, "an integer") if integer else (Real, "a finite number")
    for name, value in values.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, kind)
            or not math.isfinite(value)
            or not inside(value)
        ):
            raise ArgumentError(f"{name} must be {text} {range_}, got {value!r}.")


def name_or_path(**values: object) -> None:
    """Raise an error unless each value is a text or a path, by which models and weights are
    given."""
    for name, value in values.items():
        if isinstance(value, (str, PathLike)):
            continue
        kind = "None" if value is None else type(value).__name__
        raise ArgumentError(
            f"{name} must be a name or a path, got {kind}. Give the name of a model (of timm, or "
            "of `hypvision zoo list`) or the path of a config, and weights by the path of their "
            "file, as torch.save(network.state_dict(), PATH) writes it."
        )


def list_of_texts(**values: Any) -> None:
    """Raise an error unless each value is a sequence of texts of which there is at least one. A
    single text is refused: Python would take its letters for the texts.

    >>> list_of_texts(x="cat")
    Traceback (most recent call last):
    hypvision.io.errors.ArgumentError: x must be a list of texts, got the text 'cat'. Give ['cat'].
    """
    for name, value in values.items():
        if isinstance(value, str):
            text = f"{value:.60}"
            raise ArgumentError(
                f"{name} must be a list of texts, got the text {text!r}. Give [{text!r}]."
            )
        if not hasattr(value, "__len__"):
            raise ArgumentError(
                f"{name} must be a list of texts, got {type(value).__name__}. Give a list."
            )
        if not len(value):
            raise ArgumentError(
                f"{name} must be a list of texts, got an empty list. Give at least one."
            )
        for number, text in enumerate(value):
            if not isinstance(text, str):
                raise ArgumentError(
                    f"{name} must be a list of texts, but number {number} is {text!r:.60}. Give "
                    "each as a text."
                )


def whole_number(text: str) -> int | None:
    """Return the whole number that a text of digits gives; None for other texts and for more than
    18 digits (Python refuses numbers of some thousand digits)."""
    return int(text) if text.isdecimal() and len(text) < 19 else None


def refuse_weights(name: str, advice: str = _NAME_AND_WEIGHTS) -> None:
    """Raise an error if the name of a model is a file of weights: it does not tell its network.
    ``advice`` is what to give instead."""
    ensure(
        not (name.endswith(_WEIGHTS) and Path(name).expanduser().is_file()),
        f"'{name}' is a file of weights, which does not tell their network. {advice}",
    )
