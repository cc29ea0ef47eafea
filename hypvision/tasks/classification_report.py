"""The reports of classifiers, ``hypvision test --out``: the confusion matrix and the worst
mistakes; for data with any number of labels per image, curves of precision and recall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mmengine.registry import METRICS

from hypvision.engine.extensions import REPORTS
from hypvision.engine.reports import ReportMetric
from hypvision.io import Ancestors, Plain
from hypvision.io.images import as_rgb
from hypvision.viz.evaluation import Mistake, bars_figure, confusion_figure, curve_part, worst_part
from hypvision.viz.report import Part

from .classification_metrics import average_precision, found_at_thresholds, read_ancestors
from .metric_learning_metrics import lca_heights

_WORST = 24  # largest number of mistakes on the sheet
_PAIRS = 20  # largest number of rows in the table of confused classes
_RECALL = np.linspace(0, 1, 101)  # recalls at which curves of precision are drawn


@METRICS.register_module()
class ClassificationReport(ReportMetric):
    """Collects the predictions of a classifier and reports its mistakes. ``ancestors`` are the
    groups above each class, from general to specific, by the names of the classes, or a JSON file
    of this dict; None: the ancestors that the data has, if it has some."""

    def __init__(self, ancestors: Ancestors | str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.ancestors = (
            None if ancestors is None else read_ancestors(ancestors, "ClassificationReport")
        )

    def process(self, data_batch: Any, data_samples: Sequence[Plain]) -> None:
        """Keep of each image ``(index, true class, predicted class, score of the predicted class,
        score of the true class)``."""
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
            class_part(names, "F1", {"images": counts.sum(1), **matrix_rates(counts)}),
            *([] if distances is None else [distance_part(counts, distances)]),
            self._mistakes(results, names, distances),
        ]

    def _groups(self, names: list[str]) -> list[tuple[str, ...]] | None:
        """Return the groups above each class; None unless all classes are equally deep in a
        tree."""
        found = self.ancestors
        if found is None:
            found = dict(zip(names, (self.dataset_meta or {}).get("ancestors") or ()))
        above = [tuple(found.get(name, ())) for name in names]
        return above if above and above[0] and len({*map(len, above)}) == 1 else None

    def _mistakes(
        self, results: list[tuple], names: list[str], distances: np.ndarray | None
    ) -> Part:
        wrong = sorted((row for row in results if row[1] != row[2]), key=lambda row: -row[3])
        text = f"{len(wrong)} of {len(results)} images are wrong."
        if not hasattr(self.dataset, "read"):
            return Part("Worst images", text=text)
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
        more = f"{text} The most confident ones come first: what was predicted, and what is true."
        return worst_part(tiles, bool(wrong), text, more, [head, *table], columns=4)


def confusion_parts(
    counts: np.ndarray,
    names: Sequence[str],
    unit: str,
    order: Sequence[int] | None = None,
    distances: np.ndarray | None = None,
    extra: tuple[str, str] | None = None,
) -> list[Part]:
    """Return the confusion matrix, and the table of the pairs of classes confused most often.

    Args:
        counts: int (R, C), rows for the true classes, columns for the predicted ones.
        unit: what was counted, in the plural.
        order: order of the classes in the picture.
        distances: (C, C), edges between the classes in a tree.
        extra: name of a last row for detections that match no object, and of a last column for
            objects that were not found.
    """
    row_names, columns = ([*names, extra[i]] if extra else names for i in (0, 1))
    text = f"How many {unit} of each true class (rows) were given each class (columns)."
    text += "" if order is None else " The classes stand in the order of the tree."
    table = [("true", *columns), *((name, *row) for name, row in zip(row_names, counts.tolist()))]
    picture = confusion_figure(counts, row_names, columns, order)
    matrix = Part("Confusion matrix", "confusion", text, picture, table, shown=False)
    wrong = counts[: len(names), : len(names)] * ~np.eye(len(names), dtype=bool)
    head = ["true", "predicted", unit, "% of the true class"]
    pairs: list[Sequence[Any]] = [head if distances is None else [*head, "distance"]]
    # argwhere and the boolean index both list the pairs row by row, so their orders agree.
    for y, p in np.argwhere(wrong)[np.argsort(-wrong[wrong > 0], kind="stable")][:_PAIRS]:
        count = int(wrong[y, p])
        row = (names[y], names[p], count, 100 * count / int(counts[y].sum()))
        pairs.append(row if distances is None else (*row, int(distances[y, p])))
    return [matrix, Part("Confused most", "confused", table=pairs)][: len(pairs)]


def class_part(
    names: Sequence[str], worst: str, columns: Mapping[str, np.ndarray], text: str = ""
) -> Part:
    """Return the table of the classes: ``columns`` are named numbers ``(C,)``, and the rows are
    sorted by the column ``worst``, the smallest first and NaN last."""
    order = np.argsort(columns[worst], kind="stable")
    numbers = [column[order].tolist() for column in columns.values()]
    rows = zip([names[c] for c in order], *numbers)
    return Part("Classes", "classes", text, table=[("class", *columns), *rows])


def matrix_rates(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return the :func:`class_rates` of a confusion matrix with rows for true classes and columns
    for predicted ones."""
    return class_rates(np.diag(counts), counts.sum(1), counts.sum(0))


