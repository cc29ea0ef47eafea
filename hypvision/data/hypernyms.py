"""Chains of texts for the user's own captions, from a table of words and their broader terms
(hypernyms).

>>> # word,broader: "ramen,noodle dish", "udon,noodle dish", "noodle dish,food", ...
>>> terms = read_terms("words.csv")
>>> build_chains([("a bowl of ramen with egg", "1.jpg")], terms, levels=4)[0].texts
('food', 'noodle dish', 'ramen', 'a bowl of ramen with egg')

WordNet's nouns are read from a folder with ``nouns.tsv`` (wnid, synset, lemmas) and ``edges.tsv``
(child, parent).
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hypvision.io import HypvisionError, Plain, StrPath, ensure, whole_number
from hypvision.io.files import read_lines
from hypvision.io.records import read_table

from .chains import Chain

_LONGEST = 3  # words in the longest term that captions are searched for
_SHORTEST = 3  # letters of the shortest term: WordNet has "a" and "in", as units of measurement
_MEASURES = {"basket", "bowl", "box", "bunch", "couple", "cup", "flock", "glass", "group", "herd",
"image", "kind",
             "lot", "pair", "photo", "picture", "piece", "pile", "plate", "row", "set", "slice",
             "type"}  # fmt: skip
_TABS: Plain = dict(delimiter="\t", quoting=csv.QUOTE_NONE)  # for WordNet's tables


class _Term(NamedTuple):
    word: str
    broader: str


class _Edge(NamedTuple):
    child: str
    parent: str


class _Noun(NamedTuple):
    wnid: str
    synset: str = ""
    lemmas: str = ""


class _Caption(NamedTuple):
    image: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Terms:
    """A hierarchy of terms: a tree of nodes, with the words that name them."""

    names: dict[str, str]  # from the id of a node to its name
    # from a node's id to that of the node above it, the first if there are several; nodes at the
    # top have no entry
    broader: dict[str, str]
    # from a word to the id of its node; for a word with several meanings, of the most common one
    meaning: dict[str, str]
    top: int = 0  # how many nodes from the top chains omit, because they are too general

    @cached_property
    def _children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = defaultdict(list)
        for child, parent in self.broader.items():
            children[parent].append(child)
        return children

    def path(self, node: str) -> list[str]:
        """Return the ids of the nodes from the top to ``node``; raise an error if they form a
        cycle."""
        path = [node]
        while (above := self.broader.get(path[-1])) is not None:
            if above in path:
                raise HypvisionError(
                    f"The broader terms of '{self.names[node]}' form a circle through "
                    f"'{self.names[above]}'. Remove one of its rows from the table."
                )
            path.append(above)
        return path[::-1]

    def siblings(self, path: Sequence[str]) -> list[str]:
        """Return the siblings of the last node of a path from the top: the other children of the
        nearest node above it that has other children; without such a node, the other nodes at the
        top."""
        for below, above in zip(path[::-1], path[-2::-1]):
            others = [child for child in self._children[above] if child != below]
            if others:
                return others
        tops = {node for node in self.names if node not in self.broader}
        return sorted(tops - {path[0]})


def read_terms(path: StrPath) -> Terms:
    """Read a hierarchy of terms: a csv with the columns ``word,broader``, or the folder of a
    WordNet export."""
    path = Path(path).expanduser()
    broader: dict[str, str] = {}
    if path.is_dir():
        names, meaning = _nouns(path / "nouns.tsv")
        for line, (child, parent) in read_table(_Edge, path / "edges.tsv", **_TABS):
            child = child.strip()
            parent = parent.strip()
            if child not in names or parent not in names:
                raise HypvisionError(
                    f"Line {line} of '{path / 'edges.tsv'}' names a node that nouns.tsv does not "
                    "have. Take intact copies of both."
                )
            broader.setdefault(child, parent)
        # Chains omit WordNet's four most general nodes: entity, physical entity, object, whole.
        return Terms(names, broader, meaning, top=4)
    for line, row in read_table(_Term, path):
        word = row.word.strip()
        above = row.broader.strip()
        if not word or not above:
            raise HypvisionError(
                f"Line {line} of '{path}' has blanks in place of a word or its broader term. "
                "Fill in both."
            )
        broader.setdefault(word, above)
    names = {word: word for word in (*broader, *broader.values())}
    return Terms(names, broader, {word.lower(): word for word in names})


def _nouns(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of WordNet's nouns by node id, and the node of each word's most common
    meaning."""
    names: dict[str, str] = {}
    senses: dict[str, tuple[int, str]] = {}
    for _, (node, synset, lemmas) in read_table(_Noun, path, **_TABS):
        words = [word.strip().replace("_", " ") for word in lemmas.split("|") if word.strip()] or [
            node.strip()
        ]
        node = node.strip()
        synset = synset.strip()
        names[node] = words[0]
        for word in words:
            # The synset bank.n.02 is the second sense of "bank"; which sense it is of its other
            # lemmas is unknown, so it ranks last for them.
            own, _, sense = synset.partition(".n.")
            number = whole_number(sense) if own == word.lower().replace(" ", "_") else None
            rank = 99 if number is None else number
            if rank < senses.get(word.lower(), (100, ""))[0]:
                senses[word.lower()] = (rank, node)
    return names, {word: node for word, (_, node) in senses.items()}


