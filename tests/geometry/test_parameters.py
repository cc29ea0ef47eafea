"""Parameters of points and of curvatures: what PyTorch does to parameters leaves them what they
are."""

import copy
import io
import math
import pickle

import geoopt
import pytest
import torch
from helpers.cases import each
from torch import nn

from hypvision import geometry
from hypvision.geometry import (
    CurvatureParameter,
    Euclidean,
    Lorentz,
    Manifold,
    ManifoldParameter,
    PoincareBall,
    Product,
    named_manifold_parameters,
)
from hypvision.geometry.parameters import keep_manifolds
from hypvision.losses.hier import HIERLoss
from hypvision.nn import HyperbolicEmbedding, LorentzBatchNorm2d
from hypvision.optim import RiemannianAdam, param_groups


class Cloud(nn.Module):
    """Points on a manifold with a learned curvature, in a module of a user."""

    def __init__(self, manifold, held=True):
        super().__init__()
        self.points = ManifoldParameter(
            manifold.random(3, 4).detach(), manifold, requires_grad=False
        )
        if held:
            self.manifold = manifold

    def curvature(self):
        return self.points.manifold.log_c


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(model, assign, dtype=None):
    weights = {
        name: value.to(dtype or value.dtype).clone() for name, value in model.state_dict().items()
    }
    for value in model.state_dict().values():
        value.zero_()
    model.load_state_dict(weights, assign=assign)
    return model


def loaded_from(model, weights):
    weights = copy.deepcopy(weights)
    model.to("meta").to_empty(device="cpu").load_state_dict(weights)
    return model


def by_swapping(change):
    def changed(model):
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return change(model)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return changed


CHANGES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
    "to float64": lambda model: model.to(torch.float64),
    "to float64 by swapping": by_swapping(lambda model: model.to(torch.float64)),
    "meta and back": lambda model: loaded_from(model, model.state_dict()),
    "half": lambda model: model.half(),
    "bfloat16": lambda model: model.to(torch.bfloat16),
    "to the same": lambda model: model.to("cpu"),
    "load": lambda model: loaded(model, False),
    "load and assign": lambda model: loaded(model, True),
    "load and assign half": lambda model: loaded(model, True, torch.float16),
    "load by swapping": by_swapping(lambda model: loaded(model, False)),
    "assign by swapping": by_swapping(lambda model: loaded(model, True)),
    "a copy of a pickle that loads": lambda model: loaded(copy.deepcopy(saved(model)), True),
}


@each("change", CHANGES)
@each("kind", [Lorentz, PoincareBall])
def test_class_manifold_and_values_survive(kind, change):
    torch.manual_seed(0)
    model = Cloud(kind(0.7, learnable=True))
    model.manifold.log_c.grad = torch.tensor(0.1)
    points, before = model.points.detach().clone(), dict(model.named_parameters())
    changed = CHANGES[change](model)
    assert type(changed.points) is ManifoldParameter
    assert not changed.points.requires_grad
    assert changed.points.manifold is changed.manifold
    torch.testing.assert_close(
        changed.points.double(), points.double(), rtol=0, atol=5e-2 if "16" in change else 2e-3
    )
    log_c = changed.manifold.log_c
    assert type(log_c) is CurvatureParameter
    assert log_c.requires_grad
    assert log_c.log_bounds == model.manifold.log_bounds
    assert log_c.dtype == (torch.float64 if "64" in change else torch.float32)
    if change != "load and assign half":  # the number itself was rounded there
        assert log_c.item() == pytest.approx(math.log(0.7), abs=1e-7)
    if log_c.grad is not None:
        assert log_c.grad.dtype == log_c.dtype
    if changed is model and "assign" not in change and "meta" not in change:
        assert all(before[name] is parameter for name, parameter in model.named_parameters())
    names = {group["name"] for group in param_groups(changed.requires_grad_(), lr=0.1)}
    assert names == {"points", "curvatures"}


@each(
    "make",
    [
        lambda: HyperbolicEmbedding(5, 3, PoincareBall(0.7)),
        lambda: LorentzBatchNorm2d(3, Lorentz(0.7)),
        lambda: HIERLoss(Lorentz(0.7), 3),
        lambda: nn.ParameterList([ManifoldParameter(torch.zeros(2, 3), PoincareBall(0.7))]),
    ],
)
def test_points_of_layers_stay_on_the_manifold_after_assigning(make):
    """Weights are assigned to a layer on the meta device, and its parameters go straight into an
    optimiser."""
    torch.manual_seed(0)
    source, layer = make(), make().to("meta")
    layer.load_state_dict(source.state_dict(), assign=True)
    ((_, points, manifold),) = named_manifold_parameters(layer)
    optimizer = RiemannianAdam(layer.parameters(), lr=1.0)
    for _ in range(5):
        points.grad = torch.randn_like(points)
        optimizer.step()
    manifold.check_point(points.detach())


