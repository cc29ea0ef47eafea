"""Load, write and resume from checkpoints in mmengine.

:mod:`hypvision.checkpoints` reads files and compares names; this module restores mmengine's log
history and registers loaders for ``zoo:``, ``hf-hub:`` and web addresses.
:class:`AtomicLocalBackend` writes to a temporary file beside the target and moves it into place, so
that a full disk or a killed process leaves the old checkpoint intact.

:func:`install` makes mmengine's Runner use these loaders and this backend.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from mmengine.dist import barrier, get_rank
from mmengine.fileio import (
    LocalBackend,
    PickleHandler,
    YamlHandler,
    register_backend,
    register_handler,
)
from mmengine.fileio import io as mmengine_io
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer, MMLogger
from mmengine.optim import OptimWrapperDict
from mmengine.registry import HOOKS
from mmengine.runner import CheckpointLoader, EpochBasedTrainLoop
from mmengine.runner import checkpoint as mmengine_checkpoint
from torch import Tensor

from hypvision.checkpoints.match import engine_names, nonfinite_names
from hypvision.checkpoints.read import LogHistory, read_file
from hypvision.checkpoints.sources import fetch, find, is_address, resolve
from hypvision.io import HypvisionError, Plain, StrPath, Values, ensure, explaining, one_line
from hypvision.io.files import replacing

# Reading checkpoint files


def load_checkpoint_file(path: StrPath, map_location: Any = "cpu") -> Plain:
    """Read a checkpoint by :func:`hypvision.checkpoints.read.read_file` and turn its log history
    into mmengine's class."""
    checkpoint = read_file(path, map_location)
    _restore_logs(checkpoint)
    meta = checkpoint.get("meta")
    if isinstance(meta, dict):
        # Runner.resume would run the text under "config" as Python code. The config that mmengine
        # stores is under "cfg", so nothing is lost.
        meta.pop("config", None)
    return checkpoint


def _restore_logs(content: Any) -> None:
    """Replace each :class:`LogHistory` in ``content`` by mmengine's HistoryBuffer, in place."""
    nodes = [content]
    seen = set()
    for node in nodes:
        if not isinstance(node, (dict, list)) or id(node) in seen:
            continue
        seen.add(id(node))
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(value, LogHistory):
                node[key] = HistoryBuffer(value.log_history, value.count_history, value.max_length)
            else:
                nodes.append(value)


def load(source: StrPath, map_location: Any = None) -> Plain:
    """Load a checkpoint of any name or address (:func:`hypvision.checkpoints.sources.fetch`) for
    mmengine's Runner. Weights of the zoo are returned as a ``state_dict`` with the engine's names,
    with the classes under ``meta``."""
    checkpoint = _handed_over.pop(str(source), None)
    if checkpoint is not None:
        return checkpoint
    # With map_location None each tensor would go to the GPU that it was saved from, which may not
    # exist here.
    device = "cpu" if map_location is None else map_location
    if is_address(source):
        index, record = find(str(source))
        # The lock of the cache lets only one process of a machine download the file.
        weights = read_file(resolve(record, index), device)
        if record.task == "zero-shot":
            weights = {f"clip.{name}": value for name, value in weights.items()}
        if record.task == "classification":
            weights = {f"backbone.{name}": value for name, value in weights.items()}
        return {"state_dict": weights, "meta": {"dataset_meta": {"classes": record.classes}}}
    if get_rank() == 0:
        fetch(source)
    barrier()
    # A process on a machine that does not share the cache of process 0 downloads the file here.
    return load_checkpoint_file(fetch(source), device)


_handed_over: dict[str, Plain] = {}


def hand_over(source: StrPath, checkpoint: Plain) -> None:
    """Store a checkpoint that was already read; the next :func:`load` of this name returns it."""
    _handed_over[str(source)] = checkpoint


@contextmanager
def reading_once() -> Iterator[None]:
    """Context for :func:`hand_over`, which saves reading a file twice; at its end, checkpoints that
    no :func:`load` has taken are dropped."""
    try:
        yield
    finally:
        _handed_over.clear()


@HOOKS.register_module()
class EngineNamesHook(Hook):
    """Rename the weights that mmengine's Runner loads to the names of the model
    (:func:`engine_names`)."""

    start = False  # whether a training starts from the weights, which is not resumed

    def after_load_checkpoint(self, runner: Any, checkpoint: Plain) -> None:
        """Rename the weights in ``checkpoint`` in place."""
        model = getattr(runner.model, "module", runner.model)
        renamed = engine_names(model, checkpoint, self.start)
        if renamed is not checkpoint:
            checkpoint["state_dict"] = renamed["state_dict"]


