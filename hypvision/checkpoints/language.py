"""The sentences and the class words that a CLIP was trained with, in the ``meta`` of its
checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hypvision.checkpoints.records import is_template
from hypvision.io.records import is_text

KEY = "language"
_MOST = 100_000  # texts, each of which would be encoded


class Language(NamedTuple):
    """What a CLIP knows words by; empty where nothing says so."""

    templates: tuple[str, ...] = ()
    """Sentences with one ``{}`` for a class name."""
    words: tuple[str, ...] = ()
    """Class names."""


def written(found: Language) -> dict[str, list[str]]:
    """What a checkpoint holds of it."""
    return {name: list(value) for name, value in found._asdict().items()}


def language_of(checkpoint: Mapping[str, Any]) -> Language:
    """What a checkpoint holds under ``meta``; empty where it holds nothing, or something else."""
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
