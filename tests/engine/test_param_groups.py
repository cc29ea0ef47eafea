"""Optimisers and their wrappers by name, from configs of the engine."""

from __future__ import annotations

import pytest
import timm
import torch
from helpers.cases import each
from torch import nn

pytest.importorskip("mmengine")
from mmengine.optim import PolyParamScheduler, build_optim_wrapper

from hypvision.engine.param_groups import RiemannianParamGroups, TimmParamGroups
from hypvision.geometry import Lorentz, ManifoldParameter
from hypvision.optim import RiemannianAdam, RiemannianAdamW, RiemannianSGD, get_total_norm
from hypvision.tasks.metric_learning import MetricLearner, MetricLearningParamGroups


class Model(nn.Module):
    def __init__(self, radius: float = 0.5):
        super().__init__()
        torch.manual_seed(0)
        self.points = ManifoldParameter(
            Lorentz(1.0).from_tangent0(radius * torch.randn(6, 3)), Lorentz(1.0)
        )
        self.linear = nn.Linear(4, 2)

    def loss(self):
        return self.linear(self.points).square().sum()


@each("kind", [RiemannianSGD, RiemannianAdam, RiemannianAdamW])
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
        type="RiemannianOptimWrapper",
        optimizer=dict(type="RiemannianSGD", lr=0.0),
        clip_grad=dict(max_norm=0.5),
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


def test_muon_leaves_tables_to_adamw():
    model = nn.ModuleDict(
        {"words": nn.Embedding(40, 8), "head": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}
    )
    model.register_parameter("positional_embedding", nn.Parameter(torch.randn(5, 8)))
    config = dict(optimizer=dict(type="TimmMuon", lr=0.1, weight_decay=0.05))
    optimizer = TimmParamGroups(config)(model).optimizer
    tables = {
        id(p)
        for group in optimizer.param_groups
        if group.get("use_fallback")
        for p in group["params"]
    }
    assert tables == {id(model["words"].weight), id(model.positional_embedding)}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(model.parameters())
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = (
        model["norm"](
            model["head"](model["words"](torch.arange(3)) + model.positional_embedding[:3])
        )
        .square()
        .sum()
    )
    loss.backward()
    optimizer.step()
    moved = {name: (p - before[name]).abs().max().item() for name, p in model.named_parameters()}
    assert all(change > 0 for change in moved.values())
    # the first step of AdamW moves each number with a gradient by the learning rate
    assert moved["words.weight"] == pytest.approx(0.1, rel=0.2)


@each("constructor", [TimmParamGroups, RiemannianParamGroups, MetricLearningParamGroups])
def test_muon_leaves_proxies_prompts_and_points_to_adamw(constructor):
    """By every constructor; rows of these are vectors of their own, not a matrix."""
    backbone = dict(model_name="test_vit", img_size=32)
    learner = MetricLearner(
        backbone, dict(dim=8, geometry="poincare"), 5, hier_loss=dict(num_proxies=16)
    )
    mapper = nn.ModuleDict(
        {"backbone": timm.create_model("himapper", backbone="test_vit", img_size=32, num_classes=5)}
    )
    prompts = nn.Module()
    prompts.learner = nn.Module()
    for name in ("ctx", "visual", "keys", "other"):
        setattr(prompts.learner, name, nn.Parameter(torch.randn(4, 8)))
    prompts.learner.deep_text = nn.ParameterList([torch.randn(4, 8)])
    for model, expected in (
        (learner, {"hier_loss.proxies", "metric_loss.loss.proxies"}),
        (mapper, {"backbone.mapper.tree.mean", "backbone.mapper.tree.log_variance"}),
        (prompts, {"learner.ctx", "learner.visual", "learner.keys", "learner.deep_text.0"}),
        (Model(), {"points"}),
    ):
        optimizer = constructor(dict(optimizer=dict(type="TimmMuon", lr=0.1)))(model).optimizer
        apart = {
            id(p)
            for group in optimizer.param_groups
            if group.get("use_fallback")
            for p in group["params"]
        }
        found = {name for name, p in model.named_parameters() if id(p) in apart}
        assert {name for name in found if not name.endswith("pos_embed")} == expected


def test_a_factor_of_zero_keeps_parameters_as_they_are_under_muon_and_decay():
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"stages": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), "head": nn.Linear(4, 2)}
    )
    wrapper = build_optim_wrapper(
        model,
        dict(
            constructor="TimmParamGroups",
            paramwise_cfg=dict(lr_mult={"stages.*.weight": 0.0, "head": 0.5}),
            optimizer=dict(type="TimmMuon", lr=0.1, weight_decay=0.3),
        ),
    )
    schedule = PolyParamScheduler(wrapper, "lr", begin=0, end=3, eta_min=0.01, by_epoch=False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        wrapper.update_params(model.head(model.stages(torch.ones(3, 4))).square().sum())
        schedule.step()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"stages.0.bias", "stages.1.bias", "head.weight", "head.bias"}
    assert {group["initial_lr"] for group in wrapper.optimizer.param_groups} == {0.05, 0.1}
