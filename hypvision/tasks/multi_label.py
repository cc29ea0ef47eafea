"""Metrics of classifiers with any number of labels per image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from mmengine.registry import METRICS
from torch import Tensor

from hypvision.checks import between
from hypvision.engine.extensions import PREDICTION_ARGUMENTS
from hypvision.engine.metrics import OfClass
from hypvision.files import write_json
from hypvision.tasks.classification_metrics import ScoreMetric


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """The mean of the precisions at each true sample in the order of the scores ``(N,)``, 0 to 1, NaN without a true
    one (``truth``, bool ``(N,)``); samples of equal scores count as found at once, as in scikit-learn."""
    if not truth.any():
        return math.nan
    found, taken = found_at_thresholds(scores, truth)
    return float(np.sum(np.diff(found, prepend=0) * found / taken) / truth.sum())


def found_at_thresholds(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each distinct score, from high to low: how many true samples, and how many in all, have at least this
    score."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=-np.inf))  # index of the last of equal scores
    return np.cumsum(truth[order])[ends], ends + 1


@METRICS.register_module()
class MultiLabelAP(ScoreMetric):
    """Metrics of a classifier with ``multi_label=True``, in percent: ``mAP``, the mean of the average precisions of the
    classes, and ``f1``, the mean of their F1 scores at a threshold. Classes without an image are ignored. The log has
    the average precision of each class, the worst first.

    Args:
        threshold: labels with a score of at least this are predicted.
        out_file: write the metrics, the average precision of each class and every prediction there, as JSON.
    """

    multi_label = True

    def __init__(self, threshold: float = 0.5, out_file: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        between(0, 1, threshold=threshold)
        self.threshold, self.out_file = threshold, out_file

    def of_scores(self, scores: Tensor, samples: Sequence[dict[str, Any]]) -> Iterable[tuple]:
        """``(index, labels, scores)``."""
        return [(sample["index"], sample["label"], row) for sample, row in zip(samples, scores.tolist())]

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        known = self.labelled(results, 1)
        metrics, f1 = dict(mAP=math.nan, f1=math.nan), []
        if known:
            truth, scores = np.array([row[1] for row in known]) > 0, np.array([row[2] for row in known])
            names = (self.dataset_meta or {}).get("classes") or [str(place) for place in range(truth.shape[1])]
            self.without_truth = [*self.without_truth, *(names[c] for c in np.flatnonzero(~truth.any(0)))]
            self.classes = [
                OfClass(str(names[c]), 100 * average_precision(scores[:, c], truth[:, c]), int(truth[:, c].sum()))
                for c in np.flatnonzero(truth.any(0))
            ]
            for wanted, given in zip(truth.T, (scores >= self.threshold).T):
                f1 += [200 * (wanted & given).sum() / (wanted.sum() + given.sum())] if wanted.any() else []
        if self.classes:
            metrics = dict(mAP=fmean(found.value for found in self.classes), f1=fmean(f1))
        if self.out_file is not None:
            report = dict(metrics=metrics, ap_per_class={found.name: found.value for found in self.classes})
            predictions = [dict(index=index, labels=labels, scores=row) for index, labels, row in results]
            write_json(self.out_file, report | dict(predictions=predictions), indent=None)
        return metrics


PREDICTION_ARGUMENTS["MultiLabelAP"] = "out_file"
