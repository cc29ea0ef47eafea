"""One file from one address: streamed, resumed, retried, bounded, verified, and only then moved into place.

The transfer itself is :func:`huggingface_hub.file_download.http_get`, which timm brings along: it streams with a
progress bar, continues by range requests, notices servers that ignore ranges, follows redirects and honours proxies and
the time-outs of ``HF_HUB_DOWNLOAD_TIMEOUT``, for any HTTP address. (pooch cannot resume and would add requests; fsspec
needs aiohttp and brings neither resumption nor hashes.) What a zoo needs beyond that is here: a part file that outlives
the process, retries with back-off, a limit to what a server may send, and the sha256. Locks between processes are those
of filelock, which the system frees when a process is killed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from hypvision.checkpoints.storage import format_problem
from hypvision.errors import HypvisionError
from hypvision.files import replacing

__all__ = ["SourceError", "download", "download_text", "file_sha256", "locked", "verify_file"]

_logger = logging.getLogger(__name__)

ATTEMPTS = 5  # in a row without progress
WAIT = 0.5  # seconds before the first retry; doubles with each
LONGEST_WAIT = 30.0
SPARE = 16 * 2**20  # bytes to leave free on the disk
_RETRY = (408, 425, 429, 500, 502, 503, 504)


class SourceError(Exception):
    """One source cannot give the file; the next may. The text completes "ADDRESS: ..."."""


def file_sha256(path: str | Path) -> str:
    """The sha256 of a file's content, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def verify_file(path: str | Path, sha256: str, size: int) -> None:
    """Check that a file is exactly what its record says, and safetensors.

    Raises:
        SourceError: it is not, or cannot be read.
    """
    try:
        found, what = Path(path).stat().st_size, format_problem(path)
        if found != size:
            raise SourceError(f"has {found} bytes instead of {size}" + (f" and is {what}" if what else ""))
        if (digest := file_sha256(path)) != sha256:
            raise SourceError(f"is another file: its sha256 begins with {digest[:8]} instead of {sha256[:8]}")
        if what:
            raise SourceError(f"is no safetensors file: it is {what}")
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror or error})") from error


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Let one process at a time do something; the others wait.

    Args:
        path: the lock file, in a folder that exists.
        what: what is done, for the message to those who wait.

    Raises:
        OSError: the lock file cannot be made.
    """
    # For all users of a shared cache: the file is empty, and stays when its maker has gone.
    lock = FileLock(path, mode=0o666)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        _logger.warning("Waiting for another process: %s ...", what)
        lock.acquire()
    except NotImplementedError:  # some network file systems have no locks; two downloads then cost time, not safety
        _logger.warning("'%s' is on a file system without locks.", path)
    try:
        yield
    finally:
        lock.release()


class _Sink:
    """The part file: it refuses to grow beyond the size that was promised, and to be begun anew without end.

    http_get goes on by itself after a break for as long as something comes. A server (or a proxy with a time limit)
    that ignores ranges and always breaks off sends the same beginning each time.
    """

    def __init__(self, file: BinaryIO, limit: int):
        self._file, self._limit, self._begun = file, limit, 1

    def write(self, data: bytes) -> int:
        if self._file.tell() + len(data) > self._limit:
            raise SourceError(f"sends more than the {self._limit} bytes of the file")
        return self._file.write(data)

    def truncate(self, size: int | None = None) -> int:
        self._begun += 1
        if self._begun > ATTEMPTS:
            raise SourceError(f"cannot continue a download and breaks off before the end ({ATTEMPTS} attempts)")
        return self._file.truncate(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def download(
    url: str, target: Path, sha256: str, size: int, headers: Mapping[str, str] | None = None, name: str | None = None
) -> None:
    """Download a file to ``target``, by way of ``target.part``, from which a later call goes on.

    Args:
        url: ``http://`` or ``https://``.
        target: where the file appears when it is complete and verified.
        sha256, size: what it must be.
        headers: of the request, e.g. an authorisation.
        name: for the progress bar.

    Raises:
        SourceError: this address does not give the file.
        HypvisionError: the disk is full.
        OSError: the folder cannot be written.
    """
    part = target.with_name(target.name + ".part")
    failures, fresh = 0, False
    most = None  # bytes that were ever here; progress is what exceeds them
    while True:
        have = part.stat().st_size if part.exists() else 0
        if have > size:
            part.unlink()
            have = 0
        if have < size:
            _check_space(target.parent, size - have)
            with open(part, "r+b" if have else "wb") as file:
                file.seek(0, os.SEEK_END)
                problem = _transfer(url, _Sink(file, size), have, size, headers, name or target.name)
            if problem is not None:
                reason, wait = problem
                most = have if most is None else max(most, have)
                failures = 0 if part.stat().st_size - most >= max(size // 100, 1) else failures + 1
                if failures >= ATTEMPTS:
                    raise SourceError(f"{reason} ({ATTEMPTS} attempts)")
                _logger.warning("%s: %s. Trying again ...", url, reason)
                _sleep(failures, wait)
                continue
        try:
            verify_file(part, sha256, size)
        except SourceError:
            part.unlink()
            if have and not fresh:  # the part that was there may have been the damage
                fresh = True
                continue
            raise
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
        return


def _transfer(
    url: str, sink: Any, have: int, size: int | None, headers: Mapping[str, str] | None, name: str
) -> tuple[str, float | None] | None:
    """One request. None if it gave everything; else what went wrong and how long the server asks to wait.

    Raises:
        SourceError: trying again is of no use.
    """
    # Loaded late: huggingface_hub brings an HTTP stack.
    from huggingface_hub.file_download import http_get

    # A transparent compression would make the ranges those of another file.
    headers = {"Accept-Encoding": "identity", **(headers or {})}
    try:
        # _nb_retries: the retries here know how much has come and when to stop.
        with _small_chunks():
            http_get(
                url, sink, resume_size=have, headers=headers, expected_size=size, displayed_filename=name, _nb_retries=0
            )
    except SourceError:
        raise
    except Exception as error:  # huggingface_hub raises requests' errors or httpx's, by its version
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HypvisionError(_full(Path(getattr(sink, "name", ".")).parent, None)) from error
        if status == 416:  # what is there is no beginning of what the server has
            sink.seek(0)
            sink.truncate()
            return f"has no bytes from {have} on", None
        if status is not None and status not in _RETRY:
            hint = {401: " (log in: hf auth login)", 403: " (no access)", 404: " (no such file)"}.get(status, "")
            raise SourceError(f"answers {status}{hint}") from error
        if status is not None:
            return f"answers {status}", _retry_after(error)
        if isinstance(error, (ValueError, TypeError)):
            raise SourceError(f"is not an address that can be downloaded ({error})") from error
        if isinstance(error, OSError) and "Consistency check" in str(error):
            return "the connection ended too early", None
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        return f"the connection broke ({reason})", None
    return None


@contextmanager
def _small_chunks() -> Iterator[None]:
    """Let http_get hand over what has come in pieces of 16 kB.

    It collects 10 MB first, and a break loses what is collected: all of a small file, so that nothing could be resumed.
    The setting is that of the process; other downloads at the same time are as right with small pieces.
    """
    from huggingface_hub import constants

    before, small = constants.DOWNLOAD_CHUNK_SIZE, 2**14
    constants.DOWNLOAD_CHUNK_SIZE = small
    try:
        yield
    finally:
        if before != small:  # else another thread has set it, and sets it back
            constants.DOWNLOAD_CHUNK_SIZE = before


def _retry_after(error: Exception) -> float | None:
    with suppress(AttributeError, TypeError, ValueError):
        return float(error.response.headers.get("Retry-After"))
    return None


def _sleep(failures: int, wait: float | None) -> None:
    seconds = WAIT * 2**failures * random.uniform(0.5, 1.0) if wait is None else wait
    time.sleep(max(0.0, min(seconds, LONGEST_WAIT)))


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE:
        raise HypvisionError(_full(folder, needed, free))


def _full(folder: Path, needed: int | None, free: int | None = None) -> str:
    sizes = f": {needed / 1e6:.1f} MB to download, {free / 1e6:.1f} MB free" if needed is not None else ""
    return (
        f"The disk is full in '{folder}'{sizes}. Free some space (`hypvision cache clean` removes what no record "
        "needs), or set HYPVISION_HOME to a folder on another disk. What has been downloaded is kept."
    )


def download_text(url: str, headers: Mapping[str, str] | None = None, limit: int = 4 * 2**20) -> str:
    """A small text from an address, with the same retries.

    Raises:
        SourceError: the address does not give it, it is too long, or no text.
    """
    for failures in range(3):
        buffer = io.BytesIO()
        problem = _transfer(url, _Sink(buffer, limit), 0, None, headers, url.rpartition("/")[2])
        if problem is None:
            try:
                return buffer.getvalue().decode("utf-8")
            except UnicodeDecodeError as error:
                raise SourceError("is no text") from error
        _sleep(failures, problem[1])
    raise SourceError(problem[0])


def copy_verified(source: Path, target: Path, sha256: str, size: int) -> None:
    """Copy a file and verify the copy before it gets its name.

    Raises:
        SourceError: the source is not the file.
        HypvisionError: the target cannot be written.
    """
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        verify_file(temporary, sha256, size)
