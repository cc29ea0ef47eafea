"""The exception for mistakes that the user can correct, and the import of optional packages.

Its message is one paragraph: what was wrong, what was expected, how to fix it. The commands print it without a
traceback.
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

# Errors of a path or its disk; other system errors are bugs.
_OF_PLACES = {
    getattr(errno, name)
    for name in ("EFBIG", "EROFS", "EISDIR", "ENOTDIR", "EEXIST", "ENAMETOOLONG", "EIO", "ENOTEMPTY", "ELOOP", "ESTALE")
    if hasattr(errno, name)
}


class HypvisionError(Exception):
    """A mistake that the user can correct; the message says how."""


class ArgumentError(HypvisionError, ValueError):
    """A value that a function or a setting cannot take (see :mod:`hypvision.checks`)."""


def did_you_mean(
    name: str,
    known: Iterable[str],
    count: int = 3,
    cutoff: float = 0.5,
    also: Iterable[str] = (),
    show: Callable[[str], str] = str,
) -> str:
    """A sentence that offers known names, with a space before it; empty if there is nothing to offer.

    Args:
        name: what was given.
        known: all names; the most similar to ``name`` are offered.
        count: how many of them at most.
        cutoff: least similarity, 0 to 1.
        also: names to offer in any case.
        show: gives the form in which a name is written.

    >>> did_you_mean("resnet5O", ["resnet50", "vit"])
    ' Did you mean resnet50?'
    """
    close = [*dict.fromkeys([*difflib.get_close_matches(str(name), list(known), n=count, cutoff=cutoff), *also])]
    return f" Did you mean {' or '.join(map(show, close))}?" if close else ""


def how_to_install(extra: str) -> str:
    """How to install an extra of hypvision: from a checkout, because no package index has hypvision."""
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
            raise  # the package is installed, but it cannot import another one: that error says more
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


def one_line(error: BaseException, longest: int = 300) -> str:
    """The message of an error, of another library as a rule, as one line; its class where the message is empty."""
    return " ".join(str(error).split())[:longest] or type(error).__name__


def explain_os_error(error: OSError) -> str | None:
    """The message for an error of a path or a disk, which the user can correct; None for an error that is a bug."""
    text = one_line(error)
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
    """Run the body of a command, and print mistakes of the user and errors of the disk without a traceback.

    Returns:
        The exit status: 0; 2 after a :class:`HypvisionError` or an error that :func:`explain_os_error` explains; 130
        after an interruption. Any other error is a bug and propagates.
    """
    try:
        function(*args)
    except KeyboardInterrupt as interruption:
        print(f"\n{interruption}" if str(interruption) else "\nInterrupted.", file=sys.stderr)
        return 130
    except (HypvisionError, OSError) as error:
        message = explain_os_error(error) if isinstance(error, OSError) else " ".join(str(error).split())
        if message is None:
            raise
        print(f"\nhypvision: error: {message}", file=sys.stderr)
        return 2
    return 0