def _of_a_list(read: Callable[..., Plain]) -> Callable[..., Plain]:
    """Wrap a loader of mmengine that knows a fixed list of weights: an unknown name becomes a
    readable error."""

    @wraps(read)
    def load_known(filename: str, map_location: Any = None) -> Plain:
        with explaining(
            lambda error: (
                f"There are no weights '{filename}': mmengine's list of weights has no such name. "
                "Correct load_from, or init_cfg of the model, or give a file."
            ),
            KeyError,
        ):
            return read(filename, map_location=map_location)

    return load_known


def refuse_store(filename: str, map_location: Any = None, **_: Any) -> Plain:
    """Raise an error for an address ``s3://``, ``petrel://`` or ``pavi://``: mmengine's loaders of
    these stores do not verify files."""
    raise HypvisionError(
        f"The checkpoint '{filename}' was not loaded: files of such a store cannot be verified. "
        "Copy it to this machine and give its path, or give https://HOST/FILE#sha256=HEX."
    )


# Writing checkpoint files


def _write(path: Path, data: bytes) -> None:
    """Write a file so that its name always refers to complete content, old or new. If the disk is
    full, the error names the last complete checkpoint."""
    try:
        # Files with the suffix .tmp are no checkpoints to --resume.
        with replacing(path, durable=True, suffix=".tmp") as temporary:
            temporary.write_bytes(data)
    except HypvisionError as error:
        if path.suffix != ".pth" or getattr(error.__cause__, "errno", None) not in (
            errno.ENOSPC,
            errno.EDQUOT,
        ):
            raise
        newest = None
        with suppress(HypvisionError):
            newest = find_resume_checkpoint(path.parent)
        last = (
            f"The last complete checkpoint is '{newest}'."
            if newest
            else "There is no complete checkpoint yet."
        )
        raise HypvisionError(f"{error} {last} When there is space, go on with --resume.") from error


class AtomicLocalBackend(LocalBackend):
    """mmengine's backend of local files: it writes a temporary file and moves it into place, and
    reads regular files alone."""

    def get(self, filepath: StrPath) -> bytes:
        ensure(
            os.path.isfile(filepath) or not os.path.exists(filepath),
            f"'{filepath}' is not a file, but a folder, device or pipe. Check the path.",
        )
        return super().get(filepath)

    def put(self, obj: bytes, filepath: StrPath) -> None:
        """Write the bytes ``obj`` to a file, and make its folder if needed."""
        _write(Path(filepath), bytes(obj))

    def put_text(self, obj: str, filepath: StrPath, encoding: str = "utf-8") -> None:
        """Write the text ``obj`` to a file, and make its folder if needed."""
        _write(Path(filepath), obj.encode(encoding))


def point_to(work_dir: StrPath, checkpoint: StrPath) -> None:
    """Write the name of an existing checkpoint into the file ``last_checkpoint`` of a work
    folder."""
    _write(Path(work_dir, "last_checkpoint"), str(checkpoint).encode())


# Resuming trainings from checkpoints


def resume_problem(checkpoint: Values) -> str | None:
    """Return why a training cannot resume from this checkpoint and needs an earlier one; None if it
    can.

    What PyTorch or mmengine refuse later, while they load the content, :func:`readable_resume`
    explains.
    """

    def whole(value: Any) -> bool:
        return isinstance(value, int) and value >= 0

    def written(state: Any) -> bool:
        groups = state["param_groups"]
        return isinstance(groups, list) and bool(groups) and isinstance(state.get("state"), dict)

    meta = checkpoint.get("meta")
    states = list(_single_states(checkpoint.get("optimizer")))
    if not isinstance(checkpoint.get("state_dict"), Mapping):
        return "it has no state_dict"
    if not isinstance(meta, Mapping) or not whole(meta.get("epoch")) or not whole(meta.get("iter")):
        return (
            "its meta does not say the epoch and iteration that it was written at, whole numbers "
            "of at least 0"
        )
    if "optimizer" in checkpoint and not (states and all(map(written, states))):
        return "the state of its optimizer is not one that PyTorch writes"
    diverged = diverged_weights(checkpoint)
    if diverged:
        return f"its weight '{diverged[0]}' is not finite"
    try:
        return _diverged_state(checkpoint, states)
    except (AttributeError, KeyError, TypeError) as error:
        return f"what it has of its optimizer is damaged ({type(error).__name__}: {error})"


