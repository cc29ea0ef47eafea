"""The tasks of the engine: models with their losses, metrics, and special steps of their training
and testing.

Importing this package registers classification; configs that use ``metric_learning`` or
``contrastive`` name these modules in ``custom_imports``.
"""

from importlib.util import find_spec

from .classification import ImageClassifier, PredictionPainterHook
from .classification_metrics import CalibrationError, GroupAccuracy, MultiLabelAP, TopKAccuracy
from .classification_report import ClassificationReport, MultiLabelReport
from .familiar import FamiliarHook
from .hierarchy import HierarchyClassifier
from .probe import LinearProbeHook

if find_spec("webdataset"):
    import hypvision.data.shards  # noqa: F401 - registers its data sets

__all__ = [
    "CalibrationError",
    "ClassificationReport",
    "FamiliarHook",
    "GroupAccuracy",
    "HierarchyClassifier",
    "ImageClassifier",
    "LinearProbeHook",
    "MultiLabelAP",
    "MultiLabelReport",
    "PredictionPainterHook",
    "TopKAccuracy",
]
