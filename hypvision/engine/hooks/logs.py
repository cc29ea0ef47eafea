"""Hooks that write into the log: losses of all processes, CPU seconds, curvatures, and the metrics
of each class."""

from __future__ import annotations

import time
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from hypvision.engine.metrics import worst
from hypvision.geometry import CurvatureParameter
from hypvision.io import Metrics

from .repeat import network_of


@HOOKS.register_module()
class ReduceLossHook(Hook):
    """Average the logged losses over the processes; mmengine logs those of the first process.

    This takes one all-reduce of a small vector in each iteration, after backward. The hook runs
    before hooks that log or check losses.
    """

    priority = "HIGHEST"

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if get_world_size() == 1 or not outputs:
            return
        names = [name for name in sorted(outputs) if isinstance(outputs[name], torch.Tensor)]
        values = torch.stack([outputs[name].detach().float().mean() for name in names])
        all_reduce(values, op="mean")
        for name, value in zip(names, values):
            outputs[name] = value


@HOOKS.register_module()
class CoreTimeHook(Hook):
    """Count a training's CPU seconds over all restarts, in ``core_seconds`` of the message hub.

    The seconds are the user and system time of this process, with validations and without data
    loader workers.
    """

    def before_train(self, runner: Runner) -> None:
        self._begin = time.process_time() - runner.message_hub.get_info("core_seconds", 0.0)

    def _count(self, runner: Runner, *_: Any, **__: Any) -> None:
        runner.message_hub.update_info("core_seconds", time.process_time() - self._begin)

    # These methods run before a checkpoint is written, in trainings by epochs and by iterations.
    after_train_iter = after_train_epoch = after_train = _count


@HOOKS.register_module()
class CurvatureHook(Hook):
    """Log the learned curvatures ``c`` after every epoch, as ``curvature/NAME``."""

    def after_train_epoch(self, runner: Runner) -> None:
        model = network_of(runner)
        curvatures = {
            name.removesuffix(".log_c"): parameter.detach().exp().item()
            for name, parameter in model.named_parameters()
            if isinstance(parameter, CurvatureParameter)
        }
        for name, value in curvatures.items():
            runner.message_hub.update_scalar(f"train/curvature/{name}", value)
        if curvatures:
            runner.logger.info(
                "Curvature c: "
                + ", ".join(f"{name} {value:.4g}" for name, value in curvatures.items())
            )


@HOOKS.register_module()
class ClassTableHook(Hook):
    """Log the metrics of each class, the worst class first."""

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        self._log(runner, runner.val_evaluator)

    def after_test_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        self._log(runner, runner.test_evaluator)

    @staticmethod
    def _log(runner: Runner, evaluator: Any) -> None:
        for metric in evaluator.metrics:
            classes = getattr(metric, "classes", ())
            lines = [
                f"{found.value:7.2f}  {found.name} ({found.samples})"
                for found in worst(classes, _LOGGED)
            ]
            if len(classes) > _LOGGED:
                lines.append(f"    and {len(classes) - _LOGGED} better classes")
            if lines:
                runner.logger.info(
                    "\n".join([f"{type(metric).__name__} of each class (samples):", *lines])
                )


_LOGGED = 50  # number of worst classes whose results are logged