def _diverged_state(checkpoint: Values, states: list[Plain]) -> str | None:
    """Return a sentence on the first gradient or optimiser state of a checkpoint that is not
    finite; None if all are finite."""
    optimizer = checkpoint.get("optimizer")
    # With loss scaling, gradients may overflow: the scaler skips their step, so they are no fault.
    scaled = isinstance(optimizer, dict) and "loss_scaler" in optimizer
    for one in () if scaled else checkpoint.get("accumulated", []):
        diverged = nonfinite_names({**one["gradients"], **one["whole"]})
        if diverged:
            return f"the gradient of '{diverged[0]}' that it has accumulated is not finite"
    for state in states:
        for parameter, entry in state["state"].items():
            diverged = nonfinite_names(entry)
            if diverged:
                return f"'{diverged[0]}' of parameter {parameter} in its optimizer is not finite"
    return None


def diverged_weights(checkpoint: Values) -> list[str]:
    """Return the names of weights that are not finite, in the network and in its moving average.
    Either of the two may be stored as ``state_dict``."""
    parts = [checkpoint.get(part) for part in ("state_dict", "ema_state_dict")]
    return [
        name
        for weights in parts
        if isinstance(weights, Mapping)
        for name in nonfinite_names(weights)
    ]


def _single_states(optimizer: Any) -> Iterator[Plain]:
    """Yield each optimiser's state in ``optimizer``, which is one state or a dict of states by
    name."""
    if isinstance(optimizer, dict) and "param_groups" in optimizer:
        yield optimizer
    elif isinstance(optimizer, dict):
        for inner in optimizer.values():
            yield from _single_states(inner)


@contextmanager
def readable_resume(runner: Any) -> Iterator[None]:
    """Context in which a Runner resumes with readable errors: for damaged content, for optimiser
    states of wrong shapes, and for settings of the config that differ from the checkpoint's. If
    only the lengths of the schedule differ, the training goes on with the rates of the config."""
    resume = runner.load_or_resume

    def checked() -> None:
        path = runner._load_from
        wanted = _settings(runner)
        fresh = _fresh_schedules(runner)
        try:
            resume()
        except (HypvisionError, OSError, KeyboardInterrupt):
            raise
        except Exception as error:
            # mmengine and PyTorch raise errors of many types for damaged content.
            raise not_resumed(path, f"{type(error).__name__}: {one_line(error)}") from error
        wrong = _wrong_shape(runner)
        if wrong:
            raise not_resumed(path, wrong)
        changes = _changes(wanted, _settings(runner))
        if changes:
            _refuse_settings(changes, path)
            _follow_schedules(runner, fresh)
            runner.logger.warning(
                f"'{path}' comes from a training of another length ({_listed(changes)}): from here "
                "on the rates are those that the config has at this point."
            )
        loop = runner.train_loop
        # The data may have grown since, so the iterations that are left follow from the present
        # length of an epoch.
        if isinstance(loop, EpochBasedTrainLoop):
            left = max(loop._max_epochs - loop._epoch, 0)
            loop._max_iters = loop._iter + left * len(runner.train_dataloader)

    with patch.object(runner, "load_or_resume", checked):
        yield


def _optimizers(runner: Any) -> list[Any]:
    wrapper: Any = getattr(runner, "optim_wrapper", None)
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    return [one.optimizer for one in wrappers if hasattr(one, "optimizer")]


def _wrong_shape(runner: Any) -> str:
    """Return a sentence on the first optimiser state whose shape does not fit its parameter; an
    empty string if all fit."""
    for optimizer in _optimizers(runner):
        for parameter, entry in optimizer.state.items():
            # A sharded parameter has a sharded state, whose shape this process cannot compare.
            if hasattr(parameter, "placements"):
                continue
            for name, value in entry.items():
                shape = tuple(value.shape) if isinstance(value, Tensor) else ()
                if shape[:1] not in ((), tuple(parameter.shape[:1])):
                    return (
                        f"'{name}' in its optimizer has the shape {shape} for a parameter of "
                        f"{tuple(parameter.shape)}"
                    )
    return ""


