"""A hook that ends a training whose metric no longer improves."""

from __future__ import annotations

import math
from typing import Any

from mmengine.hooks import CheckpointHook as _CheckpointHook
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from hypvision.io import HypvisionError, Metrics, at_least, ensure, explaining, one_of

from .repeat import steps_done, validates_here


@HOOKS.register_module(force=True)
class EarlyStoppingHook(Hook):
    """End a training whose metric no longer improves (early stopping), and log the reason.

    This hook replaces mmengine's, whose count starts again when a training is resumed; this one
    stores its count in the checkpoints. A checkpoint is written before the validation of its epoch,
    so a resumed training repeats this validation first (without this hook only if it was
    interrupted, see :class:`LastValidationHook`).

    Args:
        monitor: name of the metric, such as ``"top1"``; default: the one by which CheckpointHook
            chooses the best checkpoint.
        rule: ``"greater"`` or ``"less"``, the direction that is better; default: that of
            CheckpointHook, or mmengine's for this metric.
        patience: number of validations in a row without a better value after which the training
            stops.
        min_delta: a value counts as better if it exceeds the best by more than this.
        stopping_threshold: stop as soon as a value is better than this.
    """

    # CheckpointHook must run first, since the message names its best checkpoint.
    priority = "LOWEST"

    def __init__(
        self,
        monitor: str | None = None,
        rule: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        stopping_threshold: float | None = None,
    ):
        at_least(1, integer=True, patience=patience)
        at_least(0, min_delta=min_delta)
        one_of(("greater", "less", None), rule=rule)
        self.monitor = monitor
        self.rule = rule
        self.patience = patience
        self.min_delta = min_delta
        self.threshold = stopping_threshold
        self.kept: Any = None

    def before_train(self, runner: Runner) -> None:
        ensure(
            runner.val_loop is not None,
            "Early stopping needs a validation: add val_dataloader, val_cfg and val_evaluator.",
        )
        self.kept = None
        for hook in runner.hooks:
            best = (getattr(hook, "save_best", None) or ["auto"])[0]
            if best != "auto" and self.monitor in (None, best):
                self.kept = hook
                self.monitor = best
                self.rule = self.rule or hook.rules[0]
        ensure(
            self.monitor is not None,
            "Early stopping does not know which metric to look at. Set monitor='top1', or the "
            "metric that decides for your validation, in the EarlyStoppingHook.",
        )
        self.rule = self.rule or _rule_of(str(self.monitor))
        self.state = runner.message_hub.get_info("early_stopping", None) or dict(
            best=None, at=0, waited=0, seen=0
        )
        if validates_here(runner) and self.state["seen"] < steps_done(runner):
            runner.val_loop.run()

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        metrics = metrics or {}
        if self.monitor not in metrics:
            raise HypvisionError(
                f"Early stopping looks at the metric '{self.monitor}', but validation gives "
                f"{', '.join(metrics) or 'none'}. Set monitor of the EarlyStoppingHook to one of "
                "these."
            )
        value = metrics[self.monitor]
        sign = 1 if self.rule != "less" else -1
        best = -math.inf if self.state["best"] is None else sign * self.state["best"]
        state = dict(self.state, seen=steps_done(runner), waited=self.state["waited"] + 1)
        # This is never true for NaN.
        if sign * value - best > self.min_delta:
            state.update(best=float(value), at=state["seen"], waited=0)
        self.state = state
        runner.message_hub.update_info("early_stopping", state)
        reached = self.threshold is not None and sign * (value - self.threshold) > 0
        if reached or state["waited"] >= self.patience:
            runner.train_loop.stop_training = True
            runner.logger.warning(self._reason(runner, value, reached))

    def _reason(self, runner: Runner, value: float, reached: bool) -> str:
        unit = "epoch" if isinstance(runner.train_loop, EpochBasedTrainLoop) else "iteration"
        begin = f"Stopped early, after {unit} {self.state['seen']}: {self.monitor} is {value:.4g}"
        if reached:
            return f"{begin}, better than the threshold of {self.threshold:g}."
        best = self.state["best"]
        by = f" by more than {self.min_delta:g}" if self.min_delta else ""
        since = (
            "never was a number"
            if best is None
            else f"was best with {best:.4g} after {unit} {self.state['at']}"
        )
        path = getattr(self.kept, "best_ckpt_path", None)
        return (
            f"{begin}, {since} and did not get better{by} in {self.state['waited']} validations "
            f"(patience {self.patience}).{f' The best weights are in {path}.' if path else ''} To "
            "go on, give a larger patience and --resume."
        )


def _rule_of(metric: str) -> str:
    """Return ``"greater"`` or ``"less"``, whichever is better for a metric that mmengine knows;
    raise an error for other metrics."""
    with explaining(
        lambda error: (
            f"Early stopping does not know whether a greater or a smaller '{metric}' is better. "
            "Set rule='greater' or rule='less' in the EarlyStoppingHook."
        ),
        ValueError,
    ):
        return _CheckpointHook(save_best=metric).rules[0]
