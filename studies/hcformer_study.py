#!/usr/bin/env python
"""What helps HCFormer on few small images? ``python studies/hcformer_study.py [--only NAME ...]
[--seeds N] [--amp]``.

Trains ``configs/hcformer/hcformer-nano_diagnosis_cifar10.py`` (every third training image of
CIFAR-10) for two epochs once for each change and seed, one change at a time, from the published
network and from the recipe for small data, and measures top-1 on images held out of the training
set, the sharpness of the assignments (*excess*: 0 uniform, 1 hard), what the mixers add, the share
of the gradient that reaches what places the centres, and the temperatures after training. Variants
with patches of 4, whose step takes 0.4 of the time, get five epochs. Prints the table and writes it
to OUT/table.md. Each run's numbers lie in RESULTS and are not computed again, and a run that was
cut goes on from its last epoch (its minutes count from there): a study that was stopped goes on
with the same command. ``--amp --seeds 2 --results configs/hcformer/curves/study.json`` prints the
table in docs/studies/hcformer.md. A file of results belongs to one precision and one set of
``--cfg-options``: other runs need another. (Their folders below OUT differ by themselves.)
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from hcformer_diagnosis import diagnose, spread

from hypvision.engine.config import load_config, parse_options
from hypvision.engine.run import train
from hypvision.io.errors import HypvisionError, guard
from hypvision.io.files import read_json, write_json, write_text

CONFIGS = Path(__file__).parents[1] / "configs"
HCFORMER = "hcformer/hcformer-nano_diagnosis_cifar10.py"
RESNET = "baselines/resnet10t_diagnosis_cifar10.py"
VIT = "baselines/vit_diagnosis_cifar10.py"


def network(**options) -> dict[str, Any]:
    """Options of the backbone."""
    return {f"model.backbone.{name}": value for name, value in options.items()}


def optimizer(**options) -> dict[str, Any]:
    """Options of the optimiser."""
    return {f"optim_wrapper.optimizer.{name}": value for name, value in options.items()}


def augmentation(**options) -> dict[str, Any]:
    """Options of the training images."""
    return {f"train_dataloader.dataset.transform.{name}": value for name, value in options.items()}


def epochs(count: int) -> dict[str, Any]:
    """A training of that length."""
    return {
        "train_cfg.max_epochs": count,
        "train_cfg.val_interval": count,
        "param_scheduler.1.end": count,
    }


MUON = optimizer(type="TimmMuon", lr=4e-3)
# Four centres for 16 pixels, in windows and stages alike.
FOUR = network(
    patch_size=2, fold=(4, 2, 1, 1), prop=(2, 2, 2, 1), win=(2, 1, 1, 1), mlp_ratios=(4, 4, 4, 4)
)
# Maps of 8, 4, 2 and 1 pixels: fewer windows and centres.
COARSE = network(patch_size=4, fold=(2, 1, 1, 1), prop=(2, 2, 2, 1), win=(2, 1, 1, 1)) | epochs(5)
SHARP = network(center=True, alpha=3.0, window_alpha=4.0)
PLAIN = augmentation(auto_augment=None, re_prob=0.0)
LOCAL = network(stem="conv", local_conv=True)
NEAR = network(stem="conv", locality=2.0)  # the mixers themselves see to what is near


def fixed(*names: str) -> dict[str, Any]:
    """Parameters of all blocks that keep their first values."""
    return {
        "optim_wrapper.paramwise_cfg.lr_mult": {f"backbone.stages.*.{name}": 0.0 for name in names}
    }


# That of hcformer-nano-clusters-p2_25e_cifar10.py.
RECIPE = NEAR | SHARP | MUON | FOUR | fixed("layer_scale1")


# Name: config and what is changed.
STUDY: dict[str, tuple[str, dict[str, Any]]] = {
    "as hcformer-nano_8e_cifar10.py": (HCFORMER, {}),
    "layer scale 1e-5, as published": (HCFORMER, network(layer_scale=1e-5)),
    "layer scale 1": (HCFORMER, network(layer_scale=1.0)),
    "lift=space": (HCFORMER, network(lift="space")),
    "curvature 10": (HCFORMER, network(curvature=10.0)),
    "no drop path": (HCFORMER, network(drop_path_rate=0.0)),
    "position biases fixed at 0": (HCFORMER, fixed("mixer.bias", "mixer.window_bias")),
    "alpha 3": (HCFORMER, network(alpha=3.0)),
    "alpha 8": (HCFORMER, network(alpha=8.0)),
    "center": (HCFORMER, network(center=True)),
    "center, alpha 3, window alpha 4": (HCFORMER, SHARP),
    "locality 2": (HCFORMER, network(locality=2.0)),
    "no window level": (HCFORMER, network(window_level=(False, False, False, False))),
    "stem=conv": (HCFORMER, network(stem="conv")),
    "local_conv": (HCFORMER, network(local_conv=True)),
    "patches of 4, 5 epochs": (HCFORMER, COARSE),
    "AdamW, rate 3e-4": (HCFORMER, optimizer(lr=3e-4)),
    "AdamW, rate 3e-3": (HCFORMER, optimizer(lr=3e-3)),
    "Muon, rate 4e-3": (HCFORMER, MUON),
    "no RandAugment, no erasing": (HCFORMER, PLAIN),
    "stem, local_conv, sharp, Muon": (HCFORMER, LOCAL | SHARP | MUON),
    "stem, local_conv, sharp, Muon, patches of 4, 5 epochs": (
        HCFORMER,
        LOCAL | SHARP | MUON | COARSE,
    ),
    "stem, locality 2, sharp, Muon, patches of 4, 5 epochs": (
        HCFORMER,
        NEAR | SHARP | MUON | COARSE,
    ),
    "stem, locality 2, sharp, Muon, patches of 4, one window, 5 epochs": (
        HCFORMER,
        NEAR
        | SHARP
        | MUON
        | COARSE
        | network(fold=(1, 1, 1, 1), prop=(4, 2, 2, 1), win=(1, 1, 1, 1)),
    ),
    "stem, locality 2, sharp, Muon, four centres for 16 pixels": (
        HCFORMER,
        NEAR | SHARP | MUON | FOUR,
    ),
    "recipe: the same, layer scales of mixers fixed": (HCFORMER, RECIPE),
    "recipe without mixers (layer scale 0)": (HCFORMER, RECIPE | network(layer_scale=(0.0, 0.1))),
    "recipe, layer scales 1e-5": (HCFORMER, RECIPE | network(layer_scale=1e-5)),
    "recipe, layer scales 0.3": (HCFORMER, RECIPE | network(layer_scale=0.3)),
    "recipe, MLPs as published": (HCFORMER, RECIPE | network(mlp_ratios=(8, 8, 4, 4))),
    "recipe, position biases fixed at 0": (
        HCFORMER,
        RECIPE | fixed("layer_scale1", "mixer.bias", "mixer.window_bias"),
    ),
    "recipe with the stem of one convolution": (HCFORMER, RECIPE | network(stem="patch")),
    "recipe with the stem of residual blocks": (HCFORMER, RECIPE | network(stem="residual")),
    "recipe without locality": (HCFORMER, RECIPE | network(locality=0.0)),
    "recipe, locality 1": (HCFORMER, RECIPE | network(locality=1.0)),
    "recipe, locality 4": (HCFORMER, RECIPE | network(locality=4.0)),
    "recipe without center": (HCFORMER, RECIPE | network(center=False)),
    "recipe, temperatures 1": (HCFORMER, RECIPE | network(alpha=1.0, window_alpha=1.0)),
    "recipe, temperatures 6 and 8": (HCFORMER, RECIPE | network(alpha=6.0, window_alpha=8.0)),
    "recipe with AdamW, rate 1e-3": (HCFORMER, RECIPE | optimizer(type="AdamW", lr=1e-3)),
    "recipe, Muon at 2e-3": (HCFORMER, RECIPE | optimizer(lr=2e-3)),
    "recipe, Muon at 8e-3": (HCFORMER, RECIPE | optimizer(lr=8e-3)),
    "recipe without RandAugment, erasing": (HCFORMER, RECIPE | PLAIN),
    "recipe, patches of 4, 5 epochs": (HCFORMER, RECIPE | COARSE),
    "ResNet-10-T": (RESNET, {}),
    "ResNet-10-T, AdamW, rate 3e-3": (RESNET, optimizer(lr=3e-3)),
    "ResNet-10-T, Muon": (RESNET, MUON),
    "ResNet-10-T, Muon at 2e-3": (RESNET, MUON | optimizer(lr=2e-3)),
    "ResNet-10-T, Muon at 8e-3": (RESNET, MUON | optimizer(lr=8e-3)),
    "ResNet-10-T, Muon, no RandAugment, no erasing": (RESNET, MUON | PLAIN),
    "ViT": (VIT, {}),
    "ViT, AdamW, rate 3e-3": (VIT, optimizer(lr=3e-3)),
    "ViT, Muon": (VIT, MUON),
    "ViT, Muon at 2e-3": (VIT, MUON | optimizer(lr=2e-3)),
    "ViT, Muon at 8e-3": (VIT, MUON | optimizer(lr=8e-3)),
    "ViT, Muon, no RandAugment, no erasing": (VIT, MUON | PLAIN),
}


def run(name: str, seed: int, folder: Path, options: dict[str, Any], amp: bool) -> dict[str, Any]:
    """Train one variant: top-1 in percent, minutes, and for a clustering network what the last
    blocks of stages do.

    ``excess``, ``window``: by stages; None for a stage of a single centre. ``mixer``: what the
    mixer adds to its map, as a share of it (root mean squares), by stages. ``grad``: norm of the
    loss's gradient at the features that place the centres, over that at the values, by stages.
    ``alpha``: mean of all blocks.
    """
    config, changes = STUDY[name]
    start = time.process_time()
    changes = {**epochs(2), **changes, **options, "randomness.seed": seed}
    runner = train(load_config(CONFIGS / config, changes), folder, resume="auto", amp=amp)
    row: dict[str, Any] = {"top1": _top1(runner), "minutes": (time.process_time() - start) / 60}
    model = runner.model.eval()
    clustering = runner.model.backbone
    if hasattr(clustering, "forward_assignments"):
        dataset = runner.val_dataloader.dataset
        samples = [dataset[i] for i in spread(len(dataset), 256)]
        inputs = torch.stack([sample["inputs"] for sample in samples])
        blocks = diagnose(
            model, clustering, inputs, torch.tensor([sample["label"] for sample in samples])
        )
        last = {block["stage"]: block for block in blocks}
        row |= {
            key: [block.get(key) for block in last.values()]
            for key in ("excess", "window", "mixer", "grad")
        }
        row["alpha"] = statistics.mean(block["alpha"] for block in blocks)
    return row


def _top1(runner) -> float:
    """Of the last epoch's validation."""
    return float(runner.message_hub.get_scalar("val/top1").current())


