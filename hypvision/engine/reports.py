"""Write the report of a test (``hypvision test --out DIR``), collected together with the
metrics."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from hypvision.engine.config import Run
from hypvision.engine.extensions import REPORTS
from hypvision.engine.hooks import network_of
from hypvision.io.errors import without_secrets
from hypvision.viz.report import Part, write_report

_logger = logging.getLogger(__name__)

BASELINE = "baseline"
"""The key of a checkpoint's message hub for what a training had to beat: the ``name`` of the
baseline, and its metrics on the validation data."""


class ReportMetric(BaseMetric):
    """Collect predictions for a report. It does not compute metrics, and skips predictions that are
    not finite, for which the metrics raise an error.

    Attributes:
        NOTHING: text of the report if there are no predictions.
        dataset: the test data.
        parts: parts of the report, set in the first process after the test.
    """

    NOTHING = "No image has a label and scores that are finite."
    default_prefix = ""
    dataset: Any = None
    parts: Sequence[Part] = ()

    def compute_metrics(self, results: list) -> dict[str, float]:
        nothing = [Part("Predictions", text=self.NOTHING)]
        self.parts = self.report(results) if results else nothing
        return {}

    @abstractmethod
    def report(self, results: list) -> list[Part]:
        """Return the parts of the report, made from what ``process`` has collected of at least one
        image."""

    @property
    def names(self) -> list[str]:
        """Return the class names of the data that is tested; empty if it has none."""
        return [str(name) for name in (self.dataset_meta or {}).get("classes") or ()]


def add_report(config: Run, folder: Path, weights: str) -> None:
    """Change a config so that its test writes a report; call it after
    :func:`~hypvision.engine.config.prepare`."""
    evaluators = config.evaluators("test")
    kinds = (str(evaluator.get("type")).rpartition(".")[2] for evaluator in evaluators)
    found = next(((kind, own) for kind, own in zip(kinds, evaluators) if kind in REPORTS), None)
    if found is not None:
        config.test_evaluator = [
            *evaluators,
            REPORTS[found[0]]({**found[1], "evaluators": evaluators}),
        ]
    source = str(config.filename)
    shown = without_secrets(weights)
    config.add_hook(type="ReportHook", folder=str(folder), config=source, weights=shown)


@HOOKS.register_module()
class ReportHook(Hook):
    """Write the report of a test into a folder; ``config`` and ``weights`` are named in it."""

    priority = "LOWEST"

    def __init__(self, folder: str, config: str, weights: str):
        self.folder = folder
        self.config = config
        self.weights = weights
        self.baseline: dict[str, Any] = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        hub = checkpoint.get("message_hub") or {}
        found = (hub.get("runtime_info") or {}).get(BASELINE)
        self.baseline = dict(found) if isinstance(found, dict) else {}

    def before_test(self, runner: Runner) -> None:
        for metric in runner.test_evaluator.metrics:
            if isinstance(metric, ReportMetric):
                metric.dataset = runner.test_dataloader.dataset

    def after_test_epoch(self, runner: Runner, metrics: Mapping[str, float] | None = None) -> None:
        if not is_main_process():
            return
        data = runner.test_dataloader.dataset
        facts = dict(
            config=self.config,
            weights=self.weights,
            data=f"{len(data)} samples of {type(data).__name__}",
        )
        table = [
            ("metric", "value"),
            *((name, float(value)) for name, value in (metrics or {}).items()),
        ]
        of_what = self.baseline.pop("name", "")
        table += [
            (f"{name} of the {of_what}, before the training, on its validation data", float(value))
            for name, value in self.baseline.items()
            if name in (metrics or {})
        ]
        found = [
            metric.parts
            for metric in runner.test_evaluator.metrics
            if isinstance(metric, ReportMetric)
        ]
        own = [part for parts in found for part in parts]
        none = Part("Mistakes", text=_NO_CLASSES.format(type(network_of(runner)).__name__))
        parts = [Part("Metrics", "metrics", table=table), *(own or [*_classes(runner), none])]
        title = f"Test of {Path(self.config).stem}"
        _logger.info("Report: %s", write_report(self.folder, title, facts, parts))


_NO_CLASSES = (
    "There is no confusion matrix and no sheet of mistakes: {} does not give one class to each "
    "image, pixel or box, so no class can be taken for another."
)


def _classes(runner: Runner) -> list[Part]:
    """Return a part with the values of each class, from the first metric that has them; an empty
    list if there is none."""
    return [
        Part(
            f"{type(metric).__name__} of each class",
            "classes",
            table=[("class", "value", "samples"), *(tuple(found) for found in metric.classes)],
        )
        for metric in runner.test_evaluator.metrics
        if getattr(metric, "classes", ())
    ][:1]
