"""Few-shot methods against the plain formulation of the official codes: time and memory of steps and of evaluation.

The plain formulation encodes whole texts of 77 tokens, those of all classes again for every batch, in training and in
evaluation, and lets the heads see every image anew in each epoch. Both sides have the same random weights, images and
classes, and give the same numbers (`tests/clip/prompting`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import open_clip
import torch
import torch.nn.functional as F
from references import fewshot as reference
from torch import Tensor
from tqdm import tqdm

import hypvision
from bench.common import MIB, add_run_arguments, in_turns, peak_bytes, report, start
from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.clip.prompting import Host
from hypvision.clip.towers import find_towers
from hypvision.tasks.few_shot import FewShotCLIP

MARKS = ("<!-- fewshot:begin -->", "<!-- fewshot:end -->")
TARGETS = {("maple", 50): 2.2, ("maple", 100): 3.0, ("promptsrc", 50): 1.8, ("promptsrc", 100): 2.5}

INTRODUCTION = f"""
## Few-shot CLIP

`plain` is the formulation of the official codes, written down in `tests/references/fewshot.py`. `peak` is what is
allocated at the worst moment beyond the weights.

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
    model, learner = host.clip, host.learner
    deep = list(learner.deep_text)
    vision = list(learner.vision().values())
    x = host.normalised(images)
    text = F.normalize(reference.batched_texts(model, tokens, learner.ctx, deep), dim=-1)
    image = F.normalize(reference.batched_images(model, x, vision), dim=-1)
    logits = host.scale * image @ text.T
    loss = F.cross_entropy(logits, labels)
    if name == "promptsrc":
        with torch.no_grad():
            frozen, old = F.normalize(reference.batched_images(model, x), dim=-1), host.frozen_texts()
            target = (host.scale * frozen @ old.T).log_softmax(-1)
        kl = F.kl_div(logits.log_softmax(-1), target, reduction="sum", log_target=True) / logits.numel()
        loss = loss + 25 * F.l1_loss(text, old) + 10 * F.l1_loss(image, frozen) + kl
    return loss


def made(name: str, clip: CLIPBundle, classes: int, lath: bool = False, **options: object) -> FewShotCLIP:
    """A model with that many classes."""
    adapter = dict(type="lathadapter", classes=classes) if lath else None
    if name in ("maple", "promptsrc"):
        options["depth"] = min(9, *(len(tower.blocks) for tower in find_towers(clip.model)))
    model = FewShotCLIP(clip, dict(name=name, **options), adapter)
    model.set_classes(class_list(classes))
    return model.to(clip.model.logit_scale.device)


def row(name: str, ours: tuple[float, float], plain: tuple[float, float], target: str) -> str:
    """Of the table: milliseconds and MiB of both, and the quotients."""
    return (
        f"| {name} | {1000 * plain[0]:.0f} | {1000 * ours[0]:.0f} | {plain[0] / ours[0]:.2f}x | {target} | "
        f"{plain[1] / MIB:.0f} | {ours[1] / MIB:.0f} | {ours[1] / max(plain[1], 1):.2f} |"
    )


def compare(calls: dict[str, Callable[[], object]], args: argparse.Namespace, bar: tqdm) -> list[tuple[float, float]]:
    """Time and peak of each call."""
    times = in_turns(calls, args.repeats, args.device, bar)
    return [(times[name], peak_bytes(call, args.device)) for name, call in calls.items()]


def training(name: str, classes: int, clip: CLIPBundle, args: argparse.Namespace, bar: tqdm) -> list[str]:
    """A step of a host, plain and ours, and with LatHAdapter."""
    options = dict(templates=args.templates) if name == "promptsrc" else {}
    model, images, labels = made(name, clip, classes, **options).train(), *batch(args, classes)
    host = model.host
    tokens = host.tokens(host.sentences())
    if name == "promptsrc":
        host.frozen_texts()

    def ours() -> None:
        sum(model(images, labels, mode="loss").values()).backward()

    def plain() -> None:
        plain_step(host, tokens, images, labels, name).backward()

    found = compare({"ours": ours, "plain": plain}, args, bar)
    target = TARGETS.get((name, classes))
    lines = [row(f"step, {name}, {classes} classes", *found, f">= {target}x" if target else "")]
    if args.lath:
        adapted = made(name, clip, classes, lath=True, **options).train()
        if name == "promptsrc":
            adapted.host.frozen_texts()

        def with_adapter() -> None:
            sum(adapted(images, labels, mode="loss").values()).backward()

        both = compare({"lath": with_adapter, "host": ours}, args, bar)
        share = 100 * (both[0][0] / both[1][0] - 1)
        lines.append(row(f"LatHAdapter on it: {share:+.1f} % (target <= 5 %)", both[0], both[1], ""))
        del clip.model.lathadapter, clip.model.adapters
    return lines


