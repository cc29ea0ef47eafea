"""Numbers of samples in shards, counted once and kept in a file beside the shards: ``shards.json``.

One process counts for all processes of a run. Counts are kept when the counting is interrupted, and
shared by everybody who reads the folder. If the folder of the shards cannot be written, the file is
kept in ``HYPVISION_HOME``. Counts that others have made, as those of a server, are used only where
the shard has the size that they say, and are never copied; whoever reads such a shard to its end
counts its samples again, and corrects the number (:func:`correct`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.dist import broadcast_object_list, get_dist_info
from tqdm import tqdm

from hypvision.checkpoints.sources import home
from hypvision.io import HypvisionError, ensure, explaining
from hypvision.io.files import parse_json, read_json, write_json
from hypvision.io.records import parse

from .remote import RemoteFile

_logger = logging.getLogger(__name__)

INDEX = "shards.json"  # name of the file beside the shards with the counts of their samples
_LARGEST = 10**9  # a larger number of samples in one shard is taken for damage of the index
_SECONDS = 20.0  # least time between two writes of the index while shards are counted


class Counted(NamedTuple):
    """Index entry of a shard: its size in bytes, its time of modification in nanoseconds, its
    number of samples, and pairs [reason, sample] for the samples that are left out."""

    bytes: int
    modified: int
    samples: int
    left_out: list[list[str]]


def count_shards(
    paths: Sequence[Any], kind: str, count: Callable[[Any], tuple[int, list[list[str]]]]
) -> list[Counted]:
    """Return the counts of shards: from the index where a shard's size and time of modification are
    unchanged, else by counting.

    Args:
        paths: the shards' paths, local or remote.
        kind: what counts as a sample; the counts of other kinds in the index are kept as they are.
        count: a function that returns the number of samples in a shard, and pairs [reason, sample]
            for those that are left out.
    """
    found: list[Any] = [None]
    rank, world = get_dist_info()
    if rank == 0:
        try:
            found = [_counted(paths, kind, count)]
        except HypvisionError as error:  # sent to the other processes, which raise it, too
            found = [str(error)]
    if world > 1:
        broadcast_object_list(found)
    if isinstance(found[0], str):
        raise HypvisionError(found[0])
    return found[0]


def correct(path: Any, kind: str, samples: int, left_out: list[list[str]]) -> None:
    """Keep what a shard has, after the index said something else."""
    status = path.stat()
    own = _read(_own_place(path.parent)).get(kind, {})
    own[path.name] = Counted(status.st_size, status.st_mtime_ns, samples, left_out)
    _write(kind, {path.parent: own}, {path.parent})


def _counted(
    paths: Sequence[Any], kind: str, count: Callable[[Any], tuple[int, list[list[str]]]]
) -> list[Counted]:
    folders = {path.parent for path in paths}
    own = {folder: _read(_own_place(folder)).get(kind, {}) for folder in folders}
    lent = {folder: _lent(folder).get(kind, {}) for folder in folders}
    found = []
    new: set[Any] = set()
    written = time.monotonic()
    try:
        for path in tqdm(paths, unit="shard", disable=None if len(paths) > 1 else True):
            status = path.stat()
            table = own[path.parent]
            known = table.get(path.name)
            if not _is_same(known, status):
                known = lent[path.parent].get(path.name)
                # the server's owner had the file elsewhere, with another time
                remote = isinstance(path, RemoteFile)
                if not _is_same(known, status, timeless=remote):
                    known = None
            if known is None:
                samples, left_out = count(path)
                known = Counted(status.st_size, status.st_mtime_ns, samples, left_out)
                table[path.name] = known
                new.add(path.parent)
            found.append(known)
            if time.monotonic() - written > _SECONDS:
                _write(kind, own, new)
                written = time.monotonic()
    finally:
        _write(kind, own, new)
    return found


def _is_same(known: Counted | None, status: Any, timeless: bool = False) -> bool:
    """Whether a count is that of the file as it is now."""
    if known is None:
        return False
    same_time = timeless or known.modified == status.st_mtime_ns
    return bool(same_time and known.bytes == status.st_size)


def _places(folder: Any) -> list[Any]:
    """Return the two paths at which a folder's index may be: beside the shards, where others can
    read it, and in ``HYPVISION_HOME``, where this user may write."""
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return [folder / INDEX, home() / "shards" / f"{name}.json"]


def _own_place(folder: Any) -> Path:
    """Where the counts that are made here are kept."""
    beside, own = _places(folder)
    return beside if isinstance(beside, Path) and os.access(folder, os.W_OK) else own


def _lent(folder: Any) -> dict[str, dict[str, Counted]]:
    """The counts that others have made; those of a server are left out if they cannot be read."""
    own = _own_place(folder)
    [place] = [place for place in _places(folder) if place != own]
    try:
        return _read(place)
    except HypvisionError as error:
        if isinstance(place, Path):
            raise
        _logger.warning("The counts of the shards are not used: %s", error)
        return {}


def _read(place: Any) -> dict[str, dict[str, Counted]]:
    """The counts in a file, by their kind; none where there is no file."""
    if not place.is_file():
        return {}
    with explaining(lambda error: f"'{place}' is damaged ({error}). Replace it.", ValueError):
        content = (
            parse_json(place.read_text()) if isinstance(place, RemoteFile) else read_json(place)
        )
    tables = parse(dict[str, dict[str, Counted]], content, f"'{place}'", advice="Remove it.")
    counted = [one for table in tables.values() for one in table.values()]
    ensure(all(map(_is_possible, counted)), f"'{place}' has counts that cannot be. Remove it.")
    return tables


def _is_possible(found: Counted) -> bool:
    return 0 <= found.samples <= _LARGEST and all(len(one) == 2 for one in found.left_out)


def _write(kind: str, tables: dict[Any, dict[str, Counted]], folders: set[Any]) -> None:
    """Write the index files of ``folders``, those with new counts."""
    for folder in folders:
        place = _own_place(folder)
        plain = {name: found._asdict() for name, found in tables[folder].items()}
        others = read_json(place) if place.is_file() else {}
        write_json(place, {**others, kind: {**others.get(kind, {}), **plain}})
