"""The optimisers on a manifold that this package does not know: the unit sphere, and our own
through their methods."""

import pytest
import torch
from helpers.cases import each

from hypvision.geometry import Lorentz, Manifold, ManifoldParameter, PoincareBall, Product
from hypvision.optim import RiemannianAdam, RiemannianAdamW, RiemannianSGD


class SphereWithoutOrigin(Manifold):
    """Unit vectors ``(..., n + 1)``."""

    extra = 1

    def projx(self, x):
        return x / x.norm(dim=-1, keepdim=True)

    def egrad2rgrad(self, x, v):
        return v - (x * v).sum(-1, keepdim=True) * x

    def inner(self, x, u, v=None, *, keepdim=False):
        return (u * (u if v is None else v)).sum(-1, keepdim=keepdim)

    def retr(self, x, u):
        size = u.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        return self.projx(torch.cos(size) * x + torch.sin(size) * u / size)

    def transp(self, x, y, v):
        return v - (y * v).sum(-1, keepdim=True) / (1 + (x * y).sum(-1, keepdim=True)) * (x + y)


class Sphere(SphereWithoutOrigin):
    """With the exponential map at the first axis."""

    def expmap0(self, u):
        origin = torch.eye(u.shape[-1] + 1, dtype=u.dtype)[0]
        return self.retr(origin, torch.cat([torch.zeros_like(u[..., :1]), u], -1))

    def logmap0(self, x):
        size = torch.acos(x[..., :1].clamp(-1, 1))
        return x[..., 1:] * (size / torch.sin(size).clamp(min=1e-12))


@each(
    "sphere, kind",
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


@each("manifold", [Lorentz(0.7), PoincareBall(0.7, exact=True)])
@each("kind", [RiemannianSGD, RiemannianAdam, RiemannianAdamW])
def test_methods_and_kernels_agree(manifold, kind, monkeypatch):
    """What the closed forms of the kernels compute is what the methods of the manifolds do one by
    one."""
    torch.manual_seed(0)
    start = manifold.from_tangent0(0.8 * torch.randn(6, 3, dtype=torch.float64))
    target = manifold.from_tangent0(0.8 * torch.randn(6, 3, dtype=torch.float64))
    options = dict(lr=0.03, weight_decay=0.01) | (
        {"momentum": 0.9, "nesterov": True} if kind is RiemannianSGD else {}
    )
    if kind is RiemannianAdamW:  # a decay in frames takes the momentum along
        options["weight_decay"] = 0.0
    found = []
    for by_methods in (False, True):
        if by_methods:
            monkeypatch.setattr("hypvision.optim.base.manifold_of", lambda parameter: None)
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

    points = ManifoldParameter(torch.zeros(3, 4), Bare())
    points.grad = torch.ones(3, 4)
    with pytest.raises(TypeError, match="Bare.*egrad2rgrad"):
        RiemannianAdam([points]).step()
    points = ManifoldParameter(torch.eye(4)[:3], SphereWithoutOrigin())
    points.grad = torch.ones(3, 4)
    with pytest.raises(TypeError, match="SphereWithoutOrigin.*logmap0"):
        RiemannianAdamW([points], weight_decay=0.1).step()


def test_a_product_with_a_factor_of_ones_own():
    torch.manual_seed(0)
    sphere = Sphere()
    product = Product((sphere, 3), (Lorentz(1.0), 2))
    start = torch.cat([torch.eye(4)[:3], Lorentz(1.0).random(3, 2)], -1)
    points = ManifoldParameter(start.clone(), product)
    optimizer = RiemannianSGD([points], lr=0.1, momentum=0.9)
    for _ in range(3):
        points.grad = torch.randn(3, 7)
        optimizer.step()
    torch.testing.assert_close(points.data[:, :4].norm(dim=-1), torch.ones(3))
    assert Lorentz(1.0).check_point_on_manifold(points.data[:, 4:])
    assert not torch.equal(points.data, start)
