"""Operations that ONNX lacks are replaced one by one, and the program computes the same."""

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, default_decompositions

from hypvision.zoo.decompositions import decompose


class Network(nn.Module):
    """Operations of one result, of several, of none (a check), on a free size, and one that writes
    inside."""

    def __init__(self):
        super().__init__()
        self.pool, self.norm = nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3)

    def forward(self, x):
        left, right = self.norm(x).tensor_split(2, dim=-1)
        x = torch.cat([right.square(), left.to(torch.float64).float()], -1)
        pooled = self.pool(x.contiguous(memory_format=torch.channels_last)).flatten(1)
        return pooled, x.movedim(1, -1).to(torch.float64)


def exported(model, x):
    return torch.export.export(
        model.eval(), (x,), dynamic_shapes=({0: Dim("batch"), 2: Dim("rows", min=2)},)
    )


def operations(program):
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.slow
def test_each_operation_is_replaced_and_the_results_stay(monkeypatch):
    model, x = Network(), torch.randn(2, 3, 6, 8)
    program = exported(model, x)
    table = default_decompositions()
    monkeypatch.setattr(
        ExportedProgram, "run_decompositions", None
    )  # tracing it as a whole would be slow
    found = operations(decompose(program, dict(table.items())))
    assert (
        not {"aten.square.default", "aten.to.dtype", "aten.batch_norm.default", "aten.movedim.int"}
        & found
    )
    assert not any("_assert" in name or "as_strided_" in name for name in found)
    y = torch.randn(5, 3, 9, 8)
    for got, expected in zip(program.module()(y), model(y), strict=True):
        torch.testing.assert_close(got, expected)


def test_what_the_table_lacks_stays():
    program = exported(Network(), torch.randn(2, 3, 6, 8))
    kept = {
        op: rule
        for op, rule in default_decompositions().items()
        if op is not torch.ops.aten.square.default
    }
    found = operations(decompose(program, kept))
    assert "aten.square.default" in found and "aten.adaptive_avg_pool2d.default" not in found


@pytest.mark.quick("inplace0")
@pytest.mark.parametrize("inplace", [nn.ReLU(inplace=True), nn.Hardtanh(inplace=True)])
def test_a_program_that_writes_is_traced_as_a_whole(inplace):
    model, x = nn.Sequential(nn.Conv2d(3, 3, 1), inplace), torch.randn(2, 3, 6, 8)
    program = decompose(exported(model, x), dict(default_decompositions().items()))
    assert not any(name.endswith("_.default") for name in operations(program))
    torch.testing.assert_close(program.module()(x), model(x))


class Hyperbolic(nn.Module):
    """The functions that onnxruntime has in float32 only."""

    def forward(self, x):
        at = torch.acosh(1 + x.abs())
        return torch.sinh(x), torch.cosh(x), torch.asinh(x), torch.atanh(torch.tanh(x)), at


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_hyperbolic_functions_of_doubles_are_replaced(dtype):
    program = torch.export.export(
        Hyperbolic(), (torch.ones(4, dtype=dtype),), dynamic_shapes=({0: Dim("batch")},)
    )
    table = {op: rule for op, rule in default_decompositions().items() if "sinh" not in str(op)}
    names = {f"aten.{name}.default" for name in ("sinh", "cosh", "asinh", "acosh", "atanh")}
    left = names & operations(decompose(program, table))
    assert len(left) == (0 if dtype == torch.float64 else 5)
    sizes = torch.cat([torch.zeros(1), torch.logspace(-30, 1, 500)]).to(dtype)
    x = torch.cat([-sizes, sizes])
    for got, expected in zip(program.module()(x), Hyperbolic()(x), strict=True):
        near = expected.isfinite() & (expected.abs() < 8)  # beyond, the hyperbolic tangent is 1
        torch.testing.assert_close(got[near], expected[near], rtol=1e-8, atol=0)
