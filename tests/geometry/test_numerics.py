"""Scalar functions against mpmath with 60 digits: values, gradients, and the points that are
special."""

import math
from fractions import Fraction
from types import SimpleNamespace

import mpmath
import pytest
import torch
from helpers.cases import each
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from hypvision.geometry import lorentz, numerics, poincare

mpmath.mp.dps = 60

ROOTS = [1e-30, 1e-9, 1e-3, 9.9e-3, 0.0199, 0.099, 0.101, 1.0, 7.5, 1e3]
# Name, exact function, points of its domain
SCALARS = [
    ("safe_sqrt", mpmath.sqrt, [1e-300, 1e-20, 1e-3, 1.0, 7.5, 1e12]),
    (
        "sinhc",
        lambda z: mpmath.sinh(z) / z,
        [-40.0, -1.0, -1e-3, 1e-12, 1e-4, 9.9e-3, 0.0199, 0.3, 1.0, 10.0, 80.0],
    ),
    (
        "tanhc",
        lambda z: mpmath.tanh(z) / z,
        [-40.0, -1.0, -1e-3, 1e-12, 1e-4, 9.9e-3, 0.0199, 0.3, 1.0, 10.0, 300.0],
    ),
    ("sinhc_sqrt", lambda q: mpmath.sinh(mpmath.sqrt(q)) / mpmath.sqrt(q), ROOTS),
    ("asinhc_sqrt", lambda q: mpmath.asinh(mpmath.sqrt(q)) / mpmath.sqrt(q), [*ROOTS, 1e10, 1e30]),
    ("tanhc_sqrt", lambda q: mpmath.tanh(mpmath.sqrt(q)) / mpmath.sqrt(q), ROOTS),
    (
        "log_sinhc_sqrt",
        lambda q: mpmath.log(mpmath.sinh(mpmath.sqrt(q)) / mpmath.sqrt(q)),
        [*ROOTS, 1e5],
    ),
]
NAMES = [row[0] for row in SCALARS]


def function_of(name):
    return getattr(numerics, name)


@each("name, exact, points", SCALARS)
def test_values_and_gradients_in_double(name, exact, points):
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
        # a step as long as x itself moves the value by a few units of round-off more or less
        assert slope == pytest.approx(expected, rel=1e-10, abs=4e-16 * abs(got / point)), point


@each("name, exact, points", SCALARS)
def test_values_in_single(name, exact, points):
    x = torch.tensor([point for point in points if 1e-30 < abs(point) < 1e15], dtype=torch.float32)
    for point, got in zip(x.tolist(), function_of(name)(x).tolist()):
        assert got == pytest.approx(float(exact(mpmath.mpf(point))), rel=1e-6), point


