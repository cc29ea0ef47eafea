"""Counts of the files that a data set uses, and of those that it leaves out, with the reasons.

Every data set keeps these counts in its attribute ``usage``, a :class:`Usage`; a run logs them as a
sentence, with the notes, before the first batch, and ``hypvision check`` prints the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Usage:
    """Counts of the items (images, boxes, ...) that a data set uses and that it leaves out of
    ``place``, the folder or file that it reads; ``notes`` are further sentences for the user."""

    EXAMPLES = 3  # names of items that are given as examples of each reason to leave items out

    def __init__(self, place: str | Path):
        self.place = str(place)
        self.used: Counter[str] = Counter()
        self.notes: list[str] = []
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], list[str]] = {}

    def use(self, kind: str, count: int = 1) -> None:
        """Add ``count`` used items; ``kind`` is their plural: ``"images"``, ``"boxes"``,
        ``"masks"``, ``"files"``."""
        self.used[kind] += count

    def leave_out(self, kind: str, reason: str, name: str | Path, count: int = 1) -> None:
        """Add ``count`` items that are left out for a reason, e.g. ``leave_out("boxes", "outside
        the image", "a.jpg, annotation 3")``; an item whose ``name`` is empty is counted but not
        named as an example, and nothing is added for a ``count`` of 0."""
        if not count:
            return
        self._left_out[kind, reason] += count
        examples = self._examples.setdefault((kind, reason), [])
        if str(name) and len(examples) < self.EXAMPLES:
            examples.append(str(name))

    def add(self, other: Usage) -> None:
        """Add the counts and notes of ``other``, of another folder or file of the same data set."""
        self.used.update(other.used)
        self.notes += other.notes
        self._left_out.update(other._left_out)
        for key, names in other._examples.items():
            self._examples[key] = (self._examples.get(key, []) + names)[: self.EXAMPLES]

    def left_out(self, kind: str | None = None) -> int:
        """Return the number of items that are left out, of one ``kind`` or (None) of all kinds."""
        return sum(count for (of, _), count in self._left_out.items() if kind in (None, of))

    def rows(self) -> list[tuple[str, int, str, str]]:
        """Return rows of (kind, number, reason, examples); the used items, with the reason "used",
        come before those that are left out."""
        found = [(kind, count, "used", "") for kind, count in self.used.items()]
        for (kind, reason), count in self._left_out.items():
            names = self._examples[kind, reason]
            more = ", ..." if names and count > self.EXAMPLES else ""
            found.append((kind, count, reason, ", ".join(names) + more))
        return found

    def __str__(self) -> str:
        """Return the counts as a sentence, e.g. ``'photos/train': used 96 of 98 images. Left out: 2
        images (suffix .xcf: a.xcf, b.xcf).``"""
        kinds = dict.fromkeys([*self.used, *(kind for kind, _ in self._left_out)])
        parts = [
            f"{self.used[kind]} of {self.used[kind] + self.left_out(kind)} {kind}" for kind in kinds
        ]
        text = f"'{self.place}': used {', '.join(parts) or 'nothing'}."
        reasons = [
            f"{n} {kind} ({reason}{': ' * bool(names)}{names})"
            for kind, n, reason, names in self.rows()
            if reason != "used"
        ]
        return f"{text} Left out: {'; '.join(reasons)}." if reasons else text


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the names of a data set's classes; () if it has none."""
    return tuple((getattr(dataset, "metainfo", None) or {}).get("classes") or ())


def leaves(dataset: Any, kind: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield ``dataset`` if ``kind`` is true of it, else the data sets inside it of which ``kind``
    is true, through wrappers such as RepeatDataset, ConcatDataset and Subset."""
    if kind(dataset):
        yield dataset
        return
    for inner in getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]:
        if inner is not None and inner is not dataset:
            yield from leaves(inner, kind)


def usages(dataset: Any) -> Iterator[Usage]:
    """Yield the :class:`Usage` of a data set, or of each data set inside its wrappers."""
    return (
        leaf.usage
        for leaf in leaves(dataset, lambda inner: isinstance(getattr(inner, "usage", None), Usage))
    )
