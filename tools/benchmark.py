#!/usr/bin/env python
"""Measure speed, memory and round-off:
``python tools/benchmark.py hcformer --write docs/benchmarks.md``.

Several in one call, each with its own options:
``python tools/benchmark.py geometry --repeats 5 numerics``.
Every training step and every operation, on a GPU:
``python tools/benchmark.py all --device cuda --write docs/gpu.md``.
"""

import importlib
import io
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace
from contextlib import redirect_stdout
from pathlib import Path

from bench.common import set_device

from hypvision.io.errors import HypvisionError, guard
from hypvision.io.files import replacing

# Sub-command -> module in tools/bench with add_arguments(parser) and run(args), what it measures.
BENCHMARKS = {
    "hcformer": ("hcformer", "HCFormer against its reference implementation and timm's models"),
    "lorentz-cnn": (
        "lorentz_cnn",
        "Lorentz ResNets against Euclidean counterparts and the published form",
    ),
    "himapper": (
        "himapper",
        "Hi-Mapper on the backbones of the paper, and against a loop over its levels",
    ),
    "geometry": (
        "geometry",
        "Geometry, layers and optimisers against geoopt, HypLL and Euclidean counterparts",
    ),
    "numerics": (
        "numerics",
        "Round-off of the geometry against mpmath, beside geoopt, HypLL and MERU's forms",
    ),
    "hyperclip": (
        "hyperclip",
        "HyperCLIP's adapter: training step, inference, and prompts that are cut",
    ),
    "hyperbolic-clip": (
        "hyperbolic_clip",
        "MERU and HyCoCLIP: training steps against CLIP and official, and ranking",
    ),
    "large-batch": (
        "large_batch",
        "Contrastive training of large batches: in chunks, and by rows of each process",
    ),
    "open-vocabulary": (
        "open_vocabulary",
        "HyperCLIP's segmenter, detector and panoptic model: whole training steps",
    ),
    "radial": ("radial", "Radial embeddings: metrics of chains, a tuning step, embedding captions"),
    "fewshot": (
        "fewshot",
        "Few-shot methods of CLIP: steps, evaluation and heads against the official formulation",
    ),
    "helm": ("helm", "HELM language models against Euclidean counterparts and the published form"),
    "hier": ("hier", "HIER's and LHIER's loss against the published form"),
    "closures": (
        "closures",
        "Hierarchies of names: quality by dimension, time beside geoopt and gensim",
    ),
    "scaling": ("scaling", "A step of the toy model of superposition against the published one"),
    "growth": (
        "growth",
        "What time grows with: losses, metrics, listings, samplers and steps at N, 2 N and 4 N",
    ),
    "retrieval": ("retrieval", "Retrieval metrics by PyTorch and by faiss"),
    "backward": (
        "backward",
        "Backward functions written by hand against plain operations, in real steps",
    ),
    "kernels": (
        "kernels",
        "How many kernels operations, layers, networks and optimisers launch on a GPU; needs none",
    ),
    "compiled": (
        "compiled",
        "Into how many loops inductor compiles a layer, and how long it takes",
    ),
}
# What `all` runs, in this order: the steps of every network and every operation, at sizes for about
# ten minutes of one
# GPU. Left out: what runs on a CPU alone (round-off, the toy model) and what needs mmdet
# (open-vocabulary).
ALL = {
    "backward": [],
    "lorentz-cnn": ["--batch", "64"],
    "helm": ["--repeats", "5"],
    "hcformer": ["--batch", "64"],
    "himapper": ["--batch", "32", "--repeats", "5"],
    "hyperclip": ["--batch", "4"],
    "hyperbolic-clip": ["--batch", "64"],
    "hier": [],
    "fewshot": ["--only", "step", "lath", "--repeats", "3"],
    "radial": ["--repeats", "3"],
    "geometry": [
        "--repeats",
        "5",
        "--limit",
        "0.1",
        "--compiled",
    ],  # none of them: a compilation takes minutes
}


class Copied(io.StringIO):
    """A text that appears on the terminal while it is written."""

    def write(self, text: str) -> int:
        sys.__stdout__.write(text)
        sys.__stdout__.flush()
        return super().write(text)


def run_all(args: Namespace) -> int:
    """Run the benchmarks of ``ALL``. One that fails leaves its error on the page, and the next one
    starts."""
    set_device(args.device, args.threads)
    begin = time.monotonic()
    page = ["# Every step and every operation"]
    failed = []
    for name, options in ALL.items():
        spent = time.monotonic() - begin
        if spent > 60 * args.minutes:
            text = f"Not begun: {spent / 60:.1f} of {args.minutes:g} minutes were over."
        else:
            words = [name, *options, "--device", args.device]
            words += ["--threads", str(args.threads)] if args.threads else []
            with redirect_stdout(Copied()) as copy:
                try:
                    modules[name].run(parser.parse_args(words))
                except Exception as error:
                    if not isinstance(error, HypvisionError):
                        traceback.print_exc()
                    failed.append(name)
                    print(f"Failed: {type(error).__name__}: {error}")
            text = f"{copy.getvalue().strip()}\n\n({time.monotonic() - begin - spent:.0f} s)"
        page += [f"## {name}\n\n{BENCHMARKS[name][1]}.", text]
        if args.write:
            with replacing(args.write) as temporary:
                temporary.write_text("\n\n".join(page) + "\n", encoding="utf-8")
    if failed:
        print(f"Failed: {', '.join(failed)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = ArgumentParser(description="Measure speed, memory and round-off.")
    commands = parser.add_subparsers(dest="benchmark", required=True)
    modules = {}
    for name, (module, text) in BENCHMARKS.items():
        modules[name] = importlib.import_module(f"bench.{module}")
        modules[name].add_arguments(commands.add_parser(name, help=text, description=f"{text}."))
    every = commands.add_parser(
        "all", help="every step and every operation, for about ten minutes of a GPU"
    )
    every.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="default: cuda")
    every.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's choice)")
    every.add_argument(
        "--minutes", type=float, default=10, help="none is begun after so many (default: 10)"
    )
    every.add_argument(
        "--write", metavar="FILE", type=Path, help="write all tables into this Markdown file"
    )
    calls: list[list[str]] = []
    for word in sys.argv[1:]:
        if word in BENCHMARKS or not calls:
            calls.append([])
        calls[-1].append(word)
    asked = [parser.parse_args(call) for call in calls or [[]]]
    runs = [run_all if args.benchmark == "all" else modules[args.benchmark].run for args in asked]
    sys.exit(max(guard(run, args) or 0 for run, args in zip(runs, asked)))
