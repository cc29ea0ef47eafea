"""Writing files so that they appear complete or not at all, and reading text files of others.

Everything that the commands write goes through :func:`replacing` or :func:`replacing_folder`.
Neither ever replaces a device, a pipe, a link, or a file that the running command reads
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

from hypvision.io.errors import HypvisionError
from hypvision.io.types import Plain, StrPath, Values

_STALE_SECONDS = 7 * 86400
_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
# The name .NAME.hyp-HOST-PID-NUMBER.SUFFIX identifies the process that writes, so one can see
# whether it still runs.
_TEMPORARY = re.compile(r"\..*\.hyp-([0-9a-f]{8})-(\d+)-[0-9a-f]{8}(\..*)?", re.DOTALL)

# limit for a file that is read into memory; annotations of the largest data sets have 6 GiB
MAX_BYTES = 8 * 2**30
MAX_UNPACKED = 2**30  # limit for the text in a compressed file
_PIECE = 2**20  # bytes that are unpacked at once

_protected: ContextVar[dict[tuple[int, int], str] | None] = ContextVar("protected", default=None)
_swept: set[Path] = set()


@contextmanager
def protecting(*paths: StrPath) -> Iterator[None]:
    """Refuse to write these files inside the block, under any of their names; those that do not
    exist do not count."""
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
    """The path of a file, if it may be written: a new file, or a regular file that the command does
    not read.

    Raises:
        HypvisionError: it is a folder, link, device or pipe, or a file that the command reads, or
            its parent is not a folder.
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
    if source is not None:
        raise HypvisionError(
            f"'{path}' would be overwritten, but it is an input of this command ('{source}'). Give "
            "another name for the output."
        )
    return path


def check_output_folder(path: StrPath) -> Path:
    """The path of a folder, if it may be written to: a new one, an existing one, or a link to
    one."""
    path = Path(path)
    if _status(path) is None:
        _check_parents(path)
    elif not path.is_dir():
        raise HypvisionError(
            f"'{path}' is not a folder, but the output is a folder. Give the name of a folder."
        )
    return path


def check_new_folder(path: StrPath) -> Path:
    """The path of a folder, if it is new or empty."""
    path = check_output_folder(path)
    if path.exists() and any(path.iterdir()):
        raise HypvisionError(f"The folder '{path}' is not empty. Give a new or an empty one.")
    return path


def name_of(entry: str) -> str:
    """A name from the disk as text: in UTF-8, which it is written in, where the locale has another
    encoding too."""
    return os.fsencode(entry).decode("utf-8", "surrogateescape")


def on_disk(name: str) -> str:
    """A name or path as this process opens it: the reverse of :func:`name_of`."""
    return os.fsdecode(name.encode("utf-8", "surrogateescape"))


def below(folder: StrPath, name: str) -> Path:
    """The path ``folder/name``, for a name that comes from data."""
    path = Path(folder, name)
    try:
        inside = path.resolve().is_relative_to(Path(folder).resolve())
    except (OSError, ValueError, RuntimeError):  # the path has a NUL, or its links form a cycle
        inside = False
    if not inside or os.pardir in Path(name).parts:
        raise HypvisionError(
            f"'{name}' leads out of the folder '{folder}', so it was not written. Correct the name."
        )
    return path


