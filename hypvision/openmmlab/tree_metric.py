"""How good a segmenter is if confusing near classes of a tree is no mistake (Ghadimi Atigh et al.,
"Hyperbolic Image Segmentation", CVPR 2022)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from mmseg.registry import METRICS
from torch import Tensor

from hypvision.engine.metrics import Metric
from hypvision.io import Metrics, StrPath, Values
from hypvision.losses.class_tree import ClassTree

KINDS = ("sibling", "cousin")


@METRICS.register_module()
class TreeIoUMetric(Metric):
    """The rates of a segmenter in percent where predictions near the label in a class tree count as
    predictions of the label.

    ``sibling_*``: classes below the label's parent; ``cousin_*``: classes below its grandparent.
    The root does not count as a parent: a class below it has no siblings, and a class whose
    grandparent is the root has no cousins but its siblings. ``mIoU`` and ``mPrecision`` are means
    over the classes that have a value, ``aAcc`` is the share of pixels.

    Args:
        tree: see :class:`~hypvision.losses.class_tree.ClassTree`.
        ignore_index: label of pixels without ground truth.
    """

    def __init__(self, tree: Values | StrPath, ignore_index: int = 255, **kwargs: Any):
        super().__init__(**kwargs)
        self.tree = tree
        self.ignore_index = ignore_index

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        number = len(self.class_names())
        for sample in data_samples:
            logits = sample.get("seg_logits")
            if logits and not self.check(logits["data"][None], "A logit", [sample]):
                return
            found, truth = (
                sample[name]["data"].flatten().cpu().long()
                for name in ("pred_sem_seg", "gt_sem_seg")
            )
            known = (truth != self.ignore_index) & (truth < number)
            pairs = truth[known] * number + found[known]
            self.results.append(pairs.bincount(minlength=number**2).view(number, number))

    def compute_metrics(self, results: list) -> Metrics:
        names = self.class_names()
        counts = sum(results, torch.zeros(len(names), len(names), dtype=torch.int64))
        self.without_truth = [name for name, row in zip(names, counts) if not row.any()]
        tree = ClassTree(names, self.tree)
        return {
            f"{kind}_{name}": value
            for kind, near in zip(KINDS, near_classes(tree))
            for name, value in _rates(counts.double(), near).items()
        }


def near_classes(tree: ClassTree) -> list[Tensor]:
    """Return two tables ``(K, K)`` of bool: for each class its siblings, and its siblings and
    cousins; itself is among them."""
    below = tree.paths > 0
    tables = [torch.eye(below.shape[1], dtype=torch.bool) for _ in KINDS]
    for leaf in range(below.shape[1]):
        node = leaf
        for level in range(len(KINDS)):
            if tree.parents[node] >= 0:
                node = tree.parents[node]
            for table in tables[level:]:
                table[leaf] = below[node]
    return tables


def _rates(counts: Tensor, near: Tensor) -> Metrics:
    """Return the rates of the numbers of pixels ``(K, K)`` by label and prediction, where the
    predictions ``near`` are right."""
    right = (counts * near).sum(1)
    moved = counts * ~near + right.diag()
    predicted = moved.sum(0)
    every = counts.sum()
    union = moved.sum(1) + predicted - right
    if not every:
        return dict.fromkeys(("mIoU", "aAcc", "mPrecision"), math.nan)
    return dict(
        mIoU=float(100 * (right / union)[union > 0].mean()),
        aAcc=float(100 * right.sum() / every),
        mPrecision=float(100 * (right / predicted)[predicted > 0].mean()),
    )
