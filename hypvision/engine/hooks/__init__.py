"""Hooks for unattended trainings: repeatable (:mod:`~hypvision.engine.hooks.repeat`), stopped where
they should not go on (:mod:`~hypvision.engine.hooks.stop`), with data of the right classes
(:mod:`~hypvision.engine.hooks.classes`).

:data:`hypvision.engine.extensions.RUN_HOOKS` are added to every run.
"""

from hypvision.engine.hooks.classes import (
    CheckClassesHook,
    DatasetHook,
    class_heads,
    classes_in,
    has_fixed_classes,
)
from hypvision.engine.hooks.language import LanguageHook, take_templates
from hypvision.engine.hooks.repeat import (
    CheckpointHook,
    CoreTimeHook,
    CurvatureHook,
    last_checkpoint,
    network_of,
    seed_everything,
)
from hypvision.engine.hooks.stop import (
    CanLearnHook,
    EarlyStoppingHook,
    InterruptHook,
    TrainingInterrupted,
    UnusedParametersHook,
)

__all__ = [
    "CanLearnHook",
    "CheckClassesHook",
    "CheckpointHook",
    "CoreTimeHook",
    "CurvatureHook",
    "DatasetHook",
    "EarlyStoppingHook",
    "InterruptHook",
    "LanguageHook",
    "TrainingInterrupted",
    "UnusedParametersHook",
    "class_heads",
    "classes_in",
    "has_fixed_classes",
    "last_checkpoint",
    "network_of",
    "seed_everything",
    "take_templates",
]
