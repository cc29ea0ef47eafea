"""Numbers for how sharply a clustering backbone assigns, and whether its clusters are parts of things.

They read the :class:`~hypvision.nn.ClusterAssignment` that a method ``forward_assignments`` gives (see
:mod:`hypvision.viz.clusters`, which draws the same). ``tools/hcformer_diagnosis.py`` prints them for a trained model.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hypvision.viz.clusters import cluster_map

__all__ = ["Sharpness", "cluster_purity", "grid_labels", "purity", "sharpness"]


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
        raise ValueError(f"With {count} centre there is nothing to assign: sharpness needs M >= 2.")
    assignment = assignment.double()
    largest = assignment.amax(2).mean().item()
    logits = assignment.clamp(min=1e-30).log()
    entropy = -(assignment * logits).sum(2).mean().item() / math.log(count)
    logits = logits - logits.mean(2, keepdim=True)
    variance = logits.square().mean().item()
    content = (logits - logits.mean(0, keepdim=True)).square().mean().item()
    return Sharpness(
        (largest - 1 / count) / (1 - 1 / count), entropy, math.sqrt(variance), content / variance if variance else 0.0
    )


def purity(labels: np.ndarray, classes: np.ndarray, ignore: int = 255) -> float:
    """Share of the pixels that belong to the most frequent class of their cluster; pixels of ``ignore`` do not count.

    Args:
        labels: cluster of each pixel, integers >= 0 of any shape.
        classes: class of each pixel, integers >= 0 of the same shape.

    Raises:
        ValueError: the shapes differ, or every pixel is ignored.
    """
    if labels.shape != classes.shape:
        raise ValueError(f"Labels and classes need one shape, got {labels.shape} and {classes.shape}.")
    keep = classes != ignore
    if not keep.any():
        raise ValueError("Every pixel is ignored: there is no class to compare the clusters with.")
    labels, classes = labels[keep].astype(np.int64), classes[keep].astype(np.int64)
    width = int(classes.max()) + 1
    votes = np.bincount(labels * width + classes, minlength=(int(labels.max()) + 1) * width)
    return float(votes.reshape(-1, width).max(1).sum() / votes.sum())


def grid_labels(window_index: Tensor, prop: int) -> np.ndarray:
    """What clusters are compared with: every window ``(H, W)`` cut into ``prop x prop`` cells of nearly equal size."""
    rows, columns = (_cells(index, prop) for index in (window_index[:, 0], window_index[0, :]))
    return window_index.cpu().numpy() * prop**2 + rows[:, None] * prop + columns


def _cells(index: Tensor, prop: int) -> np.ndarray:
    """For the window number of each place of an axis: which of ``prop`` cells along its window it lies in."""
    _, lengths = torch.unique_consecutive(index, return_counts=True)
    return np.concatenate([np.arange(n) * prop // n for n in lengths.tolist()])


def cluster_purity(assignment: Any, classes: np.ndarray, index: int = 0, ignore: int = 255) -> tuple[float, float]:
    """Purity of the arg-max clusters of the patch level, the mean over heads, and that of equally many grid cells.

    Args:
        assignment: a :class:`~hypvision.nn.ClusterAssignment`.
        classes: class of each pixel of the image ``(H', W')``; maps are enlarged to it by repeating.
        index: which image of the batch.
        ignore: class that does not count.
    """
    heads, prop = assignment.patch.shape[1], math.isqrt(assignment.patch.shape[2])
    size = classes.shape
    found = [purity(cluster_map(assignment, head, size=size, index=index), classes, ignore) for head in range(heads)]
    rows, columns = (np.arange(new) * old // new for new, old in zip(size, assignment.window_index.shape))
    cells = grid_labels(assignment.window_index, prop)[rows[:, None], columns]
    return float(np.mean(found)), purity(cells, classes, ignore)
