"""The report of a segmenter, ``hypvision test --out``: confusion matrix and worst images."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.registry import METRICS
from PIL import Image
from torch import Tensor

from hypvision.engine.reports import ReportMetric
from hypvision.io.images import open_image
from hypvision.tasks.classification_metrics import auroc, average_precision
from hypvision.tasks.classification_report import class_rates, confusion_parts, worst_first
from hypvision.viz.class_map import boundary_map, draw_class_map
from hypvision.viz.evaluation import Mistake, worst_part
from hypvision.viz.overlay import paint
from hypvision.viz.palette import label_colours
from hypvision.viz.report import Part
from hypvision.viz.sheet import fitted

_WORST = 10  # largest number of images on the sheet
_CELL = 220  # longer side of an image on the sheet in pixels
_REACHES = (2, 5, 10)  # how far from a border its pixels lie
_LEGEND = 40  # largest number of classes in the legend


@METRICS.register_module()
class SegmentationReport(ReportMetric):
    """Collects the label maps of a segmenter: how many pixels of each class were given each class,
    image by image, and the pictures of the worst images so far.

    Args:
        ignore_index: label of pixels without truth.
    """

    NOTHING = "No image has a label map and logits that are finite."

    def __init__(self, ignore_index: int = 255, **kwargs: Any):
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self._worst: list[tuple[float, int, dict[str, Any]]] = []

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            finite = "seg_logits" not in sample or bool(
                sample["seg_logits"]["data"].isfinite().all()
            )
            if "gt_sem_seg" not in sample or not finite:
                continue
            both = (sample[key]["data"].cpu().numpy() for key in ("pred_sem_seg", "gt_sem_seg"))
            found, truth = (labels.reshape(labels.shape[-2:]) for labels in both)
            known = truth != self.ignore_index
            pairs, counts = np.unique(
                np.stack([truth[known], found[known]]), axis=1, return_counts=True
            )
            entry = dict(
                path=str(sample["img_path"]),
                pairs=pairs,
                counts=counts,
                iou=mean_iou(pairs, counts),
            )
            if "uncertainty" in sample:
                maps = _maps(sample)
                rates = rate_maps(sample, maps, truth, found != truth, known)
                entry.update(maps=maps, rates=rates)
            self.results.append(entry)
            self._keep_if_bad(entry, truth, found)
            entry.pop("maps", None)

    def _keep_if_bad(self, entry: dict[str, Any], truth: np.ndarray, found: np.ndarray) -> None:
        """Draw an image that is among the worst so far, and drop the drawing of the one that no
        longer is."""
        item = (-entry["iou"], len(self.results), entry)
        if entry["iou"] >= 1 or np.isnan(entry["iou"]) or not Path(entry["path"]).is_file():
            return
        if len(self._worst) < _WORST:
            heapq.heappush(self._worst, item)
        elif item > self._worst[0]:
            del heapq.heapreplace(self._worst, item)[2]["pictures"]
        else:
            return
        image = fitted(open_image(entry["path"]), _CELL)
        known = truth != self.ignore_index
        entry["pictures"] = [image]
        for labels in (truth, found):
            labels = np.where(known, labels, -1) if labels is truth else labels
            small = np.asarray(
                Image.fromarray(labels.astype(np.int32)).resize(
                    image.size, Image.Resampling.NEAREST
                )
            )
            entry["pictures"].append(paint(image, small, label_colours(len(self.names)), 0.6))
        entry["pictures"] += [draw_class_map(image, heat) for heat in entry.get("maps", ())]

    def report(self, results: list[dict]) -> list[Part]:
        self._worst.clear()
        names = self.names
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        for entry in results:
            np.add.at(counts, tuple(entry["pairs"]), entry["counts"])
        return [
            *confusion_parts(counts, names, "pixels"),
            Part("Classes", "classes", table=pixel_table(counts, names)),
            *_uncertainty_parts([entry["rates"] for entry in results if "rates" in entry]),
            _worst_images(results, names),
        ]


def _maps(sample: dict[str, Any]) -> list[Tensor]:
    """Uncertainty and boundary map (H, W) of a model with hyperbolic pixels."""
    uncertain, radius = (sample[key]["data"][0].float().cpu() for key in ("uncertainty", "radius"))
    return [uncertain, boundary_map(radius)]


def rate_maps(
    sample: dict[str, Any],
    maps: list[Tensor],
    truth: np.ndarray,
    wrong: np.ndarray,
    known: np.ndarray,
) -> dict[tuple[str, str], tuple[float, float]]:
    """AUROC and average precision, in percent, of wrong pixels by uncertainty and by the entropy of
    the softmax, and of pixels near a border between two classes by the boundary map, over the
    labelled pixels of an image; a distance is the larger of its parts across and down."""
    shares = sample["seg_logits"]["data"].float().cpu().softmax(0)
    entropy = -torch.xlogy(shares, shares).sum(0)
    uncertain, borders = maps
    wanted = [("wrong pixels", "uncertainty", wrong, uncertain)]
    wanted.append(("wrong pixels", "entropy of the softmax", wrong, entropy))
    edges = torch.from_numpy(label_borders(truth, known)).float()[None]
    for reach in _REACHES:
        near = F.max_pool2d(edges, 2 * reach + 1, 1, reach)[0].numpy() > 0
        wanted.append((f"within {reach} pixels of a border", "boundary map", near, borders))
    rates = {}
    for what, by, true, scores in wanted:
        chosen = scores.numpy()[known]
        rates[what, by] = (
            100 * auroc(chosen, true[known]),
            100 * average_precision(chosen, true[known]),
        )
    return rates


def label_borders(truth: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Pixels, bool (H, W), that touch one of another class to the side, above or below."""
    found = np.zeros(truth.shape, dtype=bool)
    for here, there in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        apart = (truth[here] != truth[there]) & known[here] & known[there]
        found[here] |= apart
        found[there] |= apart
    return found


