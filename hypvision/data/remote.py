"""Read files on other machines: ``https://``, and by fsspec ``s3://`` (``pip install s3fs``),
``gs://``, ``hf://datasets/USER/NAME/...`` and others.

>>> with RemoteFile("https://example.org/shards/000000.tar").open() as file:
...     head = file.read(512)
"""

from __future__ import annotations

import io
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from hypvision.io import HypvisionError, ensure, one_line, whole_number, without_secrets
from hypvision.io.web import (
    BUSY,
    SourceError,
    StatusError,
    WrongContentError,
    ask,
    check_time,
    deadline,
)

_TRIES = 4
WAIT = 0.25  # seconds before the first repetition; longer before each further one
_TEXT = 2**26  # limit in bytes for a text
_SKIP = 2**20  # number of bytes that are read on rather than asked for anew


def is_remote(name: Any) -> bool:
    """Return whether a name is the address of a file on another machine."""
    return bool(re.match(r"[a-z][a-z0-9+.-]*://", str(name)))


class Status(NamedTuple):
    """The size of a file, and a number that changes with its content, with the names of
    ``os.stat``."""

    st_size: int
    st_mtime_ns: int


class RemoteFile:
    """A file on another machine, by its address, with those methods of pathlib that readers of
    shards use. As text it is shown without secrets."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def __str__(self) -> str:
        return without_secrets(self.url)

    __fspath__ = __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __truediv__(self, name: str) -> RemoteFile:
        return RemoteFile(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2].partition("?")[0]

    @property
    def parent(self) -> RemoteFile:
        return RemoteFile(self.url.partition("?")[0].rpartition("/")[0])

    @property
    def _is_http(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    def is_file(self) -> bool:
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def stat(self) -> Status:
        """Return the size of the file, and a number made from the time or the tag of its content.

        Raises:
            FileNotFoundError: there is no such file.
            HypvisionError: the machine does not answer.
        """
        if self._is_http:
            said = _head(self.url)
            length = whole_number(said.get("Content-Length", ""))
            return Status(
                -1 if length is None else length,
                zlib.crc32(str(said.get("ETag") or said.get("Last-Modified")).encode()),
            )
        with self._system() as (system, path):
            about = system.info(path)
            keys = ("ETag", "mtime", "LastModified", "created", "blob_id")
            marks = [about.get(key) for key in keys]
            return Status(int(about["size"]), zlib.crc32(str(marks).encode()))

    def open(self, mode: str = "rb") -> Any:
        """Return the file opened for reading and seeking."""
        if self._is_http:
            return io.BufferedReader(_HttpFile(self.url, self.stat().st_size), 2**18)
        with self._system() as (system, path):
            return system.open(path, "rb")

    def read_text(self) -> str:
        with self.open() as file:
            content = file.read(_TEXT + 1)
        ensure(
            len(content) <= _TEXT,
            f"'{self}' has more than {_TEXT:,} bytes, too many for a text. Give a smaller file.",
        )
        return content.decode("utf-8")

    def children(self, ending: str | tuple[str, ...]) -> list[RemoteFile]:
        """Return the files of a folder with an ending, sorted; raise an error for a folder of a web
        server, which has no list of its files."""
        ensure(
            not self._is_http,
            f"'{self}' is a folder of a web server, which has no list of its files. Give a "
            "pattern, such as '.../{000000..000099}.tar', or a list.",
        )
        with self._system() as (system, path):
            names = sorted(str(name) for name in system.ls(path, detail=False))
        protocol = self.url.partition("://")[0]
        return [
            RemoteFile(f"{protocol}://{name.lstrip('/') if protocol != 'memory' else name}")
            for name in names
            if name.endswith(ending)
        ]

    @contextmanager
    def _system(self) -> Iterator[tuple[Any, str]]:
        """Context with fsspec's file system and the path in it, which explains its errors."""
        import fsspec

        try:
            yield fsspec.core.url_to_fs(self.url)
        except (FileNotFoundError, HypvisionError):
            raise
        # Each store has errors of its own.
        except Exception as error:
            raise HypvisionError(
                f"'{self}' cannot be read: {one_line(error)}. Check the address and your rights. "
                "fsspec needs a package for this kind of address: s3fs for s3://, gcsfs for gs://."
            ) from error


