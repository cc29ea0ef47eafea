"""Transitive closures of hierarchies: files of pairs of a name and the name of one of its
ancestors.

The two usual forms are read, plain or as .gz, UTF-8::

    id1,id2,weight             csv with this header, as of Nickel and Kiela's code; weights ignored
    dog.n.01<TAB>mammal.n.01   two columns without a header, as of gensim
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hypvision.io.errors import HypvisionError
from hypvision.io.files import MAX_BYTES, read_text

_FORMS = (
    "csv with the header id1,id2[,weight], or two columns with a tab between them; first the name, "
    "then its ancestor"
)


class Closure(NamedTuple):
    """Names and their ancestors."""

    names: list[str]  # (N,), in alphabetical order
    # int64 (P, 2), rows of ``names``: a name and one of its ancestors, each pair once, in order
    pairs: np.ndarray

    def ancestors(self) -> list[set[int]]:
        """The ancestors of each name."""
        found: list[set[int]] = [set() for _ in self.names]
        for below, above in self.pairs.tolist():
            found[below].add(above)
        return found

    def parents(self) -> np.ndarray:
        """The pairs ``(E, 2)`` without an ancestor between them."""
        ancestors = self.ancestors()
        edges = []
        for below, above in self.pairs.tolist():
            if not any(above in ancestors[between] for between in ancestors[below]):
                edges.append((below, above))
        return np.array(edges, dtype=np.int64).reshape(-1, 2)


def closure_of(chains: Iterable[Sequence[str]], most: float = math.inf) -> Closure:
    """The closure of chains of names, each from general to specific; ``most`` as of
    :func:`read_closure`."""
    chains = list(chains)
    _check_count(sum(len(chain) * (len(chain) - 1) // 2 for chain in chains), "The hierarchy", most)
    pairs = {
        (name, above)
        for chain in chains
        for place, name in enumerate(chain)
        for above in chain[:place]
    }
    pairs = {(name, above) for name, above in pairs if name != above}
    if not pairs:
        raise HypvisionError(
            "The hierarchy has no name below another. Give chains such as animal > mammal > dog."
        )
    return _closure(pairs, "The hierarchy", True, most)


def _check_count(pairs: int, source: str, most: float) -> None:
    if pairs > most:
        raise HypvisionError(
            f"{source} has more than {most:,} pairs of a name and its ancestor. Give a part of it."
        )


def read_closure(
    path: str | Path, transitive: bool = False, limit: int = MAX_BYTES, most: float = math.inf
) -> Closure:
    """Read the pairs of a file. Repeated pairs and a name as its own ancestor do not count.

    Args:
        path: the file.
        transitive: also take the ancestors of ancestors, for a file of the parents alone.
        limit: of its bytes, also of the unpacked ones.
        most: pairs that there may be, those of ancestors of ancestors too.
    """
    pairs = {(below, above) for below, above in _rows(path, limit) if below != above}
    if not pairs:
        raise HypvisionError(
            f"'{path}' has no pair of a name and its ancestor. Expected: {_FORMS}."
        )
    return _closure(pairs, f"'{path}'", transitive, most)


def _closure(pairs: set[tuple[str, str]], source: str, transitive: bool, most: float) -> Closure:
    names = sorted({name for pair in pairs for name in pair})
    numbers = {name: number for number, name in enumerate(names)}
    above: list[set[int]] = [set() for _ in names]
    for name, ancestor in pairs:
        above[numbers[name]].add(numbers[ancestor])
    count = 0
    try:
        for row in TopologicalSorter(dict(enumerate(above))).static_order():  # ancestors first
            if transitive:
                above[row] |= set().union(*(above[ancestor] for ancestor in above[row]))
            count += len(above[row])
            _check_count(count, source, most)
    except CycleError as error:
        circle = " > ".join(names[row] for row in error.args[1])
        raise HypvisionError(
            f"{source} makes names their own ancestors, in a circle: {circle:.300}. A hierarchy "
            "has none: remove the pairs that close it."
        ) from None
    found = [
        (row, ancestor) for row, ancestors in enumerate(above) for ancestor in sorted(ancestors)
    ]
    return Closure(names, np.array(found, dtype=np.int64))


def _rows(path: str | Path, limit: int) -> list[tuple[str, str]]:
    try:
        text = read_text(path, limit)
        tab = "\t" in text.partition("\n")[0]
        rows = [
            row
            for row in csv.reader(io.StringIO(text, newline=""), "excel-tab" if tab else "excel")
            if row
        ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise HypvisionError(
            f"'{path}' cannot be read: {error}. Expected: UTF-8, {_FORMS}."
        ) from error
    if rows and [cell.strip().lower() for cell in rows[0][:2]] == ["id1", "id2"]:
        rows = rows[1:]
    elif not tab:
        raise HypvisionError(
            f"'{path}' begins with '{text.partition(chr(10))[0]:.80}'. Expected: {_FORMS}."
        )
    pairs = []
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row[:2]]
        if len(cells) < 2 or not all(cells):
            raise HypvisionError(
                f"Pair {number} of '{path}' lacks a name: '{','.join(row):.80}'. Expected: "
                f"{_FORMS}."
            )
        pairs.append((cells[0], cells[1]))
    return pairs
