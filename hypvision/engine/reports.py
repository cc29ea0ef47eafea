"""What a training or a test writes beside numbers: curves, predictions, painted images, and the
report (``hypvision test --out DIR``), which is collected together with the metrics."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from hypvision.inference.progress import say
from hypvision.io import HypvisionError, Metrics, Plain, require, without_secrets
from hypvision.io.files import check_output, check_output_folder
from hypvision.io.images import is_image
from hypvision.viz.curves import MOST, choose, draw_curves, read_runs
from hypvision.viz.report import Part, write_report

from .checks import data_folders
from .config import Run
from .extensions import PREDICTION_ARGUMENTS, REPORTS, TEST_OPTIONS, TestOptions
from .hooks import network_of

_logger = logging.getLogger(__name__)

BASELINE = "baseline"
"""The key of a checkpoint's message hub for what a training had to beat: the ``name`` of the
baseline, and its metrics on the validation data."""

CHOSEN = "chosen_ckpt"
"""The key of a finished training's message hub for the path of the checkpoint to take, where a
baseline and the training were compared."""


def weights_to_use(runner: Runner) -> str | None:
    """Return the path of the checkpoint to take after a training: the one that a comparison with
    its baseline has chosen, else the last one; None if none was written."""
    found = runner.message_hub.get_info(CHOSEN) or runner.message_hub.get_info("last_ckpt")
    return None if found is None else str(found)


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

    def compute_metrics(self, results: list) -> Metrics:
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


def _test_options(config: Run) -> TestOptions | None:
    """Return the entry of :data:`TEST_OPTIONS` for the model of a config; None if there is none."""
    return TEST_OPTIONS.get(config.kind) or TEST_OPTIONS.get(config.scope)


def use_tta(config: Run) -> None:
    """Change a config to test-time augmentation: by its ``tta_model`` and ``tta_pipeline``, else by
    the augmentation that its task has registered."""
    if "tta_model" not in config or "tta_pipeline" not in config:
        options = _test_options(config)
        if options is None:
            raise HypvisionError(
                f"--tta: the config '{config.filename}' has no tta_model and tta_pipeline, and "
                f"there are no defaults for its model '{config.kind}'. Add them, or leave out "
                "--tta."
            )
        options.augment(config)
    if "tta_model" in config:
        config.dataset("test").pipeline = config.tta_pipeline
        config.model = dict(config.tta_model, module=config.model)


def _evaluators(config: Run) -> Iterator[tuple[Plain, str | None]]:
    """Yield each metric of a test with its argument for the file or folder of predictions; None if
    it writes none."""
    for evaluator in config.evaluators("test"):
        yield evaluator, PREDICTION_ARGUMENTS.get(str(evaluator.get("type")).rpartition(".")[2])


def write_predictions(config: Run, path: Path) -> None:
    """Let the task's metric write the predictions to ``path``, in the format of the task."""
    for evaluator, argument in _evaluators(config):
        if argument in (None, "output_dir"):
            continue
        if argument == "outfile_prefix":
            path = path.with_suffix("") if path.suffix == ".json" else path
            # mmdet writes these files itself, so they are checked here.
            for kind in ("bbox", "segm", "proposal", "keypoints"):
                check_output(f"{path}.{kind}.json")
        else:
            check_output(path)
        check_result(config, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        evaluator[argument] = str(path)
        return
    if any(argument for _, argument in _evaluators(config)):
        raise HypvisionError(
            "--save writes one file, and a segmenter predicts one for each image. Use --out DIR."
        )
    types = ", ".join(str(evaluator.get("type")) for evaluator, _ in _evaluators(config))
    able = ", ".join(
        name for name, argument in PREDICTION_ARGUMENTS.items() if argument != "output_dir"
    )
    raise HypvisionError(
        f"--save needs one of the metrics {able} in the config, which has {types}. Add one of them."
    )


def check_result(config: Run, path: Path) -> None:
    """Raise an error for a result path inside a data folder, where it could overwrite images or
    label maps."""
    result = path.expanduser().resolve()
    here = Path.cwd()
    for data in data_folders(config):
        # A data folder that contains the working directory holds other files than data, so results
        # may lie there.
        holds_all = here.is_relative_to(data) and result != data and not is_image(path)
        if result.is_relative_to(data) and not holds_all:
            raise HypvisionError(
                f"'{path}' lies in '{data}', which holds data. Give another place for the results."
            )


def show(config: Run, folder: Path) -> None:
    check_output_folder(folder)
    check_result(config, folder)
    options = _test_options(config)
    if options is None:
        raise HypvisionError(
            f"--show-dir: predictions of '{config.filename}' cannot be drawn. Leave out --show-dir."
        )
    options.show(config, folder)


def draw_results(runner: Runner) -> None:
    """Draw the curves of a training into ``results.png``, if it has logged more than one value of a
    curve."""
    try:
        panels = dict(islice(choose(read_runs([runner.work_dir])).items(), MOST))
        if any(len(curve.steps) > 1 for panel in panels.values() for curve in panel):
            draw_curves(panels, Path(runner.work_dir, "results.png"))
            say(f"curves  {Path(runner.work_dir, 'results.png')}")
    except HypvisionError as error:
        # A missing log file or a full disk must not fail a training that is complete.
        _logger.info("results.png was not drawn: %s", error)


def add_report(config: Run, folder: Path, weights: str) -> None:
    """Let a test write its report into ``folder``, and a segmenter also its label maps; call it
    after :func:`~hypvision.engine.config.prepare`."""
    require("matplotlib", "viz")
    check_output_folder(folder)
    check_result(config, folder)
    for evaluator, argument in _evaluators(config):
        if argument == "output_dir":
            evaluator[argument] = str(check_output_folder(folder / "label_maps"))
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
        self.baseline: Plain = {}

    def after_load_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
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
        title = f"Test of {_short(Path(self.config))}"
        _logger.info("Report: %s", write_report(self.folder, title, facts, parts))


def _short(config: Path) -> str:
    """Return the name of a config; that of a folder of data is config.py in a folder of its
    name."""
    return config.parent.name if config.stem == "config" else config.stem


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
