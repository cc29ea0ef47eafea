"""Lorentz ResNets against their Euclidean counterparts and the published form: time, memory, and
the split by layer.

A step is forward, cross-entropy and backward. Networks of one depth are measured in turns (A B C A
B C ...) in one process, so that whatever else the machine does slows all; least and median times
are given. Peak memory is what is allocated at the worst moment of a step: weights, gradients,
activations and temporaries.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import timm
import torch
import torch.nn.functional as F
from references.lorentz_cnn import BatchNorm, Conv, Hyperboloid, ReferenceLorentzResNet
from torch import Tensor, nn

import hypvision
from bench.common import MIB, add_run_arguments, held_bytes, peak_bytes, report, start
from hypvision.geometry import Lorentz
from hypvision.nn import (
    EfficientLorentzConv2d,
    LorentzBatchNorm2d,
    LorentzConv2d,
    LorentzGlobalAvgPool2d,
    LorentzResidual,
    ToLorentz,
    ToTangent,
)

MARKS = ("<!-- lorentz-cnn:begin -->", "<!-- lorentz-cnn:end -->")
FLAT = dict(hyperbolic_stages=(), head_type="linear")
# depth -> rows: a model and its arguments; the first is the Euclidean counterpart. None is the
# published form.
NETWORKS: dict[int, dict[str, tuple[str, dict] | None]] = {
    18: {
        "ResNet-18, Euclidean": ("hecnn_resnet18", FLAT),
        "hcnn_resnet18": ("hcnn_resnet18", {}),
        "hcnn_resnet18, plus": ("hcnn_resnet18", dict(plus=True)),
        "hecnn_resnet18": ("hecnn_resnet18", {}),
        "L-ResNet-18, published": None,
    },
    50: {
        "ResNet-50, Euclidean": ("hecnn_resnet50", FLAT),
        "hecnn_resnet50": ("hecnn_resnet50", {}),
    },
}
# row and column -> the ratio that it should reach
TARGETS = {
    ("hcnn_resnet18", "time / Euclidean"): 1.6,
    ("hcnn_resnet18", "faster than published"): 3.5,
    ("hcnn_resnet18", "memory / published"): 0.25,
    ("hecnn_resnet50", "time / Euclidean"): 1.6,
    ("batch norm, exact", "time / Euclidean"): 2.5,
    ("batch norm, with rescaling", "time / Euclidean"): 2.5,
}
RATIOS = ("time / Euclidean", "memory / Euclidean", "faster than published", "memory / published")

INTRODUCTION = f"""
## Lorentz ResNets

`published` is the network as its authors' code computes it, written down step by step
(`tests/references/lorentz_cnn.py`): ours gives the same logits from the same weights
(`tests/models/test_lorentz_resnet.py`). The Euclidean counterpart is the same network without
hyperbolic layers.

