#!/usr/bin/env python
"""Do the recipes of own label maps and own boxes beat frozen features?
``python studies/own_heads_study.py masks|boxes DATA``.

Six small data sets (studies/own_scenes.py), three to choose the rate on with 16 images, three to
test it on. Each run is measured beside logistic regression on the features of every patch, of the
same backbone as ImageNet left it. DATA is that of studies/photos_study.py. All runs are rows of
RESULTS and are not computed again.

    OMP_NUM_THREADS=1 python studies/own_heads_study.py masks data
    python studies/own_heads_study.py masks                       # only prints the tables
"""

from __future__ import annotations

import copy
import io
import shutil
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from filelock import FileLock
from mmengine.registry import DATASETS, MODELS
from own_scenes import CHOICE, SIDE, TEST, Scenes, write
from photos_study import grouped, with_deviation
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy import ndimage
from torch import Tensor

from hypvision.engine import run as engine
from hypvision.engine.config import Run, load_config
from hypvision.engine.reports import BASELINE
from hypvision.io.errors import guard
from hypvision.io.files import read_json, write_json
from hypvision.tasks.probe import FILE, fit_path

CONFIGS = Path(__file__).parents[1] / "configs" / "_base_"
IMAGES = (8, 16, 64)
CHOSEN_WITH = 16
IGNORED = 255
MOST = 8192  # patches that a probe is fitted to
DECAYS = (0.1, 0.03, 0.01, 0.003, 0.001)
SIGN = "Nothing seems to be learned"
RATES = {"masks": (3e-4, 1e-3, 3e-3), "boxes": (1.5e-4, 5e-4, 1.5e-3)}
STEPS = {"masks": 100, "boxes": 100}
STAGES = ("choice", "test", "others")
METRIC = {"masks": "mIoU", "boxes": "AP50"}
SCRATCH = "HCFormer-tiny from scratch, Muon, 0.004"
PYRAMID = "Semantic FPN, 0.001"
CHANCE = "head by chance, "
SHORT = "0.0005, 12 epochs"
LONG = "0.0015, 300 steps"
# The recipes as they were, rivals, and a longer training.
OTHERS = {
    "masks": (CHANCE + "0.001", PYRAMID, SCRATCH),
    "boxes": (SHORT, "0.0005", LONG),
}


def settings(task: str) -> dict[str, dict[str, Any]]:
    """The changes of the recipe by the names of the settings that are chosen from."""
    return {f"{rate:g}": {"optim_wrapper.optimizer.lr": rate} for rate in RATES[task]}


def _changes(task: str, setting: str) -> dict[str, Any]:
    """The changes that belong to a setting, whatever its head begins with or its length is."""
    return settings(task).get(setting.removeprefix(CHANCE).split(",")[0], {})


# The recipes


def masks_config(scenes: Scenes, root: Path, setting: str) -> Run:
    """The recipe of label maps at SIDE pixels, its 4,000 iterations shortened."""
    config = load_config(_scratch(root) if setting == SCRATCH else CONFIGS / "own_label_maps.py")
    if setting == PYRAMID or setting.startswith(CHANCE):
        config.custom_hooks = []
    if setting == PYRAMID:
        config.model.neck, config.model.decode_head = pyramid()
        config.optim_wrapper.optimizer.lr = 1e-3
    config.model.data_preprocessor.size = (SIDE, SIDE)
    config.model.decode_head.num_classes = len(scenes.classes)
    for part in ("train", "val", "test"):
        data = config[f"{part}_dataloader"].dataset
        data.metainfo = dict(classes=scenes.classes)
        data.data_root = str(root)
        data.data_prefix = dict(img_path=f"{part}/images", seg_map_path=f"{part}/masks")
        data.img_suffix = ".png"
        for step in data.pipeline:
            if "scale" in step:
                step.scale = (4 * SIDE, SIDE)
            if "crop_size" in step:
                step.crop_size = (SIDE, SIDE)
    steps = STEPS["masks"]
    config.train_cfg.update(max_iters=steps, val_interval=steps)
    warm_up, decay = config.param_scheduler
    warm_up.end = decay.begin = steps // 20
    decay.end = steps
    config.default_hooks.checkpoint.update(interval=steps, save_best=None)
    return config


