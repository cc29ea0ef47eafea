"""Lists of images with their labels and class names, read from the benchmark's split files and from
class folders; the official draw of shots, and the base and new halves of the classes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypvision.data.annotations import name_difference
from hypvision.data.classes import check_classes, numbered, whole_label
from hypvision.data.usage import Usage, check_depth, class_images
from hypvision.data.usage import class_names as names_of_folders
from hypvision.io import HypvisionError, StrPath, at_least, ensure, explaining, one_of
from hypvision.io.files import inside, read_json, read_lines, write_json

PARTS = ("train", "val", "test")
SUBSETS = ("all", "base", "new")
_MOST_VAL = 4  # most images of a class that are drawn for validation


class Item(NamedTuple):
    """An image of a data set: its path, its label and the name of its class."""

    path: str
    label: int
    name: str


class Split(NamedTuple):
    """The images of a data set, divided into training, validation and test images."""

    train: list[Item]
    val: list[Item]
    test: list[Item]

    def part(self, name: str) -> list[Item]:
        """Return the images of the part ``"train"``, ``"val"`` or ``"test"``."""
        return getattr(self, name)


def by_label(items: Sequence[Item]) -> dict[int, list[Item]]:
    """Return the images by label; the labels come in the order of their first images."""
    found: dict[int, list[Item]] = {}
    for item in items:
        found.setdefault(item.label, []).append(item)
    return found


def class_names(items: Sequence[Item]) -> list[str]:
    """Return the class names of the images in the order of their labels."""
    names = {item.label: item.name for item in items}
    return [names[label] for label in sorted(names)]


def check_split(split: Split, where: str, remedy: str, shared_names: bool = False) -> Split:
    """Return ``split`` unchanged, after a check that its parts agree on the names of labels
    (:func:`hypvision.data.classes.check_classes`)."""
    check_classes(
        ((item.label, item.name) for part in split for item in part), where, remedy, shared_names
    )
    return split


def check_trained(names: Sequence[str], place: str, trained: Sequence[str], source: str) -> None:
    """Raise an error if a part of the data, read from ``place``, has class names that the training
    images, read from ``source``, lack."""
    lost = [name for name in names if name not in set(trained)]
    if lost:
        raise HypvisionError(
            f"{name_difference(names, place, trained, source)} Without training images of "
            f"'{lost[0]}' it cannot be learned: add some, take the class out of the other parts, "
            "or call it the same in all."
        )


def _item(row: Sequence[Any], images: StrPath) -> Item:
    path = row[0]
    label = whole_label(row[1])
    name = row[2]
    if label is None:
        raise ValueError(f"the label {row[1]!r:.60} of '{path}' is not an integer")
    if not isinstance(name, str):
        raise ValueError(f"the class name {name!r:.60} of '{path}' is not a string")
    return Item(str(Path(images, str(path))), label, name)


def read_split(path: StrPath, images: StrPath, shared_names: bool = False) -> Split:
    """Read a split file: ``{"train": [[path, label, class name], ...], "val": ..., "test": ...}``,
    whose paths start from the folder ``images``. ``shared_names``: two labels may have the same
    name; the code that uses the names then warns of it."""
    path = Path(path)
    expected = (
        'Expected: {"train": [["PATH", LABEL, "CLASS NAME"], ...], "val": [...], "test": [...]}.'
    )
    content = read_json(path, unique=True, advice=expected)
    with explaining(
        lambda error: (
            f"The split file '{path}' is damaged or of another form ({type(error).__name__}: "
            f"{error}). {expected}"
        ),
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
    ):
        parts = {part: [_item(row, images) for row in content.get(part, [])] for part in PARTS}
    check_places(parts.values(), images)
    for part in ("train", "test"):
        if not parts[part]:
            raise HypvisionError(
                f"The split file '{path}' lists no images for '{part}'. Replace it by an intact "
                "copy."
            )
    known = {item.label for item in parts["train"]}
    lost = next((item for item in parts["test"] if item.label not in known), None)
    if lost:
        trained = class_names(parts["train"])
        check_trained(
            class_names(parts["test"]), f"'test' of the split file '{path}'", trained, "its 'train'"
        )
        raise HypvisionError(
            f"The split file '{path}' has no training images of '{lost.name}', the class of "
            f"'{lost.path}'. Add some, or take the class out of 'test'."
        )
    return check_split(
        Split(**parts),
        f"The split file '{path}'",
        "Correct the labels or names in it.",
        shared_names,
    )


def check_places(parts: Iterable[Sequence[Item]], images: StrPath) -> None:
    """Raise an error if an image lies outside of the folder ``images``."""
    inside([item.path for part in parts for item in part], images)


def write_split(path: StrPath, split: Split, images: StrPath) -> None:
    """Write a split to a file that :func:`read_split` can read."""
    rows = {
        part: [
            [Path(item.path).relative_to(images).as_posix(), item.label, item.name]
            for item in split.part(part)
        ]
        for part in PARTS
    }
    write_json(path, rows, indent=None)


def folder_names(sheet: Path, what: str, folders: Sequence[str] = ()) -> dict[str, str]:
    """Return class names by folder, from lines 'FOLDER NAME'. If a tab separates the two, both may
    contain spaces. The names of existing ``folders`` may contain spaces, too; in other lines the
    folder's name ends at the first space."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(sheet, what, blank=True), 1):
        if not line:
            continue
        fits = [folder for folder in folders if line == folder or line.startswith(f"{folder} ")]
        if "\t" in line:
            folder, _, name = line.partition("\t")
        elif len(fits) > 1:
            raise HypvisionError(
                f"'{sheet}', line {number}: '{line}' may be of the folder '{fits[0]}' or "
                f"'{fits[1]}'. Put a tab between folder and name."
            )
        else:
            folder, name = (fits[0], line[len(fits[0]) :]) if fits else line.partition(" ")[::2]
        folder = folder.strip()
        name = name.strip()
        if not name:
            raise HypvisionError(
                f"'{sheet}', line {number}: '{line}' has no name behind the folder. Add one."
            )
        if found.setdefault(folder, name) != name:
            raise HypvisionError(
                f"'{sheet}', line {number}, calls the folder '{folder}' '{name}', an earlier line "
                f"'{found[folder]}'. Remove one of the two."
            )
    return found


