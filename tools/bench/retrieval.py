"""Retrieval metrics of random embeddings: faiss beside the blocks of PyTorch, and classes of very
different sizes."""

from __future__ import annotations

import argparse

import torch

from bench.common import add_run_arguments, in_turns, report, start
from hypvision.io.errors import require
from hypvision.tasks.metric_learning_metrics import evaluate_retrieval

MARKS = ("<!-- retrieval:begin -->", "<!-- retrieval:end -->")
INTRODUCTION = """
## Retrieval metrics

<!-- retrieval:begin -->
<!-- retrieval:end -->
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=20000, help="default: 20000")
    parser.add_argument("--dim", type=int, default=128, help="default: 128")
    add_run_arguments(parser, repeats=1)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    start(args, images=100, dim=1)
    require("faiss", "faiss")
    even = torch.arange(args.images) // 5
    large = even.clone()
    large[: 2 * args.images // 5] = 0
    lines = [
        "| classes | PyTorch, s | faiss, s | faiss, 512 queries at a time, s |",
        "|---|---|---|---|",
    ]
    x = torch.randn(args.images, args.dim)
    ways = {
        "PyTorch": {},
        "faiss": dict(backend="faiss"),
        "512": dict(backend="faiss", query_block=512),
    }
    for name, labels in (
        ("of 5 images", even),
        (f"one of {2 * args.images // 5:,}, others of 5", large),
    ):

        def call(options: dict, labels: torch.Tensor = labels) -> object:
            return evaluate_retrieval(x, labels, space="euclidean", **options)

        # a search for thousands of neighbours takes faiss minutes
        own = ways if labels is even else {"PyTorch": {}}
        times = in_turns(
            {way: lambda o=options: call(o) for way, options in own.items()},
            args.repeats,
            "cpu",
            warm=False,
        )
        lines.append(
            f"| {name} | {' | '.join(f'{times[way]:.1f}' if way in times else '' for way in ways)} "
            "|"
        )
    report(args, ("images", "dim"), "Euclidean distances.", "\n".join(lines), MARKS, INTRODUCTION)
    return 0
