"""Hooks that make a resumed training repeat the uninterrupted one: seeds, checkpoints, validations,
averages and accumulated gradients; and the one that sets the memory format of its weights."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from mmengine.dist import (
    broadcast_object_list,
    gather_object,
    get_rank,
    get_world_size,
    is_main_process,
)
from mmengine.hooks import CheckpointHook as _CheckpointHook
from mmengine.hooks import EMAHook as _EMAHook
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapperDict
from mmengine.registry import FUNCTIONS, HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hypvision.engine.checkpoint import (
    NUMBERED,
    find_resume_checkpoint,
    numbered_checkpoints,
    point_to,
    resume_problem,
)
from hypvision.engine.sharded import cut, whole_tensor
from hypvision.io import HypvisionError, Metrics, Plain, StrPath
from hypvision.io.files import write_text
from hypvision.optim.averages import averaging_points


def network_of(runner: Runner) -> Any:
    """Return the model of a run without the wrappers for several processes and for test-time
    augmentation."""
    model = getattr(runner.model, "module", runner.model)
    return getattr(model, "module", model)


def last_checkpoint(work_dir: StrPath) -> Path | None:
    """Return the path of ``epoch_N.pth`` or ``iter_N.pth`` with the highest N in a work folder;
    None if there is none."""
    found = numbered_checkpoints(Path(work_dir)).values()
    every = {number: path for group in found for number, path in group.items()}
    return every[max(every)] if every else None


@FUNCTIONS.register_module()
def seed_worker(worker_id: int) -> None:
    """Seed a worker of the training data by (seed of the main process, worker, rank); for
    ``worker_init_fn``.

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
    """Make random numbers a function of (seed, rank, epoch), so that a resumed run repeats them.

    In an epoch-based run, the generators of torch, NumPy and random are seeded at the start of each
    epoch; the data loader's workers, which restart in each epoch, derive their seeds from these
    generators; a stream of shards (:mod:`hypvision.data.shards`) is told where the epoch begins and
    ends. In an iteration-based run, the generators are seeded in each iteration, and
    :class:`~hypvision.engine.loops.SeekingIterTrainLoop` handles the data.
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


def last_good(runner: Runner) -> str:
    try:
        checkpoint = find_resume_checkpoint(runner.work_dir)
    except HypvisionError:
        checkpoint = None
    if checkpoint is None:
        return "No checkpoint without such values was written yet"
    return f"The last good checkpoint is '{checkpoint}'"


class _DeletingLater:
    """mmengine's storage backend, which here only notes the names of files to be deleted."""

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
    """Write checkpoints as mmengine's hook does, but never delete the last good one.

    This hook replaces mmengine's, which deletes an old file before it writes the new one. Here the
    new file is written, then ``last_checkpoint``, and then the old file is deleted. The new
    checkpoint names the files that are still to be deleted (``outdated_ckpts`` of the message hub),
    so a training that resumes from it deletes the files that a killed one has left. Only files in
    the folder of the checkpoints are deleted. A training that does not resume moves the checkpoints
    of an earlier one into a folder ``earlier_TIME``.
    """

    outdated: list[str]  # names of files that the next checkpoint replaces
    # mmengine sets one of the two, by the number of metrics in save_best.
    best_ckpt_path: str | None = None
    best_ckpt_path_dict: Mapping[str, str | None] = MappingProxyType({})

    @property
    def file_backend(self) -> Any:
        return self._backend

    @file_backend.setter
    def file_backend(self, backend: Any) -> None:
        self._backend = _DeletingLater(backend, self.outdated)

    def before_train(self, runner: Runner) -> None:
        self.outdated = list(runner.message_hub.get_info("outdated_ckpts", []))
        super().before_train(runner)
        self.best_ckpt_path = self._here(self.best_ckpt_path)
        self.best_ckpt_path_dict = {
            key: self._here(path) for key, path in self.best_ckpt_path_dict.items()
        }
        own = Path(runner._load_from or "").absolute().parent == Path(self.out_dir).absolute()
        if runner._resume and own:
            self.last_ckpt = str(runner._load_from)
            # The earlier training was killed before it updated last_checkpoint.
            if self.outdated and is_main_process():
                point_to(runner.work_dir, self.last_ckpt)
            self._delete_outdated(runner)
        elif not runner._resume and is_main_process():
            _set_aside(runner, Path(self.out_dir))
        self.outdated.clear()

    def _here(self, path: str | None) -> str | None:
        """Return the path of a checkpoint in the present folder of the run, which may have been
        moved since; ``path`` itself if the folder has no such file."""
        own = self.file_backend.join_path(self.out_dir, os.path.basename(path or ""))
        return own if path and self.file_backend.isfile(own) else path

    def before_save_checkpoint(self, runner: Runner, checkpoint: Plain) -> None:
        """Raise an error if the checkpoint has weights or states that are not finite. This is
        checked here, after all other hooks, since a step may produce NaN after a finite loss."""
        problem = resume_problem(checkpoint)
        if problem is not None:
            raise HypvisionError(
                f"After iteration {runner.iter + 1} no checkpoint was written: {problem}. "
                f"{last_good(runner)}. Try a lower learning rate or gradient clipping, then go on "
                "with --resume."
            )

    def _save_best_checkpoint(self, runner: Runner, metrics: Metrics) -> None:
        super()._save_best_checkpoint(runner, metrics)
        self._delete_outdated(runner)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: Plain) -> None:
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
        best = [self.best_ckpt_path, *self.best_ckpt_path_dict.values()]
        current = {os.path.basename(path) for path in (self.last_ckpt, *best) if path}
        for name in self.outdated if is_main_process() else ():
            path = self.file_backend.join_path(self.out_dir, name)
            backend = self.file_backend.backend
            if name not in current and backend.isfile(path):
                backend.remove(path)
            # DeepSpeed writes a checkpoint as a folder.
            elif name not in current and backend.isdir(path):
                backend.rmtree(path)
        self.outdated.clear()
        runner.message_hub.update_info("outdated_ckpts", [])


