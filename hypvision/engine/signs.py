"""Warn, while a training runs, of signs that it learns nothing.

A training whose learning rate ruins its network ends without an error: the loss stays at the value
of guessing, and the network gives every image the same class. :class:`SignsHook` looks for these
signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.optim import Optimizer

from hypvision.data.usage import classes_of
from hypvision.engine.hooks import network_of

_ADVICE = "Stop it and try a lower rate (--cfg-options optim_wrapper.optimizer.lr=...)"
_HEAD = "; a new head on trained features begins best with model.head_init=probe or zero"
# The sign of a detector is that it finds no box, not that all boxes are of one class.
_BOXES = {-1, -2}
_IGNORED = 255  # the label of pixels that do not count
# The first that a model has is looked at: of classifiers, segmenters and few-shot methods.
_LOSSES = ("loss_cls", "decode.loss_ce", "loss_ce", "loss_ecls", "loss")
_WINDOW = 20  # number of steps that the loss is averaged over


@HOOKS.register_module()
class SignsHook(Hook):
    """Warn, once for each sign, if the loss of a classifier, segmenter or few-shot method is no
    lower than that of guessing, ``ln C``; if the features of all images of a batch are the same; if
    the gradients of all weights are 0; and if a validation gives all images or pixels the same
    class, or finds no box.

    Each check waits for the GPU, in one of every ``interval`` steps. The loss and the predictions
    are checked when a tenth of the training is over, and no sooner than after ``interval`` steps.

    Args:
        interval: number of steps between two checks.
        margin: a loss above ``margin`` times ``ln C`` counts as that of guessing.
    """

    def __init__(self, interval: int = 50, margin: float = 0.98):
        self.interval = interval
        self.margin = margin
        self._told: set[str] = set()
        self._losses: list[Tensor] = []
        self._features: list[Tensor] = []
        self._handle: Any = None
        self._wants_gradients = False
        self._largest: Tensor | None = None
        self._validated = 0
        self._answers: set[int] = set()
        self._truths: set[int] = set()

    def before_train(self, runner: Runner) -> None:
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
        loss = next((given[name] for name in _LOSSES if name in given), None)
        if isinstance(loss, Tensor):
            self._losses = [*self._losses[1 - _WINDOW :], loss.detach()]
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
        classes = guessed_classes(network_of(runner))
        if classes and self._losses and self._late(runner):
            loss = torch.stack(self._losses).float().mean().item()
            if loss >= self.margin * math.log(classes):
                guessing = (
                    f"that of guessing among {classes} classes is ln {classes} = "
                    f"{math.log(classes):.3f}"
                )
                self._tell(runner, "loss", f"the loss is {loss:.3f}, and {guessing}")

    def _late(self, runner: Runner) -> bool:
        return runner.iter + 1 >= max(self.interval, runner.max_iters // 10)

    def _tell(self, runner: Runner, kind: str, what: str, step: int | None = None) -> None:
        if kind not in self._told:
            self._told.add(kind)
            head = _HEAD if hasattr(network_of(runner), "head_init") else ""
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

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
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
    head, else the output of the neck (of a metric learner the embeddings), else of the backbone.

    Returns:
        The handle whose ``remove()`` ends the calls; None for a model without a backbone.
    """
    network: Any = getattr(model, "backbone", None)
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
    plain = getattr(model, "multi_label", None) is False and not getattr(
        model, "distillation", None
    )
    return model.num_classes if plain else 0
