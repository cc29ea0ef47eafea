"""Numbers of samples in shards, counted once and kept in a file beside the shards: ``shards.json``.

One process counts for all processes of a run. Counts are kept when the counting is interrupted, and
shared by everybody who reads the folder. If the folder of the shards cannot be written, the file is
kept in ``HYPVISION_HOME``.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.dist import broadcast_object_list, get_dist_info
from tqdm import tqdm

from hypvision.checkpoints.sources import home
from hypvision.data.remote import RemoteFile
from hypvision.io.errors import HypvisionError
from hypvision.io.files import parse_json, read_json, write_json
from hypvision.io.records import parse

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
    unchanged, else by counting. A remote shard that is in the index is not asked for again.

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


def _counted(
    paths: Sequence[Any], kind: str, count: Callable[[Any], tuple[int, list[list[str]]]]
) -> list[Counted]:
    tables = {folder: _read(folder).get(kind, {}) for folder in {path.parent for path in paths}}
    new: set[Any] = set()
    written = time.monotonic()
    try:
        for path in tqdm(paths, unit="shard", disable=None if len(paths) > 1 else True):
            table = tables[path.parent]
            if _is_known(path, table.get(path.name)):
                continue
            status = path.stat()
            samples, left_out = count(path)
            table[path.name] = Counted(status.st_size, status.st_mtime_ns, samples, left_out)
            new.add(path.parent)
            if time.monotonic() - written > _SECONDS:
                _write(kind, tables, new)
                written = time.monotonic()
    finally:
        _write(kind, tables, new)
    return [tables[path.parent][path.name] for path in paths]


def _is_known(path: Any, known: Counted | None) -> bool:
    if known is None or isinstance(path, RemoteFile):
        return known is not None
    status = path.stat()
    return (known.bytes, known.modified) == (status.st_size, status.st_mtime_ns)


def _places(folder: Any) -> list[Any]:
    """Return the two paths at which a folder's index may be: beside the shards, where others can
    read it, and in ``HYPVISION_HOME``, where this user may write."""
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return [folder / INDEX, home() / "shards" / f"{name}.json"]


def _read(folder: Any) -> dict[str, dict[str, Counted]]:
    found: dict[str, dict[str, Counted]] = {}
    for place in _places(folder):
        if not place.is_file():
            continue
        if isinstance(place, RemoteFile):
            try:
                content = parse_json(place.read_text())
            except ValueError as error:
                raise HypvisionError(f"'{place}' is damaged ({error}). Replace it.") from error
        else:
            content = read_json(place)
        tables = parse(dict[str, dict[str, Counted]], content, f"'{place}'", advice="Remove it.")
        counted = [one for table in tables.values() for one in table.values()]
        if not all(map(_is_possible, counted)):
            raise HypvisionError(
                f"'{place}' has numbers of samples that are impossible. Remove this file."
            )
        for kind, table in tables.items():
            found.setdefault(kind, {}).update(table)
    return found


def _is_possible(found: Counted) -> bool:
    return 0 <= found.samples <= _LARGEST and all(len(one) == 2 for one in found.left_out)


def _write(kind: str, tables: dict[Any, dict[str, Counted]], folders: set[Any]) -> None:
    """Write the index files of ``folders``, those with new counts."""
    for folder in folders:
        beside, own = _places(folder)
        place = beside if isinstance(beside, Path) and os.access(folder, os.W_OK) else own
        plain = {name: found._asdict() for name, found in tables[folder].items()}
        others = read_json(place) if place.is_file() else {}
        write_json(place, {**others, kind: {**others.get(kind, {}), **plain}})
