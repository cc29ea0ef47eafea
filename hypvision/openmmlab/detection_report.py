"""The report on a detector by ``hypvision test --out``: curves of precision and recall, the
confusion matrix, and the worst images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.registry import METRICS
from pycocotools import mask
from scipy.optimize import linear_sum_assignment

from hypvision.engine.reports import ReportMetric
from hypvision.io.images import open_image
from hypvision.tasks.classification_report import class_part, confusion_parts
from hypvision.viz.evaluation import Mistake, curve_part, worst_part
from hypvision.viz.overlay import draw_boxes
from hypvision.viz.report import Part
from hypvision.viz.sheet import fitted

from .coco_metric import CheckedCocoMetric, detections_of, precision_curves

# Lowest score and IoU of a box that counts as found (but not in curves), as in mmdet's confusion
# matrix.
_SCORE = 0.3
_IOU = 0.5
_WORST = 12  # largest number of images on the sheet
_CELL = 300  # longer side of an image on the sheet in pixels
_COLOURS = dict(found=(46, 140, 60), missed=(240, 160, 20), false=(205, 40, 40))


class Matches(NamedTuple):
    """The matches between the true and the predicted boxes of an image, as numbers of boxes."""

    pairs: list[tuple[int, int]]  # a true box, and the predicted box on it
    missed: list[int]  # true boxes without a predicted one
    false: list[int]  # predicted boxes on nothing, or on an object that has a better one


@METRICS.register_module()
class DetectionReport(ReportMetric):
    """A metric that collects the boxes of a detector for its report.

    Args:
        ann_file: annotation file of the ground truth; None: the ground truth of the samples.
        backend_args: see mmdet's CocoMetric.
    """

    NOTHING = "No image has boxes that are finite."

    def __init__(
        self, ann_file: str | None = None, backend_args: dict | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.boxes = CheckedCocoMetric(ann_file, metric="bbox", backend_args=backend_args)
        self.boxes.allow_nonfinite = True

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        self.boxes.dataset_meta = self.dataset_meta
        for sample in data_samples:
            found = sample["pred_instances"]
            plain = {key: found[key] for key in ("bboxes", "scores", "labels")}
            self.boxes.process({}, [{**sample, "pred_instances": plain}])
            self.results += [(*item, str(sample["img_path"])) for item in self.boxes.results]
            self.boxes.results.clear()

    def report(self, results: list[tuple]) -> list[Part]:
        names = self.names
        truth, predictions, paths = zip(*results)
        self.boxes.dataset_meta = self.dataset_meta
        reference, ids = self.boxes.reference(truth)
        images = [item["img_id"] for item in truth]
        curves = precision_curves(
            reference, detections_of(predictions, ids, "bbox"), ids, images, "bbox"
        )
        annotations = [reference.loadAnns(reference.getAnnIds(imgIds=[image])) for image in images]
        counts = np.zeros((len(names) + 1, len(names) + 1), dtype=np.int64)
        scenes = []
        place = {number: label for label, number in enumerate(ids)}
        for known, item, path in zip(annotations, predictions, paths):
            known = [annotation for annotation in known if annotation["category_id"] in place]
            scenes.append(_Scene(path, known, item, [place[a["category_id"]] for a in known]))
            scenes[-1].count(counts)
        text = f"Boxes with a score of at least {_SCORE}, matched at an IoU of at least {_IOU}."
        matrix, *confused = confusion_parts(
            counts, names, "boxes", extra=("(no object)", "(missed)")
        )
        return [
            *curve_parts(curves, names),
            class_part(names, "AP", box_columns(curves, counts), text),
            replace(matrix, text=f"{matrix.text} {text}"),
            *confused,
            _worst_images(scenes, names),
        ]


def match_boxes(
    truth: np.ndarray,
    labels: np.ndarray,
    crowd: np.ndarray,
    found: np.ndarray,
    found_labels: np.ndarray,
) -> Matches:
    """Pair true and predicted boxes ``x, y, width, height`` one to one by their IoU, first those of
    the same class, then any. Predictions inside a ``crowd``, a box around several objects, count
    neither as right nor as wrong."""
    if not len(truth) or not len(found):
        return Matches([], np.flatnonzero(~crowd).tolist(), list(range(len(found))))
    iou = np.asarray(mask.iou(found.astype(float), truth.astype(float), crowd.astype(np.uint8))).T
    near = iou >= _IOU
    # A pair of one class must count for more than all other pairs together.
    gain = near * (iou + len(truth) * (labels[:, None] == found_labels)) * ~crowd[:, None]
    both = zip(*(rows.tolist() for rows in linear_sum_assignment(gain, maximize=True)))
    pairs = [(t, p) for t, p in both if gain[t, p] > 0]
    missed = {*np.flatnonzero(~crowd).tolist()} - {t for t, _ in pairs}
    false = {*np.flatnonzero(~near[crowd].any(0)).tolist()} - {p for _, p in pairs}
    return Matches(pairs, sorted(missed), sorted(false))


class _Scene:
    """An image with its true and predicted boxes, and their matches."""

    def __init__(self, path: str, annotations: list[dict], found: dict, labels: list[int]):
        self.path = path
        self.labels = np.array(labels, dtype=int)
        self.truth = np.array([a["bbox"] for a in annotations], dtype=float).reshape(-1, 4)
        crowd = np.array([bool(a.get("iscrowd")) for a in annotations], dtype=bool)
        sure = np.asarray(found["scores"]) >= _SCORE
        corners = np.asarray(found["bboxes"], dtype=float).reshape(-1, 4)[sure]
        self.found = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        self.found_labels = np.asarray(found["labels"])[sure]
        self.scores = np.asarray(found["scores"])[sure]
        self.matches = match_boxes(self.truth, self.labels, crowd, self.found, self.found_labels)
        self.confused = [
            (t, p) for t, p in self.matches.pairs if self.labels[t] != self.found_labels[p]
        ]
        # The counts are those of missed objects, objects with a wrong class, and extra boxes;
        # badness weights extra boxes by their scores.
        self.counted = len(self.matches.missed), len(self.confused), len(self.matches.false)
        self.badness = sum(self.counted[:2]) + float(self.scores[self.matches.false].sum())

    def count(self, counts: np.ndarray) -> None:
        """Add the boxes to a confusion matrix, whose last row stands for "no object" and whose last
        column for "no box"."""
        for t, p in self.matches.pairs:
            counts[self.labels[t], self.found_labels[p]] += 1
        for t in self.matches.missed:
            counts[self.labels[t], -1] += 1
        for p in self.matches.false:
            counts[-1, self.found_labels[p]] += 1

    def draw(self, names: Sequence[str]) -> Mistake:
        image = open_image(self.path)
        small = fitted(image, _CELL)
        wrong = {p for _, p in self.confused}
        false = [*self.matches.false, *wrong]
        right = [p for _, p in self.matches.pairs if p not in wrong]
        missed = [*self.matches.missed, *(t for t, _ in self.confused)]
        texts = [
            f"{names[self.found_labels[p]]} {100 * self.scores[p]:.0f}" for p in [*false, *right]
        ]
        texts += [names[self.labels[t]] for t in missed]
        colours = np.repeat(
            [_COLOURS[kind] for kind in ("false", "found", "missed")],
            [len(false), len(right), len(missed)],
            axis=0,
        )
        corners = np.concatenate([self.found[[*false, *right]], self.truth[missed]])
        corners *= small.width / image.width
        corners[:, 2:] += corners[:, :2]
        what = zip(self.counted, ("missed", "of another class", "extra"))
        line = ", ".join(f"{count} {text}" for count, text in what if count)
        return Mistake([draw_boxes(small, corners, texts, colours)], [line])


def curve_parts(curves: np.ndarray, names: Sequence[str]) -> list[Part]:
    """Return the curves of precision and recall of all classes and of each class as a part of the
    report. ``curves`` is ``(10 IoUs, 101 recalls, C)``, -1 for classes without an object."""
    known = np.flatnonzero((curves > -1).all((0, 1)))
    if not len(known):
        return [Part("Precision and recall", text="There is no object in the test data.")]
    recall = np.linspace(0, 1, curves.shape[1])
    mean = curves[:, :, known].mean(2)
    overall = {
        f"{50 + 10 * i} %  (AP {100 * mean[2 * i].mean():.1f})": mean[2 * i] for i in range(5)
    }
    lines = {names[c]: curves[:, :, c] for c in known.tolist()}
    every = {
        (name, iou): line[place]
        for name, line in {"(mean)": mean, **lines}.items()
        for iou, place in ((0.5, 0), (0.75, 5))
    }
    text = "Precision at 101 recalls, as pycocotools has it. The area below a curve is its AP."
    found = {name: line[0] for name, line in lines.items()}
    ap = {name: 100 * line[0].mean() for name, line in lines.items()}
    panels = {"mean of the classes, by IoU": overall}
    head = ("class", "IoU")
    return [curve_part(recall, panels, "classes at an IoU of 50 %", found, ap, text, head, every)]


def box_columns(curves: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns for a table of classes: AP in percent, from the curves of :func:`curve_parts`,
    and the numbers of objects that were found, confused and missed, from the confusion matrix ``(C
    + 1, C + 1)``."""
    ap = np.where((curves > -1).all((0, 1)), 100 * curves.mean(1), np.nan)
    objects = counts[:-1].sum(1)
    right = np.diag(counts)[:-1]
    missed = counts[:-1, -1]
    return {
        "AP": ap.mean(0),
        "AP50": ap[0],
        "AP75": ap[5],
        "objects": objects,
        "found": right,
        "of another class": objects - right - missed,
        "missed": missed,
        "extra boxes": counts[-1, :-1],
    }


def _worst_images(scenes: Sequence[_Scene], names: Sequence[str]) -> Part:
    order = sorted(scenes, key=lambda scene: -scene.badness)
    head = ("image", "missed", "of another class", "extra boxes")
    table = [head, *((scene.path, *scene.counted) for scene in order)]
    wrong = [scene for scene in order if scene.badness > 0]
    # Generated images have no file, so they cannot be drawn.
    worst = [scene for scene in wrong if Path(scene.path).is_file()][:_WORST]
    legend = [
        ("found, with the score", _COLOURS["found"]),
        ("an object that was missed or called something else", _COLOURS["missed"]),
        ("an extra box, or one of another class", _COLOURS["false"]),
    ]
    text = f"{len(scenes) - len(wrong)} of {len(scenes)} images have no mistake. "
    text += "An extra box lies on nothing, or on an object that has one."
    right = "Every object is found, and nothing else."
    tiles = [scene.draw(names) for scene in worst]
    return worst_part(tiles, bool(wrong), right, text, table, columns=3, cell=_CELL, legend=legend)
