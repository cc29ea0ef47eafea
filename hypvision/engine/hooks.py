"""Hooks for unattended trainings: repeatable, interruptible, and stopped at NaN.

:data:`hypvision.engine.extensions.RUN_HOOKS` are added to every run.
"""

from __future__ import annotations

import logging
import math
import os
import random
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.dist import (
    all_reduce,
    broadcast_object_list,
    get_rank,
    get_world_size,
    is_main_process,
)
from mmengine.hooks import CheckpointHook as _CheckpointHook
from mmengine.hooks import EMAHook as _EMAHook
from mmengine.hooks import Hook
from mmengine.registry import FUNCTIONS, HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner

from hypvision.data.annotations import name_difference, some
from hypvision.data.usage import usages
from hypvision.engine.checkpoint import find_resume_checkpoint, point_to, resume_problem
from hypvision.engine.metrics import worst
from hypvision.geometry import CurvatureParameter
from hypvision.io.checks import at_least, one_of
from hypvision.io.errors import HypvisionError
from hypvision.io.files import write_text
from hypvision.optim.averages import averaging_points


class TrainingInterrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM was received and the state is on disk; the message says how to resume."""


def network_of(runner: Runner) -> Any:
    """The model of a run without the wrappers of processes and of test-time augmentation."""
    model = getattr(runner.model, "module", runner.model)
    return getattr(model, "module", model)


def last_checkpoint(work_dir: str | Path) -> Path | None:
    """The newest ``epoch_N.pth`` or ``iter_N.pth`` of a run, by its number."""
    numbered = [
        (re.fullmatch(r"(?:epoch|iter)_(\d+)\.pth", path.name), path)
        for path in Path(work_dir).glob("*.pth")
    ]
    return max(((int(match[1]), path) for match, path in numbered if match), default=(0, None))[1]


@FUNCTIONS.register_module()
def seed_worker(worker_id: int) -> None:
    """``worker_init_fn`` of the training data: seeds a worker by (main process, worker, rank).

    PyTorch draws a new seed for the workers from the main process each time they start; mmengine's
    default gives them the same seed in every epoch, which repeats the augmentations. Workers ignore
    Ctrl-C, because the main process still needs the current batch.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seed_everything(torch.initial_seed(), get_rank())


def seed_everything(*numbers: int) -> None:
    """Seed the generators of random, NumPy and torch by one or more numbers."""
    seed = (
        numbers[0]
        if len(numbers) == 1
        else int(np.random.SeedSequence(numbers).generate_state(1)[0])
    )
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@HOOKS.register_module()
class RepeatableSeedHook(Hook):
    """Makes random numbers a function of (seed, rank, epoch): a resumed run repeats them.

    In an epoch-based run the generators of torch, NumPy and random are seeded at the start of each
    epoch; the data loader's workers, which restart in each epoch, derive their seeds from them; a
    stream of shards (:mod:`hypvision.data.shards`) is told where the epoch begins and ends. In an
    iteration-based run they are seeded in each iteration; the data is handled by
    :class:`~hypvision.engine.loops.SeekingIterTrainLoop`.
    """

    priority = "HIGHEST"

    def before_train_epoch(self, runner: Runner) -> None:
        seed_everything(runner.seed, get_rank(), runner.epoch)
        loader = runner.train_dataloader
        if isinstance(runner.train_loop, EpochBasedTrainLoop) and hasattr(loader.dataset, "seek"):
            loader.dataset.seek(runner.epoch * len(loader), loader.batch_size, len(loader))

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            seed_everything(runner.seed, get_rank(), runner.iter)


