"""Image classification with any number of labels an image: a folder of images and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.registry import DATASETS

from hypvision.data.annotations import name_difference
from hypvision.data.classes import check_classes
from hypvision.data.depth import find_white
from hypvision.data.folders import Listing
from hypvision.data.image_folder import _ImageDataset
from hypvision.data.tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    ONES,
    ZEROS,
    read_cells,
    split_labels,
)
from hypvision.data.usage import Usage
from hypvision.io.errors import HypvisionError, did_you_mean
from hypvision.io.files import inside
from hypvision.io.records import read_json_lines

_TABLE = "the table of images and their labels"
_FORMS = (
    "Expected: a .csv with a column 'image' and either a column for each class with 1 or 0, or one "
    "column 'labels' with names between semicolons; or a .jsonl with a line "
    '{"image": PATH, "labels": [NAME, ...]} for each image'
)


class _Labelled(NamedTuple):
    """An image and its labels."""

    image: str
    labels: list[str]


@DATASETS.register_module()
class MultiLabelDataset(_ImageDataset):
    """Images whose labels are listed in a table, see :func:`read_table`.

    ``labels`` are float32 (N, C), 1 for what is in an image.

    Args:
        root: the folder that the paths of the table start from.
        ann_file: the table.
        transform: arguments of :func:`~hypvision.data.image_folder.build_transform`.
        classes: class names in the order of the outputs; or, by its path, the table that the model
            is trained on, whose names count. Default: the names of the table itself.
        white: of images of 16 bits, as for
            :class:`~hypvision.data.image_folder.ImageFolderDataset`.
        separator: between the names in a column of labels; None: found, see
            :func:`~hypvision.data.tables.split_labels`.
    """

    def __init__(
        self,
        root: str,
        ann_file: str,
        transform: dict[str, Any] | Callable,
        classes: Sequence[str] | str | Path | None = None,
        white: int | str | None = None,
        separator: str | None = None,
    ):
        super().__init__(transform)
        self.root = Path(root).expanduser()
        rows, names, columns, notes = read_table(ann_file, separator)
        own = names
        source = ""
        if isinstance(classes, str | Path):
            names = read_table(classes, separator).names
            source = f"the table '{classes}'"
        elif classes is not None:
            source = "'classes' of the data set"
            names = list(check_classes(enumerate(classes), source, "Correct them.").values())
        self.table = str(ann_file)
        self._columns = own if columns else None
        self._check_columns(names, source)
        self.paths = inside([self.root / image for image in rows], self.root)
        there = Listing()
        missing = [path for path in self.paths if path not in there]
        if missing:
            raise HypvisionError(
                f"{len(missing)} of the {len(rows)} images of '{ann_file}' do not exist, such as "
                f"'{missing[0]}'. Its paths start from '{root}': correct them, or 'root' of the "
                "data set."
            )
        self.labels = np.zeros((len(rows), len(names)), dtype=np.float32)
        places = {name: place for place, name in enumerate(names)}
        for row, (image, found) in enumerate(rows.items()):
            for name in found:
                if name not in places:
                    raise HypvisionError(
                        f"'{ann_file}' gives the image '{image}' the label '{name}', which is none "
                        f"of the {len(names)} classes.{did_you_mean(name, names)} Classes: "
                        f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}. Correct the "
                        "label, or 'classes' of the data set."
                    )
                self.labels[row, places[name]] = 1.0
        self.metainfo = dict(classes=tuple(names))
        self.usage = Usage(ann_file)
        self.usage.notes += notes
        self.white = find_white(self.paths, white, self.usage)
        self.usage.use("images", len(rows))
        self.usage.use("labels", int(self.labels.sum()))
        self.count_classes()

    def use_classes(self, names: Sequence[str]) -> None:
        """Give the labels columns (N, C) in the order of another list of class names, which has all
        of their own."""
        self._check_columns(names, "the model and the training data")
        labels = np.zeros((len(self.labels), len(names)), dtype=np.float32)
        place = {name: number for number, name in enumerate(names)}
        labels[:, [place[name] for name in self.metainfo["classes"]]] = self.labels
        self.labels = labels
        self.metainfo["classes"] = tuple(names)

    def _check_columns(self, names: Sequence[str], source: str) -> None:
        # other classes would have the label 0 everywhere
        if self._columns is not None and not set(names) <= set(self._columns):
            difference = name_difference(self._columns, f"The table '{self.table}'", names, source)
            raise HypvisionError(
                f"{difference} Give the table a column for each class, of the same name, with 1 or "
                "0 for each image."
            )

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(
            inputs=self.transform(self.read(index)),
            label=torch.from_numpy(self.labels[index]),
            index=index,
        )


class Table(NamedTuple):
    """The labels of each image, all class names (those of the columns, or, sorted, those that
    occur), whether columns have them, and notes for the user."""

    rows: dict[str, list[str]]
    names: list[str]
    columns: bool
    notes: list[str]


def read_table(path: str | Path, separator: str | None = None) -> Table:
    """A table of images and their labels.

    ``path`` is a ``.csv`` with a column ``image`` (or another of
    :data:`~hypvision.data.tables.IMAGE_COLUMNS`) and either a column for each class, with 1 or 0,
    or a column ``labels`` with names between ``separator`` (see
    :func:`~hypvision.data.tables.split_labels`); or a ``.jsonl`` with a line
    ``{"image": PATH, "labels": [NAME, ...]}`` for each image.
    """
    notes: list[str] = []
    if Path(path).suffix == ".jsonl":
        lines = read_json_lines(_Labelled, path, _TABLE, f"{_FORMS}.")
        names = list[str]()
    else:
        lines, names = _of_csv(path, separator, notes)
    rows: dict[str, list[str]] = {}
    for number, (image, labels) in lines:
        if image in rows:
            raise HypvisionError(
                f"'{path}', line {number}: the image '{image}' is listed twice. Remove one of the "
                "two lines."
            )
        rows[image] = labels
    columns = bool(names)
    names = names or sorted({name for found in rows.values() for name in found})
    if not rows or not names:
        raise HypvisionError(
            f"The table '{path}' has no {'labels' if rows else 'images'}. {_FORMS}."
        )
    check_classes(enumerate(names), f"The table '{path}'", "Give every class a name of its own.")
    return Table(rows, names, columns, notes)


def _of_csv(
    path: str | Path, separator: str | None, notes: list[str]
) -> tuple[list[tuple[int, _Labelled]], list[str]]:
    """The rows with their line numbers, and the names of the classes if the header has them."""
    cells = read_cells(path, _FORMS)
    known = [name for name in IMAGE_COLUMNS if name in cells.head]
    names = [name for name in cells.head if name not in known[:1]]
    if not known or not names:
        raise HypvisionError(
            f"The table '{path}' begins with '{','.join(cells.head):.80}'. {_FORMS}."
        )
    listed = len(names) == 1 and names[0] in LABEL_COLUMNS
    lines = [number for number, _ in cells.rows]
    found = []
    if listed:
        texts = [(f"'{path}', line {number}", row[names[0]]) for number, row in cells.rows]
        found = split_labels(texts, separator, notes)
    else:
        found = [_ones(row, names, f"'{path}', line {number}") for number, row in cells.rows]
    images = [row[known[0]] for _, row in cells.rows]
    if "" in images:
        line = lines[images.index("")]
        raise HypvisionError(f"'{path}', line {line}: no image is named. {_FORMS}.")
    pairs = [(line, _Labelled(*row)) for line, row in zip(lines, zip(images, found))]
    return pairs, [] if listed else names


def _ones(row: dict[str, str], names: Sequence[str], where: str) -> list[str]:
    """The classes that a row marks by 1, 1.0 or True."""
    wrong = [row[name] for name in names if row[name].lower() not in (*ONES, *ZEROS)]
    if wrong:
        raise HypvisionError(f"{where}: '{wrong[0]:.40}' is neither 1 nor 0. {_FORMS}.")
    return [name for name in names if row[name].lower() in ONES]
