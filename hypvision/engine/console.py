"""Show a run on the console: a few lines, one progress bar, and a table after each validation.

mmengine writes its whole config, the table of hooks and a line for each frozen parameter. All these
go to the log file; ``--verbose`` shows them on the console. This module writes to standard error,
so that standard output has only the metrics of ``hypvision test``.
"""

from __future__ import annotations

import io
import itertools
import logging
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.runner import EpochBasedTrainLoop, Runner

from hypvision.data.usage import classes_of
from hypvision.inference.progress import Progress, say
from hypvision.io import Metrics, Values
from hypvision.io.errors import count_text

from .hooks import network_of
from .metrics import worst
from .reports import weights_to_use

_OWN = str(Path(__file__).resolve().parents[1])


def _is_brief(record: logging.LogRecord) -> bool:
    """Return whether a log message belongs on the console: errors, and warnings of this package."""
    return record.levelno >= (
        logging.WARNING if record.pathname.startswith(_OWN) else logging.ERROR
    )


class _Plain(logging.Formatter):
    """Format a log message as commands print it, ``warning: ...``; the log file has time and
    logger."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


class _IntoLog(io.TextIOBase):
    """A text stream that writes the output of libraries into the log file."""

    def write(self, text: str) -> int:
        logger = MMLogger.get_current_instance()
        for line in text.splitlines():
            if line.strip():
                logger.info(line.rstrip())
        return len(text)


@contextmanager
def quiet(verbose: bool = False) -> Iterator[None]:
    """Context in which the console shows only :class:`ConsoleHook`'s output, errors and hypvision's
    warnings; the log file has all messages. With ``verbose`` mmengine's output is not
    restricted."""
    if verbose:
        yield
        return
    build = MMLogger.__init__

    def init(self: MMLogger, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        for handler in self.handlers:
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stderr)
                handler.addFilter(_is_brief)
                handler.setFormatter(_Plain())

    warned = logging.getLogger("py.warnings")
    relay = _Relay()
    warned.addHandler(relay)
    propagates = warned.propagate
    warned.propagate = False
    logging.captureWarnings(True)
    try:
        # replaced, since it creates the logger and logs the config at once
        with patch.object(MMLogger, "__init__", init), redirect_stdout(_IntoLog()):
            yield
    finally:
        logging.captureWarnings(False)
        warned.removeHandler(relay)
        warned.propagate = propagates


class _Relay(logging.Handler):
    """A log handler that writes Python's warnings into the log file."""

    def emit(self, record: logging.LogRecord) -> None:
        MMLogger.get_current_instance().info(" ".join(record.getMessage().split()))


