"""The records of weight files of the zoo, their parts, and the index of all records.

The dataclasses are the schema: each field says what its value must be, and
:func:`hypvision.io.records.parse` makes an object of plain values by it. Keys that are not in the
schema are errors, as are missing ones: a typing mistake must not become a silent default.
``docs/model-zoo.md`` describes the keys.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from hypvision.checkpoints.storage import STORAGES, foreign_setting
from hypvision.io.errors import HypvisionError, did_you_mean
from hypvision.io.records import is_inside, is_number, is_plain, is_text, key, positive, rule
from hypvision.io.types import Plain, Values

_UNSET: tuple[Any, ...] = (None, (), {})
TASKS = ("classification", "segmentation", "detection", "retrieval", "zero-shot")
ADDRESSES = ("http://", "https://", "hf-hub:", "file://")
# short enough for a file name with hash and suffix
_NAME = r"(?=.{,128}$)[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9_-]*"
_FILE = r"(.*/)?[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors"


# What a value must be


class Day(str):
    """A day, ``YYYY-MM-DD``."""

    def __new__(cls, value: Any) -> Day:
        day = value.isoformat() if type(value) is datetime.date else value
        try:
            return super().__new__(cls, datetime.date.fromisoformat(day).isoformat())
        except (TypeError, ValueError):
            raise ValueError(f"must be a day, YYYY-MM-DD, got {value!r}") from None


def _settings(value: Any) -> Plain:
    if not isinstance(value, dict) or not is_plain(value):
        raise ValueError("must be a mapping of numbers, texts, lists and mappings")
    foreign = foreign_setting(value)
    if foreign is not None:
        raise ValueError(
            f"contain {foreign}, but may only say how the network is built; the place of its "
            "weights belongs in 'file'"
        )
    return value


def _one_of(known: tuple[str, ...]) -> Callable:
    return rule(f"one of {', '.join(known)}", lambda value: value in known)


def matching(pattern: str, words: str) -> Callable:
    return rule(
        words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None
    )


def _all(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, (list, tuple)) and all(map(test, values))


text = rule("text (without control characters)", is_text)
_is_address = _all(lambda value: value.startswith(ADDRESSES))
addresses = rule(f"addresses that must begin with one of {', '.join(ADDRESSES)}", _is_address)
some = rule("a list of at least one", bool)


def is_template(sentence: str) -> bool:
    """Whether a sentence has one ``{}`` for a class name and no other braces."""
    return sentence.count("{}") == 1 and set("{}").isdisjoint(sentence.replace("{}", ""))


templates = rule("sentences with one {} for the class name and no other braces", _all(is_template))
number = rule("a finite number", is_number, float)
inside = rule(
    "relative, with '/' and without '..'", lambda value: is_text(value) and is_inside(value)
)
_is_side = _all(lambda value: type(value) is int and 0 < value < 2**16)
sides = rule("[channels, height, width]", lambda value: _is_side(value) and len(value) == 3, tuple)

Text = Annotated[str, text]
Texts = tuple[Text, ...]
SomeTexts = Annotated[Texts, some]
Number = Annotated[float, number]
Positive = Annotated[int, positive]
Inside = Annotated[str, inside]
Channels = tuple[Number, ...]
Sides = Annotated[tuple[int, int, int], sides]
Sum = Annotated[str, matching(r"[0-9a-f]{64}", "64 hexadecimal digits in lower case, in quotes")]
File = Annotated[Inside, matching(_FILE, "a file whose name must end in .safetensors")]
_NAMED = matching(_NAME, "MODEL.TAG of lower-case letters, digits, '_', '-', at most 128 of them")
_CROP = rule("above 0 and at most 1", lambda value: is_number(value) and 0 < value <= 1)
_ABOVE = rule("above 0", lambda values: min(values, default=1) > 0)


# The schema


@dataclass(frozen=True)
class WeightFile:
    """Where a weight file lies and how to recognise it.

    Attributes:
        path: below the folder of the index, or None.
        urls: places to download it from (``http(s)://``, ``hf-hub:USER/REPO[@REVISION]/FILE``,
            ``file://``).
        sha256: of the whole file, 64 hexadecimal digits.
        bytes: its size.
        storage: how the weights are stored, see :mod:`hypvision.checkpoints.storage`.
    """

    sha256: Sum
    bytes: Positive
    storage: Annotated[str, _one_of(STORAGES)]
    path: File | None = None
    urls: Annotated[Texts, addresses] = ()

    def __post_init__(self) -> None:
        if not self.urls and self.path is None:
            raise ValueError("'path' or 'urls' must say where the file lies")


@dataclass(frozen=True)
class Metric:
    """A number, the data that it was measured on and who measured it.

    Attributes:
        name: ``top1``, ``mIoU``, ...
        value: as the test command prints it.
        data: data set and split.
        measured: ``"us"``, and ``command`` repeats it; or None.
        command: what was run.
        reported: the paper that reports it, if it was not measured by us; or None.
        full_precision: what the checkpoint gave before it was stored with fewer bits, by the same
            command; or None.
    """

    name: Text
    value: Number
    data: Text
    measured: Text | None = None
    command: Text | None = None
    reported: Text | None = None
    full_precision: Number | None = None

    def __post_init__(self) -> None:
        if (self.measured is None) == (self.reported is None):
            raise ValueError(
                "must have either 'measured: us' with a 'command', or 'reported: PAPER'"
            )
        if self.measured is not None and (self.measured != "us" or self.command is None):
            raise ValueError(
                "a measured metric has 'measured: us' and the 'command' that repeats it"
            )
        if self.reported is not None and self.command is not None:
            raise ValueError("a reported metric has no 'command'")


@dataclass(frozen=True)
class Input:
    """The size and normalisation of the network's input.

    Attributes:
        size: channels, height, width.
        mean, std: normalisation of colours from 0 to 1, one number a channel.
        crop_pct, interpolation, crop_mode: how timm's pipeline resizes and crops; ``crop_mode``
            None is "center".
    """

    size: Sides
    mean: Channels
    std: Annotated[Channels, _ABOVE]
    crop_pct: Annotated[float, _CROP]
    interpolation: Text
    crop_mode: Literal["center", "squash", "border"] | None = None

    def __post_init__(self) -> None:
        if len(self.mean) != self.size[0] or len(self.std) != self.size[0]:
            raise ValueError("'mean' and 'std' must have one number a channel")


@dataclass(frozen=True)
class FamiliarImages:
    """By what a classifier tells images that are unlike those of its training.

    Attributes:
        limit: the distance between features and the nearest mean of a class, from 0 to 2, below
            which 95 % of held-out images are.
        false_alarms: the share of held-out images beyond a limit that others of them have set.
        data: the held-out images.
    """

    limit: Number
    false_alarms: Number
    data: Text


@dataclass(frozen=True)
class Record:
    """One weight file of the zoo.

    Attributes:
        name: ``MODEL.TAG``, as in timm.
        task: one of :data:`TASKS`.
        model: the timm model, for segmenters, detectors and metric learners that of the backbone;
            or the CLIP.
        arguments: of ``timm.create_model`` where they differ from the default; empty for
            segmenters, detectors and metric learners, whose weight file holds the whole model
            config.
        config: the config in this repository that trained it.
        file: the weight file.
        parameters: how many numbers the weights hold.
        input: size and normalisation of the images.
        classes: their names, in the order of the outputs.
        metrics: the first one is shown in tables.
        licence: SPDX identifier.
        date: of publication.
        description, intended_use, data, training: sentences for the model card; ``training`` is the
            command.
        limits: what the model does not do.
        parent: name of the record that the training started from, or None.
        templates: of a CLIP: the sentences, with ``{}`` for a name, in which it knows words best;
            () where nothing was measured.
        prepare: the command that makes the data, if one does.
        familiar: of a classifier whose file holds the means of its classes' features.
    """

    name: Annotated[Text, _NAMED]
    task: Annotated[str, _one_of(TASKS)]
    model: Text
    config: Inside
    file: WeightFile
    parameters: Positive
    input: Input
    classes: SomeTexts
    metrics: Annotated[tuple[Metric, ...], some]
    licence: Text
    date: Day
    description: Text
    intended_use: Text
    data: Text
    training: Text
    limits: SomeTexts
    arguments: Values = key(_settings, default_factory=dict)
    parent: Text | None = None
    templates: Annotated[Texts, templates] = ()
    prepare: Text | None = None
    familiar: FamiliarImages | None = None

    @property
    def tag(self) -> str:
        """The part of the name after the dot."""
        return self.name.partition(".")[2]

    @property
    def filename(self) -> str:
        """Name of the file in caches and mirrors; the start of the sha256 tells versions apart."""
        return f"{self.name}-{self.file.sha256[:8]}.safetensors"

    def to_dict(self) -> Plain:
        """Plain values, as in ``index.yml``, without the fields that are not set."""
        given = asdict(
            self,
            dict_factory=lambda pairs: {key: value for key, value in pairs if value not in _UNSET},
        )
        plain: Plain = json.loads(json.dumps(given))  # lists in place of tuples
        return plain


@dataclass(frozen=True)
class Index:
    """The records of an index file, by name.

    Attributes:
        records: name to record, in the order of the file.
        root: folder that packaged paths start from; None for an index without files beside it.
        address: where the index is from, for messages and for files without an address of their
            own; None for a local file.
    """

    records: Mapping[str, Record]
    root: Path | None = None
    address: str | None = None

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def __len__(self) -> int:
        return len(self.records)

    def get(self, name: str) -> Record:
        """The record of that name."""
        if name in self.records:
            return self.records[name]
        tags = [known for known in self.records if known.startswith(name + ".")]
        hint = did_you_mean(name, self.records, cutoff=0.4, also=tags)
        hint = hint or f" There are: {', '.join(self.records) or 'none'}."
        raise HypvisionError(
            f"The zoo has no weights '{name}'.{hint} `hypvision zoo list` lists all."
        )

    def select(self, pattern: str | None = None, task: str | None = None) -> list[Record]:
        """Records whose name matches a shell pattern (or contains it, without wildcards), of a
        task."""
        if pattern and not set(pattern) & set("*?["):
            pattern = f"*{pattern}*"
        return [
            record
            for record in self
            if (not pattern or fnmatch.fnmatchcase(record.name, pattern))
            and (task is None or record.task == task)
        ]
