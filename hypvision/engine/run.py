"""Train and test models of every task on mmengine's Runner, from a config file to a result.

``hypvision train`` and ``hypvision test`` call :func:`train` and :func:`test`. The docstring of
:mod:`hypvision.engine.config` says what is added to a config.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from itertools import count
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import RUNNERS
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import BatchSampler

from hypvision.checkpoints.match import check_compatible, engine_names
from hypvision.checkpoints.sources import is_address
from hypvision.inference.progress import say
from hypvision.io import HypvisionError, Metrics, Plain, StrPath, ensure, explaining
from hypvision.io.files import check_output, note_holder, protecting, who_holds, why_no_file
from hypvision.io.plugins import PLUGINS
from hypvision.nn.batch_statistics import is_batch_norm

from .checkpoint import (
    EngineNamesHook,
    hand_over,
    load,
    newest_checkpoint,
    not_resumed,
    readable_resume,
    reading_once,
    resume_problem,
)
from .checks import check_channels, check_data, check_schedule
from .config import Run, leave_out_pretrained, load_config, prepare
from .console import ConsoleHook, quiet
from .hooks import InterruptHook, network_of, take_templates
from .loops import SeekingIterTrainLoop
from .reports import add_report, draw_results, show, use_tta, write_predictions
from .tracking import track

_logger = logging.getLogger(__name__)
_RUNS = count()
# For each loop, mmengine needs either all of these settings or none of them.
_LOOPS = (
    ("train_dataloader", "train_cfg", "optim_wrapper"),
    ("val_dataloader", "val_cfg", "val_evaluator"),
    ("test_dataloader", "test_cfg", "test_evaluator"),
)


def _import_and_make(modules: list[str], kind: Any) -> Any:
    """Import the modules, then return an object of the class ``kind`` without its state, which is
    unpickled next."""
    for module in modules:
        importlib.import_module(module)
    return kind.__new__(kind)


def worker_context() -> BaseContext | None:
    """Return the multiprocessing context whose new processes import the loaded extensions; None if
    processes are forked."""
    default: Any = multiprocessing.get_context(multiprocessing.get_start_method())
    kind: Any = default.Process
    if default.get_start_method() == "fork":
        return None

    class Process(kind):
        def __reduce__(self) -> Any:
            loaded = {
                module
                for role, module in PLUGINS.items()
                if role.startswith("scope ") and module in sys.modules
            }
            return _import_and_make, (sorted(loaded), kind), vars(self)

    # A copy is changed, since all other code of this process uses multiprocessing's own context.
    context: Any = type(default)()
    context.Process = Process
    return context


def with_extensions(build: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap mmengine's function that builds data loaders, so that their workers start by
    :func:`worker_context`."""

    def build_dataloader(*args: Any, **kwargs: Any) -> Any:
        loader = build(*args, **kwargs)
        if loader.num_workers and loader.multiprocessing_context is None:
            loader.multiprocessing_context = worker_context()
        return loader

    return build_dataloader


def _build_runner(config: Run, console: ConsoleHook | None, of_training: bool) -> Runner:
    _check_loops(config)
    _protect_inputs(config, of_training)
    number = next(_RUNS)
    if number:
        # mmengine names the log and the message hub by this name and the time in seconds; two runs
        # in one second would share them, so later runs get a number.
        config.experiment_name = f"{config.get('experiment_name') or config.stem}-{number}"
    runner = RUNNERS.build(config) if "runner_type" in config else Runner.from_cfg(config)
    runner.build_dataloader = with_extensions(runner.build_dataloader)
    check_channels(network_of(runner))
    for part in runner.model.modules():
        # Not all preprocessors take non_blocking as an argument, so the attribute is set.
        if isinstance(part, BaseDataPreprocessor):
            part._non_blocking = True
    if config.get("compile"):
        # PyTorch's compiler takes seconds to import, so it is imported only if needed.
        from .compiling import let_compile

        let_compile(runner)
    if console is not None:
        runner.register_hook(console, "LOWEST")
    return runner


def _check_loops(config: Run) -> None:
    for parts in _LOOPS:
        lacking = [name for name in parts if config.get(name) is None]
        if 0 < len(lacking) < len(parts):
            given = " and ".join(name for name in parts if name not in lacking)
            raise HypvisionError(
                f"The config '{config.filename}' has {given}, but no {' and no '.join(lacking)}. "
                f"Add what is missing, or remove {given}."
            )
    if config.get("optim_wrapper") is None:
        config.param_scheduler = None  # mmengine refuses a param_scheduler without an optim_wrapper


