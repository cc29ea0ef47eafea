"""Splits of the data sets in the form that their authors publish, drawn by the rules of CoOp's
code, for data sets whose split file is missing.

The splits have the published sizes and class names and, if the authors publish a test set (Pets,
Cars, SUN397, UCF101), the same test images; training and validation images are drawn at random, and
differ from the official ones. Each function takes the folder of a data set and the folder of its
images.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path

from hypvision.data.classes import check_classes, numbered
from hypvision.data.published import read_label, read_matlab, read_rows
from hypvision.io import HypvisionError
from hypvision.io.files import read_lines
from hypvision.io.records import read_record

from .splits import Item, Split, by_label, class_folders

Rule = Callable[[Path, Path], Split]
_SEED = 1


# The two ways to draw a split
# --------------------------------------------------------------------------------------------------


def _by_class(classes: Iterable[tuple[int, str, list[str]]]) -> Split:
    """Return a split with half of the images of each class (label, name, paths) for training, a
    fifth for validation, and the rest for test."""
    generator = random.Random(_SEED)
    parts = Split([], [], [])
    for label, name, paths in classes:
        generator.shuffle(paths)
        train = round(len(paths) * 0.5)
        val = round(len(paths) * 0.2)
        items = [Item(path, label, name) for path in paths]
        parts.train.extend(items[:train])
        parts.val.extend(items[train : train + val])
        parts.test.extend(items[train + val :])
    return parts


def _with_validation(items: Sequence[Item], test: list[Item]) -> Split:
    """Return a split with a fifth of each class of the official training images, ``items``, for
    validation, the rest for training, and ``test`` as it is."""
    generator = random.Random(_SEED)
    parts = Split([], [], test)
    for own in by_label(items).values():
        generator.shuffle(own)
        count = round(len(own) * 0.2)
        parts.val.extend(own[:count])
        parts.train.extend(own[count:])
    return parts


# A rule for each data set
# --------------------------------------------------------------------------------------------------


def from_folders(name_of: Callable[[str], str] = str, ignored: Sequence[str] = ()) -> Rule:
    """Return the rule for data sets with one folder a class (Caltech101, Food101, DTD, EuroSAT);
    ``name_of`` maps a folder's name to the class name, and ``ignored`` folders are no classes."""

    def make(folder: Path, images: Path) -> Split:
        found = class_folders(images, ignored).items()
        return _by_class((label, name_of(name), paths) for label, (name, paths) in enumerate(found))

    return make


def flowers(folder: Path, images: Path) -> Split:
    """Return a split of Flowers102, drawn class by class from ``imagelabels.mat`` and
    ``cat_to_name.json``."""
    file = folder / "cat_to_name.json"
    sheet = folder / "imagelabels.mat"
    labels = read_matlab(sheet, "labels").reshape(-1).tolist()
    advice = (
        "Take an intact copy of the class names ({'1': 'pink primrose', ...}, from CoOp's download "
        "page)."
    )
    names = {
        read_label(number, file): name
        for number, name in read_record(dict[str, str], file, advice).items()
    }
    classes: dict[int, list[str]] = {}
    for number, label in enumerate(labels, 1):
        classes.setdefault(read_label(label, sheet), []).append(
            str(images / f"image_{number:05}.jpg")
        )
    unknown = sorted(set(classes) - set(names))
    if unknown:
        raise HypvisionError(
            f"'{file}' has no name for the class {unknown[0]} of imagelabels.mat. {advice}"
        )
    return _by_class((label - 1, names[label], classes[label]) for label in sorted(classes))


def pets(folder: Path, images: Path) -> Split:
    """Return the split of Oxford Pets by ``annotations/trainval.txt`` and ``test.txt``, with lines
    'Breed_NUMBER LABEL ...'."""

    def part(name: str) -> list[Item]:
        found = []
        file = folder / "annotations" / f"{name}.txt"
        for image, label, *_ in read_rows(file, "the list of images of its authors", 2):
            breed = image.rpartition("_")[0].lower()
            found.append(Item(str(images / f"{image}.jpg"), read_label(label, file) - 1, breed))
        return found

    return _with_validation(part("trainval"), part("test"))


