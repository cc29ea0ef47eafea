"""Folder layouts of the few-shot benchmark's data sets, with readers of their images, labels and
class names.

The layout is CoOp's: a root folder with a folder for each data set. Most data sets have a split
file (``split_zhou_NAME.json``); if it is missing, a split of the same sizes is drawn from the data
as the authors publish them (:mod:`.raw`) and written beside it. Any other name stands for a data
set of the user's own, see :func:`load_split`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from timm.data import ImageNetInfo

from hypvision.data.annotations import name_difference
from hypvision.data.classes import SELECTED, check_classes, numbered
from hypvision.data.usage import Usage
from hypvision.data.usage import class_names as folder_names_in
from hypvision.io import HypvisionError, StrPath, did_you_mean, ensure, require
from hypvision.io.files import read_lines
from hypvision.io.records import read_table

from . import raw
from .splits import (
    PARTS,
    Item,
    Split,
    check_places,
    check_split,
    check_trained,
    class_folders,
    folder_names,
    read_split,
    write_split,
)

_PHOTO = "a photo of a {}."
_SOURCE = "CoOp's DATASETS.md lists the downloads: put it there"


class Layout(NamedTuple):
    """The layout of a data set: where its images and its split lie, and its prompt."""

    folder: str  # folder of the data set, in the root of all data sets
    images: str  # folder of the images, in that folder
    split: str  # name of the split file; empty if other files define the split
    template: str | None  # prompt for a class name; None: the prompt that the weights come with
    classes: int  # number of classes
    # a function of the layout and its folder that makes a split if there is no split file
    load: Callable[[Layout, Path], Split]

    @property
    def templates(self) -> tuple[str, ...] | None:
        """Prompts whose mean feature stands for a class in methods that use several prompts: the
        seven that CLIP's authors selected on ImageNet and the data set's own; on ImageNet the seven
        alone. None: those that the weights come with."""
        if self.load is _imagenet:
            return SELECTED
        if self.load is _own or self.template is None:
            return None
        return (*SELECTED, self.template)

    @property
    def val_is_drawn(self) -> bool:
        """Whether the validation images are a part of their own, of which shots are drawn."""
        return self.load is not _imagenet


# Readers of the data sets that have no split file
# ---------------------------------------------------------------------------------------


def _imagenet_names(folder: Path) -> dict[str, str]:
    """Return ImageNet's class names by WordNet id, in the order of the labels."""
    sheet = folder / "classnames.txt"
    what = "the benchmark's list of class names (lines 'wnid name')"
    if sheet.is_file():
        return folder_names(sheet, what)
    names = require("open_clip", "clip").IMAGENET_CLASSNAMES
    warnings.warn(
        f"There is no '{sheet}', {what}, from CoOp's download page. open_clip's names are used "
        "instead; some of them are newer, so results are not those of the benchmark.",
        stacklevel=2,
    )
    return dict(zip(ImageNetInfo("imagenet-1k").label_names(), names, strict=True))


def _imagenet(layout: Layout, folder: Path) -> Split:
    """Return ImageNet's split. ``classnames.txt`` gives the classes' order and names; the test
    images are the validation images, with sorted paths."""
    names = _imagenet_names(folder)
    folders = [folder / layout.images / part for part in ("train", "val")]
    train, test = (_by_wnid(part, names) for part in folders)
    # Labels count the folders that exist, so both parts must have the same folders.
    trained, tested = ({Path(item.path).parent.name for item in part} for part in (train, test))
    for here, there, place in ((trained, tested, folders[1]), (tested, trained, folders[0])):
        missing = sorted(here - there)
        if missing:
            raise HypvisionError(
                f"'{place}' has no images of '{missing[0]}' ({names[missing[0]]}), the other part "
                "has some. Training and validation images must be of the same classes."
            )
    return Split(train, test, test)


def _by_wnid(folder: Path, names: dict[str, str], order: Sequence[str] | None = None) -> list[Item]:
    """Return the images in class folders, labelled in the given ``order`` of the folders; by
    default in the order of ``names``."""
    found = class_folders(folder)
    unknown = sorted(set(found) - set(names))
    if unknown:
        raise HypvisionError(
            f"'{folder}' has a folder '{unknown[0]}', which the class names do not list."
        )
    labels = numbered(order or [wnid for wnid in names if wnid in found])
    return [Item(path, labels[wnid], names[wnid]) for wnid in found for path in found[wnid]]


def imagenet_validation(folder: Path) -> list[Item]:
    """Return the validation images of ImageNet's folder, which lie in ``images/val/WNID``."""
    return _by_wnid(folder / "images" / "val", _imagenet_names(folder))


def _test_only(items: list[Item]) -> Split:
    # The class names of a split are read from its training images, so a data set without them gets
    # its test images as such.
    return Split(items, items, items)


