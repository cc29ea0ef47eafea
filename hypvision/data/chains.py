"""Chains of texts from general to specific: read, checked, written, and derived from scenes or
emoji.

The files have the format of HierarCaps (Alper and Averbuch-Elor, ECCV 2024), which states no
licence and does not come with this package: csv or csv.gz, with texts joined by ``=>``::

    positive,negative[,image_url]       a chain, and for each of its texts one that contradicts it
    id,captions[,image_url]             a chain of the image ``image_url``, or else of ``id``
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hypvision.io import HypvisionError, StrPath, ensure, refuse
from hypvision.io.files import csv_text, replacing
from hypvision.io.images import SUFFIXES
from hypvision.io.records import read_table

SEPARATOR = "=>"
_SCHEMAS = "'positive,negative[,image_url]' or 'id,captions[,image_url]'"


@dataclass(frozen=True)
class Chain:
    """A chain of texts from general to specific, and the image that it describes."""

    texts: tuple[str, ...]  # at least two texts, from general to specific
    # for each text one that contradicts it but fits the text one level above; () if there are none
    negatives: tuple[str, ...] = ()
    image: str | None = None  # the image's address, file name or id; None: the chain has no image


class _Row(NamedTuple):
    """A row of a csv file in either of the two formats."""

    positive: str = ""
    negative: str = ""
    captions: str = ""
    id: str = ""
    image_url: str = ""


def read_chains(path: StrPath) -> list[Chain]:
    """Read the chains of a file, which must all have equally many texts.

    Texts are cut at ``=>`` and stripped of spaces at both ends; spaces within them stay.
    """
    found: list[Chain] = []
    for line, row in read_table(_Row, path, advice=f"Expected: {_SCHEMAS}.", strict=True):
        where = f"Line {line} of '{path}'"
        given = row.captions or row.positive
        ensure(given, f"{where} has neither 'captions' nor 'positive'. Expected: {_SCHEMAS}.")
        texts = _split(given, where)
        negatives = _split(row.negative, where) if row.negative or not row.captions else ()
        found.append(Chain(texts, negatives, row.image_url or row.id or None))
        length = len(found[0].texts)
        refuse(
            (
                len(negatives) not in (0, len(texts)),
                f"{where} has {len(texts)} texts but {len(negatives)} negatives. Give one negative "
                "for each text.",
            ),
            (
                len(texts) != length,
                f"{where} has a chain of {len(texts)} texts, but the chains before have {length}. "
                "Give all chains equally many texts.",
            ),
        )
    columns = f"a csv with the columns {_SCHEMAS}."
    ensure(found, f"The file of chains '{path}' has no rows. Expected: {columns}")
    return found


def _split(chain: str, where: str) -> tuple[str, ...]:
    texts = tuple(text.strip() for text in chain.split(SEPARATOR))
    if "" in texts:
        level = texts.index("") + 1
        raise HypvisionError(
            f"{where}: level {level} of '{chain.strip():.80}' is empty. Expected: {_SCHEMAS}."
        )
    ensure(
        len(texts) >= 2,
        f"{where}: '{chain:.80}' is not a chain. Expected: at least two texts joined by "
        f"'{SEPARATOR}'.",
    )
    return texts


def write_chains(path: StrPath, chains: Sequence[Chain]) -> None:
    """Write chains to a csv file, in the format with negatives if they have negatives, else in the
    other; a name that ends in .gz gives a compressed file.

    Raises:
        HypvisionError: some chains have negatives and others have none.
    """
    given = sum(bool(chain.negatives) for chain in chains)
    ensure(
        given in (0, len(chains)),
        f"{given} of {len(chains)} chains have negatives, but a file of chains has them for all or "
        "for none. Add the missing ones with with_negatives(chains), or leave all negatives out.",
    )
    rows: list[list] = [["positive", "negative", "image_url"] if given else ["id", "captions"]]
    for number, chain in enumerate(chains):
        image = chain.image if chain.image is not None else "" if given else number
        texts = _join(chain.texts)
        rows.append([texts, _join(chain.negatives), image] if given else [image, texts])
    data = csv_text(rows).encode("utf-8")
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def _join(texts: Sequence[str]) -> str:
    return f" {SEPARATOR} ".join(texts)


def with_negatives(chains: Sequence[Chain], seed: int = 0) -> list[Chain]:
    """Return the chains, with negatives drawn from siblings for those that have no negatives of
    their own.

    The negative of a text is the text at the same level of another chain, drawn from the chains
    that share the most levels above it. So the negative fits the text one level above, if another
    chain shares that text, and differs from the text itself.
    """
    rng = np.random.default_rng(seed)
    depth = len(chains[0].texts)
    below: list[dict[tuple[str, ...], dict[str, None]]] = [defaultdict(dict) for _ in range(depth)]
    for chain in chains:
        for level in range(depth):
            for shared in range(level + 1):
                # The keys of the dict are used as an ordered set, since a text that occurs in many
                # chains must not be drawn more often.
                below[level][chain.texts[:shared]][chain.texts[level]] = None
    texts = [{above: list(found) for above, found in level.items()} for level in below]
    return [
        chain
        if chain.negatives
        else replace(
            chain, negatives=tuple(_sibling(rng, texts[k], chain.texts, k) for k in range(depth))
        )
        for chain in chains
    ]


def _sibling(
    rng: np.random.Generator,
    texts: dict[tuple[str, ...], list[str]],
    chain: tuple[str, ...],
    level: int,
) -> str:
    for shared in range(level, -1, -1):
        others = [text for text in texts[chain[:shared]] if text not in chain]
        if others:
            return others[int(rng.integers(len(others)))]
    raise HypvisionError(
        f"All chains have '{chain[level]}' at level {level + 1}, so no text of another chain can "
        "be its negative. Give chains that differ at this level."
    )


def emoji_chains(root: StrPath, split: str, seed: int = 0) -> list[Chain]:
    """Return a chain such as ``animal or plant => mammal => dog face => dog face: pet, puppy`` for
    each emoji of a split, with negatives from siblings in the same split; the last text has six
    keywords at most. Emoji are left out if two of their texts are equal, or if they have no keyword
    beyond the words of their name."""
    from .emoji import read_emoji

    chains = []
    for item in read_emoji(root, split)[0]:
        new = [word for word in item.keywords if not _pieces(word) <= _pieces(item.name)]
        words = [word for word in new if not re.search(r"\d", word)][:6]
        texts = (item.group, item.classname, item.name, f"{item.name}: {', '.join(words)}")
        if words and len(set(texts)) == len(texts):
            chains.append(Chain(texts, image=item.id))
    ensure(
        chains,
        f"No emoji of the split '{split}' in '{root}' has keywords beyond its name, of which the "
        "last text of a chain is made. Give another split or folder.",
    )
    return with_negatives(chains, seed)


def _pieces(words: str) -> set[str]:
    return set(re.split(r"\W+", words.lower()))


def find_image_files(images: Sequence[str], folder: StrPath) -> dict[str, Path]:
    """Return the paths of the chains' images in a folder, by the last part of an image's address,
    or by its id with any image suffix."""
    folder = Path(folder).expanduser()
    ensure(folder.is_dir(), f"There is no folder of images '{folder}'. Correct its path.")
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in SUFFIXES]
    places = {path.stem: path for path in paths} | {path.name: path for path in paths}
    found = {}
    missing = []
    for image in dict.fromkeys(images):
        name = image.rpartition("/")[2]
        # an id may contain a dot, so that what follows the dot is no file suffix
        bare = Path(name).stem if Path(name).suffix.lower() in SUFFIXES else name
        path = places.get(name) or places.get(bare)
        if path is None:
            missing.append(image)
        else:
            found[image] = path
    if missing:
        raise HypvisionError(
            f"{len(missing)} of {len(missing) + len(found)} images of the chains have no file in "
            f"'{folder}', the first is '{missing[0]}' of row {list(images).index(missing[0]) + 1}. "
            "Put the files there, or take out these chains."
        )
    return found