class ConsoleHook(Hook):
    """Print model, data, progress and metrics of a run.

    The hook is not registered: :mod:`hypvision.engine.run` adds it to the first process unless
    ``verbose``.
    """

    priority = "LOWEST"

    def __init__(self) -> None:
        self.train_bar: Progress | None = None
        self.other_bar: Progress | None = None
        self.rates: list[float] = []
        self.rows = 0  # rows of the validation table that were printed
        self.heads: list[str] = []

    # What is printed before the first step

    def before_run(self, runner: Runner) -> None:
        model = network_of(runner)
        name = _network_name(model, runner.cfg.get("model", {}).get("clip") or {})
        on = f" on {name}" if name else ""
        sizes = [p.numel() for p in model.parameters()]
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        device = next(model.parameters()).device
        place = f"CPU, {torch.get_num_threads()} threads"
        if device.type == "cuda":
            place = torch.cuda.get_device_name(device)
        several = f", {get_world_size()} processes" if get_world_size() > 1 else ""
        schedule = runner.cfg.get("train_cfg") or {}
        # A probe alone takes no step.
        if 0 in (schedule.get("max_epochs"), schedule.get("max_iters")):
            trained = 0
        size = (
            f"{count_text(sum(sizes))} parameters, {count_text(trained) if trained else 'none'} of "
            "them trained"
        )
        say(f"model   {type(model).__name__}{on}, {size}")
        say(f"device  {place}{several}")
        say(f"log     {runner.log_dir}")

    def before_train(self, runner: Runner) -> None:
        loader = runner.train_dataloader
        wrapper = type(runner.optim_wrapper).__name__
        optimizer = type(getattr(runner.optim_wrapper, "optimizer", runner.optim_wrapper)).__name__
        # A batch sampler of mmdet, which groups images by shape, has the size; the loader has none.
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", "?")
        say(f"data    {_described(loader)}, {size} at a time")
        by_epoch = isinstance(runner.train_loop, EpochBasedTrainLoop)
        epochs = f"{_count(runner.max_epochs, 'epoch')}, " if by_epoch else ""
        if runner.max_iters:  # a probe alone takes no step
            say(f"length  {epochs}{_count(runner.max_iters, 'step')} of {optimizer} ({wrapper})")
        self.train_bar = Progress("train", runner.max_iters, runner.iter)

    # Progress while the run goes on

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self.rates = [rate for group in runner.optim_wrapper.get_lr().values() for rate in group]

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self.train_bar is not None:
            # The rates were read before the step, since schedulers have already moved to those of
            # the next.
            rates = self.rates
            loss = (outputs or {}).get("loss")
            # StopOnNaNHook has already copied the loss to the CPU, so float() does not wait for the
            # GPU.
            facts = [] if loss is None else [f"loss {float(loss):.4g}"]
            # The lowest and the highest rate of the parameter groups.
            if rates:
                facts.append(
                    "lr "
                    + " to ".join(dict.fromkeys(f"{rate:.3g}" for rate in (min(rates), max(rates))))
                )
            self.train_bar.update(runner.iter + 1, ", ".join(facts))

    def before_val(self, runner: Runner) -> None:
        self._begin("validate", runner.val_dataloader)

    def before_test(self, runner: Runner) -> None:
        say(f"data    {_described(runner.test_dataloader)}")
        self._begin("test", runner.test_dataloader)

    def _begin(self, what: str, loader: Any) -> None:
        self.other_bar = Progress(what, len(loader))

    def after_val_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self.other_bar is not None:
            self.other_bar.update(batch_idx + 1)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.after_val_iter(runner, batch_idx)

    # Metrics after validations and tests

    def after_val_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        self._end()
        by_epoch = isinstance(runner._train_loop, EpochBasedTrainLoop)
        step = dict(epoch=str(runner.epoch)) if by_epoch else dict(step=str(runner.iter))
        row = {**step, **_rounded(metrics)}
        if list(row) != self.heads or self.rows % _ROWS == 0:
            self.rows = 0
            self.heads = list(row)
        say(_table(row, head=self.rows == 0))
        _say_worst(runner.val_evaluator)
        self.rows += 1

    def after_test_epoch(self, runner: Runner, metrics: Metrics | None = None) -> None:
        self._end()
        say(_table(_rounded(metrics)))
        _say_worst(runner.test_evaluator)

    def _end(self) -> None:
        if self.other_bar is not None:
            self.other_bar.close()
            self.other_bar = None

    def after_train(self, runner: Runner) -> None:
        self.close()
        weights = weights_to_use(runner)
        if weights is not None:
            say(f"weights {weights}")

    def close(self) -> None:
        self._end()
        if self.train_bar is not None:
            self.train_bar.close()
            self.train_bar = None


def _network_name(model: Any, clip: Values) -> str | None:
    """Return the name of a model's backbone or CLIP, or else the class of the backbone; None for a
    model with neither."""
    backbone = getattr(model, "backbone", None)
    published = getattr(backbone, "pretrained_cfg", None) or {}
    name = getattr(backbone, "model_name", None) or published.get("architecture")
    own = None if backbone is None else type(backbone).__name__
    return name or clip.get("name") or own


def _described(loader: Any) -> str:
    dataset = loader.dataset
    classes = classes_of(dataset)
    words = f", {len(classes)} classes" if classes else ""
    # Streams of shards have "total", the number of samples of all processes.
    count = getattr(dataset, "total", None) or len(dataset)
    return f"{count} samples of {type(dataset).__name__}{words}"


def _say_worst(evaluator: Any) -> None:
    """Print the worst classes of each metric that has values for classes; the log file has more of
    them."""
    for classes in (
        metric.classes for metric in evaluator.metrics if getattr(metric, "classes", ())
    ):
        shown = ", ".join(
            f"{found.name:.40} {found.value:.3g} (of {found.samples})"
            for found in worst(classes, 5)
        )
        say(f"  worst of {len(classes)} classes: {shown}")


def _rounded(metrics: Values | None) -> dict[str, str]:
    return {name: f"{float(value):.4g}" for name, value in (metrics or {}).items()}


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"


# After so many rows the names of the columns are printed again.
_ROWS = 10
_NARROWEST = 7  # least column width: four digits, sign and decimal point


def _table(row: dict[str, str], head: bool = True) -> str:
    """Return a row of metrics as text, below their names if ``head``: as many columns as fit the
    terminal, and how many further ones the log file has."""
    names = {key: key.rpartition("/")[2] for key in row}
    widths = {key: max(len(name), _NARROWEST) for key, name in names.items()}
    free = shutil.get_terminal_size((120, 24)).columns - len("  +99 in the log")
    ends = itertools.accumulate(widths[key] + 2 for key in row)
    shown = list(row)[: max(1, sum(end <= free for end in ends))]
    lines = [names, row] if head else [row]
    texts = ["  ".join(line[key].rjust(widths[key]) for key in shown) for line in lines]
    if head and len(shown) < len(row):
        texts[0] += f"  +{len(row) - len(shown)} in the log"
    return "\n".join(texts)
