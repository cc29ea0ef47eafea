"""Properties of the hyperboloid's functions, and their gradients against mpmath with 60 digits."""

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypvision.geometry import lorentz, poincare

mpmath.mp.dps = 60
CURVATURES = [0.1, 1.0, 10.0]
vectors = st.lists(st.floats(-3, 3, allow_subnormal=False), min_size=3, max_size=3)


def distance(x, y, c):
    """Geodesic distance of two points given by their space parts, by the textbook formula."""
    c, x, y = mpmath.mpf(c), [mpmath.mpf(v) for v in x], [mpmath.mpf(v) for v in y]
    times = [mpmath.sqrt(1 / c + sum(v * v for v in p)) for p in (x, y)]
    return mpmath.acosh(c * (times[0] * times[1] - sum(a * b for a, b in zip(x, y)))) / mpmath.sqrt(c)


def derivative(function, vector, i):
    step = mpmath.mpf(10) ** -20
    ahead, behind = ([mpmath.mpf(v) + (sign * step if j == i else 0) for j, v in enumerate(vector)] for sign in (1, -1))
    return float((function(ahead) - function(behind)) / (2 * step))


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 20.0])
def test_gradients_of_distances(c, scale):
    x, y = (scale * torch.randn(2, 3, dtype=torch.float64)).unbind(0)
    x.requires_grad_()
    got = lorentz.cdist(lorentz.from_space(x[None], c), lorentz.from_space(y[None], c), c)
    (gradient,) = torch.autograd.grad(got.sum(), x)
    assert got.item() == pytest.approx(float(distance(x.tolist(), y.tolist(), c)), rel=1e-10)
    for i in range(3):
        expected = derivative(lambda p: distance(p, y.tolist(), c), x.tolist(), i)
        assert gradient[i].item() == pytest.approx(expected, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("scale", [1e-8, 1e-2, 1.0, 5.0])
def test_exponential_map_and_its_gradient(c, scale):
    u = (scale * torch.randn(3, dtype=torch.float64)).requires_grad_()

    def exact(vector, k):
        norm, root = mpmath.sqrt(sum(v * v for v in vector)), mpmath.sqrt(mpmath.mpf(c))
        return mpmath.cosh(root * norm) / root if k == 0 else mpmath.sinh(root * norm) / (root * norm) * vector[k - 1]

    x = lorentz.expmap0(u, c)
    for k in range(4):
        assert x[k].item() == pytest.approx(float(exact([mpmath.mpf(v) for v in u.tolist()], k)), rel=1e-13)
        (gradient,) = torch.autograd.grad(x[k], u, retain_graph=True)
        for i in range(3):
            expected = derivative(lambda p, k=k: exact(p, k), u.tolist(), i)
            assert gradient[i].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(vectors, vectors, vectors, st.sampled_from(CURVATURES))
def test_distances_are_a_metric(a, b, c, curvature):
    points = lorentz.expmap0(torch.tensor([a, b, c], dtype=torch.float64), curvature)
    d = lorentz.cdist(points, points, curvature)
    assert (d >= 0).all() and torch.isfinite(d).all()
    torch.testing.assert_close(d, d.T, rtol=1e-6, atol=1e-6)
    assert d.diagonal().max() < 1e-5 * (1 + points.abs().max())
    assert d[0, 2] <= d[0, 1] + d[1, 2] + 1e-4 * (1 + points.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("c", CURVATURES)
def test_gradients_are_finite_at_the_origin_and_where_points_meet(c, dtype):
    u = torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 2, 3], [1, 2, 3], [1e-20, 0, 0]], dtype=dtype, requires_grad=True)
    x = lorentz.expmap0(u, c)
    d = lorentz.cdist(x, x, c)
    d.sum().backward()
    assert torch.isfinite(d).all() and torch.isfinite(u.grad).all()
    assert d[0, 1] == 0


