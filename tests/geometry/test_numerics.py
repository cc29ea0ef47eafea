"""Scalar functions against mpmath with 60 digits: values, gradients, and the points that are special."""

import math
from fractions import Fraction
from types import SimpleNamespace

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypvision.geometry import lorentz, numerics, poincare

mpmath.mp.dps = 60

ROOTS = [1e-30, 1e-9, 1e-3, 9.9e-3, 0.0199, 0.099, 0.101, 1.0, 7.5, 1e3]
# Name, exact function, points of its domain (the series end at 0.001 to 0.1)
SCALARS = [
    ("safe_sqrt", mpmath.sqrt, [1e-300, 1e-20, 1e-3, 1.0, 7.5, 1e12]),
    ("asinh", mpmath.asinh, [-1e3, -0.1, 1e-300, 1e-20, 1e-9, 1e-3, 0.5, 1.0, 30.0, 1e8, 1e100]),
    ("sinhc", lambda z: mpmath.sinh(z) / z, [-40.0, -1.0, -1e-3, 1e-12, 1e-4, 9.9e-3, 0.0199, 0.3, 1.0, 10.0, 80.0]),
    ("tanhc", lambda z: mpmath.tanh(z) / z, [-40.0, -1.0, -1e-3, 1e-12, 1e-4, 9.9e-3, 0.0199, 0.3, 1.0, 10.0, 300.0]),
    ("sinhc_sqrt", lambda q: mpmath.sinh(mpmath.sqrt(q)) / mpmath.sqrt(q), ROOTS),
    ("asinhc_sqrt", lambda q: mpmath.asinh(mpmath.sqrt(q)) / mpmath.sqrt(q), [*ROOTS, 1e10, 1e30]),
    ("log_sinhc_sqrt", lambda q: mpmath.log(mpmath.sinh(mpmath.sqrt(q)) / mpmath.sqrt(q)), [*ROOTS, 1e5]),
    ("distance_from_square", lambda q: mpmath.acosh(1 + q / 2), [*ROOTS, 1e10, 1e30]),
    ("_tanhc_sqrt", lambda q: mpmath.tanh(mpmath.sqrt(q)) / mpmath.sqrt(q), ROOTS),
]
ATANHC = [1e-30, 1e-9, 1e-3, 2.9e-3, 3.1e-3, 9.9e-3, 0.0199, 0.1, 0.9]
NAMES = [row[0] for row in SCALARS]


def function_of(name):
    return getattr(poincare if name.startswith("_") else numerics, name)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(("name", "exact", "points"), SCALARS, ids=NAMES)
