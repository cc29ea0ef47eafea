"""Image classification with any number of labels for each image: a folder of images and a table of
labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mmengine.registry import DATASETS

from hypvision.io import HypvisionError, NameList, Plain, StrPath, ensure, some
from hypvision.io.files import inside
from hypvision.io.records import read_json_lines

from .annotations import name_difference
from .classes import check_classes, numbered
from .image_folder import _ImageDataset, chosen
from .tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    ONES,
    ZEROS,
    find_images_of,
    known_labels,
    marked,
    read_cells,
    read_part,
    split_labels,
    tell_parts,
)
from .usage import Listing, Usage, composed, find_white, similar_names

_TABLE = "the table of images and their labels"
_FORMS = (
    "Expected: a .csv with a column 'image' and either a column for each class with 1 or 0, or one "
    "column 'labels' with names between semicolons; or a .jsonl with a line "
    '{"image": PATH, "labels": [NAME, ...]} for each image'
)


class _Labelled(NamedTuple):
    """An image's path and the names of its labels."""

    image: str
    labels: list[str]


@DATASETS.register_module()
class MultiLabelDataset(_ImageDataset):
    """Data set of images whose labels are listed in a table, see :func:`read_table`.

    ``labels`` are float32 (N, C): 1 for each class that an image shows, else 0.

    Args:
        root: the folder from which the table's paths start.
        ann_file: path of the table.
        transform: arguments of :func:`~hypvision.data.image_folder.build_transform`.
        classes: class names in the order of the model's outputs; or the path of the table that the
            model is trained on, whose class names are then used. None: the class names of the table
            itself.
        white: the value of white in images of 16 bits, as for
            :class:`~hypvision.data.image_folder.ImageFolderDataset`.
        separator: the character between the names in a column of labels; None: found from the
            table, see :func:`~hypvision.data.tables.split_labels`.
        indices: positions of the images to keep; None: all.
        part: "train", "val" or "test": only the rows that the table's column ``split``, or another
            of :func:`~hypvision.data.tables.part_columns`, gives to this part; None: all.
    """

    def __init__(
        self,
        root: str,
        ann_file: str,
        transform: Plain | Callable,
        classes: NameList | None = None,
        white: int | str | None = None,
        separator: str | None = None,
        indices: Sequence[int] | None = None,
        part: str | None = None,
    ):
        super().__init__(transform)
        self.root = Path(root).expanduser()
        rows, names, columns, notes = read_table(ann_file, separator, part)
        if indices is not None:
            images = list(rows)
            rows = {images[number]: rows[images[number]] for number in chosen(indices, len(rows))}
        self._columns = names if columns else None
        source = ""
        if classes is not None:
            names, source = _names_of(classes, separator, None if part is None else "train")
        self.table = str(ann_file)
        self._check_columns(names, source)
        self.paths = self._find(list(rows))
        places = numbered(map(composed, names))
        rows = {image: list(map(composed, found)) for image, found in rows.items()}
        for image, found in rows.items():
            known_labels(found, places, f"'{ann_file}' gives the image '{image}'")
        self.labels = np.zeros((len(rows), len(names)), dtype=np.float32)
        for own, found in zip(self.labels, rows.values()):
            own[[places[name] for name in found]] = 1
        self.metainfo = dict(classes=tuple(names))
        self.usage = Usage(ann_file)
        self.usage.notes += [*notes, *similar_names(names)]
        tell_parts(ann_file, part, self.usage)
        self.white = find_white(self.paths, white, self.usage)
        self.usage.use("images", len(rows))
        self.usage.use("labels", int(self.labels.sum()))
        self.count_classes()

    def _find(self, images: list[str]) -> list[str]:
        """Return the paths of the images of the table."""
        paths = inside([self.root / image for image in images], self.root)
        found, missing = Listing().find_all(paths)
        if missing:  # names may lack their ending or folder
            found, lost = find_images_of(images, self.root, self.table)
            missing = [paths[place] for place in lost]
        ensure(
            not missing,
            f"{len(missing)} of the {len(images)} images of '{self.table}' do not exist, such as "
            f"{some(missing, 1)}. The table's paths start from '{self.root}': correct them, or "
            "'root' of the data set.",
        )
        return found

    def use_classes(self, names: Sequence[str]) -> None:
        """Reorder the columns of ``labels`` (N, C) by another list of class names, which must
        contain those of this data set."""
        self._check_columns(names, "the model and the training data")
        labels = np.zeros((len(self.labels), len(names)), dtype=np.float32)
        place = numbered(names)
        labels[:, [place[name] for name in self.metainfo["classes"]]] = self.labels
        self.labels = labels
        self.metainfo["classes"] = tuple(names)

    def _check_columns(self, names: Sequence[str], source: str) -> None:
        # A class for which the table has no column would have the label 0 in all images.
        if self._columns is not None and not set(names) <= set(self._columns):
            difference = name_difference(self._columns, f"The table '{self.table}'", names, source)
            raise HypvisionError(
                f"{difference} Give the table a column for each class, of the same name, with 1 or "
                "0 for each image."
            )

    def __getitem__(self, index: int) -> Plain:
        return dict(
            inputs=self.transform(self.read(index)),
            label=torch.from_numpy(self.labels[index]),
            index=index,
        )


