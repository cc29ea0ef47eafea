"""Backward functions written by hand against the same formula in plain operations, each in a real
training step.

Each row takes one function away and measures the step with and without it, in turns, in one
process. One stays that saves 10 % of
the time or 25 % of the memory of a step. Those that define a gradient (straight-through, clipped,
summed over processes) have no plain form and are no rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import timm
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from bench.common import MIB, add_run_arguments, peak_bytes, report, start, timings
from hypvision.clip.adapters.hyperclip import layer as hyperclip
from hypvision.geometry import rows
from hypvision.helm import Helm, attention, head, preset
from hypvision.helm import rows as helm_rows
from hypvision.models import hcformer
from hypvision.nn import functional, norm

MARKS = ("<!-- backward:begin -->", "<!-- backward:end -->")
INTRODUCTION = f"""
## Backward functions written by hand

Each is taken out of the training step of a network in turn. That of HCFormer's MLP is a little
below 25 % of memory and stays: without it the memory target above would be missed. The loss of
HIER's triplets stands beside its published form in a table of its own. Functions that define a
gradient (limited conversions, parameters without one) or call a Triton kernel are no rows. Some
stay for the kernels that they save on a GPU (docs/gpu.md).

{MARKS[0]}
{MARKS[1]}
"""
# time and memory of the plain form over ours from which a function stays
GAIN = 1 / 0.9
SAVING = 1 / 0.75


class Row(NamedTuple):
    """A function, the step it is measured in, and what puts plain operations in its place."""

    function: str
    step: str
    without: Callable[[], AbstractContextManager]


def _plain(module) -> Callable[[], AbstractContextManager]:
    return lambda: patch.object(module, "plain", lambda x: True)


def _map_rows(s: Tensor, c: float | None, *parts: Tensor) -> Tensor:
    w = torch.cat(parts)
    blocks = w.unflatten(-1, (s.shape[1], -1)).transpose(1, 2)
    out = torch.matmul(blocks, s.mT).transpose(1, 2).flatten(-2)
    if c is None:
        return out
    limit = hyperclip._INPUT_RADIUS / (c**0.5 * w.norm(dim=-1)).clamp(min=hyperclip._INPUT_RADIUS)
    clip = hyperclip.CLIP_RADIUS / c**0.5 / out.norm(dim=-1).clamp(min=torch.finfo(out.dtype).tiny)
    return out * torch.minimum(limit, clip)[..., None]


def _lift(x: Tensor, n: int, radius: Tensor) -> Tensor:
    return helm_rows.lift(x, n, radius * radius)


def _mlp(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(F.gelu(x), weight, bias)


def _heads(kind: type) -> Callable[[], AbstractContextManager]:
    return lambda: patch.object(kind, "_by_hand", lambda *_: False)


def _whole() -> AbstractContextManager:
    return patch.object(rows, "_worth_it", lambda *_: False)


ROWS = (
    Row("nn.norm: batch norm", "hcnn_resnet18", _plain(norm)),
    Row(
        "models.hcformer: GELU and linear",
        "hcformer_nano",
        lambda: patch.object(hcformer._GeluLinear, "apply", _mlp),
    ),
    Row(
        "adapters.hyperclip: map of rows",
        "projection of ViT-B",
        lambda: patch.object(hyperclip._MapRows, "apply", _map_rows),
    ),
    Row("geometry: rows (blocks)", "hcnn_resnet18", _whole),
    Row("geometry: rows (blocks)", "hecnn_resnet18", _whole),
    Row("geometry: rows (blocks)", "lvit_tiny", _whole),
    Row("nn.functional: times and sizes", "lvit_tiny", _plain(functional)),
    Row(
        "helm.rows: times in place",
        "helm_d_115m",
        lambda: patch.object(helm_rows._Lift, "apply", _lift),
    ),
    Row("helm.attention: heads", "helm_d_115m", _heads(attention.FullAttention)),
    Row("helm.attention: latent heads", "helm_mice_120m", _heads(attention.LatentAttention)),
    Row("helm.head: cross entropy", "helm_d_115m", _plain(head)),
)


def network(name: str, size: int, batch: int, device: str) -> Callable[[], None]:
    """A training step of a timm model, without its optimiser."""
    model = timm.create_model(name, num_classes=10).to(device).train()
    images = torch.randn(batch, 3, size, size, device=device)
    labels = torch.arange(batch, device=device) % 10

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        model.zero_grad(
            set_to_none=True
        )  # a release of what an earlier step allocated would count in this one

    return step


def projection(device: str) -> Callable[[], None]:
    """The packed projection of an attention of ViT-B through HyperCLIP's blocks."""
    packed = torch.randn(3 * 768, 768, device=device) / 28
    s = (
        (torch.eye(64).expand(3, 12, 64, 64) + 0.01 * torch.randn(3, 12, 64, 64))
        .to(device)
        .requires_grad_()
    )

    def step() -> None:
        hyperclip.map_several([packed], [s], 0.01)[0].square().sum().backward()
        s.grad = None

    return step