def _protect_inputs(config: Run, of_training: bool) -> None:
    """Check that the files that mmengine overwrites without asking may be overwritten: its copy of
    the config in the work dir, and ``last_checkpoint``."""
    given = Path(config.filename or "config.py")
    written = Path(config.work_dir, given.name)
    if not of_training or _is_kept(written, given):
        # Without a file name mmengine writes the config only into its time-stamped folder.
        object.__setattr__(config, "_filename", None)
    else:
        with protecting(*config.inputs()):
            check_output(written)
    check_output(Path(config.work_dir, "last_checkpoint"))


def _is_kept(written: Path, given: Path) -> bool:
    """Return whether a config in the work dir must not be replaced: it is the given one, or the
    user has edited it. An unedited one equals a copy that mmengine has written into the folder of a
    training."""
    if not written.is_file():
        return False
    if given.is_file() and written.samefile(given):
        return True
    copies = written.parent.glob("*/vis_data/config.py")
    others = written.is_symlink() or written.suffix != ".py"
    known = others or written.read_bytes() in [copy.read_bytes() for copy in copies]
    if not known and is_main_process():
        say(
            f"'{written}' was edited, so it is not replaced. The config of this training is in the "
            "time-stamped folder."
        )
    return not known


def train(
    config: StrPath | Config,
    work_dir: StrPath | None = None,
    resume: StrPath | None = None,
    amp: bool = False,
    cfg_options: Plain | None = None,
    launcher: str = "none",
    verbose: bool = False,
    log: str | None = None,
) -> Runner:
    """Train the model that a config describes.

    Args:
        config: path of a config file, or a config.
        work_dir: folder of checkpoints and logs; default ``work_dirs/CONFIG_NAME``.
        resume: ``"auto"`` to resume from the newest complete checkpoint in ``work_dir`` (or start
            from the beginning if there is none), or the path of a checkpoint.
        amp: train in mixed precision.
        cfg_options: changes of the config, see :func:`load_config`.
        launcher: what has started the processes: ``"none"``, ``"pytorch"`` (torchrun), ``"slurm"``
            or ``"mpi"``.
        verbose: show mmengine's whole log on the console, not only in the log file; see
            :mod:`hypvision.engine.console`.
        log: tracker that gets the log besides the log files: ``"tensorboard"``, ``"wandb"`` or
            ``"mlflow"``; see :mod:`hypvision.engine.tracking`.

    Returns:
        The runner after the training. ``results.png`` in the work dir has the curves of the
        training.
    """
    with quiet(verbose):
        run = prepare(load_config(config, cfg_options), work_dir, amp, launcher)
        if log is not None:
            track(run, log)
        for name in _LOOPS[0]:
            if run.get(name) is None:
                raise HypvisionError(
                    f"The config '{run.filename}' has no {name}: it is for tests only. Add the key "
                    "to train."
                )
        check_data(run, ("train", "val"))
        check_schedule(run.schedule)
        _set_start(run, resume)
        # A training from nothing reads no checkpoint.
        with reading_once() if run.get("load_from") else nullcontext(), lock_work_dir(run.work_dir):
            return _train(run, _console(verbose))


@contextmanager
def lock_work_dir(work_dir: StrPath) -> Iterator[None]:
    """Context in which the folder of a training is locked; the system releases the lock when the
    process ends, however it ends.

    In a distributed training the first process holds the lock.
    """
    if not is_main_process():
        yield
        return
    folder = Path(work_dir)
    holder = folder / ".training.json"
    lock = FileLock(folder / ".training.lock", timeout=0)
    folder.mkdir(parents=True, exist_ok=True)
    with explaining(
        lambda error: (
            f"Another training writes to '{folder}'{who_holds(holder)}. Two would overwrite each "
            "other's checkpoints: wait for its end, stop it, or choose another folder with "
            "--work-dir."
        ),
        Timeout,
    ):
        lock.acquire()
    try:
        note_holder(holder)
        yield
    finally:
        for path in (holder, folder / ".training.lock"):
            path.unlink(missing_ok=True)
        lock.release()


def _console(verbose: bool) -> ConsoleHook | None:
    """Return the hook of the console for the first process; None for others and with
    ``verbose``."""
    return None if verbose or not is_main_process() else ConsoleHook()


