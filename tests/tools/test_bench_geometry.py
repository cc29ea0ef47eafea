"""The benchmark of the geometry: every case runs, and ours are what they are compared as."""

from __future__ import annotations

import pytest
import torch
from bench import geometry as bench
from tqdm import tqdm


@pytest.mark.slow
def test_table(tmp_path):
    text = bench.case_table(["norm"], repeats=1, limit=0.5, device="cpu")
    lines = text.splitlines()
    assert lines[2].startswith("| batch norm in training") and " ms |" in lines[2]
    assert "hypvision Lorentz" in lines[3] and "(target 2x)" in lines[3]


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("name", bench.CASES)
def test_every_case(name):
    with tqdm(disable=True) as bar:
        results = bench.measure(bench.CASES[name], 1, 0.1, "cpu", bar)
    assert next(iter(results)) == bench.EUCLIDEAN
    assert set(bench.CASES[name].targets) <= set(results)
    for found in results.values():
        assert found.both > 0 and found.peak >= 0 and (found.forward is None) == (name == "adam")


def test_distances_are_the_same():
    runs = bench.distances("cpu")
    exact = runs["hypvision ball"].function()
    if "HypLL ball" in runs:
        torch.testing.assert_close(runs["HypLL ball"].function()[0], exact, rtol=1e-3, atol=1e-3)
