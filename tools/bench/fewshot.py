"""Few-shot methods against the plain formulation of the official codes: time and memory of steps
and of evaluation.

The plain formulation encodes whole texts of 77 tokens, those of all classes again for every batch,
in training and in evaluation, and lets the heads see every image anew in each epoch. Both sides
have the same random weights, images and classes, and give the same numbers
(`tests/clip/prompting`).

A run may measure some rows alone (`--only`, `--methods`, `--classes`, `--batches`); with `--write`
the other rows of the table stay as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import open_clip
import torch
import torch.nn.functional as F
from references import fewshot as reference
from torch import Tensor
from tqdm import tqdm

import hypvision
from bench.common import MIB, add_run_arguments, held_bytes, in_turns, peak_bytes, report, start
from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.clip.prompting import Host
from hypvision.clip.towers import find_towers
from hypvision.tasks.few_shot import FewShotCLIP

MARKS = ("<!-- fewshot:begin -->", "<!-- fewshot:end -->")
PARTS = ("step", "lath", "evaluation", "heads", "memory")
HEADS = {
    "clip-adapter": {},
    "tip-adapter-f": dict(keys=800, classes=50, tune=True),
}
TARGETS = {("maple", 50): 2.2, ("maple", 100): 3.0, ("promptsrc", 50): 1.8, ("promptsrc", 100): 2.5}

INTRODUCTION = f"""
## Few-shot CLIP

`plain` is the formulation of the official codes, written down in `tests/references/fewshot.py`:
whole texts, encoded again for every batch. `peak` is what is allocated at the worst moment beyond
the weights. Rows may come from several runs of the command below, with `--only`, `--methods`,
`--classes` and `--batches`.

{MARKS[0]}
{MARKS[1]}
"""
_WORDS = ("red", "small", "old", "wild", "round", "striped", "tall", "quiet", "green", "wooden")
_THINGS = ("car", "dog", "flower", "bird", "house", "plane", "shoe", "river", "field", "tower")
CLASSES = [f"{word} {thing}" for word in _WORDS for thing in _THINGS]


def class_list(count: int) -> list[str]:
    """So many names, of one to three words."""
    names = [*_THINGS, *CLASSES, *(f"{word} {name}" for word in _WORDS for name in CLASSES)]
    return names[:count]


def plain_step(host: Host, tokens: Tensor, images: Tensor, labels: Tensor, name: str) -> Tensor:
    """The loss of a batch by the official formulation."""
    model = host.clip
    learner = host.learner
    deep = list(learner.deep_text)
    vision = list(learner.vision().values())
    x = host.normalised(images)
    text = F.normalize(reference.batched_texts(model, tokens, learner.ctx, deep), dim=-1)
    image = F.normalize(reference.batched_images(model, x, vision), dim=-1)
    logits = host.scale * image @ text.T
    loss = F.cross_entropy(logits, labels)
    if name == "promptsrc":
        with torch.no_grad():
            frozen = F.normalize(reference.batched_images(model, x), dim=-1)
            old = host.frozen_texts()
            target = (host.scale * frozen @ old.T).log_softmax(-1)
        kl = (
            F.kl_div(logits.log_softmax(-1), target, reduction="sum", log_target=True)
            / logits.numel()
        )
        loss = loss + 25 * F.l1_loss(text, old) + 10 * F.l1_loss(image, frozen) + kl
    return loss


def made(
    name: str, clip: CLIPBundle, count: int, lath: bool = False, **options: object
) -> FewShotCLIP:
    """A model with that many classes."""
    adapter = dict(type="lathadapter", classes=count) if lath else None
    if name in ("maple", "promptsrc"):
        options["depth"] = min(9, *(len(tower.blocks) for tower in find_towers(clip.model)))
    model = FewShotCLIP(clip, dict(name=name, **options), adapter)
    model.set_classes(class_list(count))
    return model.to(clip.model.logit_scale.device)


# Rows
# --------------------------------------------------------------------------------------------------


def row(
    name: str, times: tuple[float, float], target: str, peaks: tuple[float, float] | None = None
) -> str:
    """Of the table: milliseconds and MiB of the plain form and ours, and the quotients."""
    plain, ours = times
    memory = (
        "| | |"
        if peaks is None
        else f"| {peaks[0] / MIB:.0f} | {peaks[1] / MIB:.0f} | {peaks[1] / peaks[0]:.2f}"
    )
    return (
        f"| {name} | {1000 * plain:.0f} | {1000 * ours:.0f} | {plain / ours:.2f}x | {target} "
        f"{memory} |"
    )


def share_row(name: str, whole: float, part: float, target: str) -> str:
    """Of what something adds to a step."""
    return (
        f"| {name} | {1000 * whole:.0f} | {1000 * part:.1f} | +{100 * part / whole:.1f} % | "
        f"{target} | | | |"
    )


def backward(model: FewShotCLIP, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A step of it."""
    return lambda: sum(model(images, labels, mode="loss").values()).backward()


