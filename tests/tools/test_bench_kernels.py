"""The budgets of kernels hold: a count is exact on every machine, so it may be tested where a time
may not."""

import pytest
import torch
from bench import kernel_cases, kernels
from helpers.cases import each


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


@each("name", kernels.STEPS)
def test_steps_of_optimisers_keep_to_their_budgets(name):
    step, _ = kernels.optimizer_step(name)
    got = kernels.count(step)
    assert got.kernels <= kernels.STEPS[name] and not got.waits


def test_a_budget_can_be_missed(monkeypatch):
    monkeypatch.setitem(kernels.BUDGETS["lorentz"], "dist0", 3)
    assert "dist0" in over_budget("lorentz")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in kernel_cases.CASES.items() if case.most])
def test_steps_keep_to_their_budgets(name):
    case = kernel_cases.CASES[name]
    ours, _ = case.counts()
    assert ours.kernels <= case.most and ours.waits == 0


def test_what_a_step_adds_is_counted():
    x = kernels.leaf(4, 8)
    case = kernel_cases.Case(lambda: lambda: x + x * x, lambda: lambda: x + x, added=True)
    ours, twin = case.counts()
    assert (ours.kernels, twin.kernels) == (1, 1)


def test_dropout_and_attention_are_one_kernel_each():
    x = kernels.leaf(2, 4, 16, 8)

    def attention(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    def dropout(x):
        return torch.nn.functional.dropout(x, 0.5)

    assert kernels.count(lambda: attention(x)).kernels == 1
    assert kernels.count(lambda: dropout(x)).kernels == 1
    odd = kernels.leaf(2, 4, 16, 5)  # a GPU has no fused attention for it
    assert kernels.count(lambda: attention(odd)).kernels > 1


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


@pytest.mark.parametrize("triton", [True, False])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in kernels.NETWORKS]
)
def test_networks_keep_to_their_budgets_and_never_wait(name, triton):
    if triton:
        pytest.importorskip("triton")
    size, _, budget = kernels.NETWORKS[name]
    got = kernels.count(kernels.network(name, size, batch=2), triton)
    assert got.waits == 0
    assert budget is None or not triton or got.kernels <= budget


def test_launches_of_triton_count():
    pytest.importorskip("triton")
    step, twin = kernels.LAYERS["LorentzBatchNorm2d, 64 x 64 x 32 x 32"]
    fused, plain = kernels.count(step()), kernels.count(step(), triton=False)
    # those of the layer, and those of its learned curvature, which the layer does not make less
    assert 15 <= fused.kernels <= 25 and fused.bytes < plain.bytes / 3
    assert fused.waits == plain.waits == 0 and plain.kernels <= 400


@pytest.mark.slow
def test_the_table_has_a_row_for_everything():
    lines = kernels.table()
    expected = (
        len(kernels.LORENTZ) + len(kernels.BALL) + len(kernels.LAYERS) + len(kernels.NETWORKS)
    )
    expected += (
        3  # those that Triton changes, once more without it: the batch norm and two networks
    )
    expected += len(kernels.STEPS)
    expected += len(kernel_cases.CASES)
    assert len(lines) == 2 + expected
    assert all(line.count("|") == lines[0].count("|") for line in lines)
