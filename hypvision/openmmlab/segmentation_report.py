"""The report on a segmenter by ``hypvision test --out``: confusion matrix and worst images."""

from __future__ import annotations

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
from hypvision.io import Plain
from hypvision.io.images import open_image
from hypvision.tasks.classification_metrics import auroc, average_precision
from hypvision.tasks.classification_report import class_part, confusion_parts, matrix_rates
from hypvision.viz.class_map import boundary_map, draw_class_map
from hypvision.viz.evaluation import Mistake, worst_part
from hypvision.viz.overlay import paint
from hypvision.viz.palette import label_colours
from hypvision.viz.report import Part
from hypvision.viz.sheet import fitted

_WORST = 10  # largest number of images on the sheet
_CELL = 220  # longer side of an image on the sheet in pixels
_REACHES = (2, 5, 10)  # distances from a border, in pixels, within which pixels count as near it
_LEGEND = 40  # largest number of classes in the legend
_MAPS = ("pred_sem_seg", "gt_sem_seg", "seg_logits", "uncertainty", "radius")


@METRICS.register_module()
class SegmentationReport(ReportMetric):
    """A metric that collects the label maps of a segmenter: for each image the number of pixels by
    true and predicted class, and the pictures of the worst images so far.

    Args:
        ignore_index: label of pixels without ground truth.
    """

    NOTHING = "No image has a label map and logits that are finite."

    def __init__(self, ignore_index: int = 255, **kwargs: Any):
        super().__init__(**kwargs)
        self.ignore_index = ignore_index
        self._worst: list[Plain] = []

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            maps = {key: value["data"] for key, value in sample.items() if key in _MAPS}
            logits = maps.get("seg_logits", torch.zeros(1))
            if "gt_sem_seg" not in maps or not logits.isfinite().all():
                continue
            found, truth = (
                maps[key].cpu().numpy().squeeze(0) for key in ("pred_sem_seg", "gt_sem_seg")
            )
            known = truth != self.ignore_index
            pairs, counts = np.unique(
                np.stack([truth[known], found[known]]), axis=1, return_counts=True
            )
            path = str(sample["img_path"])
            entry: Plain = dict(path=path, pairs=pairs, counts=counts, iou=mean_iou(pairs, counts))
            heats = []
            if "uncertainty" in maps:
                uncertain, radius = (
                    maps[key][0].float().cpu() for key in ("uncertainty", "radius")
                )
                heats = [uncertain, boundary_map(radius)]
                entry["rates"] = rate_maps(logits.float().cpu(), heats, truth, found, known)
            self.results.append(entry)
            if entry["iou"] < 1 and Path(path).is_file():
                self._keep_if_bad(entry, np.where(known, truth, -1), found, heats)

    def _keep_if_bad(
        self, entry: Plain, truth: np.ndarray, found: np.ndarray, heats: list[Tensor]
    ) -> None:
        """Draw an image that is among the worst so far, and drop the pictures of the one that no
        longer is."""
        order = sorted([*self._worst, entry], key=lambda item: item["iou"])
        self._worst = order[:_WORST]
        for dropped in order[_WORST:]:
            dropped.pop("pictures", None)
            if dropped is entry:
                return
        image = fitted(open_image(entry["path"]), _CELL)
        entry["pictures"] = [image]
        for labels in (truth, found):
            whole = Image.fromarray(labels.astype(np.int32))
            small = np.asarray(whole.resize(image.size, Image.Resampling.NEAREST))
            entry["pictures"].append(paint(image, small, label_colours(len(self.names)), 0.6))
        entry["pictures"] += [draw_class_map(image, heat) for heat in heats]

    def report(self, results: list[dict]) -> list[Part]:
        names = self.names
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        for entry in results:
            np.add.at(counts, tuple(entry["pairs"]), entry["counts"])
        return [
            *confusion_parts(counts, names, "pixels"),
            _classes(counts, names),
            *_uncertainty_parts([entry["rates"] for entry in results if "rates" in entry]),
            _worst_images(results, names),
        ]


