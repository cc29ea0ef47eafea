"""Measures of graph embeddings against loops over all nodes, and against Sarkar's nearly exact
construction."""

import math
from collections import deque

import numpy as np
import pytest
import torch
from helpers.cases import each

from hypvision.geometry import Lorentz
from hypvision.losses.graph import (
    average_distortion,
    complete_tree,
    graph_map,
    mean_rank,
    neighbour_loss,
    tree_distances,
)


def search(parents):
    """Edges between all pairs by breadth-first search."""
    count = len(parents)
    near = [set() for _ in range(count)]
    for node, parent in enumerate(parents):
        if parent >= 0:
            near[node].add(parent)
            near[parent].add(node)
    out = np.full((count, count), -1)
    for start in range(count):
        out[start, start], queue = 0, deque([start])
        while queue:
            node = queue.popleft()
            for other in near[node]:
                if out[start, other] < 0:
                    out[start, other] = out[start, node] + 1
                    queue.append(other)
    return out


def slow_map(distances, edges):
    """The definition, word by word."""
    total, nodes = 0.0, 0
    for u in range(len(distances)):
        neighbours = [v for v in range(len(distances)) if v != u and edges[u, v]]
        if not neighbours:
            continue
        nodes += 1
        for v in neighbours:
            closer = [
                w for w in range(len(distances)) if w != u and distances[u, w] <= distances[u, v]
            ]
            total += sum(w in neighbours for w in closer) / len(closer) / len(neighbours)
    return total / nodes


def sarkar(parents, length):
    """Points of the Lorentz plane, children at equal angles around their parent, all edges of one
    length."""

    def turn(angle):
        c, s = math.cos(angle), math.sin(angle)
        return np.array([[1, 0, 0], [0, c, -s], [0, s, c]])

    step = np.array(
        [
            [math.cosh(length), math.sinh(length), 0],
            [math.sinh(length), math.cosh(length), 0],
            [0, 0, 1.0],
        ]
    )
    frames = [np.eye(3)]
    born = [0] * len(parents)
    children = [parents.count(node) for node in range(len(parents))]
    for parent in parents[1:]:
        ways = children[parent] + (parent > 0)
        # forward of a frame is away from its own parent, which takes the direction pi
        angle = 2 * math.pi * (born[parent] + (parent > 0)) / ways + (math.pi if parent > 0 else 0)
        born[parent] += 1
        frames.append(frames[parent] @ turn(angle) @ step)
    return torch.from_numpy(np.stack(frames)[:, :, 0])


def test_the_tree_of_the_tutorial():
    parents = complete_tree(3, 6)
    assert len(parents) == 1093 and parents[:5] == [-1, 0, 0, 0, 1]
    assert complete_tree(2, 1) == [-1, 0, 0] and complete_tree(1, 1) == [-1, 0]
    hops = tree_distances(parents)
    assert hops.max() == 12 and (hops == 1).sum() == 2 * 1092 and torch.equal(hops, hops.T)


@each("parents", [complete_tree(2, 3), [-1, 0, 1, 1, 0, 3, 3, 5], [-1], complete_tree(1, 4)])
def test_distances_in_a_tree_are_those_of_a_search(parents):
    assert np.array_equal(tree_distances(parents).numpy(), search(parents))


@each("parents", [[], [0], [-1, -1], [-1, 2, 0], [-1, 1]])
def test_what_is_no_tree_is_refused(parents):
    with pytest.raises(ValueError, match="parents must begin with -1"):
        tree_distances(parents)


@pytest.mark.parametrize("ties", [False, True])
def test_map_is_its_definition(ties):
    hops = tree_distances(complete_tree(3, 3))
    points = torch.randn(len(hops), 2, dtype=torch.float64)
    distances = torch.cdist(points, points)
    distances = (distances * 3).round() if ties else distances
    edges = hops == 1
    edges[7] = edges[:, 7] = False  # a node without neighbours
    assert graph_map(distances, edges) == pytest.approx(
        slow_map(distances.numpy(), edges.numpy()), abs=1e-12
    )
    assert graph_map(hops.double(), hops == 1) == 1.0