def _imagenet_v2(layout: Layout, folder: Path) -> Split:
    """Return ImageNetV2's split, whose class folders are named by the line numbers of
    ``classnames.txt``, from 0."""
    names = list(_imagenet_names(folder).values())
    found = class_folders(folder / layout.images)
    wrong = [name for name in found if not name.isdecimal() or int(name) >= len(names)]
    if wrong:
        raise HypvisionError(
            f"'{folder / layout.images}' has a folder '{wrong[0]}', which classnames.txt does not "
            "list."
        )
    return _test_only(
        [Item(path, int(name), names[int(name)]) for name, paths in found.items() for path in paths]
    )


def _imagenet_some(layout: Layout, folder: Path) -> Split:
    """Return the split of ImageNet-Sketch, with all classes in the order of ImageNet's labels, or
    of a set with 200 of the classes, whose labels follow the sorted folders."""
    names = _imagenet_names(folder)
    wnids = None if layout.classes == 1000 else sorted(class_folders(folder / layout.images))
    return _test_only(_by_wnid(folder / layout.images, names, wnids))


def _aircraft(layout: Layout, folder: Path) -> Split:
    names = read_lines(folder / "variants.txt", "the list of aircraft variants")
    check_classes(enumerate(names), f"'{folder / 'variants.txt'}'", "Take an intact copy.")
    label = numbered(names)
    parts = []
    for part in PARTS:
        file = folder / f"images_variant_{part}.txt"
        rows = [
            line.split(" ", 1)
            for line in read_lines(file, "the list of images (lines 'NUMBER VARIANT')")
        ]
        wrong = [row for row in rows if len(row) < 2 or row[1] not in label]
        if wrong:
            raise HypvisionError(
                f"The line '{' '.join(wrong[0])}' of '{file}' names no variant of variants.txt."
            )
        parts.append(
            [
                Item(str(folder / layout.images / f"{number}.jpg"), label[name], name)
                for number, name in rows
            ]
        )
    check_places(parts, folder / layout.images)
    return Split(*parts)


# Splits that are drawn if the split file is missing
# ----------------------------------------------------------------------

_CALTECH = {
    "airplanes": "airplane",
    "Faces": "face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
}
_EUROSAT = {
    "AnnualCrop": "Annual Crop Land", "Forest": "Forest",
    "HerbaceousVegetation": "Herbaceous Vegetation Land", "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings", "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land", "Residential": "Residential Buildings",
    "River": "River", "SeaLake": "Sea or Lake",
}  # fmt: skip


def _made(rule: raw.Rule) -> Callable[[Layout, Path], Split]:
    def load(layout: Layout, folder: Path) -> Split:
        images = folder / layout.images
        try:
            split = rule(folder, images)
            check_places(split, images)
            check_split(split, f"What is in '{folder}'", "Take intact copies of its files.")
        except HypvisionError as error:
            raise HypvisionError(
                f"The split file '{folder / layout.split}' is missing ({_SOURCE}), and none can be "
                f"made: {error}"
            ) from error
        write_split(folder / layout.split.replace("split_zhou_", "split_drawn_"), split, images)
        return split

    return load


_OF_FOLDERS = ("caltech101", "food101", "dtd", "eurosat")
_NO_CLASSES = ("BACKGROUND_Google", "Faces_easy")


def _check_folders(file: Path, split: Split, images: Path) -> None:
    """Raise an error if a split was drawn from other class folders than now exist."""
    drawn = sorted(
        {os.path.relpath(item.path, images).split(os.sep)[0] for part in split for item in part}
    )
    there = [name for name in folder_names_in(images, Usage(images)) if name not in _NO_CLASSES]
    if there != drawn:
        difference = name_difference(
            there, f"'{images}'", drawn, f"the split '{file}', which was drawn of its folders"
        )
        raise HypvisionError(
            f"{difference} Restore the folders; or remove the file, and a split of those that are "
            "there is drawn: its results cannot be compared with earlier ones."
        )


# From the column "reader" of the table to a function of the layout and its folder that makes a
# split if there is no split file.
_READERS: dict[str, Callable[[Layout, Path], Split]] = {
    "imagenet": _imagenet,
    "imagenetv2": _imagenet_v2,
    "imagenet_some": _imagenet_some,
    "aircraft": _aircraft,
    "folders": _made(raw.from_folders()),
    "caltech": _made(raw.from_folders(lambda name: _CALTECH.get(name, name), _NO_CLASSES)),
    "eurosat": _made(raw.from_folders(lambda name: _EUROSAT.get(name, name))),
    "pets": _made(raw.pets),
    "cars": _made(raw.cars),
    "flowers": _made(raw.flowers),
    "sun397": _made(raw.sun397),
    "ucf101": _made(raw.ucf101),
}