def pyramid() -> tuple[Any, Any]:
    """Neck and head of Semantic FPN, as narrow as those of own_boxes.py."""
    model = load_config(CONFIGS / "models" / "semantic_fpn_hcformer.py").model
    model.neck.update(in_channels=[24, 40, 112, 320], out_channels=64)
    model.decode_head.update(in_channels=[64, 64, 64, 64], channels=64)
    return model.neck, model.decode_head


def _scratch(root: Path) -> Path:
    """The recipe that docs/own-data.md had before, as a file."""
    path = root.parent / "scratch.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    bases = ("models/semantic_fpn_hcformer", "datasets/own_segmentation",
             "schedules/own_adamw_4k", "seg_runtime")  # fmt: skip
    net = dict(stem="conv", center=True, alpha=3.0, window_alpha=4.0, locality=2.0, layer_scale=0.1)
    path.write_text(
        f"_base_ = {[f'hypvision::_base_/{name}.py' for name in bases]}\n"
        f"model = dict(backbone={net})\n"
        "optim_wrapper = dict(optimizer=dict(type='TimmMuon', lr=4e-3))\n"
    )
    return path


def boxes_config(scenes: Scenes, root: Path, setting: str) -> Run:
    """The recipe of a folder with boxes at SIDE pixels, with as many epochs as make STEPS."""
    config = load_config(CONFIGS / "own_boxes.py")
    config.model.roi_head.bbox_head.num_classes = len(scenes.things)
    for part in ("train", "val", "test"):
        data = config[f"{part}_dataloader"].dataset
        data.metainfo = dict(classes=scenes.things)
        data.data_root = str(root)
        data.ann_file = f"annotations/{part}.json"
        data.data_prefix = dict(img=f"{part}/images")
        for step in data.pipeline:
            if step.type == "Resize":
                step.scale = (SIDE, SIDE)
        if part != "train":
            config[f"{part}_evaluator"].ann_file = str(root / data.ann_file)
    batch = config.train_dataloader.batch_size
    images = len(read_json(root / "annotations/train.json")["images"])
    steps = 3 * STEPS["boxes"] if setting == LONG else STEPS["boxes"]
    epochs = 12 if setting == SHORT else round(steps * batch / images)
    warm_up, decay = config.param_scheduler
    warm_up.end = decay.begin = max(1, round(epochs / 12))
    decay.end = epochs
    config.train_cfg.update(max_epochs=epochs, val_interval=epochs)
    config.default_hooks.checkpoint.update(interval=epochs, save_best=None)
    return config


# The probe


@torch.no_grad()
def patches(model: Any, samples: Iterable[Any]) -> Tensor:
    """The features ``(N, H, W, D)`` of every patch of four pixels a side: those of all levels of
    the backbone, resized, each channel of deviation 1 over its level."""
    model.eval()
    found = []
    for sample in samples:
        inputs = model.data_preprocessor(default_batch([sample]), False)["inputs"]
        levels = model.backbone(inputs)
        size = levels[0].shape[-2:]
        each = [F.interpolate(x, size=size, mode="bilinear", align_corners=False) for x in levels]
        found.append(torch.cat(each, dim=1).permute(0, 2, 3, 1))
    return torch.cat(found)


def default_batch(samples: list[Any]) -> dict[str, Any]:
    """Samples as mmengine's loaders give them."""
    return {key: [sample[key] for sample in samples] for key in samples[0]}


def fit(features: Tensor, labels: Tensor, classes: int) -> list[tuple[Tensor, Tensor]]:
    """Logistic regressions on some of the patches ``(N, H, W, D)`` with labels ``(N, H, W)``, one a
    decay."""
    x = features.flatten(0, -2)
    y = labels.flatten()
    known = (y != IGNORED).nonzero().flatten()
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:MOST]
    x = x[known[order]]
    scale = x.std(dim=0).clamp_min(1e-6)
    path = fit_path(x / scale, y[known[order]], classes, DECAYS, steps=40)
    return [(weight / scale, bias) for weight, bias in path]


def scores(features: Tensor, head: tuple[Tensor, Tensor]) -> Tensor:
    """The probabilities ``(N, C, H, W)`` of the classes of patches, at the pixels."""
    logits = F.linear(features, *head).permute(0, 3, 1, 2)
    logits = F.interpolate(logits, scale_factor=4, mode="bilinear", align_corners=False)
    return logits.softmax(dim=1)


