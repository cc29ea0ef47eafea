"""Read tables of images and labels in the forms that people have: those of Kaggle, Hugging Face,
Roboflow and pandas.

:func:`read_cells` reads the cells of any such table. :class:`ImageTableDataset` has one label per
image; :mod:`hypvision.data.multi_label` reads tables with several labels per image.
"""

from __future__ import annotations

import ast
import csv
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.registry import DATASETS

from hypvision.io import (
    HypvisionError,
    NameList,
    Plain,
    StrPath,
    did_you_mean,
    ensure,
    explaining,
    some,
)
from hypvision.io.files import inside, read_lines
from hypvision.io.images import images_in, is_image
from hypvision.io.records import read_json_lines

from .classes import check_classes, numbered
from .image_folder import _ImageDataset
from .usage import Usage, composed, natural, part_of

# Names of the column of images, and of the column of labels, the most usual one first.
IMAGE_COLUMNS = (
    "image", "file_name", "filename", "image_id", "image_path", "image_name", "path", "filepath",
    "file", "img", "id",
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "tags")
# Names of columns that say of each image which part of the data it belongs to; and of columns with
# a 1 for the images of one part, first that of fastai.
PART_COLUMNS = ("split", "set", "subset", "partition")
PART_MARKS = {"is_valid": "val", "is_val": "val", "is_test": "test"}
_PLURAL = ("labels", "tags")  # names of a column whose cells may hold several labels
ONES = ("1", "1.0", "true")
ZEROS = ("0", "0.0", "false")
_MARKED = (*ONES, "yes")  # what marks an image of a part
_MISSING = ("", "nan", "null", "<na>")  # texts that pandas writes, or reads, for a missing value
_TABLE = "the table of images and their labels"


class Cells(NamedTuple):
    """The names of a table's columns, and its rows, each with its line number and its cells by
    column."""

    head: list[str]
    rows: list[tuple[int, dict[str, str]]]


def read_cells(path: StrPath, expected: str) -> Cells:
    """Read the cells of a ``.csv`` or ``.tsv`` file, separated by commas, tabs or semicolons
    (whichever the first line has most), or of a ``.jsonl`` file of flat objects. A table without a
    header, whose first line names an image, gets the columns ``image`` and ``label``; the nameless
    column that pandas writes is left out.

    Args:
        path: path of the file.
        expected: text at the end of messages that says what such a table must be.
    """
    if Path(path).suffix == ".jsonl":
        return _of_json(path, expected)
    lines = read_lines(path, _TABLE, blank=True)
    separator = max(",\t;", key="".join(lines[:1]).count)
    with explaining(
        lambda error: f"The table '{path}' is not CSV ({error}). {expected}.", csv.Error
    ):
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=separator)]
    head = _head(rows)
    twice = [name for name, count in Counter(head).items() if count > 1 and name]
    ensure(
        not twice,
        f"The table '{path}' has the column {some(twice, 1)} more than once. Remove one.",
    )
    for number, row in enumerate(rows, start=1):
        cells = f"the number of cells is {len(row)}, not {len(head)}"
        ensure(len(row) in (0, len(head)), f"'{path}', line {number}: {cells}. {expected}.")
    start = int(rows[:1] == [head])
    found = [(number, dict(zip(head, row))) for number, row in enumerate(rows, 1) if row][start:]
    index = head[:1] in ([""], ["Unnamed: 0"])
    return Cells(head[index:], found)


def _head(rows: Sequence[list[str]]) -> list[str]:
    """Return the column names of a table; ("image", "label") for a table of two columns whose first
    line is already data."""
    head = rows[0] if rows else []
    no_header = any(Path(cell).suffix.lower() in _IMAGE_ENDINGS for cell in head)
    return ["image", "label"] if len(head) == 2 and no_header else head


_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".gif")


def _of_json(path: StrPath, expected: str) -> Cells:
    lines = read_json_lines(Plain, path, _TABLE, f"{expected}.")
    found = [
        (number, {name: "" if value is None else str(value) for name, value in row.items()})
        for number, row in lines
        if row
    ]
    return Cells(list(dict.fromkeys(name for _, row in found for name in row)), found)


def part_columns(cells: Cells) -> list[str]:
    """Return the columns that say which part of the data an image belongs to: those of
    :data:`PART_COLUMNS` in which a cell names a part, and those of :data:`PART_MARKS` that have a
    one and beside it zeros or empty cells alone."""
    found = []
    for name in cells.head:
        texts = {row.get(name, "").lower() for _, row in cells.rows}
        named = name.lower() in PART_COLUMNS and any(map(part_of, texts))
        marks = texts <= {*_MARKED, *ZEROS, "no", *_MISSING} and not texts.isdisjoint(_MARKED)
        if named or (name.lower() in PART_MARKS and marks):
            found.append(name)
    return found


