"""Kernels of a training step: what an eager GPU launches, counted without one.

On a GPU an eager step costs its number of kernels, 5 to 10 microseconds each, whatever their size.
Parameters and inputs lie on the device ``meta``, which has shapes and no numbers, and every
operation that PyTorch dispatches counts as one kernel, but for views and empty memory; so does
every launch of a Triton kernel of ours. A value that Python reads from a tensor makes the host
wait: it counts as a wait, and is answered with 1; a search for elements that are not 0 is one, too,
and finds all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from bench.common import write_section
from hypvision.geometry import (
    Lorentz,
    Manifold,
    ManifoldParameter,
    PoincareBall,
    lorentz,
    numerics,
    poincare,
)
from hypvision.geometry.border import STEEPEST
from hypvision.geometry.lorentz import distances
from hypvision.helm import head as helm_head
from hypvision.helm import rows as helm_rows
from hypvision.nn import (
    LorentzBatchNorm2d,
    LorentzConv2d,
    LorentzMLR,
    cluster_mixer,
    conv,
    functional,
    norm,
)
from hypvision.optim import RiemannianAdam, RiemannianSGD, fused

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
    "promote_types",
}
_PLAIN_ATTENTION = F.scaled_dot_product_attention
# Rows of a pair of arguments, as in a batch of embeddings
ROWS = 4096
DIM = 64
# Most kernels that each operation may launch, forward and backward with a learned curvature.
BUDGETS = {
    "lorentz": dict(
        dist=85, logmap=130, expmap=108, transp=140, expmap0=47, logmap0=34, dist0=31, projx=20,
        proju=35, cdist=55
    ),
    "ball": dict(
        dist=84, logmap=124, expmap=106, transp=142, expmap0=32, logmap0=41, dist0=40, project=29,
        mobius_add=83, cdist=57,
    ),
}  # fmt: skip


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

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operation._schema.name.removeprefix("aten::")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if given and all(tensor.device.type == "cpu" for tensor in given):
            return operation(
                *args, **(kwargs or {})
            )  # the counters of an optimiser's steps lie on the host
        if name == "_local_scalar_dense":
            self.count.waits += 1
            return 1.0
        if name == "nonzero":
            self.count.waits += 1
            out = args[0].new_empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
        else:
            out = _laid_out(name, args, operation(*args, **(kwargs or {})))
        aliases = [part.alias_info for part in operation._schema.returns]
        if name in FREE or any(alias is not None and not alias.is_write for alias in aliases):
            return out
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.count.kernels += 1
        self.count.bytes += sum(
            tensor.numel() * tensor.element_size() for tensor in (*given, *made)
        )
        return out


def _laid_out(name: str, args: Any, out: Any) -> Any:
    """The outputs of an operation as a GPU lays them out, which ``meta`` does not: layer norms give
    contiguous gradients, and convolutions of maps with channels last such maps."""
    if name == "native_layer_norm_backward":
        return (out[0].contiguous(), *out[1:])
    if not name.startswith("convolution") or not _channels_last(args[0]):
        return out
    if name == "convolution":
        return out.contiguous(memory_format=torch.channels_last)
    first, *rest = out
    if first is not None:
        first = first.contiguous(memory_format=torch.channels_last)
    return (first, *rest)


def _channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


class _Launch:
    """In place of a Triton kernel: counts its launches, and what its tensors hold as read or
    written."""

    def __init__(self, count: Count):
        self.count = count

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._call

    def _call(self, *args: Any, **kwargs: Any) -> None:
        self.count.kernels += 1
        self.count.bytes += sum(
            arg.numel() * arg.element_size() for arg in args if isinstance(arg, Tensor)
        )


def count(step: Callable[[], object], triton: bool = True) -> Count:
    """What a step on the device ``meta`` would launch on a GPU, with Triton or without."""
    for size in (torch.finfo(torch.float32).max, STEEPEST):
        numerics.bounds(size, torch.float64, torch.device("meta"))  # constants are made once
    with _Counter() as counter, _as_on_a_gpu(), ExitStack() as patches:
        if triton:
            from triton.runtime.jit import JITFunction

            from hypvision.nn import kernels

            for module in (norm, conv):
                patches.enter_context(patch.object(module, "on_gpu", lambda x: x.is_meta))
            for name, kernel in vars(kernels).items():
                if isinstance(kernel, JITFunction):
                    patches.enter_context(patch.object(kernels, name, _Launch(counter.count)))
        step()
    return counter.count


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Forms that a GPU takes: backward functions written by hand, which compilers do without; and
    PyTorch's fused dropout, attention and root-mean-square norm."""
    with (
        patch.object(functional, "plain", lambda _: False),
        patch.object(numerics, "plain", lambda _: False),
        patch.object(distances, "plain", lambda _: False),
        patch.object(cluster_mixer, "plain", lambda _: False),
        patch.object(helm_rows, "plain", lambda _: False),
        patch.object(helm_head, "plain", lambda _: False),
        patch.object(F, "dropout", _dropout),
        patch.object(F, "rms_norm", F.layer_norm),  # one kernel each way, as the layer norm
        patch.object(F, "scaled_dot_product_attention", _attention),
    ):
        yield


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Dropout in one kernel, and its backward in one: ``meta`` takes three and one."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