def _schedulers(runner: Any) -> list[Any]:
    found = runner.param_schedulers or []
    return list(itertools.chain(*(found.values() if isinstance(found, dict) else [found])))


def _settings(runner: Any) -> Plain:
    """Return the settings of optimisers and schedules that a checkpoint would replace, by name:
    those of each parameter group that no schedule changes, and those of each schedule without its
    position."""
    schedulers = _schedulers(runner)
    moved = {scheduler.param_name for scheduler in schedulers}
    settings: Plain = {}
    for optimizer in _optimizers(runner):
        for number, group in enumerate(optimizer.param_groups):
            for key in _SETTINGS & group.keys() - moved:
                settings[f"{key} of group {number} of {type(optimizer).__name__}"] = group[key]
    for number, scheduler in enumerate(schedulers):
        for key in scheduler.state_dict().keys() - _POSITION:
            settings[f"{key} of {type(scheduler).__name__} {number}"] = getattr(scheduler, key)
    return settings


# The keys of optimisers' groups that are settings; some optimisers keep further numbers in their
# groups.
_SETTINGS = {
    "lr", "weight_decay", "momentum", "betas", "eps", "dampening", "nesterov", "amsgrad",
    "maximize", "alpha", "decoupled_weight_decay", "ns_steps", "move", "geoopt_first_step",
}  # fmt: skip
# The keys of schedulers' states that say how far they are; the second line is of ReduceOnPlateau.
_POSITION = {
    "last_step", "_global_step", "_last_value", "verbose",
    "best", "num_bad_epochs", "cooldown_counter",
}  # fmt: skip


# The settings of schedulers that follow from the length of a training or of its epochs.
_LENGTHS = ("begin", "end", "T_max", "total_iters", "milestones", "step_size")


def _changes(wanted: Plain, found: Plain) -> dict[str, str]:
    """Return, by name, a text on each setting of the checkpoint (``found``) that differs from that
    of the config (``wanted``)."""
    return {
        key: f"{key} was {value}, is {wanted.get(key)}"
        for key, value in sorted(found.items())
        if value != wanted.get(key)
    }


def _listed(changes: Mapping[str, str]) -> str:
    return "; ".join(list(changes.values())[:3])


def _refuse_settings(changes: Mapping[str, str], path: Any) -> None:
    """Raise an error if a changed setting is not a length of the schedule."""
    others = {key: text for key, text in changes.items() if key.partition(" ")[0] not in _LENGTHS}
    if others:
        raise HypvisionError(
            f"'{path}' comes from a training with another optimizer or schedule "
            f"({_listed(others)}): resume with its settings, or start a new training from its "
            f"weights: --cfg-options load_from={path}."
        )


def _fresh_schedules(runner: Any) -> list[tuple[Plain, list[float]]]:
    """Return the state of each schedule of the config before the first step, and the value that it
    has given to each parameter group."""
    return [
        (dict(one.state_dict()), [group[one.param_name] for group in one.optimizer.param_groups])
        for one in _schedulers(runner)
    ]


def _begin_again(scheduler: Any, state: Plain, values: list[float]) -> None:
    """Give a schedule its first state, and the parameter groups their first values."""
    scheduler.load_state_dict(state)
    for group, value in zip(scheduler.optimizer.param_groups, values):
        group[scheduler.param_name] = value


def _position(runner: Any) -> tuple[int, int]:
    """Return the steps of the resumed training, and those of an epoch; 0 if it has no epochs."""
    loop = runner.train_loop
    epochs = loop._epoch if isinstance(loop, EpochBasedTrainLoop) else 0
    length = len(runner.train_dataloader) if epochs else 0
    return (epochs * length if epochs else loop._iter), length


def _follow_schedules(runner: Any, fresh: list[tuple[Plain, list[float]]]) -> None:
    """Move the schedules of the config from their beginning to the position of the resumed
    training: to its epochs, whose number of iterations may be another one now."""
    steps, length = _position(runner)
    schedulers = _schedulers(runner)
    ensure(
        not any("best" in state for state, _ in fresh),
        "A schedule that follows a metric (ReduceOnPlateau) cannot be moved to another length: "
        "resume with the length that the training had, or start a new one from its weights.",
    )
    for scheduler, (state, values) in zip(schedulers, fresh):
        _begin_again(scheduler, state, values)
    with warnings.catch_warnings():
        # mmengine warns of schedules that step before the optimiser
        warnings.simplefilter("ignore")
        for step in range(1, steps + 1):
            for scheduler in schedulers:
                if not scheduler.by_epoch or (length and step % length == 0):
                    scheduler.step()


