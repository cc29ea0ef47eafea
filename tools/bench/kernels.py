"""Kernels of a training step: what an eager GPU launches, counted without one.

On a GPU an eager step costs its number of kernels, 5 to 10 microseconds each, whatever their size. Parameters and
inputs lie on the device ``meta``, which has shapes and no numbers, and every operation that PyTorch dispatches counts
as one kernel, but for views and empty memory. A value that Python reads from a tensor makes the host wait: it counts as
a wait, and is answered with 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from bench.common import write_section
from hypvision.geometry import Lorentz, ManifoldParameter, lorentz, poincare
from hypvision.nn import LorentzBatchNorm2d, LorentzConv2d, LorentzMLR
from hypvision.nn import norm as norms
from hypvision.optim import RiemannianAdam, RiemannianSGD

try:
    from geoopt.manifolds.lorentz import math as geoopt_lorentz
    from geoopt.manifolds.stereographic import math as geoopt_ball
except ImportError:
    geoopt_lorentz = geoopt_ball = None

MARKS = ("<!-- kernels:begin -->", "<!-- kernels:end -->")
INTRODUCTION = f"""
## Kernels of a training step

{MARKS[0]}
{MARKS[1]}
"""
# They reserve memory or describe it, and launch nothing.
FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "_unsafe_view",
    "lift_fresh",
}
# Rows of a pair of arguments, as in a batch of embeddings
ROWS, DIM = 4096, 64
# Most kernels that each operation may launch, forward and backward with a learned curvature.
BUDGETS = {
    "lorentz": dict(
        dist=100, logmap=150, expmap=110, transp=180, expmap0=60, logmap0=70, dist0=40, projx=25, proju=53, cdist=108
    ),
    "ball": dict(
        dist=100, logmap=140, expmap=125, transp=155, expmap0=60, logmap0=60, dist0=50, project=40, mobius_add=95,
        cdist=130,
    ),
}  # fmt: skip
# The same for training steps of networks.
NETWORK_BUDGETS = {"hcformer_nano": 1758}


@dataclass
class Count:
    """Kernels, bytes that they read and write, and how often the host waits for a value."""

    kernels: int = 0
    bytes: int = 0
    waits: int = 0


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = Count()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation._schema.name.removeprefix("aten::")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if given and all(tensor.device.type == "cpu" for tensor in given):
            return operation(*args, **(kwargs or {}))  # the counters of an optimiser's steps lie on the host
        if name == "_local_scalar_dense":
            self.count.waits += 1
            return 1.0
        if name == "nonzero":
            self.count.waits += 1
            out = args[0].new_empty((0, args[0].dim()), dtype=torch.int64)
        else:
            out = operation(*args, **(kwargs or {}))
        aliases = [part.alias_info for part in operation._schema.returns]
        if name in FREE or any(alias is not None and not alias.is_write for alias in aliases):
            return out
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.count.kernels += 1
        self.count.bytes += sum(tensor.numel() * tensor.element_size() for tensor in (*given, *made))
        return out


def count(step: Callable[[], object]) -> Count:
    """What a step on the device ``meta`` would launch on a GPU."""
    with _as_on_a_gpu(), _Counter() as counter:
        step()
    return counter.count


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """The batch norm has a form for eager devices and one for compilers, which ``meta`` takes otherwise.

    PyTorch has one kernel each way for a root-mean-square norm on a GPU, as for the layer norm, but not on ``meta``.
    """
    fused = patch.object(nn.functional, "rms_norm", nn.functional.layer_norm)
    with patch.object(norms, "plain", lambda _: False), fused:
        yield


def leaf(*shape: int) -> Tensor:
    """A tensor of this shape, without numbers, that gets a gradient."""
    return torch.empty(shape, device="meta", requires_grad=True)


def differentiated(function: Callable[..., Any], *inputs: Tensor) -> Callable[[], None]:
    """The function of the inputs, forward and backward."""

    def step() -> None:
        out = function(*inputs)
        out = out[0] if isinstance(out, (tuple, list)) else out
        torch.autograd.backward(out, torch.empty_like(out))

    return step


# ---------------------------------------------------------------------------------------------------------------------
# What is counted


# Operation -> its arguments: x, y points, v a tangent vector at x, u one at the origin
LORENTZ = dict(
    dist="xy", sqdist="xy", logmap="xy", expmap="xv", transp="xyv", expmap0="u", logmap0="x", dist0="x", projx="x",
    proju="xv", egrad2rgrad="xv", inner="xvv", transp0="xu", transp0back="xv", boost="xy", unboost="xy", cdist="xy",
    half_aperture="x", exterior_angle="xy",
)  # fmt: skip
BALL = dict(
    dist="xy", logmap="xy", expmap="xv", transp="xyv", expmap0="u", logmap0="x", dist0="x", project="x",
    mobius_add="xy", cdist="xy", to_lorentz="x",
)  # fmt: skip
# the names of geoopt's functions that differ
GEOOPT = {"transp": "parallel_transport", "projx": "project", "proju": "project_u"}
# those that it has in another form: with other arguments, or in place
ELSEWHERE = ("egrad2rgrad", "inner", "transp0", "transp0back", "to_lorentz")


def operation(model: str, name: str) -> Callable[[], None]:
    """One of ours on rows, with a learned curvature."""
    module, arguments = (lorentz, LORENTZ[name]) if model == "lorentz" else (poincare, BALL[name])
    width = DIM + (model == "lorentz")
    inputs = [leaf(ROWS, DIM if letter == "u" else width) for letter in arguments]
    return differentiated(getattr(module, name), *inputs, leaf())


def geoopt_operation(model: str, name: str) -> Callable[[], None] | None:
    """The same of geoopt, if it has it."""
    module = geoopt_lorentz if model == "lorentz" else geoopt_ball
    function = getattr(module, GEOOPT.get(name, name), None)
    if function is None or name in ELSEWHERE:
        return None
    arguments = LORENTZ[name] if model == "lorentz" else BALL[name]
    # its tangent vectors at the origin have a time
    inputs = [leaf(ROWS, DIM + (model == "lorentz")) for _ in arguments]
    curvature = leaf()

    def call(*given: Tensor) -> Tensor:
        return function(*given, k=curvature if model == "lorentz" else -curvature)

    return differentiated(call, *inputs)


def network(name: str, size: int, batch: int = 64) -> Callable[[], None]:
    """A network of timm on a batch of images."""
    with torch.device("meta"):
        model = timm.create_model(name).train()
    images = torch.empty(batch, 3, size, size, device="meta")
    return differentiated(model, images)


def layer(make: Callable[[], nn.Module], *shape: int) -> Callable[[], None]:
    """A layer on an input of this shape."""
    with torch.device("meta"):
        module = make().train()
    return differentiated(module, leaf(*shape))


def _curved() -> Lorentz:
    return Lorentz(1.0, learnable=True)


# Name -> the step, and that of its Euclidean twin
LAYERS: dict[str, tuple[Callable[[], Callable[[], None]], Callable[[], Callable[[], None]]]] = {
    "LorentzConv2d, 64 x 64 x 32 x 32": (
        lambda: layer(lambda: LorentzConv2d(64, 64, 3, _curved(), padding=1), 64, 64, 32, 32),
        lambda: layer(lambda: nn.Conv2d(64, 64, 3, padding=1), 64, 64, 32, 32),
    ),
    "LorentzBatchNorm2d, 64 x 64 x 32 x 32": (
        lambda: layer(lambda: LorentzBatchNorm2d(64, _curved()), 64, 64, 32, 32),
        lambda: layer(lambda: nn.BatchNorm2d(64), 64, 64, 32, 32),
    ),
    "LorentzMLR, 64 x 512 to 100": (
        lambda: layer(lambda: LorentzMLR(512, 100, _curved()), 64, 512),
        lambda: layer(lambda: nn.Linear(512, 100), 64, 512),
    ),
}
# Name -> image size, Euclidean twin
NETWORKS = {
    "hcnn_resnet18": (32, "resnet18"),
    "hecnn_resnet18": (32, "resnet18"),
    "hcformer_nano": (224, "swin_tiny_patch4_window7_224"),
}


def optimizer_step(kind: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A step of ours and of its Euclidean twin: 200 small tensors and a table of 100,000 points."""
    small = [leaf(64) for _ in range(200)]
    flat = leaf(100_000, 65)
    points = ManifoldParameter(flat.detach(), Lorentz(1.0))
    for tensor in (*small, flat, points):
        tensor.grad = torch.empty_like(tensor)
    if kind == "Adam":
        ours: torch.optim.Optimizer = RiemannianAdam([*small, points], lr=0.1, foreach=True)
        twin: torch.optim.Optimizer = torch.optim.AdamW([*small, flat], lr=0.1, foreach=True)
    else:
        ours = RiemannianSGD([*small, points], lr=0.1, momentum=0.9, foreach=True)
        twin = torch.optim.SGD([*small, flat], lr=0.1, momentum=0.9, foreach=True)
    for optimizer in (ours, twin):
        optimizer.step()  # the first step makes the states
    return ours.step, twin.step


