"""Write files so that they appear complete or not at all, and read text files of others.

Everything that the commands write goes through :func:`replacing` or :func:`replacing_folder`. These
never replace a device, a pipe, a link, or a file that the running command reads
(:func:`protecting`).
"""

from __future__ import annotations

import csv
import ctypes
import errno
import gc
import gzip
import io
import json
import os
import re
import shutil
import socket
import stat
import sys
import time
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import IO, Any

from .checks import ensure
from .errors import HypvisionError, explaining
from .types import Plain, StrPath, Values

_STALE_SECONDS = 7 * 86400
_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
# The name .NAME.hyp-HOST-PID-NUMBER.SUFFIX of a temporary file identifies the process that writes
# it, which shows whether this process still runs.
_TEMPORARY = re.compile(r"\..*\.hyp-([0-9a-f]{8})-(\d+)-[0-9a-f]{8}(\..*)?", re.DOTALL)

# The limit for a file that is read into memory; annotations of the largest data sets have 6 GiB.
MAX_BYTES = 8 * 2**30
MAX_UNPACKED = 2**30  # limit for the text in a compressed file
_PIECE = 2**20  # bytes that are unpacked at once

_protected: ContextVar[dict[tuple[int, int], str] | None] = ContextVar("protected", default=None)
_swept: set[Path] = set()


@contextmanager
def protecting(*paths: StrPath) -> Iterator[None]:
    """Context in which these files must not be written, under any of their names; those that do not
    exist are ignored."""
    known = dict(_protected.get() or {})
    for path in paths:
        with suppress(OSError, ValueError):
            found = os.stat(path)
            known[found.st_dev, found.st_ino] = str(path)
    token = _protected.set(known)
    try:
        yield
    finally:
        _protected.reset(token)


