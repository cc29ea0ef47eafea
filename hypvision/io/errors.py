"""The exception for mistakes that the user can correct, explanations of the machine's errors, and
the import of optional packages.

The message of the exception is one paragraph: what was wrong, what was expected, how to fix it. The
commands print it without a traceback.
"""

from __future__ import annotations

import difflib
import errno
import getpass
import importlib
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

# The errors that a path or its disk can cause; other system errors are bugs.
_OF_PLACES = {
    getattr(errno, name)
    for name in (
        "EFBIG",
        "EROFS",
        "EISDIR",
        "ENOTDIR",
        "EEXIST",
        "ENAMETOOLONG",
        "EIO",
        "ENOTEMPTY",
        "ELOOP",
        "ESTALE",
    )
    if hasattr(errno, name)
}

try:
    getpass.getuser()
except (KeyError, OSError):
    # A container may have a user id without a name, for which PyTorch's import would fail.
    os.environ["LOGNAME"] = str(os.getuid())


# The patterns of a name and a password before the host, and of the query after the path, in which
# signed addresses have their signature.
# A password may have quotes and spaces; a port before a quote, a space or a colon is none. After an
# "@" it goes on to a later one, unless a host ends there as in a sentence ("host:80: ...").
# A password may have a "/" if no port stands before it, and one that begins with spaces is a word
# before a host with a path.
_USER = re.compile(
    r"\b([a-zA-Z][a-zA-Z0-9+.-]*://)"
    r"(?:[^\s/?#'\"<>@:]+:[^\s/?#<>@,]*@)?"
    r"(?:[^\s/?#'\"<>@:.\[]+:(?:(?=\d*[^\d\s/?#'\"<>@:,)])[^\s?#'\"<>@]*@"
    r"(?=[\w.-]+(?::\d+)?/|localhost|[\w-]+\.[\w.-]+)"
    r"| +[^\s/?#@]+@(?=[^\s/?#'\"<>@]+[/?#])))?"
    r"(?:[^\s/?#'\"<>@:]+:(?!\d*['\"\s,:)])[^/?#@\n]*@)?(?:[^\s/?#'\"<>]*@)?"
    r"(?:(?<=@)(?:[^/?#\n]*@(?=[^\s/?#'\"<>@]+[/?#])"
    r"|(?![\w.-]+(?::\d+)?['\"<>.,:;)\]]+(?:\s|$))[^/?#\n]*@))?"
)
_QUERY = re.compile(r"(?i)\b(https?://[^\s?#'\"<>]*)\?[^\s#'\"<>]*?(?=[.:,;)\]]*(?:[\s#'\"<>]|$))")


def without_secrets(text: str) -> str:
    """Return a text without the secrets in its addresses, to show or keep it: ``NAME:PASSWORD@``
    and the query, which may hold a signature, are removed.

    >>> without_secrets("https://me:1234@example.org/a.png?sig=ab#part")
    'https://example.org/a.png#part'
    """
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))


