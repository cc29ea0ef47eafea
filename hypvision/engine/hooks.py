"""Hooks that make a training safe to leave alone: repeatable, interruptible, and stopped when it has gone wrong.

:mod:`hypvision.engine.run` adds :class:`RepeatableSeedHook`, :class:`ReduceLossHook`, :class:`StopOnNaNHook`,
:class:`CheckClassesHook` and :class:`InterruptHook` to every run.
"""

from __future__ import annotations

import math
import random
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_reduce, get_rank, get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import FUNCTIONS, HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner
from PIL import Image, ImageDraw

from hypvision.errors import HypvisionError
from hypvision.files import replacing

__all__ = [
    "CheckClassesHook",
    "InterruptHook",
    "PredictionPainterHook",
    "ReduceLossHook",
    "RepeatableSeedHook",
    "StopOnNaNHook",
    "TrainingInterrupted",
    "last_checkpoint",
    "seed_everything",
    "seed_worker",
]


class TrainingInterrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM was received and the state is on disk; the message says how to go on."""


def last_checkpoint(work_dir: str | Path) -> Path | None:
    """The newest ``epoch_N.pth`` or ``iter_N.pth`` of a run, by its number."""
    numbered = [(re.fullmatch(r"(?:epoch|iter)_(\d+)\.pth", path.name), path) for path in Path(work_dir).glob("*.pth")]
    return max(((int(match[1]), path) for match, path in numbered if match), default=(0, None))[1]


@FUNCTIONS.register_module()
def seed_worker(worker_id: int) -> None:
    """``worker_init_fn`` of the training data: seeds the generators of a worker from (main process, worker, rank).

    PyTorch draws a new seed for the workers from the main process each time they start; mmengine's default gives them
    the same one in every epoch, and so repeats the augmentations. Ctrl-C is left to the main process, which still wants
    the current batch.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seed = int(np.random.SeedSequence([torch.initial_seed(), get_rank()]).generate_state(1)[0])
    seed_everything(seed)


def seed_everything(seed: int) -> None:
    """Seed the generators of random, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@HOOKS.register_module()
class RepeatableSeedHook(Hook):
    """Makes the random numbers of a run a function of (seed, rank, epoch), so that a resumed run repeats them.

    In an epoch-based run the generators of torch, NumPy and random are seeded at the start of each epoch; the workers
    of the data loader, which are started anew for each epoch (the engine sees to it), derive theirs from them. In an
    iteration-based run they are seeded in each iteration; the data is the part of
    :class:`~hypvision.tasks.SeekingIterTrainLoop`.
    """

    priority = "HIGHEST"

    def before_train_epoch(self, runner: Runner) -> None:
        self._seed(runner, runner.epoch)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            self._seed(runner, runner.iter)

    @staticmethod
    def _seed(runner: Runner, step: int) -> None:
        seed = int(np.random.SeedSequence([runner.seed, get_rank(), step]).generate_state(1)[0])
        seed_everything(seed)


@HOOKS.register_module()
class ReduceLossHook(Hook):
    """Averages the logged losses over the processes; mmengine logs those of the first process alone.

    One all-reduce of a small vector an iteration, after backward. It comes before the hooks that log or check.
    """

    priority = "HIGHEST"

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        if get_world_size() == 1 or not outputs:
            return
        names = [name for name in sorted(outputs) if isinstance(outputs[name], torch.Tensor)]
        values = torch.stack([outputs[name].detach().float().mean() for name in names])
        all_reduce(values, op="mean")
        for name, value in zip(names, values):
            outputs[name] = value


@HOOKS.register_module()
class StopOnNaNHook(Hook):
    """Ends a training whose loss is not finite, before a checkpoint of it can be written.

    Raises:
        HypvisionError: the loss is NaN or infinite; names the iteration, the last good checkpoint and what to try.
    """

    priority = "HIGHEST"  # registered after ReduceLossHook, so every process sees the same value and stops

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        # No cost: the logging that follows reads the same value from the device.
        loss = torch.as_tensor((outputs or {}).get("loss", 0.0)).detach().item()
        if math.isfinite(loss):
            return
        checkpoint = last_checkpoint(runner.work_dir)
        last = f"The last good checkpoint is '{checkpoint}'" if checkpoint else "No checkpoint was written yet"
        rates = ", ".join(f"{rate:.3g}" for rate in sorted(set(sum(runner.optim_wrapper.get_lr().values(), []))))
        raise HypvisionError(
            f"The loss became {loss} in iteration {runner.iter + 1} (epoch {runner.epoch + 1}, learning rate {rates}). "
            f"{last}. Try a lower learning rate (--cfg-options optim_wrapper.optimizer.lr=...), gradient clipping "
            "(--cfg-options optim_wrapper.clip_grad.max_norm=1.0), or no --amp; then go on with --resume."
        )


@HOOKS.register_module()
class CheckClassesHook(Hook):
    """Compares the classes of the data with those of a classifier before the first batch.

    Raises:
        HypvisionError: the data has labels that the model cannot predict.
    """

    def before_train(self, runner: Runner) -> None:
        self._check(runner, runner.train_dataloader.dataset)

    def before_val(self, runner: Runner) -> None:
        self._check(runner, runner.val_dataloader.dataset)

    def before_test(self, runner: Runner) -> None:
        self._check(runner, runner.test_dataloader.dataset)

    @staticmethod
    def _check(runner: Runner, dataset: Any) -> None:
        model = getattr(runner.model, "module", runner.model)
        known = getattr(model, "num_classes", None)
        labels, classes = getattr(dataset, "labels", None), (getattr(dataset, "metainfo", None) or {}).get("classes")
        if known is None or labels is None or classes is None:
            return  # not a classification run
        where = getattr(dataset, "root", None) or getattr(dataset, "place", type(dataset).__name__)
        if len(classes) > known:
            raise HypvisionError(
                f"The data in '{where}' has {len(classes)} classes, but the model predicts {known}: label "
                f"{len(classes) - 1} ('{classes[-1]}') is out of range. Set --cfg-options "
                f"model.backbone.num_classes={len(classes)}, or correct the data."
            )
        if len(classes) < known:
            runner.logger.warning(f"The data in '{where}' has {len(classes)} classes, the model predicts {known}.")


@HOOKS.register_module()
class InterruptHook(Hook):
    """Turns SIGINT and SIGTERM into an orderly end between two iterations.

    An iteration-based run writes a checkpoint there. An epoch-based run keeps that of its last epoch, because a resumed
    epoch begins at its beginning. A second signal ends the process at once.

    Raises:
        TrainingInterrupted: after the state is safe.
    """

    priority = "LOWEST"  # after CheckpointHook and EMAHook

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def before_train(self, runner: Runner) -> None:
        self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def _note(self, number: int, frame: Any) -> None:
        self._received = signal.Signals(number)
        self.restore()

    def restore(self) -> None:
        """Give SIGINT and SIGTERM back to those who handled them before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: dict[str, Any] | None = None
    ) -> None:
        stop = self._received is not None
        if get_world_size() > 1:
            # All processes stop in the same iteration, or those that go on would wait for the others for ever.
            flag = torch.tensor(float(stop), device=next(runner.model.parameters()).device)
            all_reduce(flag, op="max")
            stop = bool(flag.item())
        if stop:
            self._stop(runner)

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if self._received is not None and get_world_size() == 1:
            raise TrainingInterrupted(self._advice(runner))

    def _stop(self, runner: Runner) -> None:
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            name = f"iter_{runner.iter + 1}.pth"
            runner.save_checkpoint(runner.work_dir, filename=name, by_epoch=False, meta=dict(iter=runner.iter + 1))
            if is_main_process():
                (Path(runner.work_dir) / "last_checkpoint").write_text(str(Path(runner.work_dir) / name))
        raise TrainingInterrupted(self._advice(runner))

    @staticmethod
    def _advice(runner: Runner) -> str:
        checkpoint = last_checkpoint(runner.work_dir)
        if checkpoint is None:
            return "Interrupted before the first checkpoint: start again with the same command."
        return f"Interrupted. '{checkpoint}' is complete: run the same command with --resume to go on from it."


