"""Averages of points by torch, timm and mmengine's way: on the manifold, and where theory says."""

import copy
import warnings

import pytest
import torch
from helpers.cases import each
from timm.optim import Lookahead
from timm.utils import ModelEmaV2, ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel

from hypvision.geometry import Lorentz, ManifoldParameter, PoincareBall
from hypvision.io.errors import ArgumentError
from hypvision.optim import RiemannianSGD, averaging_points, points_avg_fn, with_points

MANIFOLDS = {
    "hyperboloid": lambda: Lorentz(0.7),
    "ball": lambda: PoincareBall(1.3),
    "learned hyperboloid": lambda: Lorentz(0.7, learnable=True),
    "learned ball": lambda: PoincareBall(1.3, learnable=True),
}


class Net(nn.Module):
    def __init__(self, manifold, points):
        super().__init__()
        self.manifold = manifold
        self.points = ManifoldParameter(points, manifold)
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def line(manifold, dtype=torch.float32):
    """Two points, and a function that gives those of the geodesic through them."""
    torch.manual_seed(0)
    size = 4 - isinstance(manifold, Lorentz)
    start, end = manifold.expmap0(torch.randn(2, 1, 3 if size == 3 else 4, dtype=torch.float64))
    return lambda t: manifold.geodesic(float(t), start, end).to(dtype)


def off(manifold, points):
    """How far points are from the manifold, as a share of their size."""
    points = points.detach().double()
    c = torch.as_tensor(manifold.c).detach().double()
    if isinstance(manifold, PoincareBall):
        return float((points.norm(dim=-1) * c.sqrt()).max()) - 1
    time, space = points[..., 0], points[..., 1:]
    expected = (space.square().sum(-1) + 1 / c).sqrt()
    return float(((time - expected).abs() / expected).max())


# name -> an average of a model, with the decay that it has at the step n (from 0)
AVERAGES = {
    "SWA": (lambda net: AveragedModel(net, multi_avg_fn=points_avg_fn(net)), lambda n: n / (n + 1)),
    "EMA of torch": (
        lambda net: AveragedModel(net, multi_avg_fn=points_avg_fn(net, 0.9)),
        lambda n: 0.9 if n else 0.0,
    ),
    "SWA with buffers": (
        lambda net: AveragedModel(net, multi_avg_fn=points_avg_fn(net), use_buffers=True),
        lambda n: n / (n + 1),
    ),
    "ModelEmaV3": (lambda net: with_points(ModelEmaV3(net, decay=0.9)), lambda n: 0.9),
    "ModelEmaV2": (lambda net: with_points(ModelEmaV2(net, decay=0.9)), lambda n: 0.9),
}


def step(average, net):
    (average.update if hasattr(average, "update") else average.update_parameters)(net)


