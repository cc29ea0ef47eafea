"""Files that appear complete or not at all."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hypvision.errors import HypvisionError

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary name beside ``path``, for a file that is written inside the block and then moved into place.

    Missing folders are made. The temporary name has the suffix of ``path``, by which writers choose their format. If
    anything is raised inside, the temporary file goes and what ``path`` held before stays.

    >>> with replacing("figures/tree.png") as temporary:
    ...     picture.save(temporary)

    Raises:
        HypvisionError: the place is not writable, or the disk is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem[:100]}.{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise HypvisionError(
            f"'{path}' was not written: {'the disk is full' if full else error.strerror or error}. "
            f"{'Free some space, or choose' if full else 'Choose'} another place."
        ) from error
    finally:
        with suppress(OSError):  # a disk that has gone: the first error says more
            temporary.unlink(missing_ok=True)
