"""Parameters of geoopt's class in our optimisers: the steps of geoopt's own, on every manifold that
it has."""

import copy

import geoopt
import pytest
import torch
from helpers.cases import each

from hypvision.optim import (
    RiemannianAdam,
    RiemannianAdamW,
    RiemannianSGD,
    clip_grad_norm_,
    get_total_norm,
    param_groups,
)

SHAPES = {
    "SymmetricPositiveDefinite": (3, 2, 2),
    "BirkhoffPolytope": (3, 4, 4),
    "UpperHalf": (2, 2),
    "BoundedDomain": (2, 2),
} | dict.fromkeys(
    ("Stiefel", "CanonicalStiefel", "EuclideanStiefel", "EuclideanStiefelExact"), (2, 5, 3)
)
BUILT = {
    "Scaled": lambda: geoopt.Scaled(geoopt.Sphere(), 2.0),
    "ProductManifold": lambda: geoopt.ProductManifold(
        (geoopt.Sphere(), 3), (geoopt.PoincareBall(), 3)
    ),
    "StereographicProductManifold": lambda: geoopt.StereographicProductManifold(
        (geoopt.PoincareBall(), 3), (geoopt.SphereProjection(), 3)
    ),
    "Stiefel": lambda: geoopt.Stiefel(canonical=False),
}
MANIFOLDS = sorted(
    name
    for name, kind in vars(geoopt).items()
    if isinstance(kind, type) and issubclass(kind, geoopt.Manifold) and kind is not geoopt.Manifold
)
OPTIONS = [
    (RiemannianSGD, geoopt.optim.RiemannianSGD, {"lr": 0.02, "weight_decay": 0.1}),
    (RiemannianSGD, geoopt.optim.RiemannianSGD, {"lr": 0.01, "momentum": 0.9, "dampening": 0.1}),
    (
        RiemannianSGD,
        geoopt.optim.RiemannianSGD,
        {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    (RiemannianAdam, geoopt.optim.RiemannianAdam, {"lr": 0.02, "weight_decay": 0.1}),
    (RiemannianAdam, geoopt.optim.RiemannianAdam, {"lr": 0.02, "amsgrad": True}),
]


def points(name):
    torch.manual_seed(0)
    manifold = BUILT[name]() if name in BUILT else getattr(geoopt, name)()
    manifold = manifold.double()
    draw = manifold.random_normal if name == "Lorentz" else manifold.random
    data = draw(*SHAPES.get(name, (4, 6)))
    data = data.detach().as_subclass(torch.Tensor).clone()
    return geoopt.ManifoldParameter(data if data.is_complex() else data.double(), manifold=manifold)


def run(parameter, optimizer, steps=5):
    target = torch.linspace(-1, 1, parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
    for _ in range(steps):
        optimizer.zero_grad()
        (parameter - target).abs().square().sum().backward()
        optimizer.step()
    return parameter.detach()


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)  # geoopt keeps its curvatures in this
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("ours", "theirs", "options"), OPTIONS)
@each("name", MANIFOLDS)
def test_steps_are_geoopts(name, ours, theirs, options):
    start = points(name)
    if start.is_complex() and "amsgrad" in options:
        pytest.skip("geoopt has no amsgrad for complex numbers either")
    parameter, other = copy.deepcopy(start), copy.deepcopy(start)
    mine = ours(
        [parameter], **options, **({"geoopt_first_step": True} if "momentum" in options else {})
    )
    found, expected = run(parameter, mine), run(other, theirs([other], **options))
    assert (found - start).abs().max() > 1e-3
    torch.testing.assert_close(found, expected)
    start.manifold.assert_check_point(found)


def test_geoopts_and_our_points_share_an_optimizer_and_its_state():
    parameter, flat = (
        points("PoincareBall"),
        geoopt.ManifoldParameter(torch.ones(3), manifold=geoopt.Euclidean()),
    )
    model = torch.nn.ParameterDict(
        {"points": parameter, "flat": flat, "weight": torch.nn.Parameter(torch.ones(2, 2))}
    )
    groups = param_groups(model, lr=0.1, manifold_lr_scale=0.5, weight_decay=0.01)
    assert {g["name"]: len(g["params"]) for g in groups} == {
        "weights": 1,
        "no_weight_decay": 1,
        "points": 1,
    }
    plain = copy.deepcopy(flat.data).requires_grad_()
    optimizer, other = RiemannianAdam([parameter, flat], lr=0.1), torch.optim.Adam([plain], lr=0.1)
    for tensors, one in (([parameter, flat], optimizer), ([plain], other)):
        for _ in range(3):
            one.zero_grad()
            sum((tensor - 0.3).square().sum() for tensor in tensors).backward()
            one.step()
    assert torch.equal(flat.data, plain.data)
    twin = copy.deepcopy(parameter)
    resumed = RiemannianAdam([twin, copy.deepcopy(flat)], lr=0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    torch.testing.assert_close(run(twin, resumed), run(parameter, optimizer))


def test_clipping_by_the_riemannian_norm():
    parameter = points("PoincareBall")
    parameter.grad = torch.randn_like(parameter)
    expected = parameter.manifold.norm(
        parameter, parameter.manifold.egrad2rgrad(parameter, parameter.grad)
    ).norm()
    torch.testing.assert_close(get_total_norm(parameter), expected.detach())
    clip_grad_norm_(parameter, 0.1)
    torch.testing.assert_close(get_total_norm(parameter).item(), 0.1, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["PoincareBall", "Lorentz", "Sphere"])
def test_decoupled_decay_goes_to_the_origin(name):
    parameter = points(name)
    parameter.grad = torch.zeros_like(parameter)
    optimizer = RiemannianAdamW([parameter], lr=0.1, weight_decay=0.5)
    if name == "Sphere":
        with pytest.raises(TypeError, match="Sphere of geoopt has no origin.*weight_decay=0"):
            optimizer.step()
        return
    before = parameter.manifold.dist0(parameter.detach())
    optimizer.step()
    torch.testing.assert_close(parameter.manifold.dist0(parameter.detach()), 0.95 * before)


def test_what_cannot_be_stepped_is_told():
    table = points("PoincareBall")
    torch.nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
    with pytest.raises(RuntimeError, match="Sparse gradients"):
        RiemannianAdam([table]).step()
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.manifold = object()
    with pytest.raises(TypeError, match="a parameter on object, which lacks egrad2rgrad"):
        RiemannianSGD([parameter])