def evaluation(classes: int, size: int, clip: CLIPBundle, args: argparse.Namespace, bar: tqdm) -> str:
    """MaPLe's evaluation of a batch."""
    model, (images, _) = made("maple", clip, classes).eval(), batch(args, classes, size)
    host, tokens = model.host, model.host.tokens(model.host.sentences())

    @torch.no_grad()
    def ours() -> None:
        model(images)

    @torch.no_grad()
    def plain() -> None:
        text = F.normalize(
            reference.batched_texts(host.clip, tokens, host.learner.ctx, list(host.learner.deep_text)), dim=-1
        )
        x = reference.batched_images(host.clip, host.normalised(images), list(host.learner.vision().values()))
        (host.scale * F.normalize(x, dim=-1) @ text.T).argmax(-1)

    target = ">= 4x" if size == 4 else ">= 1x"
    found = compare({"ours": ours, "plain": plain}, args, bar)
    return row(f"evaluation, maple, {classes} classes, batch {size}", *found, target)


def heads(clip: CLIPBundle, args: argparse.Namespace, bar: tqdm) -> str:
    """CLIP-Adapter's step on a batch of 32, on images and on features that were kept."""
    model, (images, labels) = made("clip-adapter", clip, 50).train(), batch(args, 50, 32)
    features = model.host.frozen_features(images)

    def ours() -> None:
        sum(model(features, labels, mode="loss").values()).backward()

    def plain() -> None:
        sum(model(images, labels, mode="loss").values()).backward()

    return row("clip-adapter, batch 32, kept features", *compare({"ours": ours, "plain": plain}, args, bar), ">= 10x")


def batch(args: argparse.Namespace, classes: int, size: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    side = args.size
    images = torch.randint(0, 256, (size, 3, side, side), generator=generator, dtype=torch.uint8)
    return images.to(args.device), (torch.arange(size) % classes).to(args.device)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="ViT-B-16-quickgelu", help="CLIP model, random weights")
    parser.add_argument(
        "--classes", type=int, nargs="+", default=[50, 100], help="numbers of classes (default: 50 100)"
    )
    parser.add_argument("--methods", nargs="+", default=["maple", "promptsrc"], choices=["maple", "promptsrc"])
    parser.add_argument(
        "--templates", type=int, default=60, help="of PromptSRC's frozen texts, made once (default: 60)"
    )
    parser.add_argument("--lath", action="store_true", help="LatHAdapter on each host, too")
    parser.add_argument("--only", nargs="+", choices=["step", "evaluation", "heads"], help="parts; default: all")
    add_run_arguments(parser, repeats=3)


def run(args: argparse.Namespace) -> None:
    start(args, templates=1)
    torch.manual_seed(0)
    if args.model in open_clip.list_models():
        model = open_clip.create_model(args.model, None).eval()
        clip = CLIPBundle(model, open_clip.get_tokenizer(args.model), (128.0,) * 3, (64.0,) * 3)
    else:
        clip = create_clip(args.model)
    clip.model.to(args.device)
    side = clip.model.visual.image_size
    args.size = side if isinstance(side, int) else side[0]
    parts = args.only or ["step", "evaluation", "heads"]
    lines = ["| | plain ms | ours ms | plain / ours | target | plain peak MiB | ours | share |",
             "|---|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    with tqdm(unit="call") as bar:
        if "step" in parts:
            for name in args.methods:
                for classes in args.classes:
                    lines += training(name, classes, clip, args, bar)
        if "evaluation" in parts:
            lines += [evaluation(args.classes[-1], size, clip, args, bar) for size in (4, 100)]
        if "heads" in parts:
            lines.append(heads(clip, args, bar))
    facts = f"hypvision {hypvision.__version__}. {args.model}, batch 4 where nothing else is said, float32."
    report(args, ["model", "classes", "methods", "templates"], facts, "\n".join(lines), MARKS, INTRODUCTION)
