"""Hooks that stop a training, at NaN, by a signal or before it begins, or that warn of signs that
it learns nothing.

A training whose learning rate ruins its network ends without an error: the loss stays at the value
of guessing, and the network gives every image the same class. :class:`SignsHook` looks for these
signs.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.dist import all_reduce, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.optim import Optimizer

from hypvision.data.usage import classes_of
from hypvision.engine.checkpoint import point_to
from hypvision.io import HypvisionError, Metrics, Values, few

from .classes import class_heads
from .repeat import last_checkpoint, last_good, network_of

_ADVICE = (
    "Stop it and try a lower rate (--cfg-options optim_wrapper.optimizer.lr=...), or for a network "
    "from random weights a longer training or weights that ship (hypvision zoo list)"
)
_HEAD = "; a new head on trained features begins best with model.head_init=probe or zero"
# The sign of a detector is that it finds no box, not that all boxes are of one class.
_BOXES = {-1, -2}
_IGNORED = 255  # the label of pixels that do not count
# The first that a model has is looked at: of classifiers, segmenters and few-shot methods.
_LOSSES = ("loss_cls", "decode.loss_ce", "loss_ce", "loss_ecls", "loss")
_WINDOW = 20  # number of steps that the loss is averaged over
_LABELS = 500  # number of steps over which the shares of the labels are averaged
_FEWEST = 10  # number of steps after which a training is checked at the earliest


_STOPPING = b"\nStopping after this step. A second signal ends at once, and saves nothing.\n"


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
                "All weights of the model are frozen, so steps change none of them. The result is "
                "what the method computes without steps."
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
        if is_main_process():
            # A handler must not print, since it may interrupt a print. The pipe may be closed, as
            # the same signal ends tee, too.
            with suppress(OSError):
                os.write(2, _STOPPING)

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


@HOOKS.register_module()
class SignsHook(Hook):
    """Warn, once for each sign, if the loss is no lower than that of guessing
    (:func:`chance_of`); if the features of all images of a batch are the same; if the gradients of
    all weights are 0; and if a validation gives all images or pixels the same class, or finds no
    box.

    Each check waits for the GPU, in one of every ``interval`` steps. The loss and the predictions
    are checked when a tenth of the training is over, and no sooner than after ``interval`` steps.

    Args:
        interval: number of steps between two checks; a shorter training than two of these is
            checked in its middle and at its end, one of under ten steps not at all.
        margin: a loss above ``margin`` times that of guessing counts as guessing.
    """

    def __init__(self, interval: int = 50, margin: float = 0.98):
        self.interval = interval
        self.margin = margin
        self._told: set[str] = set()
        self._losses: list[Tensor] = []
        self._shown: list[Tensor] = []
        self._features: list[Tensor] = []
        self._handle: Any = None
        self._wants_gradients = False
        self._largest: Tensor | None = None
        self._validated = 0
        self._answers: set[int] = set()
        self._truths: set[int] = set()

    def before_train(self, runner: Runner) -> None:
        self.interval = min(self.interval, max(runner.max_iters // 2, _FEWEST))
        model = network_of(runner)
        optimizer = getattr(runner.optim_wrapper, "optimizer", None)
        if isinstance(optimizer, Optimizer):
            optimizer.register_step_pre_hook(lambda *_: self._keep_gradients(model))

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if (runner.iter + 1) % self.interval:
            return
        self._features = []
        self._wants_gradients = True
        self._handle = listen(network_of(runner), self._keep_features)

    def _keep_features(self, found: Any) -> None:
        each = found if isinstance(found, (list, tuple)) else [found]
        self._features += [value.detach() for value in each if isinstance(value, Tensor)]

    def _keep_gradients(self, model: nn.Module) -> None:
        """Keep the largest gradient norm among weight matrices and kernels, if a check waits for
        it. Biases are left out, since they learn even without features."""
        if not self._wants_gradients:
            return
        self._wants_gradients = False
        weights = [
            p.grad
            for p in model.parameters()
            if p.ndim > 1 and type(p.grad) is Tensor and not p.grad.is_sparse
        ]
        if weights:
            self._largest = torch.stack(
                [norm.float() for norm in torch._foreach_norm(weights)]
            ).max()

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        given = outputs or {}
        model = network_of(runner)
        loss = compared_loss(model, given)
        if loss is not None:
            self._losses = [*self._losses[1 - _WINDOW :], loss.detach()]
        if getattr(model, "multi_label", False) and data_batch is not None:
            self._shown = [*self._shown[1 - _LABELS :], share_of_labels(data_batch["label"])]
        if self._handle is not None:  # None for a model without a backbone
            self._handle.remove()
            self._handle = None
        if (runner.iter + 1) % self.interval == 0:
            self._check(runner)

    def _check(self, runner: Runner) -> None:
        if self._features and all(same_for_all(value) for value in self._features):
            self._tell(
                runner, "features", "the features of all images of the last batch are the same"
            )
        self._features = []
        if self._largest is not None and self._largest.item() == 0:
            self._tell(runner, "gradients", "the gradients of all weights are 0")
        self._largest = None
        if not self._losses or not self._late(runner):
            return
        chance = chance_of(network_of(runner), self._shown)
        loss = torch.stack(self._losses).float().mean().item()
        if chance is not None and loss >= self.margin * chance.loss:
            guessing = f"that of guessing {chance.what} = {chance.loss:.3f}"
            self._tell(runner, "loss", f"the loss is {loss:.3f}, and {guessing}")

    def _late(self, runner: Runner) -> bool:
        return runner.iter + 1 >= max(self.interval, runner.max_iters // 10)

    def _tell(self, runner: Runner, kind: str, what: str, step: int | None = None) -> None:
        if kind not in self._told:
            self._told.add(kind)
            linear = getattr(network_of(runner), "has_linear_head", False)
            head = _HEAD if linear else ""
            runner.logger.warning(
                f"Nothing seems to be learned: after step {step or runner.iter + 1} {what}. "
                f"{_ADVICE}{head}."
            )

    def before_val_epoch(self, runner: Runner) -> None:
        self._validated = 0
        self._answers = set()
        self._truths = set()

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if getattr(network_of(runner), "multi_label", False):
            return
        for output in outputs or ():
            self._validated += 1
            if len(self._answers) < 2:
                self._answers |= answers_in(output)
            if len(self._truths) < 2:
                self._truths |= truths_in(output)

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        """Warn if a validation gives one answer alone, or no box, unless the validation data have
        only one class, too."""
        if runner._train_loop is None or len(self._truths) < 2 or not self._late(runner):
            return
        if self._validated < 2 or len(self._answers) > 1:
            return
        names = classes_of(runner.val_dataloader.dataset)
        of_all = f"all {self._validated} validation images"
        if not self._answers:
            self._tell(runner, "class", f"no box is found in {of_all}", runner.iter)
            return
        (number,) = self._answers
        name = names[number] if number < len(names) else number
        self._tell(runner, "class", f"{of_all} are taken for '{name}'", runner.iter)


def answers_in(output: Any) -> set[int]:
    """Return the classes that a model sees in one image of the validation: the best one of a
    classifier, those of a segmenter's pixels; of a detector :data:`_BOXES` if it finds any."""
    if isinstance(output, dict):
        return {int(output["scores"].argmax())} if "scores" in output else set()
    if hasattr(output, "pred_sem_seg"):
        return _numbers(output.pred_sem_seg.data)
    return _BOXES if len(getattr(output, "pred_instances", ())) else set()


