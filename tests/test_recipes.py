"""The recipes of the papers beside the configs as they resolve: the table in the README of each
family is the expectation.

python tests/test_recipes.py hecnn     # prints the table of configs/hecnn/README.md of today
"""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from helpers import clip_models
from helpers.cases import each
from helpers.configs import braces, recipe_rows
from mmengine.config import Config
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import nn

from hypvision.engine.config import load_config
from hypvision.engine.param_groups import TimmParamGroups
from hypvision.openmmlab.backbone import TimmBackbone

ROOT = Path(__file__).parents[1] / "configs"

HYP_VIT = "{900-50i_cub200,882-300i_cars196,900-5000i_sop,900-3200i_inshop}"

# family -> training of its README's table -> the configs
CONFIGS: dict[str, dict[str, str]] = {
    "hecnn": {
        "HCNN, CIFAR": "{hcnn-resnet18,resnet18}_200e_cifar10",
        "HECNN+, CIFAR": "hecnn-{resnet18,resnet50}_200e_{cifar10,cifar100}",
        "HECNN+, Tiny-ImageNet": "hecnn-{resnet18,resnet50}_200e_tiny-imagenet",
    },
    "himapper": {
        "paper": (
            "himapper-{deit-tiny,deit-small,deit-base,swin-tiny,swin-small,resnet50}_8xb128-50e_in1k"
        ),
        "paper, EfficientNet-B4": "himapper-efficientnet-b4_16xb64-50e_in1k",
        "released code": (
            "himapper-official-{deit-tiny,deit-small,deit-base,swin-tiny,swin-small}_8xb64-100e_in1k"
        ),
        "released code, CNNs": (
            "himapper-official-{resnet50_8xb64,efficientnet-b4_16xb32}-100e_in1k"
        ),
        "UPerNet, DeiT; published, the baseline's": (
            "upernet_himapper-{deit-tiny,deit-small}_8xb2-80k_ade20k-512x512"
        ),
        "UPerNet, Swin-T; published, the baseline's": (
            "upernet_himapper-swin-tiny_8xb2-160k_ade20k-512x512"
        ),
        "Mask R-CNN": "mask-rcnn_himapper-{deit-tiny,deit-small}_8xb2-1x_coco",
    },
    "hyperclip": {
        "segmentation, the code": "hyperclip-vitb16_4xb1-80k_coco-stuff164k",
        "segmentation, the paper's text": "hyperclip-paper-vitb16_4xb1-80k_coco-stuff164k",
        "segmentation, ViT-L": "hyperclip-vitl14-336_4xb1-80k_coco-stuff164k",
        "detection; published, what CLIM's code says, the likely host": (
            "hyperclip-det-vitb16_8xb8-3e_coco48-17"
        ),
        "panoptic": "hyperclip-panoptic-vitb16_8xb2-50e_coco116-17",
        "CAT-Seg": "catseg-{vitb16,vitl14-336}_4xb1-80k_coco-stuff164k",
    },
    "lvit": {
        "CIFAR": "lvit-tiny_300e_{cifar10,cifar100}",
        "ImageNet-1k": "lvit-{tiny,small,base,base-hypercore}_4xb256-310e_in1k",
        "HexFormer, CIFAR-100": "hexformer-tiny_300e_cifar100",
    },
    "lhier": {
        "HIER, ResNet-50, CUB": "hier_resnet50_2xb90-100e_cub200",
        "HIER, ResNet-50, Cars": "hier_resnet50_2xb90-100e_cars196",
        "HIER, ResNet-50, SOP": "hier_resnet50_2xb90-150e_sop",
        "HIER, ResNet-50, In-Shop": "hier_resnet50_2xb90-150e_inshop",
        "HIER, DeiT-S and ViT-S, CUB and Cars": "hier_{deit,vit}-small_2xb90-100e_{cub200,cars196}",
        "HIER, DeiT-S and ViT-S, SOP and In-Shop": "hier_{deit,vit}-small_2xb90-150e_{sop,inshop}",
        "HIER, DINO ViT-S, CUB and Cars": "hier_dino-small_2xb90-100e_{cub200,cars196}",
        "HIER, DINO ViT-S, SOP and In-Shop": "hier_dino-small_2xb90-150e_{sop,inshop}",
        "HIER, ViT-S, all data": (
            "hier_vit-small_2xb90-{100e_cub200,100e_cars196,150e_sop,150e_inshop}"
        ),
        "LHIER, ResNet-50, CUB and Cars": "lhier_resnet50_2xb90-100e_{cub200,cars196}",
        "LHIER, ResNet-50, SOP and In-Shop": "lhier_resnet50_2xb90-150e_{sop,inshop}",
        "LHIER, DeiT-S and ViT-S, CUB and Cars": (
            "lhier_{deit,vit}-small_2xb90-100e_{cub200,cars196}"
        ),
        "LHIER, DeiT-S and ViT-S, SOP and In-Shop": (
            "lhier_{deit,vit}-small_2xb90-150e_{sop,inshop}"
        ),
        "LHIER, DINO ViT-S, CUB and Cars": "lhier_dino-small_2xb90-100e_{cub200,cars196}",
        "LHIER, DINO ViT-S, SOP and In-Shop": "lhier_dino-small_2xb90-150e_{sop,inshop}",
        "Hyp-ViT, all": f"hypvit_{{deit,dino,vit}}-small_1xb{HYP_VIT}",
        "Hyp-ViT, DeiT-S": f"hypvit_deit-small_1xb{HYP_VIT}",
        "Hyp-ViT, DINO ViT-S": f"hypvit_dino-small_1xb{HYP_VIT}",
        "Hyp-ViT, ViT-S": f"hypvit_vit-small_1xb{HYP_VIT}",
        "Hyp-ViT, CUB": "hypvit_{deit,dino,vit}-small_1xb900-50i_cub200",
        "Hyp-ViT, Cars": "hypvit_{deit,dino,vit}-small_1xb882-300i_cars196",
        "Hyp-ViT, SOP": "hypvit_{deit,dino,vit}-small_1xb900-5000i_sop",
        "Hyp-ViT, In-Shop": "hypvit_{deit,dino,vit}-small_1xb900-3200i_inshop",
    },
    "hierarcaps": {"radial embeddings": "radial-clip-{vitb32,vitl14}_1xb8-1e_hierarcaps"},
    "hyperbolic-clip": {
        "MERU": "{clip,meru}-vit-{s,b,l}_8xb256-120k_redcaps",
        "CLIP and MERU on GRIT": "{clip,meru}-vit-{s,b}_8xb96-500k_grit",
        "HyCoCLIP": "hycoclip-vit-{s,b}_8xb96-500k_grit",
        "UNCHA": "uncha-vit-{s,b}_8xb96-500k_grit",
        "PHyCLIP": "phyclip-vit-{s,b,l}_8xb96-500k_grit",
        "ATMG": "atmg-vit-{s,b}_8xb256-120k_redcaps",
    },
    "hyperbolic-segmentation": {
        "DeepLabV3+, PASCAL VOC": "hyperbolic-deeplabv3plus_resnetv2-101_40e_voc12",
        "DeepLabV3+, COCO-Stuff 10k": "hyperbolic-deeplabv3plus_resnetv2-101_70e_coco-stuff10k",
        "DeepLabV3+, ADE20K": "hyperbolic-deeplabv3plus_resnetv2-101_140e_ade20k",
    },
    "helm": {
        "115M, 120M": (
            "{llama-115m,helm-d-115m,deepseek-120m,helm-mice{,-const,-full,-learned}-120m}_4xb4_wikipedia"
        ),
        "1B": "{deepseek,helm-mice{,-const,-full,-learned}}-1b_4xb1_wikipedia",
    },
}