def _row_part(row: Mapping[str, str], columns: Sequence[str], where: str) -> str:
    """Return the part of the data that a row belongs to, by the first of the columns that says
    it."""
    for name in columns:
        text = row.get(name, "")
        marked_part = PART_MARKS.get(name.lower())
        if marked_part is None:
            part = part_of(text)
            ensure(
                part,
                f"{where}: the column '{name}' has {text[:40]!r}. Expected: train, val or test. "
                "Correct it, or rename the column if it does not divide the data.",
            )
            return str(part)
        if text.lower() in _MARKED:
            return marked_part
    return "train"


def read_part(path: StrPath, part: str | None, expected: str) -> Cells:
    """Read the cells of a table, see :func:`read_cells`, of the rows of a part of the data alone
    (None: all). The columns that say which part a row belongs to are left out.

    Raises:
        HypvisionError: the table has no such column, or no such rows.
    """
    cells = read_cells(path, expected)
    columns = part_columns(cells)
    head = [name for name in cells.head if name not in columns]
    if part is None:
        return Cells(head, cells.rows)
    ensure(
        columns,
        f"The table '{path}' has no column that says which images are of '{part}'. Add a column "
        f"'{PART_COLUMNS[0]}' with train, val or test, or leave part='{part}' out of the data set.",
    )
    rows = [
        (line, row)
        for line, row in cells.rows
        if _row_part(row, columns, f"'{path}', line {line}") == part
    ]
    ensure(rows, f"The column '{columns[0]}' of the table '{path}' gives no image to '{part}'.")
    return Cells(head, rows)


def table_parts(path: StrPath) -> list[str]:
    """Return the parts of the data that the columns of a table name; an empty list if it has no
    such columns. A test without labels, as in competitions, is left out."""
    cells = read_cells(path, _ONE_LABEL)
    columns = part_columns(cells)
    _refuse_unknown_parts(path, cells, columns)
    found = {
        _row_part(row, columns, f"'{path}', line {line}"): None
        for line, row in cells.rows
        if columns
    }
    if "test" in found:
        labels = _columns_of_labels([name for name in cells.head if name not in columns])
        test = read_part(path, "test", _ONE_LABEL)
        texts = {row.get(name, "").lower() for _, row in test.rows for name in labels}
        if texts <= {*_MISSING}:
            del found["test"]
    return list(found)


def _refuse_unknown_parts(path: StrPath, cells: Cells, columns: Sequence[str]) -> None:
    """Raise an error for a column that is called as one of parts and has a few values, none of
    which names a part: images of a test must not be trained on."""
    for name in cells.head:
        if name in columns or name.lower() not in (*PART_COLUMNS, *PART_MARKS):
            continue
        texts = {row.get(name, "") for _, row in cells.rows} - {""}
        marks = name.lower() in PART_MARKS and {text.lower() for text in texts} <= {*ZEROS, "no"}
        ensure(
            marks or not 2 <= len(texts) <= 4,
            f"The column '{name}' of the table '{path}' has {some(sorted(texts))}, which name no "
            "part of the data. Expected: train, val or test in a column 'split', 1 and 0 in "
            "'is_valid' or 'is_test'. Correct it, or rename it if it does not divide the data.",
        )


def _columns_of_labels(names: Sequence[str]) -> list[str]:
    """Return the column of labels that has a usual name, or else all columns but that of the
    images."""
    known = [name for name in names if name.lower() in LABEL_COLUMNS][:1]
    images = [name for name in names if name.lower() in IMAGE_COLUMNS][:1]
    return known or [name for name in names if name not in images]


def tell_parts(path: StrPath, part: str | None, usage: Usage) -> None:
    """Note that all rows of a table are used (``part`` is None) although a column divides them."""
    cells = read_cells(path, _ONE_LABEL)
    columns = part_columns(cells) if part is None else []
    if len({row.get(columns[0]) for _, row in cells.rows if columns}) > 1:
        usage.notes.append(
            f"The table '{path}' has the column '{columns[0]}', but all of its rows are used here. "
            "Set part='train', 'val' or 'test' in the data set."
        )


