"""Configs cut down to one step on procedural images in the layouts of the real data sets."""

from __future__ import annotations

import json
import re
from itertools import chain, takewhile
from pathlib import Path

import pytest
from helpers.shapes.export import export

from hypvision.engine.config import load_config
from hypvision.io.shipped import shipped_configs

ROOT = Path(__file__).parents[2] / "configs"
WHOLE = (
    "hcformer/hcformer-nano_4xb256-310e_in1k.py",
    "hcformer/semantic-fpn_hcformer-nano_4xb4-80k_ade20k-512x512.py",
    "hcformer/mask-rcnn_hcformer-nano_8xb2-1x_coco.py",
)


def shipped(pattern="*"):
    """The paths of the shipped configs below ``configs/`` that fit a pattern, with those that are
    rows of tables and have no file."""
    return sorted(path for path in shipped_configs().values() if path.match(pattern))


def braces(pattern):
    """``a{b,c}d`` as a shell expands it."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    parts = [
        pattern[: found.start()] + part + pattern[found.end() :] for part in found[1].split(",")
    ]
    return list(chain.from_iterable(map(braces, parts)))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The procedural images under the names that the real data sets have."""
    import hypvision.openmmlab  # noqa: F401 - answers for mmcv's operations, before mmdet asks for them

    from mmdet.datasets import CocoDataset  # isort: skip

    root = tmp_path_factory.mktemp("data")
    export(root / "imagenet", "imagefolder", 32, 16, 64)
    export(root / "cifar10", "imagefolder", 32, 16, 32, level="kind")
    (root / "cifar10/val").rename(root / "cifar10/test")
    export(root / "ade", "ade", 4, 2, 64, level="kind")
    export(root / "shapes_coco", "coco", 4, 2, 64, level="kind")
    coco = export(root / "coco", "coco", 4, 2, 64, level="kind")
    for path in (coco / "annotations").glob(
        "instances_*.json"
    ):  # mmdet selects COCO's categories by name
        content = json.loads(path.read_text())
        names = CocoDataset.METAINFO["classes"]  # all of them: an untrained network may predict any
        for category, name in zip(content["categories"], names):
            category["name"] = name
        first = len(content["categories"])
        highest = max(category["id"] for category in content["categories"])
        content["categories"] += [
            dict(id=highest + i, name=name) for i, name in enumerate(names[first:], 1)
        ]
        path.write_text(json.dumps(content))
    camvid = export(root / "camvid", "ade", 4, 2, 64, level="kind")
    (camvid / "images").rename(camvid / "img")
    (camvid / "annotations").rename(camvid / "ann")
    for kind in ("img", "ann"):
        (camvid / kind / "training").rename(camvid / kind / "train")
        (camvid / kind / "validation").rename(camvid / kind / "val")
    return root


def shrink(config, name, data):
    """One step of two small images."""
    keys = [
        "in1k",
        "-imagenet",
        "cifar10",
        "grocery",
        "ade20k",
        "coco",
        "camvid",
        "classification",
        "segmentation",
        "detection",
    ]
    key = next(k for k in keys if k in name)
    root = {
        "in1k": "imagenet",
        "-imagenet": "imagenet",
        "grocery": "imagenet",
        "ade20k": "ade",
        "segmentation": "ade",
        "detection": "shapes_coco",
        "classification": "imagenet",
    }
    options = {
        "data_root": str(data / root.get(key, key)) + ("/" if key in ("coco", "detection") else "")
    }
    config = load_config(config, options)
    config.train_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    config.train_dataloader.pop("prefetch_factor", None)
    config.train_cfg = dict(type="IterBasedTrainLoop", max_iters=1, val_interval=10)
    if name not in WHOLE:
        config.param_scheduler = []
        config.optim_wrapper.optimizer.lr *= (
            1e-3  # as a warm-up begins: one step at the whole rate may diverge
        )
    config.default_hooks.checkpoint = dict(
        type="CheckpointHook", by_epoch=False, interval=10, save_last=False
    )
    config.auto_scale_lr = None
    for loader in (config.train_dataloader, config.val_dataloader):
        loader.dataset.pop("indices", None)  # of more images than there are
    transform = config.train_dataloader.dataset.get("transform")
    if transform is not None:
        transform.input_size = (
            64 if key in ("in1k", "-imagenet", "grocery", "classification") else 32
        )
    for step in config.train_dataloader.dataset.get("pipeline", []):
        if "scale" in step:
            step.scale = (96, 64)
        if "crop_size" in step:
            step.crop_size = (64, 64)
    preprocessor = config.model.get("data_preprocessor") or {}
    if preprocessor.get("size"):
        preprocessor.size = (64, 64)
    config.model.backbone.pop("init_cfg", None)
    return config


def recipe_rows(folder):
    """The rows of the table in a family's README: training, setting, published, here, why."""
    lines = (folder / "README.md").read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.endswith("| published | here | why |"))
    rows = []
    for line in takewhile(lambda line: line.startswith("|"), lines[begin + 2 :]):
        row = [cell.strip() for cell in line.split("|")[1:-1]]
        row[0] = row[0] or rows[-1][0]
        rows.append(row)
    return rows