def inside(paths: Iterable[StrPath], *roots: StrPath) -> list[str]:
    """Paths of files to read whose names come from data, if none of them leads out of the folders.

    Links inside of the folders are followed: who owns the folder made them, not the list of names.
    The environment variable ``HYPVISION_ALLOW_OUTSIDE`` names further folders, separated as in
    ``PATH``.

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
                "not read. Correct its name. If the file is meant, allow its folder: "
                f"HYPVISION_ALLOW_OUTSIDE='{os.path.abspath(folder)}'."
            )
    return found


def with_ending(path: StrPath, ending: str) -> Path:
    """The path with that ending, added where it lacks; what stands behind other dots stays."""
    path = Path(path)
    return path if path.suffix == ending else path.with_name(path.name + ending)


@contextmanager
def replacing(path: StrPath, durable: bool = False, suffix: str | None = None) -> Iterator[Path]:
    """Write a file under the temporary name that this gives, and move it to ``path`` at the end of
    the block.

    Missing folders are made. If anything is raised inside the block, the temporary file is removed
    and an old file at ``path`` stays. Temporary files that killed processes have left in the folder
    are removed.

    Args:
        path: the file.
        durable: return only when the content and the name are on the disk.
        suffix: of the temporary name; None: that of ``path``, by which many writers choose their
            format.

    >>> with replacing("figures/tree.png") as temporary:
    ...     picture.save(temporary)

    Raises:
        HypvisionError: :func:`check_output`; the place is not writable, or the disk is full.
    """
    path = check_output(path)
    temporary = _temporary(path, suffix)
    with _leaving_nothing(path, temporary):
        yield temporary
        if durable:
            _flush(temporary)
        check_output(path)  # check again, because another process may have created the path
        os.replace(temporary, path)
        if durable and os.name == "posix":
            # some network file systems refuse this; the content is on the disk nevertheless
            with suppress(OSError):
                _flush(path.parent)


@contextmanager
def replacing_folder(path: StrPath) -> Iterator[Path]:
    """As :func:`replacing` for a whole folder; the old one is removed when the new one is
    complete."""
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
    """Swap two files or folders in one step, so that a kill leaves both; False where the system
    cannot."""
    swap = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    # AT_FDCWD, RENAME_EXCHANGE
    here = -100
    exchange = 2
    return (
        swap is not None
        and swap(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0
    )


@contextmanager
def _leaving_nothing(path: Path, *temporary: Path) -> Iterator[None]:
    """Make the folder of a path, explain errors inside the block, and remove what is temporary at
    its end."""
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
    """Remove a file or a folder, if it is there and can be removed."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def write_text(path: StrPath, text: str) -> None:
    """Write a text file in UTF-8."""
    with replacing(path) as temporary:
        # Python represents file names that are not UTF-8 with surrogates, which are written as
        # \udcNN.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def check_same(path: StrPath, text: str) -> None:
    """Refuse to write a file that is there with another text.

    For configs, annotations and the like under names that a command chose: people edit such files
    or have them from others. What a command computes or draws is replaced.
    """
    path = check_output(path)
    if path.exists() and path.read_bytes() != text.encode("utf-8", "backslashreplace"):
        raise HypvisionError(
            f"'{path}' exists and has other content. Give another folder, or delete it."
        )


def write_same(path: StrPath, text: str) -> None:
    """Write a text file that is not there yet, or has this very text (:func:`check_same`)."""
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
    """Why there is no file to read, as the first sentence of a message. The path is not opened, as
    reading a pipe could block.

    Args:
        path: where there is no file.
        what: it should be, such as ``"image"``.

    >>> why_no_file("none.png", "image"), why_no_file("/dev/zero", "image")
    ("There is no image 'none.png'.", "The image '/dev/zero' is a device, not a file.")
    """
    try:
        mode = os.stat(os.path.expanduser(path)).st_mode
    except PermissionError as error:
        return f"The {what} '{path}' cannot be read: {error.strerror}."
    except (OSError, ValueError):  # ValueError: the path has a NUL
        return (
            f"The {what} '{path}' is a link to nothing."
            if os.path.islink(path)
            else f"There is no {what} '{path}'."
        )
    return f"The {what} '{path}' is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file."


def names_file(text: str, suffixes: Collection[str]) -> bool:
    """Whether an argument that may be words is a path: it ends in one of the suffixes, or it
    exists.

    A folder here whose name has no ``/`` counts as a word, as folders of classes are named by
    words.
    """
    if os.path.splitext(text)[1].lower() in suffixes:
        return True
    return os.path.lexists(text) and (os.path.basename(text) != text or not os.path.isdir(text))