def _attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
dropout_p: float = 0.0,
               is_causal: bool = False, *, scale: float | None = None,
               **others: Any) -> Tensor:  # fmt: skip
    """Attention in one kernel, and its backward in one, where heads have a multiple of 4 numbers
    (as a GPU needs for float32); ``meta`` takes products and a softmax always."""
    heads = (q, k, v)
    fused = all(x.dim() == 4 and x.shape[-1] % 4 == 0 for x in heads) and not others.get(
        "enable_gqa"
    )
    if not fused:
        return _PLAIN_ATTENTION(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, **others)
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])
    call = torch.ops.aten._scaled_dot_product_efficient_attention
    return call(q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale)[0]


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


# --------------------------------------------------------------------------------------------------
# What is counted


# Operation -> its arguments: x, y points, v a tangent vector at x, u one at the origin
LORENTZ = dict(
    dist="xy", sqdist="xy", logmap="xy", expmap="xv", transp="xyv", expmap0="u", logmap0="x",
    dist0="x", projx="x", proju="xv", egrad2rgrad="xv", inner="xvv", transp0="xu", transp0back="xv",
    boost="xy", unboost="xy", cdist="xy", half_aperture="x", exterior_angle="xy",
)  # fmt: skip
BALL = dict(
    dist="xy", logmap="xy", expmap="xv", transp="xyv", expmap0="u", logmap0="x", dist0="x",
    project="x", mobius_add="xy", cdist="xy", to_lorentz="x",
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
# Name -> image size, Euclidean twin, most kernels of a training step
NETWORKS: dict[str, tuple[int, str, int | None]] = {
    "hcnn_resnet18": (32, "resnet18", 895),
    "hecnn_resnet18": (32, "resnet18", 1380),
    "hcformer_nano": (224, "swin_tiny_patch4_window7_224", 1390),
    "lvit_tiny": (224, "vit_tiny_patch16_224", 1651),
    "hexformer_tiny": (224, "vit_tiny_patch16_224", 3935),
}


# Most kernels of a step of each optimiser, and of the same in plain operations
STEPS = {
    "Adam": 11, "SGD": 7, "Adam in plain operations": 62, "SGD in plain operations": 52,
    "Adam, 20 points and their curvature": 57, "SGD, 20 points and their curvature": 52,
    "Adam in the ball": 69, "SGD in the ball": 60,
}  # fmt: skip


def optimizer_step(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """A step of ours and of its Euclidean twin, of parameters on the device ``meta``.

    200 small tensors and a table of 100,000 points, or 20 single points whose curvature is learned.
    Points of the hyperboloid take one fused operation, whose kernel is one, unless the name asks
    for plain ones.
    """
    small: list[Tensor] = [leaf(DIM) for _ in range(200)]
    manifold: Manifold = PoincareBall(1.0) if "ball" in name else Lorentz(1.0)
    flat = [leaf(100_000, DIM + manifold.extra)]
    if "curvature" in name:
        with torch.device("meta"):
            manifold = _curved()
        flat = [leaf(DIM + 1) for _ in range(20)]
        small = list(manifold.parameters())
    points = [ManifoldParameter(tensor.detach(), manifold) for tensor in flat]
    for tensor in (*small, *flat, *points):
        tensor.grad = torch.empty_like(tensor)
    if name.startswith("Adam"):
        ours: torch.optim.Optimizer = RiemannianAdam([*small, *points], lr=0.1, foreach=True)
        twin: torch.optim.Optimizer = torch.optim.AdamW([*small, *flat], lr=0.1, foreach=True)
    else:
        ours = RiemannianSGD([*small, *points], lr=0.1, momentum=0.9, foreach=True)
        twin = torch.optim.SGD([*small, *flat], lr=0.1, momentum=0.9, foreach=True)
    for optimizer in (ours, twin):
        optimizer.step()  # the first step makes the states

    def step() -> None:
        with patch.object(fused, "fits", lambda *_: False) if "plain" in name else nullcontext():
            ours.step()

    return step, twin.step


# --------------------------------------------------------------------------------------------------
# The table


def _row(name: str, ours: Count, other: Count | None, budget: int | None = None) -> str:
    cells = [name, f"{ours.kernels:,}", f"{ours.waits}", f"{ours.bytes / 1e9:.2f}"]
    cells += [f"{other.kernels:,}" if other else "", f"{other.bytes / 1e9:.2f}" if other else ""]
    cells += [str(budget) if budget else ""]
    return f"| {' | '.join(cells)} |"


def table() -> list[str]:
    """The lines of the table."""
    from bench.kernel_cases import CASES  # its cases are counted by this module

    lines = [
        "| forward and backward, float32 | kernels | waits | GB read and written | plain: kernels "
        "| GB | at most |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    operations = [
        (model, name) for model, names in (("lorentz", LORENTZ), ("ball", BALL)) for name in names
    ]
    total = len(operations) + len(LAYERS) + len(NETWORKS) + len(STEPS) + len(CASES)
    with tqdm(total=total, unit="step", disable=None) as bar:
        for model, name in operations:
            other = geoopt_operation(model, name)
            ours = count(operation(model, name))
            lines.append(
                _row(
                    f"{model} {name}",
                    ours,
                    count(other) if other else None,
                    BUDGETS[model].get(name),
                )
            )
            bar.update()
        for name, (step, twin) in LAYERS.items():
            lines.append(_row(name, count(step()), count(twin())))
            if count(step(), triton=False) != count(step()):
                lines.append(_row(f"{name}, without Triton", count(step(), triton=False), None))
            bar.update()
        for name, (size, twin_name, budget) in NETWORKS.items():
            title = f"{name}, 64 x 3 x {size} x {size} (beside {twin_name})"
            ours = count(network(name, size))
            lines.append(_row(title, ours, count(network(twin_name, size)), budget))
            plain = count(network(name, size), triton=False)
            if plain != ours:
                lines.append(_row(f"{name}, without Triton", plain, None))
            bar.update()
        for name, budget in STEPS.items():
            ours_step, twin_step = optimizer_step(name)
            lines.append(
                _row(f"step of Riemannian {name}", count(ours_step), count(twin_step), budget)
            )
            bar.update()
        for name, case in CASES.items():
            lines.append(_row(name, *case.counts(), case.most))
            bar.update()
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write the table into this Markdown file, too"
    )


def run(args: argparse.Namespace) -> None:
    """Count, print and write."""
    text = (
        f"`tools/benchmark.py kernels`\n\nPyTorch {torch.__version__}, counted without a GPU. "
        f"Operations take {ROWS} rows of {DIM} dimensions and a learned curvature; plain is "
        "geoopt's operation, or the Euclidean twin.\n\n" + "\n".join(table())
    )
    print(text)
    if args.write:
        write_section(args.write, MARKS, text, INTRODUCTION)
        print(f"\nWritten to {args.write}")
