"""Scalar functions against mpmath with 60 digits: values, gradients, and the points that are special."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypvision.geometry import numerics

mpmath.mp.dps = 60

# Name, exact function, points of its domain (the series of sinhc ends at 0.01)
SCALARS = [
    ("safe_sqrt", mpmath.sqrt, [1e-300, 1e-20, 1e-3, 1.0, 7.5, 1e12]),
    ("asinh", mpmath.asinh, [1e-300, 1e-20, 1e-9, 1e-3, 0.5, 1.0, 30.0, 1e8, 1e100]),
    ("sinhc", lambda z: mpmath.sinh(z) / z, [-40.0, -1.0, -1e-3, 1e-12, 1e-4, 9.9e-3, 1.01e-2, 0.3, 1.0, 10.0, 80.0]),
]


@pytest.mark.parametrize(("name", "exact", "points"), SCALARS, ids=[row[0] for row in SCALARS])
def test_values_and_gradients_in_double(name, exact, points):
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    value = getattr(numerics, name)(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    for point, got, slope in zip(points, value.tolist(), gradient.tolist()):
        at = mpmath.mpf(point)
        assert got == pytest.approx(float(exact(at)), rel=3e-15), point
        with mpmath.workdps(200):  # a difference quotient, with digits to spare
            step = abs(at) * mpmath.mpf(10) ** -60
            expected = float((exact(at + step) - exact(at - step)) / (2 * step))
        # below 0.01 the last term of the series has a relative error of 1e-11 in the slope
        assert slope == pytest.approx(expected, rel=1e-10), point


@pytest.mark.parametrize(("name", "exact", "points"), SCALARS, ids=[row[0] for row in SCALARS])
def test_values_in_single(name, exact, points):
    x = torch.tensor([point for point in points if 1e-30 < abs(point) < 1e15], dtype=torch.float32)
    for point, got in zip(x.tolist(), getattr(numerics, name)(x).tolist()):
        assert got == pytest.approx(float(exact(mpmath.mpf(point))), rel=1e-6), point


@pytest.mark.parametrize("name", ["safe_sqrt", "asinh", "sinhc"])
def test_gradcheck(name):
    x = torch.tensor([2e-3, 0.2, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(getattr(numerics, name), (x,))
    x = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(getattr(numerics, name), (x,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "value", "slope"), [("safe_sqrt", 0, 0), ("asinh", 0, 1), ("sinhc", 1, 0)])
def test_zero(name, value, slope, dtype):
    x = torch.zeros(3, dtype=dtype, requires_grad=True)
    out = getattr(numerics, name)(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert out.tolist() == [value] * 3 and gradient.tolist() == [slope] * 3


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


@pytest.mark.parametrize("name", ["safe_sqrt", "asinh", "sinhc", "clip_norm"])
def test_scripts(name):
    function = getattr(numerics, name)
    x = torch.tensor([[0.0, 1e-3, 0.5, 4.0]])
    torch.testing.assert_close(torch.jit.script(function)(x), function(x))
    torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="eager")(x), function(x))
