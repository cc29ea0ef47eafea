"""HyperCLIP's adapter: what it adds to a training step and to inference, and what cutting the
prompts saves.

The training step is CLIP's dense image embeddings and its text embeddings, forward and backward,
with the gradient at the packed projections. `frozen` is that same graph without an adapter (the
gradient stops at the packed weights); `adapter` goes on to the blocks S; `reference` builds the
weights as the official code does: projection by projection, through dense D x D matrices and the
whole chain on the ball. Calls are timed in turns, in one process; medians count.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import open_clip
import torch
from references.hyperclip import reference_packed
from torch import Tensor, nn
from tqdm import tqdm

import hypvision
from bench.common import in_turns, machine, set_device, write_section
from hypvision.clip import adapters
from hypvision.clip.models import ARCHITECTURES, create_clip
from hypvision.clip.towers import encode_dense, encode_text, find_towers, patch_size
from hypvision.data.classes import load_classes
from hypvision.io.errors import HypvisionError

INTRODUCTION = "\n## HyperCLIP\n\n<!-- hyperclip:begin -->\n<!-- hyperclip:end -->\n"
MARKS = ("<!-- hyperclip:begin -->", "<!-- hyperclip:end -->")


def reference_weights(model: nn.Module) -> None:
    """All adapted weights as the official code makes them, with the gradient of a sum."""
    total = torch.zeros(())
    for tower in find_towers(model):
        for block in tower.blocks:
            blocks = {letter: getattr(block.hyperclip, letter) for letter in "qkv"}
            total = total + reference_packed(tower.frozen(block), blocks, 0.01).sum()
    total.backward()


def fused_weights(model: nn.Module) -> None:
    """The same by the closed form."""
    towers = find_towers(model)
    total = sum(
        block.hyperclip(tower.frozen(block)).sum() for tower in towers for block in tower.blocks
    )
    total.backward()


def measure(
    name: str, batch: int, size: int, prompts: int, repeats: int, device: str
) -> dict[str, float]:
    """Seconds by name of what was measured."""
    bundle = create_clip(name)
    base = bundle.model.to(device).train()
    rows, _ = patch_size(base)
    images = torch.randn(batch, 3, size // rows * rows, size // rows * rows, device=device)
    names = [text.split(",")[0] for text in load_classes("coco171")][:prompts]
    tokens = bundle.tokenizer([f"A photo of a {text} in the scene" for text in names]).to(device)
    frozen = copy.deepcopy(base).requires_grad_(False)
    for tower in find_towers(frozen):
        for block in tower.blocks:
            tower.frozen(block).requires_grad_(True)
    widths = [tower.width for tower in find_towers(base)]
    block = next(n for n in (128, 64, 32, 16) if all(width % n == 0 for width in widths))
    adapted = adapters.inject(copy.deepcopy(base), block=block)
    merged = adapters.merge(adapters.inject(copy.deepcopy(base), block=block))

    def step(model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            model.zero_grad(set_to_none=True)
            loss: Tensor = (
                encode_dense(model, images)[0].square().mean()
                + encode_text(model, tokens).square().mean()
            )
            loss.backward()

        return run

    def infer(model: nn.Module, cut: bool = True) -> Callable[[], None]:
        def run() -> None:
            with torch.inference_mode():
                encode_dense(model, images)
                encode_text(model, tokens, cut=cut)

        return run

    def text(cut: bool) -> Callable[[], object]:
        def run() -> object:
            with torch.inference_mode():
                return encode_text(base, tokens, cut=cut)

        return run

    train = {"frozen, training": step(frozen), "adapter, training": step(adapted)}
    weights = {
        "reference, weights": lambda: reference_weights(adapted),
        "adapter, weights": lambda: fused_weights(adapted),
    }
    models = {"base, inference": base, "adapter, inference": adapted, "merged, inference": merged}
    texts = {"text, 77 tokens": text(False), "text, cut": text(True)}
    with tqdm(total=(repeats + 1) * 9, desc=name, unit="call", disable=None) as bar:
        found = in_turns(train, repeats, device, bar)
        found |= in_turns(weights, repeats, device, bar)
        for model in models.values():
            model.eval()
        found |= in_turns(
            {key: infer(model) for key, model in models.items()}, repeats, device, bar
        )
        found |= in_turns(texts, repeats, device, bar)
    return found


def table(results: dict[str, dict[str, float]]) -> str:
    """A Markdown table with a line for each model."""
    lines = [
        "| model | training, frozen | with adapter | overhead | weights alone: reference | ours | "
        "faster | inference | adapter kept | merged | text, 77 tokens | cut | faster |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]

    def seconds(value: float) -> str:
        return f"{value:.3f} s" if value >= 0.1 else f"{1000 * value:.1f} ms"

    def change(a: float, b: float) -> str:
        return f"{100 * (a / b - 1):+.1f} %"

    for name, t in results.items():
        base = t["base, inference"]
        cells = [
            name,
            seconds(t["frozen, training"]),
            seconds(t["adapter, training"]),
            change(t["adapter, training"], t["frozen, training"]),
            seconds(t["reference, weights"]),
            seconds(t["adapter, weights"]),
            f"{t['reference, weights'] / t['adapter, weights']:.1f}x",
            seconds(base),
            change(t["adapter, inference"], base),
            change(t["merged, inference"], base),
            seconds(t["text, 77 tokens"]),
            seconds(t["text, cut"]),
            f"{t['text, 77 tokens'] / t['text, cut']:.1f}x",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("| target | | | <= +10 % | | | | | | 0 % | | | |")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = [*ARCHITECTURES, *open_clip.list_models()]
    parser.add_argument(
        "--models",
        nargs="+",
        default=["ViT-B-16"],
        metavar="NAME",
        choices=known,
        help="CLIP models",
    )
    parser.add_argument("--batch", type=int, default=1, help="images a step (default: 1)")
    parser.add_argument("--size", type=int, default=384, help="side of the images (default: 384)")
    parser.add_argument(
        "--prompts", type=int, default=171, help="class names a step, of COCO-Stuff (default: 171)"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed calls of each kind (default: 5)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write the table into this Markdown file, too"
    )


def run(args: argparse.Namespace) -> None:
    for name in ("batch", "repeats", "threads", "prompts"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise HypvisionError(f"--{name} must be at least 1, got {value}.")
    set_device(args.device, args.threads)
    torch.manual_seed(0)
    results = {
        n: measure(n, args.batch, args.size, args.prompts, args.repeats, args.device)
        for n in args.models
    }
    command = (
        f"tools/benchmark.py hyperclip --models {' '.join(args.models)} --batch {args.batch} "
        f"--size {args.size}"
    )
    command += f" --prompts {args.prompts} --repeats {args.repeats} --device {args.device}"
    if args.device == "cpu":
        command += f" --threads {torch.get_num_threads()}"
    text = (
        f"`{command}`\n\n{machine(args.device)}; open_clip {open_clip.__version__}, hypvision "
        f"{hypvision.__version__}. Medians of {args.repeats}, random weights, "
        f"float32.\n\n{table(results)}"
    )
    print(text)
    if args.write:
        write_section(args.write, MARKS, text, INTRODUCTION)
        print(f"\nWritten to {args.write}")
