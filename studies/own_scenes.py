"""Six small data sets with label maps and boxes, made of those of studies/photos_study.py.

Two are street scenes of CamVid with their own label maps; four are derived: objects of other data
sets pasted on photos. Boxes of CamVid are the connected components of its label maps.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from scipy import ndimage

from hypvision.io.files import read_json, write_json

SIDE = 128
COUNTS = {"train": 64, "val": 16, "test": 60}
VOID = 255


class Scene(NamedTuple):
    """An image, its label map (255: does not count), and the objects: class and ``(x, y, w, h)``"""

    image: Image.Image
    labels: np.ndarray
    objects: list[tuple[int, tuple[int, int, int, int]]]


class Scenes(NamedTuple):
    """``make(part, number)`` gives one scene; the names of the label maps' classes, and of those
    that have boxes."""

    make: Callable[[str, int], Scene]
    classes: tuple[str, ...]
    things: tuple[str, ...]


# CamVid

CAMVID = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian",
    "bicyclist",
)  # fmt: skip
COARSE = {
    "sky": ("sky",),
    "building": ("building", "pole", "fence", "sign"),
    "ground": ("road", "pavement"),
    "tree": ("tree",),
    "traffic": ("car", "pedestrian", "bicyclist"),
}
LEAST = 60  # pixels of an object of SIDE x SIDE


def camvid_windows(root: Path) -> Scenes:
    """Windows of 240 pixels, halved: all classes; boxes of cars, people, signs and cyclists."""

    def make(part: str, number: int) -> Scene:
        rng = np.random.default_rng([number, len(part)])
        image, labels = _street(root, part, number)
        x = int(rng.integers(0, image.width - 240))
        y = int(rng.integers(0, image.height - 240))
        box = (x, y, x + 240, y + 240)
        return _shown(image, labels, box, ("car", "pedestrian", "sign", "bicyclist"), CAMVID)

    return Scenes(make, CAMVID, ("car", "pedestrian", "sign", "bicyclist"))


def camvid_coarse(root: Path) -> Scenes:
    """The middle squares of other scenes: five groups of classes; boxes of traffic alone."""
    names = tuple(COARSE)
    table = np.full(256, VOID, np.uint8)
    for number, members in enumerate(COARSE.values()):
        table[[CAMVID.index(name) for name in members]] = number

    def make(part: str, number: int) -> Scene:
        image, labels = _street(root, part, COUNTS[part] + number)
        return _shown(image, table[labels], (60, 0, 420, 360), ("traffic",), names)

    return Scenes(make, names, ("traffic",))


def _street(root: Path, part: str, number: int) -> tuple[Image.Image, np.ndarray]:
    """A scene: those of all parts lie in an order by chance."""
    paths = sorted((root / f"camvid/img/{part}").glob("*.jpg"))
    random.Random(0).shuffle(paths)
    path = paths[number % len(paths)]
    labels = np.asarray(Image.open(root / f"camvid/ann/{part}/{path.stem}.png")).copy()
    labels[labels >= len(CAMVID)] = VOID
    return Image.open(path).convert("RGB"), labels


def _shown(
    image: Image.Image,
    labels: np.ndarray,
    box: tuple[int, int, int, int],
    things: tuple[str, ...],
    names: tuple[str, ...],
) -> Scene:
    """A part of a scene, of SIDE x SIDE pixels, with the boxes of connected components."""
    small = image.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    shown = np.asarray(
        Image.fromarray(labels).crop(box).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    )
    objects = []
    for thing, name in enumerate(things):
        parts, _ = ndimage.label(shown == names.index(name))
        for number, place in enumerate(ndimage.find_objects(parts), 1):
            if (parts[place] == number).sum() >= LEAST:
                objects.append((thing, _box(place)))
    return Scene(small, shown, objects)


def _box(place: tuple[slice, ...]) -> tuple[int, int, int, int]:
    y, x = place
    return x.start, y.start, x.stop - x.start, y.stop - y.start


# Pasted objects

Pool = dict[str, list[tuple[str, Path]]]  # of each part: class and file


def pasted(
    pool: Pool, behind: dict[str, list[Path]], cut: Callable[..., Any], ground: str
) -> Scenes:
    """One to three objects on a photo, of 40 to 72 pixels; class 0 is the photo.

    Args:
        pool: the pictures of objects.
        behind: the photos of each part.
        cut: takes a picture and random numbers, returns the picture in RGB and its mask.
        ground: name of the class of the photo.
    """
    things = tuple(sorted({name for name, _ in pool["train"]}))

    def make(part: str, number: int) -> Scene:
        rng = random.Random(f"{part} {number}")
        image = Image.open(rng.choice(behind[part])).convert("RGB").resize((SIDE, SIDE))
        labels = np.zeros((SIDE, SIDE), np.uint8)
        objects = []
        for column in rng.sample(range(2), 2)[: rng.randint(1, 2)]:
            for row in rng.sample(range(2), rng.randint(1, 2)):
                name = rng.choice(things)
                path = rng.choice([file for one, file in pool[part] if one == name])
                side = rng.randint(40, 60)
                picture, mask = cut(Image.open(path), side, rng)
                x = column * 64 + rng.randint(0, 64 - side)
                y = row * 64 + rng.randint(0, 64 - side)
                image.paste(picture, (x, y), Image.fromarray(mask))
                labels[y : y + side, x : x + side][mask] = things.index(name) + 1
                [place] = ndimage.find_objects(mask.astype(int))
                left, top, width, height = _box(place)
                objects.append((things.index(name), (x + left, y + top, width, height)))
        return Scene(image, labels, objects)

    return Scenes(make, (ground, *things), things)


def _sticker(picture: Image.Image, side: int, rng: random.Random) -> tuple[Image.Image, np.ndarray]:
    """An emoji without the white around it."""
    picture = picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR)
    white = np.asarray(picture).min(axis=2) > 235
    parts, _ = ndimage.label(np.pad(white, 1, constant_values=True))
    return picture, (parts != parts[0, 0])[1:-1, 1:-1]


def _ink(picture: Image.Image, side: int, rng: random.Random) -> tuple[Image.Image, np.ndarray]:
    """A drawn character in one colour, its strokes three pixels wide or more."""
    drawn = np.asarray(picture.convert("L").resize((side, side), Image.Resampling.BOX)) < 160
    mask = ndimage.binary_dilation(drawn, iterations=1)
    colour = tuple(rng.choice((0, 255)) for _ in range(3))
    return Image.new("RGB", (side, side), colour), mask


def _oval(picture: Image.Image, side: int, rng: random.Random) -> tuple[Image.Image, np.ndarray]:
    """The middle of a photo, cut out as an oval."""
    short = min(picture.size)
    left = (picture.width - short) // 2
    top = (picture.height - short) // 2
    square = picture.convert("RGB").crop((left, top, left + short, top + short))
    y, x = np.mgrid[:side, :side] * 2 / (side - 1) - 1
    flat = rng.uniform(0.7, 1.0)
    return square.resize((side, side)), x**2 + (y / flat) ** 2 <= 1


def _square(picture: Image.Image, side: int, rng: random.Random) -> tuple[Image.Image, np.ndarray]:
    """A whole picture."""
    return picture.convert("RGB").resize((side, side)), np.ones((side, side), bool)


def _streets(root: Path) -> dict[str, list[Path]]:
    folders = {"train": "train", "val": "train", "test": "test"}
    return {
        part: sorted((root / f"camvid-crops/{name}").glob("*/*.png"))
        for part, name in folders.items()
    }


def emoji_scenes(root: Path) -> Scenes:
    """Emoji of four groups on photos of groceries; those of the test are other emoji."""
    groups = {
        row["classname"]: row["group_name"] for row in read_json(root / "emoji/splits/classes.json")
    }
    used = ("animal or plant", "food or drink", "smiley or emotion", "travel or place")
    split = read_json(root / "emoji/splits/coop/split_all.json")
    pool = {
        part: [
            (groups[name], root / "emoji/images" / path)
            for path, _, name in split[part]
            if groups[name] in used and not path.startswith("fluent-mono")
        ]
        for part in COUNTS
    }
    photos = {part: sorted((root / f"grocery/images/{part}").glob("*/*.jpg")) for part in COUNTS}
    return pasted(pool, photos, _sticker, "photo")


def omniglot_scenes(root: Path) -> Scenes:
    """Characters of three alphabets on street crops; other people drew those of the test."""
    used = ("Balinese", "Greek", "Korean")
    drawers = {"train": range(1, 13), "val": range(13, 15), "test": range(15, 21)}
    files = [
        (path.parent.name.rpartition("_")[0], path)
        for path in sorted((root / "omniglot/images").glob("*/*.png"))
    ]
    pool = {
        part: [
            (name, path)
            for name, path in files
            if name.startswith(used) and int(path.stem) in numbers
        ]
        for part, numbers in drawers.items()
    }
    return pasted(pool, _streets(root), _ink, "street")


def grocery_scenes(root: Path) -> Scenes:
    """Groceries of three kinds, cut out as ovals, on street crops."""
    kinds = {row["folder"]: row["kind"] for row in read_json(root / "grocery/classes.json")}
    pool = {
        part: [
            (kinds[path.parent.name], path)
            for path in sorted((root / f"grocery/images/{part}").glob("*/*.jpg"))
        ]
        for part in COUNTS
    }
    return pasted(pool, _streets(root), _oval, "street")


def cifar_scenes(root: Path) -> Scenes:
    """Pictures of four of CIFAR-10's classes on street crops."""
    used = ("airplane", "frog", "horse", "ship")
    folders = {"train": "train", "val": "train", "test": "test"}
    pool = {
        part: [
            (name, path)
            for name in used
            for path in sorted((root / f"cifar10/{folder}/{name}").glob("*.jpg"))[:600]
            if folder == "test" or (int(path.stem) % 5 == 0) == (part == "val")
        ]
        for part, folder in folders.items()
    }
    return pasted(pool, _streets(root), _square, "street")


