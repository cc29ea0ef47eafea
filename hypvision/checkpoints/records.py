"""What the zoo knows about a weight file: the record, the objects in it, and the index that holds them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hypvision.errors import HypvisionError, did_you_mean

__all__ = ["TASKS", "Index", "Metric", "Record", "WeightFile"]

TASKS = ("classification", "segmentation", "detection", "zero-shot")


@dataclass(frozen=True)
class WeightFile:
    """Where a weight file lies and how to recognise it.

    Attributes:
        path: below the folder of the index, or None.
        urls: places to download it from (``http(s)://``, ``hf-hub:USER/REPO[@REVISION]/FILE``, ``file://``).
        sha256: of the whole file, 64 hexadecimal digits.
        bytes: its size.
        storage: how the weights are stored, see :mod:`hypvision.checkpoints.storage`.
    """

    sha256: str
    bytes: int
    storage: str
    path: str | None = None
    urls: tuple[str, ...] = ()


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
        full_precision: what the checkpoint gave before it was stored with fewer bits, by the same command; or None.
    """

    name: str
    value: float
    data: str
    measured: str | None = None
    command: str | None = None
    reported: str | None = None
    full_precision: float | None = None


@dataclass(frozen=True)
class Record:
    """One weight file of the zoo.

    Attributes:
        name: ``MODEL.TAG``, as in timm.
        task: one of :data:`TASKS`.
        model: the timm model, for segmenters and detectors that of the backbone.
        arguments: of ``timm.create_model`` where they differ from the default; empty for segmenters and detectors,
            whose weight file holds the whole model config.
        config: the config in this repository that trained it.
        file: the weight file.
        parameters: how many numbers the weights hold.
        input: ``size`` (channels, height, width), and ``mean``, ``std``, ``crop_pct``, ``interpolation``.
        classes: their names, in the order of the outputs.
        metrics: the first one is shown in tables.
        licence: SPDX identifier.
        date: of publication.
        description, intended_use, data, training: sentences for the model card; ``training`` is the command.
        limits: what the model does not do.
        parent: name of the record that the training started from, or None.
    """

    name: str
    task: str
    model: str
    config: str
    file: WeightFile
    parameters: int
    input: Mapping[str, Any]
    classes: tuple[str, ...]
    metrics: tuple[Metric, ...]
    licence: str
    date: str
    description: str
    intended_use: str
    data: str
    training: str
    limits: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None

    @property
    def tag(self) -> str:
        """What stands behind the dot of the name."""
        return self.name.partition(".")[2]

    @property
    def filename(self) -> str:
        """Name of the file in caches and mirrors; it tells versions apart by the start of the sha256."""
        return f"{self.name}-{self.file.sha256[:8]}.safetensors"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in ``index.yml``; what is not set is left out."""
        return _plain(self)


@dataclass(frozen=True)
class Index:
    """The records of an index file, by name.

    Attributes:
        records: name to record, in the order of the file.
        root: folder that packaged paths start from; None for an index without files beside it.
        address: where the index is from, for messages and for files without an address of their own; None for a
            local file.
    """

    records: Mapping[str, Record]
    root: Path | None = None
    address: str | None = None

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records.values())

    def __len__(self) -> int:
        return len(self.records)

    def get(self, name: str) -> Record:
        """The record of that name.

        Raises:
            HypvisionError: there is none; close names are listed.
        """
        if name in self.records:
            return self.records[name]
        tags = [known for known in self.records if known.startswith(name + ".")]
        hint = did_you_mean(name, self.records, cutoff=0.4, also=tags)
        hint = hint or f" There are: {', '.join(self.records) or 'none'}."
        raise HypvisionError(f"The zoo has no weights '{name}'.{hint} `hypvision models` lists all.")

    def select(self, pattern: str | None = None, task: str | None = None) -> list[Record]:
        """Records whose name matches a shell pattern (or contains it, without wildcards), of a task."""
        if pattern and not set(pattern) & set("*?["):
            pattern = f"*{pattern}*"
        return [
            record
            for record in self
            if (not pattern or fnmatch.fnmatchcase(record.name, pattern)) and (task is None or record.task == task)
        ]


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        named = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: _plain(item) for name, item in named if item is not None and item != () and item != {}}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
