"""The index of the zoo: ``index.yml``, one record a weight file; its schema, reading and writing.

A record says what a file is, where it lies, how to recognise it (sha256 and bytes) and what it was measured to do. Keys
that are not in the schema are errors, as are missing ones: a typing mistake must not become a silent default. The keys
are described in ``docs/model-zoo.md`` and by the dataclasses of :mod:`hypvision.checkpoints.records`.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from hypvision.checkpoints.records import TASKS, Index, Metric, Record, WeightFile
from hypvision.checkpoints.storage import STORAGES, foreign_setting
from hypvision.errors import HypvisionError, did_you_mean
from hypvision.files import write_text

__all__ = [
    "builtin_index",
    "builtin_root",
    "dump_index",
    "find_record",
    "parse_index",
    "parse_record",
    "read_index",
    "with_record",
    "write_index",
]

VERSION = 1
ADDRESSES = ("http://", "https://", "hf-hub:", "file://")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a card is printed: they would steer the terminal
_LONGEST_NAME = 128  # with sum and suffix it must be a file name
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9_-]*")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")
_HEADER = """\
# The model zoo: one record a weight file. Written by hypvision publish; docs/model-zoo.md describes the keys.
# README.md is rendered from this file: hypvision models --write-readme model_zoo/README.md
"""


def without_password(address: str) -> str:
    """An address to show: without ``NAME:PASSWORD@`` before the host."""
    return re.sub(r"^(https?://)[^/]*@", r"\1", address)


# Parsing


class _Loader(yaml.SafeLoader):
    """Plain values only; refuses a key that stands twice, of which YAML would silently take the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not text", node.start_mark)
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' stands twice", node.start_mark)
    return dict(zip(keys, (loader.construct_object(value, deep=True) for _, value in node.value)))


def _compose(loader: _Loader, parent: Any, index: Any) -> yaml.Node:
    """Refuses aliases: a few lines of them stand for a structure that fills the memory."""
    if loader.check_event(yaml.AliasEvent):
        event = loader.peek_event()
        raise yaml.composer.ComposerError(None, None, f"the alias '*{event.anchor}'; write it out", event.start_mark)
    return yaml.SafeLoader.compose_node(loader, parent, index)


_Loader.compose_node = _compose
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_index(text: str, root: Path | None = None, address: str | None = None) -> Index:
    """Parse and check the text of an ``index.yml``.

    Raises:
        HypvisionError: not YAML, an unknown or missing key, a value out of its range, a name that stands twice, or a
            parent that is not there. The message names the record and the key.
    """
    where = without_password(address) if address else (str(root / "index.yml") if root else "the index")
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a day that no calendar has
        raise HypvisionError(f"{where} is not valid YAML: {error}.") from error
    if not isinstance(content, dict) or set(content) != {"version", "records"}:
        raise HypvisionError(f"{where} must have the keys 'version' and 'records', and no others.")
    if content["version"] != VERSION:
        raise HypvisionError(
            f"{where} is of version {content['version']!r}; this hypvision reads version {VERSION}. Update hypvision."
        )
    if not isinstance(content["records"], list):
        raise HypvisionError(f"{where}: 'records' must be a list.")
    records: dict[str, Record] = {}
    for number, item in enumerate(content["records"], start=1):
        record = parse_record(item, f"{where}, record {number}")
        if record.name in records:
            raise HypvisionError(f"{where}: '{record.name}' stands twice.")
        records[record.name] = record
    for record in records.values():
        if record.parent is not None and (record.parent not in records or record.parent == record.name):
            raise HypvisionError(f"{where}: the parent '{record.parent}' of '{record.name}' is not another record.")
    return Index(records, root, address)


def read_index(path: str | Path) -> Index:
    """Read an index file; packaged paths start from its folder.

    Raises:
        HypvisionError: no such file, or as :func:`parse_index`.
    """
    path = Path(path).expanduser()
    path = path / "index.yml" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HypvisionError(f"The index '{path}' cannot be read: {error}. Check the path.") from error
    return parse_index(text, path.parent.resolve())


