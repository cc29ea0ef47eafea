"""The containment of maps made by hand."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))
from himapper_containment import containment

sys.path.pop(0)


def test_containment_of_nested_and_of_unrelated_maps():
    # four leaves, each a quarter of a row of eight pixels; their parents the halves
    leaves = torch.zeros(4, 1, 8)
    for i in range(4):
        leaves[i, 0, 2 * i : 2 * i + 2] = 1
    halves = torch.stack([leaves[:2].sum(0), leaves[2:].sum(0)])
    nested = containment([leaves, halves], mass=1.0)
    assert (nested.score, nested.chance, nested.wins) == (1.0, 0.0, 1.0)
    swapped = containment([leaves, halves.flip(0)], mass=1.0)
    assert (swapped.score, swapped.chance, swapped.wins) == (0.0, 1.0, 0.0)
    crossed = containment([leaves[[0, 2, 1, 3]], halves], mass=1.0)
    assert (crossed.score, crossed.chance, crossed.wins) == (0.5, 0.5, 0.5)

    generator = torch.Generator().manual_seed(0)
    noise = [torch.rand(50, n, 8, 8, generator=generator) for n in (16, 8, 4)]
    found = containment(noise)
    assert found.score == pytest.approx(found.chance, abs=0.01)
    assert found.wins == pytest.approx(0.5, abs=0.05)
    with pytest.raises(ValueError, match="at least two levels"):
        containment(noise[:1])


def test_regions_hold_half_of_the_mass_with_the_fewest_pixels():
    parents = torch.tensor([[[0.45, 0.35, 0.1, 0.1]], [[0.1, 0.1, 0.2, 0.6]]])
    children = torch.tensor(
        [[[1.0, 0, 0, 0]], [[0, 1.0, 0, 0]], [[0, 0, 0.5, 0.5]], [[0, 0, 0, 1.0]]]
    )
    found = containment([children, parents])  # regions: pixels 0 and 1, and pixel 3
    assert found.score == pytest.approx((1 + 1 + 0.5 + 1) / 4) and found.chance == 0