def _head(url: str) -> Any:
    """Return the headers of a file of a web server. The question is repeated if the machine is
    busy; if it refuses HEAD, as for an address that is signed for GET, it is asked by GET."""
    reason = ""
    method = "HEAD"
    end = time.monotonic() + deadline(0)
    for number in range(_TRIES):
        time.sleep(number * WAIT)
        try:
            answer = ask(url, end - time.monotonic(), method=method)
            answer.close()
            return answer.headers
        except StatusError as error:
            if error.status in (404, 410):
                raise FileNotFoundError(f"there is no '{without_secrets(url)}'") from None
            reason = str(error)
            refused = error.status not in BUSY
            if refused and method == "GET":
                break
            if refused:
                method = "GET"
        except SourceError as error:
            reason = str(error)
            break
        except HypvisionError:
            raise
        # The HTTP library raises errors of its own classes.
        except Exception as error:
            reason = one_line(error)
    raise HypvisionError(f"'{url}' cannot be read: {reason}. Check the address and the network.")


class _HttpFile(io.RawIOBase):
    """A file of a web server, opened for reading. An answer is read on until a distant position is
    asked for; a broken connection is opened again. All answers must be of the same version of the
    file, and the waiting for them has a limit (:func:`~hypvision.io.web.deadline`), however slowly
    its bytes arrive."""

    def __init__(self, url: str, size: int):
        self.url = url
        self.size = size
        self.place = 0
        self.at = 0  # position in the present answer
        self._answer: Any = None
        self._pieces: Iterator[bytes] = iter(())
        self._rest = b""  # bytes of the last piece that were not returned yet
        self._seen = {} if size < 0 else {"size": str(size)}
        self._waited = 0.0  # seconds of waiting for the bytes that were received
        self._received = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.size}[whence]
        self.place = base + offset
        return self.place

    def readinto(self, buffer: Any) -> int:
        if 0 <= self.size <= self.place:
            return 0
        begun = time.monotonic()
        waited = self._waited
        reason = "the answer ended"
        for number in range(_TRIES):
            left = deadline(self._received) - waited - (time.monotonic() - begun)
            try:
                self._go_to_place(left)
                data = self._next(len(buffer))
                if data or self.size < 0:
                    buffer[: len(data)] = data
                    self.place += len(data)
                    self._waited = waited + time.monotonic() - begun
                    return len(data)
            except WrongContentError as error:
                raise HypvisionError(f"'{self.url}': {error}. Start the command again.") from error
            except (SourceError, HypvisionError) as error:
                if not isinstance(error, StatusError) or error.status not in BUSY:
                    raise HypvisionError(
                        f"'{self.url}' cannot be read: {error}. Check the address and the network."
                    ) from error
                reason = str(error)
                time.sleep(min(error.pause, max(0.0, left)))
            # The HTTP library raises errors of its own classes.
            except Exception as error:
                reason = one_line(error)
            self._hang_up()
            time.sleep(number * WAIT)
        raise HypvisionError(
            f"'{self.url}' ended at byte {self.place:,} of {self.size:,}: {reason}. Check the "
            "network."
        )

    def _go_to_place(self, seconds: float) -> None:
        """Move to the present position: read the open answer up to it, or open a new one there."""
        check_time(time.monotonic() + seconds)
        if self._answer is not None and not 0 <= self.place - self.at <= _SKIP:
            self._hang_up()
        if self._answer is None:
            self._answer = ask(self.url, seconds, self.place, self._seen)
            self._pieces = self._answer.iter_raw()
            self.at = self.place if self._answer.status_code == 206 else 0
        end = time.monotonic() + seconds
        while self.at < self.place:
            if not self._next(self.place - self.at):
                raise OSError("the answer ended")
            check_time(end)

    def _next(self, most: int) -> bytes:
        """Return the next bytes of the answer, at most ``most``; no bytes mean that it has
        ended."""
        if not self._rest:
            self._rest = next(self._pieces, b"")
            self._received += len(self._rest)
        data = self._rest[:most]
        self._rest = self._rest[most:]
        self.at += len(data)
        return data

    def _hang_up(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._answer = None
        self._rest = b""

    def close(self) -> None:
        self._hang_up()
        super().close()
