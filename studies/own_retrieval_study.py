#!/usr/bin/env python
"""Does metric learning on few photos beat frozen features? ``python studies/own_retrieval_study.py
DATA``.

The retrieval recipe of docs/own-data.md on the six data sets of studies/photos_study.py: half of up
to 20 classes train, and test images of the other half search among each other. The rate is chosen
on three data sets; the other three test it. Each run is measured beside the cosine of the features
that training starts from. All runs are rows of RESULTS and are not computed again.

    OMP_NUM_THREADS=1 python studies/own_retrieval_study.py data
    python studies/own_retrieval_study.py                                # only prints the tables
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import MODELS
from photos_study import (
    CHOICE,
    MOST,
    TEST,
    TESTED,
    Data,
    Files,
    by_class,
    chosen,
    grouped,
    judges,
    with_deviation,
)

from hypvision.engine import run as engine
from hypvision.engine.config import Run, load_config
from hypvision.io.errors import guard
from hypvision.io.files import read_json, write_json
from hypvision.tasks.metric_learning_metrics import evaluate_retrieval

RECIPE = Path(__file__).parents[1] / "configs/lhier/lhier_efficientnet-lite0_20e_grocery.py"
RATES = (3e-5, 1e-4, 3e-4)
SHOTS = ("4", "8", "16", "all")
CLASSES = 20
METRICS = ("recall@1", "map@r")


def characters(root: Path, classes: int) -> Data:
    """Some of Omniglot's characters, drawn by other people in the test."""
    files = sorted((root / "omniglot/images").glob("*/*.png"))
    train = by_class((path.parent.name, path) for path in files if int(path.stem) <= 14)
    test = by_class((path.parent.name, path) for path in files if int(path.stem) > 14)
    return chosen(train, test, size=96, classes=classes)


HELD_OUT = {
    "emoji": TEST["emoji"],
    "Omniglot characters": characters,
    "CamVid crops": TEST["CamVid crops"],
}


def link(data: Data, shots: str, seed: int, out: Path) -> int:
    """Folders train and test of links to the images that a run uses, of different classes; returns
    the number of classes to train on."""
    rng = random.Random(seed)
    shutil.rmtree(out, ignore_errors=True)
    names = rng.sample(sorted(data.train), len(data.train))
    half = (len(names) + 1) // 2
    tested = TESTED // (len(names) - half)
    parts: dict[str, tuple[Files, list[str], int]] = {
        "train": (data.train, names[:half], MOST if shots == "all" else int(shots)),
        "test": (data.test, names[half:], tested),
    }
    for part, (files, classes, most) in parts.items():
        for name in classes:
            folder = out / part / name.replace("/", "-")
            folder.mkdir(parents=True)
            paths = rng.sample(files[name], min(most, len(files[name])))
            for number, path in enumerate(paths):
                (folder / f"{number:03d}{path.suffix}").symlink_to(path.resolve())
    return half


def run_config(data: Data, classes: int, rate: float, seed: int, root: Path) -> Run:
    """The recipe on these folders, as docs/own-data.md writes it."""
    own: dict[str, Any] = {"classes": None, "ancestors": None}
    config = load_config(RECIPE)
    config.model.checkpoint = "zoo:tf_efficientnet_lite0.imagenet"
    config.model.num_classes = classes
    config.model.hier_loss.num_proxies = 64
    config.train_dataloader.batch_size = min(16, 4 * classes)
    for part, folder in (("train", "train"), ("val", "test"), ("test", "test")):
        dataset = config[f"{part}_dataloader"].dataset
        dataset.update(own, root=str(root / folder))
        dataset.transform.input_size = data.size
        if part != "train":
            dataset.gallery = None
    config.optim_wrapper.optimizer.lr = rate
    config.randomness = dict(seed=seed)
    config.vis_backends = [dict(type="LocalVisBackend")]
    config.visualizer.vis_backends = config.vis_backends
    return config


@torch.no_grad()
def frozen_features(runner: Any) -> dict[str, float]:
    """Retrieval by the cosine of the features that the training starts from."""
    model = MODELS.build(runner.cfg.model)
    model.init_weights()
    model.eval()
    found = []
    labels = []
    for batch in runner.test_dataloader:
        found.append(model.features(model.data_preprocessor(batch)["inputs"]))
        labels.append(batch["label"])
    return evaluate_retrieval(torch.cat(found), torch.cat(labels), space="cosine")


