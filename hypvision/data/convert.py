"""Convert annotations of other tools into COCO's JSON: YOLO, LabelMe, CreateML, VOC and tables of
boxes.

The images are neither changed nor moved; the files name them relative to the folder of the data.
For ``hypvision train FOLDER`` write the files into ``FOLDER/annotations``.
"""

from __future__ import annotations

import base64
import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypvision.io import HypvisionError, Plain, StrPath, ensure
from hypvision.io.files import check_same, inside, json_text, read_json, read_lines, write_same
from hypvision.io.images import MAX_PIXELS, SUFFIXES, is_hidden, read_labels, shown_size

from .annotations import Box, BoxCheck, as_number, is_number, whole_size
from .masks import run_length
from .tables import IMAGE_COLUMNS, LABEL_COLUMNS, box_columns, column, find_images_of, read_cells
from .usage import PARTS, Usage, natural
from .voc_xml import read_xml
from .yolo import find_yaml, polygon_area, read_yolo, yolo_as_coco

_PARTS = {name: part for part, names in PARTS.items() for name in names}
_ALL = "default"  # name of the file for data without parts, as in CVAT
_CIRCLE = 48  # number of corners of a circle's polygon


class Shape(NamedTuple):
    """An annotated object: its place in the file, for messages; the name of its class; its box as
    left, top, right, bottom in pixels; its polygons or run lengths (empty for a box alone); and
    whether it is a crowd."""

    where: str
    name: str
    corners: Sequence[float]
    segmentation: Any = ()
    crowd: bool = False


class Annotated(NamedTuple):
    """An image with its objects, the annotation file that they come from, and the image's height
    and width in that file (None if it has none)."""

    image: Path
    source: Path
    shapes: list[Shape]
    size: tuple[Any, Any] | None = None


class Written(NamedTuple):
    """A file that was written in COCO's format, and how many images, objects and classes it has."""

    file: Path
    images: int
    objects: int
    classes: int


_Reader = Callable[[Path, Usage], Iterator[Annotated]]


def convert(source: StrPath, out: StrPath, usage: Usage | None = None) -> list[Written]:
    """Convert a data set: write ``OUT/instances_PART.json`` for each part (training, validation,
    test), or ``instances_default.json`` without parts, and return the files.

    Args:
        source: folder of the data (or YOLO's ``data.yaml``). Its format is YOLO; VOC's ``*.xml``;
            LabelMe's or CreateML's ``*.json``; or tables of boxes, ``*.csv``. Parts are YOLO's, the
            lists in VOC's ``ImageSets/Main``, or folders called ``train``, ``val`` or ``valid``,
            and ``test``.
        out: folder that the files are written to.
        usage: counts the objects and images that are left out.

    Raises:
        HypvisionError: a file exists with other content; the folder has none of these formats, or
            several; a file is wrong.
    """
    source = Path(source).expanduser()
    usage = usage or Usage(source)
    ensure(source.exists(), f"There is no '{source}'. Give the folder of the data.")
    ensure(
        not source.is_file() or source.suffix in (".yaml", ".yml"),
        f"'{source}' is a file. Give the folder of the data, unpacked.",
    )
    yaml = source if source.is_file() else find_yaml(source)
    contents = _of_yolo(yaml, usage) if yaml is not None else _of_files(source, usage)
    files = {Path(out, f"instances_{part}.json").expanduser(): contents[part] for part in contents}
    for file, content in files.items():
        check_same(file, json_text(content, indent=None))
    return [_write(file, content) for file, content in files.items()]


def _write(file: Path, content: Plain) -> Written:
    write_same(file, json_text(content, indent=None))
    counts = (len(content[key]) for key in ("images", "annotations", "categories"))
    return Written(file, *counts)


def _of_yolo(yaml: Path, usage: Usage) -> dict[str, Plain]:
    data = read_yolo(yaml)
    found = {part: yolo_as_coco(data, part, usage) for part in data.images}
    for content in found.values():
        for item in content["images"]:
            item["file_name"] = _relative(Path(item["file_name"]), yaml.parent)
        for item in content["annotations"]:
            item.setdefault("segmentation", [])
    return found


