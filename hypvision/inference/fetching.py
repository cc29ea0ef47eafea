"""Images and videos from addresses and from the standard input, as files of a temporary folder."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from hypvision.checkpoints.download import download
from hypvision.io.errors import HypvisionError, without_secrets
from hypvision.io.images import SUFFIXES, image_kind
from hypvision.io.web import SourceError
from hypvision.viz.video import VIDEO_SUFFIXES

LARGEST = 2**30  # bytes of one image or video
STREAM = "-"  # the standard input


@contextmanager
def fetched(names: Sequence[str]) -> Iterator[tuple[list[str], dict[Path, str]]]:
    """The names, with a file in the place of each address and of ``-``, and what these files are
    from.

    Raises:
        HypvisionError: an address gives no image or video, or the standard input none.
    """
    with TemporaryDirectory(prefix="hypvision-", ignore_cleanup_errors=True) as folder:
        found = []
        called = {}
        for number, name in enumerate(names):
            place = Path(folder, str(number))
            if name == STREAM:
                file = _stream(place)
            elif name.lower().startswith(("http://", "https://")):
                file = _download(name, place)
            else:
                found.append(name)
                continue
            found.append(str(file))
            called[file] = without_secrets(name)
        yield found, called


def _stream(folder: Path) -> Path:
    if sys.stdin is None or sys.stdin.isatty():
        raise HypvisionError(
            "'-' is the standard input, but nothing is sent there. Expected: an image, such as "
            "`hypvision predict - ... < photo.jpg`."
        )
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise HypvisionError(f"The standard input has more than {LARGEST:,} bytes.")
    folder.mkdir()
    file = folder / "stdin.img"
    file.write_bytes(data)
    return _with_suffix(file, "the standard input")


def _download(address: str, folder: Path) -> Path:
    folder.mkdir()
    try:
        name = _file_name(urlsplit(address).path)
        file = folder / name
        download(address, file, None, name=name, limit=LARGEST)
    except (SourceError, ValueError) as error:
        raise HypvisionError(f"'{address}': {error}. Check the address.") from error
    return _with_suffix(file, f"'{address}'")


def _file_name(path: str) -> str:
    """A name on this machine for the last part of an address, with its ending."""
    last = Path(unquote(path)).name
    return re.sub(r"[^\w. -]+", "_", last)[-100:].lstrip(".") or "image"


def _with_suffix(file: Path, what: str) -> Path:
    """The file, with the ending of its format where it has none."""
    if file.suffix.lower() in (*SUFFIXES, *VIDEO_SUFFIXES):
        return file
    try:
        kind, _ = image_kind(file)
    except HypvisionError as error:
        raise HypvisionError(f"What {what} gives is no image that can be read.") from error
    return file.rename(file.with_name(f"{file.stem}.{dict(JPEG='jpg').get(kind, kind.lower())}"))
