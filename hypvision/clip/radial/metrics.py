"""Metrics of HierarCaps (Alper and Averbuch-Elor, ECCV 2024): how well the texts on an image's walk
from general to specific match its chains, and whether the radii of a chain's texts are in order.

The published evaluation loops over images and 50 radii. Here the texts are sorted once into the 50
shells between the radii. Then the walks of all images are one running maximum over the sorted
texts, read at the end of each shell.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from hypvision.clip.spaces import Space
from hypvision.io import ArgumentError, Metrics, require_finite

_BLOCK = 2**18  # number of similarities in a block, which then fits into a CPU's cache


@dataclass(frozen=True)
class ChainMetrics:
    """Metrics of m images and n chains.

    Attributes:
        precision, recall, ordered_recall: precision, recall and order-aware recall of each image
            ``(m,)``.
        tau: Kendall's tau of each chain ``(n,)``.
        walks: walk of each image ``(m, steps)``, as numbers of its texts in ``strings``.
        strings: the distinct texts.
    """

    precision: np.ndarray
    recall: np.ndarray
    ordered_recall: np.ndarray
    tau: np.ndarray
    walks: np.ndarray
    strings: list[str]

    @property
    def predicted(self) -> list[list[str]]:
        """The texts of each image's walk, from general to specific, without repeats in a row."""
        return [[self.strings[code] for code, _ in groupby(row)] for row in self.walks.tolist()]

    def summary(self) -> Metrics:
        """Return the mean of each metric, under the name that the official evaluation logs."""
        return dict(
            precision=float(self.precision.mean()),
            recall=float(self.recall.mean()),
            d_corr=float(self.tau.mean()),
            ordered_recall=float(self.ordered_recall.mean()),
        )


def kendall_tau(radii: Tensor) -> np.ndarray:
    """Return Kendall's tau ``(n,)`` between the radii ``(n, L)`` of chains and their levels, where
    equal radii count as in order. It is NaN for chains of one level.
    """
    require_finite(radii, lambda row: f"The radius of a text of chain {row + 1}")
    if radii.shape[1] < 2:
        return np.full(len(radii), np.nan)
    later, earlier = torch.tril_indices(radii.shape[1], radii.shape[1], -1)
    inversions = (radii[:, earlier] > radii[:, later]).sum(1)
    return 1 - 2 * inversions.cpu().numpy() / len(later)


def walk(similarity: Tensor, radii: Tensor, steps: int = 50) -> Tensor:
    """Return, for each image, the most similar text within each of ``steps`` growing radii, int64
    ``(m, steps)``, from similarities ``(m, N)`` and the radii ``(N,)`` of the texts.

    The growing radii are evenly spaced from the smallest radius of a text to the largest, in
    float64, and compared in float32. Among equally similar texts the first one is taken.
    """
    order, ends = _shells(radii, steps)
    return _ends_of_shells(similarity.index_select(1, order.to(similarity.device)), order, ends)