def training(name: str, classes: int, clip: CLIPBundle, args: argparse.Namespace, bar: tqdm) -> str:
    """A step of a host, plain and ours."""
    options = dict(templates=args.templates) if name == "promptsrc" else {}
    model, images, labels = made(name, clip, classes, **options).train(), *batch(args, classes)
    host = model.host
    tokens = host.tokens(host.sentences())
    if name == "promptsrc":
        host.frozen_texts()

    def plain() -> None:
        plain_step(host, tokens, images, labels, name).backward()

    calls = {"plain": plain, "ours": backward(model, images, labels)}
    times = in_turns(calls, args.repeats, args.device, bar)
    peaks = tuple(peak_bytes(call, args.device) for call in calls.values())
    target = TARGETS.get((name, classes))
    told = f">= {target}x; peak <= 0.4" if target else ""
    return row(f"step, {name}, {classes} classes", tuple(times.values()), told, peaks)


def adapter(
    name: str, classes: int, clip: CLIPBundle, args: argparse.Namespace, bar: tqdm
) -> list[str]:
    """What LatHAdapter adds to a step of a host and to its inference.

    It works on the features that the host gives, so its part is measured by itself, on such
    features, as the difference of what is made of them with and without it: a difference of two
    whole steps would be lost in their noise.
    """
    options = dict(templates=args.templates) if name == "promptsrc" else {}
    model, images, labels = (
        made(name, clip, classes, lath=True, **options).train(),
        *batch(args, classes),
    )
    if name == "promptsrc":
        model.host.frozen_texts()
    out = model.host(images, labels)
    out.image, out.text = (x.detach().requires_grad_() for x in (out.image, out.text))
    out.losses = {}

    def adapted() -> None:
        sum(model._loss(out, labels).values()).backward()

    def alone() -> None:
        out.fit(out.logits(), labels).backward()

    small = in_turns({"adapted": adapted, "alone": alone}, 20 * args.repeats, args.device, bar)
    step = in_turns({"whole": backward(model, images, labels)}, args.repeats, args.device, bar)[
        "whole"
    ]
    lines = [share_row(f"LatHAdapter in a step, {name}, {classes} classes", step,
    small["adapted"] - small["alone"],
                       "<= 5 %")]  # fmt: skip
    model.eval()
    with torch.no_grad():
        given = model.host(images)
        calls = {"adapted": lambda: model._logits(given), "alone": given.logits}
        small = in_turns(calls, 20 * args.repeats, args.device, bar)
        step = in_turns({"whole": lambda: model(images)}, args.repeats, args.device, bar)["whole"]
    name = f"LatHAdapter in inference, {name}, {classes} classes"
    lines.append(share_row(name, step, small["adapted"] - small["alone"], "<= 2 %"))
    del clip.model.lathadapter, clip.model.adapters
    return lines


def evaluation(
    classes: int, size: int, clip: CLIPBundle, args: argparse.Namespace, bar: tqdm
) -> str:
    """MaPLe's evaluation of a batch; the class texts of ours are those of the batch before."""
    model = made("maple", clip, classes).eval()
    (images, _) = batch(args, classes, size)
    host = model.host
    tokens = model.host.tokens(model.host.sentences())

    @torch.no_grad()
    def ours() -> None:
        model(images)

    @torch.no_grad()
    def plain() -> None:
        learner = host.learner
        text = F.normalize(
            reference.batched_texts(host.clip, tokens, learner.ctx, list(learner.deep_text)), dim=-1
        )
        x = reference.batched_images(
            host.clip, host.normalised(images), list(learner.vision().values())
        )
        (host.scale * F.normalize(x, dim=-1) @ text.T).argmax(-1)

    with torch.no_grad():
        host.texts()
    times = in_turns({"plain": plain, "ours": ours}, args.repeats, args.device, bar, warm=size < 32)
    target = ">= 4x" if size == 4 else ">= 1x"
    return row(f"evaluation, maple, {classes} classes, batch {size}", tuple(times.values()), target)


