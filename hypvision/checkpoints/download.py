"""Downloads of one file from one address. The bytes are streamed to a part file, which is moved into place once it is
complete and verified.

The transfer is huggingface_hub's ``http_get``, which resumes by range requests, repeats broken connections and answers
of 408 and 429, follows redirects and honours proxies. It sets no limits, so this module does: on the bytes that a
server sends (the size of the file), on its speed (:data:`SLOWEST` bytes a second over :data:`WINDOW` seconds) and on
the total time (:func:`deadline`). A part file outlives the process, and a later call goes on from it.

filelock keeps two processes from downloading the same file; the operating system frees its locks when a process is
killed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hypvision.checkpoints.storage import format_problem
from hypvision.errors import HypvisionError, one_line
from hypvision.files import check_output, replacing, write_text
from hypvision.version import __version__

_logger = logging.getLogger(__name__)

ATTEMPTS = 5  # failed attempts in a row that received no bytes
WAIT = 0.5  # seconds before the first retry; doubled for each further one
SLOWEST, WINDOW = 1024, 30.0
LOCK_WAIT = 900.0  # seconds that a process waits while another one downloads the file
SPARE = 16 * 2**20  # bytes to leave free on the disk
LARGEST = 2**37  # limit in bytes where the server does not say the size
_RETRY = (408, 425, 429, 500, 502, 503, 504)
_LATE = "the time that it may take is over (HYPVISION_DEADLINE sets it, in seconds)"
_HINTS = {401: " (log in: hf auth login)", 403: " (no access)", 404: " (no such file)"}


class SourceError(Exception):
    """One source does not provide the file; another source may. The text completes "ADDRESS: ..."."""


class _WrongContentError(SourceError):
    """The downloaded bytes are not those of the file, so the part file is useless."""


def deadline(size: int | None) -> float:
    """Seconds that a download may take in all, with its retries: ten minutes, or 50 kB a second if that is longer.

    ``HYPVISION_DEADLINE`` sets another number of seconds.
    """
    with suppress(ValueError):
        if (given := float(os.environ.get("HYPVISION_DEADLINE", ""))) > 0:
            return given
    return max(600.0, (4 * 2**30 if size is None else size) / 50e3)


def file_sha256(path: str | Path) -> str:
    """The sha256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def verify_file(path: str | Path, sha256: str, size: int) -> None:
    """Check that a file is a safetensors file with the size and sha256 of its record."""
    try:
        found, what = Path(path).stat().st_size, format_problem(path)
        if found != size:
            raise SourceError(f"has {found} bytes instead of {size}" + (f" and is {what}" if what else ""))
        verify_sum(path, sha256)
        if what:
            raise SourceError(f"is not a safetensors file: it is {what}")
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror or error})") from error


def verify_sum(path: str | Path, sha256: str) -> None:
    """Check that the sha256 of a file begins with the given digits."""
    if not (digest := file_sha256(path)).startswith(sha256):
        raise SourceError(f"has the wrong content: its sha256 begins with {digest[:8]} instead of {sha256[:8]}")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Let one process at a time run the block; the others wait, for at most :data:`LOCK_WAIT` seconds.

    Args:
        path: the lock file, in a folder that exists. ``NAME.holder`` beside it says which process holds it.
        what: what is done, for the message to those who wait.

    Raises:
        HypvisionError: another process holds the lock for too long.
        OSError: the lock file cannot be made.
    """
    # Every user of a shared cache must be able to open the lock file. It is empty and stays when its process ends.
    lock = FileLock(path, mode=0o666)
    holder = path.with_name(path.name + ".holder")
    try:
        lock.acquire(timeout=min(1.0, LOCK_WAIT))
    except Timeout:
        _logger.warning("Waiting for %s: %s ...", _read_holder(holder), what)
        try:
            lock.acquire(timeout=LOCK_WAIT)
        except Timeout:
            raise HypvisionError(
                f"Waited {LOCK_WAIT:.0f} s for {_read_holder(holder)}, which holds the lock '{path}' ({what}). Wait "
                "for this process or stop it, which removes the lock; then run the command again."
            ) from None
    except NotImplementedError:  # some network file systems have no locks: a file may then be loaded twice
        _logger.warning("'%s' is on a file system without locks.", path)
    with suppress(HypvisionError):  # only messages to waiting processes need this file
        write_text(
            holder, f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        )
    try:
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _read_holder(path: Path) -> str:
    try:
        text = path.read_text(errors="replace")[:200]
    except OSError:
        text = ""
    return "".join(c for c in text if c.isprintable()) or "another process"


def download(
    url: str,
    target: Path,
    verify: Callable[[Path], None],
    size: int | None = None,
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> None:
    """Download a file to ``target``. The bytes go to ``target.part``, from which a later call goes on.

    Args:
        url: ``http://`` or ``https://``.
        target: where the file appears when it is complete and verified.
        verify: raises :class:`SourceError` for a complete file that is not the right one.
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
    end = time.monotonic() + deadline(size or limit)
    while True:
        have = part.stat().st_size if part.exists() else 0
        try:
            if have != size:
                _check_space(target.parent, (size or 0) - have)
                _fetch(url, part, size or limit or LARGEST, dict(headers or {}), name or target.name, end)
            _verify_part(part, verify)
            break
        except _WrongContentError:
            part.unlink(missing_ok=True)
            if have == 0:
                raise
            # The part file of an earlier call may be damaged, so start again.
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    os.replace(part, target)