def _set_aside(runner: Runner, folder: Path) -> None:
    """Move the checkpoints of an earlier training out of the way of a new one, so that none is
    replaced, deleted with the new ones or taken for one of them. The weights that the new training
    begins with stay."""
    files = _own_weights(folder)
    files.discard(Path(runner._load_from or "").absolute())
    if not files:
        return
    place = folder / f"earlier_{runner.timestamp}"
    place.mkdir(exist_ok=True)
    notes = [Path(runner.work_dir, name) for name in ("last_checkpoint", "last_validation")]
    for path in (*filter(Path.is_file, notes), *files):
        os.replace(path, place / path.name)
    # mmengine copies the config into a folder that the time of the training names.
    copies = set(Path(runner.work_dir).glob("*/vis_data/config.py"))
    copies.discard(Path(runner.work_dir, runner.timestamp, "vis_data/config.py"))
    if copies:
        write_text(place / "config.py", max(copies).read_text())
    told = f"The folder has checkpoints of an earlier training. They are in '{place}' now"
    if any(NUMBERED.fullmatch(path.name) for path in files):
        told += "; to go on from them, stop this training and give --resume with one of them"
    MMLogger.get_current_instance().warning(f"{told}.")


def _own_weights(folder: Path) -> set[Path]:
    """Return the absolute paths of the checkpoints that a training has written into a folder."""
    names = ("epoch_*.pth", "iter_*.pth", "best_*.pth", "probe.pth")
    return {path for name in names for path in folder.absolute().glob(name)}


def steps_done(runner: Runner) -> int:
    """Return the number of epochs done, or of iterations in a training by iterations."""
    return runner.epoch if isinstance(runner.train_loop, EpochBasedTrainLoop) else runner.iter


def validates_here(runner: Runner) -> bool:
    """Return whether a training validates after the steps that it has done; a resumed training was
    saved before that validation."""
    loop = runner.train_loop
    done = steps_done(runner)
    if not done or runner.val_loop is None or done < loop.val_begin:
        return False
    loop._decide_current_val_interval()
    length = loop.max_epochs if isinstance(loop, EpochBasedTrainLoop) else loop.max_iters
    return bool(done % loop.val_interval == 0 or done == length)


@HOOKS.register_module()
class LastValidationHook(Hook):
    """Repeat the validation that a training was interrupted in, when it is resumed.

    The checkpoint was written before the validation; without this hook, the step would have no
    metrics, and its weights would not be compared with the best. ``last_validation`` in the work
    dir holds the number of the step that was validated last.
    """

    priority = (
        "LOWEST"  # runs after CheckpointHook has kept the best weights, and after EarlyStoppingHook
    )

    def __init__(self) -> None:
        self._seen = ""

    def before_train(self, runner: Runner) -> None:
        here = str(steps_done(runner))
        file = Path(runner.work_dir) / "last_validation"
        if not validates_here(runner) or self._seen == here:
            return
        found = [file.read_text(errors="replace").strip() if file.is_file() else ""]
        # Other machines may not have the file, so the first process tells them.
        broadcast_object_list(found)
        if found[0] != here:
            runner.val_loop.run()

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        # Without a training loop, a validation runs alone and there is nothing to resume.
        if runner._train_loop is None:
            return
        self._seen = str(steps_done(runner))
        if is_main_process():
            write_text(Path(runner.work_dir) / "last_validation", self._seen)


@HOOKS.register_module(force=True)
class EMAHook(_EMAHook):
    """Average weights as mmengine's hook does, and points of a manifold along its geodesics.

    This hook replaces mmengine's, which averages points coordinate by coordinate, so that the
    average lies off their manifold. A point moves the same share of the way to the new point as a
    weight does.
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
class ChannelsLastHook(Hook):
    """Keep the weights of convolutions in the channels-last memory format. On a CPU a step of a
    convolutional network then takes about three quarters of the time; results are the same up to
    rounding."""

    def before_run(self, runner: Runner) -> None:
        network_of(runner).to(memory_format=torch.channels_last)


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
