"""Graph embeddings: a loss to train points for the nodes of a graph, and three quality measures.

    >>> hops = tree_distances(complete_tree(branching=3, depth=6))  # (1093, 1093)
    >>> loss = neighbour_loss(space.cdist(points[rows], points), hops[rows])
    >>> graph_map(space.cdist(points, points), hops == 1)           # 1 if the edges can be read off
    >>> mean_rank(space.cdist(points, points), hops == 1)           # as well
    >>> average_distortion(space.cdist(points, points), hops)       # 0 if all distances fit

Sources: Nickel and Kiela, "Poincare Embeddings for Learning Hierarchical Representations" (NeurIPS
2017); Sala, De Sa, Gu and Re, "Representation Tradeoffs for Hyperbolic Embeddings" (ICML 2018).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.io import ArgumentError, at_least, more_than, require_finite


def complete_tree(branching: int, depth: int) -> list[int]:
    """Return the parent of every node of the tree in which all nodes above ``depth`` have
    ``branching`` children.

    The root comes first, with the parent -1; the other nodes follow level by level.
    """
    at_least(1, integer=True, branching=branching, depth=depth)
    parents = [-1]
    level = [0]
    for _ in range(depth):
        start = len(parents)
        parents += [node for node in level for _ in range(branching)]
        level = list(range(start, len(parents)))
    return parents


def tree_distances(parents: Sequence[int]) -> Tensor:
    """Return the number of edges between all pairs of nodes of a tree, ``(N, N)`` integers.

    Args:
        parents: the parent of every node, an earlier node; the root comes first, with -1.
    """
    if (
        not len(parents)
        or parents[0] != -1
        or any(not 0 <= p < i for i, p in enumerate(parents) if i)
    ):
        raise ArgumentError(
            "parents must begin with -1, for the root, and give for every other node the index of "
            "an earlier one."
        )
    hops = torch.zeros(len(parents), len(parents), dtype=torch.long)
    for node, parent in enumerate(parents):  # for the root (node 0) the slices are empty
        hops[node, :node] = hops[:node, node] = hops[parent, :node] + 1
    return hops


def neighbour_loss(distances: Tensor, hops: Tensor) -> Tensor:
    r"""Return the cross-entropy of picking a node's neighbour among all nodes that are not its
    neighbours (Nickel and Kiela, NeurIPS 2017, eq. 6).

    .. math:: -\log \frac{e^{-d(u, v)}}{e^{-d(u, v)} + \sum_{v' \not\sim u} e^{-d(u, v')}}

    averaged over the edges ``u, v`` of the given nodes ``u``. All nodes that are not neighbours are
    negatives, where the paper draws a sample of them.

    Args:
        distances: distances from some nodes to all nodes, ``(B, N)``.
        hops: numbers of edges between the same nodes, ``(B, N)``: 0 for the node itself, 1 for a
            neighbour.
    """
    if distances.shape != hops.shape:
        raise ArgumentError(
            f"distances and hops must have the same shape, got {tuple(distances.shape)} and "
            f"{tuple(hops.shape)}."
        )
    edges = hops == 1
    if not edges.any():
        raise ArgumentError("hops has no 1 in it: none of these nodes has a neighbour.")
    others = torch.logsumexp(-distances.masked_fill(hops <= 1, torch.inf), -1, keepdim=True)
    # For nodes without negatives ``others`` is -inf, so that these nodes add nothing to the loss.
    return F.softplus(distances + others)[edges].mean()


def graph_map(distances: Tensor, edges: Tensor, rows: Tensor | None = None) -> float:
    r"""Return the mean average precision (MAP) of the neighbours of every node, ranked by distance
    (Nickel and Kiela, NeurIPS 2017).

    .. math:: \frac{1}{|V|} \sum_u \frac{1}{|N(u)|}
              \sum_{v \in N(u)} \frac{|N(u) \cap R(u, v)|}{|R(u, v)|}

    with :math:`R(u, v)` the nodes other than ``u`` that are at most as far from ``u`` as ``v`` is.
    The result is 1 if every node is closer to its neighbours than to any other node, whatever the
    distances.

    Args:
        distances: distances between the nodes, ``(N, N)``; ties count against the ranking.
        edges: ``(N, N)``, true for neighbours. Nodes without neighbours are left out of the mean.
        rows: for results of a part of the nodes: their numbers ``(B,)``; ``distances`` and
            ``edges`` are then ``(B, N)``.
    """
    reach, hits, edges = _ranking(distances, edges, rows)
    precision = (hits.double() / reach).masked_fill(~edges, 0)
    degree = edges.sum(1)
    return (precision.sum(1)[degree > 0] / degree[degree > 0]).mean().item()


def mean_rank(distances: Tensor, edges: Tensor, rows: Tensor | None = None) -> float:
    """Return the mean over all edges ``u, v`` of the rank of ``v``, from 1, by its distance from
    ``u`` among the nodes that are not neighbours of ``u`` (Nickel and Kiela, NeurIPS 2017).

    Args:
        distances: distances between the nodes, ``(N, N)``; ties count against the ranking.
        edges: ``(N, N)``, true for neighbours; ``u`` is the row.
        rows: for results of a part of the nodes: their numbers ``(B,)``; ``distances`` and
            ``edges`` are then ``(B, N)``.
    """
    reach, hits, edges = _ranking(distances, edges, rows)
    return (reach - hits + 1)[edges].double().mean().item()


def _ranking(
    distances: Tensor, edges: Tensor, rows: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return for all ``u, v`` how many other nodes, and how many neighbours of ``u``, are at most
    as far from ``u`` as ``v`` is; and the edges ``(B, N)`` without those from a node to itself."""
    if rows is None:
        _square(distances, edges, "edges")
        rows = torch.arange(len(distances), device=distances.device)
    elif (
        distances.dim() != 2 or distances.shape != edges.shape or rows.shape != distances.shape[:1]
    ):
        shapes = ", ".join(str(tuple(x.shape)) for x in (distances, edges, rows))
        raise ArgumentError(f"distances and edges must be (B, N) and rows (B,), got {shapes}.")
    require_finite(distances, lambda row: f"A distance of node {rows[row]}")
    itself = rows.unsqueeze(1) == torch.arange(distances.shape[1], device=distances.device)
    edges = edges.bool() & ~itself
    if not edges.any():
        raise ArgumentError("edges has no true value from a node to another.")
    apart = distances.detach().double().masked_fill(itself, torch.inf)
    return _within(apart, apart), _within(apart.masked_fill(~edges, torch.inf), apart), edges


