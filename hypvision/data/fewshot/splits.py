"""Lists of images with their labels and class names: the split files of the benchmark, and folders of classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hypvision.errors import HypvisionError
from hypvision.files import read_json, write_json
from hypvision.images import SUFFIXES

__all__ = [
    "Item",
    "Split",
    "class_folders",
    "class_names",
    "read_split",
    "write_split",
]

PARTS = ("train", "val", "test")


class Item(NamedTuple):
    """An image: its path, its label and the name of its class."""

    path: str
    label: int
    name: str


class Split(NamedTuple):
    """The images of a data set, by part."""

    train: list[Item]
    val: list[Item]
    test: list[Item]

    def part(self, name: str) -> list[Item]:
        """Of ``"train"``, ``"val"`` or ``"test"``."""
        return getattr(self, name)


def class_names(items: Sequence[Item]) -> list[str]:
    """Class names in the order of their labels."""
    names = {item.label: item.name for item in items}
    return [names[label] for label in sorted(names)]


def read_split(path: str | Path, images: str | Path) -> Split:
    """A split file: ``{"train": [[path, label, class name], ...], "val": ..., "test": ...}``.

    Args:
        path: the file.
        images: the folder that its paths start from.

    Raises:
        HypvisionError: the file is missing, no such file, or has a part without images.
    """
    path = Path(path)
    try:
        content = read_json(path)
        parts = {
            part: [Item(str(Path(images, str(row[0]))), int(row[1]), str(row[2])) for row in content.get(part, [])]
            for part in PARTS
        }
    except OSError as error:
        raise HypvisionError(f"The split file '{path}' cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise HypvisionError(
            f"The split file '{path}' is damaged or of another form ({type(error).__name__}: {error}). Expected: "
            '{"train": [["PATH", LABEL, "CLASS NAME"], ...], "val": [...], "test": [...]}.'
        ) from error
    for part in ("train", "test"):
        if not parts[part]:
            raise HypvisionError(f"The split file '{path}' lists no images for '{part}'. Replace it by an intact copy.")
    known = {item.label for item in parts["train"]}
    if lost := next((item for item in parts["test"] if item.label not in known), None):
        raise HypvisionError(
            f"The split file '{path}' has no training images of '{lost.name}', the class of '{lost.path}'. Add "
            "some, or take the class out of the test."
        )
    return Split(**parts)


def write_split(path: str | Path, split: Split, images: str | Path) -> None:
    """Write a split in the form of :func:`read_split`."""
    rows = {
        part: [[Path(item.path).relative_to(images).as_posix(), item.label, item.name] for item in split.part(part)]
        for part in PARTS
    }
    write_json(path, rows, indent=None)


def class_folders(folder: Path, ignored: Sequence[str] = ()) -> dict[str, list[str]]:
    """The images of each sub-folder, both sorted.

    Raises:
        HypvisionError: there is no such folder, no sub-folder, or one without images.
    """
    if not folder.is_dir():
        raise HypvisionError(f"There is no folder '{folder}'. Expected: one folder a class with its images.")
    found = {}
    for entry in sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in ignored):
        found[entry.name] = sorted(str(path) for path in entry.iterdir() if path.suffix.lower() in SUFFIXES)
        if not found[entry.name]:
            raise HypvisionError(f"The class folder '{entry}' has no images. Add some, or remove the folder.")
    if not found:
        raise HypvisionError(f"The folder '{folder}' has no class folders. Expected: one folder a class.")
    return found
