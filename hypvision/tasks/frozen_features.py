"""Retrieval by the features of a backbone that is not trained, which a metric learner must beat."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from hypvision.engine.extensions import MODEL_HOOKS
from hypvision.engine.hooks import network_of
from hypvision.engine.reports import BASELINE, CHOSEN
from hypvision.inference.progress import say
from hypvision.io import Metrics

from .classification import per_image
from .probe import evaluating

_NAME = "features of the backbone"


@torch.no_grad()
def retrieval_by_features(runner: Runner, model: Any) -> Metrics:
    """Return the metrics of the validation data for the features that the backbone of a
    :class:`~hypvision.tasks.metric_learning.MetricLearner` has now, compared by the cosine; without
    its neck."""
    evaluator = runner.val_loop.evaluator
    with evaluating(model):
        for batch in runner.val_dataloader:
            given = model.data_preprocessor(batch)
            features = F.normalize(model.features(given["inputs"]).float()).cpu()
            spaces = ["cosine"] * len(features)
            samples = per_image(
                given["label"], given["index"], embedding=features, features=features, space=spaces
            )
            evaluator.process(data_samples=samples, data_batch=batch)
    found = evaluator.evaluate(len(runner.val_dataloader.dataset))
    return {key: value for key, value in found.items() if not key.startswith("encoder_")}


@HOOKS.register_module()
class FrozenFeaturesHook(Hook):
    """For a metric learner that begins with trained weights of its backbone: measures retrieval by
    these features before the first step, and says at the end whether the training was better."""

    priority = "LOWEST"  # the hook runs after classes have been compared

    def __init__(self) -> None:
        self._validated = -1

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        self._validated = runner.iter

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        if runner._resume or runner.val_loop is None or not getattr(model, "is_tuned", False):
            return
        metrics = retrieval_by_features(runner, model)
        runner.message_hub.update_info(BASELINE, dict(metrics, name=_NAME))
        if is_main_process():
            key, value = next(iter(metrics.items()))
            say(f"before  {key} {value:.4g} by the {_NAME}, without a training")

    def after_train(self, runner: Runner) -> None:
        """Print what the features and the training reached, and which of the two to take."""
        known = runner.message_hub.get_info(BASELINE, {})
        if not is_main_process() or known.get("name") != _NAME:
            return
        key, before = next(iter(known.items()))
        values = self._values(runner, key)
        if not values or not all(map(math.isfinite, (before, *values))):
            return
        best = max(values)
        reached = best
        weights = runner.message_hub.get_info("best_ckpt") or ""
        if not Path(weights).name.startswith(f"best_{key}_"):
            reached = values[-1]
            weights = runner.message_hub.get_info("last_ckpt", "")
        if weights:
            runner.message_hub.update_info(CHOSEN, weights)
        take = f"take {Path(weights or 'the last checkpoint').name}"
        if reached < before:
            take = (
                "the features were better: search with the model that the backbone came from, "
                "hypvision metric search --model NAME"
            )
        say(
            f"result  {key}: {_NAME} {before:.4g}, trained {values[-1]:.4g} at the end, "
            f"{best:.4g} at best; {take}"
        )

    def _values(self, runner: Runner, key: str) -> list[float]:
        """Return the values of a metric in the validations; none where the last weights were not
        validated here, whose value is then not known."""
        logged = runner.message_hub.log_scalars.get(f"val/{key}")
        if logged is None or self._validated != runner.iter:
            return []
        found: list[float] = logged.data[0].tolist()
        return found


MODEL_HOOKS["neck"] = "FrozenFeaturesHook"  # which every metric learner has