def test_shapes_that_do_not_fit_are_pytorchs_to_tell():
    layer = HyperbolicEmbedding(5, 3, PoincareBall(0.7))
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict({"weight": torch.zeros(4, 3)}, assign=True)


@pytest.mark.parametrize(
    "make",
    [lambda: Lorentz(0.7, learnable=True), lambda: Product((Lorentz(0.7, learnable=True), 4))],
)
def test_a_learned_curvature_must_belong_to_a_module(make):
    model = Cloud(make(), held=False).requires_grad_()
    outer = nn.Module()
    outer.inner = model
    message = r"points 'inner\.points' lie on .*self.manifold = manifold"
    with pytest.raises(RuntimeError, match=message):
        outer.state_dict()
    with pytest.raises(ValueError, match=message):
        param_groups(outer)
    outer.manifold = model.points.manifold  # any module will do
    assert sum("log_c" in name for name in outer.state_dict()) == 1
    assert {group["name"] for group in param_groups(outer)} == {"points", "curvatures"}
    copied = saved(copy.deepcopy(outer))
    assert copied.state_dict().keys() == outer.state_dict().keys()


def test_a_fixed_or_frozen_curvature_needs_no_module():
    for manifold in (Lorentz(0.7), Lorentz(0.7, learnable=True).requires_grad_(False)):
        assert list(Cloud(manifold, held=False).state_dict()) == ["points"]


@each(
    "default, expected",
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_curvatures_start_in_the_default_dtype_but_not_in_half(default, expected):
    torch.set_default_dtype(default)
    try:
        manifolds = [
            getattr(geometry, name)(0.7, learnable=True)
            for name in geometry.__all__
            if isinstance(getattr(geometry, name), type)
            and issubclass(getattr(geometry, name), Manifold)
            and getattr(geometry, name) not in (Manifold, Euclidean, Product)
        ]
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(manifolds) == 2
    for manifold in manifolds:
        assert manifold.log_c.dtype == expected
        assert manifold.log_c.item() == pytest.approx(math.log(0.7), rel=torch.finfo(expected).eps)


TAKERS = {
    "ManifoldParameter": lambda manifold: ManifoldParameter(torch.zeros(2, 3), manifold),
    "Product": lambda manifold: Product((manifold, 3)),
    "layer": lambda manifold: HyperbolicEmbedding(2, 3, manifold),
    "HIERLoss": lambda manifold: HIERLoss(manifold, 3),
}


@each("taker", TAKERS)
def test_messages_say_whose_manifold_it_is(taker):
    with pytest.raises((TypeError, ValueError), match="got PoincareBall of geoopt"):
        TAKERS[taker](geoopt.PoincareBall())


@pytest.mark.parametrize("space", [Lorentz, PoincareBall])
def test_checked_points_are_loaded_together_with_their_curvature(space):
    """The points come before the curvature that they lie on."""
    first, second = (space(c, learnable=True, check=True) for c in (0.5, 2.0))
    points = [manifold.expmap0(torch.full((3, 2), 0.4) * 4) for manifold in (first, second)]
    modules = []
    for manifold, x in zip((first, second), points):
        module = torch.nn.Module()
        module.manifold, module.points = manifold, ManifoldParameter(x.detach(), manifold)
        modules.append(module)
    modules[1].load_state_dict(modules[0].state_dict(), assign=True)
    torch.testing.assert_close(modules[1].points.data, points[0].detach())
    assert isinstance(modules[1].points, ManifoldParameter)
    with pytest.raises(ValueError, match="data"):
        ManifoldParameter(torch.full((3, 3 if space is Lorentz else 2), 7.0), first)


def test_a_weight_in_the_place_of_kept_points_is_no_point():
    """Only what is cut into shards is marked again (``tests/optim/test_sharding.py``)."""
    module = nn.Module()
    module.points = ManifoldParameter(Lorentz(1.0).random(5, 3).detach(), Lorentz(1.0))
    keep_manifolds(module)
    module.points = nn.Parameter(torch.randn(5, 4))
    assert not list(named_manifold_parameters(module))
    assert RiemannianAdam([module.points]).param_groups and not hasattr(module.points, "manifold")
