"""HIER's loss against its published form: time and memory, with the split by part.

Both get the same features, proxies, triplets and Gumbel noise (the published form draws its noise
in each call, so do both here). A step is forward and backward, from features before they enter the
ball to the gradients of features and proxies. Peak memory is what is allocated at the worst moment
of a step.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from references.hier import reference_hier_loss
from torch import Tensor

import hypvision
from bench.common import MIB, add_run_arguments, peak_bytes, report, start, timings
from hypvision.geometry import Lorentz, PoincareBall
from hypvision.losses import HIERLoss, clip_to_ball, lca_triplet_loss

TARGETS = ("<= 0.1 s", "no (N, P, D) tensor")
MARKS = ("<!-- hier:begin -->", "<!-- hier:end -->")

INTRODUCTION = f"""
## HIER and LHIER losses

`published` is the loss as its authors' code computes it, written down step by step
(`tests/references/hier.py`): distances from Moebius sums of all pairs, dense tensors for all
triplets. Ours are the same numbers (`tests/losses`).

{MARKS[0]}
{MARKS[1]}
"""


def steps(samples: int, proxies: int, dim: int, device: str) -> dict[str, Callable[[], object]]:
    """The calls to measure, by the name of their row."""
    labels = torch.arange(samples, device=device) // 2
    features = (torch.randn(samples, dim, device=device) * 3).requires_grad_()
    ball = PoincareBall(0.1)
    hyperboloid = Lorentz(1.0, learnable=True)
    hier, lhier = (HIERLoss(m, dim, proxies).to(device) for m in (ball, hyperboloid))
    hyperboloid.to(device)

    def fast() -> None:
        hier(clip_to_ball(features, ball), labels).backward()

    def lorentz() -> None:
        lhier(hyperboloid.rescale(hyperboloid.expmap0(features / dim**0.5)), labels).backward()

    def draw() -> list[tuple[Tensor, Tensor]]:
        return hier._triplets(x, labels, dist[1])

    with torch.no_grad():
        x = clip_to_ball(features, ball)
        points = hier.points()
        dist = [ball.cdist(x, points), ball.cdist(points, points)]
        triplets = [rows[valid] for rows, valid in draw()]

    def published() -> None:
        noise = [
            -torch.empty(2, len(t), proxies, device=device).exponential_().log() for t in triplets
        ]
        reference_hier_loss(features, hier.proxies, triplets, noise).backward()

    def distances() -> None:
        nodes = clip_to_ball(features, ball)
        proxy_points = hier.points()
        ball.cdist(torch.cat([nodes, proxy_points]), proxy_points).sum().backward()

    def lca() -> None:
        for d, rows in zip(dist, triplets):
            lca_triplet_loss(d.clone().requires_grad_(), rows).backward()

    return {
        "HIER": fast,
        "- distances, forward and backward": distances,
        "- drawing triplets": draw,
        "- loss of the triplets, forward and backward": lca,
        "LHIER": lorentz,
        "HIER, published": published,
    }


def table(samples: int, proxies: int, dim: int, repeats: int, device: str) -> str:
    """The Markdown table of all measurements."""
    lines = ["| | least ms | median ms | peak MiB |", "|---|--:|--:|--:|"]
    found = {}
    for name, step in steps(samples, proxies, dim, device).items():
        slow = name.endswith("published")
        (times,) = timings({name: step}, 2 if slow else repeats, device).values()
        found[name] = (min(times), statistics.median(times), peak_bytes(step, device) / MIB)
        least, median, peak = found[name]
        lines.append(f"| {name} | {1000 * least:.0f} | {1000 * median:.0f} | {peak:.0f} |")
    ours = found["HIER"]
    theirs = found["HIER, published"]
    lines.append(
        f"| published / ours | {theirs[0] / ours[0]:.0f}x | {theirs[1] / ours[1]:.0f}x | "
        f"{theirs[2] / ours[2]:.0f}x |"
    )
    lines.append(f"| target | {TARGETS[0]} | | {TARGETS[1]} |")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--samples", type=int, default=180, help="samples in a batch (default: 180)"
    )
    parser.add_argument(
        "--proxies", type=int, default=512, help="hierarchical proxies (default: 512)"
    )
    parser.add_argument(
        "--dim", type=int, default=512, help="dimension of the embeddings (default: 512)"
    )
    add_run_arguments(parser, repeats=10)


def run(args: argparse.Namespace) -> None:
    start(args, samples=4, proxies=4, dim=1)
    text = table(args.samples, args.proxies, args.dim, args.repeats, args.device)
    facts = (
        f"hypvision {hypvision.__version__}. {args.samples} samples, {args.proxies} proxies, "
        f"{args.dim} dimensions, float32."
    )
    report(args, ["samples", "proxies", "dim"], facts, text, MARKS, INTRODUCTION)
