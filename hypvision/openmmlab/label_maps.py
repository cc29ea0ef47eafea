"""The metric of mmseg with label maps as files (``hypvision test --out FOLDER``).

Importing this module imports mmseg, and replaces mmseg's IoUMetric by :class:`LabelMapIoUMetric`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmseg.evaluation import IoUMetric
from mmseg.registry import METRICS
from PIL import Image

from hypvision.engine.extensions import RUN_HOOKS
from hypvision.engine.metrics import Metric
from hypvision.io import Metrics
from hypvision.io.files import below, replacing
from hypvision.io.images import output_names

_SCORES = ("seg_logits", "pred_sem_seg")


@METRICS.register_module(name="IoUMetric", force=True)
class LabelMapIoUMetric(Metric, IoUMetric):
    """mmseg's IoUMetric, with safe files of label maps: each appears complete or not at all, is
    never written through a link, and has a name of its own even where several images have one name.
    Label maps have 16 bits where 8 do not suffice.

    A warning lists classes without a pixel in the ground truth: mmseg omits them from means if they
    were not predicted either, and counts them as 0 in ``mIoU`` if they were. Without any ground
    truth all metrics are NaN.
    """

    output_dir: str | None
    map_names: dict[str, str] | None = None
    """Path of an image -> name of its label map; None: the image's own name."""

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Process a batch as mmseg does; logits that are not finite are an error, which names the
        image."""
        count = len(self.class_names())
        for sample in data_samples:
            if not all(
                self.check(sample[key]["data"][None], "A logit", [sample])
                for key in _SCORES
                if key in sample
            ):
                return
        folder = self.output_dir
        self.output_dir = None
        try:
            super().process(data_batch, data_samples)
        finally:
            self.output_dir = folder
        if folder is None:
            return
        depth = np.uint8 if count <= 255 else np.uint16
        for sample in data_samples:
            labels = sample["pred_sem_seg"]["data"][0].cpu().numpy()
            if sample.get("reduce_zero_label", False):  # its files number classes from 1
                labels = labels + 1
            path = str(sample["img_path"])
            name = Path(path).stem if self.map_names is None else self.map_names[path]
            with replacing(below(folder, f"{name}.png")) as temporary:
                Image.fromarray(labels.astype(depth)).save(temporary)

    def compute_metrics(self, results: list) -> Metrics:
        if self.format_only:
            return super().compute_metrics(results)
        names = self.class_names()
        results = results or [(torch.zeros(len(names), dtype=torch.int64),) * 4]
        truth = sum(label for *_, label in results)
        self.without_truth = [name for name, count in zip(names, truth) if not count]
        with warnings.catch_warnings():
            # NumPy warns about means of empty arrays, which are NaN here as intended.
            warnings.simplefilter("ignore", RuntimeWarning)
            found = super().compute_metrics(results)
        # Metrics are NaN for images without labels, even with nan_to_num.
        return found if truth.any() else dict.fromkeys(found, math.nan)

    @staticmethod
    def intersect_and_union(
        pred_label: torch.Tensor, label: torch.Tensor, num_classes: int, ignore_index: int
    ) -> tuple[torch.Tensor, ...]:
        """Return the number of pixels of each class, int64 ``(num_classes,)``, in the intersection,
        the union, the prediction and the ground truth; mmseg's float32 cannot count beyond 2**24.
        Labels of no class are left out."""
        known = label != ignore_index
        found = pred_label[known]
        truth = label[known]

        def count(labels: torch.Tensor) -> torch.Tensor:
            labels = labels[(labels >= 0) & (labels < num_classes)]
            return torch.bincount(labels, minlength=num_classes).cpu()

        both = count(found[found == truth])
        predicted = count(found)
        true = count(truth)
        return both, predicted + true - both, predicted, true

    @staticmethod
    def total_area_to_metrics(
        intersect: torch.Tensor, union: torch.Tensor, *areas: Any
    ) -> dict[str, np.ndarray]:
        """Return mmseg's metrics, computed in float64. The F-score of a class that occurs but is
        never predicted correctly is 0, like its Dice score; mmseg leaves it out of the mean."""
        wide = [area.double() for area in (intersect, union, *areas[:2])]
        found = IoUMetric.total_area_to_metrics(*wide, *areas[2:])
        if "Fscore" in found:
            missed = (intersect == 0) & (areas[1] > 0)
            found["Fscore"] = np.where(np.asarray(missed), 0, found["Fscore"])
        return found


RUN_HOOKS.append("LabelMapNamesHook")


@HOOKS.register_module()
class LabelMapNamesHook(Hook):
    """Gives :class:`LabelMapIoUMetric` the names of all images, of which each process sees only
    some."""

    def before_test(self, runner: Runner) -> None:
        metrics = [
            metric
            for metric in runner.test_evaluator.metrics
            if isinstance(metric, LabelMapIoUMetric)
        ]
        if any(metric.output_dir is not None for metric in metrics):
            dataset: Any = runner.test_dataloader.dataset
            paths = [str(dataset.get_data_info(index)["img_path"]) for index in range(len(dataset))]
            names = dict(zip(paths, output_names([Path(path) for path in paths])))
            for metric in metrics:
                metric.map_names = names