@HOOKS.register_module()
class ReduceLossHook(Hook):
    """Averages the logged losses over the processes; mmengine logs those of the first one.

    It costs one all-reduce of a small vector per iteration, after backward, and runs before hooks
    that log or check.
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
class UnusedParametersHook(Hook):
    """Stops a training on several processes before its first step if a parameter got no gradient:
    the second step would fail with PyTorch's error about reductions."""

    def before_train(self, runner: Runner) -> None:
        model = runner.model
        optimizer = getattr(runner.optim_wrapper, "optimizer", None)
        strict = get_world_size() > 1 and not getattr(model, "find_unused_parameters", True)
        if strict and isinstance(optimizer, torch.optim.Optimizer):
            self._first = True
            optimizer.register_step_pre_hook(lambda *_: self._check(network_of(runner)))

    def _check(self, model: torch.nn.Module) -> None:
        if not self._first:  # a hook must not remove itself while mmengine iterates over the hooks
            return
        self._first = False
        unused = [
            name for name, p in model.named_parameters() if p.requires_grad and p.grad is None
        ]
        if unused:
            names = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
            raise HypvisionError(
                f"{len(unused)} parameters get no gradient ({names}), but training in several "
                "processes needs one for each. Freeze them, leave their part out of the model, or "
                "set --cfg-options find_unused_parameters=True (which takes time in each step)."
            )


