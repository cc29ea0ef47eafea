"""Check the data of a config before a training (``hypvision check``): report which items are used,
which are left out, and which faults the data have.

The fast part does what a training does before its first batch: it builds the data sets and compares
class names and numbers. The slow part reads every sample.
"""

from __future__ import annotations

import inspect
import io
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, HOOKS, MODELS, DefaultScope
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hypvision.data.label_maps import labels_of
from hypvision.data.masks import decode
from hypvision.data.twins import note_of, paths_of, twins
from hypvision.data.usage import classes_of, usages
from hypvision.inference.progress import progress
from hypvision.io import Plain, StrPath, Values, one_line
from hypvision.io.images import as_rgb, open_image
from hypvision.viz.overlay import add_legend, draw_boxes, draw_segmentation, paint
from hypvision.viz.palette import label_colours
from hypvision.viz.sheet import save_image

from .checks import check_data, explain
from .config import PHASES, leave_out_pretrained, load_config, prepare
from .hooks import DatasetHook
from .reports import check_result

PICTURES = 5
"""The number of samples drawn of each part of the data (train, val, test)."""
MOST_COMPARED = 20_000
"""Files of equal size in two parts of the data are compared by content if there are at most so
many; with ``everything`` there is no limit."""


class Report(NamedTuple):
    """The result of :func:`check`.

    Attributes:
        rows: for each part (train, val, test): the kind of items, their number, ``"used"`` or the
            reason why they are left out, and examples.
        notes: further facts for the user, such as labels that follow the class names of another
            source.
        faults: errors that would stop a training, each with the part of the data and the remedy.
        samples: number of samples that were read.
        pictures: files of the pictures that were written.
    """

    rows: list[tuple[str, str, int, str, str]]
    notes: list[str]
    faults: list[str]
    samples: int
    pictures: list[Path]


