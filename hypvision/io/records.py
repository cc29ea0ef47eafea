"""Check plain values, as JSON, YAML and CSV have them, against the types of a dataclass or a named
tuple.

The toolkit reads all its own files by :func:`parse`: results, settings, records of the zoo, tables.

>>> class Cell(NamedTuple):
...     method: str
...     accuracy: dict[str, float]
>>> parse(Cell, {"method": "coop", "accuracy": {"all": "high"}}, "'result.json'")
Traceback (most recent call last):
hypvision.io.errors.HypvisionError: 'result.json', accuracy: 'all' must be a finite number, ...
"""

from __future__ import annotations

import ast
import csv
import io
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union

from .checks import ensure
from .errors import HypvisionError, did_you_mean, few
from .files import parse_json, read_json, read_lines, read_text, why_no_file
from .types import Plain, StrPath, Values

# Control characters would change the terminal, and surrogates (the last range) cannot be written.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_DEEPEST = 50
_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 80
show = _short.repr  # shortens long and nested values for messages

Kind = TypeVar("Kind")
# The keys that lead to a value in a file, for messages.
_Place = tuple[str, ...]


# Conditions on values


def rule(
    text: str, test: Callable[[Any], bool], convert: Callable[[Any], Any] = lambda value: value
) -> Callable:
    """Return a function that returns a value, converted, if the value passes the test, and else
    raises a ValueError that says what it must be."""

    def apply(value: Any) -> Any:
        if not test(value):
            raise ValueError(f"must be {text}, got {show(value)}")
        return convert(value)

    return apply


def key(*rules: Any, **default: Any) -> Any:
    """Return a field of a dataclass whose value must pass these rules, or have these types, one
    after the other."""
    return field(metadata={"rules": rules}, **default)


def _is_printable(value: Any) -> bool:
    return isinstance(value, str) and not _CONTROL.search(value)


def is_text(value: Any) -> bool:
    return _is_printable(value) and bool(value.strip())


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; YAML has whole numbers of any length, but floats
    end at 1.8e308."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def is_plain(value: Any, depth: int = _DEEPEST) -> bool:
    """Return whether JSON could hold a value: without NaN and infinity, and nested at most
    ``depth`` deep."""
    if isinstance(value, (dict, list)):
        values = value.values() if isinstance(value, dict) else value
        named = isinstance(value, list) or all(map(_is_printable, value))
        return depth > 0 and named and all(is_plain(item, depth - 1) for item in values)
    return value is None or isinstance(value, bool) or is_number(value) or _is_printable(value)


def is_inside(text: str) -> bool:
    """Return whether a path, written with ``/`` on every system, stays below its folder."""
    return not (
        text.startswith("/") or ".." in text.split("/") or any(letter in text for letter in "\\:\0")
    )


def foreign_setting(settings: Any) -> str | None:
    """Return the first setting of a network that refers to another file, an address or code, for
    the error message; None if there is none.

    Settings come from indexes and headers that others wrote. The settings of a network are numbers
    and words. They must not contain a path, an address, a piece of code, or a key by which timm or
    mmengine would load further files.
    """
    return next(_foreign(settings), None)


def _foreign(settings: Any) -> Iterator[str]:
    inner = settings if isinstance(settings, (list, tuple)) else ()
    if isinstance(settings, Mapping):
        inner = [*settings, *settings.values()]
        for key, value in settings.items():
            if value and re.match(r"pretrained|checkpoint|(cache_dir|custom_load)$", str(key)):
                yield f"'{key}'"
    if isinstance(settings, str) and re.search(r"[/\\:()\[\]\x00-\x1f]", settings):
        yield repr(settings[:80])
    for each in inner:
        yield from _foreign(each)


positive = rule("a positive whole number", lambda value: type(value) is int and 0 < value < 2**63)

_TYPES: dict[Any, Callable] = {
    Any: rule("a finite number, text, list or mapping, or true, false or null", is_plain),
    bool: rule("true or false", lambda value: isinstance(value, bool)),
    int: rule("a whole number", lambda value: type(value) is int and abs(value) < 2**63),
    float: rule("a finite number", is_number),
    str: rule("text (without control characters)", _is_printable),
    type(None): rule("null", lambda value: value is None),
}


# The annotated types are defined outside the classes: a lambda in an annotation of a class does not
# find the names of this module when get_type_hints() evaluates it.
Name = Annotated[
    str,
    rule("the name of a file below this folder", lambda value: is_text(value) and is_inside(value)),
]


class ShardTable(NamedTuple):
    """The table of the shards of a checkpoint, as transformers writes it: for each tensor its file,
    which lies beside the table."""

    weight_map: dict[str, Name]


# Checking plain values against types