@each("name", NAMES)
def test_gradcheck(name):
    x = torch.tensor([2e-3, 0.2, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function_of(name), (x,))
    x = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(function_of(name), (x,))


@each("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@each(
    "name, value, slope",
    [
        ("safe_sqrt", 0, 0),
        ("sinhc", 1, 0),
        ("tanhc", 1, 0),
        ("sinhc_sqrt", 1, 0),
        ("asinhc_sqrt", 1, 0),
        ("tanhc_sqrt", 1, 0),
        ("log_sinhc_sqrt", 0, 1 / 6),
    ],
)
def test_zero(name, value, slope, dtype):
    x = torch.zeros(3, dtype=dtype, requires_grad=True)
    out = function_of(name)(x)
    assert out.tolist() == [value] * 3
    gradients = [
        torch.autograd.grad(function_of(name)(x).sum(), x, create_graph=graph)[0]
        for graph in (False, True)
    ]
    gradients.append(
        torch.func.grad(lambda x: function_of(name)(x).sum())(x.detach())
    )  # in plain operations
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


@each("name", [*NAMES, "clip_norm", "square_norm"])
def test_compiles(name):
    function = function_of(name)
    x = torch.tensor([[0.0, 1e-3, 0.5, 4.0]])
    torch.testing.assert_close(
        torch.compile(function, fullgraph=True, backend="eager")(x), function(x)
    )


def test_squash_factor():
    """``D tanh(atanh(0.99) r / (s D)) / r``, with its limit at 0; limits may be tensors."""
    square = torch.tensor([0.0, 1e-12, 0.3, 25.0, 1e8], dtype=torch.float64)
    got = numerics.squash_factor(square, 3.0, 1.5)
    for q, value in zip(square.tolist(), got.tolist()):
        slope, r = mpmath.atanh("0.99") / 1.5, mpmath.sqrt(q)
        expected = 3 * mpmath.tanh(slope * r / 3) / r if q else slope
        assert value == pytest.approx(float(expected), rel=1e-14)
    assert torch.equal(
        numerics.squash_factor(square, torch.tensor(3.0, dtype=torch.float64), 1.5), got
    )


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
    got = numerics.square_norm(y)
    expected = [[float(sum(Fraction(v) ** 2 for v in row))] for row in y.tolist()]
    torch.testing.assert_close(got, torch.tensor(expected), rtol=3e-7, atol=0)
    (gradient,) = torch.autograd.grad(got.sum(), y)
    assert torch.equal(gradient, 2 * y)
    torch.testing.assert_close(numerics.length(y), torch.tensor(expected).sqrt(), rtol=3e-7, atol=0)


def test_numbers_that_float32_does_not_hold_become_its_largest():
    """Infinite ones do not: what has diverged must not look like a number. Gradients are cut on the
    way back."""
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([1e300, -1e300, 5.0, math.inf, -math.inf, math.nan], dtype=torch.float64)
    got = numerics.narrow(x, torch.float32)
    assert got[:3].tolist() == [largest, -largest, 5.0] and got[3:].isnan().all()
    leaf = torch.ones(4, requires_grad=True)
    for steepest, most in ((None, largest), (1e18, 1e18)):
        wide = numerics.widen(leaf, steepest)
        assert wide.dtype == torch.float64
        (gradient,) = torch.autograd.grad(
            wide, leaf, torch.tensor([3.0, 1e30, 1e300, -1e300]).double()
        )
        assert gradient.tolist() == pytest.approx([3.0, min(1e30, most), most, -most])
    bounded = numerics.bounded(torch.tensor([1e30, -3.0]), torch.float32)
    assert bounded.tolist() == pytest.approx([1e18, -3.0])


@pytest.mark.parametrize("limit", [1e18, torch.finfo(torch.float32).max])
def test_gradients_are_limited_at_once_as_in_two_steps(limit):
    """The form of GPUs, which a CPU computes, too."""
    numbers = [1e300, -1e39, 2e18, 1 / 3, -0.0, math.inf, -math.inf, math.nan]
    grad = torch.tensor(numbers, dtype=torch.float64)
    at_once = numerics.limited_at_once(grad, limit, torch.float32)
    assert at_once.dtype == torch.float32
    assert at_once[0] == at_once[5] == -at_once[1] == torch.tensor(limit)
    torch.testing.assert_close(
        at_once, numerics.limited(grad, limit, torch.float32), rtol=0, atol=0, equal_nan=True
    )


def test_devices_without_float64_are_known():
    here, there = torch.ones(2), SimpleNamespace(device=torch.device("mps"))
    assert numerics.has_float64(here) and not numerics.has_float64(there)
    assert numerics.widen(here).dtype == torch.float64 and numerics.widen(0.5) == 0.5


def test_a_curvature_learned_in_single_does_not_round_double():
    """Neither its root nor its inverse: results are those of the same curvature in float64."""
    c = torch.tensor(0.3, requires_grad=True)
    u = torch.tensor([[0.3, -1.2, 0.4]], dtype=torch.float64)
    for module in (lorentz, poincare):
        x = module.expmap0(u, c)
        torch.testing.assert_close(x, module.expmap0(u, c.detach().double()), rtol=1e-15, atol=0)
        torch.testing.assert_close(
            module.dist0(x=x, c=c),
            u.norm(dim=-1) * (2 if module is poincare else 1),
            rtol=1e-9,
            atol=0,
        )
        (slope,) = torch.autograd.grad(module.dist0(x.detach(), c), c)
        assert slope.dtype == torch.float32 and slope.isfinite()


def test_the_slope_of_a_distance_of_zero_can_be_differentiated():
    """It is 0 by definition, and so is its derivative."""
    h = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(numerics.safe_sqrt(h).sum(), h, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), h)
    assert not slope.any() and not bend.any()