def test_distortion_is_its_definition_and_the_scale_is_the_best():
    hops = tree_distances(complete_tree(2, 4))
    points = torch.randn(len(hops), 2, dtype=torch.float64)
    distances = torch.cdist(points, points)

    def slow(scale):
        pairs = [(u, v) for u in range(len(hops)) for v in range(u)]
        return sum(
            abs(distances[u, v].item() / (scale * hops[u, v].item()) - 1) for u, v in pairs
        ) / len(pairs)

    assert average_distortion(distances, hops, 0.7) == pytest.approx(slow(0.7), rel=1e-12)
    best = average_distortion(distances, hops)
    grid = [average_distortion(distances, hops, scale) for scale in np.geomspace(0.05, 5, 1001)]
    assert best <= min(grid) + 1e-12 and best == pytest.approx(min(grid), rel=1e-3)
    assert average_distortion(3.5 * hops, hops) == pytest.approx(0, abs=1e-15)
    assert average_distortion(0.0 * hops, hops) == 1.0
    assert average_distortion(3.5 * hops[:2, :2], hops[:2, :2]) == 0  # a single pair
    triangle = torch.tensor(
        [[0.0, 1, 2], [1, 0, 4], [2, 4, 0]]
    )  # the scale is 4, where half of 1 + 2 + 4 lies
    assert average_distortion(triangle, 1 - torch.eye(3)) == pytest.approx(
        (3 / 4 + 1 / 2 + 0) / 3, abs=1e-15
    )
    assert math.isnan(average_distortion(math.nan * hops, hops))


@each("length, distortion", [(2.0, 0.16), (3.0, 0.1), (4.0, 0.08)])
def test_the_hyperbolic_plane_holds_a_tree(length, distortion):
    parents = complete_tree(3, 4)
    hops = tree_distances(parents)
    points = sarkar(parents, length)
    distances = Lorentz(1.0).dist(points.unsqueeze(1), points.unsqueeze(0))
    # of float64 points; the leaves lie at four times the length
    assert distances[hops == 1].sub(length).abs().max() < max(
        1e-6, 1e-16 * math.cosh(4 * length) ** 2
    )
    assert graph_map(distances, hops == 1) == 1.0
    assert average_distortion(distances, hops) < distortion


def test_the_loss_is_its_formula_and_has_finite_gradients():
    hops = tree_distances(complete_tree(2, 3))
    points = torch.randn(len(hops), 2, dtype=torch.float64, requires_grad=True)
    distances = torch.cdist(points, points)
    rows = [0, 4, 9]
    terms = []
    for u in rows:
        others = sum(math.exp(-distances[u, w].item()) for w in range(len(hops)) if hops[u, w] > 1)
        for v in range(len(hops)):
            if hops[u, v] == 1:
                here = math.exp(-distances[u, v].item())
                terms.append(-math.log(here / (here + others)))
    loss = neighbour_loss(distances[rows], hops[rows])
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-12)
    loss.backward()
    assert torch.isfinite(points.grad).all() and points.grad.abs().max() > 0
    # the centre of a star has no negatives
    star = tree_distances([-1, 0, 0])
    flat = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    neighbour_loss(flat[:1], star[:1]).backward()
    assert flat.grad.abs().max() == 0


def test_bad_arguments_are_told():
    square = torch.ones(3, 3)
    with pytest.raises(ValueError, match=r"both be \(N, N\)"):
        graph_map(square, torch.ones(2, 2))
    with pytest.raises(ValueError, match="no true value"):
        graph_map(square, torch.eye(3))
    with pytest.raises(ValueError, match=r"distances and hops must both be \(N, N\)"):
        average_distortion(square, torch.ones(2, 2))
    with pytest.raises(ValueError, match="positive outside"):
        average_distortion(
            square,
            torch.ones(3, 3).index_put((torch.tensor(0), torch.tensor(2)), torch.tensor(0.0)),
        )
    with pytest.raises(ValueError, match="scale must be a finite number above 0"):
        average_distortion(square, square, 0.0)
    with pytest.raises(ValueError, match="at least two nodes"):
        average_distortion(torch.zeros(1, 1), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="same shape"):
        neighbour_loss(square, torch.ones(2, 3))
    with pytest.raises(ValueError, match="no 1 in it"):
        neighbour_loss(square, torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"rows \(B,\), got \(2, 3\), \(2, 3\), \(3,\)"):
        mean_rank(square[:2], square[:2], torch.arange(3))
    for wrong in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            complete_tree(*wrong)


def test_mean_rank_is_that_of_the_definition():
    generator = torch.Generator().manual_seed(3)
    distances = torch.rand(12, 12, generator=generator).mul(20).round()  # with ties
    edges = torch.rand(12, 12, generator=generator) < 0.3
    ranks = []
    for u, v in edges.nonzero().tolist():
        if u != v:
            others = [w for w in range(12) if w != u and not edges[u, w]]
            ranks.append(1 + sum(bool(distances[u, w] <= distances[u, v]) for w in others))
    assert mean_rank(distances, edges) == pytest.approx(np.mean(ranks))
