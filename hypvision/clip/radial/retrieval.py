"""Further evaluations of embeddings: HyperLex, retrieval over a tree of labels, and retrieval and
zero-shot recognition at each level of chains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypvision.clip.spaces import Space
from hypvision.io import HypvisionError, Metrics, StrPath, require, require_finite
from hypvision.io.files import read_lines, why_no_file
from hypvision.io.records import read_record


class HyperLexPair(NamedTuple):
    """A rating ``score``, from 0 to 6, of how far ``specific`` is a kind of ``general``; ``part``
    is the part of speech, N or V."""

    specific: str
    general: str
    part: str
    score: float


def read_hyperlex(path: StrPath) -> list[HyperLexPair]:
    """Read the word pairs of HyperLex's own file, ``hyperlex-all.txt`` (Vulic et al., 2017), with
    lines WORD1 WORD2 POS TYPE AVG_SCORE ..."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise HypvisionError(
            f"{why_no_file(path, 'list of word pairs')} Give hyperlex-all.txt of HyperLex."
        )
    lines = read_lines(path, "HyperLex's file")
    try:
        rows = [line.split() for line in lines[1:]]
        pairs = [HyperLexPair(row[0], row[1], row[2], float(row[4])) for row in rows]
    except (IndexError, ValueError) as error:
        raise HypvisionError(
            f"'{path}' is not a file of HyperLex ({error}). Expected: a header, then WORD1 WORD2 "
            "POS TYPE AVG_SCORE ..."
        ) from error
    if not pairs:
        raise HypvisionError(f"'{path}' has no pairs of words. Take an intact copy.")
    return pairs


def hyperlex_correlation(
    pairs: Sequence[HyperLexPair], words: Mapping[str, int], embeddings: Tensor, space: Space
) -> Metrics:
    """Return Spearman's correlation of ratings with minus the exterior angle at the general word,
    over all pairs, nouns and verbs (``rho_all``, ``rho_N``, ``rho_V``), and with the difference of
    the radii, over all pairs (``rho_radius``).

    The choice of these angles is ours, as the authors' code for this number is not public.
    ``words`` gives for each word its row in ``embeddings`` ``(N, d)``.
    """
    stats = require("scipy.stats", "metric")
    require_finite(
        embeddings,
        lambda row: f"The embedding of '{next(w for w, r in words.items() if r == row)}'",
    )
    general = embeddings[[words[pair.general] for pair in pairs]]
    specific = embeddings[[words[pair.specific] for pair in pairs]]
    score = np.array([pair.score for pair in pairs])
    angle = -space.exterior_angle(general, specific).double().cpu().numpy()
    apart = (space.radius(specific) - space.radius(general)).double().cpu().numpy()
    found = {
        "rho_all": stats.spearmanr(score, angle)[0],
        "rho_radius": stats.spearmanr(score, apart)[0],
    }
    for part in ("N", "V"):
        chosen = np.array([pair.part == part for pair in pairs])
        if chosen.sum() > 2:
            found[f"rho_{part}"] = stats.spearmanr(score[chosen], angle[chosen])[0]
    return {name: float(value) for name, value in found.items()}


class LabelTree(NamedTuple):
    """A tree of labels: ``ancestors`` has for each class the nodes above it, nearest first, and
    ``names`` the name of each node that has one."""

    ancestors: dict[str, list[str]]
    names: dict[str, str]


def read_tree(path: StrPath) -> LabelTree:
    """Read a tree of labels from a json ``{"CLASS": ["ANCESTOR", ...], ...}``, or from the folder
    of BREEDS (Santurkar et al., ICLR 2021) with ``class_hierarchy.txt`` (``PARENT CHILD`` a line)
    and ``node_names.txt`` (node, tab, name). BREEDS' classes are ImageNet's WordNet ids; of the
    synonyms in a name the first is used."""
    path = Path(path).expanduser()
    if not path.is_dir():
        advice = 'A tree is a dict of lists: {"CLASS": ["ANCESTOR", ...], ...}.'
        return LabelTree(read_record(dict[str, list[str]], path, advice), {})
    parents: dict[str, list[str]] = {}
    for parent, child in _rows(path / "class_hierarchy.txt", " ", "PARENT CHILD"):
        parents.setdefault(parent, [])
        parents.setdefault(child, []).append(parent)
    names = {
        node: name.split(",")[0]
        for node, name in _rows(path / "node_names.txt", "\t", "NODE, a tab, NAME")
    }
    return LabelTree({node: _above(node, parents) for node in parents}, names)


