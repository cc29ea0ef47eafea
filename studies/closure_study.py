#!/usr/bin/env python
"""What does a hierarchy of names need: hyperbolic space, or no more than asymmetry?

Each method gets the same numbers a name and sees each pair of a name and an ancestor as often. All
but ``distance`` and ``flat`` (``hypvision metric closure``) are trained by Adam with the softmax
over all names that are not known as ancestors:

- ``hyperbolic``: the distance of Lorentz space;
- ``hyperbolic-scalar``: that distance less a number of the ancestor;
- ``flat-softmax``, ``flat-scalar``: the same two with the distance of flat space;
- ``scalar``: squared distance in flat space less a number of the ancestor;
- ``order``: order embeddings (Vendrov et al., ICLR 2016);
- ``box``: Gumbel boxes (Dasgupta et al., NeurIPS 2020).

With ``--known 1`` all pairs are trained and ranked. With a smaller share a name's parents are known
and that share of the pairs with further ancestors; the others are ranked. The best of a few rates
is taken by the mean rank with the first seed on the first file; other files use that rate. All
runs are rows of RESULTS and are not computed again.

    OMP_NUM_THREADS=1 python studies/closure_study.py mammal_closure.csv food_closure.csv
    python studies/closure_study.py                            # only prints the tables
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from hypvision.data.closures import Closure, read_closure
from hypvision.geometry import Euclidean, Lorentz
from hypvision.io.errors import guard
from hypvision.io.files import read_json, write_json
from hypvision.losses.graph import graph_map, mean_rank, neighbour_loss
from hypvision.tasks.closures import embed_closure

Distance = Callable[[Tensor, Tensor], Tensor]
RESULTS = Path(__file__).parents[1] / "docs" / "studies" / "closures.json"
EPOCHS = 100
BATCH = 256
SPREAD = 0.1  # standard deviation of the numbers at the start
GAMMA = 0.5772156649  # Euler's constant, in the expected volume of a Gumbel box
FAR = 1e30  # the distance of known ancestors when others are ranked
LORENTZ = Lorentz(1.0)


def scalar(name: Tensor, ancestor: Tensor) -> Tensor:
    """:math:`|x - y|^2 - b_y`; the last number of a row is ``b``."""
    squared = (name[..., :-1] - ancestor[..., :-1]).square().sum(-1)
    return squared - ancestor[..., -1]


def order(name: Tensor, ancestor: Tensor) -> Tensor:
    """:math:`|max(0, |y| - |x|)|^2` (eq. 2): an ancestor has the smaller coordinates."""
    return (ancestor.abs() - name.abs()).clamp(min=0).square().sum(-1)


def box(name: Tensor, ancestor: Tensor) -> Tensor:
    """:math:`-log P(y | x)`: the part of the name's box that lies in the ancestor's, both with
    Gumbel ends of scale 1.

    The first half of a row is the centre of the box, the second half its width before a softplus.
    """
    low, high = _ends(name)
    ancestor_low, ancestor_high = _ends(ancestor)
    common_low = torch.logaddexp(low, ancestor_low)
    common_high = -torch.logaddexp(-high, -ancestor_high)
    return _log_volume(low, high) - _log_volume(common_low, common_high)


def _ends(row: Tensor) -> tuple[Tensor, Tensor]:
    centre, width = row.chunk(2, -1)
    half = F.softplus(width)
    return centre - half, centre + half


def _log_volume(low: Tensor, high: Tensor) -> Tensor:
    return F.softplus(high - low - 2 * GAMMA).log().sum(-1)


def hyperbolic(name: Tensor, ancestor: Tensor) -> Tensor:
    """The distance of Lorentz space; a row is a tangent vector at the origin."""
    return LORENTZ.dist(LORENTZ.from_tangent0(name), LORENTZ.from_tangent0(ancestor))


def hyperbolic_scalar(name: Tensor, ancestor: Tensor) -> Tensor:
    """The same distance less ``b_y``; the last number of a row is ``b``."""
    return hyperbolic(name[..., :-1], ancestor[..., :-1]) - ancestor[..., -1]


def flat_scalar(name: Tensor, ancestor: Tensor) -> Tensor:
    """:math:`|x - y| - b_y`; the last number of a row is ``b``."""
    return Euclidean().dist(name[..., :-1], ancestor[..., :-1]) - ancestor[..., -1]


class Method(NamedTuple):
    """A method: its name in the tables, how far a name is from an ancestor, and rates to choose
    from: hyperbolic ones get two, their rivals at least as many."""

    text: str
    distance: Distance
    rates: tuple[float, ...]


TWO = (0.03, 0.1)
FOUR = (0.01, 0.03, 0.1, 0.3)
METHODS = {
    "flat": Method("flat distance", Euclidean().dist, (0.3, 0.5)),
    "distance": Method("hyperbolic distance, `hypvision metric closure`", LORENTZ.dist, (0.3, 0.5)),
    "hyperbolic": Method("hyperbolic distance, softmax over all", hyperbolic, TWO),
    "hyperbolic-scalar": Method("hyperbolic distance less a number", hyperbolic_scalar, TWO),
    "flat-softmax": Method("flat distance, softmax over all", Euclidean().dist, FOUR),
    "flat-scalar": Method("flat distance less a number", flat_scalar, FOUR),
    "scalar": Method("squared flat distance less a number", scalar, FOUR),
    "order": Method("order embedding", order, FOUR),
    "box": Method("Gumbel box", box, FOUR),
}


def known_pairs(closure: Closure, share: float, seed: int) -> np.ndarray:
    """Which pairs are trained, ``(P,)``: all with parents, and a share of the others by chance."""
    parents = {tuple(pair) for pair in closure.parents().tolist()}
    known = np.array([tuple(pair) in parents for pair in closure.pairs.tolist()])
    further = np.flatnonzero(~known)
    drawn = np.random.default_rng(seed).permutation(further)
    known[drawn[: round(share * len(further))]] = True
    return known


def fit(closure: Closure, distance: Distance, numbers: int, rate: float, seed: int) -> Tensor:
    """Train ``numbers`` numbers a name by Adam, with a rate that falls linearly to 0, and one
    number for the scale of all distances.

    Returns:
        Rows, float64 ``(N, numbers)``, the arguments of ``distance``.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(closure.names)
    rows = SPREAD * torch.randn(count, numbers, generator=generator)
    rows.requires_grad_()
    log_scale = torch.zeros((), requires_grad=True)
    steps = step_count(closure)
    optimizer = torch.optim.Adam([rows, log_scale], lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    pairs = torch.from_numpy(closure.pairs)
    # 2 for the negatives of neighbour_loss: names that are not known as ancestors
    hops = torch.full((count, count), 2, dtype=torch.int8)
    hops[pairs[:, 0], pairs[:, 1]] = 0
    hops.fill_diagonal_(0)
    left = pairs[:0]
    for _ in tqdm(range(steps), desc="embed", unit="step", disable=None):
        if not len(left):
            left = pairs[torch.randperm(len(pairs), generator=generator)]
        below, above = left[:BATCH].T
        left = left[BATCH:]
        asked = hops[below].scatter(1, above.unsqueeze(1), 1)
        distances = distance(rows[below].unsqueeze(1), rows.unsqueeze(0))
        loss = neighbour_loss(log_scale.exp() * distances, asked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return rows.detach().double()


def step_count(closure: Closure) -> int:
    """Steps in which each pair is seen EPOCHS times."""
    return math.ceil(EPOCHS * len(closure.pairs) / BATCH)


def ranks(distances: Tensor, closure: Closure, known: np.ndarray) -> dict[str, float]:
    """Mean rank and MAP of ancestors: of all if all are known, else of the unknown ones, among
    names that are no ancestors.

    Args:
        distances: from names to ancestors, ``(N, N)``.
        closure: all pairs.
        known: which of them were trained, ``(P,)``.
    """
    asked = np.ones_like(known) if known.all() else ~known
    edges = torch.zeros(distances.shape, dtype=torch.bool)
    below, above = torch.from_numpy(closure.pairs[asked]).T
    edges[below, above] = True
    below, above = torch.from_numpy(closure.pairs[~asked]).T
    distances = distances.index_put((below, above), distances.new_tensor(FAR))
    return dict(mean_rank=mean_rank(distances, edges), map=graph_map(distances, edges))


def train(
    closure: Closure, method: str, numbers: int, share: float, rate: float, seed: int
) -> dict[str, float]:
    """Train one embedding and rank ancestors by it."""
    known = known_pairs(closure, share, seed)
    seen = closure._replace(pairs=closure.pairs[known])
    begin = time.perf_counter()
    if method in ("flat", "distance"):
        space = Lorentz(1.0) if method == "distance" else Euclidean()
        steps = step_count(seen)
        rows = embed_closure(seen, numbers, space, steps=steps, rate=rate, batch=BATCH, seed=seed)
    else:
        rows = fit(seen, METHODS[method].distance, numbers, rate, seed)
    seconds = time.perf_counter() - begin
    distance = METHODS[method].distance
    parts = [distance(part.unsqueeze(1), rows.unsqueeze(0)) for part in rows.split(64)]
    return ranks(torch.cat(parts), closure, known) | dict(seconds=round(seconds, 1))


class Cell(NamedTuple):
    """What a row and column of the tables is about."""

    file: str
    known: float
    method: str
    numbers: int

    def key(self, rate: float, seed: int) -> str:
        """The name of a run in the result file."""
        parts = (self.file, f"{self.known:g}", self.method, self.numbers, f"{rate:g}", seed)
        return "/".join(map(str, parts))

    @classmethod
    def of(cls, key: str) -> Cell:
        """The cell of a run in the result file."""
        file, known, method, numbers, _, _ = key.split("/")
        return cls(file, float(known), method, int(numbers))


def run_cell(
    closure: Closure, cell: Cell, chosen: Cell, seeds: int, results: dict[str, Any], path: Path
) -> None:
    """Train what a cell lacks: all rates with the first seed on the file that rates are chosen on,
    and all seeds with the better one."""

    def run(rate: float, seed: int) -> None:
        key = cell.key(rate, seed)
        if key not in results:
            results[key] = train(closure, cell.method, cell.numbers, cell.known, rate, seed)
            write_json(path, results)
            print(key, results[key], flush=True)

    if cell == chosen:
        for rate in METHODS[cell.method].rates:
            run(rate, 0)
    for seed in range(seeds):
        run(best_rate(chosen, results), seed)


def best_rate(cell: Cell, results: dict[str, Any]) -> float:
    """The rate with the smallest mean rank with the first seed, of those that were run."""
    tried = [rate for rate in METHODS[cell.method].rates if cell.key(rate, 0) in results]
    return min(tried, key=lambda rate: results[cell.key(rate, 0)]["mean_rank"])


def tables(results: dict[str, Any]) -> str:
    """Markdown: a table a file and share, a row a method, a column for each count of numbers;
    means over the seeds of the better rate. Rates were chosen on the file of the first run."""
    cells = list(dict.fromkeys(Cell.of(key) for key in results))
    first = cells[0].file
    lines = []
    for file, known in dict.fromkeys((cell.file, cell.known) for cell in cells):
        here = [cell for cell in cells if (cell.file, cell.known) == (file, known)]
        counts = sorted({cell.numbers for cell in here})
        lines += ["", f"| {file}, {known:g} known | {' | '.join(map(str, counts))} |"]
        lines.append("|---|" + "--:|" * len(counts))
        for method in METHODS:
            row = [Cell(file, known, method, numbers) for numbers in counts]
            texts = [summary(runs_of(cell, first, results)) if cell in here else "" for cell in row]
            if any(texts):
                lines.append(f"| {METHODS[method].text} | {' | '.join(texts)} |")
    return "\n".join(lines[1:])


def runs_of(cell: Cell, first: str, results: dict[str, Any]) -> list[dict[str, float]]:
    """The runs of a cell with the rate that did better on the file ``first``."""
    rate = best_rate(cell._replace(file=first), results)
    start = cell.key(rate, 0).removesuffix("0")
    return [run for key, run in results.items() if key.startswith(start)]


def summary(runs: list[dict[str, float]]) -> str:
    """``mean rank (smallest to largest) / MAP`` of some runs."""
    values = [run["mean_rank"] for run in runs]
    precision = statistics.fmean(run["map"] for run in runs)
    spread = f"({min(values):.2f} to {max(values):.2f})"
    return f"{statistics.fmean(values):.2f} {spread} / {precision:.3f}"


def parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="closures; rates by the first")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--numbers", nargs="+", type=int, default=[2, 3, 5, 10])
    parser.add_argument("--known", type=float, default=1.0, help="share (default: 1)")
    parser.add_argument("--seeds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    args = parse(arguments)
    results = read_json(args.results) if args.results.exists() else {}
    for path in args.files:
        closure = read_closure(path)
        for numbers in args.numbers:
            for method in args.methods:
                if method == "box" and numbers % 2:
                    continue  # a box has as many widths as coordinates
                cell = Cell(path.stem, args.known, method, numbers)
                chosen = cell._replace(file=args.files[0].stem)
                run_cell(closure, cell, chosen, args.seeds, results, args.results)
    print(tables(results) if results else "No run yet: give files of closures.")


if __name__ == "__main__":
    sys.exit(guard(main, sys.argv[1:]))