@HOOKS.register_module()
class CanLearnHook(Hook):
    """Tells of a training that changes nothing: softmax of one output, rate 0, frozen weights."""

    def before_train(self, runner: Runner) -> None:
        self._told = False
        model = network_of(runner)
        rates: list[float] = sum(runner.optim_wrapper.get_lr().values(), [])
        groups = getattr(runner.optim_wrapper, "param_groups", ())
        reason = ""
        # as of methods without a training
        if not any(parameter.requires_grad for parameter in model.parameters()):
            runner.logger.warning(
                "All weights of the model are frozen: the training changes none of them."
            )
        elif any(_is_constant(part) for part in class_heads(model)):
            reason = (
                "The model has one class with one output, whose softmax is always 1. Add a class "
                "of everything else, or take a loss of single outputs (multi_label=True, or "
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
    """Whether the outputs of a head are the same whatever its weights: a softmax of one class."""
    losses = getattr(head, "loss_decode", None)
    if losses is None:
        return head.num_classes == 1 and getattr(head, "multi_label", None) is False
    each = losses if isinstance(losses, torch.nn.ModuleList) else [losses]
    return getattr(head, "out_channels", None) == 1 and not any(
        getattr(loss, "use_sigmoid", True) for loss in each
    )


@HOOKS.register_module()
class StopOnNaNHook(Hook):
    """Stops a training whose loss is not finite, before it writes a checkpoint; the error names the
    iteration, the last good checkpoint and what to try."""

    # runs after ReduceLossHook, so that all processes see the same loss and stop together
    priority = "HIGHEST"

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        # item() does not add a wait for the GPU: the logger reads the same value right after this
        # hook.
        loss = torch.as_tensor((outputs or {}).get("loss", 0.0)).detach().item()
        if math.isfinite(loss):
            return
        last = _last_good(runner)
        rates = ", ".join(
            f"{rate:.3g}" for rate in sorted(set(sum(runner.optim_wrapper.get_lr().values(), [])))
        )
        raise HypvisionError(
            f"The loss became {loss} in iteration {runner.iter + 1} (epoch {runner.epoch + 1}, "
            f"learning rate {rates}). {last}. Try a lower learning rate (--cfg-options "
            "optim_wrapper.optimizer.lr=...), gradient clipping (--cfg-options "
            "optim_wrapper.clip_grad.max_norm=1.0), or no --amp; then go on with --resume."
        )


def _last_good(runner: Runner) -> str:
    try:
        checkpoint = find_resume_checkpoint(runner.work_dir)
    except HypvisionError:
        checkpoint = None
    if checkpoint is None:
        return "No checkpoint without such values was written yet"
    return f"The last good checkpoint is '{checkpoint}'"


class _DeletingLater:
    """mmengine's storage backend, but the names of files that are to be deleted are only noted."""

    def __init__(self, backend: Any, noted: list[str]):
        self.backend = backend
        self.noted = noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def remove(self, path: str) -> None:
        self.noted.append(os.path.basename(path))

    rmtree = remove


@HOOKS.register_module(force=True)
class CheckpointHook(_CheckpointHook):
    """Writes checkpoints as mmengine's hook does, but never deletes the last good one.

    It takes the place of mmengine's, which deletes an old file before it writes the new one. Here
    the new file is written, then ``last_checkpoint``, and then the old file is deleted. The new
    checkpoint names the files that are still to be deleted (``outdated_ckpts`` of the message hub),
    so a training that goes on from it deletes what a killed one has left. Only files in the folder
    of the checkpoints are deleted.
    """

    outdated: list[str]  # names of files that the next checkpoint replaces
    best_ckpt_path: str | None
    best_ckpt_path_dict: dict[str, str | None]

    @property
    def file_backend(self) -> Any:
        return self._backend

    @file_backend.setter
    def file_backend(self, backend: Any) -> None:
        self._backend = _DeletingLater(backend, self.outdated)

    def before_train(self, runner: Runner) -> None:
        self.outdated = list(runner.message_hub.get_info("outdated_ckpts", []))
        super().before_train(runner)
        if self.save_best and len(self.key_indicators) == 1:
            self.best_ckpt_path = self._here(self.best_ckpt_path)
        elif self.save_best:
            self.best_ckpt_path_dict = {
                key: self._here(path) for key, path in self.best_ckpt_path_dict.items()
            }
        own = Path(runner._load_from or "").absolute().parent == Path(self.out_dir).absolute()
        if runner._resume and own:
            self.last_ckpt = str(runner._load_from)
            # the training was killed before it changed last_checkpoint
            if self.outdated and is_main_process():
                point_to(runner.work_dir, self.last_ckpt)
            self._delete_outdated(runner)
        self.outdated.clear()

    def _here(self, path: str | None) -> str | None:
        """The place of a file of a folder that may have been moved since."""
        own = self.file_backend.join_path(self.out_dir, os.path.basename(path or ""))
        return own if path and self.file_backend.isfile(own) else path

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Check what is written, as the last hook: a step may give NaN after a finite loss."""
        problem = resume_problem(checkpoint)
        if problem is not None:
            raise HypvisionError(
                f"After iteration {runner.iter + 1} no checkpoint was written: {problem}. "
                f"{_last_good(runner)}. Try a lower learning rate or gradient clipping, then go on "
                "with --resume."
            )

    def _save_best_checkpoint(self, runner: Runner, metrics: dict[str, float]) -> None:
        super()._save_best_checkpoint(runner, metrics)
        self._delete_outdated(runner)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, Any]) -> None:
        if self.max_keep_ckpts > 0 and step not in self.keep_ckpt_ids:
            if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
                self.outdated.append(self.filename_tmpl.format(self.keep_ckpt_ids.popleft()))
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info("keep_ckpt_ids", list(self.keep_ckpt_ids))
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        runner.message_hub.update_info("last_ckpt", self.last_ckpt)
        runner.message_hub.update_info("outdated_ckpts", list(self.outdated))
        runner.save_checkpoint(
            self.out_dir,
            name,
            self.file_client_args,
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            backend_args=self.backend_args,
            **self.args,
        )
        if is_main_process():
            point_to(runner.work_dir, self.last_ckpt)
        self._delete_outdated(runner)

    def _delete_outdated(self, runner: Runner) -> None:
        best = [
            getattr(self, "best_ckpt_path", None),
            *getattr(self, "best_ckpt_path_dict", {}).values(),
        ]
        current = {os.path.basename(path) for path in (self.last_ckpt, *best) if path}
        for name in self.outdated if is_main_process() else ():
            path = self.file_backend.join_path(self.out_dir, name)
            backend = self.file_backend.backend
            if name not in current and backend.isfile(path):
                backend.remove(path)
            elif name not in current and backend.isdir(path):  # of DeepSpeed
                backend.rmtree(path)
        self.outdated.clear()
        runner.message_hub.update_info("outdated_ckpts", [])


class DatasetHook(Hook, ABC):
    """Checks each data set before its first batch, the validation's before the training begins."""

    def before_train(self, runner: Runner) -> None:
        self.check(runner, runner.train_dataloader.dataset)
        if runner.val_loop is not None:
            self.check(runner, runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        self.check(runner, runner.test_dataloader.dataset)

    @abstractmethod
    def check(self, runner: Runner, dataset: Any) -> None:
        """Raise HypvisionError for data that does not fit the model."""


class KnownClasses(NamedTuple):
    """The class names of a model's outputs, their source, and whether they are only numbers."""

    names: tuple[str, ...]
    source: str
    numbered: bool


def classes_in(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    """The class names in a checkpoint, also by earlier keys of OpenMMLab; () if there are none."""
    meta = checkpoint.get("meta")
    about = meta.get("dataset_meta", meta) if isinstance(meta, Mapping) else None
    if not isinstance(about, Mapping):
        return ()
    names = next((about[key] for key in ("classes", "CLASSES") if about.get(key)), ())
    return (
        tuple(names)
        if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        else ()
    )


def has_fixed_classes(model: Any, dataset: Any) -> bool:
    """Whether a model has one head for the classes of a data set: open-vocabulary models get the
    names at run time, a panoptic model has separate heads for things and stuff."""
    free = getattr(model, "open_vocabulary", False) or getattr(dataset, "return_classes", False)
    return not free and "thing_classes" not in (getattr(dataset, "metainfo", None) or {})


def class_heads(model: Any) -> Iterator[Any]:
    """The parts of a model that know a number of classes: a classifier itself, or heads."""
    decode = getattr(model, "decode_head", None)
    boxes = getattr(getattr(model, "roi_head", None), "bbox_head", None) or getattr(
        model, "bbox_head", None
    )
    for part in (model, decode, boxes):
        for single in part if isinstance(part, (list, tuple, torch.nn.ModuleList)) else [part]:
            if isinstance(getattr(single, "num_classes", None), int):
                yield single


@HOOKS.register_module()
class CheckClassesHook(DatasetHook):
    """Compares the class names of all data and of the checkpoint, before the first batch.

    The labels are those of the checkpoint, else those of the training data. Class folders get their
    labels by these names; a part may lack classes. A training that starts from weights for other
    classes uses the classes of its data. Test data are compared with the words (``tested_words``)
    of a model that compares images with words of its own.

    Args:
        by_name: False: compare the numbers of classes alone.
    """

    def __init__(self, by_name: bool = True) -> None:
        self.by_name = by_name
        self.known: KnownClasses | None = None
        self._of_training = False  # whether the next data set to check is the training data

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        self._take(classes_in(checkpoint), network_of(runner), runner._load_from)

    def _take(self, names: tuple[str, ...], model: Any, path: Any) -> None:
        counts = [
            getattr(model, "train_classes", None),
            *(head.num_classes for head in class_heads(model)),
        ]
        if names and len(names) in counts:
            numbered = names == tuple(map(str, range(len(names))))
            self.known = KnownClasses(names, f"the checkpoint '{path}'", numbered)

    def before_train(self, runner: Runner) -> None:
        self._of_training = True
        model = network_of(runner)
        if self.known is None and not runner._resume:  # the head may be one of model.checkpoint
            self._take(
                getattr(model, "start_classes", ()), model, getattr(model, "checkpoint", None)
            )
        super().before_train(runner)

    def check(self, runner: Runner, dataset: Any) -> None:
        of_training = self._of_training
        self._of_training = False
        model = network_of(runner)
        meta = getattr(dataset, "metainfo", None) or {}
        heads = list(class_heads(model))
        names = tuple(meta.get("classes") or ())
        words = getattr(model, "tested_words", None)
        if names and not of_training and words is not None:
            self._match_words(runner, model, dataset, names, words)
        # a metric learner fixes its classes only in training
        fixed = heads or of_training and hasattr(model, "train_classes")
        if not fixed or not names or not has_fixed_classes(model, dataset):
            return
        place = f"{type(dataset).__name__} in '{_place(dataset)}'"
        if self.known is None or not self.by_name:
            self.known = KnownClasses(names, place, getattr(dataset, "numbered", False))
        elif names != self.known.names:
            self._match(
                runner, dataset, names, place, self.known, of_training and not runner._resume
            )
            weights: Any = getattr(model, "class_weights", None)
            if of_training and weights is not None:
                weights.follow(names, dataset.metainfo["classes"])
        if heads and heads[0] is model and getattr(dataset, "labels", None) is not None:
            self._count(
                runner, tuple(dataset.metainfo["classes"]), _place(dataset), model.num_classes
            )

    def _match(
        self,
        runner: Runner,
        dataset: Any,
        names: tuple[str, ...],
        place: str,
        known: KnownClasses,
        starting: bool,
    ) -> None:
        """Relabel the data by the known class names; a new training may have other classes."""
        numbered = getattr(dataset, "numbered", False)
        if numbered or (known.numbered and not all(map(str.isdecimal, names))):
            if not (numbered and known.numbered):
                runner.logger.warning(
                    f"{place} and {known.source} are compared by the numbers of their labels, "
                    "since one of them has no class names."
                )
            return
        if (
            set(names) <= set(known.names)
            and hasattr(dataset, "use_classes")
            and "ancestors" not in dataset.metainfo
        ):
            own = set(names)
            lacking = [name for name in known.names if name not in own]
            dataset.use_classes(known.names)
            about = f"; it has no images of {some(lacking, 20)}" if lacking else ""
            runner.logger.warning(f"{place}: its labels follow the names of {known.source}{about}.")
            return
        difference = name_difference(names, place, known.names, known.source)
        if starting and set(names) != set(known.names):
            runner.logger.warning(f"{difference} The training takes the classes of its data.")
            self.known = KnownClasses(names, place, numbered)
            return
        raise HypvisionError(
            f"{difference} Give the same classes the same names (the order of class folders does "
            "not matter, and some may be missing). If only the names differ, "
            "custom_hooks=[dict(type='CheckClassesHook', by_name=False)] in the config compares "
            "the numbers alone."
        )

    def _match_words(
        self,
        runner: Runner,
        model: Any,
        dataset: Any,
        names: tuple[str, ...],
        words: tuple[str, ...],
    ) -> None:
        """Give a model the words of its test data in the order of their labels. Other words are
        right where the config gives one for each class, such as for folders with the numbers of
        WordNet."""
        place = f"{type(dataset).__name__} in '{_place(dataset)}'"
        source = "the model (model.classes)"
        by_name = self.by_name and not getattr(dataset, "numbered", False)
        if names == words or len(names) == len(words) and not by_name:
            return
        if by_name and sorted(names) == sorted(words):
            model.set_classes(names)
            runner.logger.warning(f"The model's classes follow the order of {place}.")
            return
        if (
            by_name
            and set(names) < set(words)
            and len(set(words)) == len(words)
            and hasattr(dataset, "use_classes")
        ):
            self._match(runner, dataset, names, place, KnownClasses(words, source, False), False)
            return
        moved = [name for name, word in zip(names, words) if name != word and name in words]
        if len(names) != len(words) or moved or not model.gives_words:
            raise HypvisionError(
                f"{name_difference(names, place, words, source)} Set model.classes in the config "
                "to the classes of the data, or to a word for each of them in the order of their "
                "labels."
            )
        number = next(i for i, name in enumerate(names) if name != words[i])
        runner.logger.warning(
            f"{place} and {source} have other names, and are compared by the numbers of their "
            f"labels: label {number} is '{names[number]}' in the data and '{words[number]}' in the "
            "model."
        )

    @staticmethod
    def _count(runner: Runner, classes: tuple[str, ...], where: str, known: int) -> None:
        if len(classes) > known:
            raise HypvisionError(
                f"The data in '{where}' has {len(classes)} classes, but the model predicts "
                f"{known}: label {len(classes) - 1} ('{classes[-1]}') is out of range. Set "
                f"--cfg-options model.backbone.num_classes={len(classes)}, or correct the data."
            )
        if len(classes) < known:
            runner.logger.warning(
                f"The data in '{where}' has {len(classes)} classes, the model predicts {known}."
            )


def _place(dataset: Any) -> str:
    """Where a data set lies."""
    found = (
        str(getattr(dataset, name, None) or "")
        for name in ("root", "place", "data_root", "ann_file")
    )
    return next(filter(None, found), type(dataset).__name__)


@HOOKS.register_module()
class DataUsageHook(DatasetHook):
    """Logs once, for each data set, which files it uses or leaves out and why, and notes."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, runner: Runner, dataset: Any) -> None:
        for usage in usages(dataset):
            level = logging.WARNING if usage.left_out() else logging.INFO
            for rank, sentence in (
                (level, f"Data {usage}"),
                *((logging.WARNING, note) for note in usage.notes),
            ):
                if sentence not in self._told:
                    self._told.add(sentence)
                    runner.logger.log(rank, sentence)


@HOOKS.register_module()
class InterruptHook(Hook):
    """On SIGINT and SIGTERM, stops a run cleanly between two iterations.

    An iteration-based run writes a checkpoint there. An epoch-based run relies on that of its last
    epoch, because it resumes at the start of an epoch. A second signal ends the process at once.

    Raises:
        TrainingInterrupted: when the state of the run is on disk.
    """

    priority = "LOWEST"  # runs after CheckpointHook and EMAHook

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
        """After an error: raise TrainingInterrupted where a signal came before it: that was to the
        workers as well, and they ended first."""
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
    """Early stopping: ends a training whose metric no longer improves, and logs the reason.

    It takes the place of mmengine's, which counts from the beginning again when a training is
    resumed. This hook stores its count in the checkpoints. A checkpoint is written before the
    validation of its epoch, so a resumed training first repeats that validation (without this hook
    only if it was cut short, see :class:`LastValidationHook`).

    Args:
        monitor: the metric, such as ``"top1"``; default the one that CheckpointHook keeps the best
            checkpoint of.
        rule: ``"greater"`` or ``"less"``, what is better; default the CheckpointHook's, or
            mmengine's for this name.
        patience: validations in a row without a better value, after which the training stops.
        min_delta: a value must be better by more than this to count.
        stopping_threshold: stop as soon as a value is better than this.
    """

    priority = "LOWEST"  # runs after CheckpointHook: the message names its best checkpoint

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
        self.kept: _CheckpointHook | None = None

    def before_train(self, runner: Runner) -> None:
        if runner.val_loop is None:
            raise HypvisionError(
                "Early stopping needs a validation: add val_dataloader, val_cfg and val_evaluator."
            )
        self.kept = None
        for saving in (hook for hook in runner.hooks if isinstance(hook, _CheckpointHook)):
            best = (saving.save_best or ["auto"])[0]
            if best != "auto" and self.monitor in (None, best):
                self.kept = saving
                self.monitor = best
                self.rule = self.rule or saving.rules[0]
        if self.monitor is None:
            raise HypvisionError(
                "Early stopping does not know which metric to look at. Set monitor='top1', or what "
                "your validation is to be judged by, in the EarlyStoppingHook."
            )
        try:
            # mmengine knows the rules of common metrics
            self.rule = self.rule or CheckpointHook(save_best=self.monitor).rules[0]
        except ValueError as error:
            raise HypvisionError(
                f"Early stopping does not know whether a greater or a smaller '{self.monitor}' is "
                "better. Set rule='greater' or rule='less' in the EarlyStoppingHook."
            ) from error
        self.state = runner.message_hub.get_info("early_stopping", None) or dict(
            best=None, at=0, waited=0, seen=0
        )
        if _validates_here(runner) and self.state["seen"] < _steps(runner):
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
        state = self.state
        done = _steps(runner)
        sign = 1 if self.rule != "less" else -1
        better = not math.isnan(value) and (
            state["best"] is None or sign * (value - state["best"]) > self.min_delta
        )
        state = dict(state, seen=done, waited=0 if better else state["waited"] + 1)
        if better:
            state.update(best=float(value), at=done)
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


def _steps(runner: Runner) -> int:
    """The present epoch, or the iteration in a training that counts iterations."""
    return runner.epoch if isinstance(runner.train_loop, EpochBasedTrainLoop) else runner.iter


def _validates_here(runner: Runner) -> bool:
    """Whether a training validates at its present step; a resumed one was saved before."""
    loop = runner.train_loop
    done = _steps(runner)
    if not done or runner.val_loop is None or done < loop.val_begin:
        return False
    loop._decide_current_val_interval()
    length = loop.max_epochs if isinstance(loop, EpochBasedTrainLoop) else loop.max_iters
    return bool(done % loop.val_interval == 0 or done == length)


@HOOKS.register_module()
class LastValidationHook(Hook):
    """Repeats the validation that a training was cut short in, when it is resumed.

    The checkpoint was written before it: without this, the step would have no metrics, and its
    weights would not be compared with the best. ``last_validation`` in the work dir has the number
    of the step that was validated last.
    """

    priority = (
        "LOWEST"  # runs after CheckpointHook has kept the best weights, and after EarlyStoppingHook
    )

    def __init__(self) -> None:
        self._seen = ""

    def before_train(self, runner: Runner) -> None:
        here = str(_steps(runner))
        file = Path(runner.work_dir) / "last_validation"
        if not _validates_here(runner) or self._seen == here:
            return
        found = [file.read_text(errors="replace").strip() if file.is_file() else ""]
        broadcast_object_list(found)  # other machines may not have the file
        if found[0] != here:
            runner.val_loop.run()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if runner._train_loop is None:  # it validates alone
            return
        self._seen = str(_steps(runner))
        if is_main_process():
            write_text(Path(runner.work_dir) / "last_validation", self._seen)


@HOOKS.register_module(force=True)
class EMAHook(_EMAHook):
    """Averages weights as mmengine's hook does, and points of a manifold along its geodesics.

    It takes the place of mmengine's, whose average of two points, taken coordinate by coordinate,
    lies off their manifold. A point moves the same share of the way to the new one as a weight
    does.
    """

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        average = self.ema_model
        moves = self._ema_started(runner) and average.steps > 0
        if not moves or average.steps % average.interval:
            super().after_train_iter(runner, batch_idx, data_batch, outputs)
            return
        share = torch.zeros(())
        average.avg_func(share, torch.ones(()), average.steps)
        with averaging_points(average.module, self.src_model, share.item()):
            super().after_train_iter(runner, batch_idx, data_batch, outputs)


@HOOKS.register_module()
class ClassTableHook(Hook):
    """Logs the metrics of each class, the worst class first."""

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._log(runner, runner.val_evaluator)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
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


_LOGGED = 50  # only the results of this many worst classes are logged


@HOOKS.register_module()
class CoreTimeHook(Hook):
    """Counts a training's CPU seconds over all restarts: ``core_seconds`` of the message hub.

    User and system time of this process with validations, without data loader workers.
    """

    def before_train(self, runner: Runner) -> None:
        self._begin = time.process_time() - runner.message_hub.get_info("core_seconds", 0.0)

    def _count(self, runner: Runner, *_: Any, **__: Any) -> None:
        runner.message_hub.update_info("core_seconds", time.process_time() - self._begin)

    # Before a checkpoint is written, whatever the training counts.
    after_train_iter = after_train_epoch = after_train = _count


@HOOKS.register_module()
class CurvatureHook(Hook):
    """Logs the learned curvatures ``c`` after every epoch, as ``curvature/NAME``."""

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
