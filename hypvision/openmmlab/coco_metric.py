"""COCO's average precision as in mmdet, but with each class's own name, and NaN for classes without
ground truth.

Importing this module imports mmdet, and replaces its CocoMetric by :class:`CheckedCocoMetric`.
pycocotools by itself sorts the numbers of the categories, returns -1 for a mean over nothing, and
takes a box that is NaN for a perfect one.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmdet.datasets.api_wrappers import COCOeval as DetCOCOeval
from mmdet.datasets.api_wrappers import COCOevalMP
from mmdet.evaluation import CocoMetric
from mmdet.evaluation.metrics import coco_metric
from mmdet.registry import METRICS
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from hypvision.engine.metrics import Metric
from hypvision.io import Metrics, Plain

_logger = logging.getLogger(__name__)

_SIZES = ("small", "medium", "large")


class _InOrder(COCOeval):
    """A mix-in for pycocotools' evaluation: results are in the order of ``params.catIds``, and
    means over nothing are NaN.

    Average precision is always that of 100 detections an image, whatever ``params.maxDets`` says
    for recalls.
    """

    def evaluate(self) -> None:
        self.wanted = list(self.params.catIds)
        self.counts = sorted(self.params.maxDets)
        self.params.maxDets = sorted({*self.counts, 100})
        super().evaluate()

    def accumulate(self, p=None) -> None:
        """Accumulate as pycocotools does, and put the classes in ``eval`` in the order of
        ``catIds``."""
        super().accumulate(p)
        if self.params.useCats:
            place = {number: row for row, number in enumerate(self.params.catIds)}
            order = [place[number] for number in self.wanted]
            axes = dict(precision=2, recall=1, scores=2)
            self.eval |= {name: self.eval[name].take(order, axis) for name, axis in axes.items()}
            self.eval["params"] = copy.copy(self.params)
            self.eval["params"].catIds = self.wanted

    def summarize(self) -> None:
        """Compute ``stats``: AP, AP50, AP75, the AP of small, medium and large objects, and as many
        recalls."""
        counts = [self.counts[min(k, len(self.counts) - 1)] for k in (0, 1)] + self.counts[-1:]
        most = self.params.maxDets[-1]
        self.stats = np.array([
            self._mean("precision", 100),
            self._mean("precision", most, threshold=0.5),
            self._mean("precision", most, threshold=0.75),
            *(self._mean("precision", most, area) for area in _SIZES),
            *(self._mean("recall", count) for count in counts),
            *(self._mean("recall", counts[-1], area) for area in _SIZES),
        ])  # fmt: skip

    def _mean(
        self, name: str, count: int, area: str = "all", threshold: float | None = None
    ) -> float:
        p = self.params
        values = self.eval[name][..., p.areaRngLbl.index(area), p.maxDets.index(count)]
        if threshold is not None:
            values = values[np.isclose(p.iouThrs, threshold)]
        known = values[values > -1]
        mean = float(known.mean()) if known.size else math.nan
        title = dict(precision="Average Precision  (AP)", recall="Average Recall     (AR)")[name]
        ious = (
            f"{p.iouThrs[0]:.2f}:{p.iouThrs[-1]:.2f}" if threshold is None else f"{threshold:.2f}"
        )
        print(f" {title} @[ IoU={ious:<9} | area={area:>6s} | maxDets={count:>3d} ] = {mean:0.3f}")
        return mean


class CheckedCOCOeval(_InOrder, DetCOCOeval):
    """mmdet's evaluation with results in the order of ``params.catIds``, and NaN for means over
    nothing."""


class _InProcesses(_InOrder, COCOevalMP):
    """The evaluation of :class:`CheckedCOCOeval` by several processes."""


coco_metric.COCOeval = CheckedCOCOeval
coco_metric.COCOevalMP = _InProcesses


@METRICS.register_module(name="CocoMetric", force=True)
class CheckedCocoMetric(Metric, CocoMetric):
    """mmdet's CocoMetric, with NaN for classes without ground truth, and with recalls named by
    their numbers of proposals.

    ``proposal_nums`` may be any numbers: the average precision is always that of 100 detections.
    """

    default_prefix = "coco"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.place = "" if self._coco_api is None else self._coco_api.place
        if "segm" in self.metrics and self._coco_api is not None:
            self._coco_api.check_masks()

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Process a batch as mmdet does; a box or a score that is not finite is an error, which
        names the image."""
        for sample in data_samples:
            # Without a file of annotations the metric writes one of its own, which says nothing.
            self.place = self.place or str(Path(sample.get("img_path") or "").parent)
            found = sample["pred_instances"]
            for key, what in (
                ("bboxes", "A box"),
                ("scores", "A score"),
                ("mask_scores", "The score of a mask"),
            ):
                if key in found and not self.check(found[key].reshape(1, -1), what, [sample]):
                    return
        super().process(data_batch, data_samples)

    def compute_metrics(self, results: list) -> Metrics:
        if not results:
            return {self._named(name): math.nan for name in self._names()}
        self.class_names()
        if not any(len(found["scores"]) for _, found in results):
            _logger.warning(
                "Nothing was detected in the %d images of '%s', so the precision is 0 where there "
                "is an object. This is usual after a few steps of training; otherwise train for "
                "longer, or lower score_thr in model.test_cfg.", len(results), self.place,
            )  # fmt: skip
        with np.errstate(invalid="ignore"):  # NumPy warns about means of empty arrays
            found = super().compute_metrics(results)
        if not self.format_only:
            self.without_truth = self._classes_without_truth()
        return {self._named(name): value for name, value in found.items()}

    def _names(self) -> list[str]:
        recalls = ("AR@100", "AR@300", "AR@1000", "AR_s@1000", "AR_m@1000", "AR_l@1000")
        found: list[str] = []
        for metric in self.metrics:
            if metric == "proposal":
                found += self.metric_items or recalls
            elif metric == "proposal_fast":
                found += [f"AR@{count}" for count in self.proposal_nums]
            else:
                items = self.metric_items or ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")
                found += [f"{metric}_{item}" for item in items]
        return found

    def _named(self, name: str) -> str:
        """Return the name of a metric with the true number of proposals; mmdet says 100, 300 and
        1000 for the first, second and last number, whatever these are."""
        counts = sorted(self.proposal_nums)
        of_mmdet = {"100": counts[0], "300": counts[min(1, len(counts) - 1)], "1000": counts[-1]}
        kind, at, count = name.partition("@")
        return f"{kind}@{of_mmdet.get(count, count)}" if at and "proposal" in self.metrics else name

    def _classes_without_truth(self) -> list[str]:
        images = set(self.img_ids)
        classes = self.class_names()
        annotations = self._coco_api.dataset.get("annotations", ())
        known = {
            x["category_id"]
            for x in annotations
            if not x.get("iscrowd") and x["image_id"] in images
        }
        return [name for name, number in zip(classes, self.cat_ids) if number not in known]

    def reference(self, truth: Sequence[dict]) -> tuple[COCO, list[int]]:
        """Return the ground truth, from the annotation file or from the samples, and the number of
        each class in it."""
        names = self.class_names()
        if self._coco_api is not None:
            return self._coco_api, list(self._coco_api.get_cat_ids(cat_names=names))
        annotations: list[Plain] = []
        for item in truth:
            for instance in item["anns"]:
                left, top, right, bottom = (float(value) for value in instance["bbox"])
                width = right - left
                height = bottom - top
                annotation = dict(
                    id=len(annotations) + 1, image_id=item["img_id"],
                    category_id=int(instance["bbox_label"]), bbox=[left, top, width, height],
                    area=width * height, iscrowd=int(instance.get("ignore_flag", 0)),
                )  # fmt: skip
                if instance.get("mask") is not None:
                    annotation["segmentation"] = instance["mask"]
                annotations.append(annotation)
        reference = COCO()
        images = [
            dict(id=item["img_id"], width=item["width"], height=item["height"]) for item in truth
        ]
        categories = [dict(id=number, name=name) for number, name in enumerate(names)]
        reference.dataset = dict(images=images, annotations=annotations, categories=categories)
        with contextlib.redirect_stdout(io.StringIO()):
            reference.createIndex()
        return reference, list(range(len(names)))