@HOOKS.register_module()
class PredictionPainterHook(Hook):
    """Writes pictures of test images with the predicted and the true class below (``tools/test.py --show-dir``).

    Data sets lie in the order of their classes: the pictures are taken evenly from all of it, not from its beginning.

    Args:
        out_dir: folder of the pictures; made if missing. Names begin with ``wrong`` or ``right``.
        limit: how many pictures at most.
        min_side: images smaller than this many pixels are enlarged to be seen.
    """

    def __init__(self, out_dir: str, limit: int = 200, min_side: int = 160):
        self.out_dir = Path(out_dir)
        self.limit = limit
        self.min_side = min_side

    def before_test(self, runner: Runner) -> None:
        count = len(runner.test_dataloader.dataset)
        chosen = min(self.limit, count)
        self.chosen = {i * count // chosen for i in range(chosen)}
        self.out_dir.mkdir(parents=True, exist_ok=True)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: list[dict[str, Any]] | None = None
    ) -> None:
        dataset = runner.test_dataloader.dataset
        names = dataset.metainfo["classes"]
        for output in outputs or ():  # each process paints its own share
            if output["index"] not in self.chosen:
                continue
            best, label = int(output["scores"].argmax()), output["label"]
            text = [f"{names[best]}  {100 * float(output['scores'][best]):.0f}%", f"true: {names[label]}"]
            verdict = "right" if best == label else "wrong"
            picture = self._paint(dataset.read(output["index"]), text, right=best == label)
            with replacing(self.out_dir / f"{verdict}_{output['index']:06d}_{names[label]}.png") as temporary:
                picture.save(temporary)

    def _paint(self, image: Image.Image, text: list[str], right: bool) -> Image.Image:
        factor = max(1, math.ceil(self.min_side / min(image.size)))
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
        canvas = Image.new("RGB", (image.width, image.height + 34), "white")
        canvas.paste(image, (0, 0))
        draw = ImageDraw.Draw(canvas)
        draw.text((4, image.height + 3), text[0], fill="darkgreen" if right else "firebrick")
        draw.text((4, image.height + 17), text[1], fill="black")
        return canvas
