"""Hierarchies of names as points: quality by dimension, and time beside geoopt and gensim at equal
quality.

All see each pair as many times, beside as many drawn negatives. hypvision and geoopt get the same
start, loss, batches, schedule and learning rates to choose from (the one with the lowest mean rank
with the first seed is used for the others); gensim its own PoincareModel: batches of 10 pairs, a
burn-in, as many learning rates. What comes out is measured in float64 by the same functions for
all.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import hypvision
from bench.common import machine, write_section
from hypvision.data.closures import Closure, read_closure
from hypvision.geometry import Euclidean, Lorentz, Manifold, PoincareBall
from hypvision.io.errors import HypvisionError, require
from hypvision.tasks.closures import SPREAD, closure_ranks, embed_closure, fit_closure

MARKS = ("<!-- closures:begin -->", "<!-- closures:end -->")
METHODS = {
    "euclid": "Euclidean space",
    "lorentz": "Lorentz space, hypvision",
    "geoopt": "Poincare ball, geoopt",
    "gensim": "Poincare ball, gensim",
}
RATES = {"gensim": (0.1, 0.3)}
DEFAULT_RATES = (0.3, 0.5)


class Run(NamedTuple):
    """What an embedding reached."""

    rank: float
    precision: float
    seconds: float


def train(
    name: str, closure: Closure, dim: int, rate: float, seed: int, args: argparse.Namespace
) -> Run:
    """Embed a closure in flat or Lorentz space, or on geoopt's Poincare ball."""
    steps = math.ceil(args.epochs * len(closure.pairs) / args.batch)
    options = dict(steps=steps, negatives=args.negatives, batch=args.batch, seed=seed)
    begin = time.perf_counter()
    if name != "geoopt":
        space = Euclidean() if name == "euclid" else Lorentz(1.0)
        found = embed_closure(closure, dim, space, rate=rate, **options)
        return _measured(found, space, closure, time.perf_counter() - begin)
    geoopt = require("geoopt", "dev")
    ball = geoopt.PoincareBall(c=1.0)
    start = (
        SPREAD
        * torch.randn(
            len(closure.names), dim, generator=torch.Generator().manual_seed(seed)
        ).double()
    )
    # its exponential map at the origin leads to the distance 2 |u|
    points = geoopt.ManifoldParameter(ball.expmap0(start / 2), manifold=ball)
    fit_closure(closure, points, geoopt.optim.RiemannianSGD([points], lr=rate), ball, **options)
    return _measured(points.detach(), PoincareBall(1.0), closure, time.perf_counter() - begin)


def train_gensim(
    closure: Closure, dim: int, rate: float, seed: int, args: argparse.Namespace
) -> Run:
    """gensim's model of the same pairs."""
    try:
        from gensim.models import poincare
    except ImportError as error:
        raise HypvisionError(
            "This needs gensim, which no extra brings: pip install gensim."
        ) from error
    pairs = [
        (closure.names[name], closure.names[ancestor]) for name, ancestor in closure.pairs.tolist()
    ]
    model = poincare.PoincareModel(
        pairs, size=dim, alpha=rate, negative=args.negatives, burn_in=10, seed=seed
    )
    begin = time.perf_counter()
    model.train(epochs=args.epochs, print_every=10**9)
    seconds = time.perf_counter() - begin
    points = torch.from_numpy(np.stack([model.kv[name] for name in closure.names])).double()
    return _measured(points, PoincareBall(1.0), closure, seconds)


def _measured(points: Tensor, manifold: Manifold, closure: Closure, seconds: float) -> Run:
    found = closure_ranks(manifold.projx(points), manifold, closure)
    return Run(found["mean_rank"], found["map"], seconds)


def compare(
    closure: Closure, name: str, dim: int, args: argparse.Namespace
) -> tuple[float, list[Run]]:
    """The learning rate that did best with the first seed, and its runs."""

    def embed(rate: float, seed: int) -> Run:
        if name == "gensim":
            return train_gensim(closure, dim, rate, seed, args)
        return train(name, closure, dim, rate, seed, args)

    tried = {rate: embed(rate, 0) for rate in args.rates or RATES.get(name, DEFAULT_RATES)}
    # a run that ended in nan is worse than any other
    best = min(tried, key=lambda rate: np.nan_to_num(tried[rate].rank, nan=np.inf))
    return best, [tried[best], *(embed(best, seed) for seed in range(1, args.seeds))]


def row(name: str, dim: int, rate: float, runs: Sequence[Run]) -> str:
    """A line of the table: means over the seeds, with the smallest and largest value."""

    def cell(value: Callable[[Run], float], digits: int) -> str:
        values = [value(run) for run in runs]
        mean = f"{statistics.fmean(values):.{digits}f}"
        return (
            f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
            if len(values) > 1
            else mean
        )

    cells = [
        METHODS[name],
        str(dim),
        f"{rate:g}",
        cell(lambda run: run.rank, 2),
        cell(lambda run: run.precision, 3),
    ]
    return f"| {' | '.join(cells)} | {statistics.median(run.seconds for run in runs):.0f} |"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--closure", metavar="FILE", required=True, help="as of `hypvision metric closure`"
    )
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 5, 10], help="default: 2 5 10")
    text = "default: all; gensim is installed by hand"
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS], help=text)
    parser.add_argument(
        "--epochs", type=int, default=100, help="times that each pair is seen (default: 100)"
    )
    parser.add_argument(
        "--batch", type=int, default=256, help="pairs in a step, not of gensim (default: 256)"
    )
    parser.add_argument(
        "--negatives", type=int, default=50, help="drawn for each pair (default: 50)"
    )
    text = "learning rates to choose from (default: 0.1 and 0.3 for gensim, 0.3 and 0.5 for others)"
    parser.add_argument("--rates", metavar="RATE", type=float, nargs="+", help=text)
    parser.add_argument(
        "--seeds", type=int, default=3, help="runs with the best learning rate (default: 3)"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write the table into this Markdown file, too"
    )


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    closure = read_closure(args.closure)
    lines = [
        "| space and optimiser | dimensions | learning rate | mean rank | MAP | seconds |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for dim in args.dims:
        for name in args.methods:
            lines.append(row(name, dim, *compare(closure, name, dim, args)))
            print(lines[-1], flush=True)
    command = (
        f"tools/benchmark.py closures --closure {Path(args.closure).name} --dims "
        f"{' '.join(map(str, args.dims))}"
    )
    command += f" --methods {' '.join(args.methods)} --epochs {args.epochs} --batch {args.batch}"
    command += f" --negatives {args.negatives}"
    command += f" --rates {' '.join(f'{rate:g}' for rate in args.rates)}" if args.rates else ""
    command += f" --seeds {args.seeds} --threads {args.threads}"
    text = (
        f"`{command}`\n\n{machine('cpu')}; hypvision {hypvision.__version__}. {len(closure.names)} "
        f"names, {len(closure.pairs)} pairs; means over {args.seeds} seeds, smallest and largest "
        "value in parentheses; seconds of one run, the median.\n\n" + "\n".join(lines)
    )
    print(f"\n{text}")
    if args.write:
        write_section(args.write, MARKS, text)
