"""The templates and the class words that a CLIP was trained with, stored in the ``meta`` of its
checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hypvision.io import Values
from hypvision.io.records import is_text

from .records import is_template

KEY = "language"
_MOST = 100_000  # limit for the number of texts, each of which would be encoded


class Language(NamedTuple):
    """The templates and words of a CLIP; both empty if they are not known."""

    templates: tuple[str, ...] = ()
    """Templates: sentences with one ``{}`` for a class name."""
    words: tuple[str, ...] = ()
    """Class names that the CLIP was trained with."""


def written(found: Language) -> dict[str, list[str]]:
    """Return the language as plain values, which a checkpoint stores."""
    return {name: list(value) for name, value in found._asdict().items()}


def language_of(checkpoint: Values) -> Language:
    """Return the language in the ``meta`` of a checkpoint; an empty one if the checkpoint has none,
    or values of another form."""
    meta = checkpoint.get("meta")
    given = meta.get(KEY) if isinstance(meta, Mapping) else None
    if not isinstance(given, Mapping):
        return Language()
    templates, words = (_texts(given.get(name)) for name in Language._fields)
    if not all(map(is_template, templates)):
        return Language(words=words)
    return Language(templates, words)


def _texts(given: Any) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)) or len(given) > _MOST:
        return ()
    if not all(isinstance(text, str) and is_text(text) for text in given):
        return ()
    return tuple(given)
