"""One file from one address: streamed, resumed, retried, bounded, verified, and only then moved into place.

What a server may do is limited: how much it sends (the size of the file), how slowly (:data:`SLOWEST` bytes a second
over :data:`WINDOW` seconds, within which the headers have come too), how long in all (:func:`deadline`) and how long it
may ask to wait (:data:`LONGEST_WAIT`).
A part file outlives the process, from which a later call goes on by a range request. The transfer is the standard
library's: it follows redirects, honours proxies, and needs nothing of the insides of another package.

Locks between processes are those of filelock, which the system frees when a process is killed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import random
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from tqdm import tqdm

from hypvision.checkpoints.storage import format_problem
from hypvision.errors import HypvisionError
from hypvision.files import check_output, replacing, write_text
from hypvision.version import __version__

__all__ = ["SourceError", "copy_verified", "download", "download_text", "file_sha256", "locked", "verify_file"]

_logger = logging.getLogger(__name__)

ATTEMPTS = 5  # in a row without progress
WAIT = 0.5  # seconds before the first retry; doubles with each
LONGEST_WAIT = 30.0  # whatever a server asks for
TIMEOUT = 10.0  # seconds without a byte; HF_HUB_DOWNLOAD_TIMEOUT sets another
SLOWEST, WINDOW = 1024, 30.0
LOCK_WAIT = 900.0  # seconds that a process waits for another one's download
SPARE = 16 * 2**20  # bytes to leave free on the disk
LARGEST = 2**37  # bytes of a file whose size nobody tells
_LATE = "its answer does not begin in time"
_RETRY = (408, 425, 429, 500, 502, 503, 504)


class SourceError(Exception):
    """One source cannot give the file; the next may. The text completes "ADDRESS: ..."."""


def deadline(size: int | None) -> float:
    """Seconds that a download may take in all, with its retries: ten minutes, or 50 kB a second if that is longer.

    ``HYPVISION_DEADLINE``, in seconds, is another.
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
    """Check that a file is exactly what its record says, and safetensors.

    Raises:
        SourceError: it is not, or cannot be read.
    """
    try:
        found, what = Path(path).stat().st_size, format_problem(path)
        if found != size:
            raise SourceError(f"has {found} bytes instead of {size}" + (f" and is {what}" if what else ""))
        verify_sum(path, sha256)
        if what:
            raise SourceError(f"is no safetensors file: it is {what}")
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror or error})") from error


def verify_sum(path: str | Path, sha256: str) -> None:
    """Check that the sha256 of a file begins with some digits (or is all of them).

    Raises:
        SourceError: it does not.
    """
    if not (digest := file_sha256(path)).startswith(sha256):
        raise SourceError(f"is another file: its sha256 begins with {digest[:8]} instead of {sha256[:8]}")


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Let one process at a time do something; the others wait, :data:`LOCK_WAIT` seconds at most.

    Args:
        path: the lock file, in a folder that exists. Who holds it stands beside it, in ``NAME.holder``.
        what: what is done, for the message to those who wait.

    Raises:
        HypvisionError: another process holds the lock for too long.
        OSError: the lock file cannot be made.
    """
    # For all users of a shared cache: the file is empty, and stays when its maker has gone.
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
                f"Waited {LOCK_WAIT:.0f} s for {_read_holder(holder)}, which holds the lock '{path}' ({what}). Let it "
                "end or end it, and repeat; the lock goes with its process."
            ) from None
    except NotImplementedError:  # some network file systems have no locks; two downloads then cost time, not safety
        _logger.warning("'%s' is on a file system without locks.", path)
    with suppress(HypvisionError):  # it is for the message alone
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
) -> None:
    """Download a file to ``target``, by way of ``target.part``, from which a later call goes on.

    Args:
        url: ``http://`` or ``https://``.
        target: where the file appears when it is complete and verified.
        verify: raises :class:`SourceError` for a complete file that is not the right one.
        size: its bytes, where they are known.
        headers: of the request, e.g. an authorisation.
        name: for the progress bar.

    Raises:
        SourceError: this address does not give the file, or not in time.
        HypvisionError: the disk is full.
        OSError: the folder cannot be written.
    """
    part = check_output(target.with_name(target.name + ".part"))
    failures, begun, fresh = 0, 1, False
    most = None  # bytes that were ever here; progress is what exceeds them
    seconds = deadline(size)
    end = time.monotonic() + seconds
    while True:
        have = part.stat().st_size if part.exists() else 0
        if size is not None and have > size:
            part.unlink()
            have = 0
        if size is None or have < size:
            if size is not None:
                _check_space(target.parent, size - have)
            with open(part, "r+b" if have else "wb") as file:
                file.seek(0, os.SEEK_END)
                problem = _transfer(url, file, size, headers, name or target.name, end)
            if problem is not None:
                reason, wait, anew = problem
                begun += anew
                if begun > ATTEMPTS:
                    raise SourceError(f"cannot continue a download and breaks off before the end ({ATTEMPTS} attempts)")
                most = have if most is None else max(most, have)
                progress = part.stat().st_size - most >= max((size or 0) // 100, 1)
                failures = 0 if progress else failures + 1
                if failures >= ATTEMPTS:
                    raise SourceError(f"{reason} ({ATTEMPTS} attempts)")
                pause = _pause(failures, wait)
                if time.monotonic() + pause > end:
                    raise SourceError(f"{reason}; the {seconds:.0f} s that it may take are over (HYPVISION_DEADLINE)")
                _logger.warning("%s: %s. Trying again ...", url, reason)
                time.sleep(pause)
                continue
        try:
            verify(part)
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


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to the web only, and tells no other host who asks."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise SourceError("redirects out of the web")
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            new.remove_header("Authorization")
        return new


class _Connections:
    """The connections of one request, which a clock can end."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.ended = False

    def add(self, connected: socket.socket) -> None:
        # A duplicate: the handshake of TLS, which is to be bounded too, takes the socket itself over.
        self._sockets.append(connected.dup())
        if self.ended:
            self._end()

    def _end(self) -> None:
        self.ended = True
        for connected in self._sockets:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def ended_after(self, seconds: float) -> Iterator[None]:
        clock = threading.Timer(max(seconds, 0.0), self._end)
        clock.daemon = True
        clock.start()
        try:
            yield
        finally:
            clock.cancel()

    def close(self) -> None:
        for connected in self._sockets:
            connected.close()