def table(results: dict[str, dict[str, Any]], names: list[str], seeds: int) -> str:
    """Markdown: a row for each variant that has a result, mean and deviation over its seeds."""
    lines = [
        "| change | top-1 | excess, stages 1 to 4 | window level | mixers add, % | gradient, % | "
        "alpha | runs | core-minutes |",
        "|---|--:|---|---|---|---|--:|--:|--:|",
    ]
    for name in names:
        rows = [results[key] for seed in range(seeds) if (key := key_of(name, seed)) in results]
        if not rows:
            continue
        top1 = [row["top1"] for row in rows]
        apart = f" ± {statistics.stdev(top1):.1f}" if len(rows) > 1 else ""
        alpha = f"{statistics.mean(row['alpha'] for row in rows):.2f}" if "alpha" in rows[0] else ""
        sharp = [
            _stages(rows, "excess"),
            _stages(rows, "window"),
            _stages(rows, "mixer", 100),
            _stages(rows, "grad", 100),
        ]
        cells = [name, f"{statistics.mean(top1):.1f}{apart}", *sharp, alpha]
        lines.append(
            "| "
            + " | ".join([*cells, str(len(rows)), f"{sum(row['minutes'] for row in rows):.0f}"])
            + " |"
        )
    total = sum(row["minutes"] for row in results.values()) / 60
    return "\n".join([*lines, "", f"{total:.1f} core-hours."]) + "\n"


