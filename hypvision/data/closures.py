"""Transitive closures of hierarchies, read from files with pairs of a name and the name of one of
its ancestors.

Both usual forms of such files are read, plain or as .gz, in UTF-8::

    id1,id2,weight             csv with this header, as of Nickel and Kiela's code; weights ignored
    dog.n.01<TAB>mammal.n.01   two columns without a header, as of gensim
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from hypvision.io import HypvisionError, StrPath, ensure, explaining
from hypvision.io.files import MAX_BYTES, read_text

_FORMS = (
    "csv with the header id1,id2[,weight], or two columns with a tab between them; first the name, "
    "then its ancestor"
)


class Closure(NamedTuple):
    """Names, and which of them are ancestors of which: the transitive closure of a hierarchy."""

    names: list[str]  # the N names in alphabetical order
    # int64 (P, 2): the indices in ``names`` of a name and of one of its ancestors, each pair once,
    # sorted
    pairs: np.ndarray

    def ancestors(self) -> list[set[int]]:
        """Return for each name the set of the indices of its ancestors."""
        found: list[set[int]] = [set() for _ in self.names]
        for below, above in self.pairs.tolist():
            found[below].add(above)
        return found

    def parents(self) -> np.ndarray:
        """Return the pairs ``(E, 2)`` of a name and its parent: those with no other ancestor
        between the two."""
        ancestors = self.ancestors()
        edges = []
        for below, above in self.pairs.tolist():
            if not any(above in ancestors[between] for between in ancestors[below]):
                edges.append((below, above))
        return np.array(edges, dtype=np.int64).reshape(-1, 2)


def closure_of(chains: Iterable[Sequence[str]], most: float = math.inf) -> Closure:
    """Return the closure of chains of names, each from general to specific; ``most`` limits the
    number of pairs as in :func:`read_closure`."""
    chains = list(chains)
    _check_count(sum(len(each) * (len(each) - 1) // 2 for each in chains), "The hierarchy", most)
    pairs = {
        (name, above)
        for each in chains
        for place, name in enumerate(each)
        for above in each[:place]
        if name != above
    }
    text = "The hierarchy has no name below another. Give chains such as animal > mammal > dog."
    ensure(pairs, text)
    return _closure(pairs, "The hierarchy", True, most)


def _check_count(pairs: int, source: str, most: float) -> None:
    ensure(
        pairs <= most,
        f"{source} has more than {most:,} pairs of a name and its ancestor. Use a part of it.",
    )


def read_closure(
    path: StrPath, transitive: bool = False, limit: int = MAX_BYTES, most: float = math.inf
) -> Closure:
    """Read the pairs of a file. Repeated pairs, and pairs of a name with itself, do not count.

    Args:
        path: path of the file.
        transitive: whether to add the ancestors of ancestors, for a file that names only the
            parents.
        limit: largest size of the file in bytes, also when it is unpacked.
        most: largest number of pairs, including those that ``transitive`` adds.
    """
    pairs = {(below, above) for below, above in _rows(path, limit) if below != above}
    ensure(pairs, f"'{path}' has no pair of a name and its ancestor. Expected: {_FORMS}.")
    return _closure(pairs, f"'{path}'", transitive, most)


def _closure(pairs: set[tuple[str, str]], source: str, transitive: bool, most: float) -> Closure:
    names = sorted(set(chain(*pairs)))
    numbers = {name: number for number, name in enumerate(names)}
    above: list[set[int]] = [set() for _ in names]
    for name, ancestor in pairs:
        above[numbers[name]].add(numbers[ancestor])
    count = 0
    for row in _ancestors_first(above, names, source):
        if transitive:
            above[row] |= set().union(*(above[ancestor] for ancestor in above[row]))
        count += len(above[row])
        _check_count(count, source, most)
    found = [(row, ancestor) for row, own in enumerate(above) for ancestor in sorted(own)]
    return Closure(names, np.array(found, dtype=np.int64))


def _ancestors_first(above: list[set[int]], names: list[str], source: str) -> list[int]:
    try:
        return list(TopologicalSorter(dict(enumerate(above))).static_order())
    except CycleError as error:
        circle = " > ".join(names[row] for row in error.args[1])
        raise HypvisionError(
            f"{source} makes names their own ancestors, in a circle: {circle:.300}. A hierarchy "
            "has none: remove the pairs that close it."
        ) from None


def _rows(path: StrPath, limit: int) -> list[tuple[str, str]]:
    with explaining(
        lambda error: f"'{path}' cannot be read: {error}. Expected: UTF-8, {_FORMS}.",
        OSError,
        UnicodeDecodeError,
        csv.Error,
    ):
        text = read_text(path, limit)
        first = text.partition("\n")[0]
        kind = "excel-tab" if "\t" in first else "excel"
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), kind) if row]
    pairs: list[Any] = [tuple(cell.strip() for cell in row[:2]) for row in rows]
    if pairs and tuple(map(str.lower, pairs[0])) == ("id1", "id2"):
        del pairs[0]
    else:
        ensure("\t" in first, f"'{path}' begins with '{first:.80}'. Expected: {_FORMS}.")
    for number, pair in enumerate(pairs, 1):
        lacking = f"lacks a name: '{','.join(pair):.80}'. Expected: {_FORMS}."
        ensure(len(pair) == 2 and all(pair), f"Pair {number} of '{path}' {lacking}")
    return pairs
