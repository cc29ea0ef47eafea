"""The data sets of zero-shot evaluations of a CLIP: which a suite has, where each lies below a
folder of all data, and how it is read.

``zero_shot.csv`` has a row for each set, ``zero_shot_published.csv`` what papers report of it; the
command is ``hypvision clip evaluate``. A set's folder may have a ``templates.txt``, a sentence with
``{}`` a line, which takes the place of the suite's prompts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypvision.data.classes import imagenet_templates
from hypvision.data.fewshot import raw
from hypvision.data.fewshot.layouts import LAYOUTS, imagenet_validation, load_split
from hypvision.data.fewshot.splits import Item, class_folders, class_names, folder_names
from hypvision.data.published import read_matlab, read_rows
from hypvision.io.errors import HypvisionError
from hypvision.io.files import inside, read_json, read_lines
from hypvision.io.records import read_table

#: The models whose published numbers stand beside a suite's.
PUBLISHED = {
    "hycoclip": ("CLIP-S", "MERU-S", "HyCoCLIP-S", "CLIP-B", "MERU-B", "HyCoCLIP-B"),
    "uncha": ("HyCoCLIP-S", "UNCHA-S", "ATMG-S", "HyCoCLIP-B", "UNCHA-B"),
    "phyclip": (),  # its tables could not be had
    "open_clip": (),
}
_PHOTO = "a photo of a {}."
_TEMPLATES = {layout.folder: layout.template for layout in LAYOUTS.values()}
_MOST_PAIRS = 1000  # of each part of VL-Checklist


class Benchmark(NamedTuple):
    """A data set of an evaluation; paths start from the folder of all data.

    Attributes:
        set: its name.
        suites: those that have it.
        task: of ``hypvision.tasks.zero_shot.MEASURES``.
        reader: of :data:`READERS`.
        place, also: what must be there; the second is mostly the folder of the images.
        benchmark: its name in CLIP_benchmark.
        classes, prompted: how many classes and prompts the suites of MERU's authors and successors
            have.
        prompts: theirs, with ``|`` between them, as far as they are known here.
        note: what differs from their images or names.
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
    note: str = ""

    def missing(self, root: Path) -> Path | None:
        """What is not there of that which must be."""
        needed = [root / self.place, root / (self.also or self.place)]
        return next((path for path in needed if not path.exists()), None)

    def read(self, root: Path) -> Any:
        """What the reader gives."""
        return READERS[self.reader](root / self.place, root / (self.also or self.place))

    def sentences(self, suite: str, root: Path) -> tuple[list[str], str]:
        """The prompts in a suite, and what they are if they are not its own."""
        own = root / Path(self.place).parts[0] / "templates.txt"
        is_paper = suite != "open_clip"
        if own.is_file():
            return _read_prompts(own), f"prompts of '{own}'"
        if is_paper and self.prompts:
            return self.prompts.split("|"), ""
        if not is_paper and self.set.startswith("imagenet"):
            return list(imagenet_templates(80)), ""
        text = _TEMPLATES.get(own.parent.name) or _PHOTO
        count = f"{self.prompted} " if is_paper else ""
        return [text], f"prompt '{text}': the suite's {count}are not known here; see '{own}'"


def _read_prompts(path: Path) -> list[str]:
    found = read_lines(path, "the prompts")
    if not found or any(text.count("{}") != 1 for text in found):
        raise HypvisionError(f"Each line of '{path}' needs one {{}}, for the class name.")
    return found


class Labelled(NamedTuple):
    """Images with their labels, and the names of all classes."""

    items: list[Item]
    names: list[str]


class Captions(NamedTuple):
    """An image and its captions."""

    image: str
    texts: list[str]


class Choice(NamedTuple):
    """An image, a text that is true of it and one that is not."""

    image: str
    right: str
    wrong: str


def suite(name: str) -> list[Benchmark]:
    """The data sets of a suite."""
    rows = [row for _, row in read_table(Benchmark, Path(__file__).with_name("zero_shot.csv"))]
    return [row for row in rows if name in row.suites.split()]


def published() -> dict[tuple[str, str], dict[str, str]]:
    """The reported numbers of models by set and metric; shares are in percent."""
    with Path(__file__).with_name("zero_shot_published.csv").open(encoding="utf-8") as stream:
        return {(row["set"], row["metric"]): row for row in csv.DictReader(stream)}


def imagenet_tree(path: Path) -> dict[str, list[str]]:
    """The nodes above each one of a tree, the root first, from lines 'PARENT CHILD'."""
    rows = read_rows(path, "the tree of ImageNet's classes (lines 'PARENT CHILD')", 2, 2)
    parents = {child: parent for parent, child in rows}
    found = {}
    for name in parents:
        line = [name]
        while line[0] in parents:
            line.insert(0, parents[line[0]])
            if line[0] in line[1:]:
                raise HypvisionError(f"'{path}' is no tree: '{line[0]}' is above itself.")
        found[name] = line[:-1]
    return found