def at_patches(labels: Tensor) -> Tensor:
    """The labels at the middle of each patch."""
    return labels[:, 2::4, 2::4]


def mean_iou(found: Tensor, truth: Tensor, classes: int) -> float:
    """The mean IoU in percent, over the classes that the truth has."""
    known = truth != IGNORED
    pairs = torch.bincount(
        truth[known].long() * classes + found[known].long(), minlength=classes**2
    ).reshape(classes, classes)
    hits = pairs.diag().double()
    union = pairs.sum(0) + pairs.sum(1) - hits
    return 100 * (hits / union)[pairs.sum(1) > 0].mean().item()


def ap50(found: list[dict[str, Any]], file: Path) -> float:
    """The average precision at an IoU of 0.5, in percent."""
    if not found:
        return 0.0
    with redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        measured = COCOeval(truth, truth.loadRes(found), "bbox")
        measured.evaluate()
        measured.accumulate()
        measured.summarize()
    return 100 * float(measured.stats[1])


def components(probabilities: Tensor) -> list[dict[str, Any]]:
    """Boxes around the connected pixels that a probe takes for one class (the last class is the
    background), with their mean probability as score."""
    boxes = []
    background = probabilities.shape[1] - 1
    for number, each in enumerate(probabilities.numpy()):
        best = each.argmax(axis=0)
        for thing in range(background):
            parts, _ = ndimage.label(best == thing)
            for part, (y, x) in enumerate(ndimage.find_objects(parts), 1):
                score = each[thing][parts == part].mean()
                box = [x.start, y.start, x.stop - x.start, y.stop - y.start]
                boxes.append(dict(image_id=number, category_id=thing, score=float(score), bbox=box))
    return boxes


def box_labels(file: Path, background: int) -> Tensor:
    """The class of the smallest box that holds a pixel, ``(N, SIDE, SIDE)``."""
    content = read_json(file)
    labels = torch.full((len(content["images"]), SIDE, SIDE), background)
    for item in sorted(content["annotations"], key=lambda item: -item["area"]):
        x, y, width, height = item["bbox"]
        labels[item["image_id"], y : y + height, x : x + width] = item["category_id"]
    return labels


def masks_of(root: Path, part: str) -> Tensor:
    """The label maps of a part."""
    files = sorted((root / part / "masks").iterdir())
    return torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])


def probe(task: str, config: Run, scenes: Scenes, root: Path) -> float:
    """What logistic regression on frozen features reaches on the test images; its decay is chosen
    on the validation images."""
    model = MODELS.build(config.model)
    parts = ("train", "val", "test")
    features = {}
    for part in parts:
        data = copy.deepcopy(config.test_dataloader.dataset)
        data.update(
            {
                key: config[f"{part}_dataloader"].dataset[key]
                for key in ("data_prefix", "ann_file")
                if key in data
            }
        )
        features[part] = patches(model, DATASETS.build(data))
    if task == "masks":
        classes = len(scenes.classes)
        labels = {part: masks_of(root, part) for part in parts}

        def measure(head: tuple[Tensor, Tensor], part: str) -> float:
            return mean_iou(scores(features[part], head).argmax(1), labels[part], classes)
    else:
        classes = len(scenes.things) + 1
        files = {part: root / f"annotations/{part}.json" for part in parts}
        labels = {part: box_labels(file, classes - 1) for part, file in files.items()}

        def measure(head: tuple[Tensor, Tensor], part: str) -> float:
            return ap50(components(scores(features[part], head)), files[part])

    heads = fit(features["train"], at_patches(labels["train"]), classes)
    best = max(heads, key=lambda head: measure(head, "val"))
    return measure(best, "test")


# One run