def test_results_have_the_widest_dtype_of_the_points():
    x, y = torch.tensor([[0.3, 0.1]]), torch.tensor([[-0.2, 0.4]])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        wide = torch.promote_types(dtype, torch.float32)
        for a, b in ((x.to(dtype), y), (x, y.to(dtype))):
            got = poincare.dist(a, b, 1.0)
            assert got.dtype == wide
            torch.testing.assert_close(
                got, poincare.dist(a.to(wide), b.to(wide), 1.0), rtol=1e-6, atol=0
            )


def test_arguments_that_a_function_does_not_know_are_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        lorentz.dist(torch.zeros(3), z=torch.zeros(3), c=1.0)


def test_triton_is_for_newer_gpus_and_must_be_asked_for(monkeypatch):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(numerics, "find_spec", lambda name: object())

    def uses(capability, switch, of=device):
        numerics.uses_triton.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setenv("HYPVISION_TRITON", switch)
        return numerics.uses_triton(of)

    try:
        assert uses((8, 0), "1") and not uses((6, 1), "1")
        assert not uses((8, 0), "1", of=torch.device("cpu"))
        assert not uses((8, 0), "0") and not uses((8, 0), "")
    finally:
        numerics.uses_triton.cache_clear()


def test_what_is_held_within_bounds_can_be_trained_back():
    x = torch.tensor([-3.0, 0.5, 7.0], dtype=torch.float64, requires_grad=True)
    for call in (numerics.held, torch.func.vmap(numerics.held, in_dims=(0, None, None))):
        out = call(x, -1.0, 2.0)
        torch.testing.assert_close(out, torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64))
        (first,) = torch.autograd.grad((out**3).sum(), x, create_graph=True)
        torch.testing.assert_close(first, 3 * out**2)  # not 0 outside
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 6 * out)


@each("apart", [1e-9, 1e-5, 0.1])
@each("radius", [1e-2, 1.0])
def test_the_curvature_of_near_points_has_a_gradient_to_nine_digits(radius, apart):
    space = radius * torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    end = space * (1 + apart)
    c = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    found = lorentz.dist(lorentz.from_space(space, c), lorentz.from_space(end, c), c)
    (grad,) = torch.autograd.grad(found.sum(), c)

    def exact(c):
        """On one ray: the difference of asinh(sqrt(c) |s|) / sqrt(c)."""
        lengths = [mpmath.hypot(*map(mpmath.mpf, point.tolist()[0])) for point in (space, end)]
        one, other = (mpmath.asinh(mpmath.sqrt(c) * length) for length in lengths)
        return (other - one) / mpmath.sqrt(c)

    with mpmath.workdps(50):
        expected = float(mpmath.diff(exact, 1))
    assert grad.item() == pytest.approx(expected, rel=1e-7)


def test_forward_derivatives_of_points_that_require_a_gradient():
    x, y = lorentz.from_space(torch.randn(2, 5, 4, dtype=torch.float64), 1.0)
    along = torch.randn_like(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), along)
        found = forward_ad.unpack_dual(lorentz.dist(dual, y, 1.0)).tangent
    _, expected = torch.func.jvp(lambda value: lorentz.dist(value, y, 1.0), (x,), (along,))
    torch.testing.assert_close(found, expected)


@each("name", ["expmap", "transp0", "boost", "proju"])
def test_geometry_is_traced_and_saved(tmp_path, name):
    """No hand-written function is left in a graph that needs no gradient."""
    x = lorentz.from_space(torch.randn(4, 3), 1.0)
    u = lorentz.proju(x, torch.randn(4, 4), 1.0)
    given = (x, u[..., 1:]) if name in ("transp0", "boost") else (x, u)
    given = (u, x) if name == "boost" else given
    function = getattr(lorentz, name)
    with torch.no_grad():
        traced = torch.jit.trace(lambda a, b: function(a, b, 1.0), given, check_trace=False)
        traced.save(str(tmp_path / "traced.pt"))
        loaded = torch.jit.load(str(tmp_path / "traced.pt"))
        torch.testing.assert_close(loaded(*given), function(*given, 1.0))