def _names_of(classes: NameList, separator: str | None, part: str | None) -> tuple[list[str], str]:
    """Return the class names of a list, or of (a part of) the table at a path, and words that say
    where they come from."""
    if isinstance(classes, StrPath):
        return read_table(classes, separator, part).names, f"the table '{classes}'"
    source = "'classes' of the data set"
    return list(check_classes(enumerate(classes), source, "Correct the list.").values()), source


class Table(NamedTuple):
    """A table of images and their labels: the labels of each image, all class names (those of the
    columns, or those that occur, sorted), whether there is a column for each class, and notes for
    the user."""

    rows: dict[str, list[str]]
    names: list[str]
    columns: bool
    notes: list[str]


def read_table(path: StrPath, separator: str | None = None, part: str | None = None) -> Table:
    """Read a table of images and their labels, or one ``part`` of it, see
    :func:`~hypvision.data.tables.read_part`.

    ``path`` is a ``.csv`` with a column ``image`` (or another of
    :data:`~hypvision.data.tables.IMAGE_COLUMNS`) and either a column for each class, with 1 or 0,
    or a column ``labels`` with names between ``separator`` (see
    :func:`~hypvision.data.tables.split_labels`); or a ``.jsonl`` with a line
    ``{"image": PATH, "labels": [NAME, ...]}`` for each image.
    """
    notes: list[str] = []
    names: list[str] = []
    if Path(path).suffix == ".jsonl" and _has_keys(path):
        kept = {number for number, _ in read_part(path, part, _FORMS).rows}
        lines = read_json_lines(_Labelled, path, _TABLE, f"{_FORMS}.")
        lines = [line for line in lines if part is None or line[0] in kept]
    else:
        lines, names = _of_csv(path, separator, notes, part)
    rows: dict[str, list[str]] = {}
    for number, (image, labels) in lines:
        twice = f"the image '{image}' is listed twice. Remove one of the two lines."
        ensure(image, f"'{path}', line {number}: no image is named. {_FORMS}.")
        ensure(image not in rows, f"'{path}', line {number}: {twice}")
        rows[image] = labels
    columns = bool(names)
    names = names or sorted(set(chain(*rows.values())))
    lacking = "labels" if rows else "images"
    ensure(rows and names, f"The table '{path}' has no {lacking}. {_FORMS}.")
    check_classes(enumerate(names), f"The table '{path}'", "Give every class a name of its own.")
    return Table(rows, names, columns, notes)


def _has_keys(path: StrPath) -> bool:
    """Return whether a .jsonl has the key ``image``; others, such as ``file_name``, are read as
    the columns of a table."""
    with suppress(HypvisionError):
        head = read_cells(path, _FORMS).head
        return "image" in head or _column(head, IMAGE_COLUMNS) is None
    return True


def _of_csv(
    path: StrPath, separator: str | None, notes: list[str], part: str | None
) -> tuple[list[tuple[int, _Labelled]], list[str]]:
    """Return the rows of a part with their line numbers, and the class names if the header has
    them, else none."""
    cells = read_part(path, part, _FORMS)
    begin = f"The table '{path}' begins with '{','.join(cells.head):.80}'"
    image = _column(cells.head, IMAGE_COLUMNS)
    ensure(image is not None and len(cells.head) > 1, f"{begin}. {_FORMS}.")
    names = [name for name in cells.head if name != image]
    rows = [(number, f"'{path}', line {number}", row) for number, row in cells.rows]
    labels = _column(names, LABEL_COLUMNS)
    if labels is not None:  # further columns are passed over
        found = split_labels([(where, row[labels]) for _, where, row in rows], separator, notes)
        names = []
    else:
        found = [_ones(row, names, where) for _, where, row in rows]
    lines = [
        (number, _Labelled(row[str(image)], labels))
        for (number, _, row), labels in zip(rows, found)
    ]
    return lines, names


def _column(head: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the column with the first of the known names, in letters of any size; None if there
    is none."""
    by_name = {name.lower(): name for name in reversed(head)}
    return next((by_name[name] for name in known if name in by_name), None)


def _ones(row: dict[str, str], names: Sequence[str], where: str) -> list[str]:
    """Return the classes that a row marks with 1, 1.0 or True."""
    for name in names:
        known = row[name].lower() in (*ONES, *ZEROS)
        ensure(
            known,
            f"{where}: '{row[name]:.40}' is neither 1 nor 0. If the column '{name}' is a class, "
            f"write 1 and 0; if it is not, take it out. {_FORMS}.",
        )
    return marked(row, names)
