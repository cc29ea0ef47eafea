"""Points for the names of a hierarchy, trained from its transitive closure alone (Nickel and Kiela, NeurIPS 2017)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from hypvision.checks import at_least, more_than
from hypvision.data.closures import Closure
from hypvision.errors import HypvisionError, require
from hypvision.files import write_json, write_table
from hypvision.geometry import Euclidean, Lorentz, ManifoldParameter
from hypvision.losses.graph import graph_map, mean_rank, neighbour_loss
from hypvision.optim import RiemannianAdam
from hypvision.viz.sheet import save_figure

LARGEST = 20_000  # most names of a hierarchy; the distances between all pairs of them take 3 GB
SPREAD = 0.01  # standard deviation of the initial tangent vectors


def embed_closure(
    closure: Closure,
    dim: int = 2,
    space: Lorentz | Euclidean | None = None,
    steps: int = 1000,
    rate: float = 0.1,
    temperature: float | None = None,
    batch: int = 2048,
    seed: int = 0,
) -> Tensor:
    """Train points such that the ancestors of a name are the nearest to it.

    Args:
        closure: names and their ancestors.
        space, dim: where the points lie, default ``Lorentz(1.0)``; its dimensions.
        steps, rate, seed: of RiemannianAdam, whose learning rate falls linearly to 0; of the start and the batches.
        temperature: divides the distances in the loss; None: 1 in two dimensions, 1/3 in more.
        batch: names of a step; the ancestors of each are compared with all other names.

    Returns:
        The points, float64 ``(N, dim + 1)`` on the hyperboloid or ``(N, dim)`` in flat space.
    """
    at_least(1, integer=True, dim=dim, steps=steps, batch=batch)
    temperature = default_temperature(dim) if temperature is None else temperature
    more_than(0, rate=rate, temperature=temperature)
    space = space or Lorentz(1.0)
    hops = graph_of(closure)
    generator = torch.Generator().manual_seed(seed)
    start = SPREAD * torch.randn(len(hops), dim, generator=generator)
    points = ManifoldParameter(space.from_tangent0(start), space)
    optimizer = RiemannianAdam([points], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    below = torch.from_numpy(np.unique(closure.pairs[:, 0]))
    for _ in tqdm(range(steps), desc="embed", unit="step", disable=None):
        rows = below[torch.randperm(len(below), generator=generator)[:batch]]
        loss = neighbour_loss(space.cdist(points[rows], points) / temperature, hops[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return space.projx(points.detach().double())


def default_temperature(dim: int) -> float:
    """The temperature that was best in trials on the mammals of WordNet, in the plane and in 5 and 10 dimensions."""
    return 1.0 if dim <= 2 else 1 / 3


def closure_ranks(points: Tensor, space: Lorentz | Euclidean, closure: Closure) -> dict[str, float]:
    """How well distances separate the ancestors of all names from other names: ``mean_rank`` and ``map`` of
    :mod:`hypvision.losses.graph`."""
    distances = torch.cat([space.dist(rows.unsqueeze(1), points.unsqueeze(0)) for rows in points.split(128)])
    edges = graph_of(closure) == 1
    return dict(mean_rank=mean_rank(distances, edges), map=graph_map(distances, edges))


def graph_of(closure: Closure) -> Tensor:
    """The graph of the loss, ``(N, N)``: 0 from a name to itself, 1 to its ancestors, 2 to all others."""
    count = len(closure.names)
    if count > LARGEST:
        raise HypvisionError(
            f"The hierarchy has {count:,} names, but at most {LARGEST:,} are allowed, because all pairs are compared. "
            "Give a part of it, such as all names below one."
        )
    hops = torch.full((count, count), 2, dtype=torch.int8).fill_diagonal_(0)
    hops[tuple(torch.from_numpy(closure.pairs).T)] = 1
    return hops


def draw_closure(closure: Closure, out: str | Path, title: str = "", **options: Any) -> dict[str, Any]:
    """Train points with the ``options`` of :func:`embed_closure`, but ``space``, measure them and draw them; returns
    the content of ``closure.json``.

    Writes ``points.csv`` (a row for each name: coordinates in the Poincare ball of curvature 1), ``disk.png`` and
    ``closure.json`` into ``out``.
    """
    require("matplotlib", "viz")
    from hypvision.viz.disk import draw_hierarchy

    space, start = Lorentz(1.0), time.perf_counter()
    points = embed_closure(closure, space=space, **options)
    report: dict[str, Any] = dict(names=len(closure.names), pairs=len(closure.pairs), dim=points.shape[1] - 1)
    report |= closure_ranks(points, space, closure) | dict(seconds=round(time.perf_counter() - start, 1))
    rows = [
        dict(name=name, **{f"x{i}": f"{x:.9g}" for i, x in enumerate(row, 1)})
        for name, row in zip(closure.names, space.to_poincare(points).tolist())
    ]
    write_table(Path(out, "points.csv"), rows)
    figure = draw_hierarchy(points, space, closure.names, closure.parents(), title=title)
    save_figure(figure, Path(out, "disk.png"), dpi=150)
    write_json(Path(out, "closure.json"), report)
    return report
