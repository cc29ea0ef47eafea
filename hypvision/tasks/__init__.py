"""What a task needs on top of mmengine's Runner: model wrappers, metrics, hooks, parameter groups.

Importing this package registers them, so that configs can name them (``custom_imports`` in
``configs/_base_/default_runtime.py`` does so).
"""

from hypvision.errors import require

require("mmengine", "mm")

from hypvision.engine.hooks import (  # noqa: E402
    CheckClassesHook,
    InterruptHook,
    PredictionPainterHook,
    ReduceLossHook,
    RepeatableSeedHook,
    StopOnNaNHook,
)
from hypvision.engine.loops import SeekingIterTrainLoop  # noqa: E402
from hypvision.engine.optim import (  # noqa: E402
    BFloat16OptimWrapper,
    RiemannianAmpOptimWrapper,
    RiemannianOptimWrapper,
    TimmParamGroups,
)
from hypvision.tasks.classification import ImageClassifier, TopKAccuracy  # noqa: E402 - after the check that says how to install it
from hypvision.tasks.hierarchy import HierarchyClassifier  # noqa: E402

__all__ = [
    "BFloat16OptimWrapper",
    "CheckClassesHook",
    "HierarchyClassifier",
    "ImageClassifier",
    "InterruptHook",
    "PredictionPainterHook",
    "ReduceLossHook",
    "RepeatableSeedHook",
    "RiemannianAmpOptimWrapper",
    "RiemannianOptimWrapper",
    "SeekingIterTrainLoop",
    "StopOnNaNHook",
    "TimmParamGroups",
    "TopKAccuracy",
]