def column(cells: Cells, wanted: str | None, known: Sequence[str], path: StrPath) -> str:
    """Return the name of the column ``wanted``, or of the first of the ``known`` names that the
    table has.

    Raises:
        HypvisionError: the table has no such column.
    """
    by_name = {name.lower(): name for name in reversed(cells.head)}
    for name in known if wanted is None else (wanted,):
        if name.lower() in by_name:
            return by_name[name.lower()]
    raise HypvisionError(
        f"The table '{path}' has the columns {some(cells.head)}, and none of "
        f"{', '.join(known if wanted is None else (wanted,))}. Rename the column to '{known[0]}' "
        "(a config may name it instead: image='...', label='...' in the data set). Columns that "
        "are classes have 1 and 0 alone."
    )


def box_columns(head: Sequence[str]) -> list[str]:
    """Return the names of the columns with the left, top, right and bottom of a box; an empty list
    if the table has no boxes."""
    by_name = {name.strip(' "').lower(): name for name in head}
    sides = ("xmin", "ymin", "xmax", "ymax")
    return [by_name[side] for side in sides] if by_name.keys() >= {*sides} else []


def label_of(text: str, where: str) -> str:
    """Return a label, :func:`composed` and without spaces around it; raise an error for an empty
    cell and for ``NaN``. ``where``: the line, for the message."""
    text = composed(text.strip())
    ensure(
        text.lower() not in _MISSING,
        f"{where}: the label is {text or 'empty'!r}, a missing value. Give the image a label, or "
        "remove the line.",
    )
    return text


def split_labels(
    cells: Sequence[tuple[str, str]], separator: str | None, notes: list[str]
) -> list[list[str]]:
    """Return the list of names in each label cell of a table.

    Args:
        cells: place (for messages) and text of each cell in the column of labels; an empty cell has
            no label.
        separator: separator of the names; None: ``;`` if a cell has it, else ``|`` or ``,``, with a
            note; a cell such as ``['cat', 'owl']`` is read as a Python list. Spaces are used, with
            a note, if each word is in at least two different cells.
        notes: list that gets the notes.

    Raises:
        HypvisionError: a cell is ``NaN``; or cells have spaces of which it is unclear whether they
            separate names.
    """
    given = [(where, label_of(text, where) if text.strip() else "") for where, text in cells]
    plain = [text for _, text in given if text and not text.startswith("[")]
    separator = _separator(plain, notes) if separator is None else separator
    found = []
    for where, text in given:
        names = _list_of(text, where) if text.startswith("[") else text.split(separator)
        found.append([name.strip() for name in names if name.strip()])
    return found


def _separator(texts: Sequence[str], notes: list[str]) -> str:
    """Return the text that separates names in cells."""
    sign = next((sign for sign in ";|, " if any(sign in text for text in texts)), ";")
    if sign == " ":
        _check_spaces(texts, notes)
    elif sign != ";":
        notes.append(f"Names in the column of labels are separated by '{sign}'.")
    return sign


def _check_spaces(texts: Sequence[str], notes: list[str]) -> None:
    spaced = [text for text in texts if " " in text]
    ensure(
        _repeated(texts),
        f"The column of labels has '{spaced[0]:.60}', which may be one name or several. Put "
        "';' between names, or call the column 'label' if each cell is one name; in a config, set "
        "separator=' ' or separator=';' in the data set.",
    )
    notes.append(f"Names in the column of labels are separated by spaces, as in '{spaced[0]:.60}'.")


def _list_of(text: str, where: str) -> list[str]:
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        names = None
    if not isinstance(names, list):
        raise HypvisionError(f"{where}: '{text:.60}' is not a list of names. Correct it.")
    return [label_of(str(name), where) for name in names]


def find_images_of(names: Sequence[str], root: Path, table: StrPath) -> tuple[list[str], list[int]]:
    """Return the paths of the images that a table names, below ``root``, and the positions of those
    that do not exist. A name may lack its ending, as in Kaggle's tables, or its folder; of several
    images the one in a folder called like the table is taken."""
    paths = inside([root / name for name in names], root)
    lost = [number for number, path in enumerate(paths) if not is_image(Path(path))]
    if not lost:
        return paths, []
    there = _by_name(root)
    for number in lost:
        found = there.get(composed(Path(names[number]).name), [])
        found = [path for path in found if path.parent.name == Path(table).stem] or found
        choices = [str(path) for path in found]
        ensure(
            len(choices) < 2,
            f"'{table}' names the image '{names[number]}', which may be one of {some(choices, 2)}. "
            f"Write its path from '{root}', with its ending.",
        )
        paths[number] = choices[0] if choices else ""
    return paths, [number for number in lost if not paths[number]]