def decoder(name: str, device: str) -> Callable[[], None]:
    """A training step of two layers of a HELM on 512 tokens of 8192."""
    model = Helm(preset(name, vocab_size=8192, n_layers=2)).to(device).train()
    tokens = torch.randint(8192, (1, 512), device=device)

    def step() -> None:
        model(tokens, labels=tokens).loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def steps(args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """All steps by their names."""
    few = max(2, args.batch // 4)
    return {
        "hcnn_resnet18": network("hcnn_resnet18", 32, args.batch, args.device),
        "hecnn_resnet18": network("hecnn_resnet18", 32, args.batch, args.device),
        "hcformer_nano": network("hcformer_nano", 224, few, args.device),
        "lvit_tiny": network("lvit_tiny", 224, few, args.device),
        "projection of ViT-B": projection(args.device),
        "helm_d_115m": decoder("helm_d_115m", args.device),
        "helm_mice_120m": decoder("helm_mice_120m", args.device),
    }


def _within(context: Callable[[], AbstractContextManager], step: Callable[[], None]) -> None:
    with context():
        step()


def measure(args: argparse.Namespace) -> list[str]:
    """The lines of the table."""
    lines = [
        "| function | step | plain / by hand: time | memory | stays for |",
        "|---|---|--:|--:|---|",
    ]
    made = steps(args)
    # what other programs do to a machine counts less in the time of the process
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    with tqdm(total=2 * (args.repeats + 1) * len(ROWS), unit="call", disable=None) as bar:
        for row in ROWS:
            ours = partial(_within, nullcontext, made[row.step])
            plain = partial(_within, row.without, made[row.step])
            calls = {"ours": ours, "plain": plain}
            found = timings(calls, args.repeats, args.device, bar, clock=clock)
            times = {name: statistics.median(values) for name, values in found.items()}
            peaks = [peak_bytes(step, args.device) for step in (ours, plain)]
            faster = times["plain"] / times["ours"]
            smaller = peaks[1] / max(peaks[0], 1)
            reasons = [
                word
                for word, met in (("time", faster >= GAIN), ("memory", smaller >= SAVING))
                if met
            ]
            cells = [
                row.function,
                f"{row.step} ({1000 * times['ours']:.0f} ms, {peaks[0] / MIB:.0f} MiB)",
                f"{faster:.2f}x",
                f"{smaller:.2f}x",
                " and ".join(reasons) or "-",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--batch", type=int, default=16, help="images a step (default: 16)")
    add_run_arguments(parser, repeats=7)


def run(args: argparse.Namespace) -> None:
    """Measure, print and write."""
    start(args, batch=2)
    facts = (
        "a function stays that saves 10 % of the time (of a CPU: of the process) or 25 % of the "
        "memory of a step."
    )
    report(args, ["batch"], facts, "\n".join(measure(args)), MARKS, INTRODUCTION)
