"""Contrastive training of large batches: chunks against the whole batch, and the rows of one
process against the table of all.

Steps (forward, loss, backward, AdamW) are those of a MERU with the towers of the zoo's small CLIP,
64 x 64 pixels; a chunk is computed twice, once without keeping it. The contrast alone is that of
points on a hyperboloid with its gradients: the table of all pairs, which each process would compute
of gathered points, and what one process of several computes of it. Times are those of the process
on a CPU; peaks are what is allocated at the worst moment, beyond what was before the step.

With ``--large N ...`` single steps of N pairs are measured instead, in chunks, by the largest
memory of the whole process, beside what the plain step would allocate. That is extrapolated: the
part of the towers grows with the batch, the part of the table of logits with its square.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

import hypvision
from bench.common import GIB, MIB, add_run_arguments, peak_bytes, report, start
from bench.hyperbolic_clip import in_turns, made_up, our_loss, step_of
from hypvision.clip.spaces import Hyperboloid
from hypvision.losses.contrastive import contrastive_loss, soft_cross_entropy
from hypvision.tasks.contrastive import CLIPContrast

MARKS = ("<!-- large-batch:begin -->", "<!-- large-batch:end -->")
INTRODUCTION = f"""
## Contrastive training of large batches

A training step of a small MERU (64 x 64 pixels) with all its activations, and in chunks, which
keep points alone and compute the towers twice. Below, the contrast alone with its gradients, of
points of 512 dimensions: the table of all pairs, and what one process of several computes of it.
Times are those of the process on a CPU, peaks what is allocated at the worst moment beyond what was
there before.

{MARKS[0]}
{MARKS[1]}
"""

LARGE_MARKS = ("<!-- large-batch-step:begin -->", "<!-- large-batch-step:end -->")
LARGE_INTRODUCTION = f"""
### Steps of very large batches

A smaller MERU (images of 32 pixels, 64 dimensions) in chunks, with the largest memory of the whole
process, PyTorch's libraries and the batch included, beside what the plain step would allocate.

{LARGE_MARKS[0]}
{LARGE_MARKS[1]}
"""

Measured = tuple[float, int]


def measured(
    calls: dict[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, Measured]:
    """Median seconds and peak bytes of each call."""
    seconds = in_turns(calls, repeats, device)
    return {name: (seconds[name], peak_bytes(call, device)) for name, call in calls.items()}


def cells(found: dict[str, Measured]) -> list[str]:
    """Time and memory of all calls, and those of each later one over the first one's."""
    base = next(iter(found.values()))
    texts = []
    for seconds, peak in found.values():
        text = f"{seconds:.2f} s, {peak / MIB:,.0f} MiB"
        if (seconds, peak) != base:
            text += f" ({seconds / base[0]:.2f}x, {peak / base[1]:.2f}x)"
        texts.append(text)
    return texts


