"""Files on other machines: ``https://``, and by fsspec ``s3://`` (``pip install s3fs``), ``gs://``,
``hf://datasets/USER/NAME/...`` and others.

>>> with RemoteFile("https://example.org/shards/000000.tar").open() as file:
...     head = file.read(512)
"""

from __future__ import annotations

import io
import re
import time
import urllib.error
import urllib.request
import zlib
from contextlib import suppress
from typing import Any, NamedTuple

from hypvision.io.errors import HypvisionError, one_line

_TRIES = 4
_TEXT = 2**26  # bytes of a text
_TIMEOUT = 60  # seconds without an answer
_SKIP = 2**20  # bytes that are read rather than asked for anew


def is_remote(name: Any) -> bool:
    """Whether a name is an address."""
    return bool(re.match(r"[a-z][a-z0-9+.-]*://", str(name)))


class Status(NamedTuple):
    """Size and a number that changes with the content, named as those of ``os.stat``."""

    st_size: int
    st_mtime_ns: int


class RemoteFile:
    """An address with the part of pathlib's names that readers of shards use."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    def __str__(self) -> str:
        return self.url

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
        """The size, and the time or the tag of the content.

        Raises:
            FileNotFoundError: there is no such file.
            HypvisionError: the machine does not answer.
        """
        if self._is_http:
            with _asked(self.url, method="HEAD") as answer:
                said = answer.headers
                return Status(
                    int(said.get("Content-Length") or -1),
                    zlib.crc32(str(said.get("ETag") or said.get("Last-Modified")).encode()),
                )
        system, path = self._system()
        about = system.info(path)
        marks = [about.get(key) for key in ("ETag", "mtime", "LastModified", "created", "blob_id")]
        return Status(int(about["size"]), zlib.crc32(str(marks).encode()))

    def open(self, mode: str = "rb") -> Any:
        """The content, to read and to seek in."""
        if self._is_http:
            return io.BufferedReader(_HttpFile(self.url, self.stat().st_size), 2**18)
        system, path = self._system()
        return system.open(path, "rb")

    def read_text(self) -> str:
        with self.open() as file:
            content = file.read(_TEXT + 1)
        if len(content) > _TEXT:
            raise HypvisionError(f"'{self}' has more than {_TEXT:,} bytes, too many for a text.")
        return content.decode("utf-8")

    def children(self, ending: str | tuple[str, ...]) -> list[RemoteFile]:
        """The files of a folder with an ending, sorted; a web server has no lists."""
        if self._is_http:
            raise HypvisionError(
                f"'{self.url}' is a folder of a web server, which has no list of its files. Give a "
                "pattern, such as '.../{000000..000099}.tar', or a list."
            )
        system, path = self._system()
        protocol = self.url.partition("://")[0]
        names = sorted(str(name) for name in system.ls(path, detail=False))
        return [
            RemoteFile(f"{protocol}://{name.lstrip('/') if protocol != 'memory' else name}")
            for name in names
            if name.endswith(ending)
        ]

    def _system(self) -> tuple[Any, str]:
        import fsspec

        try:
            return fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise HypvisionError(
                f"'{self.url}' cannot be read: {one_line(error)}. fsspec needs a package for this "
                "kind of address: s3fs for s3://, gcsfs for gs://."
            ) from error


def _asked(url: str, start: int = 0, method: str = "GET") -> Any:
    """The answer of a web server, from a byte on; asked again where the machine is busy."""
    headers = {"User-Agent": "hypvision", **({"Range": f"bytes={start}-"} if start else {})}
    reason = ""
    for number in range(_TRIES):
        time.sleep(min(number, 1) * 2 ** (number - 1) / 4)
        try:
            request = urllib.request.Request(url, headers=headers, method=method)
            return urllib.request.urlopen(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                raise FileNotFoundError(f"there is no '{url}'") from None
            reason = f"{error.code} {error.reason}"
            if error.code < 500 and error.code != 429:
                break
        except OSError as error:
            reason = one_line(error)
    raise HypvisionError(f"'{url}' cannot be read: {reason}. Check the address and the network.")


class _HttpFile(io.RawIOBase):
    """A file of a web server. One answer is read on until a place further away is asked for; a
    broken connection is opened again."""

    def __init__(self, url: str, size: int):
        self.url = url
        self.size = size
        self.place = 0
        self.answer: Any = None
        self.at = 0  # the place in the answer

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
        for number in range(_TRIES):
            with suppress(OSError):
                self._go_to_place()
                data = self.answer.read(len(buffer))
                if data or self.size < 0:
                    buffer[: len(data)] = data
                    self.place += len(data)
                    self.at = self.place
                    return len(data)
            self._hang_up()
            time.sleep(number / 4)
        raise HypvisionError(
            f"'{self.url}' ended at byte {self.place:,} of {self.size:,}. Check the network."
        )

    def _go_to_place(self) -> None:
        if self.answer is not None and not 0 <= self.place - self.at <= _SKIP:
            self._hang_up()
        if self.answer is None:
            self.answer = _asked(self.url, self.place)
            self.at = self.place if self.answer.status == 206 else 0
        while self.at < self.place:
            skipped = len(self.answer.read(min(self.place - self.at, _SKIP)))
            if not skipped:
                raise OSError("the answer ended")
            self.at += skipped

    def _hang_up(self) -> None:
        if self.answer is not None:
            self.answer.close()
        self.answer = None

    def close(self) -> None:
        self._hang_up()
        super().close()
