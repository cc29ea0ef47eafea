"""Everything computes what it computed when the goldens were frozen; see ``cases.py``."""

import numpy as np
import pytest
import torch
from cases import CASES, compare, compute, tolerance
from helpers.cases import each
from summaries import FILE, difference, fill, read, summary, write
from torch import nn


@pytest.fixture(scope="module")
def frozen():
    return read()[0]


@each("name", [name for name, case in CASES.items() if not case.slow])
def test_equal(name, frozen):
    check(name, frozen)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.slow])
def test_slow_ones_are_equal(name, frozen):
    check(name, frozen)


def check(name, frozen):
    apart = compare(name, frozen[name], compute(name))
    wrong = {
        key: f"{value:.1e}"
        for key, value in apart.items()
        if not value <= tolerance(f"{name} {key}")
    }
    assert not wrong


def test_the_file_holds_all_cases_and_is_small(frozen):
    assert set(frozen) == set(CASES)
    assert FILE.stat().st_size < 300_000


def test_differences_are_seen(tmp_path):
    x = torch.linspace(-1, 2, 100).view(10, 10)
    values = dict(
        same=x, shape=x[:5], one=x.clone(), scale=x * 1.001, text="a", count=torch.arange(4)
    )
    values["one"][9, 9] += 0.01
    write(
        {"case": {name: summary(value) for name, value in values.items()}},
        {},
        tmp_path / "file.npz",
    )
    read_again = read(tmp_path / "file.npz")[0]["case"]
    found = {name: difference(value, read_again["same"]) for name, value in read_again.items()}
    assert found["same"] == 0 and found["shape"] == found["text"] == found["count"] == float("inf")
    assert found["one"] > 1e-3 and 2e-4 < found["scale"] < 2e-3
    assert difference(summary(x), summary(x + 1e-7 * torch.randn(10, 10))) < 1e-6
    assert difference("a", "b") == float("inf") and difference("a", "a") == 0
    with pytest.raises(ValueError, match="not finite"):
        summary(torch.tensor([1.0, np.nan]))


def test_weights_depend_on_shapes_and_their_order_alone():
    first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Linear(4, 1))
    second = nn.ModuleDict(
        dict(c=nn.BatchNorm1d(4), a=nn.Linear(4, 1), b=nn.Linear(4, 1), d=nn.Linear(3, 4))
    )
    fill(first), fill(second)
    pairs = [(0, "d"), (2, "a"), (3, "b")]
    assert all(torch.equal(first[i].weight, second[k].weight) for i, k in pairs)
    assert not torch.equal(first[2].weight, first[3].weight) and not torch.equal(
        first[2].bias, first[3].bias
    )
    assert (first[1].running_var > 0).all() and first[1].running_var.std() > 0.05