def _relative(image: Path, root: Path) -> str:
    return Path(os.path.relpath(image.absolute(), root.absolute())).as_posix()


def _of_files(source: Path, usage: Usage) -> dict[str, Plain]:
    reader, files = _one_format(source)
    items = [item for file in files for item in reader(file, usage)]
    inside([item.image for item in items], source)
    of_image: dict[Path, Path] = {}
    for item in items:
        other = of_image.setdefault(item.image, item.source)
        if other != item.source:
            raise HypvisionError(
                f"The image '{item.image}' is in '{other}' and in '{item.source}'. Remove it from "
                "one of them."
            )
    parts = _by_lists(source, items) if reader is _voc else _by_folders(source, items)
    names = sorted({shape.name for item in items for shape in item.shapes}, key=natural)
    return {part: _coco(parts[part], names, source, usage) for part in parts}


def _one_format(source: Path) -> tuple[_Reader, list[Path]]:
    """Return the function that reads the annotations of a folder, and the annotation files."""
    kinds: dict[_Reader, list[Path]] = {}
    for file in _annotation_files(source):
        reader = _reader_of(file)
        if reader is not None:
            kinds.setdefault(reader, []).append(file)
    if len(kinds) != 1:
        found = " and ".join(_NAMES[reader] for reader in kinds) or "no kind that is known"
        raise HypvisionError(
            f"'{source}' has annotations of {found}. Expected is one of YOLO (data.yaml), VOC "
            "(.xml), LabelMe and CreateML (.json), tables of boxes (.csv). Give a folder with only "
            "one of them."
        )
    return next(iter(kinds.items()))


_ENDINGS = (".xml", ".json", ".csv")


def _annotation_files(source: Path) -> list[Path]:
    files = (path for path in sorted(source.rglob("*")) if path.suffix.lower() in _ENDINGS)
    return [path for path in files if not any(map(is_hidden, path.relative_to(source).parts))]


def _by_folders(source: Path, items: Iterable[Annotated]) -> dict[str, list[Annotated]]:
    """Return the images of each part, by the first folder in their path that is called like a
    part."""
    parts: dict[str, list[Annotated]] = {}
    for item in items:
        # An image outside the folder, which HYPVISION_ALLOW_OUTSIDE allows, belongs to the part of
        # its annotation.
        place = item.image if item.image.is_relative_to(source) else item.source
        folders = place.relative_to(source).parts[:-1]
        part = next((_PARTS[name.lower()] for name in folders if name.lower() in _PARTS), _ALL)
        parts.setdefault(part, []).append(item)
    return parts


def _by_lists(source: Path, items: list[Annotated]) -> dict[str, list[Annotated]]:
    """Return the images of each list in ``ImageSets/Main``; without lists, those of
    :func:`_by_folders`."""
    lists = {part: source / f"ImageSets/Main/{part}.txt" for part in ("train", "val", "test")}
    own = {item.source.stem: item for item in items}
    parts: dict[str, list[Annotated]] = {}
    for part, file in lists.items():
        names = read_lines(file, "a list of images") if file.is_file() else []
        lacking = [name for name in names if name not in own]
        if lacking:
            raise HypvisionError(
                f"'{file}' names '{lacking[0]}', but there is no '{lacking[0]}.xml'. Correct it."
            )
        if names:
            parts[part] = [own[name] for name in names]
    return parts or _by_folders(source, items)


