"""The one exception that users meet, and the way optional packages are asked for.

Whatever a user can put right (a path, a config, a missing package) is raised as :class:`HypvisionError` with a message
of one paragraph: what was wrong, what was expected, how to fix it. The command-line tools print it without a traceback.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["HypvisionError", "guard", "require"]


class HypvisionError(Exception):
    """A mistake that the user can put right; the message says how."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional package, or say in one line what to install.

    Args:
        module: dotted name of the module, e.g. ``"matplotlib.pyplot"``.
        extra: the extra of hypvision that brings it (``mm``, ``clip``, ``viz``, ...).

    Raises:
        HypvisionError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # the package is there, something inside it is broken: do not hide that
        raise HypvisionError(
            f"This needs the package '{package}', which is not installed. Run: pip install 'hypvision[{extra}]'"
        ) from error


def guard(function: Callable[..., Any], *args: Any) -> int:
    """Run the body of a command and turn its end into an exit status.

    Returns:
        0; 2 after a :class:`HypvisionError`, told in one paragraph without a traceback; 130 after an interruption.
        Anything else is a bug and propagates.
    """
    try:
        function(*args)
    except KeyboardInterrupt as interruption:
        print(f"\n{interruption}" if str(interruption) else "\nInterrupted.", file=sys.stderr)
        return 130
    except HypvisionError as error:
        print(f"\nhypvision: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