# ---------------------------------------------------------------------------------------------------------------------
# The table


def _row(name: str, ours: Count, other: Count | None, budget: int | None = None) -> str:
    cells = [name, f"{ours.kernels:,}", f"{ours.waits}", f"{ours.bytes / 1e9:.2f}"]
    cells += [f"{other.kernels:,}" if other else "", f"{other.bytes / 1e9:.2f}" if other else ""]
    cells += [str(budget) if budget else ""]
    return f"| {' | '.join(cells)} |"


def table() -> list[str]:
    """The lines of the table."""
    lines = [
        "| forward and backward, float32 | kernels | waits | GB read and written | plain: kernels | GB | at most |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    operations = [(model, name) for model, names in (("lorentz", LORENTZ), ("ball", BALL)) for name in names]
    total = len(operations) + len(LAYERS) + len(NETWORKS) + 2
    with tqdm(total=total, unit="step", disable=None) as bar:
        for model, name in operations:
            other = geoopt_operation(model, name)
            ours = count(operation(model, name))
            lines.append(_row(f"{model} {name}", ours, count(other) if other else None, BUDGETS[model].get(name)))
            bar.update()
        for name, (step, twin) in LAYERS.items():
            lines.append(_row(name, count(step()), count(twin())))
            bar.update()
        for name, (size, twin_name) in NETWORKS.items():
            title = f"{name}, 64 x 3 x {size} x {size} (beside {twin_name})"
            ours, other = count(network(name, size)), count(network(twin_name, size))
            lines.append(_row(title, ours, other, NETWORK_BUDGETS.get(name)))
            bar.update()
        for kind in ("Adam", "SGD"):
            ours_step, twin_step = optimizer_step(kind)
            lines.append(_row(f"Riemannian {kind}, a step", count(ours_step), count(twin_step)))
            bar.update()
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--write", metavar="FILE", type=Path, help="write the table into this Markdown file, too")


def run(args: argparse.Namespace) -> None:
    """Count, print and write."""
    text = (
        f"`tools/benchmark.py kernels`\n\nPyTorch {torch.__version__}, counted without a GPU. Operations take {ROWS} "
        f"rows of {DIM} dimensions and a learned curvature; plain is geoopt's operation, or the Euclidean twin.\n\n"
        + "\n".join(table())
    )
    print(text)
    if args.write:
        write_section(args.write, MARKS, text, INTRODUCTION)
        print(f"\nWritten to {args.write}")
