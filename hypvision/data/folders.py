"""The images in class folders, each file once, with a count of what is left out."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from hypvision.data.usage import Usage
from hypvision.io.errors import HypvisionError
from hypvision.io.files import name_of, on_disk
from hypvision.io.images import is_hidden, why_no_image

_PARTS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts the numbers in names as numbers: 2 before 10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def class_names(root: Path, usage: Usage, wanted: Collection[str] | None = None) -> list[str]:
    """The folders in ``root``, sorted, without hidden folders and, if ``wanted`` classes are given,
    without other classes; ``usage`` counts the folders that are left out."""
    found = []
    kept = None if wanted is None else set(wanted)
    for name, entry in sorted((name_of(entry.name), entry) for entry in os.scandir(root)):
        is_folder = entry.is_dir()
        reason = _why_no_class(name, is_folder, kept)
        if reason:
            usage.leave_out("folders" if is_folder else "files", reason, name)
        elif is_folder:
            found.append(name)
    return found


def _why_no_class(name: str, is_folder: bool, kept: Collection[str] | None) -> str:
    """The reason why an entry is left out; empty: it is used, or no image."""
    if kept is not None and name in kept:
        return ""
    if not is_folder:
        return "" if why_no_image(name) else "an image beside the class folders"
    if is_hidden(name):
        return "hidden"
    return "" if kept is None else "none of the classes"


def class_images(root: Path, classes: Sequence[str], usage: Usage) -> dict[str, list[str]]:
    """The images in the folder of each class and below it, sorted; no folder is read twice,
    whatever links there are.

    Raises:
        HypvisionError: two classes are the same folder, by a link.
    """
    places: dict[str, str] = {os.path.realpath(root): ""}
    for name in classes:
        other = places.setdefault(os.path.realpath(root / on_disk(name)), name)
        if other != name:
            raise HypvisionError(
                f"'{root / name}' is a link to '{root / other}': its images would have two labels. "
                "Remove the link."
            )
    seen = set(places)
    return {name: _images_below(root, name, seen, usage) for name in classes}


def _images_below(root: Path, name: str, seen: set[str], usage: Usage) -> list[str]:
    found: list[tuple[str, list[str]]] = []

    def taken(kind: str, reason: str, path: str) -> bool:
        if reason:
            usage.leave_out(kind, reason, os.path.relpath(path, root))
        return not reason

    for folder, inner, files in os.walk(root / on_disk(name), followlinks=True):
        paths = [os.path.join(folder, file) for file in sorted(files)]
        found.append((folder, [path for path in paths if taken("files", _no_image(path), path)]))
        below = [(sub, os.path.join(folder, sub)) for sub in inner]
        inner[:] = [sub for sub, path in below if taken("folders", _no_folder(path, seen), path)]
    return [path for _, files in sorted(found) for path in files]


def _no_image(path: str) -> str:
    lost = os.path.islink(path) and not os.path.exists(path)
    return why_no_image(os.path.basename(path)) or ("link to nothing" if lost else "")


def _no_folder(path: str, seen: set[str]) -> str:
    place = os.path.realpath(path)
    if is_hidden(os.path.basename(path)):
        return "hidden"
    if place in seen:
        return "link to a folder that is read already"
    seen.add(place)
    return ""


class Listing:
    """Which files exist. Each folder is listed once, since a look for every file takes long on a
    network disk."""

    def __init__(self) -> None:
        self._files: dict[str, set[str]] = {}

    def __contains__(self, path: str) -> bool:
        folder, name = os.path.split(path)
        if folder not in self._files:
            entries = os.scandir(folder or ".") if os.path.isdir(folder or ".") else ()
            self._files[folder] = {entry.name for entry in entries if entry.is_file()}
        return name in self._files[folder]


def check_depth(
    root: Path,
    classes: Sequence[str],
    remedy: str = "Give '{}' as root, or correct data_root; if they really are the classes, name "
    "them: classes=(...).",
) -> None:
    """Raise an error for a root that lies one folder above or below that of the classes; in the
    ``remedy``, ``{}`` stands for the folder one level deeper.

    Raises:
        HypvisionError: the only class folder contains nothing but folders, or all classes have
            names of parts such as "train" and "val".
    """
    usual = len(classes) > 1 and not {name.lower() for name in classes} <= _PARTS
    if usual or not all(_only_folders(root / on_disk(name)) for name in classes):
        return
    holds = "one class {}, which holds" if len(classes) == 1 else "the classes {}, which hold"
    raise HypvisionError(
        f"The data folder '{root}' has {holds.format(' and '.join(map(repr, classes)))} folders "
        "and no images: the classes seem to lie one folder deeper. "
        f"{remedy.format(root / classes[0])}"
    )


def _only_folders(folder: Path) -> bool:
    """Whether a folder has folders and no images."""
    entries = [entry for entry in os.scandir(folder) if not is_hidden(entry.name)]
    images = any(entry.is_file() and why_no_image(entry.name) is None for entry in entries)
    return not images and any(entry.is_dir() for entry in entries)
