"""Points for the names of a hierarchy, trained only from its transitive closure (Nickel and Kiela,
NeurIPS 2017)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.data.closures import Closure
from hypvision.geometry import Euclidean, Lorentz, ManifoldParameter
from hypvision.inference.progress import Progress
from hypvision.io import Metrics, Plain, StrPath, at_least, more_than, require
from hypvision.io.files import write_json, write_table
from hypvision.losses.graph import graph_map, mean_rank, neighbour_loss
from hypvision.optim import RiemannianSGD
from hypvision.optim.base import RiemannianOptimizer
from hypvision.viz.sheet import save_figure

SPREAD = 0.01  # standard deviation of the initial tangent vectors
# Part of the steps that use a low rate: directions are found before points move outwards.
BURN_IN = 0.1
LOW = 0.03  # the low rate, as a part of the full rate
# Longest way of a point in a step: general names are in nearly all pairs, and the sum of their
# gradients would throw them away.
REACH = 0.3
PULL = 0.3  # weight of the loss that pulls ancestors to the origin
FLATTEN = 0.75  # negatives are drawn by the frequency of names to this power, as in word2vec
# The number of steps, for few pairs and for many.
FEWEST_STEPS = 400
STEPS_A_PAIR = 4
MOST_STEPS = 2500
PART = 2**24  # number of coordinates that are compared at once when ranks are measured


def embed_closure(
    closure: Closure,
    dim: int = 2,
    space: Lorentz | Euclidean | None = None,
    steps: int | None = None,
    rate: float | None = None,
    negatives: int = 50,
    batch: int = 256,
    seed: int = 0,
    start: Tensor | None = None,
    watch: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Train points for the names of a hierarchy so that the nearest to each name are its ancestors.

    Uses the loss and the burn-in of Nickel and Kiela with Riemannian SGD. Unlike in the paper,
    frequent names are drawn more often as negatives and ancestors are pulled to the origin (both as
    in gensim), no step is longer than a limit, and the rate falls linearly to 0.

    Args:
        closure: names and their ancestors.
        dim: dimensions of the space.
        space: manifold of the points, default ``Lorentz(1.0)``.
        steps: number of training steps; None: :func:`default_steps`.
        seed: seed of the initial points and of the order and negatives of the pairs.
        rate: learning rate; None: 0.5 in two dimensions, 0.3 in more.
        negatives: names drawn for each pair; the pair's ancestor is compared with those of them
            that are not ancestors of the name.
        batch: largest number of pairs in a step; a pair occurs again after all others.
        start: initial tangent vectors at the origin, ``(N, dim)``; None: small random ones.
        watch: function that is called after each step with its number and the points.

    Returns:
        The points, float64 ``(N, dim + 1)`` on the hyperboloid or ``(N, dim)`` in flat space.
    """
    at_least(1, integer=True, dim=dim)
    steps = default_steps(closure) if steps is None else steps
    rate = default_rate(dim) if rate is None else rate
    more_than(0, rate=rate)
    space = space or Lorentz(1.0)
    if start is None:
        generator = torch.Generator().manual_seed(seed)
        start = SPREAD * torch.randn(len(closure.names), dim, generator=generator)
    points = ManifoldParameter(space.from_tangent0(start), space)
    optimizer = RiemannianSGD([points], lr=rate)
    step_done = None if watch is None else lambda step: watch(step, points.detach())
    fit_closure(closure, points, optimizer, space, steps, negatives, batch, seed, step_done)
    return space.projx(points.detach().double())


def default_rate(dim: int) -> float:
    """Return the default learning rate: values that did well in trials on the mammals of WordNet,
    where the plane needed a larger rate than 5 and 10 dimensions."""
    return 0.5 if dim <= 2 else 0.3


