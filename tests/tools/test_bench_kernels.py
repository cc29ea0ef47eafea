"""The budgets of kernels hold: a count is exact on every machine, so it may be tested where a time may not."""

import pytest
import torch
from bench import kernels


def over_budget(model: str) -> dict[str, tuple[int, int]]:
    """Operations that launch more kernels than they may, or make the host wait."""
    found = {}
    for name, budget in kernels.BUDGETS[model].items():
        got = kernels.count(kernels.operation(model, name))
        if got.kernels > budget or got.waits:
            found[name] = (got.kernels, budget)
    return found


@pytest.mark.parametrize("model", kernels.BUDGETS)
def test_operations_keep_to_their_budgets(model):
    assert over_budget(model) == {}


def test_a_budget_can_be_missed(monkeypatch):
    monkeypatch.setitem(kernels.BUDGETS["lorentz"], "dist0", 3)
    assert "dist0" in over_budget("lorentz")


def test_kernels_bytes_and_waits_are_counted():
    x = kernels.leaf(10, 4)

    def step():
        y = (x * x).sum()  # two kernels; views and empty memory launch none
        torch.empty_like(x)
        x.view(-1)
        return y.item()

    got = kernels.count(step)
    assert (got.kernels, got.waits) == (2, 1)
    assert got.bytes == 4 * (3 * 40 + 40 + 1)
    # the backward: two products and their sum
    assert kernels.count(kernels.differentiated(lambda x: (x * x).sum(), x)).kernels == 2 + 3


@pytest.mark.parametrize("name", kernels.NETWORK_BUDGETS)
def test_networks_keep_to_their_budgets(name):
    size, _ = kernels.NETWORKS[name]
    got = kernels.count(kernels.network(name, size, batch=2))
    assert got.kernels <= kernels.NETWORK_BUDGETS[name] and got.waits == 0


@pytest.mark.slow
def test_no_network_makes_the_host_wait():
    for name, (size, _) in kernels.NETWORKS.items():
        assert kernels.count(kernels.network(name, size, batch=2)).waits == 0, name


@pytest.mark.slow
def test_the_table_has_a_row_for_everything():
    lines = kernels.table()
    expected = len(kernels.LORENTZ) + len(kernels.BALL) + len(kernels.LAYERS) + len(kernels.NETWORKS) + 2
    assert len(lines) == 2 + expected and all(line.count("|") == lines[0].count("|") for line in lines)