def truths_in(output: Any) -> set[int]:
    """Return the classes that one image of the validation has by its labels; for a detector
    :data:`_BOXES`."""
    if isinstance(output, dict):
        label = output.get("label") if "scores" in output else None
        return set() if label is None else {int(label)}
    if hasattr(output, "gt_sem_seg"):
        return _numbers(output.gt_sem_seg.data) - {_IGNORED}
    return _BOXES if hasattr(output, "pred_instances") else set()


def _numbers(labels: Any) -> set[int]:
    return set(torch.as_tensor(labels).unique().tolist())


def listen(model: Any, keep: Callable[[Any], None]) -> Any:
    """Call ``keep`` with the features of each batch from now on: the input of a classifier's linear
    head, else the output of the neck (of a metric learner the embeddings), else of the backbone, or
    of the image tower of a CLIP.

    Returns:
        The handle whose ``remove()`` ends the calls; None for a model without a backbone.
    """
    tower: Any = getattr(getattr(model, "clip", None), "visual", None)
    # A CLIP may call the blocks of timm's tower one by one, but always its projection.
    tower = tower.head if hasattr(tower, "trunk") else tower
    network: Any = getattr(model, "backbone", None) or tower
    head = network.get_classifier() if hasattr(network, "get_classifier") else None
    if isinstance(head, nn.Linear):
        return head.register_forward_pre_hook(lambda _, inputs: keep(inputs[0]))
    network = getattr(model, "neck", None) or network
    if isinstance(network, nn.Module):
        return network.register_forward_hook(lambda _, inputs, found: keep(found))
    return None


