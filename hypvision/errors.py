"""The one exception that users meet, and the way optional packages are asked for.

Whatever a user can put right (a path, a config, a missing package) is raised as :class:`HypvisionError` with a message
of one paragraph: what was wrong, what was expected, how to fix it. The command-line tools print it without a traceback.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = [
    "HypvisionError",
    "did_you_mean",
    "explain_os_error",
    "guard",
    "how_to_install",
    "require",
    "require_finite",
]


# What a path or its disk can be wrong with; other system errors are bugs.
_OF_PLACES = {
    getattr(errno, name)
    for name in ("EFBIG", "EROFS", "EISDIR", "ENOTDIR", "EEXIST", "ENAMETOOLONG", "EIO", "ENOTEMPTY", "ELOOP", "ESTALE")
    if hasattr(errno, name)
}


class HypvisionError(Exception):
    """A mistake that the user can put right; the message says how."""


def did_you_mean(
    name: str,
    known: Iterable[str],
    count: int = 3,
    cutoff: float = 0.5,
    also: Iterable[str] = (),
    show: Callable[[str], str] = str,
) -> str:
    """A sentence with a space before it that offers the known names like ``name``, and ``also`` those; or nothing.

    ``show`` says how a name is written there.

    >>> did_you_mean("resnet5O", ["resnet50", "vit"])
    ' Did you mean resnet50?'
    """
    close = [*dict.fromkeys([*difflib.get_close_matches(str(name), list(known), n=count, cutoff=cutoff), *also])]
    return f" Did you mean {' or '.join(map(show, close))}?" if close else ""


def how_to_install(extra: str) -> str:
    """The command that adds an extra of hypvision; from the checkout, because no package index has hypvision."""
    checkout = Path(__file__).resolve().parents[1]
    command = f"pip install -c constraints.txt -e '.[{extra}]'"
    if (checkout / "constraints.txt").is_file():
        return f"Run in '{checkout}': {command}"
    return f"Run in a checkout of hypvision: {command}"


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
            f"This needs the package '{package}', which is not installed. {how_to_install(extra)}"
        ) from error


def require_finite(values: Any, named: str | Callable[[int], str]) -> None:
    """Refuse numbers that are NaN or infinite, of which a metric would look like any other.

    Args:
        values: a tensor or an array, rows first.
        named: what they are, as the subject of a sentence; or what row ``i`` is.

    Raises:
        HypvisionError: there are such numbers; of rows the first is named.
    """
    import torch

    finite = torch.as_tensor(values).isfinite()
    if finite.all():
        return
    bad = (~finite.reshape(len(finite), -1).all(1)).nonzero().flatten() if finite.dim() else [0]
    subject = named(int(bad[0])) if callable(named) else named
    more = f", and neither are {len(bad) - 1} more" if callable(named) and len(bad) > 1 else ""
    raise HypvisionError(
        f"{subject} is not finite (NaN or infinite){more}: the weights are damaged or have diverged, or the precision "
        "is too low. Take other weights, or float32 (without --amp)."
    )


def explain_os_error(error: OSError) -> str | None:
    """The paragraph for a path or a disk that the user can put right; None for an error that is a bug."""
    text = " ".join(str(error).split())
    place = f" at '{error.filename}'" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk is full{place}. Complete checkpoints are untouched. Free some space, or choose another place, "
            "and repeat the command (a training with --resume)."
        )
    if isinstance(error, FileNotFoundError):
        return f"A file is missing: {text}. Check the paths, those of the config too (see docs/data.md)."
    if isinstance(error, PermissionError):
        return f"No permission: {text}. Choose a file or folder that you have the rights to, e.g. with --work-dir."
    if error.errno in _OF_PLACES:
        return f"The file system refused{place}: {error.strerror}. Correct the path, or choose another place."
    return None


def guard(function: Callable[..., Any], *args: Any) -> int:
    """Run the body of a command and turn its end into an exit status.

    Returns:
        0; 2 after a :class:`HypvisionError`, or an error of a path or disk (:func:`explain_os_error`), told in one
        paragraph without a traceback; 130 after an interruption. Anything else is a bug and propagates.
    """
    try:
        function(*args)
    except KeyboardInterrupt as interruption:
        print(f"\n{interruption}" if str(interruption) else "\nInterrupted.", file=sys.stderr)
        return 130
    except HypvisionError as error:
        print(f"\nhypvision: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        paragraph = explain_os_error(error)
        if paragraph is None:
            raise
        print(f"\nhypvision: error: {paragraph}", file=sys.stderr)
        return 2
    return 0