def _uncertainty_parts(rates: list[dict[tuple[str, str], tuple[float, float]]]) -> list[Part]:
    """The means over the images that have both kinds of pixels."""
    if not rates:
        return []
    rows: list[tuple[Any, ...]] = [("what", "by", "AUROC", "AP")]
    for what, by in rates[0]:
        found = np.array([entry[what, by] for entry in rates])
        found = found[np.isfinite(found).all(1)]
        rows.append((what, by, *(found.mean(0).tolist() if len(found) else (math.nan,) * 2)))
    text = "In percent, for each image over its labelled pixels; means over the images."
    return [Part("Uncertainty and borders", "uncertainty", text, table=rows)]


def mean_iou(pairs: np.ndarray, counts: np.ndarray) -> float:
    """Mean IoU of an image over the classes that it has, 0 to 1, by the pairs (2, N) of true and
    predicted class and their pixels (N,); NaN without a labelled pixel."""
    values = []
    for label in np.unique(pairs[0]):
        true, found = pairs == label
        values.append(counts[true & found].sum() / counts[true | found].sum())
    return float(np.mean(values)) if values else float("nan")


def pixel_table(counts: np.ndarray, names: Sequence[str]) -> list[tuple]:
    """IoU, recall and precision of each class in percent, the worst IoU first; empty for a class
    that is neither in the ground truth nor predicted."""
    right = np.diag(counts)
    either = counts.sum(1) + counts.sum(0) - right
    with np.errstate(invalid="ignore"):
        iou = (100 * right / either).tolist()
    true, recall, precision, _ = class_rates(right, counts.sum(1), counts.sum(0))
    rows = worst_first(zip(names, true, iou, recall, precision), 2)
    return [("class", "pixels", "IoU", "recall", "precision"), *rows]


def _worst_images(results: list[dict], names: list[str]) -> Part:
    table = worst_first([(entry["iou"], entry["path"]) for entry in results], 0)
    drawn = sorted(
        (entry for entry in results if "pictures" in entry), key=lambda entry: entry["iou"]
    )[:_WORST]
    rows = [("image", "mean IoU"), *((path, 100 * iou) for iou, path in table)]
    tiles = [
        Mistake(e["pictures"], [f"mean IoU {100 * e['iou']:.1f} %   {Path(e['path']).name}"])
        for e in drawn
    ]
    labels = sorted({int(label) for entry in drawn for label in np.unique(entry["pairs"])})
    colours = label_colours(len(names))
    more = len(labels) - _LEGEND
    legend: list[tuple[str, Any]] = [(names[label], colours[label]) for label in labels[:_LEGEND]]
    legend += [(f"and {more} more classes", None)] if more > 0 else []
    right = "Every image is segmented without a mistake."
    heading = "from left to right: image, truth, prediction"
    if any("rates" in entry for entry in drawn):
        heading += ", uncertainty, borders by the distance from the origin"
    text = (
        "By the mean IoU of an image over the classes that it has. Pixels without truth are not "
        "painted there."
    )
    wrong = any(iou < 1 for iou, _ in table)
    return worst_part(
        tiles, wrong, right, text, rows, columns=2, cell=_CELL, heading=heading, legend=legend
    )