def steps(size: int, chunk: int, device: str, side: int = 64) -> dict[str, Callable[[], object]]:
    """Training steps of equal tasks on one batch of images of ``side`` pixels."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (size, 3, side, side), generator=generator, dtype=torch.uint8)
    batch = dict(inputs=pixels.to(device), caption=made_up(size, 12.0, generator))
    calls = {}
    for name, rows in (("whole", None), ("chunks", chunk)):
        torch.manual_seed(0)
        clip = dict(name="emoji-t8", geometry="lorentz", force_image_size=side)
        task = CLIPContrast(clip, classes=["a"], chunk=rows).to(device).train()
        calls[name] = step_of(task, our_loss, batch)
    return calls


def contrasts(
    size: int, processes: int, device: str, width: int = 512
) -> dict[str, Callable[[], object]]:
    """The contrast of all pairs of points with ``width`` numbers, and of the rows of one
    process."""
    space = Hyperboloid(torch.tensor(1.0, device=device))
    features = torch.randn(2, size, width, device=device) / width**0.5
    points = [space.embed(x, "image").requires_grad_() for x in features]
    scale = torch.tensor(14.0, device=device)
    own = slice(0, size // processes)
    true = torch.eye(size, dtype=torch.bool, device=device)[own]

    def rows(x: Tensor, y: Tensor) -> Tensor:
        return soft_cross_entropy(space.logits(x[own], y, scale), true)

    def of_all() -> None:
        losses = contrastive_loss(space.logits(*points, scale))
        torch.autograd.grad(sum(losses), points)

    def of_one() -> None:
        losses = rows(points[0], points[1]) + rows(points[1], points[0])
        torch.autograd.grad(losses, points)

    return {"all": of_all, "own": of_one}


def large_step(size: int, args: argparse.Namespace) -> list[str]:
    """Time of a step of ``size`` pairs in chunks, and the largest memory of the process so far."""
    step = steps(size, args.chunk, args.device, args.pixels)["chunks"]
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    begin = clock()
    step()
    if args.device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux
    return [f"{clock() - begin:.1f} s", f"{peak / GIB:.2f} GiB"]


def large_steps(args: argparse.Namespace) -> None:
    """Measure steps of ``--large`` pairs in chunks, from small to large."""
    few = [
        peak_bytes(steps(size, args.chunk, args.device, args.pixels)["whole"], args.device)
        for size in (128, 256)
    ]
    pairs = max(args.pairs)
    whole = peak_bytes(contrasts(pairs, 1, args.device, 64)["all"], args.device)
    rows = []
    for size in sorted(args.large):
        towers = (few[1] - few[0]) * size / 128
        logits = whole * (size / pairs) ** 2
        plain = [f"{part / GIB:.1f} GiB" for part in (towers, logits)]
        rows.append([f"{size:,}", *large_step(size, args), *plain])
    heads = ["batch", f"chunks of {args.chunk}", "process", "plain: towers", "plain: logits"]
    facts = (
        f"hypvision {hypvision.__version__}. One step each, random weights, float32. Plain: "
        f"extrapolated from 128 and 256 pairs, and from the contrast of {pairs:,}."
    )
    options = ("large", "pixels", "chunk", "pairs")
    report(args, options, facts, table(heads, rows), LARGE_MARKS, LARGE_INTRODUCTION)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["--:"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batches",
        nargs="+",
        type=int,
        default=[64, 256, 512],
        help="pairs of a step (default: 64 256 512)",
    )
    parser.add_argument("--chunk", type=int, default=32, help="pairs of a chunk (default: 32)")
    parser.add_argument(
        "--pairs",
        nargs="+",
        type=int,
        default=[1024, 2048, 4096],
        help="of the contrast alone (default: 1024 2048 4096)",
    )
    parser.add_argument(
        "--processes", type=int, default=8, help="that share the contrast (default: 8)"
    )
    parser.add_argument(
        "--large",
        nargs="+",
        type=int,
        help="measure one step of each of so many pairs, in chunks, and nothing else",
    )
    parser.add_argument(
        "--pixels", type=int, default=32, help="side of the images of --large (default: 32)"
    )
    add_run_arguments(parser, 3)


def run(args: argparse.Namespace) -> None:
    start(args, chunk=1, processes=1)
    if args.large:
        return large_steps(args)
    batches = [
        [
            f"{size:,}",
            *cells(measured(steps(size, args.chunk, args.device), args.repeats, args.device)),
        ]
        for size in args.batches
    ]
    pairs = [
        [
            f"{size:,}",
            *cells(
                measured(contrasts(size, args.processes, args.device), args.repeats, args.device)
            ),
        ]
        for size in args.pairs
    ]
    facts = (
        f"hypvision {hypvision.__version__}. Medians of {args.repeats}, random weights, float32."
    )
    text = table(["batch of a step", "whole", f"chunks of {args.chunk}"], batches)
    text += "\n\n" + table(
        ["pairs of the contrast", "all pairs", f"rows of one of {args.processes} processes"], pairs
    )
    report(args, ("batches", "chunk", "pairs", "processes"), facts, text, MARKS, INTRODUCTION)
