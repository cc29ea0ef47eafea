"""Optimisers and their wrappers by name, from configs of the engine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("mmengine")
from mmengine.optim import build_optim_wrapper

import hypvision.tasks.optim  # noqa: F401 - registers what configs name
from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.optim import RiemannianAdam, RiemannianAdamW, RiemannianSGD, get_total_norm


class Model(nn.Module):
    def __init__(self, radius: float = 0.5):
        super().__init__()
        torch.manual_seed(0)
        self.points = ManifoldParameter(Lorentz(1.0).from_tangent0(radius * torch.randn(6, 3)), Lorentz(1.0))
        self.linear = nn.Linear(4, 2)

    def loss(self):
        return self.linear(self.points).square().sum()


@pytest.mark.parametrize("kind", [RiemannianSGD, RiemannianAdam, RiemannianAdamW])
def test_optimisers_by_name(kind):
    model = Model()
    config = dict(type="RiemannianOptimWrapper", optimizer=dict(type=kind.__name__, lr=1e-2))
    wrapper = build_optim_wrapper(model, config)
    assert type(wrapper.optimizer) is kind
    before = model.loss().item()
    for _ in range(20):
        wrapper.update_params(model.loss())
    assert model.loss().item() < before
    model.points.manifold.check_point(model.points)


def test_gradients_are_clipped_by_their_riemannian_norm():
    model = Model(radius=3.0)
    config = dict(
        type="RiemannianOptimWrapper", optimizer=dict(type="RiemannianSGD", lr=0.0), clip_grad=dict(max_norm=0.5)
    )
    wrapper = build_optim_wrapper(model, config)
    model.loss().backward()
    riemannian = get_total_norm(model.parameters()).item()
    euclidean = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
    assert abs(riemannian - euclidean) > 0.1 * euclidean  # else this test would not tell them apart
    wrapper.step()
    assert get_total_norm(model.parameters()).item() == pytest.approx(0.5, rel=1e-4)


def test_values_are_clipped_as_ever():
    config = dict(
        type="RiemannianOptimWrapper",
        optimizer=dict(type="RiemannianSGD", lr=0.0),
        clip_grad=dict(type="value", clip_value=1e-3),
    )
    model = Model()
    wrapper = build_optim_wrapper(model, config)
    model.loss().backward()
    wrapper.step()
    assert max(p.grad.abs().max().item() for p in model.parameters()) <= 1.001e-3