def check_regular(path: StrPath, limit: int = MAX_BYTES) -> Path:
    """The path of a file to read, if it is a regular one: a pipe waits for its writer, a device
    never ends.

    Raises:
        OSError: there is none.
        HypvisionError: it is a pipe or device, or larger than ``limit`` bytes.
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
    """The content of a file, with the errors of :func:`check_regular`."""
    return check_regular(path, limit).read_bytes()


def read_pieces(stream: IO[bytes] | io.BufferedIOBase, limit: int, name: StrPath) -> bytearray:
    """What a compressed stream unpacks to, read in pieces, so that no more is unpacked than
    allowed.

    Raises:
        HypvisionError: it is more than ``limit`` bytes.
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
    """The content of a text file in UTF-8, unpacked if it is a gzip archive.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not in UTF-8.
        HypvisionError: as :func:`check_regular`; the archive is damaged or unpacks to more than
            ``limit`` or 1 GiB.
    """
    path = check_regular(path, limit)
    with path.open("rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            return _decoded(file.read())
        try:
            with gzip.open(file) as archive:
                return _decoded(read_pieces(archive, min(limit, MAX_UNPACKED), path))
        except (OSError, EOFError, zlib.error) as error:
            raise HypvisionError(
                f"'{path}' cannot be read: it is a damaged gzip archive ({error}). Get it again."
            ) from error


def _decoded(raw: bytes | bytearray) -> str:
    return raw.decode("utf-8-sig")  # Windows editors begin a file with a byte order mark


@contextmanager
def many_objects() -> Iterator[None]:
    """Context that makes many objects which stay, such as a large file's: Python's search for
    cycles, which walks over all of them again and again, waits until its end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_json(path: StrPath, unique: bool = False, advice: str = "Correct it.") -> Any:
    """The content of a JSON file, see :func:`read_text`.

    Args:
        path: the file.
        unique: refuse a key that is there twice, of which the last would count.
        advice: what to do about a file that cannot be read, the end of the message.
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
    """The content of a JSON text; ``unique`` as of :func:`read_json`.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_once if unique else None)
    except RecursionError as error:
        raise ValueError("its brackets are nested too deeply") from error


def read_lines(path: StrPath, what: str, blank: bool = False) -> list[str]:
    """The lines of a text file, without leading and trailing spaces.

    Args:
        path: the file.
        what: what the messages call it.
        blank: keep the empty lines, so that the number of a line is its place in the list.
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
        # the path is a folder, has a NUL or an unknown ~user
        reason = getattr(error, "strerror", None) or error
        raise HypvisionError(f"'{path}', {what}, cannot be read: {reason}.") from error
    # Python's splitlines() ends lines at other characters, too; a number of a line is that of an
    # editor.
    lines = re.split(r"\r\n|\r|\n", text)
    return [
        line.strip() for line in (lines[:-1] if not lines[-1] else lines) if blank or line.strip()
    ]


def json_text(content: Any, indent: int | None = 1) -> str:
    """The text of a JSON file."""
    return json.dumps(content, indent=indent) + "\n"


def write_json(path: StrPath, content: Any, indent: int | None = 1) -> None:
    """Write a JSON file."""
    write_text(path, json_text(content, indent))


def note_holder(path: StrPath) -> None:
    """Write down in a file beside a lock which process holds it, for :func:`who_holds`."""
    write_json(
        path,
        dict(pid=os.getpid(), host=socket.gethostname(), start=time.strftime("%Y-%m-%d %H:%M:%S")),
    )


def who_holds(path: StrPath) -> str:
    """``": process 12 on HOST, since TIME"``, or nothing where the file is not complete yet, or
    gone again."""
    try:
        facts = read_json(path)
        return f": process {facts['pid']} on {facts['host']}, since {facts['start']}"
    except (HypvisionError, KeyError, TypeError):
        return ""


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of values as comma separated text; a text that a spreadsheet would take for a formula
    begins with ``'``."""
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
    """Write rows of named values as CSV; a table without rows gets one column, called ``empty``."""
    columns = list(dict.fromkeys(name for row in rows for name in row)) or [empty]
    write_text(
        path, csv_text([columns, *([row.get(name, "") for name in columns] for row in rows)])
    )


def _status(path: Path) -> os.stat_result | None:
    """The status of a path, not that of a link's target; None if nothing is there."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL
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
    """The first 80 bytes of a name: the whole temporary name may have 255."""
    return text.encode("utf-8", "surrogateescape")[:80].decode("utf-8", "ignore")


def _sweep(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in a folder; once a process and
    folder."""
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
    """The error to raise for one that occurred while ``temporary`` was written: an explanation of
    an error of the disk, or the error itself."""
    # the temporary folder gets its final name later, so messages name that
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
    if "inline_container" in str(error):  # torch.save, which does not know the reason
        return _not_written(
            path, OSError("PyTorch could not write all of it, as happens when the disk is full")
        )
    return error


def _not_written(path: Path, error: Exception) -> HypvisionError:
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    reason = "the disk is full" if full else getattr(error, "strerror", None) or error
    advice = "Free some space, or choose" if full else "Choose"
    return HypvisionError(f"'{path}' was not written: {reason}. {advice} another place.")
