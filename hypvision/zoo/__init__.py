"""Trained weights: their index, verified downloads, models in one call, model cards, export, and
converters of official checkpoints.

:func:`load` returns a model, :func:`resolve` a verified file, :func:`builtin_index` the index of
all records. See ``docs/model-zoo.md``.
"""

from hypvision.checkpoints.index import builtin_index, read_index
from hypvision.checkpoints.read import read_weights
from hypvision.checkpoints.records import Index, Metric, Record, WeightFile
from hypvision.checkpoints.sources import find, resolve

from .loading import load

__all__ = [
    "Index", "Metric", "Record", "WeightFile", "builtin_index", "find", "load", "read_index",
    "read_weights", "resolve",
]  # fmt: skip
