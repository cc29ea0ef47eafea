#!/usr/bin/env python
"""What do hyperbolic methods bring beside their Euclidean counterparts?
``python studies/finetune_study.py STUDY``.

First come short trials, by whose last validation the settings are chosen, for the baseline and for
the method as many; then the runs, all of them with the first seed, then with the next, each
measured on its test data at the end. Prints a table and writes it to OUT/table.md. The numbers of
each run (settings, validation after each epoch, test, core-hours) go into RESULTS and are not
computed again, and a run that was cut goes on from its last epoch: a study that was stopped goes on
with the same command. ``--cfg-options`` says where data and weights are; anything else that it
changes makes other runs, which need another file of results.

    python studies/finetune_study.py himapper --results configs/himapper/curves/grocery.json
        --cfg-options \\ data_root=data/grocery/images
        model.checkpoint=tf_efficientnet_lite0.safetensors
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hcformer_diagnosis import spread
from himapper_containment import measure
from mmengine.registry import DATASETS
from robustness import measure as measure_robustness
from torch.utils.data import default_collate

from hypvision.clip.models import CLIPBundle
from hypvision.clip.radial.measure import measure_clip
from hypvision.clip.spaces import Sphere
from hypvision.data.chains import emoji_chains
from hypvision.engine import run as engine
from hypvision.engine.config import load_config, parse_options
from hypvision.geometry import lorentz
from hypvision.io.checks import ensure
from hypvision.io.errors import guard
from hypvision.io.files import read_json, write_json, write_text
from hypvision.tasks.class_hierarchy import (
    embed_classes,
    places,
    recovered_groups,
    recovered_hierarchy,
)
from hypvision.tasks.contrastive_metrics import ImageTextRetrieval
from hypvision.tasks.metric_learning_metrics import evaluate_retrieval

CONFIGS = Path(__file__).parents[1] / "configs"


class Choice(NamedTuple):
    """Settings of which the best is taken: ``candidates`` by their names, with the changes of all
    of its trials, and the choice before whose settings hold, too."""

    config: str
    candidates: dict[str, dict[str, Any]]
    trial: dict[str, Any]
    after: str = ""


class Run(NamedTuple):
    """A config, the choice that its settings come from, and other changes."""

    config: str
    choice: str = ""
    changes: dict[str, Any] = {}


class Task(NamedTuple):
    """A training to be done: its name in the results, its config, the changes of it, whether it is
    tested, its seed."""

    key: str
    config: str
    changes: dict[str, Any]
    test: bool = False
    seed: int = 0


def length(epochs: int) -> dict[str, Any]:
    """A training of that length."""
    return {"train_cfg.max_epochs": epochs, "param_scheduler.1.end": epochs}


def rates(*values: float) -> dict[str, dict[str, Any]]:
    """Learning rates."""
    return {
        f"rate {value:.0e}".replace("e-0", "e-"): {"optim_wrapper.optimizer.lr": value}
        for value in values
    }


def factors(*values: float) -> dict[str, dict[str, Any]]:
    """Learning rates of CLIP, as parts of that of the head."""
    return {f"factor {value}": {FACTOR: value} for value in values}


def metric_learning(config: str, choices: bool) -> dict[str, Run]:
    """Proxy-Anchor alone, HIER and LHIER, in few and in many dimensions."""
    names = {
        f"{name}, {dim} dimensions": (key, dim) for dim in DIMS for name, key in METHODS.items()
    }
    return {
        name: Run(config.format(key), name if choices else "", {"model.neck.dim": dim})
        for name, (key, dim) in names.items()
    }


def learning_rates(runs: dict[str, Run]) -> dict[str, Choice]:
    """A choice of the rate for each run, on half of its training classes."""
    return {
        name: Choice(run.config, rates(1e-4, 3e-4, 1e-3), held_out(run.config) | run.changes)
        for name, run in runs.items()
    }


def tenth() -> dict[str, Any]:
    """Nine tenths of the 30,000 training images of CIFAR-10, measured on the others."""
    return {
        "train_dataloader.dataset.indices": [i for i in range(30_000) if i % 10],
        "val_dataloader.dataset.indices": list(range(0, 30_000, 10)),
        "val_dataloader.dataset.root": "train",
        "train_cfg.val_interval": 3,
    }


def held_out(config: str) -> dict[str, Any]:
    """Half of the training classes, measured on the other half."""
    names = load_config(CONFIGS / config)
    return length(10) | {
        "train_dataloader.dataset.classes": names.fit,
        "model.num_classes": len(names.fit),
        "val_dataloader.dataset.classes": names.held,
        "train_cfg.val_interval": 5,
    }


LITE = "himapper/efficientnet-lite0_10e_grocery.py"
MAPPER = "himapper/himapper-efficientnet-lite0_10e_grocery.py"
PROTOTYPES = "himapper/prototypes-efficientnet-lite0_10e_grocery.py"
RETRIEVAL = "lhier/{}_efficientnet-lite0_20e_grocery.py"
CHARACTERS = "lhier/{}_resnet10t_40e_omniglot.py"
METHODS = {"Proxy-Anchor": "euclid", "HIER": "hier", "LHIER": "lhier"}
DIMS = (16, 128)
OTHER_LOSSES = {
    "Hyp-ViT's loss, 128 dimensions": Run(
        RETRIEVAL.format("hypvit"), "Hyp-ViT's loss, 128 dimensions"
    ),
    "ideal prototypes, 128 dimensions": Run(
        RETRIEVAL.format("prototypes"), "ideal prototypes, 128 dimensions"
    ),
}
SCENES = "hyperbolic-clip/{}_500i_scenes.py"
CLIPS = {
    "CLIP": "clip-emoji",
    "MERU": "meru-emoji",
    "HyCoCLIP": "hycoclip-emoji",
    "UNCHA": "uncha-emoji",
    "PHyCLIP": "phyclip-emoji",
    "ATMG": "atmg-emoji",
}
PROBE = {
    "model.head_init": "probe",
    "train_cfg.max_epochs": 0,
    "param_scheduler": None,
}  # logistic regression on the features as they are, without a step
MODULES = {"a third of the rate": 0.3, "the rate": 1.0, "three times the rate": 3.0}

MASKS = "hyperclip/emoji_hyperclip_600i.py"
BOXES = "hyperclip/emoji_hyperclip-det_600i.py"
WORDS = "hyperclip/emoji-words_hyperclip_150i.py"  # adapts the text tower
FACTOR = "optim_wrapper.paramwise_cfg.custom_keys.clip.lr_mult"
FROZEN, FULL = ({"model.adapter": None, "model.tune": what} for what in ("frozen", "full"))
ADAPTED = {
    "HyperCLIP, text tower": {"model.adapter.vision": False},
    "HyperCLIP, image tower": {"model.adapter.text": False},
    "HyperCLIP, both towers": {},
    "its Euclidean form": {"model.adapter.geometry": "euclidean"},
}
ADAPTED_WORDS = {
    "HyperCLIP, text tower": {},
    "its Euclidean form": {"model.adapter.geometry": "euclidean"},
    "HyperCLIP, image tower": {"model.adapter.text": False, "model.adapter.vision": True},
    "HyperCLIP, both towers": {"model.adapter.vision": True},
}
HALF = {
    "train_cfg.max_iters": 300,
    "train_cfg.val_interval": 300,
    "param_scheduler.1.T_max": 280,
    "param_scheduler.1.end": 300,
}
TENTH = {"clip.": {"lr_mult": 0.1}}  # of the rate of the adapter
FEWER = {"val_dataloader.dataset.indices": 300, "test_dataloader.dataset.indices": 300}

LORENTZ = "hecnn/{}-small_3e_cifar10.py"
FAST = {
    "model.channels_last": True
}  # for the convolutions of PyTorch; those of a Lorentz network gain nothing by it
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "Euclidean ResNet-18": ("resnet18", FAST),
    "HCNN": ("hcnn-resnet18", {}),
    "HECNN+": ("hecnn-resnet18", {}),
}

TRANSFORMER = "lvit/{}-slim_3e_cifar10.py"
TOKEN = {"model.backbone.class_token": True, "model.backbone.global_pool": "token"}
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("vit", {}),
    "ViT, class token": ("vit", TOKEN),
    "LViT": ("lvit", {}),
    "LViT, class token": ("lvit", TOKEN),
    "HexFormer": ("hexformer", {}),
}
LAST = {"train_cfg.val_interval": 3}  # after the last epoch alone

FORMS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"optim_wrapper.type": "BFloat16OptimWrapper"},
    "channels last": {"model.channels_last": True},
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": (TRANSFORMER.format("vit"), LAST),
    "LViT": (TRANSFORMER.format("lvit"), LAST),
    "HexFormer": (TRANSFORMER.format("hexformer"), LAST),
    "ResNet-18": (LORENTZ.format("resnet18"), {}),
    "HCNN": (LORENTZ.format("hcnn-resnet18"), {}),
    "HECNN+": (LORENTZ.format("hecnn-resnet18"), {}),
    "HCFormer": (
        "hcformer/hcformer-nano-clusters_25e_cifar10.py",
        length(2) | {"train_cfg.val_interval": 1},
    ),
    "Hi-Mapper": ("himapper/himapper-vit-micro_150i_cifar10.py", {"model.checkpoint": None}),
    "LHIER": ("lhier/lhier_resnet10t_cifar10.py", {}),
}
CONVOLUTIONS = ("ResNet-18", "HCNN", "HECNN+", "LHIER")

PHOTOS = "hcformer/hcformer-nano-clusters_60e_grocery.py"
SMALL = length(15) | {
    f"{phase}_dataloader.dataset.transform.input_size": 96 for phase in ("train", "val", "test")
}
SMALL |= {"model.backbone.img_size": 96, "train_cfg.val_interval": 5}
# The teacher, the Hi-Mapper of the zoo, learned on images of 160 pixels with the mean and deviation
# 0.5.
TEACHER = dict(model_name="himapper_tf_efficientnet_lite0.grocery", pretrained=True)
TAUGHT = {
    "model.distillation": dict(teacher=TEACHER, loss="soft", alpha=1.0, temperature=2.0, size=160)
}
SCALED = {
    f"{phase}_dataloader.dataset.transform.{key}": (0.5, 0.5, 0.5)
    for phase in ("train", "val", "test")
    for key in ("mean", "std")
}
NO_MIXERS = {
    "layer_scale": (0.0, 0.1),
    "head_dim": 2,
    **dict.fromkeys(("heads", "prop", "win"), (1, 1, 1, 1)),
}
BARE = {f"model.backbone.{key}": value for key, value in NO_MIXERS.items()}

PIXELS = "hyperbolic-segmentation/{}-fpn-{}d_600i_camvid.py"
GEOMETRIES = ("euclidean", "hyperbolic")
DIMENSIONS = (2, 3, 256)
FLAT = {"model.decode_head.tree": None}
HALF_PIXELS = {
    "train_cfg.max_iters": 300,
    "train_cfg.val_interval": 300,
    "param_scheduler.1.end": 300,
}

SHORT = [dict(type="LinearLR", start_factor=0.02, begin=0, end=100, by_epoch=False)]

STUDIES: dict[str, dict[str, Run]] = {
    "himapper": {
        "linear probe": Run(LITE, "", PROBE),
        "fine-tuned": Run(LITE, "fine-tuned"),
        "Hi-Mapper": Run(MAPPER, "Hi-Mapper"),
        "Hi-Mapper, equal time": Run(MAPPER.replace("10e", "8e"), "Hi-Mapper"),
        "flat geometry": Run(MAPPER.replace("mapper-", "mapper-euclidean-"), "Hi-Mapper"),
        "deterministic tree": Run(MAPPER.replace("mapper-", "mapper-deterministic-"), "Hi-Mapper"),
        "official preset": Run(MAPPER.replace("mapper-", "mapper-official-"), "Hi-Mapper"),
        "ideal prototypes": Run(PROTOTYPES, "ideal prototypes"),
        "Busemann MLR": Run(PROTOTYPES.replace("prototypes", "busemann"), "Busemann MLR"),
    },
    "lhier": metric_learning(RETRIEVAL, choices=True) | OTHER_LOSSES,
    "omniglot": metric_learning(CHARACTERS, choices=False),
    "lorentz": {
        **{
            name: Run(LORENTZ.format(key), name, length(15) | more)
            for name, (key, more) in NETWORKS.items()
        },
        "Euclidean ResNet-18, equal time": Run(
            LORENTZ.format("resnet18"), "Euclidean ResNet-18", length(28) | FAST
        ),
    },
    "vit": {
        **{
            name: Run(TRANSFORMER.format(key), name, more | LAST)
            for name, (key, more) in TRANSFORMERS.items()
        },
        "ViT, class token, equal time": Run(
            TRANSFORMER.format("vit"),
            "ViT, class token",
            TOKEN | length(5) | {"train_cfg.val_interval": 5},
        ),
    },
    "precision": {
        f"{name}, {form}": Run(config, "", changes | more)
        for name, (config, changes) in FAMILIES.items()
        for form, more in FORMS.items()
        if form != "channels last" or name in CONVOLUTIONS
    },
    "distillation": {
        f"{name}{how}": Run(PHOTOS, "", SMALL | SCALED | network | teacher)
        for how, teacher in {", taught": TAUGHT, "": {}}.items()
        for name, network in {"HCFormer": {}, "without mixers": BARE}.items()
    },
    "clip": {
        **{name: Run(SCENES.format(key), name) for name, key in CLIPS.items()},
        "HyCoCLIP, no entailment": Run(SCENES.format("hycoclip-emoji-contrast"), "HyCoCLIP"),
        "HyCoCLIP, fixed curvature": Run(SCENES.format("hycoclip-emoji-fixed"), "HyCoCLIP"),
    },
    "camvid": {
        f"{geometry}, {dim} dimensions": Run(PIXELS.format(geometry, dim), geometry)
        for dim in DIMENSIONS
        for geometry in GEOMETRIES
    },
    "camvid-flat": {
        f"{geometry}, {dim} dimensions": Run(PIXELS.format(geometry, dim), geometry, FLAT)
        for dim in DIMENSIONS
        for geometry in GEOMETRIES
    },
    "hyperclip": {
        "CLIP frozen": Run(MASKS, "", FROZEN | FEWER),
        **{name: Run(MASKS, "HyperCLIP", change | FEWER) for name, change in ADAPTED.items()},
        "all of CLIP": Run(MASKS, "all of CLIP", FULL | FEWER),
    },
    "hyperclip-boxes": {
        "CLIP frozen": Run(BOXES, "", FROZEN | FEWER),
        **{name: Run(BOXES, "", change | FEWER) for name, change in ADAPTED.items()},
        "all of CLIP": Run(
            BOXES, "", FULL | FEWER | {"optim_wrapper.paramwise_cfg.custom_keys": TENTH}
        ),
    },
    "hyperclip-words": {
        "CLIP frozen": Run(WORDS, "", FROZEN),
        **{name: Run(WORDS, "", change) for name, change in ADAPTED_WORDS.items()},
        "all of CLIP": Run(WORDS, "", FULL | {FACTOR: 0.01}),
    },
}


def pixel_rates(changes: dict[str, Any]) -> dict[str, Choice]:
    """A choice of the rate for each geometry of pixels, in 3 dimensions, on half of the steps."""
    return {
        geometry: Choice(PIXELS.format(geometry, 3), rates(3e-4, 1e-3, 3e-3), HALF_PIXELS | changes)
        for geometry in GEOMETRIES
    }


# Those that no run refers to come last.
CHOICES: dict[str, dict[str, Choice]] = {
    "himapper": {
        "fine-tuned": Choice(LITE, rates(3e-4, 1e-3, 3e-3), length(3)),
        "ideal prototypes": Choice(PROTOTYPES, rates(1e-4, 3e-4, 1e-3), length(3)),
        "Busemann MLR": Choice(
            PROTOTYPES.replace("prototypes", "busemann"), rates(3e-4, 1e-3, 3e-3), length(3)
        ),
        "Hi-Mapper": Choice(
            MAPPER,
            {
                f"its modules at {name}": {
                    "optim_wrapper.paramwise_cfg.lr_mult": {"backbone.mapper": factor}
                }
                for name, factor in MODULES.items()
            },
            length(3),
            after="fine-tuned",
        ),
        "ideal prototypes, random head": Choice(
            PROTOTYPES,
            {"the best rate": {"model.head_init": "timm"}},
            length(3),
            after="ideal prototypes",
        ),
        "nothing frozen": Choice(
            LITE, {"fine-tuned": {"model.frozen": ()}}, length(3), after="fine-tuned"
        ),
    },
    "lhier": learning_rates(STUDIES["lhier"]),
    "omniglot": {},
    "camvid": pixel_rates({}),
    "camvid-flat": pixel_rates(FLAT),
    "distillation": {},
    "precision": {},
    "lorentz": {
        name: Choice(LORENTZ.format(key), rates(0.03, 0.1, 0.3), tenth() | more)
        for name, (key, more) in NETWORKS.items()
    },
    "vit": {
        name: Choice(
            TRANSFORMER.format(key),
            rates(3e-4, 1e-3, 3e-3),
            tenth() | length(1) | {"train_cfg.val_interval": 1} | more,
        )
        for name, (key, more) in TRANSFORMERS.items()
    },
    "clip": {
        name: Choice(
            SCENES.format(key),
            rates(2e-3, 4e-3),
            {"train_cfg.max_iters": 250, "train_cfg.val_interval": 250, "param_scheduler": SHORT},
        )
        for name, key in CLIPS.items()
    },
    "hyperclip": {
        "HyperCLIP": Choice(MASKS, factors(0.01, 0.03, 0.1), HALF | FEWER),
        "all of CLIP": Choice(MASKS, factors(0.001, 0.003, 0.01), HALF | FULL | FEWER),
    },
    "hyperclip-boxes": {},
    "hyperclip-words": {},
}
RETRIEVED = {
    "recall@1": "Recall@1",
    "map@r": "mAP@R",
    "mistake_height": "height of mistakes",
    "cophenetic_tree": "cophenetic correlation",
}
SEGMENTED = {
    "mIoU": "mIoU",
    "mAcc": "mean accuracy",
    "aAcc": "pixel accuracy",
    "sibling_mIoU": "mIoU with siblings",
    "cousin_mIoU": "with cousins",
}
VALIDATED = ("top1", "recall@1", "mIoU", "ov/AP50")
COLUMNS: dict[str, dict[str, str]] = {
    "himapper": {
        "top1": "fine (81)",
        "coarse": "coarse (43)",
        "kind": "kind (3)",
        "mistake_distance": "tree distance of mistakes",
        "containment": "containment",
        "chance": "chance",
    },
    "lhier": {
        **RETRIEVED,
        "purity_0": "purity, kinds",
        "purity_1": "purity, coarse classes",
        "recall@1_projected": "Recall@1 in 16 of them",
        "map@r_projected": "mAP@R in 16 of them",
    },
    "omniglot": {**RETRIEVED, "purity_0": "purity, alphabets"},
    "camvid": SEGMENTED,
    "camvid-flat": SEGMENTED,
    "distillation": {"top1": "top-1"},
    "lorentz": {
        "top1": "top-1",
        "ece": "calibration error",
        "top1_noise": "with noise",
        "top1_blur": "blurred",
        "auroc_logit_omniglot": "Omniglot, by logit",
        "auroc_norm_omniglot": "Omniglot, by radius",
        "auroc_logit_emoji": "emoji, by logit",
        "auroc_norm_emoji": "emoji, by radius",
    },
    "vit": {"top1": "top-1", "top5": "top-5"},
    "precision": {"top1": "top-1", "recall@1": "Recall@1"},
    "clip": {
        "top1": "top-1 (86)",
        "macro": "mean of classes",
        "top5": "top-5",
        "tie": "tree distance",
        "jaccard": "Jaccard",
        "text_to_image_r1": "text to image R@1",
        "image_to_text_r1": "image to text R@1",
        "d_corr": "order of chains",
    },
    "hyperclip": {
        "mIoU": "mIoU",
        "mIoU_base": "known (60)",
        "mIoU_novel": "held out (26)",
        "aAcc": "pixel accuracy",
        "mIoU_style": "a style never seen",
        "mIoU_new": "emoji never seen",
    },
    "hyperclip-words": {
        "mIoU": "mIoU",
        "mIoU_base": "known (16 and the photo)",
        "mIoU_novel": "held out (5)",
        "aAcc": "pixel accuracy",
    },
    "hyperclip-boxes": {
        "AP50": "AP50",
        "AP50_base": "known (60)",
        "AP50_novel": "held out (26)",
        "AP50_style": "a style never seen",
        "AP50_base_style": "known",
        "AP50_novel_style": "held out",
    },
}


def settings(study: str, choice: str, results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The changes that did best in the last validation of their trial; {} without a choice."""
    if not choice:
        return {}
    candidates, _, after = CHOICES[study][choice][1:]
    best = max(
        candidates, key=lambda name: list(results[f"{choice}, {name}"]["curve"].values())[-1]
    )
    return {**settings(study, after, results), **candidates[best]}


