"""HCFormer against its reference implementation, and timm's models beside it: speed and memory, in
one Markdown table.

The two formulations have the same weights and are measured in turns (A B A B ...) in one process,
so that whatever else the machine does slows both; the medians count. A training step is forward,
cross-entropy and backward. Peak memory is what is allocated at the worst moment of it: weights,
gradients, activations and temporaries.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import timm
import torch
import torch.nn.functional as F
from references.hcformer import VARIANTS, ReferenceHCFormer
from torch import Tensor, nn
from tqdm import tqdm

import hypvision
from bench.common import MIB, add_run_arguments, held_bytes, in_turns, peak_bytes, report, start
from hypvision.io.errors import HypvisionError
from hypvision.models.hcformer_checkpoint import hcformer_from_official

OTHERS = ("swin_tiny_patch4_window7_224", "resnet18", "resnet50")
# What the fast formulation must reach against the reference one.
TARGETS = {"inference": ">= 2x", "training": ">= 2.5x", "memory": "<= 0.75x", "mixer": "<= 0.4x"}
MARKS = ("<!-- hcformer:begin -->", "<!-- hcformer:end -->")

INTRODUCTION = f"""
Every section names the command that wrote it; run it to replace the numbers by those of your
machine.

## HCFormer

`reference` is the published formulation written down step by step (`tests/references/hcformer.py`):
the same weights and the same outputs, with the large intermediate tensors of the official code.
Both are timed in turns, in one process.

{MARKS[0]}
{MARKS[1]}
"""


class Result(NamedTuple):
    """Measurements of one network: images a second, and MiB at the worst moment."""

    inference: float
    training: float
    memory: float
    mixer: float | None = None


def images_per_second(
    steps: list[Callable[[], object]], batch: int, repeats: int, device: str, bar: tqdm
) -> list[float]:
    """Throughput of each step, the median of ``repeats`` calls in turns; one call of each
    beforehand does not count."""
    times = in_turns({str(number): step for number, step in enumerate(steps)}, repeats, device, bar)
    return [batch / seconds for seconds in times.values()]


def measure(
    networks: list[nn.Module],
    images: Tensor,
    repeats: int,
    bar: tqdm,
    mixers: list[Callable[[], object]] | None = None,
) -> list[Result]:
    """Speed and memory of networks, in turns.

    Args:
        networks: classifiers of images, on the device of ``images``.
        images: ``(B, 3, H, W)``.
        repeats: timed calls of each.
        bar: progress; every timed call and every measurement of memory is a step.
        mixers: for each network a forward and backward pass of its first mixer alone.
    """
    device = images.device.type
    batch = len(images)
    labels = torch.zeros(batch, dtype=torch.long, device=device)

    def inference(network: nn.Module) -> None:
        with torch.inference_mode():
            network(images)

    def training(network: nn.Module) -> None:
        network.zero_grad(set_to_none=True)
        F.cross_entropy(network(images), labels).backward()

    def bound(step: Callable[[nn.Module], None], network: nn.Module) -> Callable[[], None]:
        return lambda: step(network)

    for network in networks:
        network.eval()
    fast = images_per_second([bound(inference, n) for n in networks], batch, repeats, device, bar)
    for network in networks:
        network.train()
    slow = images_per_second([bound(training, n) for n in networks], batch, repeats, device, bar)
    results = []
    for i, network in enumerate(networks):
        network.zero_grad(set_to_none=True)
        peak = held_bytes(network) + peak_bytes(bound(training, network), device)
        network.zero_grad(set_to_none=True)
        mixer = peak_bytes(mixers[i], device) / MIB if mixers else None
        network.zero_grad(set_to_none=True)
        bar.update()
        results.append(Result(fast[i], slow[i], peak / MIB, mixer))
    return results


def pair(
    name: str, size: int, batch: int, device: str
) -> tuple[list[nn.Module], list[Callable[[], None]]]:
    """The fast and the reference HCFormer with the same weights, and a pass through the first mixer
    of each."""
    reference = ReferenceHCFormer(name).to(device)
    fast = timm.create_model(name).to(device)
    fast.load_state_dict(hcformer_from_official(reference.state_dict()))
    tokens = torch.randn(batch, size // 4, size // 4, VARIANTS[name]["dims"][0], device=device)

    def run(mixer: nn.Module, x: Tensor) -> Callable[[], None]:
        x.requires_grad_()

        def step() -> None:
            x.grad = None
            mixer(x).sum().backward()

        return step

    first = fast.stages[0].blocks[0].mixer
    second = reference.network[0][0].token_mixer
    return [fast, reference], [
        run(first, tokens.clone()),
        run(second, tokens.permute(0, 3, 1, 2).contiguous()),
    ]


def other(name: str, size: int) -> nn.Module:
    """A model of timm for images of this size."""
    return timm.create_model(name, **({"img_size": size} if name.startswith("swin") else {}))


def run_all(
    models: list[str], batch: int, size: int, repeats: int, device: str
) -> dict[str, Result]:
    """Measure the models and their reference implementation, and :data:`OTHERS`; results by the
    name of the row."""
    images = torch.randn(batch, 3, size, size, device=device)
    results: dict[str, Result] = {}
    steps = (2 * len(models) + len(OTHERS)) * (2 * (repeats + 1) + 1)
    with tqdm(total=steps, desc="benchmark", unit="step", disable=None) as bar:
        for name in models:
            bar.set_description(name)
            networks, mixers = pair(name, size, batch, device)
            results[name], results[f"{name}, reference"] = measure(
                networks, images, repeats, bar, mixers
            )
        for name in OTHERS:
            bar.set_description(name)
            (results[name],) = measure([other(name, size).to(device)], images, repeats, bar)
    return results


def table(results: dict[str, Result]) -> str:
    """The Markdown table; the columns with x compare a model to its reference implementation."""
    lines = [
        "| model | inference img/s | training img/s | training peak MiB | inference | training | "
        "peak memory | mixer's peak memory |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, found in results.items():
        reference = results.get(f"{name}, reference")
        ratios = ["", "", "", ""]
        if reference is not None and found.mixer is not None and reference.mixer is not None:
            ratios = [
                f"{ratio:.2f}x"
                for ratio in (
                    found.inference / reference.inference,
                    found.training / reference.training,
                    found.memory / reference.memory,
                    found.mixer / reference.mixer,
                )
            ]
        numbers = [f"{found.inference:.1f}", f"{found.training:.1f}", f"{found.memory:.0f}"]
        lines.append(f"| {' | '.join([name, *numbers, *ratios])} |")
    lines.append(f"| target | | | | {' | '.join(TARGETS.values())} |")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), help="default: all"
    )
    parser.add_argument("--batch", type=int, default=8, help="images a step (default: 8)")
    parser.add_argument("--size", type=int, default=224, help="side of the images (default: 224)")
    add_run_arguments(parser, repeats=5)


def run(args: argparse.Namespace) -> None:
    if args.size < 64:  # the reference implementation cannot pad smaller maps
        raise HypvisionError(f"--size must be at least 64, got {args.size}.")
    start(args, batch=1)
    results = run_all(args.models, args.batch, args.size, args.repeats, args.device)
    facts = (
        f"timm {timm.__version__}, hypvision {hypvision.__version__}. Medians of {args.repeats}; "
        f"batch {args.batch}, {args.size} x {args.size} pixels, float32."
    )
    report(args, ["models", "batch", "size"], facts, table(results), MARKS, INTRODUCTION)
