"""Search for files that are equal in two parts of the data: a training image among the validation
images makes the measured results too good."""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import combinations
from typing import Any

from hypvision.io import StrPath

from .usage import leaves

_HEAD = 2**16  # bytes that are hashed of a file; they differ for nearly all files of equal size

_File = tuple[str, str]  # (name of the part of the data, path of the file)


def paths_of(dataset: Any) -> Iterator[str]:
    """Yield the paths of a data set's image files, also of data sets inside wrappers."""

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
    """Return the pairs of equal files, for each pair of parts that has any: files of equal size
    whose first bytes have equal hashes are compared byte by byte.

    Args:
        parts: the paths of each part's files, by the part's name; a path at which there is no file
            is ignored.
        most: limit on the number of files to be read; if more have equal sizes, none is read and
            nothing is returned.
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
    """Split each group into groups of files for which ``key`` of the path is equal, and return the
    groups that have files of more than one part."""
    found = []
    for group in groups:
        equal: dict[Any, list[_File]] = defaultdict(list)
        for part, path in group:
            with suppress(OSError):
                equal[key(path)].append((part, path))
        equal.pop(0, None)  # all empty files are equal, which says nothing
        found += [each for each in equal.values() if len({part for part, _ in each}) > 1]
    return found


def _sum(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(_HEAD)).digest()


def note_of(part: str, other: str, pairs: list[tuple[str, str]]) -> str:
    """Return the sentence that warns the user of the equal files of two parts."""
    path, twin = pairs[0]
    count = len({pair[1] for pair in pairs})
    return (
        f"{other}: {count} files are equal to files of {part}, such as '{twin}' and '{path}'. "
        "Results that are measured on training images are too good: take these files out of one "
        "part."
    )
