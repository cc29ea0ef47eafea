"""The formulas in place of float64 operations that onnxruntime lacks."""

import mpmath
import pytest
import torch
from helpers.cases import each
from helpers.exported import as_exported
from test_robustness import DETERMINISTIC, same

from hypvision.geometry import exportable

SIZES = [0.0, 1e-20, 1e-9, 1e-3, 0.019, 0.0201, 0.099, 0.101, 0.5, 0.99, 1.0, 1.5, 7.0, 39.0]
LINE = [-size for size in SIZES] + SIZES
INSIDE = [x for x in LINE if abs(x) < 1]
ABOVE = [1.0, 1 + 2e-16, 1 + 1e-9, 1.0001, 1.4, 3.0, 1e8]
NUMBERS = {
    "sinh": LINE, "cosh": LINE, "asinh": [*LINE, 1e18, -1e18], "acosh": ABOVE, "atanh": INSIDE
}  # fmt: skip


@each("name", NUMBERS)
def test_functions_of_a_number(name):
    x = torch.tensor(NUMBERS[name], dtype=torch.float64)
    with as_exported():
        found = getattr(exportable, name)(x)
    with mpmath.workdps(40):
        expected = [float(getattr(mpmath, name)(number)) for number in NUMBERS[name]]
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=3e-14, atol=0
    )


def test_the_angle_of_a_vector():
    numbers = torch.tensor([0.0, 1e-200, 1e-20, 1e-5, 0.3, 1.0, 7.0, 1e30], dtype=torch.float64)
    numbers = torch.cat([numbers, -numbers[1:]])
    side, along = torch.meshgrid(numbers, numbers, indexing="ij")
    with as_exported():
        found = exportable.atan2(side, along)
    torch.testing.assert_close(found, torch.atan2(side, along), rtol=1e-15, atol=1e-40)


@each("name", DETERMINISTIC)
def test_every_operation_can_be_exported_to_onnx(name):
    op = DETERMINISTIC[name]
    with as_exported():
        found = op.call(*op.tensors())
    same(found, op.call(*op.tensors()))


def test_eager_values_are_those_of_pytorch():
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert exportable.sinh(x).equal(x.sinh()) and exportable.asinh(x).equal(x.asinh())


def test_what_is_lacking_is_noticed():
    with as_exported(), pytest.raises(TypeError, match="sinh"):
        torch.sinh(torch.ones(2).double())
