"""numerics and lorentz against mpmath with 60 digits, and their gradients."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypvision.geometry import lorentz, numerics

mpmath.mp.dps = 60
POSITIVE = st.floats(min_value=1e-12, max_value=1e6, allow_nan=False)


@settings(deadline=None, max_examples=60)
@given(POSITIVE)
def test_asinh_is_exact_to_round_off(z):
    got = numerics.asinh(torch.tensor(z, dtype=torch.float64)).item()
    assert got == pytest.approx(float(mpmath.asinh(z)), rel=5e-16 * 4)


@settings(deadline=None, max_examples=60)
@given(st.floats(min_value=-80, max_value=80, allow_nan=False))
def test_sinhc_value_and_gradient(z):
    x = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    value = numerics.sinhc(x)
    (gradient,) = torch.autograd.grad(value, x)
    exact = mpmath.mpf(z)
    expected = mpmath.sinh(exact) / exact if z else mpmath.mpf(1)
    slope = (mpmath.cosh(exact) - expected) / exact if z else mpmath.mpf(0)
    assert value.item() == pytest.approx(float(expected), rel=2e-15)
    assert gradient.item() == pytest.approx(float(slope), rel=1e-10, abs=1e-13)


def test_safe_sqrt_has_gradient_zero_at_zero():
    x = torch.tensor([0.0, -1.0, 4.0], requires_grad=True)
    y = numerics.safe_sqrt(x)
    y.sum().backward()
    assert y.tolist() == [0.0, 0.0, 2.0]
    assert x.grad.tolist() == [0.0, 0.0, 0.25]


def test_clip_norm_scales_only_long_vectors():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], requires_grad=True)
    y = numerics.clip_norm(x)
    torch.testing.assert_close(y, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    y.sum().backward()
    assert torch.isfinite(x.grad).all()


def exact_distance(x, y, c):
    """Geodesic distance of two space parts with 60 digits, by the textbook formula."""
    c = mpmath.mpf(c)
    x, y = [mpmath.mpf(v) for v in x], [mpmath.mpf(v) for v in y]
    tx, ty = (mpmath.sqrt(1 / c + sum(v * v for v in p)) for p in (x, y))
    inner = tx * ty - sum(a * b for a, b in zip(x, y))
    return mpmath.acosh(c * inner) / mpmath.sqrt(c)


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("radius", [1e-4, 0.1, 1.0, 5.0])
def test_cdist_of_generic_points(c, radius):
    x, y = torch.randn(2, 4, 8, dtype=torch.float64)
    scale = torch.sinh(torch.tensor(radius)).item() / c**0.5
    x, y = (scale * p / p.norm(dim=-1, keepdim=True) for p in (x, y))
    x32, y32 = x.float(), y.float()
    got = lorentz.cdist(lorentz.from_space(x32, c), lorentz.from_space(y32, c), c)
    for i in range(4):
        for j in range(4):
            expected = float(exact_distance(x32[i].tolist(), y32[j].tolist(), c))
            assert got[i, j].item() == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
def test_expmap0_lies_on_the_hyperboloid_at_the_right_distance(c):
    u = torch.randn(64, 5, dtype=torch.float64)
    x = lorentz.expmap0(u, c)
    square = -x[:, 0] ** 2 + (x[:, 1:] ** 2).sum(-1)
    assert ((square + 1 / c).abs() <= 4e-15 * x[:, 0] ** 2).all()  # round-off of the squares that cancel
    origin = lorentz.from_space(torch.zeros(1, 5, dtype=torch.float64), c)
    torch.testing.assert_close(lorentz.cdist(x, origin, c)[:, 0], u.norm(dim=-1), rtol=1e-10, atol=1e-12)


def test_coincident_points_have_distance_and_gradient_zero():
    u = torch.randn(3, 4, requires_grad=True)
    x = lorentz.expmap0(u, 1.0)
    distance = lorentz.cdist(x, x.detach(), 1.0).diagonal()
    distance.sum().backward()
    assert distance.abs().max() < 2e-3  # the matrix product resolves sqrt(eps)
    assert torch.isfinite(u.grad).all()
    zero = torch.zeros(2, 4, requires_grad=True)
    point = lorentz.expmap0(zero, 1.0)
    lorentz.cdist(point, point, 1.0).sum().backward()
    assert zero.grad.abs().max() == 0


def test_gradients_agree_with_finite_differences():
    u, v = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True).unbind(0)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def function(u, v, c):
        return lorentz.cdist(lorentz.expmap0(u, c), lorentz.expmap0(v, c), c)

    assert torch.autograd.gradcheck(function, (u, v, c))
    assert torch.autograd.gradgradcheck(function, (u, v, c))


def test_functions_script_and_compile():
    x = lorentz.expmap0(torch.randn(5, 3), 1.0)
    c = torch.tensor(1.0)
    expected = lorentz.cdist(x, x, c)
    torch.testing.assert_close(torch.jit.script(lorentz.cdist)(x, x, c), expected)
    torch.testing.assert_close(torch.compile(lorentz.cdist, fullgraph=True, backend="eager")(x, x, c), expected)