def _set_start(config: Run, resume: StrPath | None) -> None:
    """Set the checkpoint that a training resumes from, if there is one, and check that it fits the
    config."""
    found: tuple[str, Plain] | None = None
    if resume is None and config.get("resume") and not config.get("load_from"):
        resume = "auto"
    if str(resume) == "auto":
        found = newest_checkpoint(config.work_dir)
        # Without a checkpoint the training begins with the weights of load_from, if any.
        config.resume = found is not None
    elif resume is not None:
        ensure(
            Path(resume).is_file(),
            f"{why_no_file(resume, 'checkpoint')} Give the path of a .pth file to resume.",
        )
        found = (str(resume), load(str(resume)))
        config.resume = True
    if found is not None:
        path, checkpoint = found
        config.load_from = path
        _check_average(config, path, checkpoint)
        hand_over(path, checkpoint)
    if config.get("resume"):
        leave_out_pretrained(config.model)


def _check_average(config: Run, path: str, checkpoint: Plain) -> None:
    """Raise an error if a checkpoint comes from a training with EMAHook and the config has no such
    hook: its weights are the average, so a training would go on from the average."""
    if "ema_state_dict" in checkpoint and not any(
        "EMA" in str(h.get("type")) for h in config.custom_hooks
    ):
        raise HypvisionError(
            f"The weights of '{path}' are the average of an EMAHook, which the config does not "
            "have: a training would go on from the average. Add the hook again, or start a new "
            f"training from the average: --cfg-options load_from={path}."
        )


def drop_single_image(loop: Any, network: nn.Module) -> None:
    """Let epochs drop a last batch of one image, since batch norms have no statistics of one image,
    and warn if all batches are one image.

    Args:
        loop: the training loop, before it runs.
        network: the model, in training mode.
    """
    loader = loop.dataloader
    norms = [part for part in network.modules() if is_batch_norm(part) and part.training]
    if not norms or type(loader.batch_sampler) is not BatchSampler:
        return
    if loader.batch_size == 1:
        _logger.warning(
            "Each batch is one image, and the model trains %d batch norms: their statistics are "
            "those of one image, and PyTorch refuses them for a map of one pixel. Set "
            "train_dataloader.batch_size to 2 or more, or keep the norms as they are: "
            "model.freeze_bn=True of a classifier, norm_eval=True of a backbone.",
            len(norms),
        )
        return
    # The number of images of this process; a sampler by iterations has no end, so no last batch.
    images = len(loader.sampler) if isinstance(loop, EpochBasedTrainLoop) else 0
    single = images > 1 and images % loader.batch_size == 1
    if single and not loader.batch_sampler.drop_last:
        loader.batch_sampler.drop_last = True
        loop._max_iters = loop.max_epochs * len(loader)
        _logger.info(
            "The last batch of an epoch would be one image, of which batch norms have no "
            "statistics: it is left out (%d images, batches of %d).",
            images, loader.batch_size,
        )  # fmt: skip


def _train(config: Run, console: ConsoleHook | None) -> Runner:
    runner = _build_runner(config, console, of_training=True)
    resume = bool(config.get("resume"))
    if config.get("load_from"):
        _check_weights(runner, config.load_from, resume, exact=resume)
    for hook in runner.hooks:
        if isinstance(hook, EngineNamesHook):
            hook.start = not resume
    drop_single_image(runner.train_loop, network_of(runner))
    with _ended(runner, console), readable_resume(runner) if resume else nullcontext():
        runner.train()
    if is_main_process() and find_spec("matplotlib") is not None:
        draw_results(runner)
    return runner


@contextmanager
def _ended(runner: Runner, console: ConsoleHook | None) -> Iterator[None]:
    """Leave nothing of a run open when it ends, also by an error: signals, the console, processes
    that load data; an error that an interrupt caused is explained."""
    interrupts = [hook for hook in runner.hooks if isinstance(hook, InterruptHook)]
    try:
        yield
    except RuntimeError:
        for hook in interrupts:
            hook.explain(runner)
        raise
    finally:
        for hook in interrupts:
            hook.restore()
        if console is not None:
            console.close()
        end_workers(runner)


def end_workers(runner: Runner) -> None:
    """End the processes that load data; a later loop of the runner starts them again.

    The processes of a runner that is left to the garbage collector live on, and a process that
    another training forks meanwhile may collect them: both then wait for seconds.
    """
    for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
        if isinstance(loop, SeekingIterTrainLoop):
            loop.rewind()
        elif hasattr(loop, "dataloader_iterator"):
            continue  # mmengine's iterator over steps cannot open its data again
        loader: Any = getattr(loop, "dataloader", None)
        batches = getattr(loader, "_iterator", None)
        if batches is not None:
            loader._iterator = None
            batches._shutdown_workers()


