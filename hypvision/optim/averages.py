"""Averages of weights over a training, whose points stay on their manifolds.

Stochastic weight averaging and moving averages take the mean of every coordinate, but the mean of
two points of the hyperboloid does not lie on it. Here a point moves along the geodesic to the new
point, by the same share by which a weight moves. Points on one geodesic thus get the average of
their positions on it.

>>> swa = AveragedModel(model, multi_avg_fn=points_avg_fn(model))         # torch, equal weights
>>> ema = AveragedModel(model, multi_avg_fn=points_avg_fn(model, 0.999))  # torch, moving average
>>> ema = with_points(ModelEmaV3(model, decay=0.999))                     # timm

For mmengine :mod:`hypvision.engine.hooks` replaces ``EMAHook`` by a hook that averages in the same
way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.geometry import Manifold, named_manifold_parameters
from hypvision.io import ArgumentError


def between(manifold: Manifold, old: Tensor, new: Tensor, share: float) -> Tensor:
    """Return the points ``(..., d)`` at the given share of the way from ``old`` to ``new``, in the
    dtype of ``old``. Both are first brought onto the manifold, because its curvature may have been
    averaged, too."""
    start, end = (manifold.projx(point.detach().to(old)) for point in (old, new))
    return manifold.projx(manifold.geodesic(share, start, end))


@contextmanager
def averaging_points(average: nn.Module, model: nn.Module, share: float) -> Iterator[None]:
    """Average the points of a model when this context ends, inside of which another function
    averages its weights.

    Args:
        average: the model that holds the average, which is changed.
        model: the model in training, also in a wrapper such as ``DataParallel`` or
            ``torch.compile``; its parameters have the same names or, in a wrapper, the same order.
        share: the share of the way that a weight moves to the new one, 1 minus the decay.
    """
    points = [
        (name, parameter, manifold, parameter.detach().clone())
        for name, parameter, manifold in named_manifold_parameters(average)
    ]
    yield
    new = dict(model.named_parameters())
    if not new.keys() >= {name for name, *_ in points}:
        # By their order, as timm finds them, because a wrapper has changed the names.
        names = (name for name, _ in average.named_parameters())
        new = dict(zip(names, model.parameters(), strict=True))
    for name, parameter, manifold, old in points:
        parameter.data.copy_(between(manifold, old, new[name], share))


def points_avg_fn(
    model: nn.Module, decay: float | None = None
) -> Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]:
    """Return a ``multi_avg_fn`` for :class:`torch.optim.swa_utils.AveragedModel` that keeps points
    on their manifolds.

    Args:
        model: the model in training, as it is given to ``AveragedModel``.
        decay: decay of a moving average, as in :func:`torch.optim.swa_utils.get_ema_multi_avg_fn`;
            None: all models count alike, as in stochastic weight averaging.
    """

    @torch.no_grad()
    def average(averaged: Sequence[Tensor], current: Sequence[Tensor], count: Any) -> None:
        share = 1 / (int(count) + 1) if decay is None else 1 - decay
        places = {new.data_ptr(): old for old, new in zip(averaged, current)}
        if not places.keys() & set(map(Tensor.data_ptr, (*model.parameters(), *model.buffers()))):
            raise ArgumentError(
                "points_avg_fn(model) does not find the weights of its model among those that are "
                "averaged. Give it the model that is given to AveragedModel and "
                "update_parameters(), and leave out device=."
            )
        points = {p.data_ptr(): manifold for _, p, manifold in named_manifold_parameters(model)}
        pairs = list(zip(averaged, current))
        for old, new in pairs:
            if not old.is_floating_point():
                old.copy_(new)
            elif new.data_ptr() not in points:
                old.lerp_(new, share)
        for old, new in pairs:  # points come after the curvatures, which they need
            manifold = points.get(new.data_ptr())
            if manifold is not None:
                old.copy_(between(_of_average(manifold, places), old, new, share))

    average.keeps_points = True  # type: ignore[attr-defined]
    return average


def _of_average(manifold: Manifold, places: Mapping[int, Tensor]) -> Manifold:
    """Return the manifold with the averaged curvature; the manifold itself if nothing of it is
    learned. ``places`` finds an average by the address of its weight."""
    if not any(True for _ in manifold.parameters()):
        return manifold
    own = copy.deepcopy(manifold)
    for parameter, averaged in zip(manifold.parameters(), own.parameters()):
        averaged.data.copy_(places.get(parameter.data_ptr(), parameter).detach())
    return own


def with_points(ema: Any) -> Any:
    """Return timm's ``ModelEmaV3`` or ``ModelEmaV2``, changed in place so that it averages points
    on their manifolds."""
    update = type(ema).update

    @torch.no_grad()
    def update_points(model: nn.Module, step: int | None = None) -> None:
        # ModelEmaV2 has one decay for all steps.
        decay = ema.get_decay(step) if hasattr(ema, "get_decay") else ema.decay
        with averaging_points(ema.module, model, 1 - decay):
            update(ema, model, *(() if step is None else (step,)))

    ema.update = update_points
    return ema