def _shells(radii: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Return the order of texts ``(N,)`` by shells between growing radii, and the position of each
    shell's last text in this order."""
    distances = radii.float().cpu().numpy()
    levels = np.linspace(distances.min(), distances.max(), steps, dtype=np.float64).astype(
        np.float32
    )
    shell = np.searchsorted(levels, distances)  # the smallest radius that contains the text
    # A running maximum keeps the last of equal values. The texts of a shell are therefore in
    # reverse order, so that the first one wins.
    order = np.lexsort((-np.arange(len(distances)), shell))
    ends = np.searchsorted(shell[order], np.arange(steps), side="right") - 1
    return torch.from_numpy(order), torch.from_numpy(ends)


def _ends_of_shells(similarity: Tensor, order: Tensor, ends: Tensor) -> Tensor:
    """Return the walks of :func:`walk` for a ``similarity`` whose texts are sorted by shell."""
    value, place = similarity.cpu().cummax(1)
    value = value[:, ends]
    found = order[place[:, ends]]
    equal = value[:, 1:] == value[:, :-1]
    # cummax prefers the later of equally similar texts, but the one with the smaller number wins,
    # also if it is of an earlier shell.
    if (equal & (found[:, 1:] != found[:, :-1])).any():
        for step in range(1, len(ends)):
            first = torch.minimum(found[:, step - 1], found[:, step])
            found[:, step] = torch.where(equal[:, step - 1], first, found[:, step])
    return found


def chain_metrics(
    texts: Sequence[Sequence[str]],
    embeddings: Tensor,
    images: Sequence[Hashable],
    embedded_images: Tensor,
    space: Space,
    steps: int = 50,
) -> ChainMetrics:
    """Return precision, recall and Kendall's tau of chains of texts.

    An image's prediction is its :func:`walk` among the texts of all chains, without repeats in a
    row, taken as a set of strings. Precision is the share of these strings that occur in any chain
    of the image. Recall is the share of levels at which the prediction contains the text of some
    chain of the image. Order-aware recall is the length of the longest run of predicted texts that
    rise through the levels, as a share of the levels: a predicted text has its level in the first
    chain of the image that contains it; with several chains, equal levels next to each other count
    as one.

    ``texts`` are n chains of L texts with ``embeddings`` ``(n, L, d)``, ``images`` has the name of
    each chain's image, and ``embedded_images`` ``(m, d)`` belong to the distinct names in the order
    of their first appearance; ``steps`` is the number of radii.
    """
    n, depth = embeddings.shape[:2]
    owners = list(dict.fromkeys(images))
    if not n or len(texts) != n or len(images) != n or len(embedded_images) != len(owners):
        raise ArgumentError(
            f"chain_metrics: {len(texts)} chains of {len(images)} images, of them {len(owners)} "
            "distinct, need as many embeddings of chains and of images, got "
            f"{tuple(embeddings.shape)} and {tuple(embedded_images.shape)}."
        )
    require_finite(embeddings, lambda row: f"The embedding of a text of chain {row + 1}")
    require_finite(embedded_images, lambda row: f"The embedding of image {row + 1}")
    radii = space.radius(embeddings)
    order, ends = _shells(radii.flatten(), steps)
    flat = embeddings.flatten(0, 1)[order.to(embeddings.device)]
    blocks = embedded_images.split(max(1, _BLOCK // len(order)))
    places = torch.cat(
        [_ends_of_shells(space.similarity(block, flat), order, ends) for block in blocks]
    )
    number: dict[str, int] = {}
    codes = np.array(
        [number.setdefault(text, len(number)) for chain in texts for text in chain]
    ).reshape(n, depth)
    found = codes.ravel()[places.numpy()]  # (m, steps)
    row = {owner: i for i, owner in enumerate(owners)}
    owner = np.array([row[image] for image in images])
    # A key is a pair (text, image). np.unique returns the first position of a key, and so the first
    # chain with this pair.
    known, first, own = np.unique(
        owner[:, None] * len(number) + codes, return_index=True, return_inverse=True
    )
    keys = np.arange(len(owners))[:, None] * len(number) + found
    at = np.searchsorted(known, keys).clip(max=len(known) - 1)
    right = known[at] == keys
    reached = np.zeros(len(known), dtype=bool)
    reached[at[right]] = True
    in_order = np.sort(found, axis=1)
    distinct = 1 + (in_order[:, 1:] != in_order[:, :-1]).sum(1)
    levels_reached = np.zeros((len(owners), depth), dtype=bool)
    np.logical_or.at(levels_reached, owner, reached[own.reshape(n, depth)])
    right[:, 1:] &= found[:, 1:] != found[:, :-1]
    rise = _longest_rise(np.where(right, first[at] % depth, -1), np.bincount(owner) > 1)
    return ChainMetrics(
        precision=np.bincount(known // len(number), reached, len(owners)) / distinct,
        recall=levels_reached.mean(1),
        ordered_recall=rise / depth,
        tau=kendall_tau(radii),
        walks=found,
        strings=list(number),
    )


def _longest_rise(levels: np.ndarray, merged: np.ndarray) -> np.ndarray:
    """Return the length ``(m,)`` of the longest strictly rising run in each row of levels ``(m,
    steps)``, skipping levels below 0; in rows that are ``merged``, equal levels next to each other
    count as one."""
    longest: np.ndarray = np.zeros(len(levels), dtype=int)
    run = longest
    before: np.ndarray = np.full(len(levels), -1)
    for level in levels.T:
        there = (level >= 0) & ~(merged & (level == before))
        run = np.where(there, np.where(level > before, run + 1, 1), run)
        before = np.where(there, level, before)
        longest = np.maximum(longest, run)
    return longest