def run(
    task: str,
    scenes: Scenes,
    images: int,
    setting: str,
    seed: int,
    out: Path,
    known: Sequence[float] = (),
) -> dict[str, Any]:
    """Train and measure one: ``probe`` and ``trained`` in percent; ``taken``, what the last line of
    the training says to take, if it says so; ``told``, whether the training said that it learns
    nothing. ``known`` is what the probe is known to reach."""
    root = out / "data"
    write(scenes, images, root)
    make = masks_config if task == "masks" else boxes_config
    config = make(scenes, root, setting)
    for part in ("train", "val", "test"):
        loader = config[f"{part}_dataloader"]
        loader.update(num_workers=0, persistent_workers=False, pin_memory=False)
    config.vis_backends = [dict(type="LocalVisBackend")]
    config.visualizer.vis_backends = config.vis_backends
    config.merge_from_dict({**_changes(task, setting), "randomness.seed": seed})
    begin = time.process_time()
    work = out / "work"
    shutil.rmtree(work, ignore_errors=True)
    runner = engine.train(config, work)
    seconds = time.process_time() - begin
    log = "".join(path.read_text() for path in work.rglob("*.log"))
    trained = measured(task, runner, scenes, root)
    of_probe = known[0] if known else round(probe(task, runner.cfg, scenes, root), 2)
    row = dict(probe=of_probe, trained=round(trained, 2), told=SIGN in log)
    if (work / FILE).is_file():
        row["taken"] = round(taken(runner, trained, scenes, root), 2)
    return dict(row, core_seconds=round(seconds))


def taken(runner: Any, trained: float, scenes: Scenes, root: Path) -> float:
    """What the better of the probe that the training began with and its end reaches; the better one
    by the validation images."""
    end = float(runner.message_hub.get_scalar("val/mIoU").current())
    if runner.message_hub.get_info(BASELINE)["mIoU"] <= end:
        return trained
    path = Path(runner.work_dir, FILE)
    weights = torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
    runner.model.load_state_dict(weights)
    return measured("masks", runner, scenes, root)


@torch.no_grad()
def measured(task: str, runner: Any, scenes: Scenes, root: Path) -> float:
    """What the trained model reaches on the test images, measured as the probe is."""
    model = runner.model
    model.eval()
    outputs = [out for batch in runner.test_dataloader for out in model.test_step(batch)]
    if task == "masks":
        found = torch.cat([out.pred_sem_seg.data for out in outputs])
        return mean_iou(found, masks_of(root, "test"), len(scenes.classes))
    boxes = []
    for out in outputs:
        each = out.pred_instances
        for (x, y, right, bottom), score, label in zip(
            each.bboxes.tolist(), each.scores.tolist(), each.labels.tolist()
        ):
            boxes.append(
                dict(image_id=out.img_id, category_id=label, score=score,
                     bbox=[x, y, right - x, bottom - y])
            )  # fmt: skip
    return ap50(boxes, root / "annotations/test.json")


# The study


def study(args: Namespace) -> None:
    """Whatever is missing, then the tables."""
    path = Path(args.results or f"docs/studies/own-{args.task}.json")
    for name, images, setting, seed in tasks(args, read_rows(path)) if args.data else ():
        fill(path, args, name, images, setting, seed)
    print(tables(args.task, list(read_rows(path).values())))


def tasks(args: Namespace, rows: dict[str, dict[str, Any]]) -> Iterator[tuple[str, int, str, int]]:
    """The runs in their order, as set, images, setting and seed: all rates on the sets of the
    choice, then the best one on the others with each number of images and on all with each seed,
    then the recipe as it was."""
    for setting in settings(args.task) if "choice" in args.stages else ():
        for name in CHOICE:
            yield name, CHOSEN_WITH, setting, 0
    for seed in range(args.seeds) if "test" in args.stages else ():
        best = chosen(args.task, list(rows.values()))
        for images in IMAGES:
            for name in TEST:
                yield name, images, best, seed
        for name in CHOICE:
            yield name, CHOSEN_WITH, best, seed
    for setting in OTHERS[args.task] if "others" in args.stages else ():
        for name in {**TEST, **CHOICE}:
            yield name, CHOSEN_WITH, setting, 0


