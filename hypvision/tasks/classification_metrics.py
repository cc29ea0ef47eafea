"""The metrics of classification: accuracy, calibration, accuracy at the levels of a hierarchy of
classes, and average precision for any number of labels per image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from mmengine.registry import METRICS
from torch import Tensor

from hypvision.engine.extensions import PREDICTION_ARGUMENTS
from hypvision.engine.metrics import Metric, OfClass
from hypvision.io import Ancestors, HypvisionError, Metrics, Plain, StrPath, at_least, between
from hypvision.io.files import write_json
from hypvision.io.records import read_record

from .metric_learning_metrics import GroupTree


def read_ancestors(given: Ancestors | StrPath, reader: str) -> Ancestors:
    """Return the groups above each class, from general to specific; ``given`` is a dict or a JSON
    file of it, and ``reader`` is the name of the metric for error messages."""
    expected = 'Expected: {"CLASS": ["GROUP", ...]}, from general to specific.'
    advice = f'{expected} Correct "ancestors" of the {reader} in the config.'
    if isinstance(given, (str, Path)):
        return cast(Ancestors, read_record(dict[str, list[str]], given, advice))
    wrong = [name for name, groups in given.items() if isinstance(groups, str)]
    if wrong:
        raise HypvisionError(
            f"The groups above '{wrong[0]}' are {given[wrong[0]]!r}, which is not a list. {advice}"
        )
    return given


class ScoreMetric(Metric):
    """A metric computed from the ``scores`` that a classifier predicts and the ``label`` and
    ``index`` of each image.

    Images without a label are ignored; if no image has one, the metrics are NaN.
    """

    multi_label = False

    def process(self, data_batch: Any, data_samples: Sequence[Plain]) -> None:
        """Keep what the metric needs of each image; raise an error that names the image if a score
        is not finite."""
        labels = [sample["label"] for sample in data_samples if sample["label"] is not None]
        if any(isinstance(label, list) != self.multi_label for label in labels):
            raise HypvisionError(
                f"{type(self).__name__} measures "
                f"{'several labels' if self.multi_label else 'one label'} an image, but the data "
                "has another kind of labels. Set val_evaluator and test_evaluator to "
                "dict(type='MultiLabelAP') for a MultiLabelDataset, and to "
                "dict(type='TopKAccuracy') for other data."
            )
        wrong = [] if self.multi_label else [label for label in labels if label < 0]
        if wrong:
            raise HypvisionError(
                f"{type(self).__name__} needs images of one class each (or no label); got the "
                f"label {wrong[0]}. Correct the labels of the data set."
            )
        scores = torch.stack([sample["scores"] for sample in data_samples])
        if self.check(scores, "A score", data_samples):
            self.results += self.of_scores(scores, data_samples)

    def of_scores(self, scores: Tensor, samples: Sequence[Plain]) -> Iterable[tuple]:
        """Return what the metric keeps of each image, in the order of ``scores`` ``(N, C)``."""
        raise NotImplementedError

    def labelled(self, results: list[tuple], place: int) -> list[tuple]:
        """Return the results of the images that have a label; ``place`` is the position of the
        label in a result."""
        known = [result for result in results if result[place] is not None]
        if len(known) < len(results):
            self.without_truth = [f"{len(results) - len(known)} of {len(results)} images"]
        return known


@METRICS.register_module()
class TopKAccuracy(ScoreMetric):
    """Share of images, in percent, whose class is among the k classes of highest score: ``top1``,
    ``top5``, ...; a k above the number of classes is left out. The log shows the accuracy of each
    class, the worst first.

    Args:
        macro: add ``macro``, the mean of the classes' ``top1``, in which all classes have the same
            weight.
        out_file: path of a JSON file for the metrics, the accuracy of each class and every
            prediction.
    """

    def __init__(
        self,
        topk: tuple[int, ...] = (1, 5),
        out_file: str | None = None,
        macro: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.topk = tuple(topk)
        self.out_file = out_file
        self.macro = macro
        for k in self.topk:
            at_least(1, integer=True, topk=k)

    def of_scores(self, scores: Tensor, samples: Sequence[Plain]) -> Iterable[tuple]:
        """Return ``(index, label, best classes, their scores)`` of each image."""
        best, classes = scores.topk(min(max(self.topk), scores.shape[1]))
        labels = [(sample.get("index"), sample["label"]) for sample in samples]
        return [(*label, *found) for label, *found in zip(labels, classes.tolist(), best.tolist())]

    def compute_metrics(self, results: list[tuple]) -> Metrics:
        known = self.labelled(results, 1)
        names = (self.dataset_meta or {}).get("classes")
        depth = len(results[0][2]) if results else len(names or range(max(self.topk)))
        metrics = {
            f"top{k}": _percent([label in best[:k] for _, label, best, _ in known])
            for k in self.topk
            if k <= depth
        }
        self.classes = _of_classes(known, names)
        if self.macro:
            metrics["macro"] = fmean(found.value for found in self.classes) if known else math.nan
        if self.out_file is not None:
            self._write(self.out_file, metrics, names, results)
        return metrics

    def _write(self, path: str, metrics: Metrics, names: Any, results: list[tuple]) -> None:
        report = dict(
            metrics=metrics,
            classes=None if names is None else list(names),
            top1_per_class={found.name: found.value for found in self.classes},
            predictions=[dict(index=i, label=y, classes=c, scores=s) for i, y, c, s in results],
        )
        write_json(path, report, indent=None)


def _of_classes(known: list[tuple], names: Sequence[str] | None) -> list[OfClass]:
    """Return the accuracy of each class that has at least one image."""
    hits: dict[int, list[bool]] = {}
    for _, label, best, _ in known:
        hits.setdefault(label, []).append(best[0] == label)
    return [
        OfClass(str(names[c] if names else c), 100.0 * fmean(h), len(h))
        for c, h in sorted(hits.items())
    ]


def _percent(hits: Sequence[bool]) -> float:
    return 100.0 * sum(hits) / len(hits) if hits else math.nan


@METRICS.register_module()
class CalibrationError(ScoreMetric):
    """Expected calibration error in percent (Naeini et al., AAAI 2015), as ``ece``: confidences are
    sorted into ``bins`` bins of equal width, and ``ece`` is the mean, over all images, of the gap
    between mean confidence and accuracy in the bin of the image."""

    def __init__(self, bins: int = 15, **kwargs: Any):
        super().__init__(**kwargs)
        at_least(1, integer=True, bins=bins)
        self.bins = bins

    def of_scores(self, scores: Tensor, samples: Sequence[Plain]) -> Iterable[tuple]:
        """Yield the confidence of each image, and whether its class is right (None without a
        label)."""
        if not ((scores >= 0) & (scores <= 1)).all() or ((scores.sum(1) - 1).abs() > 1e-2).any():
            raise HypvisionError(
                "CalibrationError needs probabilities: numbers from 0 to 1 that sum to 1. Other "
                "scores, such as the similarities of a CLIP, have no calibration. Leave "
                "CalibrationError out of the evaluators."
            )
        labels = [sample["label"] for sample in samples]
        for confidence, best, label in zip(*(part.tolist() for part in scores.max(1)), labels):
            yield confidence, None if label is None else best == label

    def compute_metrics(self, results: list[tuple]) -> Metrics:
        known = self.labelled(results, 1)
        if not known:
            return {"ece": math.nan}
        confidence, right = torch.tensor(known, dtype=torch.float64).unbind(1)
        place = (confidence * self.bins).long().clamp(max=self.bins - 1)
        gaps = torch.zeros(self.bins, dtype=torch.float64).index_add_(0, place, right - confidence)
        return {"ece": 100.0 * gaps.abs().sum().item() / len(known)}


@METRICS.register_module()
class GroupAccuracy(ScoreMetric):
    """Accuracy at the upper levels of a hierarchy of classes, and the distance of mistakes in it.

    For each level the share of images, in percent, whose predicted class is in the right group; and
    ``mistake_distance``, the mean number of edges between the predicted and the true class over the
    images that are wrong: 2 for a sibling, 0 if no image is wrong (Bertinetto et al., CVPR 2020,
    report half of this distance, the height).

    Args:
        ancestors: the groups above each class, from general to specific, by the names of the
            classes; or a JSON file of this dict.
        levels: names of the levels, from general to specific.
    """

    def __init__(self, ancestors: Ancestors | str, levels: Sequence[str], **kwargs: Any):
        super().__init__(**kwargs)
        self.ancestors = read_ancestors(ancestors, "GroupAccuracy")
        self.levels = tuple(levels)

    def of_scores(self, scores: Tensor, samples: Sequence[Plain]) -> Iterable[tuple]:
        """Return ``(label, best class)`` of each image."""
        return zip([sample["label"] for sample in samples], scores.argmax(1).tolist())

    def compute_metrics(self, results: list[tuple]) -> Metrics:
        known = self.labelled(results, 0)
        if not known:
            return dict.fromkeys([*self.levels, "mistake_distance"], math.nan)
        above = []
        for name in self.class_names():
            above.append(tuple(self.ancestors.get(name, ())))
            if len(above[-1]) != len(self.levels):
                raise HypvisionError(
                    f"The class '{name}' has the groups {above[-1]} above it, but the levels are "
                    f"{', '.join(self.levels)}. Correct 'ancestors' of the GroupAccuracy in the "
                    "config."
                )
        heights = GroupTree(above).heights(*torch.tensor(known).T)
        wrong = heights[heights > 0].double()
        metrics = {
            level: 100.0 * float((heights <= len(self.levels) - place).double().mean())
            for place, level in enumerate(self.levels)
        }
        return metrics | {"mistake_distance": 2 * float(wrong.mean()) if len(wrong) else 0.0}


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the average precision of ``scores`` ``(N,)`` for ``truth``, bool ``(N,)``: the mean of
    the precisions at each true sample, ordered by score; 0 to 1, or NaN without a true sample.
    Samples with equal scores count as found at once, as in scikit-learn."""
    if not truth.any():
        return math.nan
    found, taken = found_at_thresholds(scores, truth)
    return float(np.sum(np.diff(found, prepend=0) * found / taken) / truth.sum())