def _coco(items: Sequence[Annotated], names: Sequence[str], source: Path, usage: Usage) -> Plain:
    """Return the content of a file in COCO's format; objects whose box is empty are counted and
    left out."""
    numbers = {name: number for number, name in enumerate(names, start=1)}
    check = BoxCheck(usage, "left, top, right and bottom in pixels")
    images: list[Plain] = []
    annotations: list[Plain] = []
    for number, item in enumerate(items, start=1):
        height, width = _size(item)
        name = _relative(item.image, source)
        images.append(dict(id=number, file_name=name, height=height, width=width))
        for shape in item.shapes:
            check.numbers(shape.where, list(shape.corners), height, width)
            left, top, right, bottom = shape.corners
            fault = check.fault(shape.where, Box(left, top, right, bottom, height, width))
            if fault is not None and fault.no_box:
                continue
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=number,
                    category_id=numbers[shape.name],
                    bbox=[left, top, right - left, bottom - top],
                    area=_area(shape),
                    iscrowd=int(shape.crowd),
                    segmentation=shape.segmentation or [],
                )
            )
    check.finish()
    categories = [dict(id=number, name=name) for name, number in numbers.items()]
    return dict(images=images, annotations=annotations, categories=categories)


def _area(shape: Shape) -> float:
    """Return the area of an object in pixels; overlapping outlines of one object count twice."""
    if isinstance(shape.segmentation, dict):
        return sum(shape.segmentation["counts"][1::2])
    left, top, right, bottom = shape.corners
    return sum(map(polygon_area, shape.segmentation)) or (right - left) * (bottom - top)


def _size(item: Annotated) -> tuple[int, int]:
    """Return height and width of the image; raise an error if the annotation has another size."""
    ensure(
        item.image.is_file(),
        f"'{item.source}' is about the image '{item.image}', which does not exist. Put the "
        "image there.",
    )
    size = shown_size(item.image)
    said = item.size
    if said is not None and whole_size(*said) and (int(said[0]), int(said[1])) != size:
        raise HypvisionError(
            f"'{item.source}' says that its image is {said[1]:.0f} x {said[0]:.0f} pixels, but "
            f"'{item.image}' is {size[1]} x {size[0]} as it is shown. Use the image that was "
            "annotated."
        )
    return size


# Readers of the formats


def _reader_of(file: Path) -> _Reader | None:
    """Return the function that reads an annotation file; None for a file of another kind."""
    if file.suffix.lower() == ".xml":
        ensure(
            read_xml(file).tag == "annotation",
            f"'{file}' is XML, but no annotation of VOC (CVAT's <annotations>, for example). "
            "Export the data as COCO or VOC.",
        )
        return _voc
    if file.suffix.lower() == ".csv":
        head = read_lines(file, "a table")[:1]
        return _table if head and box_columns(re.split(r"[,;\t]", head[0])) else None
    match read_json(file):
        case {"shapes": [*_]}:
            return _labelme
        case [{"annotations": _}, *_] | [{"annotation": _}, *_]:
            return _createml
    return None


