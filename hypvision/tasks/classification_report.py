"""The reports of classifiers, ``hypvision test --out``: the confusion matrix and the worst
mistakes; with any number of labels per image curves of precision and recall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.registry import METRICS

from hypvision.engine.extensions import REPORTS
from hypvision.engine.reports import ReportMetric
from hypvision.io.images import as_rgb
from hypvision.tasks.classification_metrics import (
    average_precision,
    found_at_thresholds,
    read_ancestors,
)
from hypvision.tasks.metric_learning_metrics import lca_heights
from hypvision.viz.evaluation import (
    Mistake,
    bars_figure,
    confusion_figure,
    curve_part,
    mistake_sheet,
)
from hypvision.viz.report import Part

_WORST = 24  # largest number of mistakes on the sheet
_PAIRS = 20  # largest number of pairs of confused classes
_RECALL = np.linspace(0, 1, 101)


@METRICS.register_module()
class ClassificationReport(ReportMetric):
    """Collects the predictions of a classifier. ``ancestors`` are the groups above each class, from
    general to specific, by the names of the classes, or a JSON file of it; None: those of the data,
    if it has some."""

    def __init__(self, ancestors: Mapping[str, Sequence[str]] | str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.ancestors = (
            None if ancestors is None else read_ancestors(ancestors, "ClassificationReport")
        )

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Keep ``(index, true class, predicted class, its score, score of the true class)`` of each
        image."""
        for sample in data_samples:
            scores = sample["scores"]
            label = sample["label"]
            if label is not None and scores.isfinite().all():
                best = int(scores.argmax())
                self.results.append(
                    (sample["index"], label, best, float(scores[best]), float(scores[label]))
                )

    def report(self, results: list[tuple]) -> list[Part]:
        count = 1 + max(max(row[1:3]) for row in results)
        names = self.names or [str(label) for label in range(count)]
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(counts, ([row[1] for row in results], [row[2] for row in results]), 1)
        groups = self._groups(names)
        order = None if groups is None else sorted(range(len(names)), key=lambda c: (groups[c], c))
        distances = None if groups is None else 2 * lca_heights(groups).numpy()
        return [
            *confusion_parts(counts, names, "images", order, distances),
            Part("Classes", "classes", table=class_table(counts, names)),
            *([] if distances is None else [distance_part(counts, distances)]),
            self._mistakes(results, names, distances),
        ]

    def _groups(self, names: list[str]) -> list[tuple[str, ...]] | None:
        """The groups above each class; None without a tree with all classes equally deep."""
        found = self.ancestors
        if found is None:
            found = dict(zip(names, (self.dataset_meta or {}).get("ancestors") or ()))
        above = [tuple(found.get(name, ())) for name in names]
        return above if above and above[0] and len({*map(len, above)}) == 1 else None

    def _mistakes(
        self, results: list[tuple], names: list[str], distances: np.ndarray | None
    ) -> Part:
        wrong = sorted((row for row in results if row[1] != row[2]), key=lambda row: -row[3])
        title = "Worst mistakes"
        text = f"{len(wrong)} of {len(results)} images are wrong."
        if not wrong or not hasattr(self.dataset, "read"):
            return Part(title, text=text)
        tiles = []
        for index, true, best, score, right in wrong[:_WORST]:
            lines = [
                f"{names[best]}  {100 * score:.0f} %",
                f"true: {names[true]}  {100 * right:.0f} %",
            ]
            lines += [] if distances is None else [f"distance {distances[true, best]}"]
            tiles.append(Mistake([as_rgb(self.dataset.read(index))], lines))
        head = ("image", "true", "predicted", "score", "score of the true class")
        table = [(self.dataset.name(i), names[y], names[p], s, r) for i, y, p, s, r in wrong]
        text += " The most confident ones come first: what was predicted, and what is true."
        return Part(
            title,
            "mistakes",
            text,
            mistake_sheet(tiles, 4),
            [head, *table],
            photo=True,
            shown=False,
        )


