"""The configs of open-vocabulary detection and panoptic segmentation, made small."""

import torch
from helpers.engine import ROOT

from hypvision.engine.config import load_config

CONFIGS = ROOT / "configs/hyperclip"
SMALL = ROOT / "tests/helpers/shapes/configs"
# what the names of CLIP's trained parameters have in common, by the beginning of the config's name
RIVALS = {"lora": ".lora.", "vpt": ".vpt.", "adapter": ".bottleneck.", "bitfit": "bias"}


def check_what_trains(model, name):
    """The part of CLIP that trains is that of the config's method, in both towers but for VPT."""
    kind = name.split("-")[0]
    trained = {f".{key}" for key, p in model.clip.named_parameters() if p.requires_grad}
    mark = dict(RIVALS, hyperclip=".hyperclip.").get(kind)
    assert bool(trained) == (mark is not None)
    assert all(mark in key for key in trained)
    towers = {key.startswith(".visual.") for key in trained}
    assert towers == {"frozen": set(), "vpt": {True}}.get(kind, {True, False})


def small(name, options=None):
    """A config on drawn scenes, its CLIP untrained, two small steps."""
    config = load_config(SMALL / name)
    config.merge_from_dict({
        "train_dataloader.batch_size": 2, "train_dataloader.dataset.size": 64,
        "train_dataloader.dataset.length": 8, "val_dataloader.dataset.size": 64,
        "val_dataloader.dataset.length": 2, "val_dataloader.batch_size": 2,
        "test_dataloader.dataset.size": 64, "test_dataloader.dataset.length": 2,
        "test_dataloader.batch_size": 2, "train_cfg.max_iters": 2, "train_cfg.val_interval": 2,
        "default_hooks.checkpoint.interval": 2, **(options or {}),
    })  # fmt: skip
    return config


def built(name, **options):
    """The model of such a config, with random weights of seed 0."""
    from mmdet.registry import MODELS

    config = small(name)
    config.model.update(options)
    torch.manual_seed(0)
    return MODELS.build(config.model).eval()


def one_step(name, coco):
    """A COCO config on the images of a folder at 64 pixels, of one step, with a small random
    CLIP."""
    config = load_config(CONFIGS / name, {"data_root": f"{coco}/"})
    config.model.clip = dict(name="emoji-t8")
    if config.model.get("adapter") and "block" in config.model.adapter:
        config.model.adapter.block = 32
    config.model.neck.out_channels = 32
    for loader in (config.train_dataloader, config.test_dataloader):
        loader.update(batch_size=2, num_workers=0, persistent_workers=False)
        for step in loader.dataset.pipeline:
            step.update({key: (64, 64) for key in ("scale", "crop_size", "size") if key in step})
            if step.type == "RandomResize":
                step.ratio_range = (1.0, 1.0)
    for key in ("val_dataloader", "val_evaluator", "val_cfg"):
        config.pop(key)
    config.train_cfg = dict(type="IterBasedTrainLoop", max_iters=1)
    config.param_scheduler = []
    config.default_hooks.checkpoint = dict(type="CheckpointHook", by_epoch=False, interval=1)
    return config