def class_folders(
    folder: Path, ignored: Sequence[str] = (), usage: Usage | None = None
) -> dict[str, list[str]]:
    """Return the image paths by class folder, both sorted; an empty folder is an error. ``usage``
    counts the files that are left out."""
    ensure(
        folder.is_dir(),
        f"There is no folder '{folder}'. Expected: one folder a class with its images.",
    )
    usage = usage or Usage(folder)
    names = [name for name in names_of_folders(folder, usage) if name not in ignored]
    found = class_images(folder, names, usage)
    ensure(found, f"The folder '{folder}' has no class folders. Expected: one folder a class.")
    check_depth(folder, names, "Move what is in '{}' up by one folder.")
    return found


def draw_shots(
    split: Split, shots: int, seed: int, val: bool = True, repeat: bool = False
) -> Split:
    """Return a split with ``shots`` images of each class for training and up to 4 for validation,
    drawn as the official code draws them.

    The random generator is seeded with ``seed`` (1, 2, 3); classes come in the order of their first
    image, and one stream of random numbers serves the training and then the validation images
    (unless ``val`` is False, as for ImageNet, whose validation images are the test). A class with
    fewer images gives all that it has or, with ``repeat``, ``shots`` draws with replacement, as in
    Tip-Adapter's code. Test images are all kept.
    """
    at_least(1, integer=True, shots=shots)
    generator = random.Random(seed)
    train = _draw(split.train, shots, generator, repeat)
    return Split(
        train, _draw(split.val, min(shots, _MOST_VAL), generator) if val else split.val, split.test
    )


def _draw(
    items: Sequence[Item], shots: int, generator: random.Random, repeat: bool = False
) -> list[Item]:
    def of_class(own: list[Item]) -> list[Item]:
        if len(own) >= shots:
            return generator.sample(own, shots)
        return generator.choices(own, k=shots) if repeat else own

    return [item for own in by_label(items).values() for item in of_class(own)]


def take_subset(split: Split, subset: str) -> Split:
    """Return the images of the first half of the classes (``"base"``), of the other half
    (``"new"``), or of all classes, with labels renumbered from 0.

    Of the n classes of the training images, ordered by label, the first ``ceil(n / 2)`` are base
    classes.
    """
    one_of(SUBSETS, subset=subset)
    labels = sorted({item.label for item in split.train})
    half = (len(labels) + 1) // 2
    kept = {"all": labels, "base": labels[:half], "new": labels[half:]}[subset]
    ensure(kept, f"A data set of {len(labels)} classes has no '{subset}' classes.")
    place = numbered(kept)
    return Split(
        *(
            [item._replace(label=place[item.label]) for item in part if item.label in place]
            for part in split
        )
    )
