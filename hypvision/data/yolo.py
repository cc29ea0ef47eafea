"""Read data sets in the layout of YOLO: a ``data.yaml``, and for each image a text file of its
objects.

``data.yaml`` has ``names`` (a list, or numbers and names), optionally ``nc`` and ``path``, and for
each part (``train``, ``val`` or ``valid``, ``test``) a folder, a list file, or a list of these. The
labels of ``images/a.jpg`` are ``labels/a.txt``; if no folder is called ``images``, they lie beside
the image. A line is ``class x y width height`` (the centre of a box) or ``class x1 y1 x2 y2 x3 y3
...`` (the outline of an object), all as shares of the image.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hypvision.checkpoints.index import NoAliases
from hypvision.io import (
    HypvisionError,
    Names,
    Plain,
    StrPath,
    ensure,
    explaining,
    one_line,
    whole_number,
)
from hypvision.io.files import inside, read_lines, read_text
from hypvision.io.images import images_in, is_image, shown_size

from .usage import PARTS, Usage

_BEYOND = 1e-3  # how far rounding may put a point outside its image, as a share of the image
_LARGEST = 2**21  # limit in bytes for a data.yaml, which allows a hundred thousand names
_SHOWN = 5  # number of faults in a message


class YoloData(NamedTuple):
    """The content of a ``data.yaml``: its path, the names of the classes in the order of their
    numbers, the images of each part, and the shape of the key points (empty without)."""

    path: Path
    names: Names
    images: dict[str, list[Path]]
    points: tuple[int, ...] = ()


class _Loader(NoAliases, yaml.BaseLoader):
    """A YAML loader that gives all values as text, since a class may be called "no"."""


def find_yaml(folder: Path) -> Path | None:
    """Return the ``data.yaml`` of a folder, whatever its name is; None if the folder has none."""
    found = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    found.sort(key=lambda path: path.stem != "data")
    return next((path for path in found if _is_yolo(path)), None)


def _is_yolo(path: Path) -> bool:
    try:
        content = _read_yaml(path)
    except HypvisionError:
        return False
    return "names" in content and "train" in content


def _read_yaml(path: Path) -> Plain:
    """Return the content of the file, with all values as text."""
    with explaining(
        lambda error: f"'{path}' cannot be read as YAML: {one_line(error)}. Correct it.",
        OSError,
        ValueError,
        yaml.YAMLError,
        RecursionError,
    ):
        content = yaml.load(read_text(path, _LARGEST), _Loader)
    return content if isinstance(content, dict) else {}


def read_yolo(path: StrPath, only: str | None = None) -> YoloData:
    """Read a ``data.yaml`` and list the images of its parts, or only of the part ``only``.

    Raises:
        HypvisionError: the file cannot be read; its classes are not numbered from 0 on, or their
            number is not ``nc``; or a folder or an image that it names does not exist.
    """
    path = Path(path).expanduser()
    content = _read_yaml(path)
    names = _names(content, path)
    images = {}
    for part, keys in PARTS.items():
        places = next((content[key] for key in keys if content.get(key)), None)
        if places is not None and only in (None, part):
            images[part] = _images(places, content, path)
    ensure(
        images,
        f"'{path}' names no {only or 'train'} data. Expected: '{only or 'train'}: images/...', "
        "a folder, a list file, or a list of these.",
    )
    for files in images.values():
        inside(files, path.parent)
    return YoloData(path, names, images, _points(content, path))


def _points(content: Plain, path: Path) -> tuple[int, ...]:
    """Return the number of key points and of the numbers for each; empty if there are no key
    points."""
    shape = content.get("kpt_shape") or []
    numbers = [whole_number(str(number)) for number in shape] if isinstance(shape, list) else [None]
    found = tuple(number for number in numbers if number is not None and number < 1000)
    if len(found) != len(numbers):
        raise HypvisionError(
            f"'{path}' has kpt_shape: {str(shape):.100}. Expected: two whole numbers. Correct it."
        )
    return found


def _names(content: Plain, path: Path) -> Names:
    names = content.get("names")
    if isinstance(names, dict):
        numbers = [str(number) for number in range(len(names))]
        if set(names) != set(numbers):
            raise HypvisionError(
                f"'{path}' numbers its names {', '.join(list(names)[:20])}. Expected: 0 to "
                f"{len(names) - 1}, each once."
            )
        names = [names[number] for number in numbers]
    if not isinstance(names, list) or not names or not all(isinstance(x, str) for x in names):
        raise HypvisionError(
            f"'{path}' has no names of classes. Expected: names: [cat, dog], or numbers and names."
        )
    if content.get("nc", str(len(names))) != str(len(names)):
        raise HypvisionError(
            f"'{path}' has nc: {content['nc']}, but {len(names)} names. Correct nc or the names."
        )
    return tuple(names)


def _images(places: Any, content: Plain, path: Path) -> list[Path]:
    """Return the images of a part, each once."""
    root = path.parent / os.path.expanduser(str(content.get("path") or "").replace("\\", "/"))
    # The path may come from another machine, or start from a common folder of data sets.
    if not root.is_dir():
        root = path.parent
    found: dict[Path, None] = {}
    for place in places if isinstance(places, list) else [places]:
        found.update(dict.fromkeys(_images_of(root, str(place).replace("\\", "/"), path)))
    return list(found)


def _images_of(root: Path, name: str, path: Path) -> list[Path]:
    place = root / name
    # Roboflow writes one "../" too many.
    if not place.exists() and name.startswith("../"):
        place = root / name[3:]
    inside([place], path.parent)
    if place.is_dir():
        return [Path(os.path.normpath(image)) for image in images_in(place)]
    ensure(
        place.is_file(),
        f"'{path}' names '{name}', but there is no '{place}'. Correct 'path' or the name in "
        "the file; paths are relative to 'path', or to the file's folder without it.",
    )
    return list(_listed(place, root))


def _listed(place: Path, root: Path) -> Iterator[Path]:
    """Yield the images of a list file, whose paths start from its folder or from that of the
    data."""
    for number, line in enumerate(read_lines(place, "a list of images", blank=True), start=1):
        if not line:
            continue
        image = next((base / line for base in (place.parent, root) if is_image(base / line)), None)
        if image is None:
            raise HypvisionError(
                f"'{place}', line {number}, names '{line}', which is no image below "
                f"'{place.parent}' or '{root}'. Correct the line."
            )
        yield Path(os.path.normpath(image))


def label_file(image: Path) -> Path:
    """Return the path of the file with an image's objects."""
    parts = list(image.parts)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] == "images":
            parts[place] = "labels"
            break
    return Path(*parts).with_suffix(".txt")


