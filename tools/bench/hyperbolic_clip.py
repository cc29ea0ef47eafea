"""MERU and HyCoCLIP: a training step against the same CLIP and against the official order of work,
and ranking.

The official order of work is four passes, one of the whole images, one of the boxes, one of the
captions and one of the boxes' words, all texts padded to 77 tokens; its loss is the reference
implementation's (``tests/references/hyperbolic_clip.py``). Captions are made up of words of one
token, as many as those of RedCaps have on average. Steps are timed in turns, in one process; their
ratio is that of the medians. On a CPU the time is that of the process, which other work on the
machine changes less than the time on the wall. Before that, what a step computes is compared with
the reference implementation in float64, for features as at the start of a training and for such
whose lift is cut.
"""

from __future__ import annotations

import argparse
import math
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
from hypvision.clip.hyperbolic_checkpoint import to_official
from hypvision.clip.spaces import Hyperboloid
from hypvision.tasks.contrastive import CLIPContrast

MARKS = ("<!-- hyperbolic-clip:begin -->", "<!-- hyperbolic-clip:end -->")
WORDS = (12.0, 2.0)  # of a caption and of a box
LENGTHS = ((1.0, 0.1), (14.0, 60.0))  # of features of images and texts

INTRODUCTION = f"""
## MERU and HyCoCLIP

A training step (forward, loss, backward, AdamW) of MERU against the CLIP with the same towers, and
of HyCoCLIP against the official order of work: whole and box images and their texts as four passes,
all texts padded to 77 tokens. Ranking is the similarity of all images and texts against the matrix
product of their vectors alone. Ratios are those of medians, timed in turns in one process; on a CPU
they are of the time of the process, which other work on the machine changes little. Differences are
relative to the norms of what the formulas of the papers give in float64, for features (times
sqrt(c)) as at the start of a training, and for such whose lift is cut at 11.09; in brackets those
of the same formulas in float32.

{MARKS[0]}
{MARKS[1]}
"""

Batch = dict[str, object]


def made_up(count: int, mean: float, generator: torch.Generator) -> list[str]:
    """Texts of made-up words."""
    words = made_up_words()
    lengths = 1 + torch.poisson(torch.full((count,), mean - 1), generator=generator).long()
    return [
        " ".join(words[i] for i in torch.randint(len(words), (n,), generator=generator))
        for n in lengths.tolist()
    ]


