"""The data sets of zero-shot evaluations of a CLIP: which of them a suite has, where each lies in
the folder of all data, and how it is read.

``zero_shot.csv`` has a row for each set, or two where suites have other prompts, and
``zero_shot_published.csv`` the results that papers report; the command is ``hypvision clip
evaluate``. A set's folder may have a ``templates.txt``, with one sentence with ``{}`` a line; they
replace the suite's prompts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from hypvision.io import HypvisionError, ensure, explaining
from hypvision.io.files import inside, read_json, read_lines
from hypvision.io.records import read_table

from .classes import imagenet_templates, numbered
from .fewshot import raw
from .fewshot.layouts import LAYOUTS, imagenet_validation, load_split
from .fewshot.splits import Item, class_folders, class_names, folder_names
from .published import read_matlab, read_rows

#: For each suite, the models whose published results stand beside the measured ones.
PUBLISHED = {
    "hycoclip": ("CLIP-S", "MERU-S", "HyCoCLIP-S", "CLIP-B", "MERU-B", "HyCoCLIP-B"),
    "uncha": ("HyCoCLIP-S", "UNCHA-S", "ATMG-S", "HyCoCLIP-B", "UNCHA-B"),
    "phyclip": (),  # the tables of this paper were not available to us
    "open_clip": (),
}
_PHOTO = "a photo of a {}."
_MOST_PAIRS = 1000  # largest number of items of each part of VL-Checklist that are used


class Benchmark(NamedTuple):
    """A data set of an evaluation; its paths start from the folder of all data.

    Attributes:
        set: name of the data set.
        suites: names of the suites that have it, separated by spaces.
        task: a name of ``hypvision.tasks.zero_shot.MEASURES``.
        reader: a name of :data:`READERS`.
        place, also: paths of the two things that must exist; the second is mostly the folder of the
            images.
        benchmark: name of the data set in the package CLIP_benchmark.
        classes, prompted: numbers of classes and prompts in the suites.
        prompts: the prompts of the suites, separated by ``|``: those of MERU's authors, of CLIP
            (``data/prompts.md`` of its repository) and of CLIP_benchmark; "" if they have none.
        words: the class words of folders with other names, ``FOLDER=WORD``, separated by ``|``.
        note: how our images or names differ from those of the suites.
    """

    set: str
    suites: str
    task: str
    reader: str
    place: str
    also: str = ""
    benchmark: str = ""
    classes: int = 0
    prompted: int = 0
    prompts: str = ""
    words: str = ""
    note: str = ""

    def missing(self, root: Path) -> Path | None:
        """Return the first of the paths ``place`` and ``also`` that does not exist in ``root``;
        None if both exist."""
        needed = [root / self.place, root / (self.also or self.place)]
        return next((path for path in needed if not path.exists()), None)

    def read(self, root: Path) -> Any:
        """Return the images and labels or texts that the data set's reader finds in ``root``."""
        found = READERS[self.reader](root / self.place, root / (self.also or self.place))
        # The name of an image is the first field of each item.
        if not isinstance(found, Labelled):
            inside([item[0] for item in found], root)
            return found
        inside([item[0] for item in found.items], root)
        words = dict(pair.split("=") for pair in self.words.split("|") if pair)
        return found._replace(names=[words.get(name, name) for name in found.names])

    def sentences(self, suite: str, root: Path) -> tuple[list[str], str]:
        """Return the data set's prompts in a suite, and a note if they are not the suite's own,
        else ""."""
        own = root / Path(self.place).parts[0] / "templates.txt"
        if own.is_file():
            return _read_prompts(own), f"prompts of '{own}'"
        if suite == "open_clip" and self.set.startswith("imagenet"):
            return list(imagenet_templates(80)), ""
        if self.prompts:
            return self.prompts.split("|"), ""
        return [_PHOTO], f"prompt '{_PHOTO}', as the suite has none; see '{own}'"


def _read_prompts(path: Path) -> list[str]:
    found = read_lines(path, "the prompts")
    if not found or any(text.count("{}") != 1 for text in found):
        raise HypvisionError(f"Each line of '{path}' needs one {{}}, for the class name.")
    return found


class Labelled(NamedTuple):
    """Images with their labels, and the names of all classes in the order of the labels."""

    items: list[Item]
    names: list[str]


class Captions(NamedTuple):
    """The path of an image, and its captions."""

    image: str
    texts: list[str]


class Choice(NamedTuple):
    """The path of an image, a text that is true of it, and a text that is not."""

    image: str
    right: str
    wrong: str


def suite(name: str) -> list[Benchmark]:
    """Return the data sets of a suite."""
    rows = [row for _, row in read_table(Benchmark, Path(__file__).with_name("zero_shot.csv"))]
    return [row for row in rows if name in row.suites.split()]


def published() -> dict[tuple[str, str], dict[str, str]]:
    """Return the reported results by data set and metric, each as a dict from a model's name to its
    number; shares are in percent."""
    with Path(__file__).with_name("zero_shot_published.csv").open(encoding="utf-8") as stream:
        return {(row["set"], row["metric"]): row for row in csv.DictReader(stream)}


def imagenet_tree(path: Path) -> dict[str, list[str]]:
    """Return for each node of a tree the nodes above it, the root first, read from lines 'PARENT
    CHILD'."""
    rows = read_rows(path, "the tree of ImageNet's classes (lines 'PARENT CHILD')", 2, 2)
    parents = {child: parent for parent, child in rows}
    found = {}
    for name in parents:
        line = [name]
        while line[0] in parents:
            line.insert(0, parents[line[0]])
            if line[0] in line[1:]:
                raise HypvisionError(f"'{path}' is no tree: '{line[0]}' is above itself. Mend it.")
        found[name] = line[:-1]
    return found


