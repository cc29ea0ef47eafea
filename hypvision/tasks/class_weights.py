"""Weights of classes in a loss: given as numbers, or computed from how rare each class is in the
training data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor

from hypvision.data.samplers import BalancedSampler, class_numbers
from hypvision.engine.extensions import MODEL_HOOKS
from hypvision.engine.hooks import network_of
from hypvision.io.checks import at_least, one_of
from hypvision.io.errors import HypvisionError


class ClassWeights:
    """The weights of the classes in a loss. This object is not a module, so checkpoints and
    averages of weights do not contain it.

    ``given`` is a number for each class, ``"balanced"`` or None for no weights. Balanced, a class
    of N_c among N images has the weight N / (C N_c), so that all classes count alike. With several
    labels an image the weight of a class is that of an image with the label relative to an image
    without it; balanced: (N - N_c) / N_c.
    """

    def __init__(self, given: str | Sequence[float] | None):
        self.given = given
        self.values = None
        if isinstance(given, str):
            one_of(("balanced",), class_weights=given)
        elif given is not None:
            for value in given:
                at_least(0, class_weights=value)
            if not any(given):
                raise HypvisionError(f"One of the class_weights must be above 0, got {given!r}.")
            self.values = torch.tensor(given, dtype=torch.float32)

    def follow(self, names: Sequence[str], order: Sequence[str]) -> None:
        """Reorder weights that were given in the order of the classes ``names`` to the classes
        ``order``; classes of ``order`` that are not in ``names`` get the weight 1."""
        if self.values is not None and self.given != "balanced" and len(self.values) == len(names):
            by_name = dict(zip(names, self.values))
            other = torch.tensor(1.0)
            self.values = torch.stack([by_name.get(name, other) for name in order])

    def fit(self, dataset: Any, device: torch.device) -> None:
        """Compute balanced weights from the training data, or check that it has as many classes as
        there are weights; then move the weights to ``device``."""
        names = dataset.metainfo["classes"]
        if self.given == "balanced":
            labels = dataset.labels if np.ndim(getattr(dataset, "labels", ())) == 2 else None
            counts = (
                np.bincount(class_numbers(dataset), minlength=len(names))
                if labels is None
                else labels.sum(0)
            )
            shares = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
            if labels is not None:
                shares = (len(labels) - counts) / np.maximum(counts, 1)
            self.values = torch.from_numpy(np.where(counts > 0, shares, 1.0)).float()
        if self.values is None:
            return
        if len(self.values) != len(names):
            raise HypvisionError(
                f"There are {len(self.values)} class_weights, but the training data has "
                f"{len(names)} classes: "
                f"{', '.join(map(str, names[:10]))}{', ...' if len(names) > 10 else ''}. Give "
                "model.class_weights a number for each, in this order, or 'balanced'."
            )
        self.values = self.values.to(device)

    def __call__(self) -> Tensor | None:
        """Return the weights of the classes (C,), or None if the loss has no weights."""
        if self.given is not None and self.values is None:
            raise HypvisionError(
                "class_weights='balanced' needs counts of the training data: train with "
                "`hypvision train`."
            )
        return self.values


@HOOKS.register_module()
class ClassWeightsHook(Hook):
    """Gives the training data to the ``class_weights`` of the model, if the model has some."""

    def before_train(self, runner: Runner) -> None:
        model = network_of(runner)
        weights = getattr(model, "class_weights", None)
        if isinstance(weights, ClassWeights):
            weights.fit(runner.train_dataloader.dataset, next(model.parameters()).device)
            sampler = getattr(runner.train_dataloader, "sampler", None)
            uneven = weights.values is not None and len(weights.values.unique()) > 1
            if (
                weights.given == "balanced"
                and uneven
                and isinstance(sampler, BalancedSampler)
                and sampler.power
            ):
                runner.logger.warning(
                    "Rare classes count twice over: BalancedSampler draws them more often, and "
                    "class_weights='balanced' weighs each of their images more. Leave out one of "
                    "the two."
                )


MODEL_HOOKS["class_weights"] = "ClassWeightsHook"