def fill(path: Path, args: Namespace, name: str, images: int, setting: str, seed: int) -> None:
    """Run one, unless a row has it, and write its row beside those that others have written."""
    key = f"{name}, {images}, {setting}, seed {seed}"
    rows = read_rows(path)
    if key in rows or name not in args.sets:
        return
    scenes = {**CHOICE, **TEST}[name](Path(args.data))
    known = [row["probe"] for row in rows.values() if (row["set"], row["images"]) == (name, images)]
    out = Path(args.out, args.task, name.replace(" ", "-"))
    row = run(args.task, scenes, images, setting, seed, out, known)
    with FileLock(f"{path}.lock"):
        rows = read_rows(path)
        rows[key] = dict(set=name, images=images, setting=setting, seed=seed, **row)
        write_json(path, rows)


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows that are there."""
    return read_json(path) if path.is_file() else {}


def of_choice(rows: list[dict[str, Any]], setting: str) -> list[dict[str, Any]]:
    """The rows that a setting is judged by."""
    return [
        row
        for row in rows
        if row["set"] in CHOICE
        and (row["images"], row["setting"], row["seed"]) == (CHOSEN_WITH, setting, 0)
    ]


def chosen(task: str, rows: list[dict[str, Any]]) -> str:
    """The setting with the best mean over the sets of the choice."""
    return max(
        settings(task),
        key=lambda name: statistics.mean(row["trained"] for row in of_choice(rows, name)),
    )


def tables(task: str, rows: list[dict[str, Any]]) -> str:
    """Markdown: the choice of the setting, then all rows."""
    metric = METRIC[task]
    lines = [
        f"| rate | runs | probe, {metric} | trained, {metric} | least gain |",
        "|---|--:|--:|--:|--:|",
    ]
    for setting in {row["setting"]: None for row in rows}:
        own = of_choice(rows, setting)
        if len(own) == len(CHOICE):
            means = [statistics.mean(row[key] for row in own) for key in ("probe", "trained")]
            least = min(row["trained"] - row["probe"] for row in own)
            lines.append(
                f"| {setting} | {len(own)} | {means[0]:.1f} | {means[1]:.1f} | {least:+.1f} |"
            )
    lines += [
        "",
        f"| data | images | rate | seeds | probe, {metric} | trained, {metric} | gain |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    ordered = sorted(rows, key=lambda row: _place(task, row))
    for (name, images, setting), own in grouped(ordered, "set", "images", "setting"):
        told = ", told" if any(row["told"] for row in own) else ""
        begun = ""
        if any(row.get("taken", row["trained"]) != row["trained"] for row in own):
            taken = statistics.mean(row.get("taken", row["trained"]) for row in own)
            begun = f" ({taken:.1f})"
        trained = with_deviation([row["trained"] for row in own])
        gain = statistics.mean(row["trained"] - row["probe"] for row in own)
        lines.append(
            f"| {name} | {images} | {setting} | {len(own)} | {own[0]['probe']:.1f} | "
            f"{trained}{begun}{told} | {gain:+.1f} |"
        )
    return "\n".join([*lines, "", verdict(task, rows)])


def verdict(task: str, rows: list[dict[str, Any]]) -> str:
    """What the chosen setting gains on the sets of the test, as a sentence."""
    best = chosen(task, rows)
    own = [row for row in rows if row["set"] in TEST and row["setting"] == best]
    gains = [row["trained"] - row["probe"] for row in own]
    if not gains:
        return ""
    above = sum(gain > 0 for gain in gains)
    return (
        f"With {best}, {above} of {len(gains)} runs of the test are above the probe; the mean gain "
        f"is {statistics.mean(gains):.1f} points, the least {min(gains):+.1f}."
    )


def _place(task: str, row: dict[str, Any]) -> tuple[bool, bool, str, int, int]:
    """Where a row stands: first what the settings are chosen by, then what tests them."""
    names = [*CHOICE, *TEST]
    other = row["setting"] not in settings(task)
    return other, row["set"] in TEST, row["setting"], row["images"], names.index(row["set"])


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=list(STEPS), help="which recipe")
    parser.add_argument(
        "data", nargs="?", help="folder of the data sets; without it only the tables are printed"
    )
    parser.add_argument("--results", metavar="FILE", help="default: docs/studies/own-TASK.json")
    parser.add_argument("--out", default="work_dirs/own-heads-study", metavar="DIR")
    parser.add_argument("--sets", nargs="+", default=[*CHOICE, *TEST], metavar="NAME")
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of the chosen rate (default: 3)"
    )
    sys.exit(guard(study, parser.parse_args()))