PADDING = {"constant": "zeros", "reflect": "reflected"}


@cache
def recipe(pattern: str) -> dict[str, str]:
    """What configs, ``a{b,c}``, say once their bases are resolved; only settings that they
    share."""
    first, *others = (_one(name) for name in braces(pattern))
    return {
        key: value
        for key, value in first.items()
        if all(other.get(key) == value for other in others)
    }


def _one(name: str) -> dict[str, str]:
    cfg = load_config(name)
    found = {**_optimiser(cfg, name), **_data(cfg), **_model(cfg)}
    return {key: value for key, value in found.items() if value is not None}


def _optimiser(cfg: Config, name: str) -> dict[str, Any]:
    wrapper, loop, loader = cfg.optim_wrapper, cfg.train_cfg, cfg.train_dataloader
    optimizer, scales = wrapper.optimizer, wrapper.get("paramwise_cfg") or {}
    steps = wrapper.get("accumulative_counts", 1)
    text = f"{optimizer.type}, rate {optimizer.lr:g}, decay {optimizer.weight_decay:g}"
    if "momentum" in optimizer:
        text += (
            f", momentum {optimizer.momentum:g}{' (Nesterov)' if optimizer.get('nesterov') else ''}"
        )
    if tuple(optimizer.get("betas", (0.9, 0.999))) != (0.9, 0.999):
        text += f", betas {', '.join(f'{beta:g}' for beta in optimizer.betas)}"
    if optimizer.get("eps", 1e-8) != 1e-8:
        text += f", eps {optimizer.eps:g}"
    processes = re.search(r"_(\d+)xb(\d+)", name)
    batch = str(loader.batch_size)
    if processes is not None:
        assert int(processes[2]) == loader.batch_size
        batch = f"{processes[1]} x {batch}"
    scaled = cfg.get("auto_scale_lr") or {}
    if scaled.get("enable") and processes and int(processes[1]) * loader.batch_size != 1024:
        batch += f", rate for {scaled.base_batch_size}"
    clip = wrapper.get("clip_grad")
    if clip is None:
        clipping = "none"
    else:
        clipping = (
            f"values {clip.clip_value:g}"
            if clip.get("type") == "value"
            else f"norm {clip.max_norm:g}"
        )
    kind = f", {wrapper.dtype}" if "dtype" in wrapper else ""
    hooks = {hook.type: hook for hook in cfg.get("custom_hooks") or []}
    average, warm = hooks.get("EMAHook"), hooks.get("BackboneWarmUpHook")
    length = (
        f"{loop.max_epochs} epochs"
        if "max_epochs" in loop
        else f"{loop.max_iters // steps} iterations"
    )
    return {
        "optimiser": text,
        "batch": batch + (f", accumulated over {steps}" if steps > 1 else ""),
        "length": length.replace("iterations", "steps") if steps > 1 else length,
        "schedule": _schedule(cfg.get("param_scheduler") or [], steps),
        "other rates": _rates(scales),
        "not decayed": _not_decayed(wrapper, scales),
        "precision": f"AMP{kind}" if wrapper.get("type") == "AmpOptimWrapper" else "float32",
        "clipping": clipping,
        "moving average": f"{1 - average.momentum:g}" if average else None,
        "warm-up of the neck alone": f"{warm.epochs} epochs" if warm else None,
        "seeds": "1",
    }


