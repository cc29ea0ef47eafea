"""Tiny data sets and configs for them, shared by the tests of the engine."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from hypvision.cli import main

ROOT = Path(__file__).resolve().parents[2]

CONFIG = """
_base_ = ["{root}/configs/_base_/default_runtime.py"]
vis_backends = [dict(type="LocalVisBackend")]
visualizer = dict(type="Visualizer", vis_backends=vis_backends)
data_root = "{data}"
loader = dict(
    batch_size={batch},
    num_workers={workers},
    collate_fn=dict(type="default_collate"),
)
train_dataloader = dict(
    dataset=dict(type="ImageFolderDataset", root=data_root + "/train", transform={transform}),
    sampler=dict(type="DefaultSampler", shuffle=True),
    **loader,
)
val_dataloader = dict(
    dataset=dict(
        type="ImageFolderDataset",
        root=data_root + "/val",
        transform=dict(input_size=32, crop_pct=1.0),
    ),
    sampler=dict(type="DefaultSampler", shuffle=False),
    **loader,
)
test_dataloader = val_dataloader
val_evaluator = dict(type="TopKAccuracy", topk=(1, 2))
test_evaluator = val_evaluator
model = dict(
    type="ImageClassifier",
    backbone=dict(
        model_name="{model}", num_classes=3, img_size=32, drop_path_rate={drop}, drop_rate={drop}
    ),
    label_smoothing=0.1,
    mixup={mixup},
)
train_cfg = dict(by_epoch=True, max_epochs={epochs}, val_interval=1)
optim_wrapper = dict(
    constructor="TimmParamGroups", optimizer=dict(type="AdamW", lr=1e-3, weight_decay=0.05)
)
param_scheduler = [
    dict(
        type="CosineAnnealingLR",
        eta_min_ratio=0.01,
        by_epoch=True,
        begin=0,
        end={epochs},
        convert_to_iter_based=True,
    )
]
default_hooks = dict(logger=dict(interval=1))
log_processor = dict(window_size=1)
custom_hooks = {hooks}
"""


def make_images(
    folder: Path, per_class: int = 8, classes: tuple[str, ...] = ("blue", "green", "red")
) -> Path:
    """Noise of one colour a class, ``folder/{train,val}/CLASS/N.png``, 32 x 32 pixels."""
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for number, name in enumerate(classes):
            place = folder / split / name
            place.mkdir(parents=True)
            for i in range(per_class):
                pixels = rng.integers(0, 160, (32, 32, 3), dtype=np.uint8)
                pixels[..., 2 - number % 3] += 60
                Image.fromarray(pixels).save(place / f"{i}.png")
    return folder


def write_config(path: Path, data: Path, **changes) -> Path:
    """Write :data:`CONFIG` with changed values; returns ``path``."""
    values = dict(
        root=ROOT, data=data, batch=8, workers=0, model="test_vit", drop=0.0, mixup=None, epochs=1,
        hooks=[], transform=dict(input_size=32, is_training=True, no_aug=True),
    )  # fmt: skip
    path.write_text(CONFIG.format(**{**values, **changes}))
    return path


TINY = """
_base_ = ["{base}"]
vis_backends = [dict(type="LocalVisBackend")]
visualizer = dict(vis_backends=vis_backends)
model = dict(
    backbone=dict(
        dims=(16, 16, 16, 16), heads=(2, 2, 2, 2), head_dim=8, layers=(1, 1, 1, 1),
        mlp_ratios=(2, 2, 2, 2), init_cfg={init},
    ),
    neck=dict(in_channels=[16, 16, 16, 16]),
)
data_root = "{data}"
train_dataloader = dict(
    batch_size=2, num_workers={workers}, persistent_workers=False, dataset=dict(data_root=data_root)
)
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = dict(dataset=dict(data_root=data_root))
param_scheduler = []
default_hooks = dict(logger=dict(interval=1))
"""
SEGMENTATION = """
model["data_preprocessor"] = dict(size=(64, 64))
train_cfg = dict(max_iters=2, val_interval=2)
default_hooks["checkpoint"] = dict(interval=1)
"""
DETECTION = """
val_evaluator = dict(ann_file=data_root + "annotations/instances_val2017.json")
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=1, val_interval=1)
"""


def tiny(task: str, data: Path, path: Path, workers: int = 0, init: dict | None = None) -> Path:
    """Write a config of ``task`` (``"segmentation"`` or ``"detection"``) for scenes of 64 x 64
    pixels in ``data``."""
    ending = "/" if task == "detection" else ""
    base = ROOT / "tests/helpers/shapes/configs" / f"{task}.py"
    text = TINY.format(base=base, data=f"{data}{ending}", workers=workers, init=init)
    path.write_text(text + (DETECTION if task == "detection" else SEGMENTATION))
    return path


def fails(capsys, *arguments) -> str:
    """Run ``hypvision`` with something wrong; returns its one paragraph."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    paragraph = text[text.index("hypvision: error: ") :].strip()
    assert "\n" not in paragraph
    return paragraph


def scalars(work_dir: Path, key: str) -> list[float]:
    """All values that the run in ``work_dir`` logged under ``key``, over all its restarts."""
    files = sorted(work_dir.glob("*/vis_data/scalars.json"))
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [record[key] for record in records if key in record]
