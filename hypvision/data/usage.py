"""What a data set takes of the files on the disk: class folders and lists of files, each file once;
the value of white in images of 16 bits, in which cameras and microscopes often store only 10 or 12
bits; and counts of the files that are used and of those that are left out, with the reasons.

Every data set keeps these counts in its attribute ``usage``, a :class:`Usage`; a run logs them as a
sentence, with the notes, before the first batch, and ``hypvision check`` prints the same.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypvision.io import HypvisionError, StrPath, ensure, some, whole_number
from hypvision.io.files import name_of, on_disk
from hypvision.io.images import (
    WHITE,
    image_kind,
    is_deep_colour,
    is_hidden,
    leaving_out,
    open_image,
    read_labels,
    why_no_image,
)


class Usage:
    """Counts of the items (images, boxes, ...) that a data set uses and that it leaves out of
    ``place``, the folder or file that it reads; ``notes`` are further sentences for the user."""

    EXAMPLES = 3  # names of items that are given as examples of each reason to leave items out

    def __init__(self, place: StrPath):
        self.place = str(place)
        self.used: Counter[str] = Counter()
        self.notes: list[str] = []
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], list[str]] = {}

    def use(self, kind: str, count: int = 1) -> None:
        """Add ``count`` used items; ``kind`` is their plural: ``"images"``, ``"boxes"``,
        ``"masks"``, ``"files"``."""
        self.used[kind] += count

    def leave_out(self, kind: str, reason: str, name: StrPath, count: int = 1) -> None:
        """Add ``count`` items that are left out for a reason, e.g. ``leave_out("boxes", "outside
        the image", "a.jpg, annotation 3")``; an item whose ``name`` is empty is counted but not
        named as an example, and nothing is added for a ``count`` of 0."""
        if not count:
            return
        self._left_out[kind, reason] += count
        examples = self._examples.setdefault((kind, reason), [])
        if str(name) and len(examples) < self.EXAMPLES:
            examples.append(str(name))

    def add(self, other: Usage) -> None:
        """Add the counts and notes of ``other``, of another folder or file of the same data set."""
        self.used.update(other.used)
        self.notes += other.notes
        self._left_out.update(other._left_out)
        for key, names in other._examples.items():
            self._examples[key] = (self._examples.get(key, []) + names)[: self.EXAMPLES]

    def left_out(self, kind: str | None = None) -> int:
        """Return the number of items that are left out, of one ``kind`` or (None) of all kinds."""
        return sum(count for (of, _), count in self._left_out.items() if kind in (None, of))

    def rows(self) -> list[tuple[str, int, str, str]]:
        """Return rows of (kind, number, reason, examples); the used items, with the reason "used",
        come before those that are left out."""
        found = [(kind, count, "used", "") for kind, count in self.used.items()]
        for (kind, reason), count in self._left_out.items():
            names = self._examples[kind, reason]
            more = ", ..." if names and count > self.EXAMPLES else ""
            found.append((kind, count, reason, ", ".join(names) + more))
        return found

    def __str__(self) -> str:
        """Return the counts as a sentence, e.g. ``'photos/train': used 96 of 98 images. Left out: 2
        images (suffix .xcf: a.xcf, b.xcf).``"""
        # Folders are counted only where they are left out.
        others = (kind for kind, _ in self._left_out if kind != "folders")
        kinds = dict.fromkeys([*self.used, *others])
        parts = [
            f"{self.used[kind]} of {self.used[kind] + self.left_out(kind)} {kind}" for kind in kinds
        ]
        text = f"'{self.place}': used {', '.join(parts) or 'nothing'}."
        return f"{text} {self.reasons()}".rstrip()

    def reasons(self) -> str:
        """Return a sentence with what is left out and why; the empty string if nothing is."""
        reasons = [
            f"{n} {kind} ({reason}{': ' * bool(names)}{names})"
            for kind, n, reason, names in self.rows()
            if reason != "used"
        ]
        return f"Left out: {'; '.join(reasons)}." if reasons else ""


def classes_of(dataset: Any) -> tuple[str, ...]:
    """Return the names of a data set's classes; () if it has none."""
    return tuple((getattr(dataset, "metainfo", None) or {}).get("classes") or ())


def leaves(dataset: Any, kind: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield ``dataset`` if ``kind`` is true of it, else the data sets inside it of which ``kind``
    is true, through wrappers such as RepeatDataset, ConcatDataset and Subset."""
    if kind(dataset):
        yield dataset
        return
    for inner in getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]:
        if inner is not None and inner is not dataset:
            yield from leaves(inner, kind)


def usages(dataset: Any) -> Iterator[Usage]:
    """Yield the :class:`Usage` of a data set, or of each data set inside its wrappers."""
    return (
        leaf.usage
        for leaf in leaves(dataset, lambda inner: isinstance(getattr(inner, "usage", None), Usage))
    )


PARTS = dict(
    train=("train", "training"),
    val=("val", "valid", "validation", "dev"),
    test=("test", "testing"),
)
"""The parts of a data set, each with the names that folders and files call it by, in letters of any
size."""


def part_of(name: str) -> str | None:
    """Return the part of a data set that a name stands for, ``"val"`` for ``"Valid"``; None if it
    stands for none."""
    return next((part for part, names in PARTS.items() if name.lower() in names), None)


def entries_of(folder: Path) -> dict[str, Path]:
    """Return what lies in a folder by its name in small letters; of names that differ by the size
    of letters alone, the one that has small letters."""
    entries = sorted(folder.iterdir()) if folder.is_dir() else []  # capitals come first
    return {path.name.lower(): path for path in entries}


def similar_names(names: Sequence[str]) -> list[str]:
    """Return a note about names of classes that differ by the size of letters, or by spaces, alone;
    an empty list if there are none."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(" ".join(name.split()).casefold(), name), name) for name in names]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    more = f" ({len(pairs)} such pairs)" if len(pairs) > 1 else ""
    return [
        f"The classes '{one}' and '{other}'{more} differ by the size of letters or by spaces "
        "alone, and count as two. If they are one, give it one name."
        for one, other in pairs[:1]
    ]


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
    for name, is_folder in _entries(root, (*spelled, *(wanted or ()))):
        reason = _why_no_class(name, is_folder, kept)
        if reason:
            usage.leave_out("folders" if is_folder else "files", reason, name)
        elif is_folder:
            found.append(name)
    return found


def _entries(root: Path, known: Collection[str]) -> list[tuple[str, bool]]:
    """Return the names in a folder, sorted, and whether each is a folder. A name has the spelling
    of the known one that it equals once :func:`composed`, or else its composed form."""
    entries = [(name_of(entry.name), entry.is_dir()) for entry in os.scandir(root)]
    forms = Counter(composed(name) for name, _ in entries)
    # Two folders whose names differ in their form alone stay two.
    own = {form: form for form, count in forms.items() if count == 1}
    own |= {composed(name): name for name in known}
    return sorted((own.get(composed(name), name), is_folder) for name, is_folder in entries)


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
            f"unpacking has finished. {usage.reasons()}".rstrip()
        )
    _tell_nested(root, found, usage)
    return found


def _tell_nested(root: Path, found: dict[str, list[str]], usage: Usage) -> None:
    """Note that all images of some classes lie in several folders inside the class folder, which
    may have been meant as classes."""
    nested: dict[str, list[str]] = {}
    for name, paths in found.items():
        place = _place(root, name)
        if os.path.dirname(paths[0]) != place:  # an image of the class folder itself comes first
            inner = {path[len(place) + 1 :].split(os.sep, 1)[0] for path in paths}
            nested |= {name: sorted(inner)} if len(inner) > 1 else {}
    for name, below in list(nested.items())[:1]:
        others = f" (and those of {len(nested) - 1} others alike)" if len(nested) > 1 else ""
        usage.notes.append(
            f"The images of the class '{name}' lie in the folders {some(below, 3)}, which are not "
            f"classes here: all of them are '{name}'{others}. If they are classes, move them up "
            f"into '{root}'."
        )


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
    usual = len(classes) > 1 and not all(map(part_of, classes))
    if usual or not all(_only_folders(_place(root, name)) for name in classes):
        return
    holds = "one class {}, which holds" if len(classes) == 1 else "the classes {}, which hold"
    # A test must not be trained on.
    deeper = next((name for name in classes if part_of(name) == "train"), classes[0])
    raise HypvisionError(
        f"The data folder '{root}' has {holds.format(' and '.join(map(repr, classes)))} folders "
        "and no images: the classes seem to lie one folder deeper. "
        f"{remedy.format(root / deeper)}"
    )


def _only_folders(folder: str) -> bool:
    """Return whether ``folder`` contains folders and no images, hidden entries aside."""
    entries = [entry for entry in os.scandir(folder) if not is_hidden(entry.name)]
    images = any(entry.is_file() and why_no_image(entry.name) is None for entry in entries)
    return not images and any(entry.is_dir() for entry in entries)


_BITS = (8, 10, 12, 14, 16)
_DEEP = (".png", ".tif", ".tiff", ".pgm")  # suffixes of formats that can have 16 bits
_PROBED = 20  # number of images that are probed if the user gives no value of white


def check_white(white: int | str | None) -> None:
    """Raise an error if ``white`` is neither None, nor ``"auto"``, nor a value that 16 bits can
    hold."""
    number = isinstance(white, int) and not isinstance(white, bool) and 0 < white <= WHITE
    ensure(
        white in (None, "auto") or number,
        f"white must be 'auto' or the value of white in images of 16 bits, from 1 to {WHITE} "
        f"(4095 of 12 bits), got {white!r}.",
    )


def find_white(paths: Sequence[StrPath], white: int | str | None, usage: Usage) -> int:
    """Return the value that means white in a data set's images of 16 bits.

    Args:
        paths: the paths of the images.
        white: the value itself; ``"auto"``: the largest value of as many bits (8, 10, 12, 14 or 16)
            as the largest value in all images needs; None: 65535, with a note for the user if the
            values of about 20 probed images fit into fewer bits.
        usage: the counts whose ``notes`` get the note.
    """
    check_white(white)
    deep = [path for path in paths if Path(path).suffix.lower() in _DEEP]
    _tell_dark_colours(deep[:: max(1, len(deep) // _PROBED)], usage)
    if isinstance(white, int):
        return white
    if white is None:
        deep = deep[:: max(1, len(deep) // _PROBED)]
    largest = 0
    for path in deep:
        with leaving_out(path, []):  # a damaged image is reported when the data set reads it
            if image_kind(path)[1].startswith("I"):
                largest = max(largest, int(read_labels(path).max(initial=0)))
    if not largest:
        return WHITE
    bits = next((bits for bits in _BITS if largest < 2**bits), _BITS[-1])
    if white == "auto":
        usage.notes.append(
            f"Images of 16 bits: the largest value is {largest}, so {2**bits - 1} ({bits} bits) is "
            "white."
        )
        return 2**bits - 1
    if bits < _BITS[-1]:
        usage.notes.append(
            f"Images of 16 bits: the largest value in those probed is {largest}, of {WHITE}, so "
            f"they are nearly black here. If they have {bits} bits, set white={2**bits - 1} (or "
            "'auto') in the data set; for boxes and label maps, in LoadImageFromFile; for predict, "
            "--white."
        )
    return WHITE


def _tell_dark_colours(paths: Sequence[StrPath], usage: Usage) -> None:
    """Note that images of 16 bits a colour are nearly black: Pillow reads their upper 8 bits alone,
    and no value of white changes that."""
    largest = 0
    for path in paths:
        with leaving_out(path, []):
            if is_deep_colour(path):
                largest = max(largest, int(np.asarray(open_image(path)).max()))
    if 0 < largest < 64:
        usage.notes.append(
            "Colour images of 16 bits: only the upper 8 bits are read, and their largest value in "
            f"those probed is {largest}, so they are nearly black here. Save them with 8 bits."
        )