def in_turns(calls: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Median seconds of each call, of the process where it computes on the CPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    return {
        name: statistics.median(values)
        for name, values in timings(calls, repeats, device, clock=clock).items()
    }


def batch_of(size: int, boxes: bool, device: str) -> Batch:
    """A batch of CLIPContrast."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        0, 256, (2, size, 3, 224, 224), generator=generator, dtype=torch.uint8
    ).to(device)
    found: Batch = dict(inputs=images[0], caption=made_up(size, WORDS[0], generator))
    if boxes:
        found |= dict(box_inputs=images[1], box_caption=made_up(size, WORDS[1], generator))
    return found


def official_loss(task: CLIPContrast, batch: Batch) -> Tensor:
    """HyCoCLIP's loss in four passes."""
    clip = task.clip
    space = task.clip.space
    clip.clamp_scalars()

    def images(pixels: Tensor) -> Tensor:
        return space.embed(clip.visual((pixels.float() - task.mean) / task.std), "image")[:, 1:]

    def texts(captions: list[str]) -> Tensor:
        tokens = task.tokenizer(captions).to(task.mean.device)
        return space.embed(open_clip.model.CLIP.encode_text(clip, tokens), "text")[:, 1:]

    state = {"curv": clip.curv, "logit_scale": clip.logit_scale}
    whole = images(batch["inputs"]), texts(batch["caption"])
    return reference.hycoclip_loss(
        state, *whole, images(batch["box_inputs"]), texts(batch["box_caption"])
    )


def our_loss(task: CLIPContrast, batch: Batch) -> Tensor:
    """The loss of a training."""
    return sum(task(**batch, mode="loss").values())


def step_of(
    task: CLIPContrast, loss: Callable[[CLIPContrast, Batch], Tensor], batch: Batch
) -> Callable[[], None]:
    """A training step, at a rate of 0 so that all steps compute the same."""
    optimizer = torch.optim.AdamW(
        [p for p in task.parameters() if p.requires_grad], lr=0.0, betas=(0.9, 0.98)
    )

    def run() -> None:
        loss(task, batch).backward()
        optimizer.step()
        optimizer.zero_grad(
            set_to_none=True
        )  # here, so that a measured peak begins without gradients

    return run


def step_rows(size: str, batch_size: int, repeats: int, device: str) -> list[list[str]]:
    """Rows of the two training steps."""
    tasks = {}
    for name in ("clip", "meru"):
        torch.manual_seed(0)
        tasks[name] = (
            CLIPContrast(dict(name=f"{name}-vit-{size}-16"), classes=["a"]).to(device).train()
        )
    pairs, boxes = (batch_of(batch_size, with_boxes, device) for with_boxes in (False, True))
    steps = {name: step_of(task, our_loss, pairs) for name, task in tasks.items()}
    found = in_turns(steps, repeats, device)
    what = f"ViT-{size.upper()}/16, batch {batch_size}"
    rows = [row(f"MERU's step / CLIP's, {what}", found["meru"], found["clip"], "<= 1.03x")]
    task = tasks["meru"]
    order = {
        "ours": step_of(task, our_loss, boxes),
        "official": step_of(task, official_loss, boxes),
    }
    with torch.no_grad():
        apart = abs(float(our_loss(task, boxes)) - float(official_loss(task, boxes)))
    found = in_turns(order, repeats, device)
    peaks = {name: peak_bytes(step, device) for name, step in order.items()}
    memory = f"{peaks['ours'] / 2**20:.0f} / {peaks['official'] / 2**20:.0f} MiB, "
    memory += f"{peaks['ours'] / peaks['official']:.2f}x (<= 0.7x)"
    rows.append(
        row(
            f"official order / HyCoCLIP's step, {what}",
            found["official"],
            found["ours"],
            ">= 1.3x",
            memory,
        )
    )
    rows[-1][-1] = f"{apart:.0e}"
    return rows


def apart(found: list[Tensor], truth: list[Tensor]) -> list[float]:
    """Differences relative to the norms of the truth."""
    return [((x - y).norm() / y.norm()).item() for x, y in zip(found, truth)]


def agreement_row(size: str, image: float, text: float, pairs: int = 4) -> list[str]:
    """How far float32 is from the reference in float64, and in brackets the reference in float32:
    points, inner products, HyCoCLIP's loss and its gradients.

    ``image`` and ``text``: about the lengths of the features that are lifted, times sqrt(c).
    """
    torch.manual_seed(0)
    task = CLIPContrast(dict(name=f"meru-vit-{size}-16"), classes=["a"]).train()
    clip = task.clip
    batch = batch_of(pairs, True, "cpu")
    tokens = [task.tokenizer(batch[name]) for name in ("caption", "box_caption")]
    pixels = [batch[name].double() / 255 for name in ("inputs", "box_inputs")]
    heads = clip.visual.trunk.blocks[0].attn.num_heads, clip.transformer.resblocks[0].attn.num_heads
    with torch.no_grad():
        clip.curv.fill_(0.4)
        for length, features, projection, alpha in (
            (image, clip.encode_image((batch["inputs"] - task.mean) / task.std),
             clip.visual.head.proj.weight, clip.visual_alpha),
            (text, clip.encode_text(tokens[0]), clip.text_projection, clip.textual_alpha),
        ):  # fmt: skip
            projection.mul_(
                length / (features.norm(dim=1).mean() * (alpha + 0.5 * clip.curv).exp())
            )
    fixed = ("pixel_mean", "pixel_std", "textual.attn_mask", "visual.pos_embed")

    def formulas(dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Points, inner products and loss, and the gradients, of the reference."""
        state = {name: value.to(dtype) for name, value in to_official(clip.state_dict()).items()}
        learned = {
            name: value.requires_grad_() for name, value in state.items() if name not in fixed
        }
        images = [reference.embed(state, reference.image_features(state, x.to(dtype), heads[0]),
        "visual_alpha")
                  for x in pixels]  # fmt: skip
        texts = [
            reference.embed(state, reference.text_features(state, x, heads[1]), "textual_alpha")
            for x in tokens
        ]
        loss = reference.hycoclip_loss(state, images[0], texts[0], images[1], texts[1])
        gradients = dict(zip(learned, torch.autograd.grad(loss, [*learned.values()])))
        inner = reference.inner(images[0], texts[0], state["curv"].exp())
        return [torch.cat([images[0], texts[0]]), inner, loss], gradients

    truth, expected = formulas(torch.float64)
    plain, plain_gradients = formulas(torch.float32)
    loss = our_loss(task, batch)
    loss.backward()
    gradients = to_official(
        {name: p.grad for name, p in clip.named_parameters() if p.grad is not None}
    )
    with torch.no_grad():
        space = clip.space
        points = [space.embed(clip.encode_image((batch["inputs"] - task.mean) / task.std), "image"),
                  space.embed(clip.encode_text(tokens[0]), "text")]  # fmt: skip
        found = [torch.cat(points)[:, 1:], space.similarity(*points), loss]
        rows = [apart(found, truth), apart(plain, truth)]
    for row, given in zip(rows, (gradients, plain_gradients)):
        squares = [
            ((given[name] - y).square().sum().item(), y.square().sum().item())
            for name, y in expected.items()
        ]
        row.append(math.sqrt(sum(x for x, _ in squares) / sum(y for _, y in squares)))
    what = f"ViT-{size.upper()}/16, images {image:g}, texts {text:g}"
    return [what, *(f"{own:.1e} ({other:.1e})" for own, other in zip(*rows)), "<= 1e-5"]


def ranking_row(images: int, texts: int, repeats: int, device: str) -> list[str]:
    """Similarity of all pairs against the matrix product."""
    space = Hyperboloid(torch.tensor(1.3, device=device))
    x, y = (
        space.embed(torch.randn(n, 512, device=device) * 0.05, "image") for n in (images, texts)
    )
    calls = {"ours": lambda: space.similarity(x, y), "product": lambda: x @ y.T}
    found = in_turns(calls, repeats, device)
    return row(
        f"ranking {images:,} images x {texts:,} texts / matrix product",
        found["ours"],
        found["product"],
        "<= 1.1x",
    )


def row(name: str, first: float, second: float, target: str, memory: str = "") -> list[str]:
    """A row of the table."""
    return [
        name,
        f"{1000 * first:.0f} ms",
        f"{1000 * second:.0f} ms",
        f"{first / second:.2f}x",
        target,
        memory,
        "",
    ]


def table(rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| first / second | first | second | ratio | target | peak of the step | difference "
             "of the loss |",
             "|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def agreement_table(rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| against the formulas in float64 | points | inner products | HyCoCLIP's loss | its "
             "gradients | target |",
             "|---|--:|--:|--:|--:|--:|"]  # fmt: skip
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["s"],
        choices=["s", "b", "l"],
        help="of the ViTs (default: s)",
    )
    parser.add_argument("--batch", type=int, default=8, help="pairs a step (default: 8)")
    parser.add_argument("--images", type=int, default=5000, help="images to rank (default: 5000)")
    parser.add_argument("--texts", type=int, default=25_000, help="texts to rank (default: 25000)")
    add_run_arguments(parser, 5)


def run(args: argparse.Namespace) -> None:
    start(args, batch=2, images=1, texts=1)
    agreements = [agreement_row(size, *lengths) for size in args.sizes for lengths in LENGTHS]
    rows = [
        line
        for size in args.sizes
        for line in step_rows(size, args.batch, args.repeats, args.device)
    ]
    rows.append(ranking_row(args.images, args.texts, max(args.repeats, 5), args.device))
    facts = (
        f"open_clip {open_clip.__version__}, hypvision {hypvision.__version__}. Medians of "
        f"{args.repeats}, random weights, float32, 224 x 224 pixels."
    )
    report(args, ("sizes", "batch", "images", "texts"), facts,
    f"{agreement_table(agreements)}\n\n{table(rows)}", MARKS,
           INTRODUCTION)  # fmt: skip
