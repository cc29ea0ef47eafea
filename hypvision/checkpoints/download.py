"""Downloads of one file from one address. The bytes are streamed to a part file, which is moved
into place once it is complete and verified.

The transfer is huggingface_hub's ``http_get``, which resumes by range requests, repeats broken
connections, follows redirects and honours proxies. It sets no limits, so this module does: on the
bytes that a server sends (the size of the file), on the total time (:func:`deadline`), and on what
an answer may say (:func:`guarded`). A part file outlives the process, and a later call goes on from
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
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from hypvision.checkpoints.storage import format_problem
from hypvision.io.checks import ensure
from hypvision.io.errors import HypvisionError, one_line
from hypvision.io.files import check_output, note_holder, replacing, who_holds
from hypvision.io.types import StrPath
from hypvision.version import __version__

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

ATTEMPTS = 5  # failed attempts in a row that received no bytes
WAIT = 0.5  # seconds before the first retry; doubled for each further one
LOCK_WAIT = 900.0  # seconds that a process waits while another one downloads the file
PATIENCE = (
    30.0  # seconds that a server may ask to be left alone; beyond that another source is asked
)
LARGEST = 2**37  # limit in bytes where the record does not say the size
UNTOLD = 2**32  # the same where the server does not say it either
_RETRY = (408, 425, 429, 500, 502, 503, 504)
_HINTS = {401: " (log in: hf auth login)", 403: " (no access)", 404: " (no such file)"}


class SourceError(Exception):
    """One source does not provide the file; another may. The text completes "ADDRESS: ..."."""


class WrongContentError(SourceError):
    """The bytes are not those of the file."""


def deadline(size: int | None) -> float:
    """Seconds that a download may take in all, with its retries: ten minutes, or 50 kB a second if
    that is longer.

    ``HYPVISION_DEADLINE`` sets another number of seconds.
    """
    with suppress(ValueError):
        given = float(os.environ.get("HYPVISION_DEADLINE", ""))
        if given > 0:
            return given
    return max(600.0, (4 * 2**30 if size is None else size) / 50e3)


def in_time(work: Callable[[], _Result], seconds: float) -> _Result:
    """The result of a function, which runs in a thread that is abandoned when the time is over: a
    server that sends a byte now and then keeps every time-out of a connection from ending it.

    Raises:
        SourceError: the time is over.
    """
    done: Future[_Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    end = time.monotonic() + seconds
    while not done.done() and time.monotonic() < end:
        # in parts: Windows does not interrupt a wait
        wait([done], min(1.0, max(0.0, end - time.monotonic())))
    if not done.done():
        raise SourceError(
            "the time that it may take is over (HYPVISION_DEADLINE sets it, in seconds)"
        )
    return done.result()


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


def _need(right: object, problem: str) -> None:
    """Raise an error for a file of other content, unless something is right."""
    if not right:
        raise WrongContentError(problem)


def verify_file(path: StrPath, sha256: str, size: int) -> None:
    """Check that a file is a safetensors file with the size and sha256 of its record."""
    with _readable():
        found = Path(path).stat().st_size
        what = format_problem(path)
    kind = f" and is {what}" if what else ""
    _need(found == size, f"has {found} bytes instead of {size}{kind}")
    verify_sum(path, sha256)
    _need(not what, f"is not a safetensors file: it is {what}")


def verify_sum(path: StrPath, sha256: str) -> None:
    """Check that the sha256 of a file begins with the given digits."""
    with _readable():
        digest = file_sha256(path)
    sums = f"begins with {digest[:8]} instead of {sha256[:8]}"
    _need(digest.startswith(sha256), f"has the wrong content: its sha256 {sums}")


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
    verify: Callable[[Path], None],
    size: int | None = None,
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> None:
    """Download a file to ``target``. A later call goes on with the bytes in ``target.part``.

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
    most = size or limit
    fetch = partial(
        _fetch, url, part, most or LARGEST, dict(headers or {}), name or target.name,
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
        _need(fits, f"sends more than the {self.limit} bytes that the file may have")
        rest = memoryview(data)
        while rest:
            rest = rest[super().write(rest) :]
        return len(data)


# by which the hub's client names files in its cache
_NAMES = ("etag", "x-linked-etag", "x-repo-commit")
_NO_NAME = re.compile(r"[/\\](?<!^W/)|\.\.|^.{200}")
_thread = threading.local()  # of the thread that waits for an answer: see guarded()


class _Answered(Exception):
    """A server refused; the page that it sends with that is not read, as it may have no end."""

    def __init__(self, response: Any):
        super().__init__(f"answers {response.status_code}")
        self.response = response


def guarded(work: Callable[[], _Result], part: _Part | None = None) -> _Result:
    """The result of work with huggingface_hub's client, each answer to which is checked before its
    body is read.

    Args:
        work: what to do, in this thread.
        part: where the bytes go; its limit is lowered if the server does not say how many there
            are.

    Raises:
        SourceError: a redirect leads from https to http, or an answer is of another range than was
            asked for, is compressed more than once, or asks for a wait of more than
            :data:`PATIENCE`.
    """
    from huggingface_hub.utils import get_session

    for kind, check in (("request", _check_request), ("response", _check_answer)):
        hooks = get_session().event_hooks[kind]
        if check not in hooks:  # it does nothing in other threads
            hooks.append(check)
    _thread.guards = True
    _thread.secure = False
    _thread.part = part
    try:
        return work()
    finally:
        _thread.guards = False


def _check_request(request: Any) -> None:
    if not getattr(_thread, "guards", False):
        return
    if _thread.secure and request.url.scheme != "https":
        raise SourceError("redirects from https to an address without it")
    _thread.secure = request.url.scheme == "https"


def _check_answer(response: Any) -> None:
    if not getattr(_thread, "guards", False):
        return
    _pause(response)
    headers = response.headers
    if response.request.method != "GET":
        if any(_NO_NAME.search(headers.get(name, "")) for name in _NAMES):
            raise SourceError("names the file by a path")
        return
    if response.status_code >= 400:
        raise _Answered(response)
    encoding = headers.get("content-encoding", "identity")
    if "," in encoding:
        raise SourceError("sends a file that is compressed more than once")
    start = response.request.headers.get("range", "").removeprefix("bytes=").removesuffix("-")
    asked = headers.get("content-range", "").startswith(f"bytes {start}-")
    other = "sends another part of the file than was asked for"
    _need(response.status_code != 206 or asked, other)
    packed = encoding != "identity"
    # the HTTP library enforces a length that is told
    if packed or "content-length" not in headers:
        _limit(response, packed)


def _limit(response: Any, packed: bool) -> None:
    """Set a limit for an answer that does not tell its length."""
    if _thread.part is not None:
        _thread.part.limit = min(_thread.part.limit, UNTOLD)
    else:
        _bound(response, 2**20 if packed else UNTOLD)  # the hub compresses small texts


def _bound(response: Any, limit: int) -> None:
    """Let an answer have at most so many bytes, as they are sent."""
    pieces = response.iter_raw

    def bounded(chunk_size: int | None = None) -> Iterator[bytes]:
        have = 0
        for piece in pieces(chunk_size):
            have += len(piece)
            if have > limit:
                raise SourceError(f"sends more than {limit} bytes without saying how many")
            yield piece

    response.iter_raw = bounded


def _pause(response: Any) -> float:
    """The seconds that a busy server asks to be left alone."""
    if response is None or response.status_code not in _RETRY:
        return 0.0
    after = response.headers.get("retry-after", "")
    found = re.fullmatch(r"\s*(\d{1,18})\d*\s*", after) or re.search(
        r"\br=0;t=(\d{1,18})", response.headers.get("ratelimit", "")
    )
    seconds = float(found[1]) if found else 0.0
    if seconds > PATIENCE:
        wait = f"asks to be left alone for {seconds:.0f} s"
        raise SourceError(f"answers {response.status_code} and {wait}")
    return seconds


def _fetch(
    url: str, part: Path, limit: int, headers: dict[str, str], name: str, end: float
) -> None:
    """Append the bytes of an address to a part, by ``end`` at the latest, a time of
    :func:`time.monotonic`."""
    from huggingface_hub import constants, file_download

    constants.DOWNLOAD_CHUNK_SIZE = 2**16  # what is lost when a connection breaks; 10 MB by default
    # With compression, byte ranges would refer to the compressed file.
    fields = {"Accept-Encoding": "identity", "User-Agent": f"hypvision/{__version__}", **headers}
    failures = 0
    while True:
        have = _size(part)
        try:
            # closed at the deadline, so that a late thread writes no more
            with _Part(part, limit) as file:
                transfer = partial(
                    file_download.http_get, url, file, resume_size=have, headers=fields,
                    displayed_filename=name,
                )  # fmt: skip
                return in_time(partial(guarded, transfer, file), end - time.monotonic())
        except (SourceError, HypvisionError):
            raise
        except Exception as error:
            # huggingface_hub raises its own errors and those of its HTTP library
            response = getattr(error, "response", None)
            pause = _pause(response)
            reason, tries = _reason(error, response, part.parent, have)
            failures = 0 if _size(part) > have else failures + 1
            if failures >= tries:
                raise SourceError(reason) from error
            _logger.warning("%s: %s. Trying again ...", url, reason)
        time.sleep(min(max(pause, WAIT * 2**failures), max(0.0, end - time.monotonic())))


def _reason(error: Exception, response: Any, folder: Path, have: int) -> tuple[str, int]:
    """Why a transfer failed, and after how many such failures in a row to give up; an error if it
    is in vain to try again."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    ensure(not full, _full(folder))
    if response is None:  # http_get itself repeats broken connections
        return f"the connection broke ({one_line(error)})", 1
    status = response.status_code
    _need(status != 416, f"sends nothing after byte {have}")
    if status not in _RETRY:
        raise SourceError(f"answers {status}{_HINTS.get(status, '')}") from error
    return f"answers {status}", ATTEMPTS


def download_text(url: str, headers: Mapping[str, str] | None = None) -> str:
    """A text of at most 4 MiB from an address, with the retries and limits of :func:`download`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "text")
        name = url.rpartition("/")[2]
        download(url, path, lambda part: None, headers=headers, name=name, limit=4 * 2**20)
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