@pytest.mark.parametrize("c", CURVATURES)
def test_gradcheck(c):
    u, v = torch.randn(2, 3, 2, dtype=torch.float64).unbind(0)
    curvature = torch.tensor([c], dtype=torch.float64, requires_grad=True)

    def function(u, v, curvature):
        return lorentz.cdist(lorentz.expmap0(u, curvature), lorentz.expmap0(v, curvature), curvature)

    assert torch.autograd.gradcheck(function, (u.requires_grad_(), v.requires_grad_(), curvature))


def test_leading_dimensions_and_curvatures_broadcast():
    x, y = torch.randn(2, 1, 4, 3, dtype=torch.float64), torch.randn(5, 6, 3, dtype=torch.float64)
    d = lorentz.cdist(lorentz.from_space(x, 1.0), lorentz.from_space(y, 1.0), 1.0)
    assert d.shape == (2, 5, 4, 6)
    single = lorentz.cdist(lorentz.from_space(x[1, 0], 1.0), lorentz.from_space(y[2], 1.0), 1.0)
    torch.testing.assert_close(d[1, 2], single)
    c = torch.tensor([0.1, 1.0], dtype=torch.float64).reshape(2, 1, 1)
    both = lorentz.cdist(lorentz.expmap0(x[:, 0], c), lorentz.expmap0(x[:, 0], c), c)
    alone = lorentz.expmap0(x[0, 0], 0.1)
    torch.testing.assert_close(both[0], lorentz.cdist(alone, alone, 0.1))


@pytest.mark.parametrize("apart", [1.0, 1e-3])
def test_distances_of_far_float32_points_in_float64(apart):
    """Those of one product, and those of near points, which are taken again; float32 alone is 1e-6 off."""
    x = torch.randn(6, 64)
    x, y = (lorentz.expmap0(11 * v / v.norm(dim=1, keepdim=True), 1.0) for v in (x, x + apart * torch.randn(6, 64)))
    truth = lorentz.cdist(x.double(), y.double(), 1.0)
    wide, single = lorentz.cdist(x, y, 1.0, torch.float64), lorentz.cdist(x, y, 1.0)
    assert wide.dtype == torch.float64 and single.dtype == torch.float32
    near = 1e-4 if apart < 1 else 0  # of a chord
    assert ((wide - truth).abs() <= 5e-7 + near * (-truth).exp() * 2**32).all() and (single - truth).abs().max() > 5e-7


@pytest.mark.parametrize("shapes", [((5, 1, 4), (1, 7, 4)), ((4,), (6, 4)), ((6, 4), (4,))])
@pytest.mark.parametrize("name", ["dist", "sqdist", "logmap"])
def test_gradients_of_points_that_broadcast(name, shapes):
    """Those of near float32 points, which have a form of their own, are those of the same points in float64."""
    found = []
    points = [lorentz.expmap0(torch.randn(shape), 0.7) for shape in shapes]
    for dtype in (torch.float32, torch.float64):
        leaves = [point.to(dtype).requires_grad_() for point in points]
        out = getattr(lorentz, name)(*leaves, 0.7)
        found.append([out, *torch.autograd.grad(out.sum(), leaves)])
    for single, double in zip(*found, strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)


def test_distances_do_not_depend_on_the_choice_of_unit():
    """Scaling space by s divides the curvature by s^2 and multiplies distances by s."""
    u = torch.randn(5, 4, dtype=torch.float64)
    near, far = (lorentz.expmap0(u * s, 1 / s**2) for s in (1.0, 3.0))
    torch.testing.assert_close(lorentz.cdist(far, far, 1 / 9), 3 * lorentz.cdist(near, near, 1.0), rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize(("dtype", "powers"), [(torch.float32, range(-44, 17)), (torch.float64, range(-320, 150, 3))])
def test_coincident_points_are_at_no_distance(dtype, powers):
    """At every magnitude, where squares underflow too."""
    points = torch.stack([torch.randn(8, 4, dtype=torch.float64) * 10.0**power for power in powers]).to(dtype)
    for c in (0.01, 1.0, 10.0):
        assert (lorentz.dist(points, points.clone(), c) == 0).all()
        assert (poincare.dist(points, points.clone(), c) == 0).all()