def run(data: Data, shots: str, rate: float, seed: int, out: Path) -> dict[str, Any]:
    """Train and measure one: ``frozen`` and ``trained`` are retrieval metrics in percent."""
    classes = link(data, shots, seed, out / "data")
    begin = time.process_time()
    work = out / "work"
    shutil.rmtree(work, ignore_errors=True)
    runner = engine.train(run_config(data, classes, rate, seed, out / "data"), work)
    seconds = time.process_time() - begin
    trained = runner.test()
    frozen = frozen_features(runner)
    return {
        "images": len(runner.train_dataloader.dataset),
        "core_seconds": round(seconds),
        "frozen": {key: round(frozen[key], 2) for key in METRICS},
        "trained": {key: round(float(trained[key]), 2) for key in METRICS},
    }


def study(args: Namespace) -> None:
    """Whatever is missing, then the tables."""
    path = Path(args.results)
    rows: dict[str, dict[str, Any]] = read_json(path) if path.is_file() else {}
    if args.data:
        fill(rows, path, args)
    print(tables(list(rows.values())))


def fill(rows: dict[str, dict[str, Any]], path: Path, args: Namespace) -> None:
    """Run what the rows lack: all rates with 8 images a class on the sets of the choice, then the
    best rate with each number of images on all sets."""
    first = [(name, "8", rate, 0) for rate in RATES for name in CHOICE]
    run_missing(first, rows, path, args)
    rate = best_rate(list(rows.values()))
    run_missing(
        [
            (name, shots, rate, seed)
            for seed in range(args.seeds)
            for shots in SHOTS
            for name in {**HELD_OUT, **CHOICE}
        ],
        rows,
        path,
        args,
    )


def run_missing(
    tasks: list[tuple[str, str, float, int]],
    rows: dict[str, dict[str, Any]],
    path: Path,
    args: Namespace,
) -> None:
    """Run these tasks, where no row has them, and write each row when it is done."""
    for name, shots, rate, seed in tasks:
        key = f"{name}, {shots}, rate {rate:g}, seed {seed}"
        if key not in rows:
            data = {**CHOICE, **HELD_OUT}[name](Path(args.data), classes=CLASSES)
            row = run(data, shots, rate, seed, Path(args.out))
            rows[key] = dict(set=name, shots=shots, rate=rate, seed=seed, **row)
            write_json(path, rows)


def gain(row: dict[str, Any], metric: str = "map@r") -> float:
    """What training adds to the frozen features, in points."""
    return row["trained"][metric] - row["frozen"][metric]


def best_rate(rows: list[dict[str, Any]]) -> float:
    """The rate with the largest mean gain of MAP@R over the sets of the choice."""
    return max(RATES, key=lambda rate: statistics.mean(map(gain, of_choice(rows, rate))))


def of_choice(rows: list[dict[str, Any]], rate: float) -> list[dict[str, Any]]:
    """The rows that a rate is judged by."""
    return [row for row in rows if judges(row, rate=rate)]


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown: the choice of the rate, then all rows of the chosen one."""
    lines = ["| rate | runs | mean gain of MAP@R | least gain |", "|--:|--:|--:|--:|"]
    for rate in RATES:
        gains = [gain(row) for row in of_choice(rows, rate)]
        if gains:
            mean = statistics.mean(gains)
            lines.append(f"| {rate:g} | {len(gains)} | {mean:+.1f} | {min(gains):+.1f} |")
    lines += [
        "",
        "| data | images a class | rate | seeds | frozen features: recall@1, MAP@R | trained "
        "| gain of MAP@R |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for (name, shots, rate), own in grouped(rows, "set", "shots", "rate"):
        cells = [
            ", ".join(
                f"{statistics.mean(row[part][metric] for row in own):.1f}" for metric in METRICS
            )
            for part in ("frozen", "trained")
        ]
        gains = with_deviation([gain(row) for row in own], "+.1f")
        lines.append(
            f"| {name} | {shots} | {rate:g} | {len(own)} | {cells[0]} | {cells[1]} | {gains} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "data", nargs="?", help="folder of the data sets; without it only the tables are printed"
    )
    parser.add_argument("--results", default="docs/studies/own-retrieval.json", metavar="FILE")
    parser.add_argument("--out", default="work_dirs/own-retrieval-study", metavar="DIR")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of the chosen rate (default: 3)"
    )
    sys.exit(guard(study, parser.parse_args()))