def confusion_parts(
    counts: np.ndarray,
    names: Sequence[str],
    unit: str,
    order: Sequence[int] | None = None,
    distances: np.ndarray | None = None,
    extra: tuple[str, str] | None = None,
) -> list[Part]:
    """A confusion matrix, and the pairs of classes that are confused most.

    Args:
        counts: int (R, C), true classes down, predicted ones across; ``unit``: what was counted, in
            the plural.
        order: of the classes in the picture.
        distances: (C, C) between the classes in a tree.
        extra: name of a last row for detections that match no object, and of a last column for
            objects not found.
    """
    rows, columns = ([*names, extra[i]] if extra else [*names] for i in (0, 1))
    text = f"How many {unit} of each true class (rows) were given each class (columns)."
    text += "" if order is None else " The classes stand in the order of the tree."
    table = [("true", *columns), *((name, *row) for name, row in zip(rows, counts.tolist()))]
    picture = confusion_figure(counts, rows, columns, order)
    matrix = Part("Confusion matrix", "confusion", text, picture, table, shown=False)
    wrong = _confused(counts[: len(names), : len(names)])
    if not wrong:
        return [matrix]
    total = counts.sum(1)
    head: tuple = ("true", "predicted", unit, "% of the true class")
    pairs: list[tuple] = [(names[y], names[p], n, 100 * n / int(total[y])) for n, y, p in wrong]
    if distances is not None:
        head = (*head, "distance")
        pairs = [(*row, int(distances[y, p])) for row, (_, y, p) in zip(pairs, wrong)]
    return [matrix, Part("Confused most", "confused", table=[head, *pairs])]


def _confused(counts: np.ndarray) -> list[tuple[int, int, int]]:
    """How often a class was taken for another, and the two, the most frequent ones first."""
    found = [(int(n), y, p) for (y, p), n in np.ndenumerate(counts) if n and y != p]
    return sorted(found, key=lambda item: (-item[0], item[1:]))[:_PAIRS]


def class_table(counts: np.ndarray, names: Sequence[str]) -> list[tuple]:
    """Recall, precision and F1 of each class in percent, the worst F1 first; empty for a class that
    is neither in the ground truth nor predicted."""
    rows = zip(names, *class_rates(np.diag(counts), counts.sum(1), counts.sum(0)))
    return [("class", "images", "recall", "precision", "F1"), *worst_first(rows, 4)]


def worst_first(rows: Iterable[tuple], column: int) -> list[tuple]:
    """Rows of a table by the number in a column, NaN last."""
    return sorted(rows, key=lambda row: (row[column] != row[column], row[column]))


def class_rates(right: np.ndarray, true: np.ndarray, found: np.ndarray) -> list[list[float]]:
    """``true``, and recall, precision and F1 in percent, of counts of each class; NaN where there
    is nothing to count."""
    with np.errstate(invalid="ignore"):
        rates = 100 * right / true, 100 * right / found, 200 * right / (true + found)
    return [values.tolist() for values in (true, *rates)]


def distance_part(counts: np.ndarray, distances: np.ndarray) -> Part:
    """The distances in a tree between wrong predictions and true classes, compared with those of
    uniformly drawn classes; by counts, int (C, C), true classes down and predicted ones across, and
    the edges between two classes, int (C, C)."""
    apart = ~np.eye(len(counts), dtype=bool)
    wrong = np.where(apart, counts, 0).sum(1)
    steps = sorted({*distances[apart].tolist()})
    cells = [apart & (distances == step) for step in steps]
    mistakes = [int(counts[own].sum()) for own in cells]
    chance = [float((wrong * own.sum(1)).sum() / max(len(counts) - 1, 1)) for own in cells]
    total = sum(mistakes)
    head = ("distance", "mistakes", "% of the mistakes", "by chance")
    rows = [(s, n, 100 * n / max(total, 1), c) for s, n, c in zip(steps, mistakes, chance)]
    mean = sum(s * n for s, n in zip(steps, mistakes)) / max(total, 1)
    drawn = sum(s * c for s, c in zip(steps, chance)) / max(total, 1)
    text = (
        f"Edges of the tree between the predicted and the true class, 2 for a sibling: {mean:.2f} "
        f"on average over {total} mistakes. Wrong classes drawn evenly would be {drawn:.2f} away."
    )
    groups: dict[str, Sequence[float]] = {
        "mistakes": mistakes,
        "wrong classes drawn evenly": chance,
    }
    picture = bars_figure([str(step) for step in steps], groups, "distance in the tree", "images")
    return Part("Distance of the mistakes in the tree", "distances", text, picture, [head, *rows])