def check_output(path: StrPath) -> Path:
    """Return the path of a file after a check that it may be written: it must be new, or a regular
    file that the command does not read.

    Raises:
        HypvisionError: the path is a folder, link, device or pipe, or a file that the command
            reads, or its parent is not a folder.
    """
    path = Path(path)
    found = _status(path)
    if found is None:
        _check_parents(path)
        return path
    if stat.S_ISDIR(found.st_mode):
        raise HypvisionError(
            f"'{path}' is a folder, but a file is to be written. Give the name of a file."
        )
    if not stat.S_ISREG(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "a device or pipe"
        raise HypvisionError(
            f"'{path}' is {what}, which is never replaced. Give the name of a new or a regular "
            "file."
        )
    source = (_protected.get() or {}).get((found.st_dev, found.st_ino))
    ensure(
        source is None,
        f"'{path}' would be overwritten, but it is an input of this command ('{source}'). Give "
        "another name for the output.",
    )
    return path


def check_output_folder(path: StrPath) -> Path:
    """Return the path of a folder after a check that it may be written to: it must be new, an
    existing folder, or a link to one."""
    path = Path(path)
    if _status(path) is None:
        _check_parents(path)
    elif not path.is_dir():
        raise HypvisionError(
            f"'{path}' is not a folder, but the output is a folder. Give the name of a folder."
        )
    return path


def check_new_folder(path: StrPath) -> Path:
    """Return the path of a folder after a check that it is new or empty."""
    path = check_output_folder(path)
    if path.exists() and any(path.iterdir()):
        raise HypvisionError(f"The folder '{path}' is not empty. Give a new or an empty one.")
    return path


def name_of(entry: str) -> str:
    """Return a name from the disk as text in UTF-8, even if the locale has another encoding."""
    return os.fsencode(entry).decode("utf-8", "surrogateescape")


def on_disk(name: str) -> str:
    """Return a name or path in the form in which this process opens it, the inverse of
    :func:`name_of`."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def below(folder: StrPath, name: str) -> Path:
    """Return the path ``folder/name`` for a name that comes from data; raise an error if it leads
    out of the folder."""
    path = Path(folder, name)
    try:
        inside = path.resolve().is_relative_to(Path(folder).resolve())
    # The path may have a NUL, or its links may form a cycle.
    except (OSError, ValueError, RuntimeError):
        inside = False
    ensure(
        inside and os.pardir not in Path(name).parts,
        f"'{name}' leads out of the folder '{folder}', so it was not written. Correct the name.",
    )
    return path


def inside(paths: Iterable[StrPath], *roots: StrPath) -> list[str]:
    """Return paths of files to read, whose names come from data, after a check that none leads out
    of the folders ``roots``.

    Links inside the folders are followed, since the owner of the folder made them, not the list of
    names. The environment variable ``HYPVISION_ALLOW_OUTSIDE`` names further folders, separated as
    in ``PATH``.

    Raises:
        HypvisionError: a path leads out of the folders.
    """
    more = filter(None, os.environ.get("HYPVISION_ALLOW_OUTSIDE", "").split(os.pathsep))
    allowed = [os.path.abspath(os.path.expanduser(root)) for root in (*roots, *more)]
    fine: dict[str, bool] = {}
    found = [os.fspath(path) for path in paths]
    for path in found:
        folder, name = os.path.split(path)
        if name in ("", os.curdir, os.pardir):
            folder = path
        if folder not in fine:
            place = Path(os.path.abspath(folder))
            fine[folder] = any(place.is_relative_to(root) for root in allowed)
        if not fine[folder] and os.path.abspath(path) not in allowed:
            raise HypvisionError(
                f"The data name the file '{path}', which lies outside of '{roots[0]}', so it is "
                "not read. Correct its name. If the name is right, allow its folder: "
                f"HYPVISION_ALLOW_OUTSIDE='{os.path.abspath(folder)}'."
            )
    return found


def with_ending(path: StrPath, ending: str) -> Path:
    """Return the path with an ending, which is added if the path lacks it; other endings stay
    before it."""
    path = Path(path)
    return path if path.suffix == ending else path.with_name(path.name + ending)


@contextmanager
def replacing(path: StrPath, durable: bool = False, suffix: str | None = None) -> Iterator[Path]:
    """Context that gives a temporary name to write a file under, and moves the file to ``path`` at
    its end.

    Missing folders are made. If the block raises an error, the temporary file is removed and an old
    file at ``path`` stays. Temporary files that killed processes have left in the folder are
    removed.

    Args:
        path: path of the file.
        durable: return only when the content and the name are on the disk.
        suffix: suffix of the temporary name; None: that of ``path``, by which many writers choose
            their format.

    >>> with replacing("figures/tree.png") as temporary:
    ...     picture.save(temporary)

    Raises:
        HypvisionError: as for :func:`check_output`; or the place is not writable, or the disk is
            full.
    """
    path = check_output(path)
    temporary = _temporary(path, suffix)
    with _leaving_nothing(path, temporary):
        yield temporary
        if durable:
            _flush(temporary)
        # The check is repeated, because another process may have created the path.
        check_output(path)
        os.replace(temporary, path)
        if durable and os.name == "posix":
            # Some network file systems refuse to flush a folder; the content is on the disk
            # nevertheless.
            with suppress(OSError):
                _flush(path.parent)


@contextmanager
def replacing_folder(path: StrPath) -> Iterator[Path]:
    """Context as :func:`replacing` for a whole folder; the old folder is removed when the new one
    is complete."""
    path = check_output_folder(path)
    if path.is_symlink():
        raise HypvisionError(
            f"'{path}' is a link, which is never replaced. Give the name of a new folder."
        )
    temporary = _temporary(path)
    old = _temporary(path)
    with _leaving_nothing(path, temporary, old):
        temporary.mkdir()
        yield temporary
        if _exchange(temporary, path):
            return
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(temporary, path)
        except BaseException:
            if old.exists():
                os.replace(old, path)
            raise


def _exchange(first: Path, second: Path) -> bool:
    """Swap two files or folders in one step, so that a kill loses neither; return False if the
    system cannot do so."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    # The names of these constants are AT_FDCWD and RENAME_EXCHANGE.
    here = -100
    exchange = 2
    return (
        swap is not None
        and swap(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0
    )


@contextmanager
def _leaving_nothing(path: Path, *temporary: Path) -> Iterator[None]:
    """Context that makes the folder of ``path``, explains errors inside the block, and removes the
    temporary files at its end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        yield
    except Exception as error:
        told = _as_not_written(path, temporary[0], error)
        if told is error:
            raise
        raise told from error
    finally:
        for each in temporary:
            _remove(each)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it exists and can be removed."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def write_text(path: StrPath, text: str) -> None:
    """Write a text file in UTF-8, complete or not at all."""
    with replacing(path) as temporary:
        # Python represents file names that are not UTF-8 with surrogates, which are written as
        # \udcNN.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def check_same(path: StrPath, text: str) -> None:
    """Raise an error if a file exists with another text than ``text``.

    This is for configs, annotations and similar files under names that a command chooses: people
    edit such files or have them from others. Results that a command computes or draws are replaced.
    """
    path = check_output(path)
    if path.exists() and path.read_bytes() != text.encode("utf-8", "backslashreplace"):
        raise HypvisionError(
            f"'{path}' exists and has other content. Give another folder, or delete it."
        )


def write_same(path: StrPath, text: str) -> None:
    """Write a text file that does not exist yet, or that has exactly this text
    (:func:`check_same`)."""
    check_same(path, text)
    write_text(path, text)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def why_no_file(path: StrPath, what: str) -> str:
    """Return why there is no file to read, as the first sentence of a message. The path is not
    opened, since reading a pipe could block.

    Args:
        path: path without a file.
        what: what the file should be, such as ``"image"``.

    >>> why_no_file("none.png", "image"), why_no_file("/dev/zero", "image")
    ("There is no image 'none.png'.", "The image '/dev/zero' is a device, not a file.")
    """
    try:
        mode = os.stat(os.path.expanduser(path)).st_mode
    except PermissionError as error:
        return f"The {what} '{path}' cannot be read: {error.strerror}."
    # A ValueError comes from a path with a NUL.
    except (OSError, ValueError):
        return (
            f"The {what} '{path}' is a link to nothing."
            if os.path.islink(path)
            else f"There is no {what} '{path}'."
        )
    return f"The {what} '{path}' is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file."


def names_file(text: str, suffixes: Collection[str]) -> bool:
    """Return whether an argument, which may also be words, is a path: it ends in one of the
    suffixes, or it exists.

    A folder in the current one whose name has no ``/`` counts as a word, since folders of classes
    are named by words.
    """
    if os.path.splitext(text)[1].lower() in suffixes:
        return True
    return os.path.lexists(text) and (os.path.basename(text) != text or not os.path.isdir(text))


def check_regular(path: StrPath, limit: int = MAX_BYTES) -> Path:
    """Return the path of a file to read after a check that it is a regular file or a folder: a pipe
    waits for its writer, and a device never ends.

    Raises:
        OSError: there is no such file.
        HypvisionError: the path is a pipe or device, or the file has more than ``limit`` bytes.
    """
    path = Path(path).expanduser()
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        what = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise HypvisionError(
            f"'{path}' is {what}, but a file is read here. Save its content in a file."
        )
    if found.st_size > limit:
        raise HypvisionError(
            f"'{path}' has {found.st_size:,} bytes, more than {limit:,}. Give a smaller file."
        )
    return path


def read_bytes(path: StrPath, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file, with the errors of :func:`check_regular`."""
    return check_regular(path, limit).read_bytes()


def read_pieces(stream: IO[bytes] | io.BufferedIOBase, limit: int, name: StrPath) -> bytearray:
    """Return the unpacked content of a compressed stream, read in pieces, so that no more than
    ``limit`` bytes are unpacked.

    Raises:
        HypvisionError: the content is more than ``limit`` bytes.
    """
    content = bytearray()
    for piece in iter(partial(stream.read, _PIECE), b""):
        content += piece
        if len(content) > limit:
            raise HypvisionError(
                f"'{name}' unpacks to more than {limit:,} bytes. Unpack it, and give a part."
            )
    return content


def read_text(path: StrPath, limit: int = MAX_BYTES) -> str:
    """Return the content of a text file in UTF-8, unpacked if the file is a gzip archive.

    Raises:
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not in UTF-8.
        HypvisionError: as for :func:`check_regular`; or the archive is damaged or unpacks to more
            than ``limit`` or 1 GiB.
    """
    path = check_regular(path, limit)
    with path.open("rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            return _decoded(file.read())
        damaged = f"'{path}' cannot be read: it is a damaged gzip archive"
        kinds = (OSError, EOFError, zlib.error)
        told = explaining(lambda error: f"{damaged} ({error}). Get it again.", *kinds)
        with told, gzip.open(file) as archive:
            return _decoded(read_pieces(archive, min(limit, MAX_UNPACKED), path))


def _decoded(raw: bytes | bytearray) -> str:
    # Windows editors begin a file with a byte order mark, which is removed here.
    return raw.decode("utf-8-sig")


@contextmanager
def many_objects() -> Iterator[None]:
    """Context for making many objects that stay, such as those of a large file: it stops Python's
    search for cycles, which would walk over all of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_json(path: StrPath, unique: bool = False, advice: str = "Correct it.") -> Any:
    """Return the content of a JSON file, read by :func:`read_text`.

    Args:
        path: the file.
        unique: raise an error for a key that occurs twice, of which JSON would take the last.
        advice: sentence at the end of the message that says what to do if the file cannot be read.
    """
    try:
        return parse_json(read_text(path), unique)
    except FileNotFoundError as error:
        raise HypvisionError(f"{why_no_file(path, 'file')} {advice}") from error
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HypvisionError(f"'{path}' cannot be read as JSON: {reason}. {advice}") from error


def _once(pairs: list[tuple[str, Any]]) -> Plain:
    found: Plain = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(
                f"the key '{key}' is there twice, with {found[key]!r:.60} and {value!r:.60}"
            )
        found[key] = value
    return found


def parse_json(text: str | bytes, unique: bool = False) -> Any:
    """Return the content of a JSON text; ``unique`` as for :func:`read_json`.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_once if unique else None)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error


def read_lines(path: StrPath, what: str, blank: bool = False) -> list[str]:
    """Return the lines of a text file, without leading and trailing spaces.

    Args:
        path: the file.
        what: name of the file in messages.
        blank: keep empty lines, so that the place of a line in the list follows from its number.
    """
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise HypvisionError(f"There is no '{path}', {what}.") from error
    except UnicodeDecodeError as error:
        raise HypvisionError(
            f"'{path}', {what}, is not text in UTF-8 ({error}). Save it as UTF-8."
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        # The path is a folder, has a NUL or an unknown ~user.
        reason = getattr(error, "strerror", None) or error
        raise HypvisionError(
            f"'{path}', {what}, cannot be read: {reason}. Check the path."
        ) from error
    # Python's splitlines() ends lines at other characters, too, but line numbers must be those of
    # an editor.
    lines = re.split(r"\r\n|\r|\n", text)
    return [
        line.strip() for line in (lines[:-1] if not lines[-1] else lines) if blank or line.strip()
    ]


def json_text(content: Any, indent: int | None = 1) -> str:
    """Return the text of a JSON file with this content."""
    return json.dumps(content, indent=indent) + "\n"


def write_json(path: StrPath, content: Any, indent: int | None = 1) -> None:
    """Write a JSON file, complete or not at all."""
    write_text(path, json_text(content, indent))


def note_holder(path: StrPath) -> None:
    """Write into a file beside a lock which process holds the lock, for :func:`who_holds`."""
    write_json(
        path,
        dict(pid=os.getpid(), host=socket.gethostname(), start=time.strftime("%Y-%m-%d %H:%M:%S")),
    )


def who_holds(path: StrPath) -> str:
    """Return ``": process 12 on HOST, since TIME"`` for the process that holds a lock; an empty
    text if its file is not complete yet or is gone."""
    try:
        facts = read_json(path)
        return f": process {facts['pid']} on {facts['host']}, since {facts['start']}"
    except (HypvisionError, KeyError, TypeError):
        return ""


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows of values as comma-separated text; a text that a spreadsheet would take for a
    formula gets a ``'`` before it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        try:
            float(value)
        except ValueError:
            return f"'{value}"
    return value


def write_table(path: StrPath, rows: Sequence[Values], empty: str = "empty") -> None:
    """Write rows of named values as a CSV file; a table without rows gets one column, called
    ``empty``."""
    columns = list(dict.fromkeys(name for row in rows for name in row)) or [empty]
    write_text(
        path, csv_text([columns, *([row.get(name, "") for name in columns] for row in rows)])
    )


def in_columns(lines: Sequence[Sequence[str]], sides: str) -> str:
    """Return lines of cells as text in columns; ``sides`` has ``<`` or ``>`` for each column, the
    last one for all that follow."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    aligned = zip(sides.ljust(len(widths), sides[-1:]), widths)
    form = "  ".join(f"{{:{side}{width}}}" for side, width in aligned)
    return "\n".join(form.format(*line).rstrip() for line in lines)


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()
) -> list[str]:
    """Return the lines of a Markdown table; the columns named in ``right`` are aligned at the
    right."""
    rules = ["--:" if name in right else "---" for name in head]
    lines = (
        [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in (head, rules, *rows)
    )
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a path, for a link that of the link itself; None if nothing is there."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # A ValueError comes from a path with a NUL.
    except (OSError, ValueError) as error:
        raise _not_written(path, error) from error


def _check_parents(path: Path) -> None:
    for parent in path.parents:
        if os.path.lexists(parent):
            if not parent.is_dir():
                raise HypvisionError(
                    f"'{path}' was not written: '{parent}' is not a folder. Choose another path."
                )
            return


def _temporary(path: Path, suffix: str | None = None) -> Path:
    writer = f"hyp-{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    return path.with_name(
        f".{_cut(path.stem)}.{writer}{_cut(path.suffix if suffix is None else suffix)}"
    )


def _cut(text: str) -> str:
    """Return the first 80 bytes of a name, since the whole temporary name may have at most 255."""
    return text.encode("utf-8", "surrogateescape")[:80].decode("utf-8", "ignore")


def _sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in a folder, once for each process
    and folder."""
    folder = folder.resolve()
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError):
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and _is_stale(match[1], int(match[2]), path):
                _remove(path)


def _is_stale(host: str, process: int, path: Path) -> bool:
    if host == _HOST and os.name == "posix":
        try:
            os.kill(process, 0)
        except (OSError, OverflowError) as error:
            return isinstance(error, ProcessLookupError)
        return False
    with suppress(OSError):
        return time.time() - path.lstat().st_mtime > _STALE_SECONDS
    return False


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_not_written(path: Path, temporary: Path, error: Exception) -> Exception:
    """Return the error to raise for one that came while ``temporary`` was written: an explanation
    of an error of the disk, else the error itself."""
    # The temporary file gets its final name later, so messages name the final one.
    if isinstance(error, HypvisionError):
        told = str(error).replace(str(temporary), str(path))
        return error if told == str(error) else type(error)(told)
    if isinstance(error, OSError):
        return _not_written(path, error)
    if type(error).__name__ == "SafetensorError":
        found = re.search(r"os error (\d+)", str(error))
        reason = (
            OSError(int(found[1]), os.strerror(int(found[1]))) if found else OSError(str(error))
        )
        return _not_written(path, reason)
    # This error is torch.save's, which does not say the reason.
    if "inline_container" in str(error):
        return _not_written(
            path, OSError("PyTorch could not write all of it, as happens when the disk is full")
        )
    return error


def _not_written(path: Path, error: Exception) -> HypvisionError:
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    reason = "the disk is full" if full else getattr(error, "strerror", None) or error
    advice = "Free some space, or choose" if full else "Choose"
    return HypvisionError(f"'{path}' was not written: {reason}. {advice} another place.")
