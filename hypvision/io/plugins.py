"""Find a function by its role, for modules that may not import the module that has it, such as
"predictor of segmentation".

Imports point one way (see ``CONTRIBUTING.md``). :data:`PLUGINS`, filled in
``hypvision/__init__.py``, names a function for each role, and :func:`plugin` imports it when it is
needed. So reading weights alone does not need mmengine, for example.
"""

from __future__ import annotations

import importlib
from typing import Any

PLUGINS: dict[str, str] = {}
"""For each role ``"module:function"``; or a module that enters itself into tables when it is
imported."""


def plugin(role: str) -> Any:
    """Return the function, or the module, that has this role."""
    module, _, function = PLUGINS[role].partition(":")
    found = importlib.import_module(module)
    return getattr(found, function) if function else found
