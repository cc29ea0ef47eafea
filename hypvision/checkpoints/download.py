"""Download a file from an address: its bytes go to a part file, which is moved into place when it
is complete and verified.

:func:`hypvision.io.web.ask` opens the address. If the connection breaks, it is opened again and
continued by a range request. A server may send as many bytes as the file has, in the time of
:func:`~hypvision.io.web.deadline`. A part file outlives the process, and a later call continues it.

Locks of filelock keep two processes from downloading the same file; the operating system frees them
when a process is killed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from hypvision.io import (
    HypvisionError,
    StrPath,
    ensure,
    explaining,
    one_line,
    whole_number,
    without_secrets,
)
from hypvision.io.files import check_output, note_holder, replacing, who_holds
from hypvision.io.web import (
    BUSY,
    SourceError,
    StatusError,
    WrongContentError,
    ask,
    check_time,
    deadline,
    need,
)

from .storage import format_problem

_logger = logging.getLogger(__name__)

ATTEMPTS = 5  # failed attempts in a row, each without any bytes, after which the download ends
WAIT = 0.5  # seconds before the first retry; doubled for each further one
LOCK_WAIT = 900.0  # seconds that a process waits while another one downloads the file
LARGEST = 2**37  # limit in bytes for a file whose size the record does not give


def file_sha256(path: StrPath) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror or error})") from error


def verify_file(path: StrPath, sha256: str, size: int) -> None:
    """Check that a file is a safetensors file with the size and SHA-256 of its record; raise
    SourceError if not."""
    with _readable():
        found = Path(path).stat().st_size
        what = format_problem(path)
    kind = f" and is {what}" if what else ""
    need(found == size, f"has {found} bytes instead of {size}{kind}")
    verify_sum(path, sha256)
    need(not what, f"is not a safetensors file: it is {what}")


def verify_sum(path: StrPath, sha256: str) -> None:
    """Check that the SHA-256 of a file begins with the given digits; raise SourceError if not."""
    with _readable():
        digest = file_sha256(path)
    sums = f"begins with {digest[:8]} instead of {sha256[:8]}"
    need(digest.startswith(sha256), f"has the wrong content: its sha256 {sums}")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Context that one process at a time runs; others wait, at most :data:`LOCK_WAIT` seconds.

    Args:
        path: path of the lock file, in a folder that exists.
        what: what is done in the context, for the message to processes that wait.

    Raises:
        HypvisionError: another process holds the lock for too long.
        OSError: the lock file cannot be made.
    """
    # Every user of a shared cache must be able to open the lock file. The file is empty and stays
    # when its process ends.
    lock = FileLock(path, mode=0o666)
    holder = path.with_name(f"{path.name}.json")
    try:
        try:
            lock.acquire(timeout=min(1.0, LOCK_WAIT))
        except Timeout:
            who = who_holds(holder)
            _logger.warning(
                "Waiting for another process, which holds the lock '%s'%s (%s) ...", path, who, what
            )
            lock.acquire(timeout=LOCK_WAIT)
    except Timeout:
        raise HypvisionError(
            f"Waited {LOCK_WAIT:.0f} s for another process, which holds the lock "
            f"'{path}'{who_holds(holder)} ({what}). Wait for this process or stop it, which "
            "removes the lock; then run the command again."
        ) from None
    except NotImplementedError:
        # Some network file systems have no locks, so two processes may download the same file.
        _logger.warning(
            "'%s' is on a file system without locks, so processes may download a file twice.", path
        )
    try:
        # Only messages need the note of who holds the lock.
        with suppress(OSError, HypvisionError):
            note_holder(holder)
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def download(
    url: str,
    target: Path,
    verify: Callable[[Path], None] | None,
    size: int | None = None,
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> None:
    """Download a file to ``target``. A later call continues with the bytes in ``target.part``.

    Args:
        url: address of the file, ``http://`` or ``https://``.
        target: path where the file appears when it is complete and verified.
        verify: function that raises :class:`SourceError` for a complete file that is not the right
            one. None: nothing is known of the right file, so bytes of an earlier call, which may
            come from another version of the file, are not used.
        size: number of bytes of the file, if known.
        headers: headers of the request, e.g. an authorisation.
        name: name of the file on the progress bar.
        limit: largest number of bytes of a file whose size is not known.

    Raises:
        SourceError: this address does not give the right file, or not in time.
        HypvisionError: the disk is full.
        OSError: the folder cannot be written.
    """
    part = check_output(target.with_name(target.name + ".part"))
    if verify is None:
        part.unlink(missing_ok=True)
        verify = _any
    most = size or limit
    fetch = partial(
        _fetch, url, part, most or LARGEST, headers, name or target.name,
        time.monotonic() + deadline(most),
    )  # fmt: skip
    while True:
        have = _size(part)
        try:
            if have != size:
                fits = shutil.disk_usage(target.parent).free >= (size or 0) - have
                ensure(fits, _full(target.parent))
                fetch()
            verify(part)
            break
        except WrongContentError:
            part.unlink(missing_ok=True)
            if have == 0:
                raise
            # The part file of an earlier call may be damaged, so start again.
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)