def cars(folder: Path, images: Path) -> Split:
    """Return the split of Stanford Cars by ``devkit`` and ``cars_test_annos_withlabels.mat``; in
    its class names the year is moved to the front."""
    titles = [
        str(title[0])
        for title in read_matlab(folder / "devkit/cars_meta.mat", "class_names").reshape(-1)
    ]
    names = [" ".join([title.rpartition(" ")[2], title.rpartition(" ")[0]]) for title in titles]

    def part(file: str, where: str) -> list[Item]:
        found = []
        for row in read_matlab(folder / file, "annotations").reshape(-1):
            label = read_label(row["class"].item(), folder / file, len(names)) - 1
            found.append(Item(str(images / where / str(row["fname"].item())), label, names[label]))
        return found

    return _with_validation(
        part("devkit/cars_train_annos.mat", "cars_train"),
        part("cars_test_annos_withlabels.mat", "cars_test"),
    )


def sun397(folder: Path, images: Path) -> Split:
    """Return the split of SUN397 by ``ClassName.txt`` and the first partition, ``Training_01.txt``
    and ``Testing_01.txt``.

    The class ``/a/abbey`` is named "abbey", and ``/c/church/indoor`` "indoor church".
    """
    what = "a list of SUN397's authors, from Partitions.zip"
    classes = [line.lstrip("/") for line in read_lines(folder / "ClassName.txt", what)]
    label = numbered(classes)
    check_classes(enumerate(classes), f"'{folder / 'ClassName.txt'}'", "Take an intact copy.")

    def part(file: str) -> list[Item]:
        paths = [line.lstrip("/") for line in read_lines(folder / file, what)]
        owners = [path.rpartition("/")[0] for path in paths]
        _check_owners(folder / file, paths, owners, label, "ClassName.txt")
        return [
            Item(str(images / path), label[own], " ".join(own.split("/")[1:][::-1]))
            for path, own in zip(paths, owners)
        ]

    return _with_validation(part("Training_01.txt"), part("Testing_01.txt"))


def ucf101(folder: Path, images: Path) -> Split:
    """Return the first official split of UCF101 by ``ucfTrainTestlist``; the images are the middle
    frames of the videos, in folders such as ``Apply_Eye_Makeup``."""
    lists = folder / "ucfTrainTestlist"
    what = "a list of UCF101's authors, from UCF101TrainTestSplits-RecognitionTask.zip"
    rows = read_rows(lists / "classInd.txt", what, 2)
    pairs = [(read_label(number, lists / "classInd.txt") - 1, name) for number, name, *_ in rows]
    check_classes(pairs, f"'{lists / 'classInd.txt'}'", "Take an intact copy.")
    label = {name: number for number, name in pairs}

    def part(file: str) -> list[Item]:
        found = []
        videos = [row[0] for row in read_rows(lists / file, what, 1)]
        actions = [video.partition("/")[0] for video in videos]
        _check_owners(lists / file, videos, actions, label, "classInd.txt")
        for video, action in zip(videos, actions):
            name = "_".join(re.findall("[A-Z][^A-Z]*", action))
            frame = video.partition("/")[2].replace(".avi", ".jpg")
            found.append(Item(str(images / name / frame), label[action], name))
        return found

    return _with_validation(part("trainlist01.txt"), part("testlist01.txt"))


def _check_owners(
    file: Path, names: Sequence[str], owners: Sequence[str], known: Container[str], sheet: str
) -> None:
    """Raise an error for an image or video in ``file`` whose class the list ``sheet`` lacks."""
    for name, owner in zip(names, owners):
        if owner not in known:
            raise HypvisionError(
                f"'{file}' has '{name}' of a class that {sheet} lacks. Take intact copies of both."
            )
