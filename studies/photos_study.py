#!/usr/bin/env python
"""Does fine-tuning on few photos beat a linear probe? ``python studies/photos_study.py DATA``.

Six small data sets, three to choose the recipe of configs/_base_/own_photos.py on and three to
test it. DATA has the folders grocery, cifar10, emoji, omniglot and camvid. Each run trains on K
images a class, chooses the decay of its probe and its best epoch by 8 others, and is measured on
further ones: the probe, the best checkpoint, the last. All runs are rows of RESULTS and are not
computed again.

    OMP_NUM_THREADS=1 python studies/photos_study.py data --results docs/studies/photos.json
    python studies/photos_study.py --results docs/studies/photos.json      # only prints the tables
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from hypvision.data.image_folder import build_transform
from hypvision.engine import run as engine
from hypvision.engine.config import load_config
from hypvision.engine.reports import BASELINE
from hypvision.io.errors import HypvisionError, guard
from hypvision.io.files import read_json, write_json
from hypvision.io.images import open_image
from hypvision.tasks import ImageClassifier
from hypvision.tasks.probe import head_inputs
from hypvision.zoo.familiar import Familiar, fit

Files = dict[str, list[Path]]
RECIPE = Path(__file__).parents[1] / "configs" / "_base_" / "own_photos.py"
MOST = 32  # images a class where K is "all"
VALIDATION = 8
TESTED = 300


class Data(NamedTuple):
    """Images by class, to train on and to test with, the pixels a side, and images of other
    classes."""

    train: Files
    test: Files
    size: int
    others: list[Path]


def drawn(files: Files, classes: int) -> list[str]:
    """The names of so many classes, by chance, of those with enough images."""
    enough = sorted(name for name, paths in files.items() if len(paths) >= VALIDATION + 4)
    return sorted(random.Random(0).sample(enough, min(classes, len(enough))))


def by_class(pairs: Iterable[tuple[str, Path]]) -> Files:
    """Paths by their class, sorted."""
    found = defaultdict(list)
    for name, path in pairs:
        found[name].append(path)
    return {name: sorted(paths) for name, paths in found.items()}


def class_folders(root: Path, groups: dict[str, str] | None = None) -> Files:
    """The photos of a folder by the names of their class folders, or by the groups of these."""
    return by_class(
        (groups[path.parent.name] if groups else path.parent.name, path)
        for path in root.glob("*/*.jpg")
    )


def chosen(train: Files, test: Files, size: int, classes: int = 10) -> Data:
    """The data of some of the classes."""
    names = [name for name in drawn(train, classes) if name in test]
    if len(names) < 2:
        found = sum(map(len, train.values()))
        raise HypvisionError(
            f"{found} images to train on and {len(names)} classes with enough of them were found "
            "below DATA; the folders that a data set needs stand in this script."
        )
    others = [path for name, paths in sorted(test.items()) if name not in names for path in paths]
    return Data(
        {name: train[name] for name in names}, {name: test[name] for name in names}, size, others
    )


def grocery(root: Path, classes: int = 10) -> Data:
    """Some of the 81 classes."""
    pictures = root / "grocery" / "images"
    return chosen(
        class_folders(pictures / "train"),
        class_folders(pictures / "test"),
        size=128,
        classes=classes,
    )


def coarse_grocery(root: Path, classes: int = 10) -> Data:
    """Some of the 43 groups of these classes."""
    groups = {row["folder"]: row["coarse"] for row in read_json(root / "grocery/classes.json")}
    pictures = root / "grocery" / "images"
    return chosen(
        class_folders(pictures / "train", groups),
        class_folders(pictures / "test", groups),
        size=96,
        classes=classes,
    )


def cifar10(root: Path, classes: int = 10) -> Data:
    """Classes of objects, enlarged."""
    pictures = root / "cifar10"
    return chosen(
        class_folders(pictures / "train"),
        class_folders(pictures / "test"),
        size=96,
        classes=classes,
    )


def emoji(root: Path, classes: int = 10) -> Data:
    """Some of the 86 groups of emoji, by all vendors; the emoji of the test are others."""
    split = read_json(root / "emoji/splits/coop/split_all.json")
    parts = [
        by_class((name, root / "emoji/images" / path) for path, _, name in split[part])
        for part in ("train", "test")
    ]
    return chosen(*parts, size=128, classes=classes)


def omniglot(root: Path, classes: int = 10) -> Data:
    """The six alphabets; the drawers of the test are others."""
    files = sorted((root / "omniglot/images").glob("*/*.png"))
    train = by_class(
        (path.parent.name.rpartition("_")[0], path) for path in files if int(path.stem) <= 14
    )
    test = by_class(
        (path.parent.name.rpartition("_")[0], path) for path in files if int(path.stem) > 14
    )
    return chosen(train, test, size=96, classes=classes)


STREET = {"Building": 1, "Road": 3, "Pavement": 4, "Tree": 5, "Fence": 7, "Car": 8, "Bicyclist": 10}


def camvid(root: Path, classes: int = 10) -> Data:
    """Squares of 112 pixels of street scenes, named by the class that the middle shows."""
    parts = []
    for part in ("train", "test"):
        out = root / "camvid-crops" / part
        if not out.is_dir():
            write_crops(root, part, out)
        parts.append(by_class((path.parent.name, path) for path in out.glob("*/*.png")))
    return chosen(*parts, size=224, classes=classes)


def write_crops(root: Path, part: str, out: Path) -> None:
    """Up to 80 crops of each class, one a scene, from places where half of the middle is of this
    class."""
    rng = np.random.default_rng(0)
    side = 112
    inner = 56
    for path in sorted((root / f"camvid/img/{part}").glob("*.jpg")):
        labels = np.asarray(Image.open(root / f"camvid/ann/{part}/{path.stem}.png"))
        image = Image.open(path)
        for name, number in STREET.items():
            folder = out / name
            folder.mkdir(parents=True, exist_ok=True)
            if len(list(folder.iterdir())) >= 80:
                continue
            for _ in range(20):
                y, x = (int(rng.integers(0, length - side)) for length in labels.shape)
                middle = labels[y + 28 : y + 28 + inner, x + 28 : x + 28 + inner]
                if (middle == number).mean() >= 0.5:
                    image.crop((x, y, x + side, y + side)).save(folder / f"{path.stem}.png")
                    break


CHOICE = {"grocery": grocery, "coarse grocery": coarse_grocery, "CIFAR-10": cifar10}
TEST = {"emoji": emoji, "Omniglot alphabets": omniglot, "CamVid crops": camvid}
SHOTS = ("4", "8", "16", "all")
LR = "optim_wrapper.optimizer.lr"


def rates(lr: float, head: float = 1.0, init: str = "probe") -> dict[str, Any]:
    """Changes of the recipe: its rate, that of the head by a factor, and how the head begins."""
    return {
        "model.head_init": init,
        LR: lr,
        "optim_wrapper.paramwise_cfg.lr_mult": {"backbone.classifier": head},
    }


GENTLE = {
    "train_dataloader.dataset.transform.auto_augment": None,
    "train_dataloader.dataset.transform.scale": (0.5, 1.0),
}
MAPPER = {
    "model.type": "HierarchyClassifier",
    "model.backbone.model_name": "himapper_tf_efficientnet_lite0",
    "model.frozen": ("trunk.conv_stem.*", "trunk.bn1.*", "trunk.blocks.[012].*"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "timm's head, 5e-4, head 5e-3": rates(5e-4, 10.0, "timm"),
    "zeros, 5e-4, head 5e-3": rates(5e-4, 10.0, "zero"),
    "zeros, 1e-4, head 1e-3": rates(1e-4, 10.0, "zero"),
    "probe, 3e-5": rates(3e-5),
    "probe, 1e-4": rates(1e-4),
    "probe, 1e-4, crops and flips alone": rates(1e-4) | GENTLE,
    "probe, 3e-4": rates(3e-4),
    "Hi-Mapper, 3e-5": MAPPER | {LR: 3e-5},
    "Hi-Mapper, 1e-4": MAPPER | {LR: 1e-4},
    "Hi-Mapper, 3e-4": MAPPER | {LR: 3e-4},
    "Hi-Mapper, 1e-3": MAPPER | {LR: 1e-3},
}
# The recipes of docs/own-data.md, which are run with more seeds than the first.
RECIPES = ("probe, 1e-4", "Hi-Mapper, 3e-4")


def link(data: Data, shots: str, seed: int, out: Path) -> None:
    """Folders train, val and test of links to the images that a run uses."""
    rng = random.Random(seed)
    shutil.rmtree(out, ignore_errors=True)
    for name in data.train:
        paths = rng.sample(data.train[name], len(data.train[name]))
        few = paths[VALIDATION : VALIDATION + (MOST if shots == "all" else int(shots))]
        tested = rng.sample(data.test[name], min(len(data.test[name]), TESTED // len(data.train)))
        for part, files in (("train", few), ("val", paths[:VALIDATION]), ("test", tested)):
            folder = out / part / name.replace("/", "-")
            folder.mkdir(parents=True)
            for number, path in enumerate(files):
                (folder / f"{number:03d}{path.suffix}").symlink_to(path.resolve())


def run(data: Data, shots: str, seed: int, changes: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train and measure one.

    Returns:
        ``probe``, ``best`` and ``last``: top-1 on the test images, in percent; ``probe_validation``
            and
        ``last_validation``: on the validation images; ``images`` trained on; ``core_seconds``.
    """
    link(data, shots, seed, out / "data")
    config = load_config(RECIPE)
    for part in ("train", "val", "test"):
        loader = config[f"{part}_dataloader"]
        loader.num_workers = 0
        loader.persistent_workers = False
        loader.dataset.root = str(out / "data" / part)
        loader.dataset.transform.input_size = data.size
    config.model.backbone.num_classes = len(data.train)
    config.default_hooks.checkpoint.max_keep_ckpts = 1
    config.vis_backends = [dict(type="LocalVisBackend")]
    config.visualizer.vis_backends = config.vis_backends
    config.merge_from_dict({**changes, "randomness.seed": seed})
    begin = time.process_time()
    work = out / "work"
    shutil.rmtree(work, ignore_errors=True)
    runner = engine.train(config, work)
    row: dict[str, Any] = dict(images=len(runner.train_dataloader.dataset))
    row["core_seconds"] = round(time.process_time() - begin)
    row["last_validation"] = float(runner.message_hub.get_scalar("val/top1").current())
    row["last"] = runner.test()["top1"]
    files = {"probe": work / "probe.pth", "best": next(iter(work.glob("best_*.pth")), None)}
    for name, path in files.items():
        if path is not None and path.is_file():
            runner.model.load_state_dict(
                torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
            )
            row[name] = runner.test()["top1"]
    row["probe_validation"] = runner.message_hub.get_info(BASELINE, {}).get("top1")
    return {
        key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()
    }