def run(config: str, changes: dict[str, Any], folder: Path, test: bool) -> dict[str, Any]:
    """Train and measure one config.

    Returns:
        ``curve``: validations by their epoch; ``core_hours`` of the training, without the test;
        ``parameters`` that are trained; ``metrics`` of the test, and for a Hi-Mapper
        ``containment`` of the parts of 500 test photos.
    """
    loaded = load_config(CONFIGS / config, changes)
    loaded.custom_hooks = [*loaded.get("custom_hooks", []), dict(type="CoreTimeHook")]
    embeddings = folder / "embeddings.npz"
    if loaded.model.type == "MetricLearner":
        loaded.test_evaluator.out_file = str(embeddings)
    runner = engine.train(loaded, folder, resume="auto")
    row: dict[str, Any] = dict(
        config=config,
        changes=changes,
        curve=read_curve(folder),
        core_hours=runner.message_hub.get_info("core_seconds") / 3600,
        parameters=sum(p.numel() for p in runner.model.parameters() if p.requires_grad),
    )
    if test:
        row["metrics"] = numbers(runner.test())
        if "elsewhere" in loaded:
            row["metrics"] |= measure_elsewhere(loaded, folder)
            return row
        network = getattr(runner.model, "backbone", None)
        if hasattr(network, "mapper"):
            dataset = runner.test_dataloader.dataset
            images = torch.stack([dataset[i]["inputs"] for i in spread(len(dataset), 500)])
            found = measure(network.eval(), images)
            row["containment"] = found
            row["metrics"] |= dict(containment=found["all"]["score"], chance=found["all"]["chance"])
        if hasattr(network, "curvatures"):
            row["curvature"] = network.curvatures()
            around = Path(loaded.data_root).parent
            std = loaded.test_dataloader.dataset.transform.std
            others = [around / "omniglot/images", around / "emoji/images"]
            row["metrics"] |= measure_robustness(
                network.eval(), runner.test_dataloader, std, others
            )
        if loaded.model.type == "MetricLearner":
            device = str(next(runner.model.parameters()).device)
            data = embed_classes(
                runner.model.eval(), runner.cfg, "test", per_class=30, device=device
            )
            known = places(runner.model, data), data.labels, data.ancestors
            row["metrics"] |= measure_projected(runner.model, runner.cfg, embeddings, device)
            row["metrics"] |= {
                f"cophenetic_{key}": value for key, value in recovered_hierarchy(*known).items()
            }
            row["metrics"] |= {
                f"purity_{i}": value for i, value in enumerate(recovered_groups(*known))
            }
            if runner.model.neck.manifold.learnable:
                row["curvature"] = runner.model.neck.manifold._value()
        if loaded.model.type == "CLIPContrast":
            row["metrics"] |= measure_scenes(runner.model.eval(), runner.cfg, row)
    return row


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Metrics without what stands before their names, and as JSON takes them."""
    return {key.rpartition("/")[2]: float(value) for key, value in metrics.items()}


def measure_projected(
    model: Any, config: Any, embeddings: Path, device: str, dim: int = DIMS[0]
) -> dict[str, float]:
    """Retrieval of a model of more than ``dim`` dimensions by the ``dim`` largest of its training
    photos; {} for one of fewer."""
    test = np.load(embeddings)
    space = str(test["space"])
    points = torch.from_numpy(test["embeddings"])
    if points.shape[-1] <= dim + 1:
        return {}
    train = embed_classes(model, config, "train", per_class=1000, device=device).points
    points = projected(points, train, space, dim)
    labels = torch.from_numpy(test["labels"])
    queries = DATASETS.build(config.dataset("test").to_dict()).metainfo["queries"]
    found = evaluate_retrieval(
        points[:queries], labels[:queries], points[queries:], labels[queries:], space=space
    )
    return {f"{key}_projected": found[key] for key in ("recall@1", "map@r")}


def projected(points: torch.Tensor, train: torch.Tensor, space: str, dim: int) -> torch.Tensor:
    """``points`` in the ``dim`` directions in which ``train`` is largest: its singular vectors
    around the origin, so that cosines and distances keep their meaning. Points of the hyperboloid
    are projected in the tangent space of the origin."""
    if space == "lorentz":
        train = lorentz.logmap0(train, 1.0)
        points = lorentz.logmap0(points, 1.0)
    axes = torch.linalg.svd(train.double(), full_matrices=False).Vh[:dim]
    points = (points.double() @ axes.mT).float()
    return lorentz.expmap0(points, 1.0) if space == "lorentz" else points


def measure_elsewhere(config: Any, folder: Path) -> dict[str, float]:
    """The last checkpoint on the other test data of the config."""
    metrics = {}
    weights = (folder / "last_checkpoint").read_text().strip()
    for place, data in config.elsewhere.items():
        moved = {f"test_dataloader.dataset.{key}": value for key, value in data.items()}
        found = engine.test(config, weights, folder / place, cfg_options=moved)
        metrics |= {f"{key}_{place}": value for key, value in numbers(found).items()}
    return metrics


@torch.no_grad()
def measure_scenes(
    model: Any, config: Any, row: dict[str, Any], count: int = 1000
) -> dict[str, float]:
    """Retrieval between scenes of unseen emoji and their captions, and the order of the chains of
    these emoji; the mean distances from the root by kind go into ``row``."""
    about = dict(
        config.train_dataloader.dataset, split="test", length=count, boxes=True, general=(0.0, 0.0)
    )
    about["photos"] = str(about["photos"]).replace("train", "test")
    data = DATASETS.build(about)
    clip = CLIPBundle(
        model.clip, model.tokenizer, model.mean.flatten().tolist(), model.std.flatten().tolist()
    )
    root = clip.embed_texts([""])[0]
    space = Sphere(root) if isinstance(clip.space, Sphere) else clip.space
    metric = ImageTextRetrieval()
    radii: dict[str, list[torch.Tensor]] = {}
    for start in range(0, count, 100):
        batch = default_collate([data[i] for i in range(start, min(start + 100, count))])
        points = {
            "images": clip.embed_images(batch["inputs"]),
            "texts": clip.embed_texts(batch["caption"]),
            "box images": clip.embed_images(batch["box_inputs"]),
            "box texts": clip.embed_texts(batch["box_caption"]),
        }
        for kind, x in points.items():
            radii.setdefault(kind, []).append(space.radius(x))
        rows = zip(points["images"], points["texts"], batch["caption"])
        metric.process(
            None, [dict(image=x, text=y, caption=text, space=space) for x, y, text in rows]
        )
    row["radius"] = {kind: float(torch.cat(parts).mean()) for kind, parts in radii.items()}
    if hasattr(model.clip, "curv"):
        row["curvature"] = float(model.clip.curv.exp())
    chains = [chain.texts for chain in emoji_chains(config.data_root, "test")]
    order = measure_clip(clip, chains, [None] * len(chains), None).values
    return {**metric.compute_metrics(metric.results), "d_corr": order["d_corr"]}


def read_curve(folder: Path) -> dict[str, float]:
    """Validations by their epoch, from the logs of a training and its restarts."""
    lines = [
        line
        for path in sorted(folder.glob("*/vis_data/scalars.json"))
        for line in path.read_text().splitlines()
    ]
    rows = [json.loads(line) for line in lines]
    return {str(row["step"]): row[key] for row in rows for key in VALIDATED if key in row}


def table(results: dict[str, dict[str, Any]], study: str) -> str:
    """Markdown: a row for each run that has a result, mean and deviation over its seeds."""
    columns = COLUMNS[study]
    lines = [f"| | {' | '.join(columns.values())} | seeds | core-minutes |"]
    lines.append("|---|" + "--:|" * (len(columns) + 2))
    for name in STUDIES[study]:
        rows = [
            row
            for key, row in results.items()
            if re.fullmatch(rf"{re.escape(name)}, seed \d+", key)
        ]
        if rows:
            cells = [
                _cell([row["metrics"][key] for row in rows if key in row["metrics"]])
                for key in columns
            ]
            cells += [
                str(len(rows)),
                f"{60 * statistics.mean(row['core_hours'] for row in rows):.0f}",
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    trials = [
        f"{choice}, {name}" for choice, about in CHOICES[study].items() for name in about.candidates
    ]
    lines += ["", "| trial | validations | core-minutes |", "|---|---|--:|"]
    for name in trials:
        if name in results:
            after = ", ".join(f"{value:.1f}" for value in results[name]["curve"].values())
            lines.append(f"| {name} | {after} | {60 * results[name]['core_hours']:.0f} |")
    total = sum(row["core_hours"] for row in results.values())
    return "\n".join([*lines, "", f"{total:.1f} core-hours."]) + "\n"


def _cell(values: list[float]) -> str:
    """Mean and deviation; of shares in three digits, of all else in one or two."""
    if not values:
        return ""
    digits = 1 if statistics.mean(values) > 10 else 2
    apart = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{apart}"


def study(args: Namespace) -> None:
    """Whatever is missing, and the table after each run."""
    options = parse_options(args.cfg_options)
    out = Path(args.out or f"work_dirs/{args.study}-study")
    path = Path(args.results or out / "results.json")
    runs = STUDIES[args.study]
    if args.only:
        unknown = sorted(set(args.only) - set(runs))
        ensure(not unknown, f"--only {unknown}: the runs of this study are {list(runs)}.")
        runs = {name: runs[name] for name in args.only}
    choices = CHOICES[args.study]

    def results() -> dict[str, dict[str, Any]]:
        return read_json(path) if path.is_file() else {}

    def complete(tasks: list[Task]) -> None:
        missing = [task for task in tasks if task.key not in results()]
        for key, row in several(missing, args.jobs, options, out):
            write_json(
                path, {**results(), key: row}, indent=1
            )  # another process may have added to it
            write_text(out / "table.md", table(results(), args.study))

    def trials(choice: str) -> list[Task]:
        config, candidates, trial, after = choices[choice]
        before = settings(args.study, after, results())
        return [
            Task(f"{choice}, {name}", config, {**before, **change, **trial})
            for name, change in candidates.items()
        ]

    needed = [choice for choice in choices if any(run.choice == choice for run in runs.values())]
    needed += [
        choices[choice].after for choice in needed if choices[choice].after not in ("", *needed)
    ]
    complete([task for choice in needed if not choices[choice].after for task in trials(choice)])
    complete([task for choice in needed if choices[choice].after for task in trials(choice)])
    chosen = {
        name: settings(args.study, run.choice, results()) | run.changes
        for name, run in runs.items()
    }
    measured = [(f"{name}, seed {seed}", seed, name) for seed in range(args.seeds) for name in runs]
    complete(
        [Task(key, runs[name].config, chosen[name], True, seed) for key, seed, name in measured]
    )
    if not args.only:
        complete([task for choice in choices if choice not in needed for task in trials(choice)])
    print(table(results(), args.study))


def several(
    tasks: list[Task], jobs: int, options: dict[str, Any], out: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Perform them, ``jobs`` at a time, on a core each; gives the rows as they come."""
    torch.set_num_threads(1)
    if jobs == 1:
        yield from ((task.key, perform(task, options, out)) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        waiting = {pool.submit(perform, task, options, out): task.key for task in tasks}
        failed = []
        for done in as_completed(waiting):
            if done.exception():
                failed.append(done)
            else:
                yield waiting[done], done.result()
        for done in failed:  # after all others were given
            done.result()


def perform(task: Task, options: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train and measure one."""
    folder = out / re.sub(r"[^\w.]+", "-", task.key)
    below = options.get("data_root", "data/cifar10")
    moved = {
        key: f"{below}/{value}"
        for key, value in task.changes.items()
        if key.endswith("dataset.root")
    }
    row = run(
        task.config,
        {**options, **task.changes, **moved, "randomness.seed": task.seed},
        folder,
        task.test,
    )
    # where data and weights are is of no use to others, nor the numbers of the images of a trial
    return {
        **row,
        "changes": {
            key: value for key, value in task.changes.items() if not key.endswith("indices")
        },
    }


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of each config (default: 3)"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="RUN", help="some of the runs, with the trials that they need"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="trainings at a time (default: 1)"
    )
    parser.add_argument("--out", metavar="DIR", help="(default: work_dirs/STUDY-study)")
    parser.add_argument(
        "--results", metavar="FILE", help="numbers of the runs (default: OUT/results.json)"
    )
    parser.add_argument(
        "--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="changes of all configs"
    )
    sys.exit(guard(study, parser.parse_args()))
