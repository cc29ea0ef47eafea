"""What training with curvatures adds to the engine: groups, the curvature log, calibration."""

import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch
from helpers.cases import each
from mmengine.registry import HOOKS, PARAM_SCHEDULERS

from hypvision.engine.config import load_config
from hypvision.engine.hooks import CurvatureHook
from hypvision.engine.param_groups import GroupMultiStepLR, RiemannianParamGroups, TimmParamGroups
from hypvision.geometry import Euclidean, Lorentz, ManifoldParameter, PoincareBall, Product
from hypvision.io.errors import HypvisionError
from hypvision.optim import RiemannianSGD
from hypvision.tasks import CalibrationError, ImageClassifier
from hypvision.tasks.metric_learning import MetricLearningParamGroups

MICRO = dict(model_name="hecnn_resnet18", num_classes=3, layers=(1, 1, 1, 1), widths=(4, 4, 6, 6))


def test_groups_have_their_rates():
    model = ImageClassifier(MICRO)
    config = dict(
        optimizer=dict(
            type="RiemannianSGD", lr=0.1, momentum=0.9, weight_decay=5e-4, move="project"
        )
    )
    wrapper = RiemannianParamGroups(config, dict(manifold_lr_scale=0.2, curvature_lr=0.01))(model)
    assert isinstance(wrapper.optimizer, RiemannianSGD)
    groups = {group["name"]: group for group in wrapper.optimizer.param_groups}
    assert {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()} == {
        "weights": (0.1, 5e-4),
        "no_weight_decay": (0.1, 0.0),
        "points": (pytest.approx(0.02), 5e-4),
        "curvatures": (0.01, 0.0),
    }
    assert all(group["move"] == "project" for group in groups.values())
    assert sum(len(group["params"]) for group in groups.values()) == len(list(model.parameters()))