def detections_of(predictions: Sequence[dict], ids: list[int], metric: str) -> list[dict]:
    """Return the detections in all images, in COCO's format; ``metric`` is ``"bbox"`` or
    ``"segm"``."""
    found = []
    for item in predictions:
        for k, (box, score, label) in enumerate(
            zip(item["bboxes"], item["scores"], item["labels"])
        ):
            left, top, right, bottom = (float(value) for value in box)
            entry = dict(image_id=item["img_id"], category_id=ids[int(label)], score=float(score))
            if metric == "segm":
                entry["segmentation"] = item["masks"][k]
            else:
                entry["bbox"] = [left, top, right - left, bottom - top]
            found.append(entry)
    return found


def precision_curves(
    reference: COCO, detections: list[dict], ids: list[int], images: list, metric: str
) -> np.ndarray:
    """Return the precision ``(thresholds, recalls, classes)``, from 0 to 1, of up to 100 detections
    an image, at pycocotools' ten IoUs from 0.5 and 101 recalls from 0; -1 for classes without an
    object."""
    with contextlib.redirect_stdout(io.StringIO()):
        # loadRes of pycocotools refuses an empty list.
        if detections:
            found = reference.loadRes(detections)
        else:
            found = COCO()
            found.dataset = dict(reference.dataset, annotations=[])
            found.createIndex()
        # pycocotools evaluates classes in the order of their ids, CheckedCOCOeval in that of
        # catIds.
        run = CheckedCOCOeval(reference, found, metric)
        run.params.catIds = ids
        run.params.imgIds = sorted(set(images))
        run.evaluate()
        run.accumulate()
    return run.eval["precision"][:, :, :, 0, -1]
