"""Open web addresses, in the same way throughout hypvision, with limits on the answers.

:func:`ask` opens an address, for downloads of whole files (:mod:`hypvision.checkpoints.download`)
and for files that are read where they lie (:mod:`hypvision.data.remote`); requests of the hub's own
client go through the same checks (:func:`guarded`). The client is that of huggingface_hub's HTTP
library, which follows redirects and uses proxies. It sets no limits, so this module does: on the
total time (:func:`deadline`), on where a redirect may lead, and on what an answer may say.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from hypvision.version import __version__

from .errors import explaining

_Result = TypeVar("_Result")

# The limit in seconds for which a busy server may ask to wait; if it asks for more, another source
# is tried.
PATIENCE = 30.0
UNTOLD = 2**32  # limit in bytes for a file whose size the server does not give
BUSY = (408, 425, 429, 500, 502, 503, 504)
_HINTS = {401: " (log in: hf auth login)", 403: " (no access)", 404: " (no such file)"}


class SourceError(Exception):
    """A source that does not provide the file; another source may. The text completes "ADDRESS:
    ..."."""


class WrongContentError(SourceError):
    """A source whose bytes are not those of the file."""


class StatusError(SourceError):
    """A server that refuses a request. The page that it sends with its refusal is not read, as it
    may have no end.

    Attributes:
        status: HTTP status code.
        pause: number of seconds that the server asks to wait.
    """

    def __init__(self, response: Any):
        self.status: int = response.status_code
        self.pause = _pause(response)
        super().__init__(f"answers {self.status}{_HINTS.get(self.status, '')}")


def need(right: object, problem: str) -> None:
    """Raise a WrongContentError with the text ``problem`` unless ``right`` is true."""
    if not right:
        raise WrongContentError(problem)


def deadline(size: int | None) -> float:
    """Return the seconds that a download may take in all, with its retries: ten minutes, or the
    time at 50 kB a second if that is longer.

    ``HYPVISION_DEADLINE`` sets another number of seconds.
    """
    with suppress(ValueError):
        given = float(os.environ.get("HYPVISION_DEADLINE", ""))
        if given > 0:
            return given
    return max(600.0, (4 * 2**30 if size is None else size) / 50e3)


