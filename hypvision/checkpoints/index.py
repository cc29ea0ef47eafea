"""Read and write the index of the zoo, ``index.yml``, which has one record for each weight file.

A record says what a file is, where it lies, how to verify it (SHA-256 and bytes) and which results
were measured with it; :mod:`hypvision.checkpoints.records` is its schema.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from hypvision.io import Plain, StrPath, ensure, explaining
from hypvision.io.files import read_text, write_text
from hypvision.io.records import key, parse, rule

from .records import Index, Record

VERSION = 1


@dataclass(frozen=True)
class _Content:
    """The content of an index file."""

    version: Any = key(
        rule(f"{VERSION} (Update hypvision for later ones)", lambda value: value == VERSION)
    )
    records: list[Any] = key(rule("a list", lambda value: isinstance(value, list)))


_HEADER = """\
# The model zoo: one record a weight file. Written by hypvision zoo publish; docs/model-zoo.md describes the keys.
# README.md is rendered from this file: hypvision zoo list --write-readme model_zoo/README.md
"""  # noqa: E501


# Parsing the text of an index


class NoAliases(yaml.composer.Composer):
    """A part of a YAML loader that raises an error for an alias: a few lines of aliases can expand
    to a structure that fills the memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"the alias '*{event.anchor}'; write it out", event.start_mark
            )
        return super().compose_node(parent, index)


class _Loader(NoAliases, yaml.SafeLoader):
    """A YAML loader for plain values only, which raises an error if a key occurs twice; PyYAML
    would silently take the last value."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict:
    found: Plain = {}
    for name, value in node.value:
        key = loader.construct_object(name, deep=True)
        if not isinstance(key, str) or key in found:
            problem = f"the key {key!r} " + ("is not text" if key not in found else "stands twice")
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        found[key] = loader.construct_object(value, deep=True)
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


# The limit is in characters: enough for a hundred records with a thousand classes, which PyYAML
# reads in seconds.
_LONGEST_YAML = 2**21


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML text of plain values, in which no key occurs twice and there are
    no aliases.

    Raises:
        ValueError: the text is not valid YAML of this kind, has a bracket that is never closed, or
            has more than two million characters.
    """
    if len(text) > _LONGEST_YAML:
        raise ValueError(f"it has {len(text):,} characters, more than {_LONGEST_YAML:,}")
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error) or "its brackets are nested too deeply") from error


def parse_index(text: str, root: Path | None = None, address: str | None = None) -> Index:
    """Parse and check the text of an ``index.yml`` and return the index.

    Raises:
        HypvisionError: the text is not YAML; a key is unknown or missing; a value is out of range;
            two records have the same name; or a parent has no record. The message names the record
            and the key.
    """
    where = str(root / "index.yml") if root else "the index"
    where = address or where
    # Invalid YAML and impossible dates are both a ValueError.
    with explaining(lambda error: f"{where} is not valid YAML: {error}. Correct it.", ValueError):
        content: _Content = parse(_Content, parse_yaml(text), where)
    records: dict[str, Record] = {}
    for number, item in enumerate(content.records, start=1):
        record = parse_record(item, f"{where}, record {number}")
        twice = f"{where}: '{record.name}' is listed twice. Remove one of the two records."
        ensure(record.name not in records, twice)
        records[record.name] = record
    for record in records.values():
        ensure(
            record.parent is None or (record.parent in records and record.parent != record.name),
            f"{where}: '{record.name}' names '{record.parent}' as its parent, but there is no such "
            "other record. Correct the name.",
        )
    return Index(records, root, address)


def read_index(path: StrPath) -> Index:
    """Read an index file; paths of packaged files in it start from the folder of the index."""
    path = Path(path).expanduser()
    if path.is_dir():
        ensure(
            (path / "index.yml").is_file(),
            f"The folder '{path}' has no weights with an index (index.yml). Give the folder of a "
            "release, or a name of `hypvision zoo list`.",
        )
        path = path / "index.yml"
    with explaining(
        lambda error: f"The index '{path}' cannot be read: {error}. Check the path.",
        OSError,
        UnicodeDecodeError,
    ):
        text = read_text(path, 2**26)
    return parse_index(text, path.parent.resolve())


def parse_record(item: Any, where: str = "the record") -> Record:
    """Check the plain values of one record and return them as a :class:`Record`."""
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        where = f"{where} ({item['name'][:200]})"
    return parse(Record, item, where)


# Writing the text of an index


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes lists of numbers and of short words on one line, and everything
    else in blocks."""


def _represent_list(dumper: _Dumper, items: list) -> yaml.Node:
    short = all(
        isinstance(item, (int, float)) or (isinstance(item, str) and len(item) < 24)
        for item in items
    )
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


_Dumper.add_representer(list, _represent_list)
_Dumper.ignore_aliases = lambda *args: True


def dump_index(index: Index) -> str:
    """Return the text of an ``index.yml`` for an index."""
    content = {"version": VERSION, "records": [record.to_dict() for record in index]}
    return _HEADER + yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True
    )


def write_index(index: Index, path: StrPath) -> None:
    """Write an index file, complete or not at all, after its text was parsed again as a check."""
    text = dump_index(index)
    parse_index(text)
    write_text(path, text)


def with_record(index: Index, record: Record) -> Index:
    """Return the index with a record added; a record of the same name is replaced in its place."""
    return replace(index, records={**index.records, record.name: record})


# The index that comes with hypvision


def builtin_root() -> Path | None:
    """Return the folder ``model_zoo`` beside the package in a checkout, or its copy inside an
    installed wheel (see ``setup.py``); None if there is neither."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "model_zoo", package / "_model_zoo"):
        if (folder / "index.yml").is_file():
            return folder
    return None


@lru_cache(maxsize=8)
def _read_cached(path: str, stamp: tuple[int, int]) -> Index:
    return read_index(path)


def builtin_index() -> Index:
    """Return the index that comes with hypvision, or the one at the path ``HYPVISION_INDEX`` if
    that is set."""
    given = os.environ.get("HYPVISION_INDEX")
    path = Path(given).expanduser() if given else builtin_root()
    if path is None:
        return Index({})
    path = path / "index.yml" if path.is_dir() else path
    ensure(
        path.is_file(),
        f"HYPVISION_INDEX names '{given}', which is not an index. Correct or unset it.",
    )
    status = path.stat()
    return _read_cached(str(path), (status.st_mtime_ns, status.st_size))
