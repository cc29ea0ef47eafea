"""What rooms above do for rooms below, by name: entered in ``hypvision/__init__.py``, imported when it is asked for.

So a lower room names no upper one, and who only reads weights needs nothing of mmengine.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["PLUGINS", "plugin"]

PLUGINS: dict[str, str] = {}
"""By what it does: ``"module:function"``, or a module that enters itself in tables when it is imported."""


def plugin(role: str) -> Any:
    """The function, or the module, that has this role."""
    module, _, function = PLUGINS[role].partition(":")
    found = importlib.import_module(module)
    return getattr(found, function) if function else found