def not_resumed(path: Any, reason: str) -> HypvisionError:
    """Return the error for a checkpoint from which a training cannot be resumed."""
    return HypvisionError(
        f"'{path}' cannot be resumed: {reason}. Give an earlier checkpoint: --resume CHECKPOINT."
    )


def find_resume_checkpoint(work_dir: StrPath) -> str | None:
    """Return the path of :func:`newest_checkpoint`; None if the work folder has no checkpoint."""
    newest = newest_checkpoint(work_dir)
    return None if newest is None else newest[0]


def newest_checkpoint(work_dir: StrPath) -> tuple[str, Plain] | None:
    """Return the newest checkpoint in a work folder from which a training can resume.

    Checkpoints are tried in this order: those written after ``last_checkpoint``, by a training that
    was killed before it updated that file; the one that ``last_checkpoint`` names; then
    ``epoch_N.pth`` and ``iter_N.pth`` by falling number, of which the kind that was written last
    comes first. Damaged files are skipped with a warning. The folder may have been moved since the
    training.

    Returns:
        The checkpoint's path and content; None if the folder has no checkpoint.

    Raises:
        HypvisionError: there are checkpoints, but none can be resumed; or the one that
            ``last_checkpoint`` names is gone, without which the training would lose epochs or begin
            again.
    """
    folder = Path(work_dir)
    candidates, named, gone = _candidates(folder)
    wrong: dict[Path, str] = {}
    for path in candidates:
        place = path.resolve()
        if place in wrong or not path.exists():
            continue
        try:
            checkpoint = load_checkpoint_file(path)
            problem = resume_problem(checkpoint)
        except HypvisionError as error:
            problem = str(error)
        if problem is None and gone:
            raise HypvisionError(
                f"The newest checkpoint of '{folder}', '{named}' by its last_checkpoint, is not "
                f"there. Put it back, or go on from '{path}', the newest that is there: --resume "
                f"{path}."
            )
        if problem is None:
            return str(path), checkpoint
        MMLogger.get_current_instance().warning(
            f"Not resuming from '{path}': {problem.rstrip('.')}."
        )
        wrong[place] = problem
    _require_new(folder, named, wrong)
    return None


def _candidates(folder: Path) -> tuple[list[Path], str, bool]:
    """Return the checkpoints of a work folder, the newest first; the name in its file
    ``last_checkpoint``; and whether the checkpoint of this name is gone."""
    numbered = numbered_checkpoints(folder)
    found = [path for group in numbered.values() for path in group.values()]
    pointer = folder / "last_checkpoint"
    named = pointer.read_text(errors="replace").strip("\0 \n") if pointer.is_file() else ""
    if not named:
        return found, "", False
    pointed = [folder / Path(named).name, Path(named)]
    later = _written_after(pointer, pointed[0].name, numbered)
    if later:
        MMLogger.get_current_instance().warning(
            f"'{later[0]}' was written after last_checkpoint, which names '{named}': the training "
            "was killed between the two writes. It resumes from the former; to resume from the "
            "latter give --resume CHECKPOINT."
        )
    gone = not later and not any(path.exists() for path in pointed)
    return [*later, *pointed, *found], named, gone


def _require_new(folder: Path, named: str, wrong: dict[Path, str]) -> None:
    """Raise an error if a training was in the folder but none of its checkpoints can be resumed; do
    nothing for a folder without a training."""
    over = "to start over, leave out --resume and choose another --work-dir."
    if wrong:
        first, reason = next(iter(wrong.items()))
        raise HypvisionError(
            f"None of the checkpoints in '{folder}' can be resumed "
            f"({', '.join(sorted(path.name for path in wrong))}); of {first.name}: "
            f"{reason.rstrip('.')}. Give an intact one, --resume CHECKPOINT; {over}"
        )
    others = sorted(path.name for path in folder.glob("best_*.pth"))
    if not others and not (folder / "last_checkpoint").is_file():
        return
    gone = f"'{named}', which its last_checkpoint names, is not there; " if named else ""
    back = "Put it back, or give" if named else "Give"
    there = "it has no other"
    if others:
        there = f"it has {', '.join(others[:3])} alone, which hold weights only"
    raise HypvisionError(
        f"A training was in '{folder}', but no checkpoint of it can be resumed: {gone}{there}. "
        f"{back} one from another place, --resume CHECKPOINT; {over}"
    )