class _Tried(IterableDataset):
    """The faults of all samples of a data set or of a stream of shards, in order: a message for
    each sample that cannot be read, None for each other one."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __iter__(self) -> Iterator[str | None]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        if hasattr(self.dataset, "one_by_one"):
            reads = self.dataset.one_by_one(worker, workers)
        # Worker i reads samples i, i + workers, ..., and the loader asks them in turn, so the order
        # stays.
        else:
            reads = (
                partial(self.dataset.__getitem__, i)
                for i in range(worker, len(self.dataset), workers)
            )
        yield from map(_fault, reads)


def _fault(work: Any) -> str | None:
    try:
        work()
    # Libraries raise errors of any type for damaged content.
    except Exception as error:
        return explain(error) or f"{type(error).__name__}: {one_line(error)}"
    return None


def check(
    config: StrPath | Config,
    options: Plain | None = None,
    everything: bool = False,
    workers: int = 0,
    out: StrPath | None = None,
) -> Report:
    """Check the training, validation and test data of a config
    (:func:`~hypvision.engine.config.load_config`) and return a :class:`Report`. With ``everything``
    every sample is read, too; with a folder ``out`` some samples are drawn into it."""
    config = read_config(config, options, out)
    report = Report([], [], [], 0, [])
    with DefaultScope.overwrite_default_scope(config.get("default_scope") or "mmengine"):
        _, parts = open_parts(config, PHASES, report)
        there = {phase: dataset for phase, dataset in parts.items() if dataset is not None}
        for phase, dataset in there.items():
            if everything:
                report = report._replace(samples=report.samples + len(dataset))
                report.faults.extend(
                    f"{phase}: {fault}" for fault in _read_all(dataset, phase, workers)
                )
            if out is not None:
                _draw(dataset, phase, Path(out), report)
        files = {phase: [*paths_of(dataset)] for phase, dataset in there.items()}
        equal = twins(files, math.inf if everything else MOST_COMPARED)
        report.notes.extend(note_of(*phases, pairs) for phases, pairs in equal.items())
    return report._replace(
        notes=list(dict.fromkeys(report.notes)), faults=list(dict.fromkeys(report.faults))
    )


def read_config(config: StrPath | Config, options: Plain | None, out: StrPath | None) -> Config:
    """Return a config that is ready for its data to be checked or shown. ``out``, a folder for
    pictures, must not lie in the data."""
    config = load_config(config, options)
    if out is not None:
        check_result(config, Path(out))
    config = prepare(config)
    for dataset in config.datasets():
        # A cache would load all images at once, and the first damaged one would end the check.
        dataset.pop("cache", None)
    return config


def open_parts(config: Config, phases: Sequence[str], report: Report) -> tuple[Any, Plain]:
    """Build the model of a config, without weights, and the data set of each phase, once for phases
    with equal data, and run the fast checks. Return both; the model or a data set is None if it
    cannot be built. Faults and notes are added to ``report``."""
    model = _model(config, report.notes)
    run = SimpleNamespace(model=model, logger=_Notes(report.notes), _resume=False)
    kinds = [
        (HOOKS.get(hook["type"]), hook)
        for hook in config.custom_hooks
        if hook["type"] != "DataUsageHook"
    ]
    hooks = [
        HOOKS.build(hook)
        for kind, hook in kinds
        if inspect.isclass(kind) and issubclass(kind, DatasetHook)
    ]
    parts: Plain = {}
    for phase in phases:
        loader = config.get(f"{phase}_dataloader")
        data = (loader or {}).get("dataset")
        same = next(
            (p for p in parts if data and config[f"{p}_dataloader"].get("dataset") == data), None
        )
        if same:
            report.notes.append(f"{phase}: its data are those of {same}.")
        elif loader:
            parts[phase] = _open(config, phase, run, hooks, report)
    return model, parts


class _Notes(logging.Logger):
    """A logger that appends the warnings of data checks to a list."""

    def __init__(self, notes: list[str]):
        super().__init__("check", logging.WARNING)
        handler = logging.Handler()
        handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
        self.addHandler(handler)


def _model(config: Config, notes: list[str]) -> Any:
    """Return the model without weights, of which the checks need the number of classes; None if it
    cannot be built."""
    leave_out_pretrained(config.model)
    try:
        return MODELS.build(config.model)
    except Exception as error:
        notes.append(
            "The model cannot be built, so its classes were not compared: "
            f"{explain(error) or one_line(error)}"
        )
        return None


def _open(config: Config, phase: str, run: Any, hooks: list[DatasetHook], report: Report) -> Any:
    """Return the data set of a phase after the fast checks; None if it cannot be built. Its counts,
    notes and first fault are added to ``report``."""
    found: list[Any] = []

    def build() -> None:
        check_data(config, (phase,))
        # pycocotools prints messages, which are no part of the report.
        with redirect_stdout(io.StringIO()):
            dataset = DATASETS.build(config[f"{phase}_dataloader"].dataset)
            if hasattr(dataset, "full_init"):
                dataset.full_init()
        found.append(dataset)

    faults = [_fault(build)]
    for dataset in found:
        used = list(usages(dataset))
        counts = list(chain.from_iterable(usage.rows() for usage in used))
        counts = counts or [("samples", len(dataset), "used", "")]
        report.rows.extend((phase, *row) for row in counts)
        report.notes.extend(chain.from_iterable(usage.notes for usage in used))
        faults += (_fault(partial(hook.check, run, dataset)) for hook in hooks)
    report.faults.extend(f"{phase}: {fault}" for fault in list(filter(None, faults))[:1])
    return found[0] if found else None


def _read_all(dataset: Any, phase: str, workers: int) -> Iterator[str]:
    loader = DataLoader(_Tried(dataset), batch_size=None, num_workers=workers)
    for index, fault in enumerate(progress(loader, len(dataset), f"{phase} sample")):
        if fault is not None:
            yield fault if hasattr(dataset, "one_by_one") else f"sample {index}: {fault}"


def _draw(dataset: Any, phase: str, out: Path, report: Report) -> None:
    count = min(PICTURES, len(dataset))
    indices = [number * len(dataset) // count for number in range(count)]
    draws: list[Callable[[], Image.Image | None]] = [
        partial(picture_of, dataset, index) for index in indices
    ]
    # Streams of shards have no random access, so their first samples are drawn.
    if hasattr(dataset, "one_by_one"):
        draws = [
            partial(_sample_picture, dataset, read) for read in islice(dataset.one_by_one(), count)
        ]
        indices = [*range(count)]
    for index, draw in zip(indices, draws):
        drawn: list[Image.Image | None] = []
        fault = _fault(lambda draw=draw, drawn=drawn: drawn.append(draw()))
        if fault is not None:
            report.faults.append(f"{phase}: sample {index}: {fault}")
        for picture in filter(None, drawn):
            report.pictures.append(save_image(picture, out / f"{phase}_{index}.png"))


def picture_of(dataset: Any, index: int) -> Image.Image | None:
    """Return the picture of a sample with its label, boxes, masks or label map drawn in; None if
    the sample has no image."""
    info = dataset.get_data_info(index) if hasattr(dataset, "get_data_info") else {}
    if "img_path" in info:
        return _annotated(info, classes_of(dataset))
    if not hasattr(dataset, "read"):
        return _sample_picture(dataset, lambda: dataset[index])
    return _titled(
        dataset,
        as_rgb(dataset.read(index)),
        {"label": dataset.labels[index]} if hasattr(dataset, "labels") else {},
    )


def _sample_picture(dataset: Any, read: Callable[[], Plain]) -> Image.Image | None:
    sample = read()
    image = _shown(sample.get("inputs"))
    return None if image is None else _titled(dataset, image, sample)


def _titled(dataset: Any, image: Image.Image, sample: Values) -> Image.Image:
    classes: dict[int | None, str] = dict(enumerate(classes_of(dataset)))
    label = int(sample["label"]) if np.size(sample.get("label", ())) == 1 else None
    text = sample.get("caption") or classes.get(label, f"label {label}")
    factor = -(-160 // min(image.size)) if min(image.size) < 160 else 1
    enlarged = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    return add_legend(enlarged, [(str(text), None)])


def _shown(pixels: Any) -> Image.Image | None:
    """Return a tensor (3, H, W) as an image, None for other inputs. The values of a normalised
    tensor are stretched to 0 to 255."""
    if not isinstance(pixels, torch.Tensor) or pixels.ndim != 3 or pixels.shape[0] != 3:
        return None
    if pixels.dtype != torch.uint8:
        low = pixels.min()
        high = pixels.max()
        pixels = ((pixels - low) / (high - low).clamp_min(1e-6) * 255).to(torch.uint8)
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def _annotated(info: Plain, classes: Sequence[str]) -> Image.Image:
    """Return an image of mmdet or mmseg with its annotation drawn in, both as the files have
    them."""
    image = open_image(info["img_path"])
    if info.get("seg_map_path"):
        labels = labels_of(info)
        labels[labels >= len(classes)] = -1
        return draw_segmentation(image, labels, [*classes, "no class"])
    items = info.get("instances") or []
    names = [classes[item["bbox_label"]] for item in items]
    colours = (
        label_colours(len(classes))[[item["bbox_label"] for item in items]]
        if items
        else np.zeros((0, 3))
    )
    masks = np.full((image.height, image.width), -1)
    for number, item in enumerate(items):
        if item.get("mask"):
            masks[decode(item["mask"], image.height, image.width)] = number
    painted = paint(image, masks, colours, 0.5)
    return draw_boxes(
        painted, np.array([item["bbox"] for item in items]).reshape(-1, 4), names, colours
    )