def _verify_part(part: Path, verify: Callable[[Path], None]) -> None:
    try:
        verify(part)
    except SourceError as error:
        raise _WrongContentError(str(error)) from error


class _Part(io.FileIO):
    """A part file, opened at its end. Writing raises an error once the server has sent too much."""

    def __init__(self, path: Path, limit: int):
        super().__init__(path, "a")
        self.limit, self.given_up, self.begun = limit, False, 0

    def write(self, data: Any) -> int:
        if self.given_up:
            raise SourceError("was cancelled")
        if self.tell() + len(data) > self.limit:
            raise _WrongContentError(f"sends more than the {self.limit} bytes that the file may have")
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        """Called where the server ignores the range and sends the file from its beginning."""
        self.begun += 1
        if self.begun > ATTEMPTS:
            raise SourceError(f"cannot continue a download and breaks off before the end ({ATTEMPTS} attempts)")
        return super().truncate(size)


def _fetch(url: str, part: Path, limit: int, headers: dict[str, str], name: str, end: float) -> None:
    """Download the rest of a part, until it is complete or ``end`` (of :func:`time.monotonic`) has come."""
    failures = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        error = _transfer(url, _Part(part, limit), headers, name, end)
        if error is None:
            return
        if isinstance(error, (SourceError, HypvisionError)):
            raise error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HypvisionError(_full(part.parent)) from error
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 416:
            raise _WrongContentError(f"sends nothing after byte {have}") from error
        if status is not None and status not in _RETRY:
            raise SourceError(f"answers {status}{_HINTS.get(status, '')}") from error
        reason = f"the connection broke ({one_line(error)})" if status is None else f"answers {status}"
        failures = 0 if part.stat().st_size > have else failures + 1
        if failures and status is None:  # http_get has already retried
            raise SourceError(reason) from error
        if failures >= ATTEMPTS:
            raise SourceError(f"{reason} ({ATTEMPTS} attempts)") from error
        pause = WAIT * 2**failures
        if time.monotonic() + pause > end:
            raise SourceError(f"{reason}; {_LATE}") from error
        _logger.warning("%s: %s. Trying again ...", url, reason)
        time.sleep(pause)


def _transfer(url: str, part: _Part, headers: dict[str, str], name: str, end: float) -> Exception | None:
    """Append the bytes of an address to a part file, in a thread that is abandoned if the server is too slow. Returns
    an error message, or None if the file is complete."""
    from huggingface_hub import constants, file_download

    constants.DOWNLOAD_CHUNK_SIZE = 2**16  # 10 MB chunks arrive too rarely to tell a slow server from a stalled one
    # With compression, byte ranges would refer to the compressed file.
    fields = {"Accept-Encoding": "identity", "User-Agent": f"hypvision/{__version__}", **headers}
    errors: list[Exception] = []
    path = Path(os.fsdecode(part.name))

    def work() -> None:
        with part:
            try:
                file_download.http_get(url, part, resume_size=part.tell(), headers=fields, displayed_filename=name)
            except Exception as error:  # huggingface_hub raises its own errors and those of its HTTP library
                errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            before = path.stat().st_size
            thread.join(max(0.0, min(WINDOW, end - time.monotonic())))
            if thread.is_alive() and time.monotonic() >= end:
                return SourceError(_LATE)
            if thread.is_alive() and path.stat().st_size - before < SLOWEST * WINDOW:
                return SourceError(f"sends less than {SLOWEST} bytes a second")
    finally:
        part.given_up = True
    return errors[0] if errors else None


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE:
        raise HypvisionError(_full(folder, f": {needed / 1e6:.1f} MB to download, {free / 1e6:.1f} MB free"))


def _full(folder: Path, sizes: str = "") -> str:
    return (
        f"The disk is full in '{folder}'{sizes}. Free some space (`hypvision zoo clean` removes what no record "
        "needs), or set HYPVISION_HOME to a folder on another disk. What has been downloaded is kept."
    )


def download_text(url: str, headers: Mapping[str, str] | None = None) -> str:
    """A text of at most 4 MiB from an address, with the retries and limits of :func:`download`.

    Raises:
        SourceError: the address does not provide the text, or it is too long or not text in UTF-8.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "text")
        download(url, path, lambda part: None, headers=headers, name=url.rpartition("/")[2], limit=4 * 2**20)
        try:
            return path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError("is not text in UTF-8") from error


def copy_verified(source: Path, target: Path, sha256: str, size: int) -> None:
    """Copy a file and verify the copy before it gets its name.

    Raises:
        SourceError: the source has another size or sum.
        HypvisionError: the target cannot be written.
    """
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        verify_file(temporary, sha256, size)