CHOICE = {
    "CamVid windows": camvid_windows,
    "emoji scenes": emoji_scenes,
    "Omniglot scenes": omniglot_scenes,
}
TEST = {
    "coarse CamVid": camvid_coarse,
    "grocery scenes": grocery_scenes,
    "CIFAR-10 scenes": cifar_scenes,
}


def write(scenes: Scenes, images: int, out: Path) -> None:
    """Write a data set with so many images to train on: ``{part}/images``, ``{part}/masks``, and
    ``annotations/{part}.json`` in COCO's format."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "annotations").mkdir(parents=True)
    for part, count in {**COUNTS, "train": images}.items():
        content: dict[str, Any] = dict(images=[], annotations=[])
        content["categories"] = [dict(id=i, name=name) for i, name in enumerate(scenes.things)]
        for kind in ("images", "masks"):
            (out / part / kind).mkdir(parents=True)
        for number in range(count):
            scene = scenes.make(part, number)
            name = f"{number:03d}.png"
            scene.image.save(out / part / "images" / name)
            Image.fromarray(scene.labels).save(out / part / "masks" / name)
            content["images"].append(dict(id=number, file_name=name, width=SIDE, height=SIDE))
            for thing, box in scene.objects:
                content["annotations"].append(
                    dict(id=len(content["annotations"]) + 1, image_id=number, category_id=thing,
                         bbox=list(box), area=box[2] * box[3], iscrowd=0)
                )  # fmt: skip
        write_json(out / f"annotations/{part}.json", content)