def class_rates(right: np.ndarray, true: np.ndarray, found: np.ndarray) -> dict[str, np.ndarray]:
    """Return recall, precision and F1 of each class in percent, from how often it was rightly
    predicted, was true and was predicted; NaN where the divisor is 0."""
    with np.errstate(invalid="ignore"):
        return {
            "recall": 100 * right / true,
            "precision": 100 * right / found,
            "F1": 200 * right / (true + found),
        }


def distance_part(counts: np.ndarray, distances: np.ndarray) -> Part:
    """Return the distribution of the distances in a tree between wrongly predicted and true
    classes, beside that of classes drawn uniformly.

    ``counts``, int (C, C), has rows for true classes and columns for predicted ones; ``distances``,
    int (C, C), are the edges between two classes."""
    apart = ~np.eye(len(counts), dtype=bool)
    wrong = counts * apart
    # Drawn uniformly, each of the other classes is as likely as any.
    drawn = apart * wrong.sum(1, keepdims=True) / max(len(counts) - 1, 1)
    steps = np.unique(distances[apart])
    mistakes, chance = (
        np.array([cells[apart & (distances == step)].sum() for step in steps])
        for cells in (wrong, drawn)
    )
    total = int(wrong.sum())
    shares = 100 * mistakes / max(total, 1)
    head = ("distance", "mistakes", "% of the mistakes", "by chance")
    rows = list(zip(*(column.tolist() for column in (steps, mistakes, shares, chance))))
    mean, even = (float(steps @ counted) / max(total, 1) for counted in (mistakes, chance))
    text = (
        f"Edges of the tree between the predicted and the true class, 2 for a sibling: {mean:.2f} "
        f"on average over {total} mistakes. Wrong classes drawn evenly would be {even:.2f} away."
    )
    groups = {"mistakes": mistakes, "wrong classes drawn evenly": chance}
    picture = bars_figure([str(step) for step in steps], groups, "distance in the tree", "images")
    return Part("Distance of the mistakes in the tree", "distances", text, picture, [head, *rows])


# Reports for any number of labels per image


def precision_curve(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the precision (101,) at recalls from 0 to 1: the best precision of all thresholds with
    at least this recall, for scores (N,) and their truth, bool (N,), with at least one true."""
    found, taken = found_at_thresholds(scores, truth)
    best = np.maximum.accumulate((found / taken)[::-1])[::-1]
    curve: np.ndarray = best[np.searchsorted(found, _RECALL * truth.sum() - 1e-9)]
    return curve


@METRICS.register_module()
class MultiLabelReport(ReportMetric):
    """Collects the labels and the scores of each image and reports precision and recall; labels
    with a score of at least ``threshold`` are predicted."""

    def __init__(self, threshold: float = 0.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.threshold = threshold

    def process(self, data_batch: Any, data_samples: Sequence[Plain]) -> None:
        """Keep ``(labels, scores)`` of each image whose scores are finite."""
        for sample in data_samples:
            if isinstance(sample["label"], list) and sample["scores"].isfinite().all():
                self.results.append((sample["label"], sample["scores"].tolist()))

    def report(self, results: list[tuple]) -> list[Part]:
        truth = np.array([row[0] for row in results]) > 0
        scores = np.array([row[1] for row in results])
        names = self.names or [str(label) for label in range(truth.shape[1])]
        given = scores >= self.threshold
        ap = np.array([100 * average_precision(s, t) for s, t in zip(scores.T, truth.T)])
        rates = class_rates((truth & given).sum(0), truth.sum(0), given.sum(0))
        columns = {"images": truth.sum(0), "AP": ap, **rates}
        text = f"A label counts as predicted if its score is at least {self.threshold:g}."
        return [*curve_parts(scores, truth, names, ap), class_part(names, "AP", columns, text)]


def curve_parts(
    scores: np.ndarray, truth: np.ndarray, names: Sequence[str], ap: np.ndarray
) -> list[Part]:
    """Return curves of precision and recall for scores (N, C) and their truth, bool (N, C): the
    mean curve, and the curves of the best and the worst classes by their average precisions ``ap``
    (C,) in percent."""
    labelled = np.flatnonzero(truth.any(0)).tolist()
    if not labelled:
        return [Part("Precision and recall", text="No image of the test data has a label.")]
    curves = {names[c]: precision_curve(scores[:, c], truth[:, c]) for c in labelled}
    mean = np.mean(list(curves.values()), 0)
    overall = {"mean of the classes": {f"mAP {ap[labelled].mean():.1f}": mean}}
    text = (
        "The best precision at each recall; in brackets the average precision of the class, in "
        "percent."
    )
    lines = {(name,): curve for name, curve in {"(mean)": mean, **curves}.items()}
    by_class = {names[c]: float(ap[c]) for c in labelled}
    return [curve_part(_RECALL, overall, "classes", curves, by_class, text, ["class"], lines)]


REPORTS["MultiLabelAP"] = lambda metric: dict(
    type="MultiLabelReport", threshold=metric.get("threshold", 0.5)
)
REPORTS["TopKAccuracy"] = lambda metric: dict(
    type="ClassificationReport",
    ancestors=next(filter(None, (other.get("ancestors") for other in metric["evaluators"])), None),
)
