"""HCFormer's recipes are the published ones: a table of both, read from the configs as they
resolve.

python tests/test_hcformer_recipes.py     # prints the table of configs/hcformer/README.md
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import timm
import torch
from helpers.cases import each
from helpers.configs import recipe_rows
from mmengine.config import Config
from torch import nn

from hypvision.engine.config import load_config
from hypvision.engine.param_groups import TimmParamGroups

ROOT = Path(__file__).parents[1] / "configs" / "hcformer"
NAMES = {
    "ImageNet-1K": "hcformer-{}_4xb256-310e_in1k.py",
    "ADE20K": "semantic-fpn_hcformer-{}_4xb4-80k_ade20k-512x512.py",
    "COCO": "mask-rcnn_hcformer-{}_8xb2-1x_coco.py",
}


@cache
def recipe(task: str, size: str) -> dict[str, str]:
    """What a config says once its bases are resolved."""
    name = NAMES[task].format(size)
    cfg = load_config(ROOT / name)
    optimizer, loop = cfg.optim_wrapper.optimizer, cfg.train_cfg
    processes, batch = name[name.index("xb") - 1], cfg.train_dataloader.batch_size
    assert f"_{processes}xb{batch}-" in name
    found = {
        "optimiser": f"{optimizer.type}, rate {optimizer.lr:g}, decay {optimizer.weight_decay:g}",
        "batch": f"{processes} x {batch}",
        "length": f"{loop.max_epochs} epochs"
        if "max_epochs" in loop
        else f"{loop.max_iters} iterations",
        "drop path": f"{cfg.model.backbone.get('drop_path_rate', 0.0):g}",
    }
    return found | {"ImageNet-1K": _imagenet, "ADE20K": _ade20k, "COCO": _coco}[task](cfg, found)


def _imagenet(cfg: Config, found: dict[str, str]) -> dict[str, str]:
    warm_up, cosine = cfg.param_scheduler
    train, test = (cfg[f"{kind}_dataloader"].dataset.transform for kind in ("train", "test"))
    mix = cfg.model.mixup
    assert cfg.auto_scale_lr == dict(base_batch_size=1024, enable=True)
    assert warm_up.by_epoch
    assert cosine.by_epoch
    assert train.re_mode == "pixel" and train.is_training
    return {
        "batch": f"{found['batch']}, linear rule",
        "schedule": f"linear from {warm_up.start_factor * cfg.optim_wrapper.optimizer.lr:g} over "
        f"{warm_up.end} epochs, cosine from epoch {cosine.begin} to {cosine.end}, then "
        f"{cosine.eta_min:g}",
        "precision": "AMP" if cfg.optim_wrapper.type == "AmpOptimWrapper" else "float32",
        "mixup, cutmix, label smoothing": f"{mix.mixup_alpha:g}, {mix.cutmix_alpha:g}, "
        f"{cfg.model.label_smoothing:g}",
        "augmentation": f"{train.auto_augment}, erasing {train.re_prob:g}",
        "interpolation in training": train.interpolation,
        "test crop, interpolation": f"{test.crop_pct:g}, {test.interpolation}",
        "not decayed": _not_decayed(cfg),
    }


def _ade20k(cfg: Config, found: dict[str, str]) -> dict[str, str]:
    resize, crop = cfg.train_dataloader.dataset.pipeline[2:4]
    tested = {step.type: step for step in cfg.test_dataloader.dataset.pipeline}
    assert cfg.val_dataloader.dataset.pipeline == cfg.test_dataloader.dataset.pipeline
    views = cfg.tta_pipeline[1].transforms
    assert [dict(type="ResizeToMultiple", size_divisor=32)] in views  # with --tta, too
    low, high = resize.ratio_range
    aligned = (
        f", aligned to {tested['ResizeToMultiple'].size_divisor}"
        if "ResizeToMultiple" in tested
        else ""
    )
    return {
        "schedule": f"polynomial, power {cfg.param_scheduler[0].power:g}",
        "training size": f"short side {min(resize.scale)} times {low:g} to {high:g}, crops of "
        f"{crop.crop_size[0]}",
        "test size": f"short side {min(tested['Resize'].scale)}{aligned}",
        "not decayed": _not_decayed(cfg),
    }


def _coco(cfg: Config, found: dict[str, str]) -> dict[str, str]:
    warm_up, steps = cfg.param_scheduler
    return {
        "schedule": f"{warm_up.end} iterations of warm-up, steps after epochs "
        f"{', '.join(map(str, steps.milestones))}",
        "size": " x ".join(map(str, cfg.train_dataloader.dataset.pipeline[2].scale)),
        "not decayed": _not_decayed(cfg),
    }


def _not_decayed(cfg: Config) -> str:
    """The kinds of parameters of the backbone that get no weight decay."""
    if cfg.optim_wrapper.constructor == "DefaultOptimWrapperConstructor":
        assert "paramwise_cfg" not in cfg.optim_wrapper
        return "nothing"
    model = _network()
    groups = TimmParamGroups(cfg.optim_wrapper.to_dict()).groups(model)
    spared = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    kinds: dict[str, bool] = {}
    for name, parameter in model.named_parameters():
        kind = _kind(name, parameter.dim())
        assert kinds.setdefault(kind, id(parameter) in spared) == (id(parameter) in spared), name
    order = ("weights", "position biases", "norms", "biases", "temperatures", "layer scales")
    return ", ".join(kind for kind in order if kinds[kind])


@cache
def _network() -> nn.Module:
    with torch.device("meta"):
        return timm.create_model("hcformer_nano")


def _kind(name: str, dim: int) -> str:
    end = name.rpartition(".")[2]
    if end.endswith("bias"):
        return "position biases" if dim > 1 else "norms" if "norm" in name else "biases"
    if end.endswith("alpha"):
        return "temperatures"
    return "layer scales" if "layer_scale" in end else "norms" if "norm" in name else "weights"


@each("size", ["nano", "tiny", "small", "medium"])
def test_the_readme_says_what_differs_from_the_publication_and_why(size):
    rows = recipe_rows(ROOT)
    for task in NAMES:
        assert {row[1] for row in rows if row[0] == task} == recipe(task, size).keys()
    for task, setting, published, here, why in rows:
        own = recipe(task, size)[setting]
        assert here == ("the same" if own == published else own), (task, setting, own)
        assert bool(why) == (here != "the same"), (task, setting)


if __name__ == "__main__":
    print("| | | published | here | why |\n|---|---|---|---|---|")
    last = ""
    for task, setting, published, _, why in recipe_rows(ROOT):
        own = recipe(task, "nano")[setting]
        cells = [task if task != last else "", setting, published]
        cells += ["the same", ""] if own == published else [own, why]
        print(f"| {' | '.join(cells)} |")
        last = task
