"""Registries that tasks and OpenMMLab's libraries enter to extend the engine.

The engine imports no task: packages above it register here how ``hypvision test`` writes
predictions (``--save``) and reports (``--out``), draws images (``--show-dir``) and augments at test
time (``--tta``), and how ``hypvision predict`` runs a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mmengine.config import Config

from hypvision.io import Plain, Values


@dataclass(frozen=True)
class TestOptions:
    """The functions by which a model class implements ``--tta`` (``augment``) and ``--show-dir
    FOLDER`` (``show``) of ``hypvision test``; both change the config."""

    # Without this, pytest would take the class for a test because of its name.
    __test__: ClassVar[bool] = False

    augment: Callable[[Config], None]
    show: Callable[[Config, Path], None]


TEST_OPTIONS: dict[str, TestOptions] = {}
"""The options of ``hypvision test``, by the ``type`` of the model or the ``default_scope`` of the
config."""

PREDICTION_ARGUMENTS: dict[str, str] = {}
"""For each metric that writes predictions, its argument for their file or folder."""

REPORTS: dict[str, Callable[[Values], Plain]] = {}
"""For each metric, a function that maps its settings to those of the
:class:`~hypvision.engine.reports.ReportMetric` that collects what a report of its task shows."""

PREDICTORS: dict[str, Callable | str] = {}
"""For each ``type`` of model or ``default_scope`` of a config: a function that maps a model in
evaluation mode, its config and the :class:`~hypvision.inference.predictors.Request` to a
:class:`~hypvision.inference.predictors.Predictor`; for a model that finds nothing in images, a
sentence that says which command uses it."""

PREPARATIONS: dict[str, Callable[[Config], None]] = {}
"""For each ``default_scope``, a function that changes or checks a config before its model is
built."""

RUN_HOOKS = [
    "RepeatableSeedHook", "ReduceLossHook", "UnusedParametersHook", "CanLearnHook", "StopOnNaNHook",
    "CheckClassesHook", "DataUsageHook", "ClassTableHook", "InterruptHook", "AccumulationHook",
    "EngineNamesHook", "LastValidationHook", "SignsHook", "LanguageHook",
]  # fmt: skip
"""The hooks that are added to every run."""

MODEL_HOOKS: dict[str, str] = {}
"""For an argument of a model, the hook that is added to runs whose model has this argument."""
