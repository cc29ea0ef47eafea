#!/usr/bin/env python
"""Does tuning on chains help? ``python studies/radial_study.py --root data/emoji --out
work_dirs/radial-study``.

Tunes the text tower of ``zoo:emoji-s16.captions`` on the chains of the training emoji with radial
embeddings, entailment cones and MERU's entailment, with equal steps and batches. Rate and weight of
what is kept are chosen on the validation emoji, with one seed: those of the largest tau whose
zero-shot recognition falls by less than a point. The runs of all seeds are then measured on the
test emoji. Prints both tables, and draws radii and walks of five images before and after the first
run. What is in OUT/results.json is not run again, so a study that was stopped goes on.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from argparse import ArgumentParser, Namespace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from hypvision.clip.models import CLIPBundle, create_clip
from hypvision.clip.radial.measure import embed_images, measure_chains
from hypvision.clip.radial.texts import distinct, embed_texts
from hypvision.clip.radial.traversal import hierarcaps_traversal
from hypvision.clip.radial.weights import merge_tower
from hypvision.clip.spaces import Sphere
from hypvision.data.chains import emoji_chains, find_image_files
from hypvision.data.classes import TEMPLATES, prompts
from hypvision.data.emoji import EmojiCaptions
from hypvision.engine.config import load_config
from hypvision.engine.run import train
from hypvision.io.errors import guard
from hypvision.io.files import write_json, write_text
from hypvision.viz.radii import draw_levels, draw_walks
from hypvision.viz.sheet import save_figure

CONFIG = Path(__file__).parents[1] / "configs/hierarcaps/radial-clip-emoji_100i.py"
LOSSES = {
    "radial embeddings": {"model.loss.type": "RadialLoss"},
    "entailment cones": {"model.loss.type": "EntailmentConeLoss", "model.loss.margin": 0.1},
    "MERU's entailment": {"model.loss.type": "MERUEntailmentLoss", "model.loss.margin": 0.1},
}
SETTINGS = ((3e-4, 10.0), (1e-3, 10.0))  # rate, weight of what is kept
STEPS = ("train_cfg.max_iters", "train_cfg.val_interval", "default_hooks.checkpoint.interval")
LARGEST_FALL = 1.0  # of zero-shot recognition, in points
COLUMNS = {
    "d_corr": "tau",
    "names": "names in order",
    "precision": "precision",
    "recall": "recall",
    "top1": "classes (86)",
    "level3_R@5": "names R@5",
    "text_to_image_R@1": "text to image R@1",
    "text_to_image_R@5": "R@5",
}


class Emoji:
    """The chains of a split, one image each, and all images of it for zero-shot recognition;
    embedded once, as the image tower does not change."""

    def __init__(self, clip: CLIPBundle, root: str, split: str, style: str, styles: list[str]):
        chains = emoji_chains(root, split)
        self.texts = [chain.texts for chain in chains]
        self.images = [chain.image for chain in chains]
        files = find_image_files(self.images, Path(root) / "images" / style)
        self.shown = embed_images(clip, list(files.values()))
        every = EmojiCaptions(root, split, styles)
        self.classes = every.metainfo["classes"]
        self.labels = torch.tensor([every.emoji[owner].label for owner, _ in every.items])
        self.every = embed_images(clip, [path for _, path in every.items])

    def embed(self, clip: CLIPBundle, root: Tensor | None = None) -> tuple[Sphere, Tensor]:
        """The sphere around the root, and the texts ``(n, L, d)`` on it."""
        every, rows = distinct([text for chain in self.texts for text in chain])
        embedded = embed_texts(clip.model, clip.tokenizer, ["", *every])
        return Sphere(embedded[0] if root is None else root), embedded[1:][rows].unflatten(
            0, (len(self.texts), -1)
        )

    def draw(self, clips: dict[str, CLIPBundle], folder: Path) -> None:
        """Histograms of radii, and the walks of the first image of each of five groups, of several
        models."""
        embedded = {name: self.embed(clip) for name, clip in clips.items()}
        draw_levels(
            {name: space.radius(texts) for name, (space, texts) in embedded.items()},
            folder / "radii.png",
        )
        words = [text for chain in self.texts for text in chain]
        first = {chain[0]: number for number, chain in reversed(list(enumerate(self.texts)))}
        for number in sorted(first.values())[:5]:
            walks = {}
            for name, (space, texts) in embedded.items():
                space = Sphere(space.root, "cosine")
                found = hierarcaps_traversal(self.shown[number], texts.flatten(0, 1), words, space)
                walks[name] = [step[:3] for step in found]
            figure = draw_walks(self.texts[number][2], walks)
            save_figure(figure, folder / f"chain_{self.images[number]}.png", dpi=110)

    def measure(self, clip: CLIPBundle, root: Tensor | None = None) -> dict[str, float]:
        """Metrics of the chains; share of chains whose name is nearer to the root than the name
        with keywords, texts that no training has seen; zero-shot recognition of the classes in
        percent."""
        space, texts = self.embed(clip, root)
        found = measure_chains(self.texts, self.images, texts, self.shown, space).values
        radii = space.radius(texts)
        sentences = [prompts(name, TEMPLATES["photo"])[0][0] for name in self.classes]
        names = embed_texts(clip.model, clip.tokenizer, sentences)
        right = (self.every @ names.T).argmax(1) == self.labels
        return found | dict(
            names=float((radii[:, 2] < radii[:, 3]).double().mean()),
            top1=100 * float(right.double().mean()),
        )


def study(args: Namespace) -> None:
    """All trials and runs that are missing, then the tables."""
    out = Path(args.out)
    base = create_clip("emoji-s16", args.clip)
    path = out / "results.json"
    results: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.is_file() else {}
    styles = load_config(CONFIG.parent / "clip-emoji_1400i.py").styles
    emoji = cache(lambda split: Emoji(base, args.root, split, args.style, styles))

    def run(name: str, split: str, loss: str = "", **changes) -> dict[str, float]:
        if name not in results:
            clip = base
            root = None
            if loss:
                folder = out / folder_of(name)
                changes |= {
                    "data_root": args.root,
                    "model.clip.pretrained": args.clip,
                    **LOSSES[loss],
                }
                changes |= dict.fromkeys(STEPS, args.steps)
                done = train(load_config(CONFIG, changes), folder)
                clip = create_clip("emoji-s16", args.clip)
                root = merge_tower(clip.model, folder / f"iter_{done.iter}.pth")
            results[name] = emoji(split).measure(clip, root)
            write_json(path, results)
        return results[name]

    start = run("before val", "val")
    trials = []
    runs = [["before", [run("before test", "test")]]]
    chosen: dict[str, tuple[float, float]] = {}
    for loss in LOSSES:
        tried = {
            setting: run(f"trial {named(loss, setting)}", "val", loss, **options(setting))
            for setting in SETTINGS
        }
        trials += [[named(loss, setting), [found]] for setting, found in tried.items()]
        kept = [
            setting for setting in SETTINGS if start["top1"] - tried[setting]["top1"] < LARGEST_FALL
        ]
        chosen[loss] = max(kept or SETTINGS[:1], key=lambda s: tried[s]["d_corr"])
    for seed in range(args.seeds):
        for loss, setting in chosen.items():
            run(f"run {named(loss, setting)}, seed {seed}", "test", loss, **options(setting, seed))
    for loss, setting in chosen.items():
        name = named(loss, setting)
        runs.append([name, [results[f"run {name}, seed {seed}"] for seed in range(args.seeds)]])
    text = (
        f"Validation emoji, one seed\n\n{table([['before', [start]], *trials])}\n\nTest "
        f"emoji\n\n{table(runs)}\n"
    )
    write_text(out / "tables.md", text)
    if not (out / "radii.png").is_file():
        tuned = create_clip("emoji-s16", args.clip)
        merge_tower(
            tuned.model, next((out / folder_of(f"run {runs[1][0]}, seed 0")).glob("iter_*.pth"))
        )
        emoji("test").draw({"before": base, "after": tuned}, out)
    print(text)


def options(setting: tuple[float, float], seed: int = 0) -> dict[str, float]:
    """Changes of the config."""
    return {
        "optim_wrapper.optimizer.lr": setting[0],
        "model.loss.prior": setting[1],
        "randomness.seed": seed,
    }


def named(loss: str, setting: tuple[float, float]) -> str:
    """A row's name."""
    return f"{loss}, rate {setting[0]:g}, prior {setting[1]:g}"


def folder_of(name: str) -> str:
    """A run's folder."""
    return re.sub(r"[^\w.]+", "-", name)


def table(rows: list) -> str:
    """Markdown: mean and deviation of each row's runs."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "|---|" + "--:|" * len(COLUMNS)]
    for name, found in rows:
        cells = []
        for key in COLUMNS:
            values = [run[key] for run in found]
            digits = 1 if key == "top1" else 3
            apart = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.{digits}f}{apart}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = ArgumentParser(
        description="Radial embeddings, entailment cones and MERU's entailment on chains of emoji."
    )
    parser.add_argument(
        "--root", default="data/emoji", metavar="DIR", help="folder of emoji (default: data/emoji)"
    )
    parser.add_argument("--out", default="work_dirs/radial-study", metavar="DIR")
    parser.add_argument("--clip", default="zoo:emoji-s16.captions", help="weights of emoji-s16")
    parser.add_argument("--style", default="noto", help="of the images of chains (default: noto)")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="runs of each loss (default: 3)"
    )
    parser.add_argument(
        "--steps", type=int, default=100, metavar="N", help="of each run (default: 100, one epoch)"
    )
    sys.exit(guard(study, parser.parse_args()))
