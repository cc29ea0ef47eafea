"""The measurement of round-off: forms of other libraries are those functions, and images and tables
appear."""

from __future__ import annotations

import argparse
import math

import pytest
import torch
from bench import numerics as bench

from hypvision.io.errors import HypvisionError


@pytest.fixture(scope="module")
def rows():
    return bench.all_rows()


def find(rows, model, name, kind="generic"):
    (row,) = (row for row in rows if (row.model, row.name, row.kind) == (model, name, kind))
    return row


@pytest.mark.slow
def test_all_libraries_compute_the_same_where_it_is_easy(rows):
    for row in rows:
        if row.kind == "near":
            continue
        for library, error in bench.measure(row, 1.0, 3, torch.float64, seed=0).items():
            if library == bench.NOISE:
                continue
            # the official forms add 1e-8 to denominators, and end angles with an arccos of 1 - 1e-8
            meru = (1e-3 if row.name == "exterior_angle" and row.kind != "generic" else 1e-6, 1e-4)
            limits = meru if library == "MERU's form" else (1e-10, 1e-8)
            assert error.value < limits[0], (row, library, error)
            assert (
                error.gradient < limits[1] or math.isnan(error.gradient) and not row.has_gradient()
            )


def test_every_operation_has_all_kinds_of_pairs_and_a_peer(rows):
    for model, names in bench.PAIRS.items():
        for name in names:
            for kind in ("generic", "near", "ray", "antipodal"):
                assert len(find(rows, model, name, kind).functions) > 1
    wanted = {"centroid", "midpoint", "transp0", "hyperplane_logits"}
    assert wanted <= {row.name for row in rows}


def test_ours_is_right_where_others_are_not(rows):
    errors = bench.measure(find(rows, "lorentz", "dist", "near"), 6.0, 16, torch.float32, seed=0)
    assert (
        errors["hypvision"].value
        < 1e-6
        < 1e-2
        < min(errors["geoopt"].value, errors["MERU's form"].value)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_run_under_autocast(rows, dtype, monkeypatch):
    seen = []
    row = find(rows, "ball", "dist")
    functions = {
        name: lambda x, y, f=f: seen.append(torch.is_autocast_enabled("cpu")) or f(x, y)
        for name, f in row.functions.items()
    }
    errors = bench.measure(row._replace(functions=functions), 2.0, 16, dtype, seed=0)
    assert seen == [True] * 3 and errors["hypvision"].value < torch.finfo(dtype).eps
    assert find(rows, "ball", "dist", "near").radii(dtype) == []


def test_errors_of_libraries_and_values_that_are_not_finite():
    nan, worst = math.nan, bench.Error(math.inf, math.nan)
    found = {
        ("ball", "dist", "ray"): {
            "hypvision": {1.0: bench.Error(1e-8, 2e-7)},
            "HypLL": {1.0: bench.Error(nan, nan)},
        }
    }
    found["lorentz", "dist", "generic"] = {
        "hypvision": {1.0: bench.Error(0.0, 0.0)},
        "geoopt": {1.0: worst},
    }
    text = bench.summary(found)
    assert "| dist | 1e-08 / 2e-07 |  |" in text
    assert "| dist | 0e+00 / 0e+00 | not finite /  |" in text
    assert "one ray | hypvision | " in bench.table(found, "value")
    assert "HypLL" not in bench.table(found, "value")


@pytest.mark.slow
def test_the_command_writes_tables_and_images(rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "RADII", {"lorentz": (1.0, 6.0), "ball": (1.0, 6.0)})
    monkeypatch.setattr(
        bench, "all_rows", lambda: [row for row in rows if row.name in ("dist", "expmap0")]
    )
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    page = tmp_path / "numerics.md"
    page.write_text("# Numerics\n")
    bench.run(
        parser.parse_args(
            ["--dim", "3", "--seeds", "1", "--dtypes", "float32", "float16", "--write", str(page)]
        )
    )
    text = page.read_text()
    assert (
        text.count("| dist | ") == 4 + 2 * 8
    )  # the summaries of both dtypes, and the tables of float32
    assert "| dist | opposite points | hypvision |" in text
    assert "| expmap0 | random directions | hypvision |" in text
    assert "### float16 arguments under autocast" in text and "--dtypes float32 float16`" in text
    for name in ("lorentz_float32", "ball_float32", "lorentz_float16", "ball_float16"):
        assert f"(images/numerics/{name}.png)" in text
        assert (
            (tmp_path / "images" / "numerics" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        )
    with pytest.raises(HypvisionError, match="--seeds is too small"):
        bench.run(parser.parse_args(["--seeds", "0"]))
