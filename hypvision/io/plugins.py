"""Functions that a module needs from a module that it may not import, such as "predictor of
segmentation".

Imports point one way (see ``CONTRIBUTING.md``). :data:`PLUGINS`, filled in
``hypvision/__init__.py``, names a function by its role, and :func:`plugin` imports it when it is
needed. Reading weights alone, for example, does not need mmengine.
"""

from __future__ import annotations

import importlib
from typing import Any

PLUGINS: dict[str, str] = {}
"""For each role ``"module:function"``, or a module that enters itself in tables when it is
imported."""


def plugin(role: str) -> Any:
    """The function, or the module, that has this role."""
    module, _, function = PLUGINS[role].partition(":")
    found = importlib.import_module(module)
    return getattr(found, function) if function else found