def _stages(rows: list[dict[str, Any]], key: str, unit: float = 1) -> str:
    """Means over the runs that tell, of the stages that have a number."""
    columns = [
        values for values in zip(*(row[key] for row in rows if key in row)) if None not in values
    ]
    return ", ".join(f"{unit * statistics.mean(values):.2g}" for values in columns)


def key_of(name: str, seed: int) -> str:
    """Of a run in the results."""
    return f"{name}, seed {seed}"


def _folder(key: str, options: dict[str, Any], amp: bool) -> str:
    """Of a run, which goes on from there: another one for other options or another precision."""
    settings = (
        f"-{crc32(repr((amp, sorted(options.items()))).encode()):08x}" if amp or options else ""
    )
    return re.sub(r"[^\w.]+", "-", key) + settings


def study(args: Namespace) -> None:
    """Whatever is missing, seed by seed, and the table after each run."""
    unknown = [name for name in args.only if name not in STUDY]
    if unknown:
        raise HypvisionError(f"--only {unknown[0]!r} is no variant; there are: {'; '.join(STUDY)}.")
    options = parse_options(args.cfg_options)
    names = args.only or list(STUDY)
    out = Path(args.out)
    torch.set_num_threads(1)  # minutes are those of a core
    path = Path(args.results or out / "results.json")
    for seed in range(args.seeds):
        for name in names:
            key = key_of(name, seed)
            results = read_json(path) if path.is_file() else {}
            if key not in results:
                row = run(name, seed, out / _folder(key, options, args.amp), options, args.amp)
                results = (
                    read_json(path) if path.is_file() else {}
                )  # another process may have added to it
                write_json(path, {**results, key: row}, indent=1)
    found = table(read_json(path), list(STUDY), args.seeds)
    write_text(out / "table.md", found)
    print(found)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these variants (default: all)"
    )
    parser.add_argument(
        "--seeds", type=int, default=2, metavar="N", help="runs of each variant (default: 2)"
    )
    parser.add_argument("--out", default="work_dirs/hcformer-study", metavar="DIR")
    parser.add_argument(
        "--results", metavar="FILE", help="numbers of the runs (default: OUT/results.json)"
    )
    parser.add_argument("--amp", action="store_true", help="mixed precision: bfloat16 on a CPU")
    parser.add_argument(
        "--cfg-options", nargs="+", default=[], metavar="KEY=VALUE", help="changes of all configs"
    )
    sys.exit(guard(study, parser.parse_args()))
