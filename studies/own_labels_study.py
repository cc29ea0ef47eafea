#!/usr/bin/env python
"""Does the recipe of several labels an image beat frozen features?
``python studies/own_labels_study.py DATA``.

Three small data sets, none of which the recipe's rate was chosen on (it is that of
studies/photos_study.py). Each run trains on some images, chooses the decay of its probe by 64
others, and is measured on further ones by the mean average precision: the probe, and the last
epoch. DATA has the folders camvid, emoji and grocery. All runs are rows of RESULTS and are not
computed again.

    OMP_NUM_THREADS=1 python studies/own_labels_study.py data
    python studies/own_labels_study.py                             # only prints the table
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from own_scenes import CAMVID
from photos_study import grouped, with_deviation
from PIL import Image

from hypvision.engine import run as engine
from hypvision.engine.config import load_config
from hypvision.io.errors import guard
from hypvision.io.files import read_json, write_json, write_text
from hypvision.tasks.probe import FILE

RECIPE = Path(__file__).parents[1] / "configs" / "_base_" / "own_labels.py"
IMAGES = (32, 64, 128)
VALIDATION = 64
TESTED = 300


class Labelled(NamedTuple):
    """An image and the names of what it shows."""

    path: Path
    names: tuple[str, ...]


class Data(NamedTuple):
    """Images to train on and to validate with, and images of the test."""

    train: list[Labelled]
    test: list[Labelled]


ALWAYS = ("sky", "building", "road")  # classes that nearly every scene shows
SHOWN = 0.002  # share of the pixels from which on an image shows a class


def camvid(root: Path) -> Data:
    """Street scenes, with the classes that they show."""
    wanted = [number for number, name in enumerate(CAMVID) if name not in ALWAYS]

    def read(part: str) -> list[Labelled]:
        found = []
        for path in sorted((root / "camvid/img" / part).glob("*.jpg")):
            labels = np.asarray(Image.open(root / "camvid/ann" / part / f"{path.stem}.png"))
            shown = [CAMVID[n] for n in wanted if (labels == n).mean() >= SHOWN]
            found.append(Labelled(path, tuple(shown)))
        return found

    return Data(read("train") + read("val"), read("test"))


WORDS = 20  # the most frequent keywords


def emoji(root: Path) -> Data:
    """Noto's emoji, with those of their keywords that most emoji have; a third is for the test."""
    records = [one for one in read_json(root / "emoji/emoji.json") if "noto" in one["vendors"]]
    count = Counter(word for one in records for word in set(one["keywords"]))
    words = {word for word, _ in count.most_common(WORDS)}
    found = []
    for one in records:
        path = root / "emoji/images/noto" / f"{one['id']}.png"
        names = tuple(sorted(words.intersection(one["keywords"])))
        if names and path.is_file():
            found.append(Labelled(path, names))
    random.Random(0).shuffle(found)
    return Data(found[len(found) // 3 :], found[: len(found) // 3])


def grocery(root: Path) -> Data:
    """Photos of groceries, each with its kind and its group, of the groups with most classes."""
    rows = {row["folder"]: row for row in read_json(root / "grocery/classes.json")}
    count = Counter(row["coarse"] for row in rows.values())
    groups = {name for name, _ in count.most_common(10)}

    def read(part: str) -> list[Labelled]:
        files = sorted((root / "grocery/images" / part).glob("*/*.jpg"))
        found = [(path, rows[path.parent.name]) for path in files]
        return [
            Labelled(path, tuple(sorted({row["kind"], row["coarse"]})))
            for path, row in found
            if row["coarse"] in groups
        ]

    return Data(read("train"), read("test"))


SETS: dict[str, Callable[[Path], Data]] = {
    "CamVid scenes": camvid,
    "emoji keywords": emoji,
    "grocery groups": grocery,
}


def write(data: Data, images: int, seed: int, out: Path) -> None:
    """Write the tables of a run: so many images to train on, and those to validate and test with.
    Labels of the training alone count."""
    shutil.rmtree(out, ignore_errors=True)
    rng = random.Random(seed)
    ours = rng.sample(data.train, len(data.train))
    few = ours[VALIDATION : VALIDATION + images]
    known = {name for one in few for name in one.names}
    tested = random.Random(0).sample(data.test, min(TESTED, len(data.test)))
    for part, rows in (("train", few), ("val", ours[:VALIDATION]), ("test", tested)):
        (out / part).mkdir(parents=True)
        lines = ["image,labels"]
        for number, one in enumerate(rows):
            name = f"{part}/{number:03d}{one.path.suffix}"
            (out / name).symlink_to(one.path.resolve())
            lines.append(f"{name},{';'.join(sorted(known.intersection(one.names)))}")
        write_text(out / f"{part}.csv", "\n".join(lines) + "\n")


def run(data: Data, images: int, seed: int, out: Path) -> dict[str, Any]:
    """Train and measure one: ``probe`` and ``trained``, the mean average precision on the test
    images in percent, the number of ``classes``, and ``core_seconds``."""
    root = out / "data"
    write(data, images, seed, root)
    config = load_config(RECIPE)
    for part in ("train", "val", "test"):
        loader = config[f"{part}_dataloader"]
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.update(root=str(root), ann_file=str(root / f"{part}.csv"))
        loader.dataset.classes = str(root / "train.csv")
    known = {name for line in (root / "train.csv").read_text().splitlines()[1:]
             for name in line.partition(",")[2].split(";") if name}  # fmt: skip
    config.model.backbone.num_classes = len(known)
    config.default_hooks.checkpoint.max_keep_ckpts = 1
    config.vis_backends = [dict(type="LocalVisBackend")]
    config.visualizer.vis_backends = config.vis_backends
    config.randomness = dict(seed=seed)
    work = out / "work"
    shutil.rmtree(work, ignore_errors=True)
    begin = time.process_time()
    runner = engine.train(config, work)
    seconds = time.process_time() - begin
    trained = runner.test()["mAP"]
    weights = torch.load(work / FILE, map_location="cpu", weights_only=False)["state_dict"]
    runner.model.load_state_dict(weights)
    found = dict(probe=round(runner.test()["mAP"], 2), trained=round(trained, 2))
    return dict(found, classes=len(known), core_seconds=round(seconds))


def study(args: Namespace) -> None:
    """Whatever is missing, then the table."""
    path = Path(args.results)
    rows: dict[str, dict[str, Any]] = read_json(path) if path.is_file() else {}
    tasks = [
        (name, images, seed)
        for seed in range(args.seeds)
        for images in args.images
        for name in args.sets
    ]
    for name, images, seed in tasks if args.data else ():
        key = f"{name}, {images}, seed {seed}"
        if key not in rows:
            row = run(SETS[name](Path(args.data)), images, seed, Path(args.out))
            rows[key] = dict(set=name, images=images, seed=seed, **row)
            write_json(path, rows)
    print(table(list(rows.values())))


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Markdown: a row for each data set and number of images, and the gains as a sentence."""
    lines = [
        "| data | images | labels | seeds | probe, mAP | trained, mAP | gain |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    ordered = sorted(rows, key=lambda row: ([*SETS].index(row["set"]), row["images"]))
    for (name, images), own in grouped(ordered, "set", "images"):
        gain = statistics.mean(row["trained"] - row["probe"] for row in own)
        probe, trained = (with_deviation([row[key] for row in own]) for key in ("probe", "trained"))
        classes = max(row["classes"] for row in own)
        lines.append(
            f"| {name} | {images} | {classes} | {len(own)} | {probe} | {trained} | {gain:+.1f} |"
        )
    gains = [row["trained"] - row["probe"] for row in ordered]
    above = sum(gain > 0 for gain in gains)
    return "\n".join(lines) + (
        f"\n\nOf {len(gains)} runs {above} are above the probe; the mean gain is "
        f"{statistics.mean(gains):.1f} points, the least {min(gains):+.1f}."
    )


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "data", nargs="?", help="folder of the data sets; without it only the table is printed"
    )
    parser.add_argument("--results", metavar="FILE", default="docs/studies/own-labels.json")
    parser.add_argument("--out", default="work_dirs/own-labels-study", metavar="DIR")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS, metavar="NAME")
    parser.add_argument("--images", nargs="+", type=int, default=IMAGES, metavar="N")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of each (default: 3)"
    )
    sys.exit(guard(study, parser.parse_args()))
