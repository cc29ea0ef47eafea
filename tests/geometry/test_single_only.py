"""Devices without float64, such as MPS, in their place a CPU that is told to do without: compensated sums."""

from __future__ import annotations

from fractions import Fraction

import pytest
import test_precision
import test_robustness
import torch
from helpers.cases import each
from references.geometry_cases import OPERATIONS
from test_robustness import DETERMINISTIC, ROWS_ONLY, TABLE, check_compiled, check_exported, parts, same
from torch.utils._python_dispatch import TorchDispatchMode

from hypvision.geometry import numerics, poincare


@pytest.fixture(autouse=True)
def single_only(monkeypatch):
    """CPUs have no float64, as far as the geometry knows."""
    monkeypatch.setattr(numerics, "SINGLE_ONLY", frozenset({"cpu"}))


def exact_square(row: list[float]) -> Fraction:
    return sum((Fraction(v) ** 2 for v in row), Fraction(0))


@pytest.mark.parametrize("n", [0, 1, 2, 63, 512])
def test_compensated_squared_norms_have_twice_the_digits(n):
    torch.manual_seed(n)
    x = torch.cat([torch.randn(6, n), 10.0 ** (6 * torch.rand(6, n) - 3), torch.full((1, n), 0.1)])
    total, rest = numerics.compensated_square_norm(x)
    assert total.shape == rest.shape == (13, 1) and total.dtype == rest.dtype == torch.float32
    worst_plain = 0.0
    for row, a, b in zip(x.tolist(), total[:, 0].tolist(), rest[:, 0].tolist()):
        exact = exact_square(row)
        assert abs(Fraction(a) + Fraction(b) - exact) <= exact * Fraction(2) ** -44
        # the first number alone is the exact sum, rounded
        assert abs(Fraction(a) - exact) <= exact * Fraction(2) ** -23
        worst_plain = max(worst_plain, float(abs(Fraction(sum(v * v for v in row)) - exact)))
    if n > 1:
        assert rest.abs().max() > 0


def test_compensated_squared_norms_in_double():
    x = torch.randn(4, 33, dtype=torch.float64)
    total, rest = numerics.compensated_square_norm(x)
    for row, a, b in zip(x.tolist(), total[:, 0].tolist(), rest[:, 0].tolist()):
        assert abs(Fraction(a) + Fraction(b) - exact_square(row)) <= exact_square(row) * Fraction(2) ** -100


@pytest.mark.parametrize("n", [2, 512])
@pytest.mark.parametrize("c", [0.01, 1.0, 10.0])
def test_the_gap_to_the_rim_is_exact(n, c):
    """Relative to the gap itself, up to one spacing from the boundary, for curvatures that float32 cannot hold."""
    torch.manual_seed(n)
    heading = torch.nn.functional.normalize(torch.randn(40, n, dtype=torch.float64), dim=-1)
    gaps = torch.logspace(-6.5, -1e-3, 40, dtype=torch.float64)[:, None]
    x = (heading * (1 - gaps) / c**0.5).float()
    for curvature in (c, torch.tensor(c)):
        got, q = numerics.gap_to_one(x, curvature)
        assert got.dtype == q.dtype == torch.float32
        value = Fraction(c if curvature is c else curvature.item())
        worst = plain = 0.0
        for row, gap in zip(x.tolist(), got[:, 0].tolist()):
            exact = 1 - value * exact_square(row)
            worst = max(worst, float(abs(Fraction(gap) - exact) / abs(exact)))
            plain = max(plain, float(abs(Fraction(1 - float(c * sum(torch.tensor(row) ** 2))) - exact) / abs(exact)))
        assert worst < 2e-7 < 1e-3 < plain


def test_the_gap_has_the_right_gradient():
    x, c = (0.5 * torch.rand(3, 4, dtype=torch.float64)).requires_grad_(), torch.tensor(0.7, dtype=torch.float64)

    def single(x, c):
        """The same arithmetic, in the dtype of the arguments."""
        q = numerics.square_norm(x) * c
        return 1 - q, q

    arguments = x.float().detach().requires_grad_(), c.float().requires_grad_()
    got, expected = numerics.gap_to_one(*arguments), single(x, c.requires_grad_())
    weights = torch.tensor([[1.0], [2.0], [3.0]]), torch.ones(3, 1)
    gradients = torch.autograd.grad(got, arguments, weights)
    references = torch.autograd.grad(expected, (x, c), [w.double() for w in weights])
    for a, b in zip(gradients, references):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-6)


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
    op = DETERMINISTIC[name]
    got = op.call(*op.tensors())
    with monkeypatch.context() as patch:
        patch.setattr(numerics, "SINGLE_ONLY", frozenset())
        same(got, op.call(*op.tensors()), 1e-5, 2e-6)


@each("name", ROWS_ONLY)
def test_every_finite_input_has_a_finite_result_and_finite_gradients(name):
    for c in (0.01, 10.0):
        test_robustness.check_finite_gradients(ROWS_ONLY[name], c, learned=False)


@pytest.mark.parametrize("name", OPERATIONS["poincare"])
def test_the_ball_is_as_exact_as_with_float64(name, monkeypatch):
    wider = {
        # the gradient's parts for points on one ray cancel, and are float32 here
        "mobius_sub": test_precision.Bound(5e-7, 1e-5, 0, 2e-3),
        # the way to the hyperboloid and back is float32 too
        "midpoint": test_precision.Bound(1e-6, 1e-6, 0, 1.0),
    }
    if name in wider:
        monkeypatch.setitem(test_precision.BOUNDS, (torch.float32, "poincare", name), wider[name])
    test_precision.check("poincare", name, torch.float32, [(1.0, 3), (0.1, 16), (10.0, 2), (0.3, 5), (0.1, 128)])


def test_a_plain_sum_would_not_do(monkeypatch):
    def plain(x, c):
        q = numerics.square_norm(x) * c
        return 1 - q, q

    monkeypatch.setattr(poincare, "gap_to_one", plain)
    with pytest.raises(AssertionError, match="radius 6"):
        test_the_ball_is_as_exact_as_with_float64("dist", monkeypatch)


CALLS = ["poincare.dist", "poincare.midpoint", "lorentz.centroid"]


@pytest.mark.quick("lorentz.centroid")
@pytest.mark.parametrize("name", CALLS)
def test_compiles_and_exports(name):
    check_compiled(name, "eager")
    check_exported(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_compiles_with_inductor(name):
    check_compiled(name, "inductor")


@pytest.mark.slow
def test_compiled_sums_are_as_exact():
    """The compiler must not reassociate."""
    x = torch.nn.functional.normalize(torch.randn(50, 37, dtype=torch.float64), dim=-1)
    x = (x * (1 - torch.logspace(-6.5, -2, 50, dtype=torch.float64)[:, None])).float()
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(numerics.gap_to_one, fullgraph=True, dynamic=dynamic)
        torch.testing.assert_close(compiled(x, 1.0)[0], numerics.gap_to_one(x, 1.0)[0], rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", CALLS)
def test_vmap_is_a_loop(name):
    op = TABLE[name]
    tensors, shared = op.tensors(), op.shared()
    in_dims = tuple(None if fixed else 0 for fixed in shared)
    same(torch.func.vmap(op.call, in_dims)(*tensors), op.call(*tensors))
    slopes = torch.func.vmap(torch.func.grad(lambda *t: parts(op.call(*t))[0].sum()), in_dims)(*tensors)
    leaf = tensors[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(parts(op.call(leaf, *tensors[1:]))[0].sum(), leaf)
    torch.testing.assert_close(slopes, expected, rtol=1e-4, atol=1e-5)