def _check_weights(
    runner: Runner,
    path: str,
    resume: bool = False,
    exact: bool = True,
    allow_nonfinite: bool = True,
) -> None:
    """Raise an error if a checkpoint cannot be resumed or does not fit the model, before the Runner
    loads it."""
    if "://" in path and not path.startswith(("http://", "https://")) and not is_address(path):
        # The address is a model name that only mmengine's own loaders can read, so it is not
        # checked.
        return
    checkpoint = load(path)
    ensure(
        not resume or "optimizer" in checkpoint,
        f"'{path}' holds weights only, without the state of a training, so it cannot be "
        f"resumed. To start from these weights use --cfg-options load_from={path}.",
    )
    wrong = resume_problem(checkpoint) if resume else None
    if wrong is not None:
        raise not_resumed(path, wrong)
    model = getattr(runner.model, "module", runner.model)
    named = engine_names(model, checkpoint, start=not exact)
    check_compatible(model, named.get("state_dict", named), path, exact, allow_nonfinite)
    hand_over(path, checkpoint)


def test(
    config: StrPath | Config,
    weights: StrPath,
    work_dir: StrPath | None = None,
    out: StrPath | None = None,
    show_dir: StrPath | None = None,
    tta: bool = False,
    cfg_options: Plain | None = None,
    launcher: str = "none",
    allow_nonfinite: bool = False,
    verbose: bool = False,
    save: StrPath | None = None,
) -> Metrics:
    """Measure a checkpoint on the test data of a config and return the metrics.

    Args:
        config: path of a config file, or a config.
        weights: checkpoint file, ``"zoo:NAME"``, or URL with the file's SHA-256,
            ``https://...#sha256=HEX``.
        work_dir: folder of the logs; default ``work_dirs/CONFIG_NAME``.
        out: folder of a report, ``report.html`` with its pictures and tables, see
            :mod:`hypvision.engine.reports`; for segmentation also the predicted label maps as PNG,
            in ``label_maps``.
        show_dir: folder for images with the predictions drawn in.
        tta: use test-time augmentation: the config's ``tta_model`` and ``tta_pipeline``; without
            these, and for classification, each image and its mirror image.
        cfg_options: changes of the config, see :func:`load_config`.
        launcher: as for :func:`train`.
        allow_nonfinite: accept weights that are NaN or infinite; metrics are NaN if predictions are
            not finite.
        verbose: as for :func:`train`.
        save: file of the predictions. For classification it is JSON with metrics and predictions,
            for detection the prefix of COCO result files, for retrieval the embeddings.

    Returns:
        The metrics by name.
    """
    with quiet(verbose), reading_once():
        config = prepare(load_config(config, cfg_options), work_dir, launcher=launcher)
        _check_test(config, weights)
        # The state_dict of the checkpoint already has the averaged weights, so no EMAHook is
        # needed.
        config.custom_hooks = [
            hook for hook in config.custom_hooks if hook.get("type") != "EMAHook"
        ]
        config.resume = False
        config.load_from = str(weights)
        if "clip" in config.model and not is_address(weights):
            checkpoint = load(str(weights))
            take_templates(config.model, checkpoint, cfg_options or {})
            hand_over(str(weights), checkpoint)
        leave_out_pretrained(config.model)
        if tta:
            use_tta(config)
        with protecting(weights, *config.inputs()):
            if save is not None:
                write_predictions(config, Path(save))
            if out is not None:
                add_report(config, Path(out), str(weights))
        if show_dir is not None:
            show(config, Path(show_dir))
        return _measure(config, str(weights), _console(verbose), allow_nonfinite)


def _check_test(config: Run, weights: StrPath) -> None:
    """Check that the config has test data, that their files exist, and that the weights exist."""
    ensure(
        "test_dataloader" in config,
        f"The config '{config.filename}' has no test_dataloader, so there are no data to "
        "measure on. Add one.",
    )
    address = str(weights).startswith(("http://", "https://")) or is_address(weights)
    ensure(
        address or Path(weights).exists(),
        f"{why_no_file(weights, 'checkpoint')} Give the path of a .pth file.",
    )
    check_data(config, ("test",))


def _measure(
    config: Run, weights: str, console: ConsoleHook | None, allow_nonfinite: bool
) -> Metrics:
    runner = _build_runner(config, console, of_training=False)
    _check_weights(runner, weights, allow_nonfinite=allow_nonfinite)
    for metric in runner.test_loop.evaluator.metrics if allow_nonfinite else ():
        metric.allow_nonfinite = True
    with _ended(runner, console):
        return runner.test()