def _by_name(root: Path) -> dict[str, list[Path]]:
    """Return the images below a folder, by their names with and without the ending."""
    found: dict[str, list[Path]] = {}
    for image in images_in(root):
        for key in {composed(image.name), composed(image.stem)}:
            found.setdefault(key, []).append(image)
    return found


@DATASETS.register_module()
class ImageTableDataset(_ImageDataset):
    """A data set of images with one label each, listed in a table: with a column of images and one
    of labels, or with a column for each class and a single 1 in each row (Roboflow's
    ``_classes.csv``).

    Args:
        root: folder that the paths in the table start from; images may also lie deeper, and names
            may lack the ending.
        ann_file: path of the table, see :func:`read_cells`.
        transform: arguments of :func:`~hypvision.data.image_folder.build_transform`.
        classes: class names in the order of the labels; or the path of the table that the model is
            trained on. Default: the labels of this table, sorted, numbers by their value.
        image: name of the column of images; None: the first of :data:`IMAGE_COLUMNS` that the table
            has.
        label: name of the column of labels; None: the only column beside the images, or the first
            of :data:`LABEL_COLUMNS` that the table has.
        indices: positions of the images to keep; None: all.
        part: "train", "val" or "test": only the rows that the table's column ``split``, or another
            of :func:`part_columns`, gives to this part; None: all.
        white: as for :class:`~hypvision.data.image_folder.ImageFolderDataset`.
    """

    def __init__(
        self,
        root: str,
        ann_file: str,
        transform: Plain | Callable,
        classes: NameList | None = None,
        image: str | None = None,
        label: str | None = None,
        indices: Sequence[int] | None = None,
        white: int | str | None = None,
        part: str | None = None,
    ):
        super().__init__(transform)
        self.usage = Usage(ann_file)
        tell_parts(ann_file, part, self.usage)
        rows = read_labels_of(ann_file, image, label, part)
        if isinstance(classes, StrPath):
            learned = None if part is None else "train"
            classes = table_classes(read_labels_of(classes, image, label, learned).values())
        names = table_classes(rows.values()) if classes is None else list(classes)
        check_classes(enumerate(names), f"The table '{ann_file}'", "Correct them.")
        joined = [name for name in names if any(map(name.count, ";|,"))]
        if joined:
            self.usage.notes.append(
                f"The label {some(joined, 1)} is the name of one class here. For several labels "
                "per image use MultiLabelDataset."
            )
        number = numbered(map(composed, names))
        known_labels(rows.values(), number, f"'{ann_file}' has")
        images = list(rows)
        paths, missing = find_images_of(images, Path(root).expanduser(), ann_file)
        ensure(
            len(missing) < len(images),
            f"None of the {len(images)} images of the table '{ann_file}' exists; the first is "
            f"'{images[0]}'. Its paths start from '{root}': correct them, or 'root' of a config.",
        )
        for place in missing:
            self.usage.leave_out("images", "missing on disk", images[place])
        places = sorted(set(range(len(images))).difference(missing))
        samples = [(paths[place], number[rows[images[place]]]) for place in places]
        self.fill(samples, names, indices, white, "images")
        self.count_classes()


def known_labels(labels: Iterable[str], names: Mapping[str, int], where: str) -> None:
    """Raise an error for the first label that is none of the classes; ``where`` is the beginning of
    the message."""
    for name in labels:
        if name not in names:
            raise HypvisionError(
                f"{where} the label '{name}', which is none of the {len(names)} classes."
                f"{did_you_mean(name, names)} Classes: {some(list(names), 10)}. Correct the label, "
                "or give the training images of it; in a config, correct 'classes' of the data set."
            )


def table_classes(labels: Any) -> list[str]:
    """Return the different labels, sorted; numbers are sorted by their value."""
    found = set(labels)
    return sorted(found, key=natural) if all(map(str.isdecimal, found)) else sorted(found)


_ONE_LABEL = (
    "Expected: a column of images and a column of labels, such as 'id,label', or a column for each "
    "class with a single 1 in each row"
)