# Any number of labels per image


def precision_curve(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Precision (101,) at recalls from 0 to 1: the best that a threshold with at least this recall
    has, by scores (N,) and their truth, bool (N,), of which one is true."""
    found, taken = found_at_thresholds(scores, truth)
    best = np.maximum.accumulate((found / taken)[::-1])[::-1]
    curve: np.ndarray = best[np.searchsorted(found, _RECALL * truth.sum() - 1e-9)]
    return curve


@METRICS.register_module()
class MultiLabelReport(ReportMetric):
    """Collects the labels and the scores of each image; labels with a score of at least
    ``threshold`` are predicted."""

    def __init__(self, threshold: float = 0.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.threshold = threshold

    def process(self, data_batch: Any, data_samples: Sequence[dict[str, Any]]) -> None:
        """Keep ``(labels, scores)`` of each image."""
        for sample in data_samples:
            if isinstance(sample["label"], list) and sample["scores"].isfinite().all():
                self.results.append((sample["label"], sample["scores"].tolist()))

    def report(self, results: list[tuple]) -> list[Part]:
        truth = np.array([row[0] for row in results]) > 0
        scores = np.array([row[1] for row in results])
        names = self.names or [str(label) for label in range(truth.shape[1])]
        text = f"A label counts as found from a score of {self.threshold:g} on."
        table = Part(
            "Classes", "classes", text, table=label_table(scores, truth, names, self.threshold)
        )
        return [*curve_parts(scores, truth, names), table]


def curve_parts(scores: np.ndarray, truth: np.ndarray, names: Sequence[str]) -> list[Part]:
    """Curves of precision and recall by scores (N, C) and their truth, bool (N, C): their mean, and
    those of the best and the worst classes."""
    labelled = np.flatnonzero(truth.any(0)).tolist()
    if not labelled:
        return [Part("Precision and recall", text="No image of the test data has a label.")]
    curves = {names[c]: precision_curve(scores[:, c], truth[:, c]) for c in labelled}
    ap = {names[c]: 100 * average_precision(scores[:, c], truth[:, c]) for c in labelled}
    mean = np.mean(list(curves.values()), 0)
    overall = {"mean of the classes": {f"mAP {np.mean(list(ap.values())):.1f}": mean}}
    lines = {"(mean)": mean, **curves}.items()
    rows = [(name, float(r), float(p)) for name, curve in lines for r, p in zip(_RECALL, curve)]
    text = (
        "The best precision at each recall; in brackets the average precision of the class, in "
        "percent."
    )
    table = [("class", "recall", "precision"), *rows]
    return [curve_part(_RECALL, overall, "classes", curves, ap, text, table)]


def label_table(
    scores: np.ndarray, truth: np.ndarray, names: Sequence[str], threshold: float
) -> list[tuple]:
    """AP, recall, precision and F1 of each class in percent, the worst AP first; NaN without
    anything to count."""
    given = scores >= threshold
    true, *rates = class_rates((truth & given).sum(0), truth.sum(0), given.sum(0))
    ap = [100 * average_precision(scores[:, c], truth[:, c]) for c in range(len(names))]
    order = worst_first(zip(names, true, ap, *rates), 2)
    return [("class", "images", "AP", "recall", "precision", "F1"), *order]


REPORTS["MultiLabelAP"] = lambda metric: dict(
    type="MultiLabelReport", threshold=metric.get("threshold", 0.5)
)
REPORTS["TopKAccuracy"] = lambda metric: dict(
    type="ClassificationReport",
    ancestors=next(filter(None, (other.get("ancestors") for other in metric["evaluators"])), None),
)