def _voc(file: Path, usage: Usage) -> Iterator[Annotated]:
    """Read a VOC file; VOC counts pixels from 1, so 1 is subtracted."""
    root = read_xml(file)
    shapes = []
    for number, item in enumerate(root.findall("object"), start=1):
        where = f"In '{file}', object {number}"
        sides = [item.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
        name = _name(item.findtext("name"), where)
        difficult = as_number(item.findtext("difficult")) == 1
        corners = [as_number(side) - 1 for side in sides]
        shapes.append(Shape(where, name, corners, crowd=difficult))
    height, width = (as_number(root.findtext(f"size/{side}")) for side in ("height", "width"))
    image = _beside(file, str(root.findtext("filename") or ""))
    yield Annotated(image, file, shapes, (height, width))


def _beside(file: Path, name: str) -> Path:
    """Return the image of a VOC file: it has the file's name, or the name in the file, and lies
    beside it or in a folder of images (``JPEGImages``, ``images``)."""
    folders = [file.parent, file.parent.parent / "JPEGImages", file.parent.parent / "images"]
    named = [folder / Path(name.replace("\\", "/")).name for folder in folders if name]
    same = [
        path
        for folder in folders
        for ending in SUFFIXES
        for path in (folder / f"{file.stem}{ending}", folder / f"{file.stem}{ending.upper()}")
    ]
    return next((path for path in [*same, *named] if path.is_file()), [*named, file][0])


def _name(name: Any, where: str) -> str:
    ensure(isinstance(name, str) and name.strip(), f"{where} has no name of a class. Give it one.")
    return name.strip()


def _createml(file: Path, usage: Usage) -> Iterator[Annotated]:
    """Read a CreateML file, which has the centres of boxes in pixels."""
    for number, item in enumerate(read_json(file)):
        place = f"In '{file}', entry {number}"
        item = item if isinstance(item, dict) else {}
        name = item.get("image") or item.get("imagefilename")
        objects = item.get("annotations", item.get("annotation"))
        if not isinstance(name, str) or not isinstance(objects, list):
            raise HypvisionError(f"{place} has no 'image' or no list 'annotations'. Correct it.")
        shapes = [
            _centred(entry, f"{place}, object {count}")
            for count, entry in enumerate(objects, start=1)
        ]
        yield Annotated(file.parent / name, file, shapes)


def _centred(entry: Any, where: str) -> Shape:
    entry = entry if isinstance(entry, dict) else {}
    given = entry.get("coordinates")
    box = given if isinstance(given, dict) else {}
    values: list[Any] = [box.get(key) for key in ("x", "y", "width", "height")]
    ensure(
        all(map(is_number, values)),
        f"{where} has the coordinates {str(given):.100}. Expected: x, y, width and height, in "
        "pixels, where x and y are the centre. Correct it.",
    )
    x, y, width, height = values
    corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    return Shape(where, _name(entry.get("label"), where), corners)


def _table(file: Path, usage: Usage) -> Iterator[Annotated]:
    """Read a table with one box per line: in pixels, as in TensorFlow's and Roboflow's tables, or
    as parts of width and height, as in OpenImages, whose class names stand in another table beside
    it."""
    cells = read_cells(file, _BOX_LINE)
    sides = box_columns(cells.head)
    image = column(cells, None, (*IMAGE_COLUMNS, "ImageID"), file)
    label = column(cells, None, (*LABEL_COLUMNS, "LabelName"), file)
    names = _openimages_names(file) if label == "LabelName" else {}
    lines: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for number, row in cells.rows:
        lines.setdefault(row[image], []).append((f"In '{file}', line {number}", row))
    paths, lost = find_images_of([*lines], file.parent, file)
    ensure(
        len(lost) != len(lines),
        f"None of the {len(lines)} images of '{file}' is beside or below it. Put them there.",
    )
    missing = set(lost)
    for place, (name, rows) in enumerate(lines.items()):
        if place in missing:
            usage.leave_out("images", "missing on disk", name)
            continue
        path = Path(paths[place])
        height, width = shown_size(path) if label == "LabelName" else (1, 1)
        unit = (width, height, width, height)
        shapes = []
        for where, row in rows:
            corners = [as_number(row[side]) * scale for side, scale in zip(sides, unit)]
            text = _name(row[label], where)
            crowd = row.get("IsGroupOf") == "1"
            shapes.append(Shape(where, names.get(text, text), corners, crowd=crowd))
        first = rows[0][1]
        size = (as_number(first.get("height")), as_number(first.get("width")))
        yield Annotated(path, file, shapes, size)


_BOX_LINE = "Expected: a box a line, with xmin, ymin, xmax, ymax and the names of image and class"


def _openimages_names(file: Path) -> dict[str, str]:
    """Return the names of OpenImages' labels, from ``class-descriptions*.csv`` beside the table."""
    tables = sorted(file.parent.glob("*class-descriptions*.csv"))
    lines = [line for table in tables for line in read_lines(table, "a table of names")]
    return dict(row[:2] for row in csv.reader(lines) if len(row) > 1)


def _labelme(file: Path, usage: Usage) -> Iterator[Annotated]:
    """Read a LabelMe file, which has outlines; the outlines with the same group and label are one
    object."""
    content = read_json(file)
    groups: dict[Any, list[Shape]] = {}
    for number, item in enumerate(content["shapes"], start=1):
        where = f"In '{file}', shape {number}"
        item = item if isinstance(item, dict) else {}
        kind = str(item.get("shape_type") or "polygon")
        name = _name(item.get("label"), where)
        if kind not in _OUTLINES:
            usage.leave_out("objects", f"a {kind:.40}, which has no area", where)
            continue
        shape = Shape(where, name, *_OUTLINES[kind](item, _points(item, where), where, content))
        group = item.get("group_id")
        groups.setdefault(number if group is None else (name, str(group)), []).append(shape)
    path = str(content.get("imagePath") or "").replace("\\", "/")
    size = (content.get("imageHeight"), content.get("imageWidth"))
    shapes = [_joined(group) for group in groups.values()]
    yield Annotated(Path(os.path.normpath(file.parent / path)), file, shapes, size)


def _points(item: Plain, where: str) -> np.ndarray:
    points = item.get("points")
    try:
        found = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError):
        found = np.zeros((0, 2))
    least = dict(rectangle=2, circle=2, mask=2).get(str(item.get("shape_type")), 3)
    ensure(
        len(found) >= least and np.isfinite(found).all(),
        f"{where} has the points {str(points):.100}. Expected: {least} or more, [x, y] each. "
        "Correct it.",
    )
    return found