@each("average", AVERAGES)
@each("kind", ["hyperboloid", "ball"])
def test_points_on_a_geodesic_average_to_their_mean_place(average, kind):
    """40 steps: every average is the geodesic's point at the average of the places."""
    manifold = MANIFOLDS[kind]()
    at = line(manifold)
    make, decay = AVERAGES[average]
    net = Net(manifold, at(0.3))
    found = make(net)
    place = 0.3
    generator = torch.Generator().manual_seed(1)
    for n in range(40):
        t = torch.rand((), generator=generator).item()
        with torch.no_grad():
            net.points.copy_(at(t))
            net.weight.fill_(t)
        step(found, net)
        place = decay(n) * place + (1 - decay(n)) * t
        if n == 0:
            start = 0.0 if average.startswith("ModelEma") else net.weight[0].item()
            weight = decay(0) * start + (1 - decay(0)) * t
        else:
            weight = decay(n) * weight + (1 - decay(n)) * t
    expected = at(place)
    torch.testing.assert_close(found.module.points.detach(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.module.weight.detach(), torch.full((3,), weight))
    assert off(manifold, found.module.points) < 2e-7


@each("average", AVERAGES)
@each("kind", MANIFOLDS)
def test_points_stay_on_the_manifold_of_the_average(average, kind):
    """A training of 30 steps, far out, with the curvature that is learned averaged, too."""
    torch.manual_seed(2)
    manifold = MANIFOLDS[kind]()
    net = Net(manifold, manifold.expmap0(3 * torch.randn(5, 4 if "hyper" in kind else 3)).detach())
    found = AVERAGES[average][0](net)
    before = copy.deepcopy(net.state_dict())
    for _ in range(30):
        with torch.no_grad():
            for parameter in manifold.parameters():
                parameter.add_(0.01 * torch.randn(()))
            move = 0.3 * torch.randn_like(net.points)
            net.points.copy_(manifold.projx(net.points + move))
        step(found, net)
    assert off(found.module.manifold, found.module.points) < 2e-7
    assert not torch.equal(found.module.points, before["points"])
    assert found.module.points.manifold is found.module.manifold
    if "learned" in kind:
        assert found.module.manifold.c.item() != net.manifold.c.item()


@each("average", ["AveragedModel", "ModelEmaV3", "ModelEmaV2"])
def test_averages_of_coordinates_are_told_once(average):
    manifold = Lorentz(1.0)
    at = line(manifold)
    net = Net(manifold, at(0))
    make = {"AveragedModel": AveragedModel, "ModelEmaV3": ModelEmaV3, "ModelEmaV2": ModelEmaV2}
    found = make[average](net)
    with pytest.warns(UserWarning, match=f"{average} averages the coordinates of points.*points"):
        step(found, net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(found, net)
        for flat in (nn.Linear(2, 2),):
            step(make[average](flat), flat)
        for name in AVERAGES:
            step(AVERAGES[name][0](net), net)
    assert copy.deepcopy(found).module.points.manifold is not manifold


def test_lookahead_is_told():
    manifold = Lorentz(1.0)
    net = Net(manifold, line(manifold)(0))
    net.points.grad = torch.zeros_like(net.points)
    with pytest.warns(UserWarning, match="Lookahead steps through flat space"):
        Lookahead(RiemannianSGD(net.parameters(), lr=0.1)).step()


def test_another_model_is_refused():
    manifold = Lorentz(1.0)
    net, other = (Net(manifold, line(manifold)(0)) for _ in range(2))
    average = AveragedModel(net, multi_avg_fn=points_avg_fn(other))
    average.update_parameters(net)
    with pytest.raises(ArgumentError, match="does not find the weights of its model"):
        average.update_parameters(net)


@each("wrap", [nn.DataParallel, torch.compile])
def test_a_wrapper_around_the_training_model_changes_nothing(wrap):
    manifold = Lorentz(1.0)
    model = Net(manifold, manifold.random(6, 3))
    ema = with_points(ModelEmaV3(model, decay=0.5))
    plain = with_points(ModelEmaV3(model, decay=0.5))
    model.points.data = manifold.random(6, 3)
    ema.update(wrap(model))
    plain.update(model)
    torch.testing.assert_close(ema.module.points, plain.module.points)


def test_points_are_found_by_their_names():
    """Whatever the order in which the training model registers them, and what it has beside."""
    manifold = PoincareBall(1.0)
    near, far = torch.full((1, 2), 0.1), torch.full((1, 2), 0.4)
    model = nn.ParameterDict(dict(q=ManifoldParameter(far, manifold)))
    model["p"] = ManifoldParameter(near, manifold)
    average = nn.ParameterDict(dict(p=ManifoldParameter(far * 0, manifold)))
    average["q"] = ManifoldParameter(far * 0, manifold)
    model["weight"] = nn.Parameter(torch.zeros(3))
    with averaging_points(average, model, 1.0):
        pass
    torch.testing.assert_close(average["p"].data, near)
    torch.testing.assert_close(average["q"].data, far)


def test_an_average_that_nothing_else_holds_is_updated():
    """And one that was copied before its first update."""
    ManifoldParameter(torch.zeros(2, 3), PoincareBall(1.0))
    AveragedModel(nn.Linear(2, 2)).update_parameters(nn.Linear(2, 2))
    copied = copy.deepcopy(AveragedModel(nn.Linear(2, 2)))
    copied.update_parameters(nn.Linear(2, 2))
    assert copied.n_averaged == 1
