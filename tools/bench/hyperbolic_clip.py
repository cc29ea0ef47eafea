"""MERU and HyCoCLIP: a training step against the same CLIP and against the official order of work, and ranking.

The official order of work is four passes, one of the whole images, one of the boxes, one of the captions and one of the
boxes' words, all texts padded to 77 tokens; its loss is the reference implementation's
(``tests/references/hyperbolic_clip.py``). Captions are made up of words of one token, as many as those of RedCaps have
on average. Steps are timed in turns, in one process; their ratio is that of the medians. On a CPU the time is that of
the process, which other work on the machine changes less than the time on the wall.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import open_clip
import torch
from references import hyperbolic_clip as reference
from torch import Tensor

import hypvision
from bench.common import add_run_arguments, peak_bytes, report, start, timings
from bench.radial import made_up_words
from hypvision.clip.spaces import Hyperboloid
from hypvision.tasks.contrastive import CLIPContrast

MARKS = ("<!-- hyperbolic-clip:begin -->", "<!-- hyperbolic-clip:end -->")
WORDS = (12.0, 2.0)  # of a caption and of a box

INTRODUCTION = f"""
## MERU and HyCoCLIP

A training step (forward, loss, backward, AdamW) of MERU against the CLIP with the same towers, and of HyCoCLIP against
the official order of work: whole and box images and their texts as four passes, all texts padded to 77 tokens. Ranking
is the similarity of all images and texts against the matrix product of their vectors alone. Ratios are those of
medians, timed in turns in one process; on a CPU they are of the time of the process, which other work on the machine
changes little.

{MARKS[0]}
{MARKS[1]}
"""

Batch = dict[str, object]


def made_up(count: int, mean: float, generator: torch.Generator) -> list[str]:
    """Texts of made-up words."""
    words = made_up_words()
    lengths = 1 + torch.poisson(torch.full((count,), mean - 1), generator=generator).long()
    return [" ".join(words[i] for i in torch.randint(len(words), (n,), generator=generator)) for n in lengths.tolist()]


def in_turns(calls: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Median seconds of each call, of the process where it computes on the CPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    return {name: statistics.median(values) for name, values in timings(calls, repeats, device, clock=clock).items()}


def batch_of(size: int, boxes: bool, device: str) -> Batch:
    """A batch of CLIPContrast."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, size, 3, 224, 224), generator=generator, dtype=torch.uint8).to(device)
    found: Batch = dict(inputs=images[0], caption=made_up(size, WORDS[0], generator))
    if boxes:
        found |= dict(box_inputs=images[1], box_caption=made_up(size, WORDS[1], generator))
    return found


def official_loss(task: CLIPContrast, batch: Batch) -> Tensor:
    """HyCoCLIP's loss in four passes."""
    clip, space = task.clip, task.clip.space
    clip.clamp_scalars()

    def images(pixels: Tensor) -> Tensor:
        return space.embed(clip.visual((pixels.float() - task.mean) / task.std), "image")[:, 1:]

    def texts(captions: list[str]) -> Tensor:
        tokens = task.tokenizer(captions).to(task.mean.device)
        return space.embed(open_clip.model.CLIP.encode_text(clip, tokens), "text")[:, 1:]

    state = {"curv": clip.curv, "logit_scale": clip.logit_scale}
    whole = images(batch["inputs"]), texts(batch["caption"])
    return reference.hycoclip_loss(state, *whole, images(batch["box_inputs"]), texts(batch["box_caption"]))


def our_loss(task: CLIPContrast, batch: Batch) -> Tensor:
    """The loss of a training."""
    return sum(task(**batch, mode="loss").values())


def step_of(task: CLIPContrast, loss: Callable[[CLIPContrast, Batch], Tensor], batch: Batch) -> Callable[[], None]:
    """A training step, at a rate of 0 so that all steps compute the same."""
    optimizer = torch.optim.AdamW([p for p in task.parameters() if p.requires_grad], lr=0.0, betas=(0.9, 0.98))

    def run() -> None:
        loss(task, batch).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # here, so that a measured peak begins without gradients

    return run


def step_rows(size: str, batch_size: int, repeats: int, device: str) -> list[list[str]]:
    """Rows of the two training steps."""
    tasks = {}
    for name in ("clip", "meru"):
        torch.manual_seed(0)
        tasks[name] = CLIPContrast(dict(name=f"{name}-vit-{size}-16"), classes=["a"]).to(device).train()
    pairs, boxes = (batch_of(batch_size, with_boxes, device) for with_boxes in (False, True))
    steps = {name: step_of(task, our_loss, pairs) for name, task in tasks.items()}
    found = in_turns(steps, repeats, device)
    what = f"ViT-{size.upper()}/16, batch {batch_size}"
    rows = [row(f"MERU's step / CLIP's, {what}", found["meru"], found["clip"], "<= 1.03x")]
    task = tasks["meru"]
    order = {"ours": step_of(task, our_loss, boxes), "official": step_of(task, official_loss, boxes)}
    with torch.no_grad():
        apart = abs(float(our_loss(task, boxes)) - float(official_loss(task, boxes)))
    found = in_turns(order, repeats, device)
    peaks = {name: peak_bytes(step, device) for name, step in order.items()}
    memory = f"{peaks['ours'] / 2**20:.0f} / {peaks['official'] / 2**20:.0f} MiB, "
    memory += f"{peaks['ours'] / peaks['official']:.2f}x (<= 0.7x)"
    rows.append(row(f"official order / HyCoCLIP's step, {what}", found["official"], found["ours"], ">= 1.3x", memory))
    rows[-1][-1] = f"{apart:.0e}"
    return rows


def ranking_row(images: int, texts: int, repeats: int, device: str) -> list[str]:
    """Similarity of all pairs against the matrix product."""
    space = Hyperboloid(torch.tensor(1.3, device=device))
    x, y = (space.embed(torch.randn(n, 512, device=device) * 0.05, "image") for n in (images, texts))
    calls = {"ours": lambda: space.similarity(x, y), "product": lambda: x @ y.T}
    found = in_turns(calls, repeats, device)
    return row(
        f"ranking {images:,} images x {texts:,} texts / matrix product", found["ours"], found["product"], "<= 1.1x"
    )


def row(name: str, first: float, second: float, target: str, memory: str = "") -> list[str]:
    """A row of the table."""
    return [name, f"{1000 * first:.0f} ms", f"{1000 * second:.0f} ms", f"{first / second:.2f}x", target, memory, ""]


def table(rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| first / second | first | second | ratio | target | peak of the step | difference of the loss |",
             "|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", default=["s"], choices=["s", "b", "l"], help="of the ViTs (default: s)")
    parser.add_argument("--batch", type=int, default=8, help="pairs a step (default: 8)")
    parser.add_argument("--images", type=int, default=5000, help="images to rank (default: 5000)")
    parser.add_argument("--texts", type=int, default=25_000, help="texts to rank (default: 25000)")
    add_run_arguments(parser, 5)


def run(args: argparse.Namespace) -> None:
    start(args, batch=2, images=1, texts=1)
    rows = [line for size in args.sizes for line in step_rows(size, args.batch, args.repeats, args.device)]
    rows.append(ranking_row(args.images, args.texts, max(args.repeats, 5), args.device))
    facts = (
        f"open_clip {open_clip.__version__}, hypvision {hypvision.__version__}. Medians of {args.repeats}, random "
        "weights, float32, 224 x 224 pixels."
    )
    report(args, ("sizes", "batch", "images", "texts"), facts, table(rows), MARKS, INTRODUCTION)
