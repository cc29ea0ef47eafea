"""Downloads of one file from one address. The bytes are streamed to a part file, which is moved
into place once it is complete and verified.

Answers come from :func:`hypvision.io.web.ask`. A broken connection is opened again and goes on by a
range request. A server may send as many bytes as the file has, in the time of
:func:`~hypvision.io.web.deadline`. A part file outlives the process, and a later call goes on from
it.

filelock keeps two processes from downloading the same file; the operating system frees its locks
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

from hypvision.checkpoints.storage import format_problem
from hypvision.io.checks import ensure, whole_number
from hypvision.io.errors import HypvisionError, one_line, without_secrets
from hypvision.io.files import check_output, note_holder, replacing, who_holds
from hypvision.io.types import StrPath
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

_logger = logging.getLogger(__name__)

ATTEMPTS = 5  # failed attempts in a row that received no bytes
WAIT = 0.5  # seconds before the first retry; doubled for each further one
LOCK_WAIT = 900.0  # seconds that a process waits while another one downloads the file
LARGEST = 2**37  # limit in bytes where the record does not say the size


def file_sha256(path: str | Path) -> str:
    """The sha256 of a file's content, in hexadecimal digits."""
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
    """Check that a file is a safetensors file with the size and sha256 of its record."""
    with _readable():
        found = Path(path).stat().st_size
        what = format_problem(path)
    kind = f" and is {what}" if what else ""
    need(found == size, f"has {found} bytes instead of {size}{kind}")
    verify_sum(path, sha256)
    need(not what, f"is not a safetensors file: it is {what}")


def verify_sum(path: StrPath, sha256: str) -> None:
    """Check that the sha256 of a file begins with the given digits."""
    with _readable():
        digest = file_sha256(path)
    sums = f"begins with {digest[:8]} instead of {sha256[:8]}"
    need(digest.startswith(sha256), f"has the wrong content: its sha256 {sums}")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Let one process at a time run the block; others wait, at most :data:`LOCK_WAIT` seconds.

    Args:
        path: the lock file, in a folder that exists.
        what: what is done, for the message to those who wait.

    Raises:
        HypvisionError: another process holds the lock for too long.
        OSError: the lock file cannot be made.
    """
    # Every user of a shared cache must be able to open the lock file. It is empty and stays when
    # its process ends.
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
        # some network file systems have no locks: a file may then be loaded twice
        _logger.warning("'%s' is on a file system without locks.", path)
    try:
        with suppress(OSError, HypvisionError):  # only messages need it
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
    """Download a file to ``target``. A later call goes on with the bytes in ``target.part``.

    Args:
        url: ``http://`` or ``https://``.
        target: where the file appears when it is complete and verified.
        verify: raises :class:`SourceError` for a complete file that is not the right one. None:
            nothing tells, so bytes of an earlier call, which may be of another version of the file,
            are not used.
        size: its bytes, where they are known.
        headers: of the request, e.g. an authorisation.
        name: for the progress bar.
        limit: the most bytes of a file whose size is not known.

    Raises:
        SourceError: this address does not give the file, or not in time.
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
    """Accept every file."""


def _full(folder: Path) -> str:
    return (
        f"The disk is full in '{folder}', or the file is larger than what is free. Free some space "
        "(`hypvision zoo clean` removes what no record needs), or set HYPVISION_HOME to a folder "
        "on another disk. What was downloaded is kept."
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _Part(io.FileIO):
    """A part file, opened at its end. Writing raises an error once the server has sent too much."""

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
    """Append the bytes of an address to a part, by ``end`` at the latest, a time of
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
            # the HTTP library raises errors of its own
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
    """Append the bytes of one answer to a part; one that has the whole file begins it anew."""
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
    """A text of at most 4 MiB from an address, with the retries and limits of :func:`download`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "text")
        name = without_secrets(url).rpartition("/")[2]
        download(url, path, None, headers=headers, name=name, limit=4 * 2**20)
        try:
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError("is not text in UTF-8") from error


def copy_verified(source: Path, target: Path, sha256: str, size: int) -> None:
    """Copy a file and verify the copy before it gets its name."""
    try:
        with replacing(target) as temporary:
            shutil.copyfile(source, temporary)
            verify_file(temporary, sha256, size)
    except SourceError as error:
        raise HypvisionError(f"'{target}' cannot be written: {error}.") from error
