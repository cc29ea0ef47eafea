"""Numbers for how sharply a clustering backbone assigns, and whether its clusters are parts of things.

:mod:`hypvision.viz.clusters` draws the same assignments; ``tools/hcformer_diagnosis.py`` prints these numbers for a
trained model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypvision.nn import ClusterAssignment
from hypvision.viz.clusters import cluster_map, enlarge


class Sharpness(NamedTuple):
    """How sharp soft assignments to M centres are, on average over points.

    ``excess``: (largest weight - 1/M) / (1 - 1/M), 0 for uniform and 1 for hard assignments. ``entropy``: over log M, 1
    for uniform. ``spread``: standard deviation of the logits over the centres. ``content``: the share of the logits'
    variance that differs from image to image; the rest depends on the place alone.
    """

    excess: float
    entropy: float
    spread: float
    content: float


def sharpness(assignment: Tensor) -> Sharpness:
    """Sharpness of the assignments ``(B, e, M, ...)`` that sum to 1 over M.

    Raises:
        ValueError: a single centre, to which everything is assigned.
    """
    count = assignment.shape[2]
    if count < 2:
        raise ValueError(f"Sharpness needs at least two centres (M >= 2), got {count}.")
    assignment = assignment.double()
    largest = assignment.amax(2).mean().item()
    logits = assignment.clamp(min=1e-30).log()
    entropy = -(assignment * logits).sum(2).mean().item() / math.log(count)
    logits = logits - logits.mean(2, keepdim=True)
    variance = logits.square().mean().item()
    content = (logits - logits.mean(0, keepdim=True)).square().mean().item() / variance if variance else 0.0
    return Sharpness((largest - 1 / count) / (1 - 1 / count), entropy, math.sqrt(variance), content)


def purity(labels: np.ndarray, classes: np.ndarray, ignore: int = 255) -> float:
    """Share of the pixels that belong to the most frequent class of their cluster, by cluster and class of each pixel,
    integers >= 0 of one shape; pixels of the class ``ignore`` do not count.
    """
    if labels.shape != classes.shape:
        raise ValueError(f"labels and classes must have the same shape, got {labels.shape} and {classes.shape}.")
    keep = classes != ignore
    if not keep.any():
        raise ValueError("All pixels have the ignored label, so there is no class to compare the clusters with.")
    labels, classes = labels[keep].astype(np.int64), classes[keep].astype(np.int64)
    width = int(classes.max()) + 1
    votes = np.bincount(labels * width + classes, minlength=(int(labels.max()) + 1) * width)
    return float(votes.reshape(-1, width).max(1).sum() / votes.sum())


def grid_labels(window_index: Tensor, prop: int) -> np.ndarray:
    """A grid to compare clusters with: each window of a map ``(H, W)`` cut into ``prop x prop`` nearly equal cells."""

    def cells_along(index: Tensor) -> np.ndarray:
        """For the window number of each place of an axis: which of ``prop`` cells along its window it lies in."""
        _, lengths = torch.unique_consecutive(index, return_counts=True)
        return np.concatenate([np.arange(n) * prop // n for n in lengths.tolist()])

    rows, columns = (cells_along(index) for index in (window_index[:, 0], window_index[0, :]))
    return window_index.cpu().numpy() * prop**2 + rows[:, None] * prop + columns


def cluster_purity(
    assignment: ClusterAssignment, classes: np.ndarray, index: int = 0, ignore: int = 255
) -> tuple[float, float]:
    """Purity of the arg-max clusters of the patch level of a block (mean over heads), and that of as many cells of a
    grid, by the class of each pixel ``(H', W')`` of image ``index`` of the batch, to which maps are enlarged by
    repeating; pixels of the class ``ignore`` do not count."""
    heads, prop = assignment.patch.shape[1], math.isqrt(assignment.patch.shape[2])
    maps = (enlarge(cluster_map(assignment, head, index=index), classes.shape) for head in range(heads))
    found = [purity(labels, classes, ignore) for labels in maps]
    cells = enlarge(grid_labels(assignment.window_index, prop), classes.shape)
    return float(np.mean(found)), purity(cells, classes, ignore)
