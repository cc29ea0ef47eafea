"""A hook that records in a classifier's checkpoints where the features of its classes lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor
from torch.utils.data import Subset

from hypvision.checkpoints.types import Weights
from hypvision.data.samplers import evenly
from hypvision.engine.extensions import RUN_HOOKS
from hypvision.engine.hooks import network_of
from hypvision.io import Plain
from hypvision.io.images import open_image
from hypvision.zoo.familiar import KEY, Familiar, NoLevels, fit, levels_of, written

from .probe import as_tested, labelled_features

_OF_A_CLASS = 20  # largest number of training images of a class
_FOREIGN = 200  # largest number of images of another kind
_MOST = 1000  # largest number of training images, and of validation images


@HOOKS.register_module()
class FamiliarHook(Hook):
    """Puts :class:`~hypvision.zoo.familiar.Familiar` into the checkpoints that are meant for use
    (the best ones, the linear probe and the last), if the classifier has one label an image,
    levels of features and validation data.

    The hook looks at up to 20 training images of each class, and at most at 1,000 training and
    1,000 validation images.
    """

    priority = "LOW"  # the hook runs after EMAHook has put the averaged weights into the checkpoint

    def before_save_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        """Add the features' description to ``checkpoint["meta"]``, in place."""
        model = network_of(runner)
        is_last = checkpoint["meta"]["iter"] >= runner.max_iters
        if not ("optimizer" not in checkpoint or is_last) or not _measurable(runner, model):
            return
        train = runner.train_dataloader.dataset
        held_out = runner.val_dataloader.dataset
        try:
            found = familiar_images(model, train, held_out, checkpoint["state_dict"])
        except NoLevels:  # as of networks whose levels give tuples
            return
        # The limit of features that overflow is not finite; readers accept a file without it.
        if math.isfinite(found.limit):
            checkpoint["meta"][KEY] = written(found)


def familiar_images(
    model: Any, train: Any, held_out: Any, weights: Weights | None = None
) -> Familiar:
    """Return where the features of the classes lie, measured on some training images, with the
    limit for familiar images, measured on some of the held-out data. ``weights`` are the model's
    weights from a checkpoint; None: those that the model has."""
    train = as_tested(train, held_out)
    features, labels = labelled_features(
        model, Subset(train, some_of_each(train.labels)), weights=weights, of_levels=True
    )
    chosen = evenly(len(held_out), _MOST)
    others, _ = labelled_features(model, Subset(held_out, chosen), weights=weights, of_levels=True)
    return fit(features, labels, others)


def noticed_images(
    model: Any,
    known: Familiar,
    transform: Callable[[Any], Tensor],
    data: str,
    files: Sequence[Path],
) -> Plain:
    """Return the entry of a record for images of another kind: the share of at most 200 of the
    files, evenly spaced, that lie beyond the limit."""
    shown = [files[place] for place in evenly(len(files), _FOREIGN)]
    pictures = [dict(inputs=transform(open_image(str(file))), label=0) for file in shown]
    features, _ = labelled_features(model, pictures, of_levels=True)
    noticed = (known.distances(features) > known.limit).float().mean().item()
    return dict(data=data, images=len(pictures), noticed=round(noticed, 4))


def _measurable(runner: Runner, model: Any) -> bool:
    """Return whether the run has the data and the levels that the hook needs."""
    of_one_label = getattr(model, "multi_label", None) is False
    if (
        not of_one_label
        or not levels_of(model.backbone)
        or runner.val_loop is None
        or "runner_type" in runner.cfg
    ):
        return False
    datasets = (runner.train_dataloader.dataset, runner.val_dataloader.dataset)
    known = all(
        hasattr(dataset, "transform") and hasattr(dataset, "labels") for dataset in datasets
    )
    return known and len(datasets[1]) > 1


def some_of_each(labels: np.ndarray) -> list[int]:
    """Return the positions of the first images of each class; if these are too many, some of them,
    evenly spaced."""
    found = []
    for label in np.unique(labels):
        found += np.flatnonzero(labels == label)[:_OF_A_CLASS].tolist()
    return [found[place] for place in evenly(len(found), _MOST)]


RUN_HOOKS.append("FamiliarHook")