def heads(clip: CLIPBundle, args: argparse.Namespace, bar: tqdm) -> list[str]:
    """Steps of what stands behind the towers, a batch of 8, on images and on features that were
    kept."""
    images, labels = batch(args, 50, 8)
    lines = []
    for name, options in HEADS.items():
        model = made(name.removesuffix("-f"), clip, 50, **options).train()
        features = model.host.frozen_features(images)
        if name == "tip-adapter-f":
            model.host.fill(
                torch.randn(800, features.shape[1], device=args.device), torch.arange(800) % 50
            )
        model.host.texts()
        calls = {
            "plain": backward(model, images, labels),
            "ours": backward(model, features, labels),
        }
        times = in_turns(calls, args.repeats, args.device, bar)
        lines.append(
            row(f"{name}, batch 8, features kept (views 0)", tuple(times.values()), ">= 10x")
        )
    return lines


def memory(name: str, classes: int, clip: CLIPBundle, args: argparse.Namespace, bar: tqdm) -> str:
    """The peak of a step with class texts in parts, weights included."""
    options = dict(templates=1) if name == "promptsrc" else {}
    model = made(name, clip, classes, text_chunk=args.chunk, **options).train()
    images, labels = batch(args, classes)
    if name == "promptsrc":
        model.host.frozen_texts()
    peak = peak_bytes(backward(model, images, labels), args.device)
    bar.update()
    name = f"step, {name}, {classes} classes, text_chunk={args.chunk}, with weights"
    return f"| {name} | | | | peak < {16 * 1024} | | {(peak + held_bytes(model)) / MIB:.0f} | |"


def batch(args: argparse.Namespace, classes: int, size: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    side = args.size
    images = torch.randint(0, 256, (size, 3, side, side), generator=generator, dtype=torch.uint8)
    return images.to(args.device), (torch.arange(size) % classes).to(args.device)


# The command
# --------------------------------------------------------------------------------------------------


def merged(path: Path | None, lines: list[str]) -> list[str]:
    """The rows with those that a file has beside them, in the order of the parts."""
    page = path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""
    held = page.partition(MARKS[0])[2].partition(MARKS[1])[0].splitlines()
    rows = {
        line.split("|")[1].strip(): line
        for line in (*held, *lines)
        if line.startswith("| ") and line[2:4] != "| "
    }
    order = ("step", "LatHAdapter", "evaluation", *HEADS)

    def place(name: str) -> tuple[int, bool]:
        return next(
            (i for i, start in enumerate(order) if name.startswith(start)), len(order)
        ), "chunk" in name

    return [rows[name] for name in sorted(rows, key=place)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="ViT-B-16-quickgelu", help="CLIP model, random weights")
    text = "numbers of classes (default: 50 100)"
    parser.add_argument("--classes", type=int, nargs="+", default=[50, 100], help=text)
    parser.add_argument(
        "--methods", nargs="+", default=["maple", "promptsrc"], choices=["maple", "promptsrc"]
    )
    text = "of PromptSRC's frozen texts, made once (default: 60)"
    parser.add_argument("--templates", type=int, default=60, help=text)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts; default: all")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[4, 100], help="of evaluation (default: 4 100)"
    )
    parser.add_argument(
        "--many", type=int, default=1000, help="classes of the part memory (default: 1000)"
    )
    parser.add_argument(
        "--chunk", type=int, default=100, help="its classes at a time (default: 100)"
    )
    add_run_arguments(parser, repeats=3)


def run(args: argparse.Namespace) -> None:
    start(args, templates=1)
    if args.model in open_clip.list_models():
        model = open_clip.create_model(args.model, None).eval()
        clip = CLIPBundle(model, open_clip.get_tokenizer(args.model), (128.0,) * 3, (64.0,) * 3)
    else:
        clip = create_clip(args.model)
    clip.model.to(args.device)
    side = clip.model.visual.image_size
    args.size = side if isinstance(side, int) else side[0]
    parts = args.only or PARTS
    lines = []
    with tqdm(unit="call") as bar:
        for name in args.methods:
            for classes in args.classes:
                if "step" in parts:
                    lines.append(training(name, classes, clip, args, bar))
                if "lath" in parts:
                    lines += adapter(name, classes, clip, args, bar)
            if "memory" in parts:
                lines.append(memory(name, args.many, clip, args, bar))
        if "evaluation" in parts:
            lines += [evaluation(args.classes[-1], size, clip, args, bar) for size in args.batches]
        if "heads" in parts:
            lines += heads(clip, args, bar)
    table = [
        "| | plain ms | ours ms | plain / ours | target | plain peak MiB | ours | share |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *merged(args.write, lines),
    ]
    facts = (
        f"hypvision {hypvision.__version__}. {args.model}, batch 4 where nothing else is said, "
        "float32. Of LatHAdapter: the whole step, its own part, its share."
    )
    report(args, ["model"], facts, "\n".join(table), MARKS, INTRODUCTION)
