"""Manage the weight files on this machine: list and clean the cache of downloads, and check files
against the index."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from hypvision.checkpoints.download import verify_file
from hypvision.checkpoints.index import builtin_index, read_index
from hypvision.checkpoints.records import Index, Record
from hypvision.checkpoints.sources import cache_folder, index_folder, local_files, lock_path
from hypvision.io import HypvisionError, ensure
from hypvision.io.web import SourceError


class CachedFile(NamedTuple):
    """A file in the cache.

    Attributes:
        path: path of the file.
        bytes: size of the file.
        record: name of the record that the file belongs to, in the index or in a release that was
            used before; empty if no record needs the file any more.
        partial: whether the file is an unfinished download.
    """

    path: Path
    bytes: int
    record: str
    partial: bool


def list_cache(index: Index) -> list[CachedFile]:
    """Return the files in the cache, sorted by name."""
    known = {record.filename: record.name for source in [*visited(), index] for record in source}
    return [
        CachedFile(
            path,
            path.stat().st_size,
            known.get(path.name.removesuffix(".part"), ""),
            path.name.endswith(".part"),
        )
        for path in sorted(cache_folder().glob("*"))
        if path.is_file()
    ]


def visited() -> list[Index]:
    """Return the stored indexes of releases that were used before, except those that can no longer
    be read."""
    found = []
    for path in sorted(index_folder().glob("*.yml")):
        with suppress(HypvisionError):
            found.append(read_index(path))
    return found


def whereabouts(index: Index, record: Record) -> str:
    """Return where the file of a record is: ``"packaged"``, ``"cached"`` or ``"to download"``."""
    return next(iter(local_files(index, record)), "to download")


def records_here() -> list[tuple[str, Index, Record]]:
    """Return name, index and record of all records of the built-in index, and of those records of
    releases used before whose files are in the cache."""
    builtin = builtin_index()
    others = {
        record.filename: record
        for index in visited()
        for record in index
        if local_files(Index({}), record)
    }
    for record in builtin:
        others.pop(record.filename, None)
    here = [(record.name, builtin, record) for record in builtin]
    return here + [(record.name, Index({}), record) for record in others.values()]


def check_files(index: Index, record: Record) -> dict[Path, str]:
    """Return the packaged and the cached file of a record, as far as they exist, each with what is
    wrong with it; ``""`` if nothing is."""
    results = {}
    for path in local_files(index, record).values():
        try:
            verify_file(path, record.file.sha256, record.file.bytes)
            results[path] = ""
        except SourceError as error:
            results[path] = str(error)
    return results


def clean(index: Index, names: Iterable[str] = (), everything: bool = False) -> list[CachedFile]:
    """Remove files from the cache: unfinished downloads and files that no record needs; or, with
    ``names``, the files of these records.

    Files that a process is downloading at this moment stay.

    Args:
        index: index of the known records.
        names: names of records whose files are removed instead.
        everything: remove every file instead, and the stored indexes of releases.

    Returns:
        The files that were removed.
    """
    names = list(names)
    both = "Give either names or --all: --all removes every file in the cache."
    ensure(not (names and everything), both)
    files = list_cache(index)
    if names:
        chosen = _records(names, files, index)
        files = [file for file in files if file.record in chosen]
    elif not everything:
        files = [file for file in files if file.partial or not file.record]
    removed = [file for file in files if _remove(file.path)]
    if everything:
        for path in index_folder().glob("*.yml"):
            with suppress(OSError):
                path.unlink()
    return removed


def _records(names: Iterable[str], files: Iterable[CachedFile], index: Index) -> set[str]:
    """Return the names of records without "zoo:"; raise an error for a name that neither the files
    nor the index have."""
    there = {file.record for file in files}
    wanted = [name.removeprefix("zoo:") for name in names]
    return {name if name in there else index.get(name).name for name in wanted}


def _remove(path: Path) -> bool:
    """Remove a file unless a download holds its lock; return whether it was removed."""
    lock = lock_path(path.name.removesuffix(".part"))
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=0):
            path.unlink(missing_ok=True)
        return True
    except Timeout:
        return False
    except OSError as error:
        raise HypvisionError(
            f"'{path}' cannot be removed: {error.strerror or error}. Check your rights."
        ) from error