def _any(part: Path) -> None:
    """Accept every file; a function for the argument ``verify`` of :func:`download`."""


def _full(folder: Path) -> str:
    return (
        f"The disk is full in '{folder}', or the file is larger than what is free. Free some space "
        "(`hypvision zoo clean` removes what no record needs), or set HYPVISION_HOME to a folder "
        "on another disk. What was downloaded is kept."
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Part(io.FileIO):
    """A part file, opened at its end, whose ``write`` raises an error once the server has sent more
    than ``limit`` bytes."""

    def __init__(self, path: Path, limit: int):
        super().__init__(path, "a")
        self.limit = limit

    def write(self, data: Any) -> int:
        fits = self.tell() + len(data) <= self.limit
        need(fits, f"sends more than the {self.limit} bytes that the file may have")
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


def _fetch(
    url: str, part: Path, limit: int, headers: Mapping[str, str] | None, name: str, end: float
) -> None:
    """Append the bytes of an address to a part file, with retries, until the time ``end`` of
    :func:`time.monotonic`."""
    seen: dict[str, str] = {}
    failures = 0
    while True:
        have = _size(part)
        pause = 0.0
        try:
            return _transfer(url, part, limit, headers, name, end, seen)
        except StatusError as error:
            need(error.status != 416, f"sends nothing after byte {have}")
            if error.status not in BUSY:
                raise
            pause = error.pause
            reason = str(error)
        except (SourceError, HypvisionError):
            raise
        except Exception as error:
            # The HTTP library raises errors of its own classes.
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            ensure(not full, _full(part.parent))
            reason = f"the connection broke ({one_line(error)})"
        failures = 0 if _size(part) > have else failures + 1
        if failures >= ATTEMPTS:
            raise SourceError(reason)
        _logger.warning("%s: %s. Trying again ...", without_secrets(url), reason)
        time.sleep(min(max(pause, WAIT * 2**failures), max(0.0, end - time.monotonic())))


def _transfer(
    url: str,
    part: Path,
    limit: int,
    headers: Mapping[str, str] | None,
    name: str,
    end: float,
    seen: dict[str, str],
) -> None:
    """Append the bytes of one answer to a part file; an answer with the whole file replaces its
    content."""
    have = _size(part)
    with (
        closing(ask(url, end - time.monotonic(), have, seen, headers)) as answer,
        _Part(part, limit) as file,
    ):
        if answer.status_code == 200:
            have = 0
            file.truncate(0)
            file.seek(0)
        total = whole_number(seen.get("size", ""))
        with tqdm(
            desc=name[-40:], initial=have, total=total, unit="B", unit_scale=True, disable=None
        ) as bar:
            for piece in answer.iter_raw():
                file.write(piece)
                bar.update(len(piece))
                check_time(end)


def download_text(url: str, headers: Mapping[str, str] | None = None) -> str:
    """Return the text, of at most 4 MiB, at an address, with the retries and limits of
    :func:`download`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "text")
        name = without_secrets(url).rpartition("/")[2]
        download(url, path, None, headers=headers, name=name, limit=4 * 2**20)
        try:
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError("is not text in UTF-8") from error


def copy_verified(source: Path, target: Path, sha256: str, size: int) -> None:
    """Copy a file and verify the copy before it gets its final name."""
    with (
        explaining(
            lambda error: f"'{target}' cannot be written: {error}. Get its source again.",
            SourceError,
        ),
        replacing(target) as temporary,
    ):
        shutil.copyfile(source, temporary)
        verify_file(temporary, sha256, size)
