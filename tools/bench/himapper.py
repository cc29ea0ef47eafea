"""Hi-Mapper: what it adds to the backbones of the paper at inference; its fused form against a loop
over the levels.

A pass of the bare backbone and one with the mapper follow each other (A B A B ...), and the median
of the differences counts, so that whatever else the machine does slows both. The mapper alone, on
the map and feature of the same backbone, is timed in its two evaluation modes (means; samples as in
training and in the released code) and against the reference implementation
(``tests/references/himapper.py``): levels one after the other, all samples, every projection at
every level.
"""

from __future__ import annotations

import argparse
import statistics
from operator import sub
from typing import NamedTuple

import timm
import torch
from references.himapper import ReferenceHiMapper
from torch import nn
from tqdm import tqdm

import hypvision
from bench.common import add_run_arguments, in_turns, report, start, timings
from hypvision.io.errors import HypvisionError
from hypvision.models.himapper_checkpoint import BACKBONES, himapper_from_official

# Largest overhead over these backbones, in percent.
TARGETS = {"deit_tiny_patch16_224": 8, "deit_small_patch16_224": 8}
MARKS = ("<!-- himapper:begin -->", "<!-- himapper:end -->")

INTRODUCTION = f"""
## Hi-Mapper

Inference with the mapper against the bare backbone, and the mapper alone: fused over levels
(without noise, and with all samples), and as a loop over the levels
(`tests/references/himapper.py`, the same numbers).

{MARKS[0]}
{MARKS[1]}
"""


class Result(NamedTuple):
    """Parameters, and milliseconds a batch: the bare backbone, what the mapper adds to it, the
    mapper alone."""

    backbone: int
    total: int
    bare: float
    added: float
    fused: float
    sampled: float
    loop: float


def parameters(module: nn.Module) -> int:
    """How many numbers a network learns."""
    return sum(p.numel() for p in module.parameters())


@torch.inference_mode()
def measure(name: str, batch: int, size: int, repeats: int, device: str, bar: tqdm) -> Result:
    """One backbone; the fused mapper has the weights of the reference one."""
    arguments = {} if "resnet" in name or "efficientnet" in name else {"img_size": size}
    model = timm.create_model(f"himapper_{name}", preset="official", **arguments)
    reference = ReferenceHiMapper(model.trunk, model.num_features)
    model.load_state_dict(himapper_from_official(reference.official_state_dict()))
    model = model.eval().to(device)
    reference = reference.eval().to(device)
    images = torch.randn(batch, 3, size, size, device=device)
    model.mapper.eval_noise = "mean"
    whole = timings(
        {"trunk": lambda: model.trunk(images), "all": lambda: model(images)}, repeats, device, bar
    )
    features = model.forward_features(images)
    pooled = model._pool(features)
    memory = reference.memory(features)
    noise = [eps.to(device) for eps in reference.draws()]

    def alone(mode: str) -> None:
        model.mapper.eval_noise = mode
        model.mapper(features, pooled)

    steps = {
        "means": lambda: alone("mean"),
        "samples": lambda: alone("sample"),
        "loop": lambda: reference.encode(pooled, reference.last_l(memory, noise)),
    }
    bare, added = (
        statistics.median(values)
        for values in (whole["trunk"], map(sub, whole["all"], whole["trunk"]))
    )
    times = [
        1000 * seconds for seconds in (bare, added, *in_turns(steps, repeats, device, bar).values())
    ]
    return Result(parameters(model.trunk), parameters(model), *times)


def table(results: dict[str, Result]) -> str:
    """The Markdown table."""
    lines = [
        "| backbone | parameters | with Hi-Mapper | bare, ms | added, ms | overhead | target | "
        "mapper alone: means, ms | samples, ms | loop, ms | loop / means | loop / samples |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, r in results.items():
        share = f"{100 * r.added / r.bare:.1f} %"
        targets = f"<= {TARGETS[name]} %" if name in TARGETS else ""
        times = [f"{value:.1f}" for value in (r.fused, r.sampled, r.loop)]
        ratios = [f"{r.loop / r.fused:.1f}x", f"{r.loop / r.sampled:.1f}x"]
        cells = [
            name,
            f"{r.backbone:,}",
            f"{r.total:,}",
            f"{r.bare:.1f}",
            f"{r.added:.1f}",
            share,
            targets,
        ]
        cells += times + ratios
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", nargs="+", choices=list(BACKBONES), default=list(BACKBONES), help="default: all"
    )
    parser.add_argument("--batch", type=int, default=8, help="images a pass (default: 8)")
    parser.add_argument(
        "--size", type=int, default=224, help="side of the images, a multiple of 32 (default: 224)"
    )
    add_run_arguments(parser, repeats=7)


def run(args: argparse.Namespace) -> None:
    if args.size < 32 or args.size % 32:
        raise HypvisionError(f"--size must be a multiple of 32, got {args.size}.")
    start(args, batch=1)
    results = {}
    with tqdm(
        total=5 * len(args.models) * (args.repeats + 1), desc="benchmark", unit="step", disable=None
    ) as bar:
        for name in args.models:
            bar.set_description(name)
            results[name] = measure(name, args.batch, args.size, args.repeats, args.device, bar)
    facts = (
        f"timm {timm.__version__}, hypvision {hypvision.__version__}. Medians of {args.repeats}; "
        f"batch {args.batch}, {args.size} x {args.size} pixels, float32. Parameters with the "
        "preset `official`."
    )
    report(args, ["models", "batch", "size"], facts, table(results), MARKS, INTRODUCTION)