def rate_maps(
    logits: Tensor, maps: list[Tensor], truth: np.ndarray, found: np.ndarray, known: np.ndarray
) -> dict[tuple[str, str], tuple[float, float]]:
    """Return AUROC and average precision, in percent, over the labelled pixels of an image: for
    wrong pixels by uncertainty and by the entropy of the softmax, and for pixels near a border
    between two classes by the boundary map. A pixel's distance from a border is the larger of its
    parts across and down. ``maps`` are the uncertainty and the boundary map, ``(H, W)``."""
    shares = logits.softmax(0)
    uncertain, borders = maps
    wanted = {
        ("wrong pixels", "uncertainty"): (found != truth, uncertain),
        ("wrong pixels", "entropy of the softmax"): (
            found != truth,
            -torch.xlogy(shares, shares).sum(0),
        ),
    }
    edges = torch.from_numpy(label_borders(truth, known)).float()[None]
    for reach in _REACHES:
        near = F.max_pool2d(edges, 2 * reach + 1, 1, reach)[0].numpy() > 0
        wanted[f"within {reach} pixels of a border", "boundary map"] = (near, borders)
    return {
        name: (
            100 * auroc(scores.numpy()[known], true[known]),
            100 * average_precision(scores.numpy()[known], true[known]),
        )
        for name, (true, scores) in wanted.items()
    }


def label_borders(truth: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return, as bool ``(H, W)``, the pixels that touch a pixel of another class on a side, above
    or below."""
    found = np.zeros(truth.shape, dtype=bool)
    for here, there in ((np.s_[:, 1:], np.s_[:, :-1]), (np.s_[1:], np.s_[:-1])):
        apart = (truth[here] != truth[there]) & known[here] & known[there]
        found[here] |= apart
        found[there] |= apart
    return found


def _uncertainty_parts(rates: list[dict[tuple[str, str], tuple[float, float]]]) -> list[Part]:
    """Return a table of the rates' means, each over the images that have both kinds of pixels."""
    if not rates:
        return []
    rows: list[tuple[Any, ...]] = [("what", "by", "AUROC", "AP")]
    for name in rates[0]:
        found = np.array([entry[name] for entry in rates])
        found = found[np.isfinite(found).all(1)]
        rows.append((*name, *(found.mean(0).tolist() if len(found) else (math.nan,) * 2)))
    text = "Rates in percent over the labelled pixels of an image, averaged over the images."
    return [Part("Uncertainty and borders", "uncertainty", text, table=rows)]


def mean_iou(pairs: np.ndarray, counts: np.ndarray) -> float:
    """Return the mean IoU of an image, 0 to 1, over the classes in its ground truth, from the pairs
    ``(2, N)`` of true and predicted class and their numbers of pixels ``(N,)``; NaN without a
    labelled pixel."""
    values = []
    for label in np.unique(pairs[0]):
        true, found = pairs == label
        values.append(counts[true & found].sum() / counts[true | found].sum())
    return float(np.mean(values)) if values else math.nan


def _classes(counts: np.ndarray, names: Sequence[str]) -> Part:
    """Return a part of the report with IoU, recall and precision of each class, in percent."""
    rates = matrix_rates(counts)
    f1 = rates.pop("F1")
    return class_part(
        names, "IoU", {"pixels": counts.sum(1), "IoU": 100 * f1 / (200 - f1), **rates}
    )


def _worst_images(results: list[dict], names: list[str]) -> Part:
    order = sorted(results, key=lambda entry: (math.isnan(entry["iou"]), entry["iou"]))
    rows = [("image", "mean IoU"), *((entry["path"], 100 * entry["iou"]) for entry in order)]
    drawn = [entry for entry in order if "pictures" in entry][:_WORST]
    tiles = [
        Mistake(e["pictures"], [f"mean IoU {100 * e['iou']:.1f} %   {Path(e['path']).name}"])
        for e in drawn
    ]
    labels = np.unique(np.concatenate([np.zeros(0, int), *(e["pairs"].flat for e in drawn)]))
    colours = label_colours(len(names))
    more = len(labels) - _LEGEND
    legend: list[Any] = [(names[label], colours[label]) for label in labels[:_LEGEND]]
    legend += [(f"and {more} more classes", None)] if more > 0 else []
    right = "Every image is segmented without a mistake."
    heading = "from left to right: image, truth, prediction"
    if any("rates" in entry for entry in drawn):
        heading += ", uncertainty, borders by the distance from the origin"
    text = (
        "Images are sorted by their mean IoU over the classes in their truth. Pixels without truth "
        "are not painted there."
    )
    wrong = any(entry["iou"] < 1 for entry in results)
    return worst_part(
        tiles, wrong, right, text, rows, columns=2, cell=_CELL, heading=heading, legend=legend
    )