@each("constructor", [RiemannianParamGroups, TimmParamGroups])
@each("arguments", [{}, dict(model_name="himapper", backbone="vit_tiny_patch16_224")])
def test_modules_inside_spare_their_parameters_from_weight_decay(constructor, arguments):
    model = ImageClassifier(
        dict(model_name="vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3) | arguments
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = constructor(dict(optimizer=dict(type="RiemannianAdamW", lr=0.1, weight_decay=0.1)))(
        model
    ).optimizer.param_groups
    decays = {names[id(p)]: group["weight_decay"] for group in groups for p in group["params"]}
    spared = {f"backbone.{name}" for name in model.backbone.no_weight_decay()} & decays.keys()
    assert {name.rpartition(".")[2] for name in spared} >= {"cls_token", "pos_embed"}
    assert {decays[name] for name in spared} == {0.0} and max(decays.values()) == 0.1


def _recipe():
    return load_config(
        Path(__file__).parents[2] / "configs/hecnn/hcnn-plus-resnet18_200e_cifar10.py"
    )


def test_the_recipe_of_the_papers_has_their_schedule():
    """Rates and weight decay of each group over the 200 epochs: x 0.2 after 60, 120 and 160; points
    skip the first."""
    config = _recipe()
    wrapper = RiemannianParamGroups(config.optim_wrapper, config.optim_wrapper.paramwise_cfg)
    wrapper.optim_wrapper_cfg = dict(type="OptimWrapper")
    wrapped = wrapper(ImageClassifier(dict(MICRO, model_name="hcnn_resnet18", plus=True)))
    optimizer = wrapped.optimizer
    schedules = [
        PARAM_SCHEDULERS.build(dict(s), default_args=dict(optimizer=wrapped))
        for s in config.param_scheduler
    ]
    expected = {"weights": 0.1, "no_weight_decay": 0.1, "points": 0.02, "curvatures": 1e-3}
    assert {group["name"] for group in optimizer.param_groups} == set(expected)
    for epoch in range(config.train_cfg.max_epochs):
        drops = (epoch >= 60) + (epoch >= 120) + (epoch >= 160)
        for group in optimizer.param_groups:
            own = drops - (epoch >= 60) if group["name"] == "points" else drops
            assert group["lr"] == pytest.approx(expected[group["name"]] * 0.2**own), (
                epoch,
                group["name"],
            )
            assert group["weight_decay"] == (0 if group["name"] == "curvatures" else 5e-4)
        wrapped.step()
        for schedule in schedules:
            schedule.step()


def test_spared_points_are_points_for_schedules_and_for_decay_all():
    class Spared(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.points = ManifoldParameter(Lorentz(1.0).random(3, 2), Lorentz(1.0))

        def no_weight_decay(self):
            return {"points"}

    config = dict(optimizer=dict(type="RiemannianSGD", lr=0.1, weight_decay=0.05))
    for decay_all in (False, True):
        wrapper = RiemannianParamGroups(config, dict(decay_all=decay_all))(Spared())
        (points,) = (
            g for g in wrapper.optimizer.param_groups if g["name"] == "points_no_weight_decay"
        )
        assert points["weight_decay"] == (0.05 if decay_all else 0.0)
    schedule = GroupMultiStepLR(wrapper.optimizer, milestones=[1], gamma=0.1, leave_out=("points",))
    wrapper.optimizer.step()
    schedule.step()
    rates = {group["name"]: group["lr"] for group in wrapper.optimizer.param_groups}
    assert rates["points_no_weight_decay"] == 0.1 and rates["weights"] == pytest.approx(0.01)


def test_groups_to_leave_out_need_names():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(HypvisionError, match="no names.*RiemannianParamGroups"):
        GroupMultiStepLR(optimizer, milestones=[1], leave_out=("points",))


def test_unknown_options_are_explained():
    with pytest.raises(
        HypvisionError, match="'curvature_rate', but RiemannianParamGroups knows manifold_lr_scale"
    ):
        RiemannianParamGroups(
            dict(optimizer=dict(type="RiemannianSGD", lr=0.1)), dict(curvature_rate=1.0)
        )


@each(
    "wrong, message",
    [
        (dict(move="none"), "optim_wrapper.optimizer of the config.*move must be one of 'tangent'"),
        (dict(momentum=-0.5), "optim_wrapper.optimizer of the config.*momentum"),
        (dict(speed=1), "optim_wrapper.optimizer of the config.*'speed'"),
    ],
)
@each("constructor", [RiemannianParamGroups, MetricLearningParamGroups, TimmParamGroups])
def test_values_that_the_optimizer_refuses_are_mistakes_of_the_config(constructor, wrong, message):
    config = dict(optimizer=dict(type="RiemannianSGD", lr=0.1, **wrong))
    with pytest.raises(HypvisionError, match=message):
        constructor(config)(torch.nn.Linear(2, 2))


@each("value", [-1.0, 0.0, math.nan])
def test_values_that_the_network_refuses_are_mistakes_of_the_config(value):
    with pytest.raises(
        HypvisionError, match="model.backbone of the config.*curvature must be .* above 0"
    ):
        ImageClassifier(dict(MICRO, curvature=value))


def test_a_failed_download_is_not_reported_as_a_mistake_of_the_config(monkeypatch):
    class Offline(OSError, ValueError):
        pass

    def fetch(*_, **__):
        raise Offline("no route to the hub")

    monkeypatch.setattr(timm, "create_model", fetch)
    with pytest.raises(Offline):
        ImageClassifier(dict(MICRO))


def test_calibration_error_is_that_of_a_count_by_hand():
    metric = CalibrationError(bins=2)
    scores = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.55, 0.45]]  # all in the upper bin
    samples = [dict(scores=torch.tensor(s), label=label) for s, label in zip(scores, (0, 0, 0, 1))]
    metric.process(None, samples)
    metric.process(
        None, [dict(scores=torch.tensor([0.4, 0.3, 0.3]), label=1)]
    )  # alone in the lower
    expected = 100 * (4 / 5 * abs(2 / 4 - (0.9 + 0.8 + 0.6 + 0.55) / 4) + 1 / 5 * 0.4)
    assert metric.compute_metrics(metric.results)["ece"] == pytest.approx(expected, rel=1e-5)
    assert CalibrationError().compute_metrics([(1.0, True), (1.0, True)])["ece"] == 0
    for scores in ([0.5, 0.3], [1.2, -0.2], [3.0, 4.0]):  # similarities, logits
        with pytest.raises(HypvisionError, match="CalibrationError needs probabilities"):
            metric.process(None, [dict(scores=torch.tensor(scores), label=0)])
    with pytest.raises(ValueError, match="bins"):
        CalibrationError(bins=0)


def test_curvatures_are_logged(caplog):
    model = timm.create_model(**MICRO)
    seen = {}
    runner = SimpleNamespace(
        model=model,
        logger=logging.getLogger("curvature-test"),
        message_hub=SimpleNamespace(update_scalar=lambda name, value: seen.update({name: value})),
    )
    with caplog.at_level(logging.INFO, "curvature-test"):
        CurvatureHook().after_train_epoch(runner)
    assert seen == {"train/curvature/manifolds.0": 1.0, "train/curvature/head_manifold": 1.0}
    assert "manifolds.0 1" in caplog.text


@each("kind", ["ExponentialMovingAverage", "MomentumAnnealingEMA", "StochasticWeightAverage"])
@each(
    "manifold",
    [
        Lorentz(1.0),
        Lorentz(0.5, learnable=True),
        PoincareBall(1.0),
        Product((Lorentz(1.0), 4), (Euclidean(), 4)),
        Euclidean(),
    ],
)
def test_an_average_of_points_lies_on_their_manifold(kind, manifold):
    """Far from the origin, in float32, on the geodesic to the new points."""
    model = torch.nn.Module()
    model.manifold = manifold
    generator = torch.Generator().manual_seed(0)
    model.points = ManifoldParameter(manifold.random(6, 8, std=2.0, generator=generator), manifold)
    model.weight = torch.nn.Parameter(torch.zeros(1))
    hook = HOOKS.build(dict(type="EMAHook", ema_type=kind))
    runner = SimpleNamespace(model=model, iter=0, epoch=0)
    hook.before_run(runner)
    hook.after_train_iter(runner, 0)
    average = hook.ema_model.module
    first = average.points.detach().clone()
    assert torch.equal(first, model.points)
    model.points.data = manifold.random(6, 8, std=2.0, generator=generator).detach()
    model.weight.data += 1
    if manifold.learnable:
        manifold.log_c.data += 0.1
        model.points.data = manifold.projx(model.points).detach()
    hook.after_train_iter(runner, 1)
    average.manifold.check_point(average.points, "the average")
    if not manifold.learnable:
        moved = manifold.dist(first, average.points) / manifold.dist(first, model.points)
        torch.testing.assert_close(moved, average.weight.detach().expand(6), rtol=2e-2, atol=1e-5)