def _term_in(caption: str, terms: Terms) -> tuple[str, str, str] | None:
    """Return the main term of a caption: as it is written there, in its dictionary form, and its
    node; None if the caption has no known term.

    The main term is the last one of the first group of terms ("bird" in "a blue bird on a branch"),
    or the thing that a measure refers to ("ramen" in "a bowl of ramen").
    """
    words = re.findall(r"[\w'-]+", caption)
    found = None
    place = 0
    while place < len(words):
        for size in range(_LONGEST, 0, -1):
            written = " ".join(words[place : place + size])
            term = _known(written, terms)
            if term is not None:
                found = (written, *term)
                place = place + size
                break
        else:
            if found and not (words[place] == "of" and found[1] in _MEASURES):
                break
            place += 1
    return found


def _known(written: str, terms: Terms) -> tuple[str, str] | None:
    low = written.lower()
    if len(low) < _SHORTEST or low.endswith("ing"):
        return None
    forms = (low, low.removesuffix("s"), low.removesuffix("es"))
    return next(((form, terms.meaning[form]) for form in forms if form in terms.meaning), None)


def _chosen(path: Sequence[str], count: int, top: int) -> list[int] | None:
    """Return the positions of ``count`` evenly spread nodes of a path, including the last; None if
    the path is too short. The first ``top`` nodes are used only if too few remain without them."""
    first = min(top, max(0, len(path) - count))
    if len(path) - first < count:
        return None
    return np.linspace(first, len(path) - 1, count).round().astype(int).tolist()


def _build(
    caption: str, terms: Terms, levels: int, rng: np.random.Generator
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the texts of a chain (broader terms, the term, the caption) and a negative for each
    text; None if the caption has no term with enough broader ones, or if a level has no sibling."""
    term = _term_in(caption, terms)
    if term is None:
        return None
    written, word, node = term
    path = terms.path(node)
    places = _chosen(path, levels - 1, terms.top)
    if places is None:
        return None
    texts = (*(terms.names[path[place]] for place in places[:-1]), word, caption)
    if len(set(texts)) < levels:
        return None
    negatives: list[str] = []
    for place in places:
        others = [
            terms.names[other]
            for other in terms.siblings(path[: place + 1])
            if terms.names[other] not in texts
        ]
        if not others:
            return None
        negatives.append(others[int(rng.integers(len(others)))])
    return texts, (
        *negatives,
        re.sub(rf"\b{re.escape(written)}\b", lambda _: negatives[-1], caption),
    )


def read_captions(path: StrPath) -> list[tuple[str, str | None]]:
    """Return pairs of a caption and its image (or None): from a csv with the columns
    ``image,caption``, or from a text file with one caption a line."""
    path = Path(path).expanduser()
    if path.suffix.lower() == ".csv":
        rows = (row for _, row in read_table(_Caption, path))
        found: list[tuple[str, str | None]] = [
            (row.caption.strip(), row.image.strip() or None) for row in rows if row.caption.strip()
        ]
    else:
        found = [(line, None) for line in read_lines(path, "the captions")]
    ensure(
        found,
        f"There are no captions in '{path}'. Expected: a csv with the columns image and "
        "caption, or a text file with one caption a line.",
    )
    return found


def build_chains(
    captions: Sequence[tuple[str, str | None]], terms: Terms, levels: int = 4, seed: int = 0
) -> list[Chain]:
    """Return chains of ``levels`` texts with negatives, for those ``captions`` (pairs of caption
    and image) that have a term with enough broader ones. The texts are broader terms, evenly spread
    on the way from the top, the term and the caption. The negative of a term is a sibling of it,
    and the negative of the caption is the caption with the term's sibling in the term's place."""
    ensure(
        levels >= 3,
        f"A chain of a caption has at least 3 levels (broader term, term, caption), got {levels}.",
    )
    rng = np.random.default_rng(seed)
    built = [(_build(caption, terms, levels, rng), image) for caption, image in captions]
    found = [Chain(chain[0], chain[1], image) for chain, image in built if chain is not None]
    ensure(
        found,
        f"None of the {len(captions)} captions has a term with {levels - 2} broader ones in "
        "the table. Give fewer levels or more terms.",
    )
    return found