def test_values_and_gradients_in_double(name, exact, points, compiled, monkeypatch):
    """The forms for compilers, too, which second derivatives and ``torch.func`` take."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiled)
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    value = function_of(name)(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    for point, got, slope in zip(points, value.tolist(), gradient.tolist()):
        at = mpmath.mpf(point)
        assert got == pytest.approx(float(exact(at)), rel=3e-15), point
        with mpmath.workdps(400):  # a difference quotient, with digits to spare
            at = mpmath.mpf(point)
            step = abs(at) * mpmath.mpf(10) ** -60
            expected = float((exact(at + step) - exact(at - step)) / (2 * step))
        # below 0.01 the last term of the series has a relative error of 1e-11 in the slope
        assert slope == pytest.approx(expected, rel=1e-10), point


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_inverse_hyperbolic_tangents(compiled, monkeypatch):
    """``atanh(sqrt(q)) / sqrt(q)``, defined below 1 alone."""
    forms = poincare._atanhc_values, poincare._atanhc_back, poincare._plain_atanhc_sqrt
    monkeypatch.setattr(poincare, "_atanhc_sqrt", lambda q: numerics.scalar(q, *forms), raising=False)
    test_values_and_gradients_in_double(
        "_atanhc_sqrt", lambda q: mpmath.atanh(mpmath.sqrt(q)) / mpmath.sqrt(q), ATANHC, compiled, monkeypatch
    )


@pytest.mark.parametrize(("name", "exact", "points"), SCALARS, ids=NAMES)
def test_values_in_single(name, exact, points):
    x = torch.tensor([point for point in points if 1e-30 < abs(point) < 1e15], dtype=torch.float32)
    for point, got in zip(x.tolist(), function_of(name)(x).tolist()):
        assert got == pytest.approx(float(exact(mpmath.mpf(point))), rel=1e-6), point


@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    x = torch.tensor([2e-3, 0.2, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function_of(name), (x,))
    x = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(function_of(name), (x,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [
        ("safe_sqrt", 0, 0),
        ("asinh", 0, 1),
        ("sinhc", 1, 0),
        ("tanhc", 1, 0),
        ("sinhc_sqrt", 1, 1 / 6),
        ("asinhc_sqrt", 1, -1 / 6),
        ("log_sinhc_sqrt", 0, 1 / 6),
        ("distance_from_square", 0, 0),
        ("_tanhc_sqrt", 1, -1 / 3),
    ],
)
def test_zero(name, value, slope, dtype):
    x = torch.zeros(3, dtype=dtype, requires_grad=True)
    out = function_of(name)(x)
    assert out.tolist() == [value] * 3
    gradients = [torch.autograd.grad(function_of(name)(x).sum(), x, create_graph=graph)[0] for graph in (False, True)]
    gradients.append(torch.func.grad(lambda x: function_of(name)(x).sum())(x.detach()))  # in plain operations
    for gradient in gradients:
        assert gradient.tolist() == pytest.approx([slope] * 3, rel=torch.finfo(dtype).eps)


def test_safe_sqrt_of_negative_numbers_is_zero_and_has_no_gradient():
    x = torch.tensor([-1.0, -1e-30, float("-inf")], requires_grad=True)
    out = numerics.safe_sqrt(x)
    out.sum().backward()
    assert out.tolist() == [0, 0, 0] and x.grad.tolist() == [0, 0, 0]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=6), st.floats(0.125, 8))
def test_clip_norm_keeps_the_direction_and_bounds_the_length(vector, radius):
    x = torch.tensor(vector, dtype=torch.float64, requires_grad=True)
    out = numerics.clip_norm(x, radius)
    norm = x.norm().item()
    expected = x if norm <= radius else x / norm * radius
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.isfinite(gradient).all()


def test_clip_norm_gradients():
    x = torch.tensor([[3.0, 4.0, 0.1], [0.3, 0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(numerics.clip_norm, (x,))
    assert torch.autograd.gradgradcheck(numerics.clip_norm, (x,))
    # Outside the ball a step along the vector changes nothing.
    (gradient,) = torch.autograd.grad(numerics.clip_norm(x), x, grad_outputs=x.detach())
    assert gradient[0].abs().max() < 1e-12


@pytest.mark.parametrize("name", [*NAMES[:-1], "clip_norm", "square_norm"])
def test_compiles(name):
    function = function_of(name)
    x = torch.tensor([[0.0, 1e-3, 0.5, 4.0]])
    torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="eager")(x), function(x))


def test_squash_factor():
    """``D tanh(atanh(0.99) r / (s D)) / r``, with its limit at 0; limits may be tensors."""
    square = torch.tensor([0.0, 1e-12, 0.3, 25.0, 1e8], dtype=torch.float64)
    got = numerics.squash_factor(square, 3.0, 1.5)
    for q, value in zip(square.tolist(), got.tolist()):
        slope, r = mpmath.atanh("0.99") / 1.5, mpmath.sqrt(q)
        expected = 3 * mpmath.tanh(slope * r / 3) / r if q else slope
        assert value == pytest.approx(float(expected), rel=1e-14)
    assert torch.equal(numerics.squash_factor(square, torch.tensor(3.0, dtype=torch.float64), 1.5), got)


def test_sums_over_the_last_dimension():
    """In float32 against exact sums; values and both gradients, with broadcasting."""
    torch.manual_seed(0)
    x, y = torch.randn(2, 1, 7, requires_grad=True), torch.randn(3, 7, requires_grad=True)
    exact_x, exact_y = (t.detach().double().requires_grad_() for t in (x, y))
    weight = torch.randn(2, 3, 1, dtype=torch.float64)
    got, expected = numerics.dot(x, y), (exact_x * exact_y).sum(-1, keepdim=True)
    torch.testing.assert_close(got, expected.float())
    gradients = torch.autograd.grad(got, (x, y), weight.float())
    for a, b in zip(gradients, torch.autograd.grad(expected, (exact_x, exact_y), weight)):
        torch.testing.assert_close(a, b.float())
    for function, tolerance in ((numerics.square_norm, 3e-7), (numerics.wide_square_norm, 1e-15)):
        got = function(y)
        expected = torch.tensor([[float(sum(Fraction(v) ** 2 for v in row))] for row in y.tolist()]).double()
        assert got.shape == (3, 1) and got.dtype == (torch.float64 if tolerance < 1e-9 else torch.float32)
        torch.testing.assert_close(
            got.double(), exact_y.detach().square().sum(-1, keepdim=True), rtol=tolerance, atol=0
        )
        torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=0)
        (gradient,) = torch.autograd.grad(got.sum(), y)
        assert torch.equal(gradient, 2 * y)


def test_numbers_that_are_too_large_are_cut():
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([1.0, -2.0, math.inf, -math.inf], requires_grad=True)
    out = numerics.saturate(x)
    assert out.tolist() == [1.0, -2.0, largest, -largest]
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert gradient.tolist() == [1, 1, 0, 0]
    wide = torch.tensor([1e300, -1e300, 5.0], dtype=torch.float64)
    assert numerics.saturate(wide, torch.float32).tolist() == [largest, -largest, 5.0]
    x = torch.ones(3, requires_grad=True)
    for last, limit in ((False, 1e18), (True, largest)):
        out = numerics.saturate_gradient(x, last=last)
        assert torch.equal(out, x)
        (gradient,) = torch.autograd.grad(out, x, torch.tensor([3.0, 1e30, -math.inf]))
        assert gradient.tolist() == pytest.approx([3.0, 1e30 if last else limit, -limit])


def test_devices_without_float64_are_known():
    here, there = torch.ones(2), SimpleNamespace(device=torch.device("mps"))
    assert numerics.has_float64(here) and not numerics.has_float64(there)
    assert numerics.widen(here).dtype == torch.float64 and numerics.widen(0.5) == 0.5


def test_sums_of_many_rows_are_those_of_each():
    """They are taken in blocks, of which the last is shorter."""
    x = torch.randn(1400, 100, generator=torch.Generator().manual_seed(0))
    expected = x.double().square().sum(-1, keepdim=True)
    torch.testing.assert_close(numerics.wide_square_norm(x), expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(
        numerics.wide_square_norm(x.view(14, 100, 100)).view(1400, 1), expected, rtol=1e-14, atol=0
    )


def test_a_curvature_learned_in_single_does_not_round_double():
    """Neither its root nor its inverse: results are those of the same curvature in float64."""
    c = torch.tensor(0.3, requires_grad=True)
    u = torch.tensor([[0.3, -1.2, 0.4]], dtype=torch.float64)
    for module in (lorentz, poincare):
        x = module.expmap0(u, c)
        torch.testing.assert_close(x, module.expmap0(u, c.detach().double()), rtol=1e-15, atol=0)
        torch.testing.assert_close(
            module.dist0(x=x, c=c), u.norm(dim=-1) * (2 if module is poincare else 1), rtol=1e-9, atol=0
        )
        (slope,) = torch.autograd.grad(module.dist0(x.detach(), c), c)
        assert slope.dtype == torch.float32 and slope.isfinite()


def test_the_slope_of_a_distance_of_zero_can_be_differentiated():
    """It is 0 by definition, and so is its derivative."""
    h = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(numerics.arcosh1p(h).sum(), h, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), h)
    assert not slope.any() and not bend.any()


def test_results_have_the_widest_dtype_of_the_points():
    x, y = torch.tensor([[0.3, 0.1]]), torch.tensor([[-0.2, 0.4]])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        wide = torch.promote_types(dtype, torch.float32)
        for a, b in ((x.to(dtype), y), (x, y.to(dtype))):
            got = poincare.dist(a, b, 1.0)
            assert got.dtype == wide
            torch.testing.assert_close(got, poincare.dist(a.to(wide), b.to(wide), 1.0), rtol=1e-6, atol=0)


def test_arguments_that_a_function_does_not_know_are_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        lorentz.dist(torch.zeros(3), z=torch.zeros(3), c=1.0)
