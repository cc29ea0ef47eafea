"""Compiled steps: one graph, and the numbers of the eager ones."""

import pytest
import torch
from torch import nn

from hypvision import optim
from hypvision.geometry import Lorentz, ManifoldParameter, PoincareBall

OPTIMIZERS = {
    "adam": lambda parameters: optim.RiemannianAdam(parameters, lr=0.05, weight_decay=0.1),
    "amsgrad": lambda parameters: optim.RiemannianAdam(parameters, lr=0.05, amsgrad=True),
    "adamw": lambda parameters: optim.RiemannianAdamW(parameters, lr=0.05, weight_decay=0.1),
    "sgd": lambda parameters: optim.RiemannianSGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
}
MANIFOLDS = {
    "hyperboloid": lambda: Lorentz(0.7),
    "learned": lambda: Lorentz(0.7, learnable=True),
    "ball": lambda: PoincareBall(0.7),
}


def test_every_optimiser_has_a_row():
    public = [getattr(optim, name) for name in optim.__all__]
    kinds = {kind for kind in public if isinstance(kind, type)}
    assert {type(make([nn.Parameter(torch.zeros(1))])) for make in OPTIMIZERS.values()} == kinds


def trained(make_optimizer, make_manifold, backend=None):
    """Parameters after four steps, with the same gradients each time."""
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    manifold = make_manifold()
    start = torch.randn(10, 6, generator=generator) * 0.4
    points = ManifoldParameter(manifold.projx(start), manifold)
    weight = nn.Parameter(torch.randn(7, 3, generator=generator))
    parameters = [points, weight, *manifold.parameters()]
    optimizer = make_optimizer(parameters)
    step = optimizer.step
    if backend is not None:
        step = torch.compile(step, backend=backend, fullgraph=True)
    for number in range(4):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if number == 0:
            optimizer.step()  # makes the states
        else:
            step()
    return parameters


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS])
@pytest.mark.quick("adam-hyperboloid", "sgd-ball")
def test_compiled_steps_are_one_graph_with_the_same_numbers(optimizer, manifold):
    check_same(OPTIMIZERS[optimizer], MANIFOLDS[manifold], "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_steps_by_inductor(optimizer):
    """By the compiler that users take."""
    check_same(OPTIMIZERS[optimizer], MANIFOLDS["hyperboloid"], "inductor")


def check_same(make_optimizer, make_manifold, backend):
    eager = trained(make_optimizer, make_manifold)
    compiled = trained(make_optimizer, make_manifold, backend)
    for found, expected in zip(compiled, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    points = compiled[0]
    points.manifold.check_point(points.detach())