def parse(
    kind: type[Kind] | Any, value: Any, where: str, extra: bool = False, advice: str = ""
) -> Any:
    """Return a plain value as an object of a type.

    Args:
        kind: a dataclass or a named tuple, whose fields say which keys there are; or any type of
            plain values, such as ``dict[str, float]`` or ``Literal["base2new", "shots"]``.
        value: the plain value.
        where: what the value is, for messages.
        extra: leave out keys that are unknown to the outermost type, or to the items of the
            outermost list.
        advice: sentence at the end of the message that says what to do.

    Raises:
        HypvisionError: a key is unknown or missing, or a value has the wrong type or breaks a rule;
            the message names the key.
    """
    try:
        return _conform(kind, value, (), extra)
    except ValueError as error:
        told = str(error)
        raise HypvisionError(
            f"{where}{told}{'' if told[-1] in '.?' else '.'} {advice}".rstrip()
        ) from None


def check_types(value: Any, where: str) -> None:
    """Raise an error unless every field of an object of a dataclass has its type."""
    kind: Any = type(value)
    for name, (steps, _) in _fields(kind).items():
        for step in steps:
            parse(step, getattr(value, name), f"{where}, '{name}'")


def read_record(kind: type[Kind] | Any, path: StrPath, advice: str, extra: bool = False) -> Any:
    """Read a JSON file and return it as an object of a type, see :func:`parse`."""
    return parse(kind, read_json(path, True, advice), f"'{path}'", extra, advice)


def read_table(
    kind: type[Kind],
    path: StrPath,
    known: Callable[[dict[str, str]], Mapping[str, str]] = lambda row: {},
    advice: str = "Correct it.",
    **dialect: Any,
) -> list[tuple[int, Kind]]:
    """Return the rows of a CSV file with a header as objects of a type, see :func:`parse`, each
    with its line number; columns that the type lacks are left out.

    Args:
        kind: the type, whose fields are texts and numbers.
        path: the file.
        known: function that returns, for a row, the values of its empty cells.
        advice: sentence at the end of the message that says what to do about a wrong file.
        dialect: differences of the file from usual CSV, see :func:`csv.reader`.

    Raises:
        HypvisionError: the file cannot be read, has no header or has a column twice; or a cell is
            missing or of another type (the message gives the line).
    """
    path = Path(path).expanduser()
    rows = _read_rows(path, advice, dialect)
    if rows:
        head = rows[0][1]
        given = {*head, *known(head)}
        fields: Any = kind
        needed = [name for name, (_, required) in _fields(fields).items() if required]
        lacking = [name for name in needed if name not in given]
        ensure(
            not lacking,
            f"'{path}' has the columns {few([*head], 8)}, but none is called "
            f"{' or '.join(lacking)}. The first line names the columns, with "
            f"{dialect.get('delimiter', ',')!r} between them.",
        )
    hints = typing.get_type_hints(kind)
    numbers = {name for name, hint in hints.items() if hint in (int, float)}
    found = []
    for number, row in rows:
        texts = {**known(row), **{name: text for name, text in row.items() if text}}
        values = {name: _number(text) if name in numbers else text for name, text in texts.items()}
        where = f"'{path}', line {number}"
        found.append((number, parse(kind, values, where, True, advice)))
    return found


