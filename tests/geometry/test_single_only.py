"""Devices without float64, such as MPS, in their place a CPU that is told to do without: all is
float32 there."""

from __future__ import annotations

import pytest
import torch
from helpers.cases import each
from test_robustness import DETERMINISTIC, TABLE, check_compiled, check_exported, parts, same
from torch.utils._python_dispatch import TorchDispatchMode

from hypvision.geometry import lorentz, numerics


@pytest.fixture(autouse=True)
def single_only(monkeypatch):
    """CPUs have no float64, as far as the geometry knows."""
    monkeypatch.setattr(numerics, "SINGLE_ONLY", frozenset({"cpu"}))


class NoDouble(TorchDispatchMode):
    """Refuses what MPS refuses: tensors of float64."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
                raise TypeError(f"{function} made a float64 tensor.")
        return out


@each("name", TABLE)
def test_nothing_is_float64(name):
    op = TABLE[name]
    tensors, c = [t.requires_grad_() for t in op.tensors()], torch.tensor(0.7, requires_grad=True)
    with NoDouble():
        outs = [o for o in parts(op.call(*tensors, c=c)) if o.requires_grad]
        for out in outs:
            out.sum().backward(retain_graph=True)
    assert all(o.dtype == torch.float32 for o in outs)


def test_the_check_for_float64_can_fail():
    with NoDouble(), pytest.raises(TypeError, match="float64"):
        torch.ones(2).double()


@each("name", DETERMINISTIC)
def test_results_are_those_of_other_devices(name, monkeypatch):
    """Near the origin."""
    op = DETERMINISTIC[name]
    got = op.call(*op.tensors())
    with monkeypatch.context() as patch:
        patch.setattr(numerics, "SINGLE_ONLY", frozenset())
        same(got, op.call(*op.tensors()), 2e-5, 5e-6)


@each("name", ["dist", "sqdist", "logmap", "exterior_angle"])
def test_near_points_tell_the_curvature_its_gradient(name):
    """Its digits do not go with those of the difference of two times."""
    start = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    start = start / start.norm(dim=-1, keepdim=True)
    end = start + 1e-3 * torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    found = []
    for dtype in (torch.float32, torch.float64):
        c = torch.ones(64, 1, dtype=dtype, requires_grad=True)
        points = [lorentz.from_space(space.to(dtype), 1.0) for space in (start, end)]
        out = getattr(lorentz, name)(*points, c)
        found.append(torch.autograd.grad(out.sum(), c)[0].double())
    assert (found[0] - found[1]).norm() <= 2e-5 * found[1].norm()


CALLS = ["poincare.dist", "poincare.midpoint", "lorentz.centroid"]


@pytest.mark.quick("lorentz.centroid")
@pytest.mark.parametrize("name", CALLS)
def test_compiles_and_exports(name):
    check_compiled(name, "eager")
    check_exported(name)
