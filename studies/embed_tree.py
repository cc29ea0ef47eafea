#!/usr/bin/env python
"""Embed a tree in two dimensions: the hyperbolic plane against the Euclidean, hypvision's optimiser
beside geoopt's; the experiment of docs/geometry.md.

    python studies/embed_tree.py --write docs/geometry.md --image docs/images/geometry/tree.png

Every method gets the same start (the same small tangent vectors), loss, rows of every step, number
of steps, schedule and learning rates to choose from; the rate whose full loss is lowest after all
steps with the first seed is used for the others. What comes out is measured in float64, by the same
functions for all.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

import hypvision
from hypvision.geometry import Euclidean, Lorentz, Manifold, ManifoldParameter, PoincareBall
from hypvision.io.errors import HypvisionError, guard, require
from hypvision.io.files import replacing
from hypvision.losses.graph import (
    average_distortion,
    complete_tree,
    graph_map,
    neighbour_loss,
    tree_distances,
)
from hypvision.optim import RiemannianAdam
from hypvision.viz.disk import PoincareDisk, to_disk

MARKS = ("<!-- tree:begin -->", "<!-- tree:end -->")
# Distances are divided by this in the loss: a softer one leaves the neighbours where they are not
# yet the nearest.
TEMPERATURE = 1 / 3
RATES = (0.1, 0.3, 1.0)
# standard deviation of the initial tangent vectors
SPREAD = 0.01


class Training(NamedTuple):
    """What a method trains: points, their optimiser, and the distances from some points to all."""

    points: Tensor
    optimizer: torch.optim.Optimizer
    cdist: Callable[[Tensor, Tensor], Tensor]


class Method(NamedTuple):
    """A row of the table."""

    label: str
    manifold: Manifold  # where the points lie, for the measurement
    start: Callable[
        [Tensor, float], Training
    ]  # from tangent vectors at the origin and a learning rate


class Run(NamedTuple):
    """An embedding after training."""

    points: Tensor
    loss: float
    precision: float
    distortion: float
    seconds: float


def _hypvision(manifold: Manifold) -> Callable[[Tensor, float], Training]:
    def start(tangents: Tensor, rate: float) -> Training:
        points = ManifoldParameter(manifold.from_tangent0(tangents), manifold)
        return Training(points, RiemannianAdam([points], lr=rate), manifold.cdist)

    return start


def _euclid(tangents: Tensor, rate: float) -> Training:
    points = torch.nn.Parameter(tangents.clone())
    return Training(points, torch.optim.Adam([points], lr=rate), torch.cdist)


def _geoopt(dtype: torch.dtype) -> Callable[[Tensor, float], Training]:
    def start(tangents: Tensor, rate: float) -> Training:
        geoopt = require("geoopt", "dev")
        ball = geoopt.PoincareBall(c=1.0)
        # its exponential map at the origin leads to the distance 2 |u|
        points = geoopt.ManifoldParameter(ball.expmap0(tangents.to(dtype) / 2), manifold=ball)
        optimizer = geoopt.optim.RiemannianAdam([points], lr=rate)
        return Training(points, optimizer, lambda x, y: ball.dist(x.unsqueeze(1), y.unsqueeze(0)))

    return start


METHODS = {
    "euclid": Method("Euclidean plane, Adam", Euclidean(), _euclid),
    "lorentz": Method("Lorentz plane, hypvision", Lorentz(1.0), _hypvision(Lorentz(1.0))),
    "ball": Method("Poincare disk, hypvision", PoincareBall(1.0), _hypvision(PoincareBall(1.0))),
    "geoopt": Method("Poincare disk, geoopt", PoincareBall(1.0), _geoopt(torch.float32)),
    "geoopt64": Method("Poincare disk, geoopt, float64", PoincareBall(1.0), _geoopt(torch.float64)),
}


def all_distances(points: Tensor, manifold: Manifold, block: int = 256) -> Tensor:
    """Distances of all pairs ``(N, N)`` in float64, pair by pair: exact for close points far out,
    too."""
    x = points.detach().double()
    if isinstance(manifold, Lorentz):
        x = manifold.projx(x)
    return torch.cat([manifold.dist(rows.unsqueeze(1), x.unsqueeze(0)) for rows in x.split(block)])


def train(
    method: Method, hops: Tensor, rate: float, seed: int, steps: int, rows: int, bar: tqdm
) -> Run:
    """Embed the nodes of a graph in two dimensions.

    Args:
        method: space and optimiser.
        hops: edges between all pairs of nodes, ``(N, N)``.
        rate: learning rate at first; it falls linearly to 0.
        seed: of the start and of the rows.
        steps: number of steps.
        rows: nodes whose neighbours are told apart in a step.
        bar: progress, one for every step.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(hops)
    points, optimizer, cdist = method.start(
        SPREAD * torch.randn(count, 2, generator=generator), rate
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    begin = time.perf_counter()
    for _ in range(steps):
        chosen = torch.randperm(count, generator=generator)[:rows]
        loss = neighbour_loss(cdist(points[chosen], points) / TEMPERATURE, hops[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.update()
    seconds = time.perf_counter() - begin
    distances = all_distances(points, method.manifold)
    return Run(
        points.detach(),
        neighbour_loss(distances / TEMPERATURE, hops).item(),
        graph_map(distances, hops == 1),
        average_distortion(distances, hops),
        seconds,
    )


def compare(
    names: Sequence[str], hops: Tensor, rates: Sequence[float], seeds: int, steps: int, rows: int
) -> dict[str, tuple[float, list[Run]]]:
    """Search the learning rate of every method with the first seed, then train it with the other
    seeds.

    Returns:
        For every method its learning rate, and its runs by seed.
    """
    results = {}
    with tqdm(
        total=len(names) * (len(rates) + seeds - 1) * steps, desc="embed", unit="step", disable=None
    ) as bar:
        for name in names:
            bar.set_description(name)
            tried = {rate: train(METHODS[name], hops, rate, 0, steps, rows, bar) for rate in rates}
            # a run that ended in nan is worse than any other
            best = min(rates, key=lambda rate: np.nan_to_num(tried[rate].loss, nan=np.inf))
            others = [
                train(METHODS[name], hops, best, seed, steps, rows, bar) for seed in range(1, seeds)
            ]
            results[name] = (best, [tried[best], *others])
    return results


def table(results: dict[str, tuple[float, list[Run]]]) -> str:
    """The Markdown table: means over the seeds, and the smallest and largest value in
    parentheses."""
    lines = [
        "| space and optimiser | learning rate | MAP | average distortion | loss | seconds |",
        "|---|--:|--:|--:|--:|--:|",
    ]

    def cell(values: list[float], digits: int = 3) -> str:
        mean = f"{statistics.fmean(values):.{digits}f}"
        return (
            mean
            if len(values) == 1
            else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
        )

    for name, (rate, runs) in results.items():
        cells = [METHODS[name].label, f"{rate:g}", cell([run.precision for run in runs])]
        cells += [cell([run.distortion for run in runs]), cell([run.loss for run in runs])]
        cells.append(f"{statistics.median(run.seconds for run in runs):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# The root is black; each branch below it has a colour.
_COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_NEAR = 3  # edges of so many levels below the root are drawn thick, the others thin and pale


def built(parents: Sequence[int]) -> Tensor:
    """Return tangent vectors ``(N, 2)`` at the root for an embedding of a tree that nobody trained,
    in float64: a node lies at the distance of its depth, in the middle of the leaves below it, so
    that no two edges cross.

    Args:
        parents: the parent of every node, an earlier node; the root comes first, with -1.
    """
    leaves = [0] * len(parents)
    for node in reversed(range(len(parents))):
        leaves[node] = max(leaves[node], 1)
        if node:
            leaves[parents[node]] += leaves[node]
    depth = [0] * len(parents)
    begins = [0] * len(parents)  # the number of leaves before those of the node
    free = [0] * len(parents)  # the same, before those of its next child
    for node, parent in enumerate(parents):
        if node:
            depth[node] = depth[parent] + 1
            begins[node] = free[node] = free[parent]
            free[parent] += leaves[node]
    middles = torch.tensor(begins).double() + torch.tensor(leaves).double() / 2
    angles = 2 * math.pi * middles / leaves[0]
    return torch.tensor(depth).double()[:, None] * torch.stack([angles.cos(), angles.sin()], 1)


def draw(results: dict[str, tuple[float, list[Run]]], parents: Sequence[int], path: Path) -> None:
    """An image of the first run of the first method in the flat plane, and of the first in the
    hyperbolic one, whose others look alike; below each of them, the tree in that plane as
    it is :func:`built`. Edges are geodesics, in a colour for each branch below the root.

    Raises:
        HypvisionError: matplotlib is not installed, or the place is not writable.
    """
    hops = tree_distances(parents)
    flat = [name for name in results if isinstance(METHODS[name].manifold, Euclidean)]
    curved = [name for name in results if name not in flat]
    shown = flat[:1] + curved[:1]
    size = (4.6 * len(shown), 9.7)
    figure = require("matplotlib.figure", "viz").Figure(figsize=size, layout="constrained")
    grid = figure.subplots(2, len(shown), squeeze=False)
    for column, name in enumerate(shown):
        method = METHODS[name]
        best = results[name][1][0]
        points = method.manifold.from_tangent0(built(parents))
        precision = graph_map(all_distances(points, method.manifold), hops == 1)
        label = f"{method.label}: MAP {best.precision:.2f}"
        _draw_tree(grid[0, column], best.points.double(), method.manifold, parents, label)
        label = f"the same plane, not trained: MAP {precision:.2f}"
        _draw_tree(grid[1, column], points, method.manifold, parents, label)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=82)
        # 64 colours are enough for dots and lines, and less than a third of the bytes
        Image.open(temporary).convert("RGB").quantize(64).save(
            temporary, format="PNG", optimize=True
        )


def _draw_tree(
    axes: Any, points: Tensor, manifold: Manifold, parents: Sequence[int], title: str
) -> None:
    """Draw the points of a tree's nodes with its edges: strong near the root, pale below."""
    depth = [0]
    branch = [0]
    for node in parents[1:]:
        depth.append(depth[node] + 1)
        branch.append(branch[node] if node else max(branch) + 1)
    child = np.arange(1, len(parents))
    parent = np.asarray(parents[1:])
    near = np.asarray(depth)[1:] <= _NEAR
    colours = np.array([_COLOURS[number % len(_COLOURS)] for number in branch])
    sizes = np.maximum(26 - 5 * np.asarray(depth), 3)
    if isinstance(manifold, Euclidean):
        xy = points.numpy()
        disk = None
        axes.set_aspect("equal")
        axes.axis("off")
        axes.scatter(*xy.T, c=colours, s=sizes, linewidths=0, zorder=3)
    else:
        if isinstance(manifold, Lorentz):
            points = manifold.projx(points)
        xy = to_disk(points, manifold, centre=points[0], scale=1.0)
        disk = PoincareDisk(axes, grid=())
        disk.points(xy, c=colours, s=sizes, zorder=3)
    for these, width, opacity in ((~near, 0.5, 0.35), (near, 1.6, 1.0)):
        starts = xy[parent[these]]
        ends = xy[child[these]]
        look = {"colors": colours[child[these]], "linewidths": width, "alpha": opacity}
        if disk is None:
            lines = require("matplotlib.collections", "viz").LineCollection
            axes.add_collection(lines(np.stack([starts, ends], 1), zorder=2, **look))
        else:
            disk.geodesics(starts, ends, zorder=2, **look)
    axes.set_title(title, fontsize=11)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--branching", type=int, default=3, help="children of a node (default: 3)")
    parser.add_argument("--depth", type=int, default=6, help="levels below the root (default: 6)")
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all"
    )
    parser.add_argument(
        "--steps", type=int, default=1200, help="steps of every run (default: 1200)"
    )
    parser.add_argument("--rows", type=int, default=64, help="nodes in a step (default: 64)")
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs with the best learning rate (default: 3)"
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=list(RATES),
        help=f"learning rates to try (default: {RATES})",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument(
        "--image", metavar="FILE", type=Path, help="draw the embeddings into this file"
    )
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write the table into this Markdown file, too"
    )


def run(args: argparse.Namespace) -> None:
    from bench.common import machine, write_section

    for name in ("branching", "depth", "steps", "rows", "seeds", "threads"):
        if getattr(args, name) < 1:
            raise HypvisionError(f"--{name} must be at least 1, got {getattr(args, name)}.")
    for rate in args.rates:
        if not rate > 0:
            raise HypvisionError(f"--rates must be positive, got {rate:g}.")
    if args.branching**args.depth > 5000:
        raise HypvisionError(
            f"--branching {args.branching} --depth {args.depth} makes a tree of over 5000 nodes, "
            "whose pairs are too many to be held at once. Choose smaller numbers."
        )
    if any(name.startswith("geoopt") for name in args.methods):
        require("geoopt", "dev")  # told before the first minute of training
    if args.image:
        require("matplotlib", "viz")
    torch.set_num_threads(args.threads)
    parents = complete_tree(args.branching, args.depth)
    results = compare(
        args.methods, tree_distances(parents), args.rates, args.seeds, args.steps, args.rows
    )
    command = (
        f"studies/embed_tree.py --branching {args.branching} --depth {args.depth} --steps "
        f"{args.steps}"
    )
    command += (
        f" --rows {args.rows} --seeds {args.seeds} --rates "
        f"{' '.join(f'{rate:g}' for rate in args.rates)}"
    )
    command += f" --methods {' '.join(args.methods)} --threads {args.threads}"
    text = (
        f"`{command}`\n\n{machine('cpu')}; hypvision {hypvision.__version__}. {len(parents)} "
        f"nodes; means over {args.seeds} seeds, smallest and largest value in parentheses; seconds "
        f"of one run, the median.\n\n{table(results)}"
    )
    print(text)
    if args.image:
        draw(results, parents, args.image)
    if args.write:
        write_section(args.write, MARKS, text)
    for path in filter(None, (args.image, args.write)):
        print(f"\nWritten to {path}")


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "tools"))  # of `bench`
    parser = argparse.ArgumentParser(description="Embed a tree in two dimensions.")
    add_arguments(parser)
    sys.exit(guard(run, parser.parse_args()))