def same_for_all(features: Tensor) -> bool:
    """Return whether all samples of a batch of at least two have the same features, up to
    rounding."""
    if features.ndim < 2 or len(features) < 2:
        return False
    spread = (features - features[:1]).abs().amax()
    return bool(spread <= 1e-6 * features.abs().amax())


class Chance(NamedTuple):
    """The ``loss`` of a model that has learned nothing, and ``what`` it guesses, in words."""

    loss: float
    what: str


def chance_of(model: Any, shown: Sequence[Tensor] = ()) -> Chance | None:
    """Return the loss of guessing: ``ln C`` for C classes; for several labels an image that of the
    classes' shares, which the biases of a head can give; for a CLIP what the model states in its
    attribute ``chance``, the losses of equal logits by name. None for other models.

    Args:
        model: the model of a training.
        shown: for several labels, shares of the images of some batches that show each class, each
            ``(C,)``.
    """
    own = getattr(model, "chance", None)
    if own:
        return Chance(sum(own.values()), "which image and text of a batch belong together")
    if getattr(model, "multi_label", False):
        return _chance_of_labels(model, shown)
    classes = guessed_classes(model)
    if not classes:
        return None
    return Chance(math.log(classes), f"among {classes} classes is ln {classes}")


def _chance_of_labels(model: Any, shown: Sequence[Tensor]) -> Chance | None:
    """Return the binary cross-entropy of the constant logits that are best for the shares of the
    classes, with the model's weights of the classes and its label smoothing."""
    if not shown:
        return None
    share = torch.stack(list(shown)).mean(0)
    share = share * (1 - model.label_smoothing) + model.label_smoothing / 2
    weights = model.class_weights()
    positive = share if weights is None else share * weights.to(share.device)
    negative = 1 - share
    each = positive + negative
    loss = torch.special.entr(positive) + torch.special.entr(negative) - torch.special.entr(each)
    return Chance(loss.mean().item(), "each class by its share of the images")


def share_of_labels(labels: Any) -> Tensor:
    """Return the share ``(C,)`` of the images of a batch that show each class, from labels of zeros
    and ones, each ``(C,)``."""
    rows = labels if isinstance(labels, Tensor) else torch.stack([*map(torch.as_tensor, labels)])
    return rows.float().mean(0).cpu()


def compared_loss(model: Any, given: Values) -> Tensor | None:
    """Return the loss of a step, from the values that it gave by name, that is compared with that
    of guessing."""
    names = getattr(model, "chance", None) or [next((n for n in _LOSSES if n in given), "")]
    found = [given[name] for name in names if isinstance(given.get(name), Tensor)]
    return sum(found[1:], found[0]) if found else None


def guessed_classes(model: Any) -> int:
    """Return the number of classes of a classifier with one label per image, of a segmenter, or of
    a few-shot method, that learns by plain cross-entropy; 0 for other models."""
    names = getattr(getattr(model, "host", None), "names", ())
    if names:
        return len(names)
    head: Any = getattr(model, "decode_head", None)
    loss: Any = getattr(head, "loss_decode", None)
    if type(loss).__name__ == "CrossEntropyLoss":
        plain = not loss.use_sigmoid and loss.loss_weight == 1 and loss.class_weight is None
        return int(head.num_classes) if plain else 0
    other = getattr(model, "distillation", None) or getattr(model, "to_prototypes", False)
    plain = getattr(model, "multi_label", None) is False and not other
    return model.num_classes if plain else 0