def _schedule(schedulers: list[Any], steps: int) -> str:
    parts: list[str] = []
    milestones: list[int] = []
    for part in schedulers:
        if part.type == "LinearLR":
            unit = "epochs" if part.by_epoch else "steps" if steps > 1 else "iterations"
            # the first of 4,001 steps has the rate 0
            first = 0 if part.by_epoch else part.end % 2
            length = part.end // steps if steps > 1 else part.end - first
            parts.append(f"linear over {length} {unit}")
        elif part.type == "CosineAnnealingLR":
            ratio = part.get("eta_min_ratio")
            parts.append(
                f"cosine to {part.eta_min:g}"
                if ratio is None
                else f"cosine to {ratio:g} of the rate"
            )
        elif part.type == "PolyLR":
            parts.append(f"polynomial, power {part.power:g}")
        elif part.type == "StepLR":
            parts.append(f"x{part.gamma:g} every {part.step_size} epochs")
        else:
            milestones += part.milestones
            gamma = part.gamma
    if milestones:
        parts.append(f"x{gamma:g} after epochs {', '.join(map(str, milestones))}")
    return ", ".join(parts) or "constant"


def _rates(scales: Any) -> str:
    names = dict(neck_lr_scale="neck", hier_lr_scale="ancestors", class_lr_scale="class proxies")
    found = [f"{name} x{scales[key]:g}" for key, name in names.items() if key in scales]
    if "manifold_lr_scale" in scales:
        found.append(
            f"points x{scales.manifold_lr_scale:g}, without the first step; curvatures "
            f"{scales.curvature_lr:g}"
        )
    for key, value in (scales.get("lr_mult") or {}).items():
        found.append(f"{key.rpartition('.')[2]} x{value:g}")
    for key, options in (scales.get("custom_keys") or {}).items():
        if "lr_mult" in options:
            found.append(f"{key.rstrip('.')} x{options.lr_mult:g}")
    return ", ".join(found) or "none"