def test_forward_derivatives_of_float32():
    u = torch.randn(4, 3)
    along = torch.randn(4, 3)
    with forward_ad.dual_level():
        dual = lorentz.expmap0(forward_ad.make_dual(u, along), 1.0)
        found = forward_ad.unpack_dual(dual).tangent
    _, expected = torch.func.jvp(
        lambda value: lorentz.expmap0(value, 1.0), (u.double(),), (along.double(),)
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_large_arguments_can_be_traced(tmp_path):
    x, y = lorentz.from_space(torch.randn(2, 20000, 8), 1.0)
    with torch.no_grad():
        traced = torch.jit.trace(lambda x, y: lorentz.dist(x, y, 1.0), (x, y))
        traced.save(str(tmp_path / "dist.pt"))
        loaded = torch.jit.load(str(tmp_path / "dist.pt"))
        torch.testing.assert_close(loaded(x, y), lorentz.dist(x, y, 1.0))


@each("leg", [None, 2.0, torch.tensor([[2.0], [0.5]]).double()])
def test_hypotenuses_and_the_gradients_that_they_join(leg):
    x = torch.tensor([[3.0, -4.0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    leg = leg.requires_grad_() if isinstance(leg, torch.Tensor) else leg
    same, size = numerics.with_hypotenuse(x, leg)
    squares = torch.tensor([[25.0], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(size**2, squares if leg is None else squares + leg**2)
    assert torch.equal(same, x)
    inputs = (x, leg) if isinstance(leg, torch.Tensor) else (x,)

    def both(x, leg=leg):
        return torch.cat(numerics.with_hypotenuse(x, leg), -1)

    for call in (both, lambda x, leg=leg: numerics.hypotenuse(x, leg)):
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs)


def test_numbers_within_bounds_and_their_gradients():
    x = torch.tensor([-3.0, -1.0, 0.5, 2.0, math.nan], dtype=torch.float64, requires_grad=True)
    assert numerics.clamped(x, high=1.0)[:4].tolist() == [-3, -1, 0.5, 1]
    out = numerics.clamped(x, -1.0, 1.0)
    assert out[:4].tolist() == [-1, -1, 0.5, 1]
    assert out[4].isnan()
    (slope,) = torch.autograd.grad(out[:4].sum(), x)
    assert slope.tolist() == [0, 0, 1, 0, 0]


@each("shape", [(), (2, 1, 1), (3, 1)])
def test_quotients(shape):
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    number = (1 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
    assert torch.equal(numerics.divided(x, number), x / number)
    assert torch.autograd.gradcheck(numerics.divided, (x, number))
    assert torch.autograd.gradgradcheck(numerics.divided, (x, number))


def test_a_value_takes_the_gradient_of_a_form_and_keeps_its_digits():
    form = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    value = torch.tensor([1e-20], dtype=torch.float64)
    for call in (numerics.with_value, torch.func.vmap(numerics.with_value)):
        out = call(3 * form, value)
        assert torch.equal(out, value)
        assert torch.autograd.grad(out.sum(), form)[0] == 3


@pytest.mark.parametrize("least", [None, 0.5])
def test_heading(least):
    """Directions and lengths, their gradients and second ones; ``least`` in place of a smaller
    length."""
    x = torch.tensor([[3.0, -4.0], [0.06, 0.08]], dtype=torch.float64, requires_grad=True)
    ray, size = numerics.heading(x, least)
    divisors = [5.0, 0.1 if least is None else least]
    expected = torch.tensor([[3 / 5, -4 / 5], [0.06 / divisors[1], 0.08 / divisors[1]]]).double()
    torch.testing.assert_close(ray, expected)
    torch.testing.assert_close(size, torch.tensor([[5.0], [0.1]]).double())
    parts = slice(None) if least is None else slice(1)  # lengths are then for values alone

    def both(x):
        return torch.cat(numerics.heading(x, least)[parts], -1)

    assert torch.autograd.gradcheck(both, x)
    assert torch.autograd.gradgradcheck(both, x)


def test_the_heading_of_zero_is_zero():
    x = torch.zeros(2, 3, requires_grad=True)
    ray, size = numerics.heading(x)
    assert not ray.any() and not size.any()
    assert not torch.autograd.grad(size.sum(), x)[0].any()


def test_forward_derivatives_of_points_of_many_blocks():
    """As of few rows: blocks have no forward derivatives, so that they are not made for these."""
    x = torch.randn(4096, 65, dtype=torch.float64)
    direction = torch.randn_like(x)
    with forward_ad.dual_level():
        both = [
            forward_ad.unpack_dual(lorentz.expmap0(forward_ad.make_dual(a, b), 1.0)).tangent
            for a, b in ((x, direction), (x[:8], direction[:8]))
        ]
    torch.testing.assert_close(both[0][:8], both[1])
