"""Times, points and centroids of space parts against whole points in float64."""

import pytest
import torch

from hypvision.geometry import lorentz
from hypvision.nn.functional import signature, space_time, to_centroids, with_time


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


def test_signs_are_those_of_the_inner_product():
    x = torch.randn(7, 6, dtype=torch.float64)
    square = (x * signature(6, x) * x).sum(-1, keepdim=True)
    torch.testing.assert_close(square, -lorentz.minkowski_inner(x, x))


@pytest.mark.parametrize("c", [0.3, torch.tensor(2.0, dtype=torch.float64)])
def test_centroids_of_means(c):
    points = lorentz.from_space(3 * torch.randn(4, 5, 6, dtype=torch.float64), c)
    torch.testing.assert_close(to_centroids(points.mean(1), c), lorentz.centroid(points, None, c))


def test_centroids_are_never_longer_than_the_means():
    """Of far points in float32 the square under the root is round-off, also below 0."""
    for size in (1e3, 1e6, 1e9):
        mean = with_time(size * torch.randn(200, 8), 1.0).requires_grad_()
        found = to_centroids(mean, 1.0)
        assert (found.norm(dim=-1) <= mean.norm(dim=-1) * 1.000001).all()
        [grad] = torch.autograd.grad(found.sum(), mean)
        assert grad.isfinite().all()
