"""Hyperbolicity against all triples written out, on trees and cycles, and the curvature from it."""

import itertools

import pytest
import torch

from hypvision.io.errors import HypvisionError
from hypvision.tasks.hyperbolicity import fitted_curvature, relative_hyperbolicity


def of_triples(d):
    def product(x, y):
        return (d[0, x] + d[0, y] - d[x, y]) / 2

    delta = max(
        min(product(x, y), product(y, z)) - product(x, z)
        for x, y, z in itertools.product(range(len(d)), repeat=3)
    )
    return float(2 * delta / d.max())


def graph(count, edges):
    """Lengths of the shortest paths."""
    d = torch.full((count, count), 1e9, dtype=torch.float64).fill_diagonal_(0)
    for a, b in edges:
        d[a, b] = d[b, a] = 1
    for middle in range(count):
        d = torch.minimum(d, d[:, middle : middle + 1] + d[middle : middle + 1])
    return d


def test_all_triples_agree():
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)).double()
    d = torch.cdist(points, points)
    assert relative_hyperbolicity(d) == pytest.approx(of_triples(d), abs=1e-12)
    assert relative_hyperbolicity(d) > 0.05


def test_a_tree_has_none_and_a_square_all():
    tree = graph(7, [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)])
    assert relative_hyperbolicity(tree) == 0
    assert relative_hyperbolicity(graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)])) == 1


def test_the_curvature_is_the_square_of_a_ratio():
    """The ratio of the mean over all base points that are drawn; no length counts."""
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(1)).double()
    orders = torch.Generator().manual_seed(3)
    drawn = [x[torch.randperm(10, generator=orders)] for _ in range(4)]
    mean = sum(of_triples(torch.cdist(points, points)) for points in drawn) / 4
    assert fitted_curvature(x, rounds=4, seed=3) == pytest.approx((0.144 / mean) ** 2)
    assert fitted_curvature(7 * x, rounds=2) == pytest.approx(fitted_curvature(x, rounds=2))
    with pytest.raises(HypvisionError, match="no curvature fits"):
        fitted_curvature(torch.arange(5.0)[:, None])
    with pytest.raises(HypvisionError, match=r"matrix \(N, N\)"):
        relative_hyperbolicity(torch.zeros(3, 2))