def _within(values: Tensor, bounds: Tensor) -> Tensor:
    """Return how many of the ``values`` in a row are at most as large as each bound in the same row
    of ``bounds``."""
    return torch.searchsorted(values.sort(-1).values, bounds, right=True)


def average_distortion(distances: Tensor, hops: Tensor, scale: float | None = None) -> float:
    r"""Return the mean of :math:`|d(u, v) / (s\, g(u, v)) - 1|` over all pairs of nodes, with the
    distance :math:`d`, the number of edges :math:`g` and a scale :math:`s` (Sala et al., ICML 2018,
    without the scale).

    Without a scale the best one is used, so that only the proportions of distances count: the mean
    is a piecewise linear function of ``1 / s``, smallest at a weighted median.

    Args:
        distances: distances between the nodes' points, ``(N, N)``, symmetric.
        hops: numbers of edges between the nodes, ``(N, N)``, positive outside the diagonal.
        scale: the distance that one edge should have; None: the best one.
    """
    _square(distances, hops, "hops")
    if len(hops) < 2:
        raise ArgumentError("There must be at least two nodes.")
    above = torch.triu(torch.ones_like(hops, dtype=torch.bool), 1)
    if not (hops[above] > 0).all():
        raise ArgumentError("hops must be positive outside its diagonal.")
    ratio = distances.detach()[above].double() / hops[above].double()
    if scale is not None:
        more_than(0, scale=scale)
    else:
        ratio, _ = ratio.sort()
        weight = ratio.cumsum(0)
        if weight[-1] == 0:
            return 1.0  # all points coincide, so every ratio is 0
        scale = ratio[torch.searchsorted(weight, weight[-1] / 2).clamp(max=len(ratio) - 1)].item()
    return (ratio / scale - 1).abs().mean().item()


def _square(distances: Tensor, graph: Tensor, name: str) -> None:
    if (
        distances.dim() != 2
        or distances.shape[0] != distances.shape[1]
        or distances.shape != graph.shape
    ):
        raise ArgumentError(
            f"distances and {name} must both be (N, N), got {tuple(distances.shape)} and "
            f"{tuple(graph.shape)}."
        )
