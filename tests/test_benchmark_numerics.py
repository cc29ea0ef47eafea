"""The measurement of round-off: forms of other libraries are those functions, and pictures and tables appear."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "bench"))
import numerics as bench


@pytest.fixture(scope="module")
def rows():
    return bench._rows()


def test_all_libraries_compute_the_same_where_it_is_easy(rows):
    for row in rows:
        if row.kind == "near":
            continue
        errors = bench.measure(row, 1.0, 3, torch.float64, seed=0)
        for library, error in errors.items():
            # the official forms add 1e-8 to denominators
            limit = 1e-6 if library == "MERU's form" else 1e-10
            assert error.value < limit and error.gradient < 100 * limit, (row, library, error)


def test_ours_is_right_where_others_are_not(rows):
    (near,) = (row for row in rows if row.model == "lorentz" and row.title == "dist, near points")
    errors = bench.measure(near, 6.0, 16, torch.float32, seed=0)
    assert errors["hypvision"].value < 1e-6 < 1e-2 < min(errors["geoopt"].value, errors["MERU's form"].value)


def test_tables_and_pictures(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "RADII", {"lorentz": (1.0, 6.0), "ball": (1.0, 6.0)})
    few = [row for row in rows if row.title in ("dist0", "expmap0")]
    with tqdm(disable=True) as bar:
        found = bench.curves(few, 3, torch.float32, 1, bar)
    text = bench.table(found, "value")
    assert "| dist0 | hypvision |" in text and "| expmap0 | hypvision |" in text and "Poincare ball, radius" in text
    bench.plot(found, "float32", "gradient", tmp_path / "errors.png")
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
