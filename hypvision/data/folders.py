"""Lists of the images in class folders, each file once, with a count of the files and folders that
are left out."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from hypvision.data.usage import Usage
from hypvision.io.checks import whole_number
from hypvision.io.errors import HypvisionError, some
from hypvision.io.files import name_of, on_disk
from hypvision.io.images import is_hidden, why_no_image

_PARTS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key for a name, in which numbers are compared as numbers: ``a2`` before
    ``a10``."""
    numbers = ((whole_number(part), part) for part in re.split(r"(\d+)", name))
    return [(0, part) if number is None else (number, "") for number, part in numbers]


def composed(name: str) -> str:
    """Return a name in Unicode's composed form (NFC), a letter and its accent as one character.
    Macs and their archives write the two as two characters, so that equal names differ."""
    return unicodedata.normalize("NFC", name)


def found_folder(path: str) -> str:
    """Return the path of a folder as the disk spells it, where names match that are equal once
    :func:`composed`; ``path`` itself if there is no such folder."""
    parent, name = os.path.split(path)
    if not name or os.path.isdir(path):
        return path
    parent = found_folder(parent)
    entries = os.listdir(parent or ".") if os.path.isdir(parent or ".") else []
    same = [entry for entry in entries if composed(entry) == composed(name)]
    return os.path.join(parent, same[0]) if same else path


def _place(root: Path, name: str) -> str:
    return found_folder(str(root / on_disk(name)))


def class_names(
    root: Path,
    usage: Usage,
    wanted: Collection[str] | None = None,
    spelled: Collection[str] = (),
) -> list[str]:
    """Return the names of the folders in ``root``, sorted, without hidden folders and, if
    ``wanted`` classes are given, without other classes; ``usage`` counts the folders that are left
    out. Names are :func:`composed`; one that then equals one of ``wanted`` or ``spelled`` is
    returned in that spelling."""
    found = []
    kept = None if wanted is None else set(wanted)
    entries = [(name_of(entry.name), entry) for entry in os.scandir(root)]
    forms = Counter(composed(name) for name, _ in entries)
    # Two folders whose names differ in their form alone stay two.
    own = {name: name for name, count in forms.items() if count == 1}
    own |= {composed(name): name for name in (*spelled, *(wanted or ()))}
    for name, entry in sorted((own.get(composed(name), name), entry) for name, entry in entries):
        is_folder = entry.is_dir()
        reason = _why_no_class(name, is_folder, kept)
        if reason:
            usage.leave_out("folders" if is_folder else "files", reason, name)
        elif is_folder:
            found.append(name)
    return found


def _why_no_class(name: str, is_folder: bool, kept: Collection[str] | None) -> str:
    """Return why an entry beside the class folders is left out and counted; an empty string if it
    is used, or if it is a file other than an image, which is not counted."""
    if kept is not None and name in kept:
        return ""
    if not is_folder:
        return "" if why_no_image(name) else "an image beside the class folders"
    if is_hidden(name):
        return "hidden"
    return "" if kept is None else "none of the classes"


def class_images(root: Path, classes: Sequence[str], usage: Usage) -> dict[str, list[str]]:
    """Return for each class the paths of the images in its folder and below, sorted. No folder is
    read twice, even if links lead to it several times.

    Raises:
        HypvisionError: a class has no images; or the folders of two classes are the same folder, by
            a link.
    """
    places: dict[str, str] = {os.path.realpath(root): ""}
    for name in classes:
        other = places.setdefault(os.path.realpath(_place(root, name)), name)
        if other != name:
            raise HypvisionError(
                f"'{root / name}' is a link to '{root / other}': its images would have two labels. "
                "Remove the link."
            )
    seen = set(places)
    found = {name: _images_below(root, name, seen, usage) for name in classes}
    empty = [name for name in classes if not found[name]]
    if empty:
        raise HypvisionError(
            f"The data folder '{root}' has a class without images: {some(empty, 5)}. Expected: "
            f"files such as '{root}/{empty[0]}/0001.jpg'. Remove empty folders, or check that "
            f"unpacking has finished. {usage if usage.left_out() else ''}"
        )
    return found


def _images_below(root: Path, name: str, seen: set[str], usage: Usage) -> list[str]:
    found: list[tuple[str, list[str]]] = []

    def taken(kind: str, reason: str, path: str) -> bool:
        if reason:
            usage.leave_out(kind, reason, os.path.relpath(path, root))
        return not reason

    for folder, inner, files in os.walk(_place(root, name), followlinks=True):
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
    """Names of the files that exist, for many questions. Each folder is listed once, since asking
    the disk for every file takes long on a network disk."""

    def __init__(self) -> None:
        # From the path of a folder as callers spell it to its path as the disk spells it, and to a
        # table of its files: from a name (as written or composed) to the name on the disk.
        self._files: dict[str, tuple[str, dict[str, str]]] = {}

    def find(self, path: str) -> str | None:
        """Return the path of a file as the disk spells it, where names match that are equal once
        :func:`composed`; None if there is no such file."""
        folder, name = os.path.split(path)
        if folder not in self._files:
            place = found_folder(folder)
            entries = os.scandir(place or ".") if os.path.isdir(place or ".") else ()
            names = [entry.name for entry in entries if entry.is_file()]
            same = {composed(each): each for each in names}
            self._files[folder] = (place, same | {each: each for each in names})
        place, files = self._files[folder]
        found = files.get(name) or files.get(composed(name))
        return None if found is None else os.path.join(place, found)

    def find_all(self, paths: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the paths as the disk spells them, and those of them at which there is no file."""
        pairs = [(path, self.find(path)) for path in paths]
        missing = [path for path, there in pairs if there is None]
        return [there or path for path, there in pairs], missing

    def __contains__(self, path: str) -> bool:
        return self.find(path) is not None


def check_depth(
    root: Path,
    classes: Sequence[str],
    remedy: str = "Give '{}' as root, or correct data_root; if they really are the classes, name "
    "them: classes=(...).",
) -> None:
    """Raise an error if ``root`` seems to be the folder above or below the one that holds the class
    folders; in the text ``remedy``, ``{}`` stands for the folder one level deeper.

    Raises:
        HypvisionError: no class folder has images of its own, only folders, and there is one class,
            or all classes have names of parts of a data set such as "train" and "val".
    """
    usual = len(classes) > 1 and not {name.lower() for name in classes} <= _PARTS
    if usual or not all(_only_folders(_place(root, name)) for name in classes):
        return
    holds = "one class {}, which holds" if len(classes) == 1 else "the classes {}, which hold"
    raise HypvisionError(
        f"The data folder '{root}' has {holds.format(' and '.join(map(repr, classes)))} folders "
        "and no images: the classes seem to lie one folder deeper. "
        f"{remedy.format(root / classes[0])}"
    )


def _only_folders(folder: str) -> bool:
    """Return whether ``folder`` contains folders and no images, hidden entries aside."""
    entries = [entry for entry in os.scandir(folder) if not is_hidden(entry.name)]
    images = any(entry.is_file() and why_no_image(entry.name) is None for entry in entries)
    return not images and any(entry.is_dir() for entry in entries)