def in_time(work: Callable[[], _Result], seconds: float) -> _Result:
    """Return the result of a function that runs in a thread, which is abandoned when the time is
    over. Time-outs of a connection are not enough: a server that sends a byte now and then never
    reaches them.

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
        # Waiting is split into parts, since Windows does not interrupt a wait.
        wait([done], min(1.0, max(0.0, end - time.monotonic())))
    if not done.done():
        check_time(0.0)
    return done.result()


def check_time(end: float) -> None:
    """Raise an error if the time ``end``, of :func:`time.monotonic`, has passed."""
    if time.monotonic() >= end:
        raise SourceError(
            "the time limit for it is over (HYPVISION_DEADLINE sets the limit, in seconds)"
        )


def separated(address: str) -> tuple[str, dict[str, str]]:
    """Return an address without its name and password (``https://NAME:PASSWORD@HOST``), and the
    header that holds these.

    Raises:
        HypvisionError: the text is not a web address.
    """
    # The text of the error may quote the password.
    with explaining(lambda error: f"'{address}' is not a web address. Correct it.", ValueError):
        user, at, host = urlsplit(address).netloc.rpartition("@")
    if not at:
        return address, {}
    name, _, password = user.partition(":")
    given = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return address.replace(f"{user}@{host}", host, 1), {"Authorization": f"Basic {given}"}


def ask(
    address: str,
    seconds: float,
    start: int = 0,
    seen: dict[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    method: str = "GET",
) -> Any:
    """Return the checked answer of a web server whose body is not read yet: ``iter_raw()`` yields
    the body as it arrives, ``close()`` ends it.

    Args:
        address: address of the file, ``http://`` or ``https://``.
        seconds: time until the headers must have arrived.
        start: first byte that is asked for; a server may send the whole file nevertheless.
        seen: tag and size of the file from earlier answers; this answer must have the same, and
            what it says is added.
        headers: further headers of the request, e.g. an authorisation.
        method: ``GET`` or ``HEAD``.

    Raises:
        SourceError: as for :func:`guarded`; or the server refuses (:class:`StatusError`), or cannot
            be reached.
        HypvisionError: the text is not a web address.
    """
    from huggingface_hub import constants

    url, secret = separated(address)
    seen = {} if seen is None else seen
    # If the answer were compressed, byte ranges would refer to the compressed file.
    fields = {"Accept-Encoding": "identity", "User-Agent": f"hypvision/{__version__}"}
    if start:
        fields["Range"] = f"bytes={start}-"
        tag = seen.get("tag", "")
        # Only a strong tag identifies the bytes of a version; a weak tag or a time does not.
        if tag.startswith('"'):
            fields["If-Range"] = tag

    def send() -> Any:
        client = _client()
        request = client.build_request(
            method, url, headers={**fields, **secret, **(headers or {})},
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        )  # fmt: skip
        # The client would read the bodies of redirects into memory, whatever their size.
        for _ in range(_REDIRECTS):
            answer = client.send(request, stream=True)
            if answer.next_request is None:
                return answer
            answer.close()
            request = answer.next_request
        raise SourceError(f"redirects more than {_REDIRECTS} times")

    answer = in_time(partial(guarded, send, seen), seconds)
    if answer.status_code >= 400:
        answer.close()
        raise StatusError(answer)
    if answer.status_code not in (200, 206):
        answer.close()
        raise SourceError(f"answers {answer.status_code}, which is no file")
    return answer


_REDIRECTS = 20

# There is a client for each process, since a forked process must not use its parent's connections.
_clients: dict[int, Any] = {}


def _client() -> Any:
    """Return a client of huggingface_hub's HTTP library, without that library's rules for the hub,
    which has a switch of its own."""
    from huggingface_hub.utils import get_session

    process = os.getpid()
    if process not in _clients:
        hooks: dict[str, list[Any]] = dict(request=[_check_request], response=[_check_answer])
        _clients[process] = type(get_session())(event_hooks=hooks, follow_redirects=False)
    return _clients[process]


# The headers by which the hub's client names files in its cache.
_NAMES = ("etag", "x-linked-etag", "x-repo-commit")
_NO_NAME = re.compile(r"[/\\](?<!^W/)|\.\.|^.{200}")
# The state of the thread that runs a request, see guarded().
_thread = threading.local()


def guarded(work: Callable[[], _Result], seen: dict[str, str] | None = None) -> _Result:
    """Return the result of work with huggingface_hub's client; each answer is checked before its
    body is read.

    Args:
        work: function that sends requests, which runs in this thread.
        seen: as for :func:`ask`; None: the request is of the hub's own client.

    Raises:
        SourceError: a redirect leads from https to http; or an answer has another range than was
            asked for, belongs to another file than the first answer, is compressed more than once,
            or asks to wait for more than :data:`PATIENCE`.
    """
    from huggingface_hub.utils import get_session

    for kind, check in (("request", _check_request), ("response", _check_answer)):
        hooks = get_session().event_hooks[kind]
        # The check does nothing in other threads.
        if check not in hooks:
            hooks.append(check)
    _thread.guards = True
    _thread.secure = False
    _thread.seen = seen
    try:
        return work()
    finally:
        _thread.guards = False


def _check_request(request: Any) -> None:
    if not getattr(_thread, "guards", False):
        return
    if _thread.secure and request.url.scheme != "https":
        raise SourceError("redirects from https to an address without https")
    _thread.secure = request.url.scheme == "https"


def _check_answer(response: Any) -> None:
    if not getattr(_thread, "guards", False):
        return
    _pause(response)
    headers = response.headers
    if response.request.method == "GET":
        _check_body(response, _thread.seen)
    elif _thread.seen is None and any(_NO_NAME.search(headers.get(name, "")) for name in _NAMES):
        raise SourceError("names the file by a path")


def _check_body(response: Any, seen: dict[str, str] | None) -> None:
    if response.status_code >= 400:
        raise StatusError(response)
    encoding = response.headers.get("content-encoding", "identity")
    if "," in encoding:
        raise SourceError("sends a file that is compressed more than once, which is not read")
    _check_range(response)
    packed = encoding != "identity"
    if seen is not None and response.status_code in (200, 206):
        _check_same(response.headers, response.status_code == 206, seen)
    # The HTTP library itself enforces a length that the server gives.
    if packed or "content-length" not in response.headers:
        # The hub compresses small texts.
        _bound(response, 2**20 if packed and seen is None else UNTOLD)


def _check_range(response: Any) -> None:
    """Raise an error unless an answer with a part of the file begins at the byte that was asked
    for."""
    start = response.request.headers.get("range", "").removeprefix("bytes=").removesuffix("-")
    right = response.headers.get("content-range", "").startswith(f"bytes {start}-")
    other = "sends another part of the file than was asked for"
    need(response.status_code != 206 or right, other)


def _check_same(headers: Mapping[str, str], part: bool, seen: dict[str, str]) -> None:
    """Raise an error unless an answer belongs to the same file as those before, since bytes of two
    versions do not fit together."""
    size = headers.get("content-length", "")
    if part:
        size = headers.get("content-range", "").rpartition("/")[2].replace("*", "")
    tag = headers.get("etag") or headers.get("last-modified") or ""
    # HTTP demands that a partial answer has the tag of the whole file.
    if part and not tag and seen.get("tag"):
        tag = "none"
    for name, said in (("tag", tag), ("size", size)):
        same = not said or seen.setdefault(name, said) == said
        need(same, "sends another file than before: the file has been changed on the server")


def _bound(response: Any, limit: int) -> None:
    """Let ``iter_raw()`` of an answer yield at most ``limit`` bytes, counted as they are sent."""
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
    """Return the seconds that a busy server asks to wait; 0 for other answers. Raise an error for
    more than :data:`PATIENCE`."""
    if response is None or response.status_code not in BUSY:
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
