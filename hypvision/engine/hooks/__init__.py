"""Hooks for unattended trainings: hooks that make them repeatable
(:mod:`~hypvision.engine.hooks.repeat`), hooks that stop them or warn
(:mod:`~hypvision.engine.hooks.stop`, :mod:`~hypvision.engine.hooks.early`), hooks that check the
classes of the data or weigh them (:mod:`~hypvision.engine.hooks.classes`), and hooks that write
into the log (:mod:`~hypvision.engine.hooks.logs`).

The hooks in :data:`hypvision.engine.extensions.RUN_HOOKS` are added to every run.
"""

from hypvision.engine.hooks.classes import (
    CheckClassesHook,
    ClassWeights,
    DatasetHook,
    class_heads,
    classes_in,
    has_fixed_classes,
)
from hypvision.engine.hooks.early import EarlyStoppingHook
from hypvision.engine.hooks.language import LanguageHook, take_templates
from hypvision.engine.hooks.logs import CoreTimeHook, CurvatureHook
from hypvision.engine.hooks.repeat import (
    ChannelsLastHook,
    CheckpointHook,
    last_checkpoint,
    network_of,
    seed_everything,
)
from hypvision.engine.hooks.stop import (
    CanLearnHook,
    InterruptHook,
    TrainingInterrupted,
    UnusedParametersHook,
)

__all__ = [
    "CanLearnHook",
    "ChannelsLastHook",
    "CheckClassesHook",
    "CheckpointHook",
    "ClassWeights",
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