def _rows(path: Path, separator: str, form: str) -> Iterator[list[str]]:
    for number, line in enumerate(read_lines(path, "a file of the tree", blank=True), start=1):
        row = [part.strip() for part in line.split(separator, 1)]
        if line and (len(row) != 2 or "" in row):
            raise HypvisionError(f"Line {number} of '{path}' is '{line}'. Expected: {form}.")
        if line:
            yield row


def _above(node: str, parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Return all ancestors of a node, level by level; each occurs once, so that cycles end."""
    found = dict.fromkeys([node])
    level = [node]
    while level := [above for below in level for above in parents[below] if above not in found]:
        found |= dict.fromkeys(level)
    return list(found)[1:]


def tree_recall(
    similarity: Tensor,
    labels: Sequence[int],
    lineage: Sequence[Sequence[int]],
    ks: Sequence[int] = (1, 5),
) -> Metrics:
    """Return the recall of each image's class and all of its ancestors among the names of a tree of
    labels. ``similarity`` ``(m, N)`` compares m images and N nodes, ``labels`` has the class of
    each image, and ``lineage`` for each class the numbers of its node and of the nodes above it.

    R@k is the share of them among the k names most similar to the image, averaged over images. This
    is our reading of the "BREEDS R@k" of Alper and Averbuch-Elor, whose protocol is not public: the
    numbers cannot be compared with theirs.
    """
    require_finite(similarity, lambda row: f"A similarity of image {row + 1}")
    order = similarity.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1]).expand_as(order).to(order)
    )
    found: Metrics = {}
    for k in ks:
        shares = [
            float((rank[i, list(lineage[label])] < k).double().mean())
            for i, label in enumerate(labels)
        ]
        found[f"tree_R@{k}"] = float(np.mean(shares)) if shares else math.nan
    return found


def recall_at(similarity: Tensor, matches: Tensor, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """Return for each k the share of queries with a match among the k most similar items;
    ``similarity`` and ``matches`` are ``(queries, items)``. It is NaN if no query has a match."""
    require_finite(similarity, lambda row: f"A similarity of query {row + 1}")
    found = {}
    for k in ks:
        best = similarity.topk(min(k, similarity.shape[1]), dim=1).indices
        found[k] = (
            float(matches.gather(1, best).any(1).double().mean()) if matches.any() else math.nan
        )
    return found


def level_accuracy(
    texts: Sequence[Sequence[str]],
    owners: Sequence[int],
    similarity: Tensor,
    ks: Sequence[int] = (1, 5),
) -> Metrics:
    """Return retrieval accuracies at each level of n chains of L texts. ``owners`` has the number
    of each chain's image, which several chains may share, and ``similarity`` ``(m, n L)`` compares
    images with texts, chain after chain.

    ``level2_R@1``: an image's most similar text of level 2 belongs to it (zero-shot recognition
    with the texts as names). ``text_to_image_R@1``: the image most similar to the most specific
    text of a chain is the chain's.
    """
    n = len(texts)
    depth = len(texts[0])
    similarity = similarity.unflatten(1, (n, depth))
    owner = torch.as_tensor(owners)
    found: Metrics = {}
    for level in range(depth):
        number: dict[str, int] = {}
        codes = torch.tensor([number.setdefault(row[level], len(number)) for row in texts])
        first = torch.tensor([int((codes == code).nonzero()[0]) for code in range(len(number))])
        own = torch.zeros(len(similarity), len(number), dtype=torch.bool)
        own[owner, codes] = True
        for k, value in recall_at(
            similarity[:, first, level], own.to(similarity.device), ks
        ).items():
            found[f"level{level + 1}_R@{k}"] = value
    matches = own.T[codes].to(similarity.device)  # (chains, images), at the most specific level
    for k, value in recall_at(similarity[:, :, -1].T, matches, ks).items():
        found[f"text_to_image_R@{k}"] = value
    return found