def outlined(data: YoloData) -> bool:
    """Return whether all objects of all parts have outlines, judged by the number of values in
    their lines."""
    files = [label_file(image) for images in data.images.values() for image in images]
    lines = [
        line
        for file in files
        if file.is_file()
        for line in read_lines(file, "the labels of an image")
    ]
    return bool(lines) and not data.points and all(len(line.split()) > 6 for line in lines)


class _Shape(NamedTuple):
    """An object: its class, its corners (left, top, right, bottom) and its outline, all as shares
    of the image; the outline is empty for a box."""

    label: int
    corners: tuple[float, float, float, float]
    outline: tuple[float, ...] = ()


def _values(line: str) -> list[float]:
    try:
        return [float(word) for word in line.split()]
    except ValueError:
        return [math.nan]


def _line_fault(values: list[float], data: YoloData) -> str:
    """Return what is wrong with the values of a line; an empty text if nothing is."""
    if not all(map(math.isfinite, values)):
        return "is not numbers alone"
    label, *shares = values
    if label != int(label) or not 0 <= label < len(data.names):
        return f"has the class {label:g}; the classes are 0 to {len(data.names) - 1}"
    fault = _count_fault(len(shares), data)
    if fault:
        return f"has {len(values)} numbers{fault}"
    shares = shares[:4] if data.points else shares
    wrong = [share for share in shares if not -_BEYOND <= share <= 1 + _BEYOND]
    if wrong:
        return f"has the coordinate {wrong[0]:g}; expected are shares of the image, 0 to 1"
    return ""


def _count_fault(count: int, data: YoloData) -> str:
    """Return what is wrong with this number of coordinates; an empty text if nothing is."""
    if data.points:
        wanted = 4 + math.prod(data.points)
        return "" if count == wanted else f"; with kpt_shape expected are {wanted + 1}"
    if count == 4 or (count >= 6 and count % 2 == 0):
        return ""
    return ". Expected: class x y width height, or a class and x y of three points or more"