def study(args: Namespace) -> None:
    """Whatever is missing, then the tables."""
    if args.case:
        write_case(Path(args.data), Path(args.case))
        return
    if args.unlike:
        found = unlike(Path(args.data))
        write_json(args.unlike, found)
        print(unlike_table(found))
        return
    path = Path(args.results)
    rows: dict[str, dict[str, Any]] = read_json(path) if path.is_file() else {}
    tasks = [
        (name, shots, setting, seed)
        for seed in range(args.seeds)
        for setting in args.settings
        for name in args.sets
        for shots in args.shots
        if seed == 0 or setting in RECIPES
    ]
    for name, shots, setting, seed in tasks if args.data else ():
        key = f"{name}, {shots}, {setting}, seed {seed}"
        if key in rows:
            continue
        data = {**CHOICE, **TEST}[name](Path(args.data))
        row = run(data, shots, seed, SETTINGS[setting], Path(args.out))
        rows[key] = dict(set=name, shots=shots, setting=setting, seed=seed, **row)
        write_json(path, rows)
    print(tables(list(rows.values())))


def write_case(root: Path, out: Path) -> None:
    """The folders that the recipe of docs/own-data.md was tried on as it stands: 20 classes of
    groceries with 8 photos each to train on and 8 to validate with, and all published test photos
    of theirs."""
    rng = random.Random(0)
    photos = root / "grocery/images"
    for name in rng.sample(sorted(path.name for path in (photos / "train").iterdir()), 20):
        files = sorted((photos / "train" / name).iterdir())
        rng.shuffle(files)
        tested = sorted((photos / "test" / name).iterdir())
        for part, few in (("train", files[:8]), ("val", files[8:16]), ("test", tested)):
            folder = out / part / name
            folder.mkdir(parents=True, exist_ok=True)
            for path in few:
                (folder / path.name).symlink_to(path.resolve())


