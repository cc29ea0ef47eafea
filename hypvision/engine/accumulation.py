"""Save and restore accumulated gradients in checkpoints between two optimiser steps."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.dist import gather_object, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hypvision.engine.hooks import network_of
from hypvision.engine.sharded import cut, whole_tensor
from hypvision.io.types import Plain


@HOOKS.register_module()
class AccumulationHook(Hook):
    """Save the sums over ``accumulative_counts`` iterations in checkpoints that fall between them,
    so that a resumed run repeats the uninterrupted one at any interval.

    The sums are the gradients and, if the model has a list ``accumulated``, the tensors in it,
    which the model sums over the iterations of a step and over all processes. A checkpoint stores
    them under ``"accumulated"``, one dict per process; a run with another number of processes
    resumes with the mean of the gradients and the sum of the tensors.
    """

    def __init__(self) -> None:
        self._kept: list[Plain] = []

    def before_train(self, runner: Runner) -> None:
        save = runner.save_checkpoint

        def save_all(*args: Any, **options: Any) -> None:
            """Save a checkpoint with the sums of all processes; all processes call this and one
            writes."""
            stepped = all(one.should_update() for one in _optims(runner))
            summed = _summed(network_of(runner)) | dict(counts=_counts(runner))
            self._kept = [] if stepped else gather_object(summed) or []
            save(*args, **options)

        runner.save_checkpoint = save_all

    def before_save_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        if self._kept and "optimizer" in checkpoint:
            checkpoint["accumulated"] = self._kept

    def after_load_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        kept = checkpoint.get("accumulated")
        if not kept or not runner._resume:
            return
        if kept[0].get("counts", _counts(runner)) != _counts(runner):
            runner.logger.warning(
                "The checkpoint lies between two steps with "
                f"accumulative_counts={kept[0]['counts']}, and the config has {_counts(runner)}: "
                "the gradients that the checkpoint has accumulated are dropped."
            )
            return
        model: Any = network_of(runner)
        own = kept[get_rank()] if len(kept) == get_world_size() else None
        _set_gradients(model, kept, own)
        sums = _sums(kept, own)
        if sums:
            device = next(model.parameters()).device
            model.accumulated = [value.to(device) for value in sums]


def _set_gradients(model: nn.Module, kept: list[Plain], own: Plain | None) -> None:
    """Set the gradient of each parameter to that of this process in the checkpoint; ``own`` None:
    to the mean over the processes."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            grad = _gradient(name, kept, None)
            parameter.grad = None if grad is None else cut(grad, parameter)
            continue
        grad = _gradient(name, kept, own)
        parameter.grad = None if grad is None else grad.to(parameter.device)


def _sums(kept: list[Plain], own: Plain | None) -> list[Tensor]:
    """Return this process's sums in a checkpoint. If the checkpoint has another number of processes
    (``own`` None), process 0 gets the total and the others get zeros."""
    if own is not None:
        return own["sums"]
    sums = [sum(values) for values in zip(*(one["sums"] for one in kept))]
    return [torch.zeros_like(value) for value in sums] if get_rank() else sums


def _gradient(name: str, kept: list[Plain], own: Plain | None) -> Any:
    """Return the gradient of the parameter ``name`` in a checkpoint: that of a sharded parameter in
    full, else that of this process, or the mean over the processes if ``own`` is None; None if the
    parameter has no gradient."""
    if name in kept[0]["whole"]:
        return kept[0]["whole"][name]
    if own is not None:
        return own["gradients"].get(name)
    parts = [one["gradients"][name] for one in kept if name in one["gradients"]]
    return sum(parts) / len(kept) if parts else None


def _optims(runner: Runner) -> list[Any]:
    wrapper = runner.optim_wrapper
    return list(wrapper.values()) if isinstance(wrapper, OptimWrapperDict) else [wrapper]


def _counts(runner: Runner) -> list[int]:
    """Return the number of iterations in a step of each optimiser. mmengine divides gradients by it
    while it sums them, so sums of another number cannot be continued."""
    return [one._accumulative_counts for one in _optims(runner)]


def _summed(model: nn.Module) -> Plain:
    """Return the gradients and sums of this process; in process 0 also the full gradients of
    sharded parameters."""
    gradients: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        # All processes must call this function, since it gathers the shards of a gradient.
        grad = whole_tensor(parameter.grad)
        if grad is not None and not isinstance(parameter, DTensor):
            gradients[name] = grad.cpu()
        elif grad is not None and get_rank() == 0:
            whole[name] = grad.cpu()
    return dict(
        gradients=gradients,
        whole=whole,
        sums=[value.cpu() for value in getattr(model, "accumulated", [])],
    )