def default_steps(closure: Closure) -> int:
    """Return the default number of steps, which grows with the number of pairs up to that of the
    mammals of WordNet."""
    return min(MOST_STEPS, FEWEST_STEPS + STEPS_A_PAIR * len(closure.pairs))


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which PyTorch computes in one thread: threads that wait for each other after each
    tiny product take ten times as long when another process runs beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def fit_closure(
    closure: Closure,
    points: Tensor,
    optimizer: torch.optim.Optimizer,
    space: Any,
    steps: int,
    negatives: int = 50,
    batch: int = 256,
    seed: int = 0,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Train ``points`` in place with ``optimizer``, as :func:`embed_closure` does. ``space`` is the
    manifold of the points, of hypvision or geoopt; ``watch`` is called after each step with its
    number."""
    at_least(1, integer=True, steps=steps, negatives=negatives, batch=batch)
    count = len(closure.names)
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.from_numpy(closure.pairs)
    related = (
        torch.cat([pairs @ torch.tensor([count, 1]), torch.arange(count) * (count + 1)])
        .sort()
        .values
    )
    drawing = (torch.bincount(pairs.flatten(), minlength=count).double() ** FLATTEN).cumsum(0)
    # Sparse gradients, so that a step costs the same for any number of names.
    sparse = isinstance(optimizer, RiemannianOptimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 - step / steps) * (LOW if step < BURN_IN * steps else 1)
    )
    rows = pairs[:0]
    for step in range(steps):
        if not len(rows):
            rows = pairs[torch.randperm(len(pairs), generator=generator)]
        below, above = rows[:batch].T
        rows = rows[batch:]
        places = (
            torch.rand(len(below), negatives, generator=generator, dtype=torch.float64)
            * drawing[-1]
        )
        others = torch.searchsorted(drawing, places, right=True)
        asked = below.unsqueeze(1) * count + others
        known = related[torch.searchsorted(related, asked).clamp(max=len(related) - 1)] == asked
        hops = F.pad(2 * (~known).to(torch.int8), (1, 0), value=1)
        rows_of_step = torch.cat([below.unsqueeze(1), above.unsqueeze(1), others], 1)
        own, chosen = F.embedding(rows_of_step, points, sparse=sparse).tensor_split([1], dim=1)
        # The loss is a sum, not a mean, so that each pair moves its points by the full rate.
        loss = len(below) * neighbour_loss(space.dist(own, chosen), hops)
        loss = loss + PULL * (space.dist0(chosen[:, 0]) / 2).tanh().square().sum()
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            assert points.grad is not None
            grad = points.grad = points.grad.coalesce() if sparse else points.grad
            values, moved = (grad.values(), points[grad.indices()[0]]) if sparse else (grad, points)
            # clone, because geoopt changes its argument in place
            vectors = space.egrad2rgrad(moved, values.clone())
            way = space.norm(moved, vectors).unsqueeze(-1) * schedule.get_last_lr()[0]
            values *= REACH / way.clamp(min=REACH)
        optimizer.step()
        schedule.step()
        if watch is not None:
            watch(step)


def closure_ranks(points: Tensor, space: Lorentz | Euclidean, closure: Closure) -> Metrics:
    """Return how well distances separate the ancestors of all names from the other names:
    ``mean_rank`` and ``map`` of :mod:`hypvision.losses.graph`."""
    below, above = torch.from_numpy(closure.pairs).T.contiguous()  # sorted by the lower name
    ranks = precisions = 0.0
    names = below.unique()
    for rows in names.split(max(1, PART // points.numel())):
        edges = torch.zeros(len(rows), len(points), dtype=torch.bool)
        first = torch.searchsorted(below, rows[0])
        last = torch.searchsorted(below, rows[-1], right=True)
        edges[torch.searchsorted(rows, below[first:last]), above[first:last]] = True
        distances = space.dist(points[rows].unsqueeze(1), points.unsqueeze(0))
        ranks += mean_rank(distances, edges, rows) * int(edges.sum())
        precisions += graph_map(distances, edges, rows) * len(rows)
    return dict(mean_rank=ranks / len(below), map=precisions / len(names))


def draw_closure(closure: Closure, out: StrPath, title: str = "", **options: Any) -> Plain:
    """Train points with the ``options`` of :func:`embed_closure` (except ``space``), measure and
    draw them, and return the content of ``closure.json``.

    Writes ``points.csv`` (a row for each name: coordinates in the Poincare ball of curvature 1),
    ``disk.png`` and ``closure.json`` into ``out``.
    """
    require("matplotlib", "viz")
    from hypvision.viz.disk import draw_hierarchy

    space = Lorentz(1.0)
    start = time.perf_counter()
    options["steps"] = options.get("steps") or default_steps(closure)
    bar = Progress("embedding", options["steps"], unit="step")
    points = embed_closure(
        closure, space=space, watch=lambda step, _: bar.update(step + 1), **options
    )
    bar.close()
    report: Plain = dict(
        names=len(closure.names), pairs=len(closure.pairs), dim=points.shape[1] - 1
    )
    report |= closure_ranks(points, space, closure) | dict(
        seconds=round(time.perf_counter() - start, 1)
    )
    rows = [
        dict(name=name, **{f"x{i}": f"{x:.9g}" for i, x in enumerate(row, 1)})
        for name, row in zip(closure.names, space.to_poincare(points).tolist())
    ]
    write_table(Path(out, "points.csv"), rows)
    figure = draw_hierarchy(points, space, closure.names, closure.parents(), title=title)
    save_figure(figure, Path(out, "disk.png"), dpi=150)
    write_json(Path(out, "closure.json"), report)
    return report
