"""The metrics of HierarCaps (Alper and Averbuch-Elor, ECCV 2024): what an image's walk from general to specific texts
finds, and whether the texts of a chain lie in order.

The published evaluation goes through images and 50 radii one by one. Here texts are sorted into the 50 shells between
the radii once, and the walk of all images is one maximum a shell.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["ChainMetrics", "chain_metrics", "kendall_tau", "order_aware_recall", "walk"]


@dataclass(frozen=True)
class ChainMetrics:
    """Values of every image and chain.

    Attributes:
        precision, recall, ordered_recall: of each image ``(m,)``; the last is :func:`order_aware_recall`.
        tau: Kendall's, of each chain ``(n,)``.
        predicted: for each image the texts of its walk, from general to specific.
    """

    precision: np.ndarray
    recall: np.ndarray
    ordered_recall: np.ndarray
    tau: np.ndarray
    predicted: list[list[str]]

    def summary(self) -> dict[str, float]:
        """The means, under the names that the official evaluation logs."""
        return dict(
            precision=float(self.precision.mean()),
            recall=float(self.recall.mean()),
            d_corr=float(self.tau.mean()),
            ordered_recall=float(self.ordered_recall.mean()),
        )


def kendall_tau(radii: Tensor) -> np.ndarray:
    """Kendall's tau ``(n,)`` between the radii ``(n, L)`` of chains and their levels; equal radii count as in order."""
    later, earlier = torch.tril_indices(radii.shape[1], radii.shape[1], -1)
    inversions = (radii[:, earlier] > radii[:, later]).sum(1)
    return 1 - 2 * inversions.cpu().numpy() / len(later)


def walk(similarity: Tensor, radii: Tensor, steps: int = 50) -> Tensor:
    """For each image the most similar text within each of ``steps`` growing radii.

    The radii are evenly spaced from that of the most general text to that of the most specific one, in float64, and
    compared in float32. Of equally similar texts the first one counts.

    Args:
        similarity: ``(m, N)``, images by texts.
        radii: ``(N,)``.
        steps: number of radii.

    Returns:
        int64 ``(m, steps)``, numbers of texts.
    """
    radii = radii.float().cpu().numpy()
    levels = np.linspace(radii.min(), radii.max(), steps, dtype=np.float64).astype(np.float32)
    shell = np.searchsorted(levels, radii)  # the first radius that a text is within
    order = np.argsort(shell, kind="stable")  # within a shell in the order of the texts
    bounds = np.searchsorted(shell[order], np.arange(steps + 1))
    order = torch.from_numpy(order).to(similarity.device)
    sorted_similarity = similarity.index_select(1, order)
    best = similarity.new_full((len(similarity),), -torch.inf)
    found = torch.full_like(best, similarity.shape[1], dtype=torch.int64)
    steps_found = []
    for first, last in zip(bounds[:-1], bounds[1:]):
        if first < last:
            value, place = sorted_similarity[:, first:last].max(1)
            place = order[first + place]
            better = (value > best) | ((value == best) & (place < found))
            best, found = torch.where(better, value, best), torch.where(better, place, found)
        steps_found.append(found)
    return torch.stack(steps_found, 1)


def chain_metrics(
    texts: Sequence[Sequence[str]],
    radii: Tensor,
    images: Sequence[Hashable],
    similarity: Tensor,
    steps: int = 50,
) -> ChainMetrics:
    """Precision, recall and Kendall's tau of chains of texts.

    An image's prediction is what :func:`walk` finds among the texts of all chains, without repeats in a row. Precision
    is the share of it, as a set of strings, that is in any chain of the image; recall the share of levels at which
    some chain of the image has its text among it.

    Args:
        texts: n chains of L texts.
        radii: of the texts ``(n, L)``.
        images: for each chain what tells its image.
        similarity: ``(m, n * L)``: the m distinct images, in the order in which they first appear, by the texts, chain
            after chain.
        steps: number of radii.

    Raises:
        ValueError: shapes that do not go together.
    """
    (n, depth), owners = radii.shape, list(dict.fromkeys(images))
    if len(texts) != n or len(images) != n or similarity.shape != (len(owners), n * depth):
        raise ValueError(
            f"chain_metrics: {len(texts)} chains of {len(images)} images, of them {len(owners)} distinct, need radii "
            f"({len(texts)}, L) and similarities ({len(owners)}, {len(texts)} L), got {tuple(radii.shape)} and "
            f"{tuple(similarity.shape)}."
        )
    number: dict[str, int] = {}
    codes = np.array([number.setdefault(text, len(number)) for chain in texts for text in chain]).reshape(n, depth)
    strings = list(number)
    found = codes.ravel()[walk(similarity, radii.flatten(), steps).cpu().numpy()]  # (m, steps)
    of_image: dict[Hashable, list[np.ndarray]] = {owner: [] for owner in owners}
    for owner, chain in zip(images, codes):
        of_image[owner].append(chain)
    precision, recall, ordered, predicted = [], [], [], []
    changes = np.concatenate([np.ones((len(found), 1), dtype=bool), found[:, 1:] != found[:, :-1]], axis=1)
    for row, change, chains in zip(found, changes, of_image.values()):
        path = row[change].tolist()
        reached, levels = set(path), [chain.tolist() for chain in chains]
        known = {code for chain in levels for code in chain}
        precision.append(len(reached & known) / max(1, len(reached)))
        recall.append(sum(any(code in reached for code in level) for level in zip(*levels)) / depth)
        ordered.append(order_aware_recall(path, levels))
        predicted.append([strings[code] for code in path])
    return ChainMetrics(np.array(precision), np.array(recall), np.array(ordered), kendall_tau(radii), predicted)


def order_aware_recall(predicted: Sequence[Hashable], chains: Sequence[Sequence[Hashable]]) -> float:
    """Length of the longest run of predicted texts that rise through the levels, as a share of the levels.

    The predicted texts that are in a chain are replaced by their level in the first chain that has them; with several
    chains, equal neighbours are taken as one. A single text that is in a chain is a run of length 1.

    Args:
        predicted: texts in the order of their prediction.
        chains: those of the image, each of L texts.
    """
    places = [next((c.index(text) for c in chains if text in c), None) for text in predicted]
    levels = [level for level in places if level is not None]
    if len(chains) > 1:
        levels = [level for i, level in enumerate(levels) if i == 0 or level != levels[i - 1]]
    longest = run = 0
    for i, level in enumerate(levels):
        run = run + 1 if i and level > levels[i - 1] else 1
        longest = max(longest, run)
    return longest / len(chains[0])