def _shape(values: list[float], data: YoloData) -> _Shape:
    label, *shares = values
    if len(shares) == 4 or data.points:
        x, y, width, height = shares[:4]
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return _Shape(int(label), corners)
    outline = tuple(min(max(share, 0.0), 1.0) for share in shares)
    across, down = outline[0::2], outline[1::2]
    return _Shape(int(label), (min(across), min(down), max(across), max(down)), outline)


def _shapes(file: Path, data: YoloData, usage: Usage, faults: list[str]) -> Iterator[_Shape]:
    """Yield the objects in a file of labels; a repeated line counts once, as in YOLO's own code."""
    seen = set()
    for number, line in enumerate(read_lines(file, "the labels of an image", blank=True), start=1):
        if not line:
            continue
        if line in seen:
            usage.leave_out("boxes", "the same line again", f"{file.name}, line {number}")
            continue
        seen.add(line)
        values = _values(line)
        fault = _line_fault(values, data)
        if fault:
            faults.append(f"'{file}', line {number}, {fault}.")
        else:
            yield _shape(values, data)


def yolo_as_coco(data: YoloData, part: str, usage: Usage | None = None) -> Plain:
    """Return a part as the content of an annotation file in COCO's format: images by their absolute
    paths, boxes, and polygons in pixels if all objects have outlines. An image without a file of
    labels has no objects.

    Args:
        data: the result of :func:`read_yolo`.
        part: name of the part: ``train``, ``val`` or ``test``.
        usage: counts the lines that are left out.

    Raises:
        HypvisionError: lines of the files of labels are wrong; the message names the first ones.
    """
    usage = usage or Usage(data.path)
    images: list[Plain] = []
    annotations: list[Plain] = []
    faults: list[str] = []
    unlabelled = 0
    for number, path in enumerate(data.images[part], start=1):
        height, width = shown_size(path)
        name = os.path.abspath(path)
        images.append(dict(id=number, file_name=name, height=height, width=width))
        file = label_file(path)
        if not file.is_file():
            unlabelled += 1
            continue
        for shape in _shapes(file, data, usage, faults):
            object_id = len(annotations) + 1
            annotations.append(
                dict(id=object_id, image_id=number, **_in_pixels(shape, height, width))
            )
    if faults:
        more = f" There are {len(faults)} such lines." if len(faults) > _SHOWN else ""
        raise HypvisionError(f"{' '.join(faults[:_SHOWN])}{more} Correct them.")
    _tell(data, part, usage, annotations, unlabelled)
    categories = [dict(id=number, name=name) for number, name in enumerate(data.names)]
    return dict(images=images, annotations=annotations, categories=categories)


def _in_pixels(shape: _Shape, height: int, width: int) -> Plain:
    left, top, right, bottom = (min(max(share, 0.0), 1.0) for share in shape.corners)
    box = [left * width, top * height, (right - left) * width, (bottom - top) * height]
    outline = [
        share * (height if place % 2 else width) for place, share in enumerate(shape.outline)
    ]
    area = box[2] * box[3]
    if outline:
        area = polygon_area(outline)
    rounded = [[round(value, 3) for value in outline]] if outline else []
    return dict(
        category_id=shape.label, bbox=[round(side, 3) for side in box], area=round(area, 3),
        iscrowd=0, segmentation=rounded,
    )  # fmt: skip


def polygon_area(outline: list[float]) -> float:
    """Return the area of a polygon by the shoelace formula."""
    across, down = outline[0::2], outline[1::2]
    turned = zip(across, down, [*across[1:], across[0]], [*down[1:], down[0]])
    return abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in turned)) / 2


def _tell(
    data: YoloData, part: str, usage: Usage, annotations: list[Plain], unlabelled: int
) -> None:
    """Add notes on what a user may not expect, and remove the outlines if only some objects have
    them."""
    outlined = sum(bool(item["segmentation"]) for item in annotations)
    if unlabelled:
        usage.notes.append(
            f"{unlabelled} of {len(data.images[part])} images of '{part}' in '{data.path}' have no "
            "file of labels: these images count as background."
        )
    if data.points:
        usage.notes.append(f"'{data.path}' has key points (kpt_shape): only the boxes are used.")
    if 0 < outlined < len(annotations):
        usage.notes.append(
            f"'{data.path}', {part}: {outlined} objects have outlines and "
            f"{len(annotations) - outlined} are boxes: all objects count as boxes."
        )
    if outlined < len(annotations):
        for item in annotations:
            del item["segmentation"]
