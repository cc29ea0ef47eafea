"""What training with curvatures adds to the engine: groups, the curvature log, calibration."""

import logging
import math
from types import SimpleNamespace

import pytest
import timm
import torch

from hypvision.errors import HypvisionError
from hypvision.optim import RiemannianSGD
from hypvision.tasks import ImageClassifier
from hypvision.tasks.hyperbolic import CalibrationError, CurvatureHook, RiemannianParamGroups
from hypvision.tasks.optim import TimmParamGroups
from hypvision.tasks.retrieval import MetricLearningParamGroups

MICRO = dict(model_name="hecnn_resnet18", num_classes=3, layers=(1, 1, 1, 1), widths=(4, 4, 6, 6))


def test_groups_have_their_rates():
    model = ImageClassifier(MICRO)
    config = dict(optimizer=dict(type="RiemannianSGD", lr=0.1, momentum=0.9, weight_decay=5e-4, move="project"))
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


def test_unknown_options_are_explained():
    with pytest.raises(HypvisionError, match="'curvature_rate', but RiemannianParamGroups knows manifold_lr_scale"):
        RiemannianParamGroups(dict(optimizer=dict(type="RiemannianSGD", lr=0.1)), dict(curvature_rate=1.0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(move="none"), "optim_wrapper.optimizer of the config.*move must be one of 'tangent'"),
        (dict(momentum=-0.5), "optim_wrapper.optimizer of the config.*momentum"),
        (dict(speed=1), "optim_wrapper.optimizer of the config.*'speed'"),
    ],
)
@pytest.mark.parametrize("constructor", [RiemannianParamGroups, MetricLearningParamGroups, TimmParamGroups])
def test_values_that_the_optimizer_refuses_are_mistakes_of_the_config(constructor, wrong, message):
    config = dict(optimizer=dict(type="RiemannianSGD", lr=0.1, **wrong))
    with pytest.raises(HypvisionError, match=message):
        constructor(config)(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan])
def test_values_that_the_network_refuses_are_mistakes_of_the_config(value):
    with pytest.raises(HypvisionError, match="model.backbone of the config.*positive"):
        ImageClassifier(dict(MICRO, curvature=value))


def test_calibration_error_is_that_of_a_count_by_hand():
    metric = CalibrationError(bins=2)
    scores = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.55, 0.45]]  # all in the upper bin
    samples = [dict(scores=torch.tensor(s), label=label) for s, label in zip(scores, (0, 0, 0, 1))]
    samples += [dict(scores=torch.tensor([0.4, 0.3, 0.3]), label=1)]  # alone in the lower
    metric.process(None, samples)
    expected = 100 * (4 / 5 * abs(2 / 4 - (0.9 + 0.8 + 0.6 + 0.55) / 4) + 1 / 5 * 0.4)
    assert metric.compute_metrics(metric.results)["ece"] == pytest.approx(expected, rel=1e-5)
    assert CalibrationError().compute_metrics([(1.0, True), (1.0, True)])["ece"] == 0
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