@contextmanager
def _of_form(path: Path) -> Iterator[None]:
    """Context that says which file lacks what its reader takes."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise HypvisionError(
            f"'{path}' is not of the form that its authors publish ({type(error).__name__}: "
            f"{error}). Take an intact copy."
        ) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is no text")
    return value


# Images of classes


def _imagenet(place: Path, images: Path) -> Labelled:
    items = imagenet_validation(images.parents[1])
    return Labelled(items, class_names(items))


def _coop(place: Path, images: Path) -> Labelled:
    """The test images of a data set of the few-shot benchmark."""
    name = next(name for name, layout in LAYOUTS.items() if layout.folder == place.name)
    split = load_split(name, place.parent)
    return Labelled(split.test, class_names(split.train))


def _folders(place: Path, images: Path) -> Labelled:
    """Class folders; ``classnames.txt`` beside their folder has lines 'FOLDER NAME'."""
    found = class_folders(place)
    sheet = place.parent / "classnames.txt"
    given = folder_names(sheet, "the class names", list(found)) if sheet.is_file() else {}
    names = [given.get(name, name.replace("_", " ")) for name in found]
    paths = enumerate(found.values())
    return Labelled([Item(path, k, names[k]) for k, own in paths for path in own], names)


def _listed(place: Path, images: Path) -> Labelled:
    """A list of images, lines 'CLASS/FILE', with or without '.jpg'."""
    lines = read_lines(place, "the list of test images (lines 'CLASS/FILE')")
    names = sorted({line.partition("/")[0] for line in lines})
    label = {name: number for number, name in enumerate(names)}
    items = []
    for line in lines:
        name = line.partition("/")[0]
        path = images / (line if Path(line).suffix else f"{line}.jpg")
        items.append(Item(str(path), label[name], name.replace("_", " ")))
    inside([item.path for item in items], images)
    return Labelled(items, [name.replace("_", " ") for name in names])


def _cub(place: Path, images: Path) -> Labelled:
    """CUB-200-2011 by the lists of its authors."""
    folder = place.parent
    what = "a list of CUB-200-2011"
    names, labels, files, trained = (
        dict(read_rows(folder / name, what, 2, 2))
        for name in ("classes.txt", "image_class_labels.txt", "images.txt", place.name)
    )
    number = {key: row for row, key in enumerate(names)}
    spoken = [name.partition(".")[2].replace("_", " ") for name in names.values()]
    items = []
    with _of_form(folder / "image_class_labels.txt"):
        for key, file in files.items():
            if trained.get(key) == "0":
                label = number[labels[key]]
                items.append(Item(str(images / file), label, spoken[label]))
    inside([item.path for item in items], images)
    return Labelled(items, spoken)


def _flowers(place: Path, images: Path) -> Labelled:
    """Oxford Flowers' own test images, not CoOp's, with CoOp's names."""
    every = [item for part in raw.flowers(place.parent, images) for item in part]
    numbers = read_matlab(place, "tstid").reshape(-1).tolist()
    tested = {f"image_{number:05}.jpg" for number in numbers}
    return Labelled([item for item in every if Path(item.path).name in tested], class_names(every))


# Images and texts


def _coco(place: Path, images: Path) -> list[Captions]:
    content = read_json(place)
    with _of_form(place):
        texts: dict[int, list[str]] = {row["id"]: [] for row in content["images"]}
        for row in content["annotations"]:
            texts[row["image_id"]].append(_text(row["caption"]))
        return [Captions(str(images / f"{key:012}.jpg"), own) for key, own in texts.items() if own]


def _flickr30k(place: Path, images: Path) -> list[Captions]:
    """The test images of Karpathy's split."""
    content = read_json(place)
    found = []
    with _of_form(place):
        for row in content["images"]:
            if row["split"] == "test":
                texts = [_text(sentence["raw"]) for sentence in row["sentences"]]
                found.append(Captions(str(images / row["filename"]), texts))
    inside([row.image for row in found], images)
    return found


def _sugar_crepe(place: Path, images: Path) -> list[Choice]:
    content = read_json(place)
    found = []
    with _of_form(place):
        for row in content.values():
            path = str(images / row["filename"])
            found.append(Choice(path, _text(row["caption"]), _text(row["negative_caption"])))
    inside([row.image for row in found], images)
    return found


def _vl_checklist(place: Path, root: Path) -> list[Choice]:
    """The first items whose image is there; of several texts the first."""
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
    if not found:
        raise HypvisionError(f"No image that '{table}' names is in '{images}'. Add them.")
    inside([row.image for row in found], root)
    return found


#: The readers by name, each of a place and of the folder of its images.
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