def _read_rows(path: Path, advice: str, dialect: Values) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a CSV file with a header, each with its line number; raise an error for a
    row with more or fewer cells than the header."""
    ensure(path.is_file(), f"{why_no_file(path, 'table')} Correct the path.")
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""), **dialect)
        rows = [(reader.line_num, row) for row in reader]
        head = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise HypvisionError(f"'{path}' cannot be read as CSV: {reason}. {advice}") from error
    twice = next((name for name in head if head.count(name) > 1), None)
    ensure(twice is None, f"'{path}' has the column '{twice}' twice. Remove one.")
    for number, row in rows:
        # csv puts surplus cells under None, and gives missing cells the value None.
        which = "more" if None in row else "fewer"
        ensure(
            None not in row and None not in row.values(),
            f"'{path}', line {number}, has {which} cells than the header. {advice}",
        )
    return rows


def read_json_lines(
    kind: type[Kind], path: StrPath, what: str, advice: str
) -> list[tuple[int, Kind]]:
    """Return the lines of a JSON Lines file as objects of a type, see :func:`parse`, each with its
    line number from 1; empty lines and unknown keys are left out.

    Args:
        kind: the type.
        path: the file.
        what: name of the file in messages.
        advice: sentence at the end of the message that says what to do about a wrong line.

    Raises:
        HypvisionError: the file cannot be read; or a line is not JSON or not of the type (the
            message gives its number).
    """
    found = []
    for number, line in enumerate(read_lines(path, what, blank=True), start=1):
        if line:
            where = f"'{path}', line {number}"
            try:
                content = parse_json(line)
            except ValueError as error:
                raise HypvisionError(f"{where}: it is not JSON ({error}). {advice}") from error
            found.append((number, parse(kind, content, where, extra=True, advice=advice)))
    return found


def _number(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return text


def _conform(kind: Any, value: Any, place: _Place, extra: bool = False) -> Any:
    """Return the value as that type; raise a ValueError that names its place in the file if it does
    not fit."""
    origin = typing.get_origin(kind)
    args = typing.get_args(kind)
    if origin in _CHECKS:
        return _CHECKS[origin](args, value, place)
    if origin in (list, tuple, Sequence):
        items = _items(args[0], value, place, extra)
        return items if origin is list else tuple(items)
    if isinstance(kind, list):
        return tuple(_items(kind[0], value, place, extra, least=1))
    if is_dataclass(kind) or hasattr(kind, "_field_defaults"):
        return _object(kind, value, place, extra)
    try:
        return (_choice(args) if origin is Literal else _TYPES.get(kind, kind))(value)
    except ValueError as error:
        raise _wrong(place, str(error)) from None


def _through(steps: Sequence[Any], value: Any, place: _Place) -> Any:
    """Return the value after all of these types and rules have been applied."""
    for step in steps:
        value = _conform(step, value, place)
    return value


def _choice(texts: Sequence[str]) -> Callable[[Any], Any]:
    return rule(
        f"one of {', '.join(map(repr, texts))}",
        lambda value: isinstance(value, str) and value in texts,
    )


def _items(kind: Any, value: Any, place: _Place, extra: bool, least: int = 0) -> list[Any]:
    if not isinstance(value, (list, tuple)) or len(value) < least:
        some = " of at least one" if least else ""
        raise _wrong(place, f"must be a list{some}, got {show(value)}")
    before = place[:-1]
    last = "".join(place[-1:])
    return [
        _conform(kind, item, (*before, f"{last} {n}".strip()), extra)
        for n, item in enumerate(value, start=1)
    ]


def _dictionary(kinds: Sequence[Any], value: Any, place: _Place) -> dict[Any, Any]:
    of_key, of_item = kinds
    for name in _mapping(value, place):
        _conform(of_key, name, (*place, "a key"))
    return {name: _conform(of_item, item, (*place, str(name))) for name, item in value.items()}


def _wrong(place: _Place, problem: str) -> ValueError:
    return ValueError(
        f"{', '.join(('', *place[:-1]))}: '{place[-1]}' {problem}" if place else f" {problem}"
    )


def _mapping(value: Any, place: _Place) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _wrong(place, f"must be a mapping of keys to values, got {show(value)}")
    return value


def _one_of_several(kinds: Sequence[Any], value: Any, place: _Place) -> Any:
    """Return the value as the alternative of a union that fits it. For an optional type the message
    is that of the type itself."""
    told = []
    for kind in kinds:
        try:
            return _conform(kind, value, place)
        except ValueError as error:
            if kind is not type(None):
                told.append(error)
    if len(told) == 1:
        raise told[0]
    choices = " or ".join(
        str(error).partition(" must be ")[2].rpartition(", got ")[0] for error in told
    )
    raise _wrong(place, f"must be {choices}, got {show(value)}")


_CHECKS: dict[Any, Callable[[Any, Any, _Place], Any]] = {
    Union: _one_of_several,
    types.UnionType: _one_of_several,
    Annotated: _through,
    dict: _dictionary,
    Mapping: _dictionary,
}


@cache
def _fields(kind: Any) -> dict[str, tuple[tuple[Any, ...], bool]]:
    """Return for each key its rules or types, and whether the key is required."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if not is_dataclass(kind):
        return {name: ((hints[name],), name not in kind._field_defaults) for name in kind._fields}
    return {
        f.name: (
            f.metadata.get("rules", (hints[f.name],)),
            f.default is MISSING and f.default_factory is MISSING,
        )
        for f in fields(kind)
    }


def _object(kind: Any, value: Any, place: _Place, extra: bool) -> Any:
    known = _fields(kind)
    where = ", ".join(("", *place))
    unknown = [name for name in _mapping(value, place) if name not in known]
    if unknown and not extra:
        name = unknown[0]
        hint = did_you_mean(str(name), known, 1, cutoff=0.6) or f" Known keys: {', '.join(known)}."
        raise ValueError(f"{where}: unknown key {show(name)}.{hint}")
    unset = [name for name in known if value.get(name) is None]
    missing = [name for name in unset if known[name][1]]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}")
    found = {
        name: _through(known[name][0], value[name], (*place, name))
        for name in known
        if name not in unset
    }
    try:
        return kind(**found)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def parse_arguments(pairs: Iterable[str], option: str = "--model-args") -> Plain:
    """Return the arguments of a model, ``["a=3", "b=(1, 2)", "c=text"]`` on a command line, as a
    dict.

    Values that are no Python literals stay text.
    """
    arguments: Plain = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise HypvisionError(
                f"{option} takes KEY=VALUE, e.g. patch_size=2; got '{pair}'. Correct it."
            )
        arguments[key] = value
        with suppress(ValueError, SyntaxError):
            arguments[key] = ast.literal_eval(value)
    return arguments