def parse_record(item: Any, where: str = "the record") -> Record:
    """Check one record and make it an object.

    Raises:
        HypvisionError: as :func:`parse_index`.
    """
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        where = f"{where} ({item['name']})"
    values = _checked(Record, item, where)
    if not _NAME.fullmatch(_text(values, "name", where)) or len(values["name"]) > _LONGEST_NAME:
        raise HypvisionError(
            f"{where}: the name '{values['name']}' must be MODEL.TAG of lower-case letters, digits, '_' and '-', at "
            f"most {_LONGEST_NAME} of them."
        )
    for key in ("model", "config", "licence", "description", "intended_use", "data", "training"):
        _text(values, key, where)
    if "parent" in values:
        _text(values, "parent", where)
    if values["task"] not in TASKS:
        raise HypvisionError(f"{where}: the task {values['task']!r} is none of {', '.join(TASKS)}.")
    _inside(values["config"], "config", where)
    values["parameters"] = _count(values, "parameters", where)
    values["classes"] = _texts(values, "classes", where)
    values["limits"] = _texts(values, "limits", where)
    for key in ("classes", "limits"):
        if not values[key]:
            raise HypvisionError(f"{where}: '{key}' must have at least one entry.")
    values["arguments"] = values.get("arguments") or {}
    if not isinstance(values["arguments"], dict) or not _is_plain(values["arguments"]):
        raise HypvisionError(f"{where}: 'arguments' must be a mapping of numbers, texts, lists and mappings.")
    if (foreign := foreign_setting(values["arguments"])) is not None:
        raise HypvisionError(
            f"{where}: 'arguments' contain {foreign}, but say how the network is built, never where weights lie: that "
            "stands in 'file'."
        )
    values["input"] = _parse_input(values["input"], f"{where}, input")
    values["file"] = _parse_file(values["file"], f"{where}, file")
    if not isinstance(values["metrics"], list) or not values["metrics"]:
        raise HypvisionError(f"{where}: 'metrics' must be a list of at least one.")
    values["metrics"] = tuple(
        _parse_metric(metric, f"{where}, metric {number}") for number, metric in enumerate(values["metrics"], start=1)
    )
    date = values["date"]
    if isinstance(date, datetime.date) and not isinstance(date, datetime.datetime):
        date = date.isoformat()
    try:
        values["date"] = datetime.date.fromisoformat(date).isoformat()
    except (TypeError, ValueError):
        raise HypvisionError(f"{where}: the date {date!r} must be YYYY-MM-DD.") from None
    return Record(**values)


def _checked(kind: type, item: Any, where: str) -> dict[str, Any]:
    """The item as a dict with the keys of a dataclass, no others, and none missing."""
    if not isinstance(item, dict):
        raise HypvisionError(f"{where} must be a mapping of keys to values, got {type(item).__name__}.")
    known = [f.name for f in fields(kind)]
    for key in item:
        if key not in known:
            hint = did_you_mean(str(key), known, 1, cutoff=0.6) or f" Known keys: {', '.join(known)}."
            raise HypvisionError(f"{where}: unknown key '{key}'.{hint}")
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if item.get(name) is None]
    if missing:
        raise HypvisionError(f"{where}: missing {', '.join(missing)}.")
    return {key: value for key, value in item.items() if value is not None}


def _parse_file(item: Any, where: str) -> WeightFile:
    values = _checked(WeightFile, item, where)
    if not isinstance(values["sha256"], str) or not re.fullmatch(r"[0-9a-f]{64}", values["sha256"]):
        raise HypvisionError(f"{where}: sha256 must be 64 hexadecimal digits in lower case, in quotes.")
    values["bytes"] = _count(values, "bytes", where)
    if values["storage"] not in STORAGES:
        raise HypvisionError(f"{where}: the storage {values['storage']!r} is none of {', '.join(STORAGES)}.")
    if "path" in values:
        name = _inside(_text(values, "path", where), "path", where)
        if not _FILE.fullmatch(name):
            raise HypvisionError(
                f"{where}: the file '{name}' must end in .safetensors and have letters, digits, '.', '_', '-' only."
            )
    values["urls"] = _texts(values, "urls", where) if "urls" in values else ()
    for url in values["urls"]:
        if not url.startswith(ADDRESSES):
            raise HypvisionError(f"{where}: '{url}' must begin with one of {', '.join(ADDRESSES)}.")
    if not values["urls"] and "path" not in values:
        raise HypvisionError(f"{where}: 'path' or 'urls' must say where the file lies.")
    return WeightFile(**values)


def _inside(text: str, key: str, where: str) -> str:
    """The last part of a path that stays below its folder; anything else is an error."""
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text or ":" in text or "\0" in text or not path.name:
        raise HypvisionError(f"{where}: the {key} '{text}' must be relative, with '/' and without '..'.")
    return path.name


def _parse_metric(item: Any, where: str) -> Metric:
    values = _checked(Metric, item, where)
    for key in ("name", "data"):
        _text(values, key, where)
    for key in {"value", "full_precision"} & set(values):
        number = values[key]
        if not _is_number(number):
            raise HypvisionError(f"{where}: '{key}' must be a finite number, got {number!r}.")
        values[key] = float(number)
    if ("measured" in values) == ("reported" in values):
        raise HypvisionError(f"{where} must have either 'measured: us' with a 'command', or 'reported: PAPER'.")
    if "measured" in values:
        if values["measured"] != "us" or not isinstance(values.get("command"), str):
            raise HypvisionError(f"{where}: a measured metric has 'measured: us' and the 'command' that repeats it.")
    elif "command" in values:
        raise HypvisionError(f"{where}: a reported metric has no 'command'.")
    for key in {"command", "reported"} & set(values):
        _text(values, key, where)
    return Metric(**values)


