"""The report of a classifier with any number of labels per image, ``hypvision test --out``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.registry import METRICS

from hypvision.engine.extensions import REPORTS
from hypvision.engine.reports import ReportMetric
from hypvision.tasks.classification_report import class_rates
from hypvision.tasks.multi_label import average_precision, found_at_thresholds
from hypvision.viz.evaluation import curve_part
from hypvision.viz.report import Part

_RECALL = np.linspace(0, 1, 101)


def precision_curve(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Precision (101,) at recalls from 0 to 1: the best that a threshold with at least this recall has, by scores (N,)
    and their truth, bool (N,), of which one is true."""
    found, taken = found_at_thresholds(scores, truth)
    best = np.maximum.accumulate((found / taken)[::-1])[::-1]
    curve: np.ndarray = best[np.searchsorted(found, _RECALL * truth.sum() - 1e-9)]
    return curve


@METRICS.register_module()
class MultiLabelReport(ReportMetric):
    """Collects the labels and the scores of each image.

    Args:
        threshold: labels with a score of at least this are predicted.
    """

    def __init__(self, threshold: float = 0.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.threshold = threshold

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Keep ``(labels, scores)`` of each image."""
        for sample in data_samples:
            if isinstance(sample["label"], list) and sample["scores"].isfinite().all():
                self.results.append((sample["label"], sample["scores"].tolist()))

    def report(self, results: list[tuple]) -> list[Part]:
        if not results:
            return [Part("Predictions", text="No image has labels and scores that are finite.")]
        truth, scores = np.array([row[0] for row in results]) > 0, np.array([row[1] for row in results])
        names = self.names or [str(label) for label in range(truth.shape[1])]
        text = f"A label counts as found from a score of {self.threshold:g} on."
        table = Part("Classes", "classes", text, table=label_table(scores, truth, names, self.threshold))
        return [*curve_parts(scores, truth, names), table]


def curve_parts(scores: np.ndarray, truth: np.ndarray, names: Sequence[str]) -> list[Part]:
    """Curves of precision and recall by scores (N, C) and their truth, bool (N, C): their mean, and those of the best
    and the worst classes."""
    labelled = np.flatnonzero(truth.any(0)).tolist()
    if not labelled:
        return [Part("Precision and recall", text="No image of the test data has a label.")]
    curves = {names[c]: precision_curve(scores[:, c], truth[:, c]) for c in labelled}
    ap = {names[c]: 100 * average_precision(scores[:, c], truth[:, c]) for c in labelled}
    mean = np.mean(list(curves.values()), 0)
    overall = {"mean of the classes": {f"mAP {np.mean(list(ap.values())):.1f}": mean}}
    lines = {"(mean)": mean, **curves}.items()
    rows = [(name, float(r), float(p)) for name, curve in lines for r, p in zip(_RECALL, curve)]
    text = "The best precision at each recall; in brackets the average precision of the class, in percent."
    table = [("class", "recall", "precision"), *rows]
    return [curve_part(_RECALL, overall, "classes", curves, ap, text, table)]


def label_table(scores: np.ndarray, truth: np.ndarray, names: Sequence[str], threshold: float) -> list[tuple]:
    """AP, recall, precision and F1 of each class in percent, the worst AP first; NaN without anything to count."""
    given = scores >= threshold
    true, *rates = class_rates((truth & given).sum(0), truth.sum(0), given.sum(0))
    ap = [100 * average_precision(scores[:, c], truth[:, c]) for c in range(len(names))]
    order = sorted(zip(names, true, ap, *rates), key=lambda row: (row[2] != row[2], row[2]))
    return [("class", "images", "AP", "recall", "precision", "F1"), *order]


REPORTS["MultiLabelAP"] = lambda metric: dict(type="MultiLabelReport", threshold=metric.get("threshold", 0.5))