class HypvisionError(Exception):
    """A mistake that the user can correct; the message says how. Addresses in the message are shown
    without secrets."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class ArgumentError(HypvisionError, ValueError):
    """An argument or setting with a value that is not allowed (see :mod:`hypvision.io.checks`)."""


def did_you_mean(
    name: str,
    known: Iterable[str],
    count: int = 3,
    cutoff: float = 0.5,
    also: Iterable[str] = (),
    show: Callable[[str], str] = str,
) -> str:
    """Return a sentence that offers similar known names, with a space before it; empty if there is
    nothing to offer.

    Args:
        name: the name that was given.
        known: all known names; those most similar to ``name`` are offered.
        count: largest number of similar names.
        cutoff: least similarity of an offered name, 0 to 1.
        also: names that are offered in any case.
        show: function that returns the form in which a name is written.

    >>> did_you_mean("resnet5O", ["resnet50", "vit"])
    ' Did you mean resnet50?'
    """
    close = [
        *dict.fromkeys(
            [*difflib.get_close_matches(str(name), list(known), n=count, cutoff=cutoff), *also]
        )
    ]
    return f" Did you mean {' or '.join(map(show, close))}?" if close else ""


@contextmanager
def explaining(sentence: Callable[[Any], str], *kinds: type[Exception]) -> Iterator[None]:
    """Context that turns errors of these kinds, by default of all but a :class:`HypvisionError`,
    into a :class:`HypvisionError` with the sentence that the function makes of them.

    >>> with explaining(lambda error: f"'a.json' is not JSON ({error}).", ValueError):
    ...     json.loads("{")
    """
    explained = kinds or (Exception,)
    try:
        yield
    except explained as error:
        if isinstance(error, HypvisionError) and not kinds:
            raise
        raise HypvisionError(sentence(error)) from error


def some(names: Sequence[str], limit: int = 8) -> str:
    """Return the first ``limit`` names in quotes, for a message; "nothing" if there are none."""
    return few([f"'{name}'" for name in names], limit) or "nothing"


def few(names: Sequence[str], limit: int = 3) -> str:
    """Return the first ``limit`` names, for a message, with dots if there are more."""
    return ", ".join([*names[:limit], *["..."] * (len(names) > limit)])


def count_text(count: int) -> str:
    """Return a number of parameters as text: ``4.2 M``."""
    return f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count / 1e3:.1f} k"


def how_to_install(extra: str) -> str:
    """Return a sentence that says how to install an extra of hypvision: from a checkout, because no
    package index has hypvision."""
    checkout = Path(__file__).resolve().parents[2]
    command = f"pip install -c constraints.txt -e '.[{extra}]'"
    if (checkout / "constraints.txt").is_file():
        return f"Run in '{checkout}': {command}"
    return f"Run in a checkout of hypvision: {command}"


def require(module: str, extra: str) -> ModuleType:
    """Import and return an optional module; if its package is missing, raise an error that says how
    to install it.

    Args:
        module: dotted name of the module, e.g. ``"matplotlib.pyplot"``.
        extra: the extra of hypvision that installs the package (``mm``, ``clip``, ``viz``, ...).
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            # The package is installed, but one of its own imports fails, so this error is kept.
            raise
        raise HypvisionError(
            f"This needs the package '{package}', which is not installed. {how_to_install(extra)}"
        ) from error


def require_finite(values: Any, named: str | Callable[[int], str]) -> None:
    """Raise an error for NaN and infinite numbers, since a metric computed from them might look
    like any other value.

    Args:
        values: a tensor or an array whose first dimension is rows.
        named: what the values are, as the subject of a sentence; or a function that returns it for
            row ``i``.
    """
    import torch

    values = torch.as_tensor(values)
    # aminmax is NaN if any value is, and copies nothing.
    if not values.numel() or all(end.isfinite() for end in values.aminmax()):
        return
    finite = values.isfinite()
    bad = (~finite.reshape(len(finite), -1).all(1)).nonzero().flatten() if finite.dim() else [0]
    subject = named(int(bad[0])) if callable(named) else named
    more = f", and neither are {len(bad) - 1} more" if callable(named) and len(bad) > 1 else ""
    raise HypvisionError(
        f"{subject} is not finite (NaN or infinite){more}: the weights are damaged or have "
        "diverged, or the precision is too low. Use other weights, or float32 (without --amp)."
    )


def one_line(error: BaseException, longest: int = 300) -> str:
    """Return the message of an error, usually one of another library, in one line; the name of its
    class if the message is empty."""
    return " ".join(without_secrets(str(error)).split())[:longest] or type(error).__name__


