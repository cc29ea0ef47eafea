"""The optimisers on a manifold that this package does not know: the unit sphere, and our own
through their methods."""

import pytest
import torch

from hypvision.geometry import Lorentz, Manifold, ManifoldParameter, PoincareBall
from hypvision.optim import RiemannianAdam, RiemannianAdamW, RiemannianSGD, kernels


class SphereWithoutOrigin(Manifold):
    """Unit vectors ``(..., n + 1)``."""

    extra = 1

    def projx(self, x):
        return x / x.norm(dim=-1, keepdim=True)

    def egrad2rgrad(self, x, v):
        return v - (x * v).sum(-1, keepdim=True) * x

    def inner(self, x, u, v):
        return (u * v).sum(-1)

    def retr(self, x, u):
        size = u.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return self.projx(torch.cos(size) * x + torch.sin(size) * u / size)

    def transp(self, x, y, v):
        return v - (y * v).sum(-1, keepdim=True) / (1 + (x * y).sum(-1, keepdim=True)) * (x + y)


class Sphere(SphereWithoutOrigin):
    """The origin is the first axis."""

    def origin(self, n, dtype=None, device=None):
        return torch.eye(n + 1, dtype=dtype, device=device)[0]

    def transp0(self, x, u):
        origin = self.origin(u.shape[-1], u.dtype, u.device).expand_as(x)
        return self.transp(origin, x, torch.cat([torch.zeros_like(u[..., :1]), u], -1))

    def transp0back(self, x, v):
        return self.transp(x, self.origin(x.shape[-1] - 1, x.dtype, x.device).expand_as(x), v)[
            ..., 1:
        ]

    def to_tangent0(self, x):
        size = torch.acos(x[..., :1].clamp(-1, 1))
        return x[..., 1:] * (size / torch.sin(size).clamp(min=1e-12))

    def from_tangent0(self, u):
        return self.retr(
            self.origin(u.shape[-1], u.dtype, u.device),
            torch.cat([torch.zeros_like(u[..., :1]), u], -1),
        )


@pytest.mark.parametrize(
    ("sphere", "kind"),
    [
        (Sphere(), RiemannianSGD),
        (SphereWithoutOrigin(), RiemannianAdam),
        (Sphere(), RiemannianAdamW),
    ],
)
def test_points_of_a_sphere_find_theirs(sphere, kind):
    torch.manual_seed(0)
    target = sphere.projx(torch.randn(5, 4, dtype=torch.float64))
    start = sphere.projx(target + 0.5 * torch.randn(5, 4, dtype=torch.float64))
    points = ManifoldParameter(start, sphere)
    options = (
        dict(lr=0.05, momentum=0.9) if kind is RiemannianSGD else dict(lr=0.05, weight_decay=0.0)
    )
    optimizer = kind([points], **options)
    for step in range(300):
        if step == 200:
            optimizer.param_groups[0]["lr"] *= 0.05
        optimizer.zero_grad()
        (1 - (points * target).sum(-1)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(points.data.norm(dim=-1), torch.ones(5, dtype=torch.float64))
    assert (points.data - target).norm(dim=-1).max() < 1e-2


@pytest.mark.parametrize(
    "manifold", [Lorentz(0.7), PoincareBall(0.7, exact=True)], ids=["lorentz", "ball"]
)
@pytest.mark.parametrize("kind", [RiemannianSGD, RiemannianAdam, RiemannianAdamW])
def test_methods_and_kernels_agree(manifold, kind, monkeypatch):
    """What the closed forms of the kernels compute is what the methods of the manifolds do one by
    one."""
    torch.manual_seed(0)
    start = manifold.from_tangent0(0.8 * torch.randn(6, 3, dtype=torch.float64))
    target = manifold.from_tangent0(0.8 * torch.randn(6, 3, dtype=torch.float64))
    options = dict(lr=0.03, weight_decay=0.01) | (
        {"momentum": 0.9, "nesterov": True} if kind is RiemannianSGD else {}
    )
    if kind is RiemannianAdamW and isinstance(manifold, Lorentz):
        options["weight_decay"] = 0.0  # by the centroid there, along the radius here
    found = []
    for by_methods in (False, True):
        if by_methods:
            monkeypatch.setattr("hypvision.optim.base.kernel_of", kernels.MethodKernel)
        points = ManifoldParameter(start.clone(), manifold)
        optimizer = kind([points], **options)
        for _ in range(5):
            optimizer.zero_grad()
            manifold.dist(points, target).square().sum().backward()
            optimizer.step()
        found.append(points.data)
    torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)


def test_what_a_manifold_lacks_is_told():
    class Bare(Manifold):
        pass

    with pytest.raises(TypeError, match="need egrad2rgrad, .*Bare"):
        RiemannianAdam([ManifoldParameter(torch.zeros(3, 4), Bare())])
    points = ManifoldParameter(torch.eye(4)[:3], SphereWithoutOrigin())
    points.grad = torch.ones(3, 4)
    with pytest.raises(
        TypeError, match="weight decay needs from_tangent0, to_tangent0 of the manifold Sphere"
    ):
        RiemannianAdamW([points], weight_decay=0.1).step()


def test_vectors_without_an_origin_and_with_one_make_the_same_steps():
    found = []
    for sphere in (Sphere(), SphereWithoutOrigin()):
        torch.manual_seed(0)
        points = ManifoldParameter(sphere.projx(torch.randn(5, 4, dtype=torch.float64)), sphere)
        optimizer = RiemannianAdam([points], lr=0.05, weight_decay=0.0)
        for _ in range(5):
            optimizer.zero_grad()
            points[:, 0].sum().backward()
            optimizer.step()
        found.append(points.data)
    torch.testing.assert_close(*found)