def numbered_checkpoints(folder: Path) -> dict[str, dict[int, Path]]:
    """Return the numbered checkpoints, ``epoch_N.pth`` and ``iter_N.pth``, by unit and number: the
    unit that was written last comes first, and in each unit the highest number."""
    found: dict[str, dict[int, Path]] = {"epoch": {}, "iter": {}}
    for path in folder.glob("*.pth"):
        match = NUMBERED.fullmatch(path.name)
        if match:
            found[match[1]][int(match[2])] = path
    times = {
        kind: max((path.stat().st_mtime for path in group.values()), default=0.0)
        for kind, group in found.items()
    }
    kinds = sorted(found, key=lambda kind: times[kind], reverse=True)
    return {kind: dict(sorted(found[kind].items(), reverse=True)) for kind in kinds}


NUMBERED = re.compile(r"(epoch|iter)_(\d+)\.pth")
"""The names of checkpoints from which a training can be resumed."""


def _written_after(pointer: Path, named: str, numbered: dict[str, dict[int, Path]]) -> list[Path]:
    """Return the checkpoints that have a higher number than the one that ``last_checkpoint`` names
    and that were written after this file."""
    match = NUMBERED.fullmatch(named)
    if match is None:
        return []
    time = pointer.stat().st_mtime_ns
    group = numbered[match[1]]
    return [
        path
        for number, path in group.items()
        if number > int(match[2]) and path.stat().st_mtime_ns > time
    ]


# libyaml's loader is ten times as fast, and a config based on mmdet's reads a hundred metafiles of
# models.
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class SafeYamlHandler(YamlHandler):
    """Read YAML for mmengine without tags that create Python objects, since such tags can run any
    code."""

    def load_from_fileobj(self, file: Any, **kwargs: Any) -> Any:
        return yaml.load(file, Loader=_SafeLoader)


class PickleWriter(PickleHandler):
    """mmengine's pickle handler, which writes pickles but reads only JSON: a pickle that poses as
    an annotation file could run any code. Some readers of mmdet (OpenImages) open a file as a
    pickle whatever its name is; such a file can be JSON."""

    def load_from_fileobj(self, file: Any, **kwargs: Any) -> Any:
        # The message cannot name the file, since mmengine passes an open file without its name.
        with explaining(
            lambda error: (
                "An annotation file of the config's data is a pickle (.pkl, .pickle), which could "
                "run any code, so it was not read. If you trust it, convert it to JSON, and name "
                "that file in the config."
            ),
            ValueError,
        ):
            return json.loads(file.read().decode())


def install() -> None:
    """Install the loaders and file handlers above in mmengine; repeated calls change nothing."""
    register_handler(["yaml", "yml"])(SafeYamlHandler)
    register_handler(["pickle", "pkl"])(PickleWriter)
    names = ("", "http://", "https://", "zoo:", "hf-hub:", "file://")
    CheckpointLoader.register_scheme(prefixes=names, loader=load, force=True)
    stores = (r"(\S+\:)?s3://", r"(\S+\:)?petrel://", "pavi://")
    CheckpointLoader.register_scheme(prefixes=stores, loader=refuse_store, force=True)
    # mmengine calls load_from_http for torchvision://, open-mmlab:// and mmcls:// after it has
    # looked up the URL.
    mmengine_checkpoint.load_from_http = lambda name, map_location=None, model_dir=None: load(
        name, map_location
    )
    for prefixes, read in (
        (("modelzoo://", "torchvision://"), mmengine_checkpoint.load_from_torchvision),
        (("open-mmlab://", "openmmlab://"), mmengine_checkpoint.load_from_openmmlab),
        ("mmcls://", mmengine_checkpoint.load_from_mmcls),
    ):
        CheckpointLoader.register_scheme(prefixes=prefixes, loader=_of_a_list(read), force=True)
    register_backend("local", AtomicLocalBackend, force=True, prefixes="")
    # mmengine caches the backends in use, so those of the replaced class are removed.
    for key, backend in list(mmengine_io.backend_instances.items()):
        if type(backend) is LocalBackend:
            del mmengine_io.backend_instances[key]