def _around(points: np.ndarray) -> list[float]:
    return [*points.min(axis=0).tolist(), *points.max(axis=0).tolist()]


def _polygon(item: Any, points: np.ndarray, *_: Any) -> tuple[list[float], Any]:
    return _around(points), [points.ravel().tolist()]


def _rectangle(item: Any, points: np.ndarray, *_: Any) -> tuple[list[float], Any]:
    left, top, right, bottom = corners = _around(points)
    return corners, [[left, top, right, top, right, bottom, left, bottom]]


def _circle(item: Any, points: np.ndarray, *_: Any) -> tuple[list[float], Any]:
    """Return box and polygon of a circle, given by its centre and a point on its edge."""
    angles = np.linspace(0, 2 * np.pi, _CIRCLE, endpoint=False)
    edge = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return _polygon(item, points[0] + np.linalg.norm(points[1] - points[0]) * edge)


def _mask(item: Plain, points: np.ndarray, where: str, content: Plain) -> tuple[list[float], Any]:
    """Return box and run lengths of a mask, a PNG in Base64 for a part of the image that begins at
    the first of ``points``."""
    try:
        data = base64.b64decode(item["mask"], validate=True)
        part = read_labels("mask", "mask", "L", data) > 0
        height, width = content["imageHeight"], content["imageWidth"]
        if height * width > MAX_PIXELS:
            raise ValueError(f"the image would have {height * width:,} pixels")
        whole = np.zeros((height, width), dtype=bool)
    except (HypvisionError, KeyError, TypeError, ValueError) as error:
        raise HypvisionError(
            f"{where} has a mask that cannot be read ({error}). Draw it again."
        ) from error
    left, top = (int(side) for side in points[0])
    place = whole[max(top, 0) : top + part.shape[0], max(left, 0) : left + part.shape[1]]
    ensure(
        place.shape == part.shape,
        f"{where} has a mask that reaches beyond its image. Draw it again.",
    )
    place[:] = part
    corners = [float(value) for value in (left, top, left + part.shape[1], top + part.shape[0])]
    return corners, run_length(whole)


_OUTLINES: dict[str, Callable[..., tuple[list[float], Any]]] = {
    "polygon": _polygon,
    "rectangle": _rectangle,
    "circle": _circle,
    "mask": _mask,
}


def _joined(shapes: list[Shape]) -> Shape:
    """Return the outlines of one group as one object."""
    polygons = [shape.segmentation for shape in shapes]
    if len(shapes) == 1:
        return shapes[0]
    if any(isinstance(one, dict) for one in polygons):
        raise HypvisionError(f"{shapes[0].where} is a group with a mask. Give masks no group.")
    corners = np.array([shape.corners for shape in shapes])
    around = [*corners[:, :2].min(axis=0).tolist(), *corners[:, 2:].max(axis=0).tolist()]
    return shapes[0]._replace(corners=around, segmentation=[*sum(polygons, [])])


_NAMES: dict[_Reader, str] = {
    _voc: "VOC",
    _labelme: "LabelMe",
    _createml: "CreateML",
    _table: "tables of boxes",
}