{MARKS[0]}
{MARKS[1]}
"""


def ratio_cell(row: str, column: str, ratio: float) -> str:
    """A ratio with its target, if it has one, and whether that is met."""
    text = f"{ratio:.1f}x" if column.startswith("faster") else f"{ratio:.2f}x"
    target = TARGETS.get((row, column))
    if target is None:
        return text
    met = ratio >= target if column.startswith("faster") else ratio <= target
    return f"{text} (target {target:g}x: {'met' if met else 'missed'})"


class Times(NamedTuple):
    """Least and median seconds."""

    least: float
    median: float


def in_turns(
    steps: list[Callable[[], object]], repeats: int, device: str, slow: int = 2
) -> list[Times]:
    """Times of each step, in turns, after a first call that does not count; the last is the slow
    one.

    Args:
        steps: what to measure.
        repeats: timed calls of each.
        device: ``"cpu"`` or ``"cuda"``.
        slow: timed calls at most of a step whose first call takes over a second.
    """
    times: list[list[float]] = [[] for _ in steps]
    limits = [repeats] * len(steps)
    for turn in range(repeats + 1):
        for i, step in enumerate(steps):
            if len(times[i]) >= limits[i]:
                continue
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            elapsed = time.perf_counter() - start
            if turn:
                times[i].append(elapsed)
            elif elapsed > 1:
                limits[i] = min(slow, repeats)
    return [Times(min(found), statistics.median(found)) for found in times]


def network_rows(depth: int, batch: int, repeats: int, device: str) -> list[str]:
    """Rows of the table of training steps."""
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    names = NETWORKS[depth]
    networks = [
        (
            timm.create_model(given[0], num_classes=100, **given[1])
            if given
            else ReferenceLorentzResNet(depth)
        )
        .to(device)
        .train()
        for given in names.values()
    ]

    def step(network: nn.Module) -> Callable[[], None]:
        def run() -> None:
            network.zero_grad(set_to_none=True)
            F.cross_entropy(network(images), labels).backward()

        return run

    steps = [step(network) for network in networks]
    times = in_turns(steps, repeats, device)
    memory = []
    for network, run in zip(networks, steps):
        network.zero_grad(set_to_none=True)
        memory.append((held_bytes(network) + peak_bytes(run, device)) / MIB)
        network.zero_grad(set_to_none=True)
    rows = []
    for i, name in enumerate(names):
        ratios = [times[i].least / times[0].least, memory[i] / memory[0]]
        if None in names.values():
            ratios += [times[-1].least / times[i].least, memory[i] / memory[-1]]
        filled = [ratio_cell(name, column, ratio) for column, ratio in zip(RATIOS, ratios)]
        filled += [""] * (len(RATIOS) - len(filled))
        cells = [f"{times[i].least:.3f}", f"{times[i].median:.3f}", f"{memory[i]:.0f}", *filled]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


class ChannelsLast(nn.Module):
    """A layer of the published form on space parts ``(B, C, H, W)`` that it gets as points,
    channels last."""

    def __init__(self, layer: nn.Module, x: Tensor):
        super().__init__()
        self.layer = layer
        self.points = layer.manifold.points(x.detach().permute(0, 2, 3, 1)).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.points)


def layer_rows(batch: int, repeats: int, device: str) -> list[str]:
    """Rows of the table of single layers, 64 channels of 32 x 32 pixels, forward and backward."""
    x = torch.randn(batch, 64, 32, 32, device=device, requires_grad=True)
    manifold = Lorentz()
    published = Hyperboloid()
    groups = {
        "convolution 3x3": {
            "Euclidean": nn.Conv2d(64, 64, 3, padding=1, bias=False),
            "exact": LorentzConv2d(64, 64, 3, manifold, padding=1),
            "efficient": EfficientLorentzConv2d(64, 64, 3, manifold, padding=1),
            "published": ChannelsLast(Conv(published, 64, 64, 3), x.cpu()),
        },
        "batch norm": {
            "Euclidean": nn.BatchNorm2d(64),
            "exact": LorentzBatchNorm2d(64, manifold),
            "with rescaling": LorentzBatchNorm2d(64, manifold, slope=2.0),
            "published": ChannelsLast(BatchNorm(published, 64), x.cpu()),
        },
    }
    rows = []
    for kind, layers in groups.items():
        layers = {name: layer.to(device) for name, layer in layers.items()}
        steps = []
        for layer in layers.values():
            points = getattr(layer, "points", None)
            if points is not None and device != "cpu":
                layer.points = points.detach().to(device).requires_grad_()
            grad = torch.randn_like(layer(x))
            steps.append(lambda layer=layer, grad=grad: layer(x).backward(grad))
        times = in_turns(steps, 3 * repeats, device)
        for name, found, step in zip(layers, times, steps):
            cells = [
                f"{1000 * found.least:.1f}",
                f"{1000 * found.median:.1f}",
                f"{peak_bytes(step, device) / MIB:.0f}",
            ]
            cells.append(ratio_cell(f"{kind}, {name}", RATIOS[0], found.least / times[0].least))
            rows.append(f"| {kind} | {name} | {' | '.join(cells)} |")
    return rows


KINDS = {
    "convolutions": (nn.Conv2d, LorentzConv2d, EfficientLorentzConv2d),
    "batch norms": (nn.BatchNorm2d, LorentzBatchNorm2d),
    "residual connections": (LorentzResidual,),
    "activations": (nn.ReLU,),
    "into and out of the manifold": (ToLorentz, ToTangent),
    "pooling and head": (LorentzGlobalAvgPool2d, nn.Linear, nn.AdaptiveAvgPool2d),
}


def split(name: str, arguments: dict, batch: int, device: str, repeats: int) -> dict[str, float]:
    """Milliseconds of forward and backward by kind of layer within the fastest of several training
    steps.

    Clocks at the entrance and exit of every layer, on the way forth and back; ``rest`` is what is
    outside of them: additions, the loss, gradients added up, and the backward of the first layer,
    whose input needs no gradient.
    """
    network = timm.create_model(name, num_classes=100, **arguments).to(device).train()
    images = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    spent: dict[str, float] = defaultdict(float)
    entered: dict[nn.Module, float] = {}

    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return 1000 * time.perf_counter()

    def enter(layer: nn.Module, *_: object) -> None:
        entered[layer] = now()

    def leave(layer_kind: str) -> Callable[..., None]:
        def add(layer: nn.Module, *_: object) -> None:
            spent[layer_kind] += now() - entered.pop(layer)

        return add

    for layer in network.modules():
        kind = next((kind for kind, types in KINDS.items() if isinstance(layer, types)), None)
        if kind is None:
            continue
        if isinstance(layer, nn.ReLU):
            layer.inplace = False  # what backward hooks return may not be changed in place
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave(kind))
        layer.register_full_backward_pre_hook(enter)
        layer.register_full_backward_hook(leave(kind))
    found: list[tuple[float, dict[str, float]]] = []
    for _ in range(repeats + 1):
        spent.clear()
        network.zero_grad(set_to_none=True)
        start = now()
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Full backward hook is firing"
            )  # of the first layer, see above
            F.cross_entropy(network(images), labels).backward()
        total = now() - start
        found.append((total, {**spent, "rest": total - sum(spent.values())}))
    return min(found[1:], key=lambda step: step[0])[1]


def split_rows(batch: int, repeats: int, device: str) -> list[str]:
    """Rows of the split by kind of layer."""
    chosen = {name: given for rows in NETWORKS.values() for name, given in rows.items() if given}
    rows = []
    for name, given in chosen.items():
        found = split(*given, batch, device, repeats)
        total = sum(found.values())
        cells = [
            f"{found[kind]:.0f} ({found[kind] / total:.0%})" if kind in found else ""
            for kind in (*KINDS, "rest")
        ]
        rows.append(f"| {name} | {' | '.join(cells)} | {total:.0f} |")
    return rows


def config_rows(configs: list[Path], batch: int, repeats: int, device: str) -> list[str]:
    """Rows with the training step of the timm models in configs; ratios to the first."""
    from hypvision.engine.config import load_config  # the other tables do without mmengine

    steps = []
    for config in configs:
        backbone = load_config(config).model.backbone.to_dict()
        network = timm.create_model(backbone.pop("model_name"), **backbone).to(device).train()
        size = backbone.get("img_size", 32)
        images = torch.randn(batch, 3, size, size, device=device)

        def step(network: nn.Module = network, images: torch.Tensor = images) -> None:
            network.zero_grad(set_to_none=True)
            F.cross_entropy(
                network(images), torch.zeros(batch, dtype=torch.long, device=device)
            ).backward()

        steps.append(step)
    times = in_turns(steps, repeats, device, slow=repeats)
    return [
        f"| {config.stem} | {found.least:.3f} | {found.median:.3f} | "
        f"{found.least / times[0].least:.2f}x |"
        for config, found in zip(configs, times)
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--configs",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="time a training step of these configs' models instead",
    )
    parser.add_argument(
        "--depths", nargs="+", type=int, choices=list(NETWORKS), default=list(NETWORKS)
    )
    parser.add_argument("--batch", type=int, default=16, help="images a step (default: 16)")
    add_run_arguments(parser, repeats=5)


def run(args: argparse.Namespace) -> None:
    start(args, batch=1)
    if args.configs:
        print("| config | least s | median s | time / first |\n|---|--:|--:|--:|")
        print("\n".join(config_rows(args.configs, args.batch, args.repeats, args.device)))
        return
    tables = [
        f"| training step | least s | median s | peak MiB | {' | '.join(RATIOS)} |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *(
            row
            for depth in args.depths
            for row in network_rows(depth, args.batch, args.repeats, args.device)
        ),
        "",
        "One layer, 64 channels of 32 x 32 pixels, forward and backward:",
        "",
        "| layer | form | least ms | median ms | peak MiB | time / Euclidean |",
        "|---|---|--:|--:|--:|--:|",
        *layer_rows(args.batch, args.repeats, args.device),
        "",
        "Where a training step goes: ms within the layers of a kind, forward and backward, in the "
        "fastest of the steps",
        "(with a clock around every layer, and activations that keep their input):",
        "",
        f"| network | {' | '.join(KINDS)} | rest | step |",
        "|---|" + "--:|" * (len(KINDS) + 2),
        *split_rows(args.batch, args.repeats, args.device),
    ]
    facts = (
        f"timm {timm.__version__}, hypvision {hypvision.__version__}. Batch {args.batch}, 32 x 32 "
        "pixels, 100 classes, float32; ratios of least times."
    )
    report(args, ["depths", "batch"], facts, "\n".join(tables), MARKS, INTRODUCTION)
