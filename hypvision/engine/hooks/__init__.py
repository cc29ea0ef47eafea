"""Hooks for unattended trainings: hooks that make them repeatable
(:mod:`~hypvision.engine.hooks.repeat`), hooks that stop them (:mod:`~hypvision.engine.hooks.stop`),
and hooks that check the classes of the data (:mod:`~hypvision.engine.hooks.classes`).

The hooks in :data:`hypvision.engine.extensions.RUN_HOOKS` are added to every run.
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
    ChannelsLastHook,
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
    "ChannelsLastHook",
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
