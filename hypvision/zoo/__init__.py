"""Trained weights: index, verified downloads, models in one call, cards, export; converters of official checkpoints.

:func:`load` gives a model, :func:`resolve` a verified file, :func:`builtin_index` what there is. ``docs/model-zoo.md``
describes it all.
"""

from .index import builtin_index, read_index
from .loading import load
from .records import Index, Metric, Record, WeightFile
from .sources import find, resolve
from .weights import read_weights

__all__ = [
    "Index",
    "Metric",
    "Record",
    "WeightFile",
    "builtin_index",
    "find",
    "load",
    "read_index",
    "read_weights",
    "resolve",
]
