"""Hooks that stop a training: at NaN, by a signal, early, or before it begins."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import (
    all_reduce,
    get_world_size,
    is_main_process,
)
from mmengine.hooks import CheckpointHook as _CheckpointHook
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from hypvision.engine.checkpoint import point_to
from hypvision.engine.hooks.classes import class_heads
from hypvision.engine.hooks.repeat import (
    last_checkpoint,
    last_good,
    network_of,
    steps_done,
    validates_here,
)
from hypvision.io.checks import at_least, ensure, one_of
from hypvision.io.errors import HypvisionError, explaining, few


class TrainingInterrupted(KeyboardInterrupt):
    """Raised when a run has received SIGINT or SIGTERM and its state is on disk; the message says
    how to resume."""


@HOOKS.register_module()
class UnusedParametersHook(Hook):
    """Stop a training on several processes before its first step if a parameter got no gradient;
    without this, the second step would fail with PyTorch's error about reductions."""

    def before_train(self, runner: Runner) -> None:
        model = runner.model
        optimizer = getattr(runner.optim_wrapper, "optimizer", None)
        strict = get_world_size() > 1 and not getattr(model, "find_unused_parameters", True)
        if strict and isinstance(optimizer, torch.optim.Optimizer):
            self._first = True
            optimizer.register_step_pre_hook(lambda *_: self._check(network_of(runner)))

    def _check(self, model: torch.nn.Module) -> None:
        # The check stays registered, since a hook must not remove itself while the hooks are being
        # called.
        if not self._first:
            return
        self._first = False
        unused = [
            name for name, p in model.named_parameters() if p.requires_grad and p.grad is None
        ]
        if unused:
            raise HypvisionError(
                f"{len(unused)} parameters get no gradient ({few(unused, 5)}), but training in "
                "several processes needs one for each. Freeze them, leave their part out of the "
                "model, or set --cfg-options find_unused_parameters=True (which takes time in each "
                "step)."
            )


@HOOKS.register_module()
class CanLearnHook(Hook):
    """Raise an error, or warn, if a training would change nothing: softmax of one output, learning
    rate 0, frozen weights."""

    def before_train(self, runner: Runner) -> None:
        self._told = False
        model = network_of(runner)
        rates: list[float] = sum(runner.optim_wrapper.get_lr().values(), [])
        groups = getattr(runner.optim_wrapper, "param_groups", ())
        reason = ""
        # Methods without a training have such models, so this is no error.
        if not any(parameter.requires_grad for parameter in model.parameters()):
            runner.logger.warning(
                "All weights of the model are frozen: the training changes none of them."
            )
        elif any(_is_constant(part) for part in class_heads(model)):
            reason = (
                "The model has one class with one output, whose softmax is always 1. Add a class "
                "of everything else, or use a loss of single outputs (multi_label=True, or "
                "use_sigmoid=True of a segmenter's loss)."
            )
        elif not any(rates) and not any(group.get("initial_lr") for group in groups):
            reason = (
                "The learning rate is 0. Set it, say with --cfg-options "
                "optim_wrapper.optimizer.lr=0.001."
            )
        if reason:
            raise HypvisionError(f"This training would change nothing. {reason}")

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if self._told or any(sum(runner.optim_wrapper.get_lr().values(), [])):
            return
        self._told = True
        runner.logger.warning(
            "From iteration %d of %d on the learning rate is 0, so that nothing is learned. "
            "Compare begin and end of the schedules in param_scheduler with the length of the "
            "training.", runner.iter + 1,
            runner.max_iters,
        )  # fmt: skip


def _is_constant(head: Any) -> bool:
    """Return whether the outputs of a head do not depend on its weights, which is so for a softmax
    of one class."""
    losses = getattr(head, "loss_decode", None)
    if losses is None:
        return head.num_classes == 1 and getattr(head, "multi_label", None) is False
    each = losses if isinstance(losses, torch.nn.ModuleList) else [losses]
    return getattr(head, "out_channels", None) == 1 and not any(
        getattr(loss, "use_sigmoid", True) for loss in each
    )


@HOOKS.register_module()
class StopOnNaNHook(Hook):
    """Stop a training whose loss is not finite before it writes a checkpoint; the error names the
    iteration, the last good checkpoint and what to try."""

    # ReduceLossHook must run first, so that all processes see the same loss and stop together.
    priority = "HIGHEST"

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        # item() adds no wait for the GPU, since the logger reads the same value right after this
        # hook.
        loss = torch.as_tensor((outputs or {}).get("loss", 0.0)).detach().item()
        if math.isfinite(loss):
            return
        last = last_good(runner)
        rates = ", ".join(
            f"{rate:.3g}" for rate in sorted(set(sum(runner.optim_wrapper.get_lr().values(), [])))
        )
        raise HypvisionError(
            f"The loss became {loss} in iteration {runner.iter + 1} (epoch {runner.epoch + 1}, "
            f"learning rate {rates}). {last}. Try a lower learning rate (--cfg-options "
            "optim_wrapper.optimizer.lr=...), gradient clipping (--cfg-options "
            "optim_wrapper.clip_grad.max_norm=1.0), or no --amp; then go on with --resume."
        )


@HOOKS.register_module()
class InterruptHook(Hook):
    """Stop a run cleanly between two iterations on SIGINT and SIGTERM.

    A run by iterations writes a checkpoint at this point. A run by epochs relies on the checkpoint
    of its last epoch, because it resumes at the start of an epoch. A second signal ends the process
    at once.

    Raises:
        TrainingInterrupted: the run was stopped and its state is on disk.
    """

    # CheckpointHook and EMAHook must run first.
    priority = "LOWEST"

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def before_train(self, runner: Runner) -> None:
        self._previous = {
            number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _note(self, number: int, frame: Any) -> None:
        self._received = signal.Signals(number)
        self.restore()

    def restore(self) -> None:
        """Restore the previous handlers of SIGINT and SIGTERM."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        stop = self._received is not None
        if get_world_size() > 1:
            # All processes must stop in the same iteration, or the others would wait forever.
            flag = torch.tensor(float(stop), device=next(runner.model.parameters()).device)
            all_reduce(flag, op="max")
            stop = bool(flag.item())
        if stop:
            self._stop(runner)

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._received is not None and get_world_size() == 1:
            raise TrainingInterrupted(self._advice(runner))

    def explain(self, runner: Runner) -> None:
        """Raise TrainingInterrupted if an error came after a signal: data workers got the same
        signal and ended first, which was the error."""
        if self._received is not None:
            raise TrainingInterrupted(self._advice(runner))

    def _stop(self, runner: Runner) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            name = f"iter_{runner.iter + 1}.pth"
            runner.save_checkpoint(
                runner.work_dir, filename=name, by_epoch=False, meta=dict(iter=runner.iter + 1)
            )
            if is_main_process():
                point_to(runner.work_dir, Path(runner.work_dir) / name)
        raise TrainingInterrupted(self._advice(runner))

    @staticmethod
    def _advice(runner: Runner) -> str:
        checkpoint = last_checkpoint(runner.work_dir)
        if checkpoint is None:
            return "Interrupted before the first checkpoint: start again with the same command."
        return (
            f"Interrupted. '{checkpoint}' is complete: run the same command with --resume to go on "
            "from it."
        )


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

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
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