def _parse_input(item: Any, where: str) -> dict[str, Any]:
    known = ("size", "mean", "std", "crop_pct", "interpolation")
    if not isinstance(item, dict) or set(item) != set(known):
        raise HypvisionError(f"{where} must have the keys {', '.join(known)}, and no others.")
    size = item["size"]
    if not isinstance(size, list) or len(size) != 3 or not all(type(n) is int and 0 < n < 2**16 for n in size):
        raise HypvisionError(f"{where}: 'size' must be [channels, height, width].")
    for key in ("mean", "std"):
        numbers = item[key]
        if not isinstance(numbers, list) or len(numbers) != size[0] or not all(map(_is_number, numbers)):
            raise HypvisionError(f"{where}: '{key}' must be one number a channel.")
    if min(item["std"]) <= 0:
        raise HypvisionError(f"{where}: 'std' must be above 0.")
    if type(item["crop_pct"]) not in (int, float) or not 0 < item["crop_pct"] <= 1:
        raise HypvisionError(f"{where}: 'crop_pct' must be above 0 and at most 1.")
    _text(item, "interpolation", where)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}


def _text(values: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(values[key], str) or not values[key].strip() or _CONTROL.search(values[key]):
        raise HypvisionError(f"{where}: '{key}' must be text (without control characters), got {values[key]!r}.")
    return values[key]


def _texts(values: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    if not isinstance(values[key], list) or not all(
        isinstance(text, str) and text and not _CONTROL.search(text) for text in values[key]
    ):
        raise HypvisionError(f"{where}: '{key}' must be a list of texts (without control characters).")
    return tuple(values[key])


def _is_plain(value: Any) -> bool:
    """Whether a value is one that JSON has too, as cards and hub repositories need it."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, str)) or _is_number(value)


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number; YAML knows whole numbers of any length, floats end at 1.8e308."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _count(values: Mapping[str, Any], key: str, where: str) -> int:
    if type(values[key]) is not int or not 0 < values[key] < 2**63:
        raise HypvisionError(f"{where}: '{key}' must be a positive whole number, got {values[key]!r}.")
    return values[key]


# Writing


class _Dumper(yaml.SafeDumper):
    """Lists of numbers and of short words on one line, everything else in blocks."""


def _represent_list(dumper: _Dumper, items: list) -> yaml.Node:
    short = all(isinstance(item, (int, float)) or (isinstance(item, str) and len(item) < 24) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


_Dumper.add_representer(list, _represent_list)
_Dumper.ignore_aliases = lambda *args: True


def dump_index(index: Index) -> str:
    """The text of an ``index.yml``."""
    content = {"version": VERSION, "records": [record.to_dict() for record in index]}
    return _HEADER + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)


def write_index(index: Index, path: str | Path) -> None:
    """Write an index file, complete or not at all, after reading back what was to be written.

    Raises:
        HypvisionError: a record breaks the schema, or the place cannot be written.
    """
    text = dump_index(index)
    parse_index(text)
    write_text(path, text)


def with_record(index: Index, record: Record) -> Index:
    """The index with one record added, or replaced in its place."""
    return replace(index, records={**index.records, record.name: record})


# The index that comes with hypvision


def builtin_root() -> Path | None:
    """``model_zoo`` beside the package in a checkout, or the copy inside an installed wheel (see ``setup.py``)."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "model_zoo", package / "_model_zoo"):
        if (folder / "index.yml").is_file():
            return folder
    return None


@lru_cache(maxsize=8)
def _read_cached(path: str, stamp: tuple[int, int]) -> Index:
    return read_index(path)


def builtin_index() -> Index:
    """The index that comes with hypvision; instead of it that of ``HYPVISION_INDEX``, a path, if it is set.

    Raises:
        HypvisionError: as :func:`read_index`.
    """
    given = os.environ.get("HYPVISION_INDEX")
    if given:
        path = Path(given).expanduser()
        path = path / "index.yml" if path.is_dir() else path
        if not path.is_file():
            raise HypvisionError(f"HYPVISION_INDEX names '{given}', which is not an index. Correct or unset it.")
    else:
        root = builtin_root()
        if root is None:
            return Index({})
        path = root / "index.yml"
    status = path.stat()
    return _read_cached(str(path), (status.st_mtime_ns, status.st_size))


def find_record(name: str) -> tuple[Index, Record]:
    """A record of the built-in index by its name; ``zoo:`` may stand before it.

    Raises:
        HypvisionError: there is none; close names are listed.
    """
    index = builtin_index()
    return index, index.get(name.removeprefix("zoo:"))
