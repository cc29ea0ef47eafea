"""Registries by which tasks and OpenMMLab's libraries extend the engine.

The engine imports no task: packages above it register here how ``hypvision test`` writes
predictions (``--save``) and reports (``--out``), draws images (``--show-dir``) and augments at test
time (``--tta``), and how ``hypvision predict`` runs a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mmengine.config import Config

from hypvision.io.plugins import PLUGINS, plugin


@dataclass(frozen=True)
class TestOptions:
    """How a kind of model implements ``--tta`` and ``--show-dir FOLDER`` of ``hypvision test``, by
    changes of the config."""

    __test__: ClassVar[bool] = False  # tells pytest that this class is not a test

    augment: Callable[[Config], None]
    show: Callable[[Config, Path], None]


TEST_OPTIONS: dict[str, TestOptions] = {}
"""By the ``type`` of the model, or by the ``default_scope`` of the config."""

PREDICTION_ARGUMENTS: dict[str, str] = {}
"""Metric -> its argument that names the file or folder of the predictions."""

REPORTS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {}
"""Metric -> a function of its settings to those of the
:class:`~hypvision.engine.reports.ReportMetric` that collects what a report of its task shows."""

PREDICTORS: dict[str, Callable | str] = {}
"""By the ``type`` of the model, or by the ``default_scope`` of the config: a function of a model in
evaluation mode, its config and the :class:`~hypvision.inference.predictors.Request` to a
:class:`~hypvision.inference.predictors.Predictor`. Or, of a model that finds nothing in images, a
sentence that says which command uses it."""

PREPARATIONS: dict[str, Callable[[Config], None]] = {}
"""By ``default_scope``: functions that change or check a config before its model is built."""

RUN_HOOKS = [
    "RepeatableSeedHook", "ReduceLossHook", "UnusedParametersHook", "CanLearnHook", "StopOnNaNHook",
    "CheckClassesHook", "DataUsageHook", "ClassTableHook", "InterruptHook", "AccumulationHook",
    "EngineNamesHook", "LastValidationHook", "SignsHook", "LanguageHook",
]  # fmt: skip
"""Hooks of every run."""

MODEL_HOOKS: dict[str, str] = {}
"""Argument of a model -> the hook of the runs whose model is given it."""


def import_extensions(config: Config) -> None:
    """Import the modules that register extensions of the tasks and of ``default_scope``."""
    for role in ("tasks", f"scope {config.get('default_scope')}"):
        if role in PLUGINS:
            plugin(role)


def find_test_options(config: Config) -> TestOptions | None:
    """The entry for the model of a config; None if there is none."""
    return TEST_OPTIONS.get(config.model.get("type")) or TEST_OPTIONS.get(
        config.get("default_scope")
    )