def unlike(root: Path) -> dict[str, dict[str, float]]:
    """For each data set, by the frozen features of 16 images a class: the shares of pictures that
    are called unlike it, in percent, of its own test images (false alarms), of its other classes
    and of the other data sets."""
    model = ImageClassifier(
        dict(model_name="tf_efficientnet_lite0"), checkpoint="zoo:tf_efficientnet_lite0.imagenet"
    )
    model.init_weights()
    transform = build_transform(load_config(RECIPE).test_dataloader.dataset.transform)
    rng = random.Random(0)

    def features(paths: list[Path]) -> torch.Tensor:
        batches = (paths[i : i + 32] for i in range(0, len(paths), 32))
        return head_inputs(
            model.backbone,
            (torch.stack([transform(open_image(str(p))) for p in b]) for b in batches),
        )

    known: dict[str, Familiar] = {}
    tested: dict[str, torch.Tensor] = {}
    for name, make in {**CHOICE, **TEST}.items():
        data = make(root)
        shuffled = {key: rng.sample(paths, len(paths)) for key, paths in data.train.items()}
        train = [
            path for paths in shuffled.values() for path in paths[VALIDATION : VALIDATION + 16]
        ]
        held_out = [path for paths in shuffled.values() for path in paths[:VALIDATION]]
        sizes = [len(paths[VALIDATION : VALIDATION + 16]) for paths in shuffled.values()]
        labels = torch.arange(len(shuffled)).repeat_interleave(torch.tensor(sizes))
        known[name] = fit(features(train), labels, features(held_out))
        tested[name] = features(
            [
                path
                for paths in data.test.values()
                for path in rng.sample(paths, min(12, len(paths)))
            ]
        )
        if data.others:
            tested[f"{name}, other classes"] = features(
                rng.sample(data.others, min(120, len(data.others)))
            )
    return {name: _shares(name, found, tested) for name, found in known.items()}