def read_labels_of(
    path: StrPath, image: str | None = None, label: str | None = None, part: str | None = None
) -> dict[str, str]:
    """Return the label of each image in a table, see :class:`ImageTableDataset`."""
    cells = read_part(path, part, _ONE_LABEL)
    ensure(
        not box_columns(cells.head),
        f"The table '{path}' has boxes. For a detector write them as COCO's JSON: hypvision data "
        "convert FOLDER FOLDER/annotations. For one label per image remove the columns of boxes.",
    )
    images = column(cells, image, IMAGE_COLUMNS, path)
    others = [name for name in cells.head if name != images]
    labels = None
    # Beside a column of labels, further columns of ones and zeros are no classes.
    known = any(name.lower() in LABEL_COLUMNS for name in others)
    if label is not None or known or not is_marked(cells, others):
        only = others[0] if len(others) == 1 else None
        labels = column(cells, label or only, LABEL_COLUMNS, path)
    found: dict[str, str] = {}
    for line, row in cells.rows:
        where = f"'{path}', line {line}"
        name = row.get(images, "")
        ensure(name, f"{where}: no image is named. {_ONE_LABEL}.")
        text = label_of(row.get(labels, ""), where) if labels else _marked(row, others, where)
        other = found.setdefault(name, text)
        ensure(
            other == text,
            f"{where}: the image '{name}' has the label '{text}', and '{other}' above. Remove one "
            "of the two lines, or write both labels in one cell of a column 'labels', with ';' "
            "between them.",
        )
    ensure(found, f"The table '{path}' names no images. {_ONE_LABEL}.")
    _refuse_several(found.values(), str(labels), path)
    return found


def has_several_labels(path: StrPath, part: str | None = None) -> bool:
    """Return whether a table, or a part of it, has several labels per image: a row in which more
    than one class is marked, a Python list, or, in a column that is called ``labels`` or ``tags``,
    a text with a separator of names other than a space."""
    cells = read_part(path, part, _ONE_LABEL)
    if box_columns(cells.head):
        return False
    image = next((name for name in cells.head if name.lower() in IMAGE_COLUMNS), None)
    others = [name for name in cells.head if name != image]
    name = next((name for name in others if name.lower() in LABEL_COLUMNS), "")
    if name or not is_marked(cells, others):
        return bool(_several((row.get(name, "") for _, row in cells.rows), name))
    return any(len(marked(row, others)) > 1 for _, row in cells.rows)


def _several(texts: Iterable[str], name: str) -> list[str]:
    """Return the labels in a column of this name that are several."""
    signs = ";|," if name.lower() in _PLURAL else ""
    found = sorted(set(texts))
    return [text for text in found if text.startswith("[") or any(map(text.count, signs))]


def _refuse_several(texts: Iterable[str], name: str, path: StrPath) -> None:
    """Raise an error for a label that may be several: those of :func:`_several`, or, in a column
    that is called ``labels`` or ``tags``, a text whose spaces may separate names."""
    plural = name.lower() in _PLURAL
    found = sorted(set(texts))
    several = _several(found, name)
    if plural and not several and _perhaps_by_spaces(found):
        several = [text for text in found if " " in text]
    ensure(
        not several,
        f"The table '{path}' has the {name} {some(several, 1)}, which may be several. If it is the "
        "name of one class, call the column 'label', where a cell is one name. For several labels "
        "per image, call it 'labels' and put ';' between them (in a config: MultiLabelDataset).",
    )


def _perhaps_by_spaces(texts: Iterable[str]) -> bool:
    """Return whether spaces may separate names in these cells: every word of those with spaces is
    in another cell, too, or one of the words is a cell of its own."""
    cells = {text for text in texts if " " in text}
    words = {word for cell in cells for word in cell.split()}
    return bool(cells) and (_repeated(texts) or not words.isdisjoint(texts))


def _repeated(texts: Iterable[str]) -> bool:
    """Return whether every word of the cells that have spaces is in at least two different
    cells."""
    cells = [text.split() for text in set(texts)]
    count = Counter(word for cell in cells for word in set(cell))
    return all(count[word] > 1 for cell in cells if len(cell) > 1 for word in cell)


def is_marked(cells: Cells, names: Sequence[str]) -> bool:
    """Return whether these columns, at least two, hold ones and zeros alone."""
    marks = {*ONES, *ZEROS}
    return len(names) > 1 and all(
        row[name].lower() in marks for _, row in cells.rows for name in names if name in row
    )


def marked(row: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return the columns of a row that hold a one."""
    return [name for name in names if row[name].lower() in ONES]


def _marked(row: Mapping[str, str], names: Sequence[str], where: str) -> str:
    found = marked(row, names)
    advice = "Mark one with 1 and the others with 0, or remove the line"
    several = "for several labels per image a config has MultiLabelDataset"
    ensure(len(found) == 1, f"{where}: {len(found)} classes are marked. {advice}; {several}.")
    return found[0]