def _open(request: urllib.request.Request, connections: _Connections) -> Any:
    """The answer to a request, whose connections become known as soon as they are there."""

    def watched(connection: type) -> type:
        class Watched(connection):
            @property
            def sock(self) -> socket.socket | None:
                return self._watched

            @sock.setter
            def sock(self, value: socket.socket | None) -> None:
                self._watched = value
                if type(value) is socket.socket:
                    connections.add(value)

        return Watched

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(watched(HTTPConnection), req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            return self.do_open(watched(HTTPSConnection), req)

    timeout = TIMEOUT
    with suppress(KeyError, ValueError):
        timeout = min(float(os.environ["HF_HUB_DOWNLOAD_TIMEOUT"]), 600.0)
    return urllib.request.build_opener(_Redirects, Http, Https).open(request, timeout=timeout)


def _transfer(
    url: str, file: BinaryIO, size: int | None, headers: Mapping[str, str] | None, name: str, end: float
) -> tuple[str, float | None, bool] | None:
    """One request, which appends to ``file``.

    Args:
        url, size, headers, name: as for :func:`download`.
        file: open for writing, at its end.
        end: when to stop, by :func:`time.monotonic`.

    Returns:
        None if the file is complete; else what went wrong, how long the server asks to wait, and whether the file was
        begun anew because the server does not continue.

    Raises:
        SourceError: trying again is of no use.
    """
    have, anew = file.tell(), False
    # A transparent compression would make the ranges those of another file.
    fields = {"Accept-Encoding": "identity", "User-Agent": f"hypvision/{__version__}", **(headers or {})}
    if have:
        fields["Range"] = f"bytes={have}-"
    connections, answered = _Connections(), False
    try:
        with connections.ended_after(min(end - time.monotonic(), WINDOW)):
            answer = _open(urllib.request.Request(url, headers=fields), connections)
        with answer, connections.ended_after(end - time.monotonic()):
            if connections.ended:  # headers that are cut off look like complete ones
                return _LATE, None, anew
            answered = True
            if have and answer.status != 206:  # it ignores ranges
                file.seek(0)
                file.truncate()
                have, anew = 0, True
            length = answer.headers.get("Content-Length", "")
            expected = have + int(length) if length.isdigit() else size
            limit = LARGEST if size is None else size
            if expected is not None and expected > limit:
                raise SourceError(f"sends more than the {limit} bytes of the file")
            shown = dict(unit="B", unit_scale=True, desc=name, leave=False, delay=1, disable=None)
            with tqdm(total=expected, initial=have, **shown) as bar:
                slow = _receive(answer, file, limit, bar)
            if slow:
                return slow, None, anew
            if file.tell() != (expected if size is None else size) and expected is not None:
                return "the connection ended too early", None, anew
    except SourceError:
        raise
    except urllib.error.HTTPError as error:
        return (*_refused(error, file, have), error.code == 416)
    except (OSError, HTTPException, ValueError) as error:  # URLError is an OSError; ValueError: no address
        reason = getattr(error, "reason", error)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise HypvisionError(_full(Path(getattr(file, "name", ".")).parent, None)) from error
        if isinstance(error, ValueError):
            raise SourceError(f"is not an address that can be downloaded ({error})") from error
        text = str(reason).strip().split("\n")[0] or type(error).__name__
        return _LATE if connections.ended and not answered else f"the connection broke ({text})", None, anew
    finally:
        connections.close()
    return None


def _receive(answer: Any, file: BinaryIO, limit: int, bar: Any) -> str | None:
    """Write what comes until it ends; what is wrong if it comes too slowly."""
    since, count = time.monotonic(), 0
    while chunk := answer.read1(2**16):
        if file.tell() + len(chunk) > limit:
            raise SourceError(f"sends more than the {limit} bytes of the file")
        file.write(chunk)
        bar.update(len(chunk))
        count += len(chunk)
        if (passed := time.monotonic() - since) >= WINDOW:
            if count < SLOWEST * passed:
                return f"sends less than {SLOWEST} bytes a second, so the connection was ended"
            since, count = time.monotonic(), 0
    return None


def _refused(error: urllib.error.HTTPError, file: BinaryIO, have: int) -> tuple[str, float | None]:
    """What an answer other than the file means: a reason to try again and how long to wait."""
    status = error.code
    with error:
        wait = None
        with suppress(TypeError, ValueError):  # none, or a date
            wait = float(error.headers.get("Retry-After"))
    if status == 416:  # what is there is no beginning of what the server has
        file.seek(0)
        file.truncate()
        return f"has no bytes from {have} on", None
    if status in (301, 302, 303, 307, 308):
        raise SourceError("redirects without end, or out of the web")
    if status not in _RETRY:
        hint = {401: " (log in: hf auth login)", 403: " (no access)", 404: " (no such file)"}.get(status, "")
        raise SourceError(f"answers {status}{hint}") from error
    return f"answers {status}", wait


def _pause(failures: int, wait: float | None) -> float:
    """Seconds until the next attempt: what the server asks for, within limits, or ever longer."""
    if wait is None or wait != wait:  # NaN is a float too
        wait = WAIT * 2**failures * random.uniform(0.5, 1.0)
    return max(0.0, min(wait, LONGEST_WAIT))


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE:
        raise HypvisionError(_full(folder, needed, free))


def _full(folder: Path, needed: int | None, free: int | None = None) -> str:
    sizes = f": {needed / 1e6:.1f} MB to download, {free / 1e6:.1f} MB free" if needed is not None else ""
    return (
        f"The disk is full in '{folder}'{sizes}. Free some space (`hypvision zoo clean` removes what no record "
        "needs), or set HYPVISION_HOME to a folder on another disk. What has been downloaded is kept."
    )


def download_text(url: str, headers: Mapping[str, str] | None = None, limit: int = 4 * 2**20) -> str:
    """A small text from an address, with the same retries and limits.

    Raises:
        SourceError: the address does not give it, it is too long, or no text.
    """
    end = time.monotonic() + deadline(limit)
    for failures in range(3):
        buffer = _Bounded(limit)
        problem = _transfer(url, buffer, None, headers, url.rpartition("/")[2], end)
        if problem is None:
            try:
                return buffer.getvalue().decode("utf-8")
            except UnicodeDecodeError as error:
                raise SourceError("is no text") from error
        pause = _pause(failures, problem[1])
        if time.monotonic() + pause > end:
            break
        time.sleep(pause)
    raise SourceError(problem[0])


class _Bounded(io.BytesIO):
    """Memory that refuses to grow beyond a limit."""

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.limit:
            raise SourceError(f"sends more than the {self.limit} bytes that a text may have")
        return super().write(data)


def copy_verified(source: Path, target: Path, sha256: str, size: int) -> None:
    """Copy a file and verify the copy before it gets its name.

    Raises:
        SourceError: the source is not the file.
        HypvisionError: the target cannot be written.
    """
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        verify_file(temporary, sha256, size)