def _not_decayed(wrapper: Any, scales: Any) -> str | None:
    if wrapper.get("constructor") == "LanguageParamGroups":
        assert not scales.get("released")
        return "the table of words, all vectors and numbers"
    found = ["norms"] if scales.get("norm_decay_mult") == 0.0 else []
    keys = scales.get("custom_keys") or {}
    found += [key.rstrip(".") for key, options in keys.items() if options.get("decay_mult") == 0.0]
    return ", ".join(found) or None


def _data(cfg: Config) -> dict[str, Any]:
    loader = cfg.train_dataloader
    train = loader.dataset.get("transform") or {}
    test = (cfg.get("test_dataloader") or {}).get("dataset", {}).get("transform") or {}
    found: dict[str, Any] = {}
    if train:
        if "pad_crop" in train:
            assert train.get("color_jitter") is None
            text = f"crops of {train.input_size} padded by {train.pad_crop}, mirrored"
            if train.get("auto_augment"):
                text += f", {train.auto_augment}"
            if train.get("re_prob"):
                text += f", erasing {train.re_prob:g}"
            found["padding"] = PADDING[train.get("pad_mode", "reflect")]
        elif train.get("auto_augment"):
            text = f"{train.auto_augment}, jitter {train.color_jitter:g}, erasing {train.re_prob:g}"
        else:
            assert train.color_jitter is None
            area = f"random crops of {train.input_size}, from {train.scale[0]:g} of the area"
            text = area if train.get("hflip", 0.5) == 0 else f"{area}, mirrored"
            if train.get("grayscale_prob"):
                text += f", grey with probability {train.grayscale_prob:g}"
        found["augmentation"] = text
        pixels = (train.get("mean", IMAGENET_DEFAULT_MEAN), train.get("std", IMAGENET_DEFAULT_STD))
        own = "0.5 for both" if set(pixels[0]) | set(pixels[1]) == {0.5} else str(pixels)
        known = pixels == (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        found["mean and deviation of pixels"] = "ImageNet's" if known else own
    if test:
        crop = test.get("crop_pct") or 0.875
        found["test"] = (
            f"{test.input_size} pixels, {'whole image' if crop == 1 else f'crop {crop:g}'}"
        )
    batches = loader.get("batch_sampler")
    if batches and batches.type == "MPerClassBatchSampler":
        found["images of a class in a batch"] = str(batches.m)
    sampler = loader.get("sampler") or {}
    found["repeated augmentation"] = str(sampler.get("num_repeats", 1))
    if "length" in loader.dataset:
        found["context"] = f"{loader.dataset.length} tokens"
    boxes = loader.dataset.get("boxes")
    if boxes:
        found["boxes of an image"] = "one at random" if boxes == 1 else f"the first {boxes}"
    if "subreddits" in loader.dataset:
        found["captions that begin with their subreddit"] = f"{loader.dataset.subreddits:g}"
    found["training size"] = _training_size(loader.dataset.get("pipeline") or [], cfg.model)
    if "ignore_classes" in loader.dataset:
        found["classes of training"] = (
            f"{cfg.model.train_classes}, without {loader.dataset.ignore_classes}"
        )
    return found


def _training_size(pipeline: list[Any], model: Any) -> str | None:
    steps = {step.type: step for step in pipeline}
    resize = steps.get("RandomResize") or steps.get("Resize")
    if resize is None:
        return None
    text = " x ".join(map(str, resize.scale))
    if "ratio_range" in resize:
        text += f" times {resize.ratio_range[0]:g} to {resize.ratio_range[1]:g}"
    elif resize.get("keep_ratio") and "RandomCrop" in steps:
        text = f"short side {min(resize.scale)}"
    if "RandomCrop" in steps:
        side = steps["RandomCrop"].crop_size[0]
        text += f", crops of {side}"
        if model.get("resolution", side) != side:
            text += f" as {model.resolution}"
    return text


def _model(cfg: Config) -> dict[str, Any]:
    model, found = cfg.model, {}
    backbone = model.get("backbone") or {}
    if "mixup" in model:
        mix = model.mixup
        found["mixup, cutmix, label smoothing"] = (
            f"{mix.mixup_alpha:g}, {mix.cutmix_alpha:g}, {model.label_smoothing:g}"
        )
        found["probability of mixup or cutmix"] = f"{mix.get('prob', 1):g}"
    if "drop_path_rate" in backbone:
        found["drop path"] = f"{backbone.drop_path_rate:g}"
    if isinstance(model.get("freeze"), str):
        found["frozen"] = model["freeze"]  # the attribute is a method of the config
    if model.get("freeze_bn"):
        found["batch norms"] = "frozen"
    if model.type == "MetricLearner":
        found["dimensions"] = str(model.neck.dim)
        if model.get("frozen"):
            assert model.frozen == ("patch_embed.*",)
            found["frozen"] = "patch embedding"
    if model.type == "MetricLearner" and model.metric_loss.name == "SupConLoss":
        found.update(_pairs(model, cfg.val_evaluator))
    if "hier_loss" in model:
        own = model.hier_loss
        found["loss"] = (
            f"Proxy-Anchor + {model.hier_weight:g} HIER, {own.num_proxies} ancestors, "
            f"{own.neighbours} neighbours, {own.draws} draws"
        )
    if model.get("neck", {}).get("learnable"):
        found["curvature"] = f"{model.neck.c:g} at first, learned"
    if model.type == "HyperbolicSegmentor":
        head = model.decode_head
        at = {"feature": "shrunk to the maps", "label": "of the image"}
        found["dimensions"] = str(head.dim)
        found["curvature"] = f"{head.c:g}"
        found["nodes of the tree"] = f"{head.num_classes}, all below the root"
        found["labels of the loss"] = at[head.loss_at]
        pixels = model.data_preprocessor
        assert set(pixels.mean) == set(pixels.std) == {127.5}
        found["mean and deviation of pixels"] = "0.5 for both"
    if "entail" in model:
        found["entailment"] = f"{model.entail:g}"
        assert "preprocess" not in model.clip
        pixels = clip_models.meru().normalisation()
        assert tuple(pixels["mean"]) == IMAGENET_DEFAULT_MEAN
        assert tuple(pixels["std"]) == IMAGENET_DEFAULT_STD
        found["mean and deviation of pixels"] = "ImageNet's"
    if model.type == "RadialTuning":
        assert model.root == "text"
        found["root"] = "the empty text, learning along"
    if backbone.get("dense"):
        found.update(_dense(cfg))
    if "clip" in model and "train_classes" in model:
        found.update(_open_vocabulary(model))
    if model.type == "HyperCLIPSegmentor":
        found["test size"] = (
            f"short side 640, slides of {model.crop} on {model.slide} x {model.slide}"
        )
        if model.get("adapter"):
            found["curvatures of text and image"] = (
                f"{model.adapter.c_text:g}, {model.adapter.c_vision:g}"
            )
    return found


def _pairs(model: Any, evaluator: Any) -> dict[str, Any]:
    """Of Hyp-ViT's contrast of pairs."""
    loss, neck = model.metric_loss, model.neck
    assert not neck.last_norm
    assert not neck.riemannian
    recalls = "head and encoder" if evaluator.encoder else "head"
    return {
        "loss": f"contrast of pairs by {loss.distance} distances over {loss.temperature:g}, "
        f"{loss.reduction} over the pairs",
        "curvature": f"{neck.c:g}",
        "longest vector before the ball": f"{neck.clip_radius:g}",
        "recalls": recalls,
    }


def _dense(cfg: Config) -> dict[str, Any]:
    """Of a segmenter or detector on Hi-Mapper's backbone."""
    model = cfg.model
    found = {
        "mapper": {"init": "dropped"}[model.backbone.dense],
        "maps": _numbers(model.backbone.get("out_indices")),
    }
    if "decode_head" in model:
        second = model.auxiliary_head
        weight = second.loss_decode.loss_weight
        found["channels of head and second head"] = (
            f"{model.decode_head.channels}, {second.channels} with weight {weight:g}"
        )
    if model.get("neck"):
        found["pyramid"] = f"{model.neck.type}, {model.neck.out_channels} channels"
    found["not decayed of the backbone"] = _spared(cfg)
    return found


def _spared(cfg: Config) -> str:
    """The kinds of parameters of the backbone that get no decay; a kind is treated alike."""
    assert cfg.optim_wrapper.constructor == "TimmParamGroups"
    options = {
        key: value for key, value in cfg.model.backbone.items() if key not in ("type", "init_cfg")
    }
    with torch.device("meta"):
        backbone = TimmBackbone(**options)
    groups = TimmParamGroups(cfg.optim_wrapper.to_dict()).groups(backbone)
    spared = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    kinds: dict[str, bool] = {}
    for name, parameter in backbone.named_parameters():
        own = id(parameter) in spared
        assert kinds.setdefault(_kind(name), own) == own, name
    order = ("norms", "positions", "class token", "biases", "weights")
    return ", ".join(kind for kind in order if kinds.get(kind))


def _kind(name: str) -> str:
    if "pos_embed" in name or "position_bias" in name:
        return "positions"
    if "cls_token" in name:
        return "class token"
    if "norm" in name:
        return "norms"
    return "biases" if name.endswith("bias") else "weights"


def _numbers(values: Any) -> str | None:
    return None if values is None else ", ".join(f"{value:g}" for value in values)


def _open_vocabulary(model: Any) -> dict[str, Any]:
    """Of HyperCLIP's models."""
    found = {"blocks for the pyramid": _numbers(model.get("hooks"))}
    if model.get("adapter") and "block" in model.adapter:
        found["what trains of CLIP"] = {"adapter": "the adapter"}[model.tune]
        official = model.adapter.get("official_twelve_layers")
        found["adapted image blocks"] = "the first 11 and the last" if official else "all"
    if "roi_head" in model:
        head = model.roi_head.bbox_head
        test = model.test_cfg.rcnn
        found["convolutions of proposals and boxes"] = (
            f"{model.rpn_head.num_convs}, {head.num_shared_convs}"
        )
        found["temperatures of head and CLIP"] = _numbers(
            (head.temperature, model.roi_head.clip_temperature)
        )
        found["weights of CLIP, base and novel"] = _numbers(
            (model.roi_head.alpha, model.roi_head.beta)
        )
        found["weight of the background"] = f"{head.background_weight:g}"
        found["least score, overlap of NMS"] = _numbers((test.score_thr, test.nms.iou_threshold))
    return found


def _scaling(training: str) -> dict[str, str]:
    from superposition import experiments

    large = training == "figure 1"
    settings = experiments._LARGE if large else experiments._SMALL
    widths = experiments._LARGE_WIDTHS if large else experiments.WIDTHS
    return {
        "features, widths": f"{settings.n}, {widths[0]} to {widths[-1]}",
        "batch": str(settings.batch),
        "length": f"{settings.steps} steps, warm-up {settings.warmup}",
        "rate of W and b at m = 10": ", ".join(f"{rate:.3g}" for rate in settings.peaks(10)),
        "loss": f"mean squared error x{settings.loss_scale:g}",
    }


def found_here(family: str, training: str) -> dict[str, str]:
    """The settings of a row of a family's table, read from the configs."""
    return _scaling(training) if family == "scaling" else recipe(CONFIGS[family][training])


@each("family", [*CONFIGS, "scaling"])
def test_the_readme_says_what_differs_from_the_publication_and_why(family):
    rows = recipe_rows(ROOT / family)
    assert family == "scaling" or {row[0] for row in rows} == set(CONFIGS[family])
    for training, setting, published, here, why in rows:
        own = found_here(family, training)[setting]
        assert here == ("the same" if own == published else own), (training, setting, own)
        assert bool(why) == (here != "the same"), (training, setting)


def test_every_published_result_has_its_recipe():
    """A config for which a metafile has the paper's or the authors' numbers is in a table."""
    missing = []
    for family, trainings in CONFIGS.items():
        known = {name for pattern in trainings.values() for name in braces(pattern)}
        models = yaml.safe_load((ROOT / family / "metafile.yml").read_text())["Models"]
        published = {m["Name"] for m in models if m.get("Reported") in ("paper", "authors")}
        missing += sorted(published - known)
    assert missing == []


def blocks_after_steps(**changes):
    """The distance from the identity of one of HyperCLIP's blocks after 20 steps in which no loss
    has a gradient."""
    from mmengine.optim import build_optim_wrapper

    wrapper = load_config("hyperclip-paper-vitb16_4xb1-80k_coco-stuff164k").optim_wrapper
    wrapper.optimizer.update(changes)
    model = nn.ModuleDict({"clip": nn.ModuleDict({"hyperclip": nn.Linear(8, 8, bias=False)})})
    blocks = model["clip"]["hyperclip"].weight
    nn.init.eye_(blocks)
    optimiser = build_optim_wrapper(model, wrapper)
    for _ in range(20):
        optimiser.update_params((0 * blocks).sum())
    return float((blocks.detach() - torch.eye(8)).abs().max())


def test_the_optimiser_of_the_papers_text_keeps_blocks_without_a_gradient():
    assert blocks_after_steps() == 0
    assert (
        blocks_after_steps(weight_decay=1e-4) > 1e-4
    )  # about the rate in every step, however small the decay


def test_every_family_of_configs_has_one():
    others = {"hcformer": "test_hcformer_recipes.py", "fewshot": "tasks/test_few_shot_recipes.py"}
    folders = {path.parent.name for path in ROOT.glob("*/metafile.yml")} - {
        "baselines",
        "demo",
        "scaling",
    }
    assert folders == set(CONFIGS) | set(others)
    assert all((Path(__file__).parent / file).is_file() for file in others.values())


if __name__ == "__main__":
    last = ""
    for training, setting, published, _, why in recipe_rows(ROOT / sys.argv[1]):
        own = found_here(sys.argv[1], training)[setting]
        cells = [training if training != last else "", setting, published]
        cells += ["the same", ""] if own == published else [own, why]
        print(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
        last = training
