"""Data sets. :mod:`.shapes` draws labelled images on the fly; :mod:`.export` writes them to disk.

Names are loaded when first asked for, so that importing this package costs nothing.
"""

from __future__ import annotations

import importlib

__all__ = ["TAXONOMY", "Scene", "ShapesClassification", "ShapesScenes", "Taxonomy"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(importlib.import_module("hypvision.data.shapes"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
