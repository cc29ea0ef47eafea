"""Files that are equal in two parts of the data: a training image in the validation makes its
results too good."""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any

from hypvision.data.usage import leaves
from hypvision.io.types import StrPath

_HEAD = 2**16  # bytes that tell nearly all files of one size apart

_File = tuple[str, str]  # part and path


def paths_of(dataset: Any) -> Iterator[str]:
    """The files of a data set, and of those inside wrappers."""

    def known(inner: Any) -> bool:
        return any(hasattr(inner, name) for name in ("paths", "name", "get_data_info"))

    for leaf in leaves(dataset, known):
        if hasattr(leaf, "paths"):
            yield from map(str, leaf.paths)
            continue
        for index in range(len(leaf)):
            info = leaf.name(index) if hasattr(leaf, "name") else leaf.get_data_info(index)
            yield str(info.get("img_path", "") if isinstance(info, dict) else info)


def twins(
    parts: Mapping[str, Iterable[StrPath]], most: float = float("inf")
) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The pairs of equal files for each pair of parts that has some: files of equal size, whose
    beginnings have equal sums, are compared byte by byte.

    Args:
        parts: their files by name; what is not a file does not count.
        most: files that may be read; if there are more of equal size, none is.
    """
    files = [(part, path) for part, paths in parts.items() for path in dict.fromkeys(paths)]
    groups = _groups([[(part, str(path)) for part, path in files]], os.path.getsize)
    if sum(map(len, groups)) > most:
        return {}
    found: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for group in _groups(groups, _sum):
        for (part, path), (other, twin) in combinations(group, 2):
            if part != other and filecmp.cmp(path, twin, shallow=False):
                found[part, other].append((path, twin))
    return dict(found)


def _groups(groups: Iterable[list[_File]], key: Callable[[str], Any]) -> list[list[_File]]:
    """The files of each group that have equal keys; those of several parts."""
    found = []
    for group in groups:
        equal: dict[Any, list[_File]] = defaultdict(list)
        for part, path in group:
            with suppress(OSError):
                equal[key(path)].append((part, path))
        equal.pop(0, None)  # empty files
        found += [each for each in equal.values() if len({part for part, _ in each}) > 1]
    return found


def _sum(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(_HEAD)).digest()


def note_of(part: str, other: str, pairs: list[tuple[str, str]]) -> str:
    """The sentence about the equal files of two parts."""
    path, twin = pairs[0]
    count = len({pair[1] for pair in pairs})
    return (
        f"{other}: {count} files are equal to files of {part}, such as '{twin}' and '{path}'. "
        "Measured on images of the training, a result is too good: take them out of one part."
    )
