"""Measures against closed forms: equiangular frames, random vectors, sums written out."""

import itertools
import math

import pytest
import torch
from helpers.cases import each

from hypvision.io.errors import HypvisionError
from hypvision.scaling import measures
from hypvision.scaling.data import frequencies

FRAME = torch.eye(6, dtype=torch.float64) - 1 / 6  # six vectors of rank five, all overlaps 0.2


@each("block", [1, 2, 4, 7, 8192])
@each("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_overlaps_are_those_of_all_pairs(block, dtype):
    weight = torch.randn(23, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    unit = torch.nn.functional.normalize(weight.double(), dim=1)
    o = torch.stack([(unit[i] @ unit[j]).abs() for i, j in itertools.combinations(range(23), 2)])
    found = measures.overlaps(weight, block)
    expected = (23, o.mean(), o.std(correction=0), (o**2).mean(), (o**2).var(correction=0), o.max())
    assert found == pytest.approx([float(value) for value in expected], rel=2e-6)


def test_an_equiangular_frame_reaches_the_bound():
    found = measures.overlaps(FRAME)
    assert found.largest == pytest.approx(0.2) == measures.welch_bound(6, 5)
    assert found.mean == pytest.approx(0.04) and found.variance == pytest.approx(0, abs=1e-15)


@each(
    "count, m, bound",
    [
        (100, 10, 0.30151),
        (1000, 10, 0.31480),
        (1000, 100, 0.09492),
        (10240, 1024, 0.029648),
        (5, 5, 0),
        (3, 5, 0),
    ],
)
def test_welch_bound(count, m, bound):
    assert measures.welch_bound(count, m) == pytest.approx(bound, abs=6e-6)


def directions(m, count):
    return torch.randn(
        count, m, dtype=torch.float64, generator=torch.Generator().manual_seed(count)
    )


GOLDEN = (1 + math.sqrt(5)) / 2
ETFS = {  # vectors, dimensions, their one overlap, all from textbooks
    "simplex": (torch.eye(8, dtype=torch.float64) - 1 / 8, 7, 1 / 7),
    "Mercedes-Benz": (
        torch.tensor([[0.0, 1.0], [3**0.5 / 2, -0.5], [-(3**0.5) / 2, -0.5]]).double(),
        2,
        1 / 2,
    ),
    "icosahedron": (
        torch.tensor(
            [
                [0, 1, GOLDEN],
                [0, -1, GOLDEN],
                [1, GOLDEN, 0],
                [-1, GOLDEN, 0],
                [GOLDEN, 0, 1],
                [-GOLDEN, 0, 1],
            ]
        ),
        3,
        1 / math.sqrt(5),
    ),
}


@each("name", ETFS)
def test_equiangular_tight_frames(name):
    vectors, m, overlap = ETFS[name]
    vectors = vectors.double()
    vectors = (
        vectors * torch.linspace(0.5, 3, len(vectors), dtype=torch.float64)[:, None]
    )  # lengths do not count
    found = measures.frame(measures.overlaps(vectors), m)
    assert found.bound == pytest.approx(overlap) and found.excess == pytest.approx(0, abs=1e-7)
    assert found.potential == pytest.approx(1)
    assert found.deviation == pytest.approx(0, abs=1e-6)
    assert found.possible
    # As many again, elsewhere: more than there can be in an ETF of so few dimensions.
    more = measures.frame(
        measures.overlaps(torch.cat([vectors, directions(vectors.shape[1], 25)])), m
    )
    assert more.excess > 0.01
    assert more.deviation > 0.01
    assert more.possible == (m == 7 and len(vectors) + 25 <= 28)


@each("m", [2, 3, 7])
def test_an_orthoplex_is_tight_but_not_equiangular(m):
    axes = torch.eye(m, dtype=torch.float64)
    found = measures.frame(measures.overlaps(torch.cat([axes, -axes])), m)
    mean = 1 / (2 * m - 1)  # of each vector's overlaps with the others one is 1, the rest are 0
    assert found.potential == pytest.approx(1) and found.bound == pytest.approx(math.sqrt(mean))
    assert found.excess == pytest.approx(1 - math.sqrt(mean))
    assert found.deviation == pytest.approx(math.sqrt(mean - mean**2)) and found.possible == (m > 2)


def test_orthonormal_vectors_and_repeated_ones():
    few = measures.frame(measures.overlaps(torch.eye(5)[:3]), 5)
    assert few == measures.Frame(0, 0, 1, 0, True)
    same = measures.frame(
        measures.overlaps(torch.ones(4, 5)), 5
    )  # equiangular, and as far from tight as can be
    assert same.excess == pytest.approx(1) and same.potential == pytest.approx(4)
    assert same.deviation == pytest.approx(0, abs=1e-3)


def test_random_frames_are_neither_tight_nor_equiangular():
    m, count = 6, 3000
    found = measures.frame(measures.overlaps(directions(m, count)), m)
    mean = math.gamma(m / 2) / (math.sqrt(math.pi) * math.gamma((m + 1) / 2))  # of |w_i . w_j|
    assert found.potential == pytest.approx(1 + (m - 1) / count, abs=2e-3) and found.potential > 1
    assert found.deviation == pytest.approx(math.sqrt(1 / m - mean**2), rel=0.01)
    assert found.excess > 0.5 and not found.possible


def test_random_vectors():
    m, weight = 8, torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    found, (mean, variance) = measures.overlaps(weight, 700), measures.random_overlaps(m)
    assert mean == 1 / 8 and variance == pytest.approx(14 / 640)
    assert found.mean == pytest.approx(mean, rel=0.01)
    assert found.variance == pytest.approx(variance, rel=0.03)


def test_few_rows_and_rows_of_zeros():
    for rows in (0, 1):
        found = measures.overlaps(torch.ones(rows, 3))
        assert found.rows == rows and all(math.isnan(value) for value in found[1:])
    weight = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    assert measures.overlaps(weight).mean == pytest.approx(1 / 3)


def test_norms_and_what_is_represented():
    weight = torch.tensor([[0.3, 0.4], [0.0, 0.50001], [0.6, 0.8], [3.0, 4.0]])
    assert measures.represented(weight) == 0.75 and measures.represented(weight, 1.0) in (0.25, 0.5)
    found = measures.norms(weight)
    expected = torch.tensor([0.5, 0.50001, 1, 5])
    assert found == pytest.approx([expected.mean().item(), expected.std().item(), 0.5, 5], rel=1e-6)


@each(
    "k, exact, rough",
    [(0, 1.148349, 1.333333), (10, 0.288974, 0.289670), (100, 0.0712694, 0.0712770)],
)
def test_the_loss_of_what_is_not_learned(k, exact, rough):
    p = frequencies("power", 1000, 1.5)
    assert measures.unlearned_loss(p, k) == pytest.approx((exact, rough), rel=2e-6)
    assert measures.unlearned_loss(p, torch.arange(1000) < k) == pytest.approx(
        (exact, rough), rel=2e-6
    )
    others = measures.unlearned_loss(p, torch.arange(1000) >= k)  # both together lose everything
    assert others[1] + rough == pytest.approx(4 / 3)


@each("n, m", [(12, 4), (7, 4), (5, 5)])
def test_ambiguity_is_a_spectral_norm(n, m):
    weight = torch.randn(n, m, dtype=torch.float64)
    ideal = torch.diag(torch.cat([torch.ones(m), torch.zeros(n - m)]).double())
    expected = torch.linalg.matrix_norm(weight @ weight.T - ideal, 2).item()
    assert measures.ambiguity(weight) == pytest.approx(expected)
    assert measures.ambiguity(torch.eye(n, m)) == pytest.approx(0, abs=1e-12)


def test_the_bound_needs_two_vectors():
    with pytest.raises(HypvisionError, match="vectors must be an integer of at least 2"):
        measures.welch_bound(1, 3)


def test_norms_keep_double_precision():
    weight = torch.tensor([[1 + 1e-12], [1.0]], dtype=torch.float64)
    found = measures.norms(weight)
    assert found.largest - found.least == pytest.approx(1e-12, rel=1e-3)
    assert measures.norms(weight.bfloat16()).largest == 1


def test_invalid_blocks_and_feature_counts_are_named():
    for block in (0, -1):
        with pytest.raises(
            HypvisionError, match=f"block must be an integer of at least 1, got {block}"
        ):
            measures.overlaps(torch.ones(3, 2), block)