def printable(text: str) -> str:
    """Return a text of unknown origin with its control characters escaped, since a terminal would
    execute them; line breaks and tabs stay.

    >>> print(printable("a" + chr(27) + "[2Jb"))
    a\\x1b[2Jb
    """
    unsafe = r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]"
    return re.sub(unsafe, lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def explain_machine(error: BaseException) -> str | None:
    """Return the message for an error of a path, a disk, the memory or another process; None for an
    error that is a bug."""
    text = one_line(error)
    return _of_process(error, text) or _of_name(error, text) or _of_file(error, text)


def _of_process(error: BaseException, text: str) -> str | None:
    """Return the message for an error of the memory, the stack or a worker process; None for other
    errors."""
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "The memory is full. Give a smaller input or batch, or fewer workers."
    if isinstance(error, RecursionError):
        return "An input is nested too deeply, or names itself. Correct it."
    if "is killed by signal: Terminated" in text:
        return (
            "A worker process was told to end (SIGTERM). Complete results are kept: repeat the "
            "command."
        )
    killed = re.search(
        r"DataLoader worker .*(exited unexpectedly|is killed by signal: [\w ]+)", text
    )
    if killed or isinstance(error, (BrokenPipeError, ConnectionResetError, BrokenExecutor)):
        how = f" ({killed[1]})" if killed else ""
        return (
            f"A worker process ended before its work{how}, as happens when the memory is full. "
            "Complete results are kept. Repeat the command (a training with --resume), with fewer "
            "workers."
        )
    return None


# Errors of pathlib and Python about a name: their class, a pattern of their text, and the message
# for the user.
_OF_NAMES: tuple[tuple[type[Exception], str, str], ...] = (
    (
        RuntimeError,
        "^(Symlink loop from|Could not determine home)",
        "A path leads nowhere: {}. Correct it, or what it links to.",
    ),
    (
        ValueError,
        "embedded null",
        "The name of a file has a NUL character, which no file system takes. Correct it.",
    ),
    (
        UnicodeEncodeError,
        "surrogates",
        "A name or a text is not UTF-8, which is needed here: {}. Rename the file or folder.",
    ),
)


def _of_name(error: BaseException, text: str) -> str | None:
    """Return the message for an error of a file's name; None for other errors."""
    for kind, part, message in _OF_NAMES:
        if isinstance(error, kind) and re.search(part, text):
            return message.format(text)
    return None


def _of_file(error: BaseException, text: str) -> str | None:
    """Return the message for an error of a file or a disk; None for other errors."""
    if not isinstance(error, OSError):
        return None
    place = f" at '{error.filename}'" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk is full{place}. Complete checkpoints are untouched. Free some space, or "
            "choose another place, and repeat the command (a training with --resume)."
        )
    if isinstance(error, FileNotFoundError):
        return (
            f"A file is missing: {text}. Check the paths, those of the config too (see "
            "docs/data.md)."
        )
    if isinstance(error, PermissionError):
        return (
            f"No permission: {text}. Choose a file or folder that you have the rights to, e.g. "
            "with --work-dir; for a cache by HYPVISION_HOME, HF_HOME or TORCH_HOME."
        )
    if error.errno in _OF_PLACES:
        return (
            f"The file system refused{place}: {error.strerror}. Correct the path, or choose "
            "another place."
        )
    return None


@contextmanager
def ending_as_interrupted() -> Iterator[None]:
    """Context in which SIGTERM, and the SIGHUP of a terminal that closes, end the process as Ctrl-C
    does, so that ``finally`` and ``with`` remove temporary files and end other processes.

    A signal that the process ignores (``nohup``) stays ignored. Only the main thread can receive
    signals.
    """

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(f"Ended by {signal.Signals(number).name}.")

    mine = threading.current_thread() is threading.main_thread()
    wanted = [signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)] if mine else []
    before = {number: signal.getsignal(number) for number in wanted}
    taken = {number: old for number, old in before.items() if old not in (None, signal.SIG_IGN)}
    try:
        for number in taken:
            signal.signal(number, end)
        yield
    finally:
        for number, old in taken.items():
            signal.signal(number, old)


def guard(function: Callable[..., Any], *args: Any) -> int:
    """Run the body of a command, print the user's mistakes and the machine's errors without a
    traceback, and return the exit status.

    Characters that a console cannot show (outside ASCII, or an undecodable byte of a file name) are
    printed escaped.

    Returns:
        The exit status: 0; 2 after a :class:`HypvisionError` or an error that
            :func:`explain_machine` explains; 130 after an interruption; 141 if the reader of the
            output has ended. Any other error is a bug and propagates.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            with ending_as_interrupted():
                function(*args)
        finally:
            _flush_output()
    except KeyboardInterrupt as interruption:
        _tell(str(interruption) or "Interrupted.")
        return 130
    except HypvisionError as error:
        _tell(f"hypvision: error: {one_line(error, sys.maxsize)}")
        return 2
    except Exception as error:
        if _nobody_reads(error):
            return 141
        message = explain_machine(error)
        if message is None:
            raise
        _tell(f"hypvision: error: {message}")
        return 2
    return 0


def _nobody_reads(error: Exception) -> bool:
    """Return whether the pipe of the output broke, rather than a pipe to a worker process."""
    frames = traceback.extract_tb(error.__traceback__)
    workers = any("multiprocessing" in frame.filename for frame in frames)
    return isinstance(error, BrokenPipeError) and not workers


def _tell(message: str) -> None:
    # Standard error may be closed, too.
    with suppress(OSError):
        print(f"\n{printable(message)}", file=sys.stderr)


class Escaped:
    """A text stream that escapes control characters (:func:`printable`) and removes secrets from
    addresses."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(printable(without_secrets(text)))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _flush_output() -> None:
    """Flush standard output while an error can still be reported; after an error it is redirected
    to nowhere, so that no later write fails."""
    try:
        # Standard output is None if it was closed before the command began.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
