"""The schema of the zoo's index: records of weight files, their parts, and the index of all
records.

The dataclasses are the schema: each field says what its value must be, and
:func:`hypvision.io.records.parse` makes an object from plain values by them. Unknown keys are
errors, and so are missing ones, so that a misspelling does not become a silent default.
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

from hypvision.io import HypvisionError, Plain, Values, did_you_mean
from hypvision.io.records import (
    foreign_setting,
    is_inside,
    is_number,
    is_plain,
    is_text,
    key,
    positive,
    rule,
)

from .storage import STORAGES

_UNSET: tuple[Any, ...] = (None, (), {})
TASKS = ("classification", "segmentation", "detection", "retrieval", "zero-shot")
ADDRESSES = ("http://", "https://", "hf-hub:", "file://")
# A name is short enough for a file name with hash and suffix.
_NAME = r"(?=.{,128}$)[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9_-]*"
_FILE = r"(.*/)?[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors"


# Conditions on single values


class Day(str):
    """A day as text, ``YYYY-MM-DD``."""

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
    """Return whether a sentence has exactly one ``{}``, for a class name, and no other braces."""
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


# The dataclasses of the schema


@dataclass(frozen=True)
class WeightFile:
    """The place of a weight file, and how to verify it.

    Attributes:
        path: path below the folder of the index, or None.
        urls: addresses to download the file from (``http(s)://``,
            ``hf-hub:USER/REPO[@REVISION]/FILE``, ``file://``).
        sha256: SHA-256 of the whole file, 64 hexadecimal digits.
        bytes: size of the file.
        storage: format in which the weights are stored, see :mod:`hypvision.checkpoints.storage`.
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
    """A measured number, the data that it was measured on, and who measured it.

    Attributes:
        name: name of the metric: ``top1``, ``mIoU``, ...
        value: the number as the test command prints it.
        data: name of the data set and the split.
        measured: ``"us"`` if it was measured with hypvision, which ``command`` repeats; or None.
        command: the command that was run.
        reported: the paper that reports the number, if it was not measured with hypvision; or None.
        full_precision: the number that the same command gave before the checkpoint was stored with
            fewer bits; or None.
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
        mean, std: normalisation of colours from 0 to 1, one number for each channel.
        crop_pct, interpolation, crop_mode: how timm's pipeline resizes and crops; None for
            ``crop_mode`` means "center".
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
class ForeignImages:
    """Images of another kind than a classifier's, and how many of them are noticed.

    Attributes:
        data: name of the images.
        images: the number that was measured.
        noticed: the share of them beyond the limit.
    """

    data: Text
    images: int
    noticed: Number


@dataclass(frozen=True)
class FamiliarImages:
    """The threshold by which a classifier tells images that are unlike those of its training.

    Attributes:
        limit: the distance between an image's features and the nearest class mean, from 0 to 2,
            below which 95 % of held-out images lie.
        false_alarms: the share of held-out images beyond a limit that was set by other held-out
            images.
        data: name of the held-out images.
        foreign: for images of other kinds the share that is noticed.
    """

    limit: Number
    false_alarms: Number
    data: Text
    foreign: tuple[ForeignImages, ...] = ()


@dataclass(frozen=True)
class Record:
    """A weight file of the zoo, and what is known of it.

    Attributes:
        name: name of the weights, ``MODEL.TAG`` as in timm.
        task: task of the model, one of :data:`TASKS`.
        model: name of the timm model, which for segmenters, detectors and metric learners is the
            backbone; or name of the CLIP.
        arguments: arguments of ``timm.create_model`` that differ from the default; empty for
            segmenters, detectors and metric learners, whose weight file holds the config of the
            whole model.
        config: config in this repository that trained the model.
        file: place and sum of the weight file.
        parameters: number of numbers in the weights.
        input: size and normalisation of the images.
        classes: names of the classes, in the order of the outputs.
        metrics: measured results; the first one is shown in tables.
        licence: licence of the weights as an SPDX identifier.
        date: day of publication.
        description, intended_use, data, training: sentences for the model card; ``training`` is the
            command.
        limits: sentences that say what the model does not do.
        parent: name of the record that the training started from, or None.
        templates: for a CLIP: the templates, with ``{}`` for a name, with which it classifies best;
            () if nothing was measured.
        prepare: command that makes the data, if there is one.
        familiar: for a classifier whose file holds the mean features of its classes: its threshold
            for unfamiliar images.
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
        """Return the part of the name after the dot."""
        return self.name.partition(".")[2]

    @property
    def filename(self) -> str:
        """Return the name of the file in caches and mirrors; the start of its SHA-256 distinguishes
        versions."""
        return f"{self.name}-{self.file.sha256[:8]}.safetensors"

    def to_dict(self) -> Plain:
        """Return the record as plain values, as in ``index.yml``, without fields that are not
        set."""
        given = asdict(
            self,
            dict_factory=lambda pairs: {key: value for key, value in pairs if value not in _UNSET},
        )
        # This turns tuples into lists.
        plain: Plain = json.loads(json.dumps(given))
        return plain


@dataclass(frozen=True)
class Index:
    """The records of an index file, by name.

    Attributes:
        records: for each name its record, in the order of the file.
        root: folder from which the paths of packaged files start; None for an index without files
            beside it.
        address: address of the index, for messages and for files without an address of their own;
            None for a local file.
    """

    records: Mapping[str, Record]
    root: Path | None = None
    address: str | None = None

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def __len__(self) -> int:
        return len(self.records)

    def tags(self, name: str) -> list[str]:
        """Return the names of the records that have this name before their tag."""
        return [known for known in self.records if known.startswith(f"{name}.")]

    def get(self, name: str) -> Record:
        """Return the record of a name, which may lack its tag where one record alone has it; raise
        an error with similar names if there is none."""
        tags = self.tags(name)
        if name in self.records:
            return self.records[name]
        if len(tags) == 1:
            return self.records[tags[0]]
        hint = did_you_mean(name, self.records, cutoff=0.4, also=tags)
        hint = hint or f" The zoo has {', '.join(self.records) or 'none'}."
        raise HypvisionError(
            f"The zoo has no weights '{name}'.{hint} `hypvision zoo list` lists all names."
        )

    def select(self, pattern: str | None = None, task: str | None = None) -> list[Record]:
        """Return the records of a task whose name matches a shell pattern, or contains ``pattern``
        if it has no wildcards; None means any."""
        if pattern and not set(pattern) & set("*?["):
            pattern = f"*{pattern}*"
        return [
            record
            for record in self
            if (not pattern or fnmatch.fnmatchcase(record.name, pattern))
            and (task is None or record.task == task)
        ]