def mean_average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean over the classes that have a true sample of :func:`average_precision`, for
    ``scores`` ``(N, C)`` and ``truth``, bool ``(N, C)``; NaN without a true sample."""
    labelled = np.flatnonzero(truth.any(axis=0))
    if not len(labelled):
        return math.nan
    return fmean(average_precision(scores[:, c], truth[:, c]) for c in labelled)


def auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the area under the ROC curve: the share of pairs of a true and a false sample in which
    the true one has the higher score (equal scores count half); 0 to 1, or NaN if all samples are
    true or all false. The arguments are those of :func:`average_precision`."""
    if truth.all() or not truth.any():
        return math.nan
    found, taken = found_at_thresholds(scores, truth)
    true = np.concatenate([[0], found]) / truth.sum()
    false = np.diff(taken - found, prepend=0) / (~truth).sum()
    return float(np.sum(false * (true[1:] + true[:-1]) / 2))


def found_at_thresholds(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each distinct score from high to low, the number of true samples and the number
    of all samples with at least this score."""
    order = np.argsort(-scores, kind="stable")
    # Positions of the last sample of each group with equal scores.
    ends = np.flatnonzero(np.diff(scores[order], append=-np.inf))
    return np.cumsum(truth[order])[ends], ends + 1


@METRICS.register_module()
class MultiLabelAP(ScoreMetric):
    """Metrics of a classifier with ``multi_label=True``, in percent: ``mAP``, the mean of the
    classes' average precisions, and ``f1``, the mean of their F1 scores when labels with a score of
    at least ``threshold`` are predicted. Classes without an image are ignored. The log shows the
    average precision of each class, the worst first; ``out_file`` is the path of a JSON file for
    the metrics, the average precision of each class and every prediction."""

    multi_label = True

    def __init__(self, threshold: float = 0.5, out_file: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        between(0, 1, threshold=threshold)
        self.threshold = threshold
        self.out_file = out_file

    def of_scores(self, scores: Tensor, samples: Sequence[Plain]) -> Iterable[tuple]:
        """Return ``(index, labels, scores)`` of each image."""
        return [
            (sample["index"], sample["label"], row) for sample, row in zip(samples, scores.tolist())
        ]

    def compute_metrics(self, results: list[tuple]) -> Metrics:
        known = self.labelled(results, 1)
        metrics = dict(mAP=math.nan, f1=math.nan)
        if known:
            truth = np.array([row[1] for row in known]) > 0
            scores = np.array([row[2] for row in known])
            f1 = self._measure_classes(truth, scores)
            if self.classes:
                metrics = dict(mAP=fmean(found.value for found in self.classes), f1=fmean(f1))
        if self.out_file is not None:
            report = dict(
                metrics=metrics,
                ap_per_class={found.name: found.value for found in self.classes},
                predictions=[dict(index=i, labels=y, scores=row) for i, y, row in results],
            )
            write_json(self.out_file, report, indent=None)
        return metrics

    def _measure_classes(self, truth: np.ndarray, scores: np.ndarray) -> list[float]:
        """Keep the average precision of each class that has an image in ``self.classes``, and
        return the F1 scores of these classes in percent."""
        names = (self.dataset_meta or {}).get("classes") or [*map(str, range(truth.shape[1]))]
        labelled = truth.any(0)
        lacking = [names[c] for c in np.flatnonzero(~labelled)]
        self.without_truth = [*self.without_truth, *lacking]
        self.classes = [
            OfClass(
                str(names[c]),
                100 * average_precision(scores[:, c], truth[:, c]),
                int(truth[:, c].sum()),
            )
            for c in np.flatnonzero(labelled)
        ]
        wanted = truth[:, labelled]
        given = scores[:, labelled] >= self.threshold
        f1: list[float] = (200 * (wanted & given).sum(0) / (wanted.sum(0) + given.sum(0))).tolist()
        return f1


PREDICTION_ARGUMENTS |= dict(TopKAccuracy="out_file", MultiLabelAP="out_file")