class _Row(NamedTuple):
    """A row of the table of layouts."""

    name: str
    folder: str
    images: str = ""
    split: str = ""
    template: str = _PHOTO
    classes: int = 0
    reader: str = ""


LAYOUTS = {
    row.name: Layout(*row[1:-1], _READERS[row.reader])
    for _, row in read_table(_Row, Path(__file__).parents[1] / "fewshot_layouts.csv")
}
"""Layouts of the 15 data sets, by the benchmark's names for them."""

DOMAINS = ("imagenetv2", "imagenet_sketch", "imagenet_a", "imagenet_r")
"""Data sets on which domain generalisation is tested."""
SETS = tuple(name for name in LAYOUTS if name not in DOMAINS)
"""The eleven data sets of the tests from base to new classes and of few-shot recognition."""
CROSS = SETS[1:]
"""The ten data sets on which transfer from ImageNet to other data sets is tested."""


def _own(layout: Layout, folder: Path) -> Split:
    """Return the split of a user's own data set: ``train/CLASS``, ``test/CLASS`` and optionally
    ``val/CLASS``; ``classnames.txt`` has lines 'FOLDER NAME'."""
    parts = {part: class_folders(folder / part) for part in PARTS if (folder / part).is_dir()}
    ensure(
        {"train", "test"} <= parts.keys(),
        f"'{folder}' is not a few-shot data set. Expected: a split.json (paths below images/), or "
        "train/CLASS and test/CLASS folders with images, with a classnames.txt (lines 'FOLDER "
        "NAME') if folders are called otherwise.",
    )
    sheet = folder / "classnames.txt"
    names = _own_names(sheet, sorted(set(chain(*parts.values()))))
    trained = list(parts["train"])
    order = [name for name in names if name in trained]
    label = numbered(dict.fromkeys([*order, *trained]))
    for part, found in parts.items():
        check_trained([*found], f"'{folder / part}'", trained, f"'{folder / 'train'}'")
    split = Split([], [], [])
    for part, found in parts.items():
        for name, paths in found.items():
            called = names.get(name, name.replace("_", " "))
            split.part(part).extend(Item(path, label[name], called) for path in paths)
    remedy = f"Give each folder a name of its own in '{sheet}'."
    return check_split(split, f"The data set '{folder}'", remedy)


def _own_names(sheet: Path, folders: list[str]) -> dict[str, str]:
    """Return the class names by folder from the file ``sheet``, if it exists; warn of folders that
    do not exist."""
    names = folder_names(sheet, "the class names", folders) if sheet.is_file() else {}
    unknown = [name for name in names if name not in folders]
    if unknown:
        warnings.warn(
            f"'{sheet}' has a name for the folder '{unknown[0]}', which does not exist (and "
            f"{len(unknown) - 1} others). Correct it, or put a tab between folder and name.",
            stacklevel=3,
        )
    return names


def layout_of(name: str, root: StrPath) -> Layout:
    """Return the layout of a data set of the benchmark, or of a user's own data set in
    ``root/name``."""
    if name in LAYOUTS:
        return LAYOUTS[name]
    folder = Path(root).expanduser() / name
    ensure(
        re.fullmatch(r"[\w.-]+", name) is not None and folder.is_dir(),
        f"There is no data set '{name}': it is neither one of {', '.join(LAYOUTS)} nor a "
        f"folder in '{root}'.{did_you_mean(name, LAYOUTS)}",
    )
    sheet = folder / "template.txt"
    template = read_lines(sheet, "the template")[0] if sheet.is_file() else None
    return Layout(
        name, "images" if (folder / "images").is_dir() else "", "split.json", template, 0, _own
    )


def load_split(name: str, root: StrPath) -> Split:
    """Return all images of a data set.

    Args:
        name: a name of :data:`LAYOUTS`, or that of a folder in the root with the user's own data: a
            ``split.json`` that :func:`.splits.read_split` reads, or ``train/CLASS`` and
            ``test/CLASS`` folders; optionally ``classnames.txt`` with the class names and
            ``template.txt`` with the prompt.
        root: the folder that contains the folders of all data sets.

    Raises:
        HypvisionError: class folders were added or removed since an earlier call drew a split of
            them.
    """
    layout = layout_of(name, root)
    folder = Path(root).expanduser() / layout.folder
    ensure(
        folder.is_dir(),
        f"The data set '{name}' is not in '{folder}' ({_SOURCE}). Or give the folder that "
        "contains all data sets by --root.",
    )
    for file in (
        (layout.split, layout.split.replace("split_zhou_", "split_drawn_")) if layout.split else ()
    ):
        if (folder / file).is_file():
            # Some published splits have two labels of the same name.
            split = read_split(folder / file, folder / layout.images, shared_names=name in LAYOUTS)
            if file != layout.split and name in _OF_FOLDERS:
                _check_folders(folder / file, split, folder / layout.images)
            return split
    return layout.load(layout, folder)
