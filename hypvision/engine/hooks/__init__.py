"""Hooks for unattended trainings: hooks that make them repeatable
(:mod:`~hypvision.engine.hooks.repeat`), hooks that stop them or warn
(:mod:`~hypvision.engine.hooks.stop`, :mod:`~hypvision.engine.hooks.early`), hooks that check the
classes of the data or weigh them (:mod:`~hypvision.engine.hooks.classes`), and hooks that write
into the log (:mod:`~hypvision.engine.hooks.logs`).

The hooks in :data:`hypvision.engine.extensions.RUN_HOOKS` are added to every run.
"""

from .classes import (
    CheckClassesHook,
    ClassWeights,
    DatasetHook,
    class_heads,
    classes_in,
    has_fixed_classes,
)
from .early import EarlyStoppingHook
from .language import LanguageHook, take_templates
from .logs import CoreTimeHook, CurvatureHook
from .repeat import ChannelsLastHook, CheckpointHook, last_checkpoint, network_of, seed_everything
from .stop import CanLearnHook, InterruptHook, TrainingInterrupted, UnusedParametersHook

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