def _of_form(path: Path) -> AbstractContextManager[None]:
    """Return a context that turns errors of a reader's code into one that names the file and says
    that its form is not the published one."""
    return explaining(
        lambda error: (
            f"'{path}' is not of the form that its authors publish ({type(error).__name__}: "
            f"{error}). Take an intact copy."
        ),
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


# Readers of images with classes


def _imagenet(place: Path, images: Path) -> Labelled:
    items = imagenet_validation(images.parents[1])
    return Labelled(items, class_names(items))


def _coop(place: Path, images: Path) -> Labelled:
    """Read the test images of a data set of the few-shot benchmark."""
    name = next(name for name, layout in LAYOUTS.items() if layout.folder == place.name)
    split = load_split(name, place.parent)
    return Labelled(split.test, class_names(split.train))


def _folders(place: Path, images: Path) -> Labelled:
    """Read images in class folders; ``classnames.txt`` beside the folder ``place`` may have lines
    'FOLDER NAME'."""
    found = class_folders(place)
    sheet = place.parent / "classnames.txt"
    given = folder_names(sheet, "the class names", list(found)) if sheet.is_file() else {}
    names = [given.get(name, name.replace("_", " ")) for name in found]
    paths = enumerate(found.values())
    return Labelled([Item(path, k, names[k]) for k, own in paths for path in own], names)


def _listed(place: Path, images: Path) -> Labelled:
    """Read images by a list of lines 'CLASS/FILE', in which FILE may lack '.jpg'."""
    lines = read_lines(place, "the list of test images (lines 'CLASS/FILE')")
    names = sorted({line.partition("/")[0] for line in lines})
    label = numbered(names)
    items = []
    for line in lines:
        name = line.partition("/")[0]
        path = images / (line if Path(line).suffix else f"{line}.jpg")
        items.append(Item(str(path), label[name], name.replace("_", " ")))
    return Labelled(items, [name.replace("_", " ") for name in names])


def _cub(place: Path, images: Path) -> Labelled:
    """Read the test images of CUB-200-2011 by the lists of its authors."""
    folder = place.parent
    what = "a list of CUB-200-2011"
    names, labels, files, trained = (
        dict(read_rows(folder / name, what, 2, 2))
        for name in ("classes.txt", "image_class_labels.txt", "images.txt", place.name)
    )
    number = numbered(names)
    spoken = [name.partition(".")[2].replace("_", " ") for name in names.values()]
    items = []
    with _of_form(folder / "image_class_labels.txt"):
        for key, file in files.items():
            if trained.get(key) == "0":
                label = number[labels[key]]
                items.append(Item(str(images / file), label, spoken[label]))
    return Labelled(items, spoken)


def _flowers(place: Path, images: Path) -> Labelled:
    """Read the test images of Oxford Flowers' authors, not those of CoOp's split, with CoOp's class
    names."""
    every = [item for part in raw.flowers(place.parent, images) for item in part]
    numbers = read_matlab(place, "tstid").reshape(-1).tolist()
    tested = {f"image_{number:05}.jpg" for number in numbers}
    return Labelled([item for item in every if Path(item.path).name in tested], class_names(every))


# Readers of images with texts


def _coco(place: Path, images: Path) -> list[Captions]:
    content = read_json(place)
    with _of_form(place):
        texts: dict[int, list[str]] = {row["id"]: [] for row in content["images"]}
        for row in content["annotations"]:
            texts[row["image_id"]].append(_text(row["caption"]))
        return [Captions(str(images / f"{key:012}.jpg"), own) for key, own in texts.items() if own]


def _flickr30k(place: Path, images: Path) -> list[Captions]:
    """Read the test images and captions of Karpathy's split of Flickr30k."""
    content = read_json(place)
    found = []
    with _of_form(place):
        for row in content["images"]:
            if row["split"] == "test":
                texts = [_text(sentence["raw"]) for sentence in row["sentences"]]
                found.append(Captions(str(images / row["filename"]), texts))
    return found


def _sugar_crepe(place: Path, images: Path) -> list[Choice]:
    content = read_json(place)
    found = []
    with _of_form(place):
        for row in content.values():
            path = str(images / row["filename"])
            found.append(Choice(path, _text(row["caption"]), _text(row["negative_caption"])))
    return found


def _vl_checklist(place: Path, root: Path) -> list[Choice]:
    """Read a part of VL-Checklist: the first items whose image exists, each with the first of its
    true and of its false texts."""
    lines = (line.partition(":") for line in read_lines(place, "a file of VL-Checklist"))
    about = {key.strip(): value.strip().strip("\"'") for key, _, value in lines}
    with _of_form(place):
        table = root / about["ANNO_PATH"]
        images = root / about["IMG_ROOT"]
    inside([table, images / "image"], root)
    content = read_json(table)
    found: list[Choice] = []
    with _of_form(table):
        for image, texts in content:
            path = images / image
            if len(found) < _MOST_PAIRS and path.is_file():
                found.append(Choice(str(path), _text(texts["POS"][0]), _text(texts["NEG"][0])))
    ensure(found, f"No image that '{table}' names is in '{images}'. Add the images.")
    return found


#: The readers by name: functions of the two paths ``place`` and ``also`` of a data set.
READERS: dict[str, Callable[[Path, Path], Labelled | Sequence[Captions] | Sequence[Choice]]] = {
    "imagenet": _imagenet,
    "coop": _coop,
    "folders": _folders,
    "listed": _listed,
    "cub": _cub,
    "flowers": _flowers,
    "coco": _coco,
    "flickr30k": _flickr30k,
    "sugar_crepe": _sugar_crepe,
    "vl_checklist": _vl_checklist,
}