def _shares(name: str, known: Familiar, tested: dict[str, torch.Tensor]) -> dict[str, float]:
    found = {
        "limit": round(known.limit, 3),
        "false alarms, held out": round(100 * known.false_alarms, 1),
    }
    for other, features in tested.items():
        of = other.partition(",")[0]
        same_photos = {of, name} == {"grocery", "coarse grocery"}
        if of == name or not same_photos and other == of:
            found[other] = round(
                100 * (known.distances(features) > known.limit).float().mean().item(), 1
            )
    return found


def unlike_table(found: dict[str, dict[str, float]]) -> str:
    """Markdown: what :func:`unlike` found."""
    lines = [
        "| trained on | own test images | other classes | other data sets |",
        "|---|--:|--:|--:|",
    ]
    for name, shares in found.items():
        near = shares.get(f"{name}, other classes")
        far = [value for other, value in shares.items() if other in found and other != name]
        cells = [
            f"{shares[name]:.1f}",
            "" if near is None else f"{near:.1f}",
            f"{min(far):.1f} to {max(far):.1f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown: the choice of the recipe, then what it reaches, top-1 in percent."""
    lines = [
        "| setting | runs | probe | last epoch | best epoch | what `result` says | least gain of "
        "that |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for setting in SETTINGS:
        own = [row for row in rows if judges(row, setting=setting)]
        if own:
            means = [
                statistics.mean(row[key] for row in own if key in row) for key in ("last", "best")
            ]
            probes = [_probe(row, rows) for row in own]
            taken = [_taken(row) for row in own]
            least = min(value - probe for value, probe in zip(taken, probes))
            cells = [statistics.mean(probes), *means, statistics.mean(taken)]
            lines.append(
                f"| {setting} | {len(own)} | {' | '.join(f'{cell:.1f}' for cell in cells)} | "
                f"{least:+.1f} |"
            )
    lines += [
        "",
        "| data | images a class | setting | seeds | probe | last epoch | best epoch "
        "| what `result` says |",
        "|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for (name, shots, setting), own in sorted(
        grouped(rows, "set", "shots", "setting"), key=lambda group: _place(*group[0])
    ):
        values = ([_probe(row, rows), row["last"], row["best"]] for row in own)
        cells = [with_deviation(column) for column in zip(*values)]
        cells.append(f"{statistics.mean(map(_taken, own)):.1f}")
        lines.append(f"| {name} | {shots} | {setting} | {len(own)} | {' | '.join(cells)} |")
    verdicts = [*(verdict(rows, setting) for setting in RECIPES), compared(rows)]
    return "\n".join([*lines, "", *filter(None, verdicts)])


def _place(name: str, shots: str, setting: str) -> tuple[int, int, int]:
    """Where a row of the table stands: by its data, then by settings, then by images a class."""
    return list(CHOICE | TEST).index(name), list(SETTINGS).index(setting), SHOTS.index(shots)


def judges(row: dict[str, Any], **setting: Any) -> bool:
    """Whether a setting is judged by a row: with 8 images a class of a set of the choice, and the
    first seed."""
    asked = dict(setting, shots="8", seed=0)
    return row["set"] in CHOICE and all(row[key] == value for key, value in asked.items())


def grouped(
    rows: list[dict[str, Any]], *keys: str
) -> list[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """The rows of equal values of these keys together, in the order of their first ones."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(found.items())


def with_deviation(values: Sequence[float], form: str = ".1f") -> str:
    """The mean, and the standard deviation of several values."""
    mean = f"{statistics.mean(values):{form}}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def verdict(rows: list[dict[str, Any]], setting: str) -> str:
    """How often the better of a recipe and its probe is above the probe, as a sentence."""
    own = [row for row in rows if row["setting"] == setting]
    if not own:
        return ""
    gains = [_taken(row) - _probe(row, rows) for row in own]
    above = sum(gain > 0 for gain in gains)
    below = sum(gain < 0 for gain in gains)
    means = [
        statistics.mean(_taken(row) - _probe(row, rows) for row in group)
        for _, group in grouped(own, "set", "shots")
    ]
    worse = sum(mean < 0 for mean in means)
    return (
        f"With the setting {setting}, {above} of {len(own)} runs are above the probe and {below} "
        f"below it; the mean gain is {statistics.mean(gains):.1f} points, the least "
        f"{min(gains):+.1f}. Of {len(means)} means over seeds {worse} are below it, the least is "
        f"{min(means):+.1f}."
    )


def last_epochs(rows: list[dict[str, Any]], setting: str) -> dict[tuple[Any, ...], float]:
    """What the last epoch of a setting reached, by set, images a class and seed."""
    own = [row for row in rows if row["setting"] == setting]
    return {(row["set"], row["shots"], row["seed"]): row["last"] for row in own}


def compared(rows: list[dict[str, Any]]) -> str:
    """What Hi-Mapper's recipe gains beside the plain one in the same runs, as a sentence."""
    plain = last_epochs(rows, RECIPES[0])
    mapper = last_epochs(rows, RECIPES[1])
    gains = [mapper[key] - plain[key] for key in mapper if key in plain]
    if not gains:
        return ""
    above = sum(gain > 0 for gain in gains)
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
    return (
        f"Beside plain fine-tuning on the same images its last epoch is better in {above} of "
        f"{len(gains)} runs, by {min(gains):.1f} to {max(gains):.1f} points, in the mean by "
        f"{statistics.mean(gains):.1f} with a standard error of {error:.1f}."
    )


def _taken(row: dict[str, Any]) -> float:
    """Of the probe and the last epoch the one that was better on the validation images, as the end
    of a training says; of a training that did not begin with a probe the last."""
    known = row["probe_validation"] is not None
    return (
        row["probe"] if known and row["last_validation"] < row["probe_validation"] else row["last"]
    )


def _probe(row: dict[str, Any], rows: list[dict[str, Any]]) -> float:
    """What the probe reached on the same images; a run that begins otherwise has none of its
    own."""
    keys = ("set", "shots", "seed")
    same = [
        other for other in rows if "probe" in other and all(other[key] == row[key] for key in keys)
    ]
    return same[0]["probe"] if same else float("nan")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "data", nargs="?", help="folder of the data sets; without it only the tables are printed"
    )
    parser.add_argument("--results", default="docs/studies/photos.json", metavar="FILE")
    parser.add_argument(
        "--case", metavar="DIR", help="only write the folders of the recipe's trial"
    )
    parser.add_argument(
        "--unlike", metavar="FILE", help="measure instead how pictures of other data are told"
    )
    parser.add_argument("--out", default="work_dirs/photos-study", metavar="DIR")
    parser.add_argument(
        "--sets", nargs="+", default=[*CHOICE, *TEST], choices=[*CHOICE, *TEST], metavar="NAME"
    )
    parser.add_argument("--shots", nargs="+", default=list(SHOTS), choices=SHOTS, metavar="K")
    parser.add_argument(
        "--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS, metavar="NAME"
    )
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of the recipes (default: 3)"
    )
    sys.exit(guard(study, parser.parse_args()))
