"""Times, points and centroids of space parts against whole points in float64."""

import pytest
import torch
from helpers.cases import each

from hypvision.geometry import lorentz
from hypvision.nn import functional
from hypvision.nn.functional import (
    add_scaled,
    averaged,
    minkowski_square,
    sized,
    space_time,
    to_centroids,
    with_time,
)


@pytest.mark.parametrize("c", [1.0, torch.tensor(0.3, dtype=torch.float64)])
def test_points_of_space_parts(c):
    space = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    wanted = lorentz.from_space(space, c)
    torch.testing.assert_close(with_time(space, c), wanted)
    torch.testing.assert_close(space_time(space.movedim(-1, 1), c, 1).squeeze(1), wanted[..., 0])
    padded = with_time(space, c, 3)
    torch.testing.assert_close(padded[..., :6], wanted)
    assert padded.shape[-1] == 9 and not padded[..., 6:].any()
    # the gradient of a time is that of a root of a sum of squares, 0 at the origin
    [found] = torch.autograd.grad(space_time(space, c).sum(), space)
    torch.testing.assert_close(found, space / wanted[..., :1])
    origin = torch.zeros(2, requires_grad=True)
    assert not torch.autograd.grad(space_time(origin, 1.0).sum(), origin)[0].any()


@each("c", [0.7, torch.tensor(0.7, dtype=torch.float64, requires_grad=True)])
@each("negative", [False, True])
def test_times_by_hand_are_those_of_plain_operations(c, negative, monkeypatch):
    space = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    given = [space, c] if isinstance(c, torch.Tensor) else [space]
    cotangent = torch.randn(3, 4, 1, dtype=torch.float64)
    found = []
    for plain in (False, True):
        monkeypatch.setattr(functional, "plain", lambda x, plain=plain: plain)
        time = space_time(space, c, negative=negative)
        grads = torch.autograd.grad(time, given, cotangent, create_graph=True)
        found.append([time, *grads, *torch.autograd.grad(grads[0].sum(), given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert (found[0][0][0] < 0).all() == negative and (found[0][0][1:] > 0).all()


def test_a_scaled_branch_is_added():
    x, branch = torch.randn(2, 2, 3, 3, 4, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(add_scaled(x, branch, scale), x + branch * scale)
    assert torch.autograd.gradcheck(add_scaled, (x, branch, scale))
    assert torch.autograd.gradgradcheck(add_scaled, (x, branch, scale))
    # a residual stream in float32, a branch in half precision
    x = torch.ones(2, 4, requires_grad=True)
    branch = torch.full((2, 4), 0.5, dtype=torch.bfloat16, requires_grad=True)
    out = add_scaled(x, branch, torch.full((4,), 3.0, dtype=torch.bfloat16))
    out.sum().backward()
    assert out.eq(2.5).all() and x.grad.eq(1).all() and branch.grad.eq(3).all()
    assert (out.dtype, x.grad.dtype, branch.grad.dtype) == (x.dtype, x.dtype, branch.dtype)


@pytest.mark.parametrize("slot", [0, 6])
def test_the_square_is_that_of_the_inner_product(slot):
    x = torch.randn(7, 9 if slot else 7, dtype=torch.float64)
    x[:, 7:] = 0
    points = torch.cat([x[:, slot : slot + 1], x[:, :6]], -1) if slot else x
    expected = -lorentz.minkowski_inner(points, points)
    torch.testing.assert_close(minkowski_square(x, slot), expected)


@each("slot", [0, 6])
@each("least", [1e-4, 1.0])
def test_sizes_by_hand_are_those_of_plain_operations(slot, least, monkeypatch):
    """Also where the square is below the least, or negative."""
    x = 0.7 * torch.randn(50, 7, dtype=torch.float64)
    x[:, slot] += torch.linspace(0, 6, 50)
    c, size = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.7, 1.9))
    given = [x.requires_grad_(), c, size]
    found = []
    for plain in (False, True):
        monkeypatch.setattr(functional, "plain", lambda x, plain=plain: plain)
        out = sized(x, c, least, size, slot)
        cotangent = torch.linspace(-1, 2, out.numel(), dtype=x.dtype).view_as(out)
        found.append([out, *torch.autograd.grad(out, given, cotangent, retain_graph=True)])
        [first] = torch.autograd.grad(out, x, cotangent, create_graph=True)
        found[-1] += torch.autograd.grad(first.sum(), given)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    square = minkowski_square(x, slot) * c
    assert (square < 0).any() and (square > least).any()
    assert least < 1 or (square.abs() < least).any()


@pytest.mark.parametrize("c", [0.3, torch.tensor(2.0, dtype=torch.float64)])
def test_centroids_of_means(c):
    points = lorentz.from_space(3 * torch.randn(4, 5, 6, dtype=torch.float64), c)
    torch.testing.assert_close(to_centroids(points.mean(1), c), lorentz.centroid(points, None, c))


@each("size", [1e1, 1e2, 1e3, 1e4, 1e5])
@each("spread", [1e-5, 1e-3, 1.0])
def test_the_error_of_centroids_is_that_of_rounding_the_means(size, spread):
    """Of float32 means nothing better is possible."""
    generator = torch.Generator().manual_seed(0)
    middle, moves = (
        torch.randn(30, 1, 8, generator=generator),
        torch.randn(30, 6, 8, generator=generator),
    )
    space = size * (middle / middle.norm(dim=-1, keepdim=True) + spread * moves)
    mean = with_time(space.double(), 1.0).mean(1)
    exact = lorentz.centroid(with_time(space.double(), 1.0), None, 1.0)[:, 1:]

    def error(means):
        found = to_centroids(means, 1.0)[:, 1:].double()
        return ((found - exact).norm(dim=-1) / exact.norm(dim=-1)).max()

    rounding = error(mean.float().double())
    assert error(with_time(space, 1.0).mean(1)) < 6 * rounding + 1e-6


def test_centroids_are_never_longer_than_the_means():
    """Of far points in float32 the square under the root is round-off, also below 0."""
    for size in (1e3, 1e6, 1e9):
        mean = with_time(size * torch.randn(200, 8), 1.0).requires_grad_()
        found = to_centroids(mean, 1.0)
        assert (found.norm(dim=-1) <= mean.norm(dim=-1) * 1.000001).all()
        [grad] = torch.autograd.grad(found.sum(), mean)
        assert grad.isfinite().all()


@each("size", [None, 1.9, torch.tensor(1.9, dtype=torch.float64)])
@each("weight", [0.8, -1.5])
def test_averages_by_hand_are_those_of_plain_operations(weight, size, monkeypatch):
    """Near and far points; with a negative weight the square falls below the least, or 0."""
    radii = torch.logspace(-3, 3, 40, dtype=torch.float64).unsqueeze(1)
    x = (radii * torch.randn(40, 6, dtype=torch.float64)).requires_grad_()
    y = (x.detach() + radii * torch.randn(40, 6, dtype=torch.float64)).requires_grad_()
    w, c = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (weight, 0.7))
    given = [x, y, w, c]
    if isinstance(size, torch.Tensor):
        given.append(size.requires_grad_())
    found = []
    for plain in (False, True):
        monkeypatch.setattr(functional, "plain", lambda x, plain=plain: plain)
        out = averaged(x, y, w, c, 1e-4, size)
        cotangent = torch.linspace(-1, 2, out.numel(), dtype=x.dtype).view_as(out)
        found.append([out, *torch.autograd.grad(out, given, cotangent, retain_graph=True)])
        [first] = torch.autograd.grad(out, x, cotangent, create_graph=True)
        found[-1] += torch.autograd.grad(first.sum(), given)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    means = with_time(x, c) + w * with_time(y, c)
    assert (minkowski_square(means) < 0).any() == (weight < 0)


def test_averages_of_positive_weights_are_means():
    x, y = torch.randn(2, 30, 4, dtype=torch.float64)
    w, c = torch.tensor(0.6, dtype=torch.float64), 1.3
    means = (with_time(x, c) + w * with_time(y, c)) / 1.6
    found = averaged(x, y, w, c, 1.0, 1.0)
    torch.testing.assert_close(found, sized(1.6 * means, c, 1e-4)[..., 1:])


@pytest.mark.parametrize("weight", [0.6, [[0.6], [0.0], [1.2]]], ids=["one", "one a row"])
def test_averages_are_differentiated_as_differences_say(weight):
    given = [torch.randn(3, 4, dtype=torch.float64) for _ in range(2)]
    given += [torch.tensor(v, dtype=torch.float64) for v in (weight, 1.3, 2.0)]
    assert torch.autograd.gradcheck(
        lambda x, y, w, c, size: averaged(x, y, w, c, 1e-4, size),
        [value.requires_grad_() for value in given],
    )


def test_far_points_are_averages_of_themselves():
    """In float32 their times and lengths are equal: the square counts as the least, not as what its
    rounding leaves."""
    x = torch.tensor([[3e7, -4e7]])
    found = averaged(x, torch.zeros(1, 2), torch.tensor(0.0), 1.0, 1.0, 2.0)
    torch.testing.assert_close(found, 2 * x)
