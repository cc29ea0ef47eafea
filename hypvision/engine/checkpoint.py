"""Checkpoints in mmengine: loading, writing and resuming.

:mod:`hypvision.checkpoints` reads and compares; this module restores mmengine's log history and
registers loaders of ``zoo:``, ``hf-hub:`` and web addresses. :class:`AtomicLocalBackend` writes to
a temporary file beside the target and moves it into place, so that a full disk or a killed process
leaves the old checkpoint intact.

:func:`install` makes mmengine's Runner use all of it.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import config as mmengine_config
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
from hypvision.io.errors import HypvisionError, one_line
from hypvision.io.files import replacing

# Reading


def load_checkpoint_file(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """:func:`hypvision.checkpoints.read.read_file`, which also restores mmengine's log class."""
    checkpoint = read_file(path, map_location)
    _restore_logs(checkpoint)
    meta = checkpoint.get("meta")
    if isinstance(meta, dict):
        # Runner.resume would run this text as Python code; mmengine itself stores the config under
        # "cfg".
        meta.pop("config", None)
    return checkpoint


def _restore_logs(content: Any) -> None:
    """Replace each :class:`LogHistory` by mmengine's HistoryBuffer."""
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


def load(source: str | Path, map_location: Any = None) -> dict[str, Any]:
    """mmengine's loader for every kind of checkpoint name
    (:func:`hypvision.checkpoints.sources.fetch`); zoo weights become a ``state_dict`` with the
    engine's names, and ``meta`` with the classes."""
    checkpoint = _handed_over.pop(str(source), None)
    if checkpoint is not None:
        return checkpoint
    # With None each tensor would go to the GPU that it was saved from, which may not exist here.
    device = "cpu" if map_location is None else map_location
    if is_address(source):
        index, record = find(str(source))
        # a lock lets only one process per machine download
        weights = read_file(resolve(record, index), device)
        if record.task == "zero-shot":
            weights = {f"clip.{name}": value for name, value in weights.items()}
        if record.task == "classification":
            weights = {f"backbone.{name}": value for name, value in weights.items()}
        return {"state_dict": weights, "meta": {"dataset_meta": {"classes": record.classes}}}
    if get_rank() == 0:
        fetch(source)
    barrier()
    # machines that do not share the cache download it too
    return load_checkpoint_file(fetch(source), device)


_handed_over: dict[str, dict[str, Any]] = {}


def hand_over(source: str | Path, checkpoint: dict[str, Any]) -> None:
    """Store a checkpoint that was already read; the next :func:`load` of this name returns it."""
    _handed_over[str(source)] = checkpoint


@contextmanager
def reading_once() -> Iterator[None]:
    """Context in which :func:`hand_over` avoids reading twice; its end drops unused checkpoints."""
    try:
        yield
    finally:
        _handed_over.clear()


@HOOKS.register_module()
class EngineNamesHook(Hook):
    """Renames, by :func:`engine_names`, the weights that mmengine's Runner loads."""

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Changes ``checkpoint`` in place."""
        model = getattr(runner.model, "module", runner.model)
        renamed = engine_names(model, checkpoint)
        if renamed is not checkpoint:
            checkpoint["state_dict"] = renamed["state_dict"]


def _of_a_list(read: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Wrap one of mmengine's loaders of named weights: an unknown name is a readable error."""

    @wraps(read)
    def load_known(filename: str, map_location: Any = None) -> dict[str, Any]:
        try:
            return read(filename, map_location=map_location)
        except KeyError as error:
            raise HypvisionError(
                f"There are no weights '{filename}': mmengine's list of them has no such name. "
                "Correct load_from, or init_cfg of the model, or give a file."
            ) from error

    return load_known


def refuse_store(filename: str, map_location: Any = None, **_: Any) -> dict[str, Any]:
    """Replaces mmengine's loaders of ``s3://``, ``petrel://``, ``pavi://``: they verify nothing."""
    raise HypvisionError(
        f"The checkpoint '{filename}' was not loaded: files of such a store cannot be verified. "
        "Copy it to this machine and give its path, or give https://HOST/FILE#sha256=HEX."
    )


# Writing


def _write(path: Path, data: bytes) -> None:
    """Write a file so that its name always refers to complete content, old or new."""
    try:
        # --resume ignores temporary names.
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
    """mmengine's local files, written beside and moved into place; reads only regular files."""

    def get(self, filepath: str | Path) -> bytes:
        if not os.path.isfile(filepath) and os.path.exists(filepath):
            raise HypvisionError(
                f"'{filepath}' is not a file, but a folder, device or pipe. Check the path."
            )
        return super().get(filepath)

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write ``obj``, making the folder if needed."""
        _write(Path(filepath), bytes(obj))

    def put_text(self, obj: str, filepath: str | Path, encoding: str = "utf-8") -> None:
        """Write the text ``obj``, making the folder if needed."""
        _write(Path(filepath), obj.encode(encoding))


def point_to(work_dir: str | Path, checkpoint: str | Path) -> None:
    """Let ``last_checkpoint`` in a work folder name a checkpoint, which is there already."""
    _write(Path(work_dir, "last_checkpoint"), str(checkpoint).encode())


# Resuming


def resume_problem(checkpoint: Mapping[str, Any]) -> str | None:
    """Why a training should resume from an earlier checkpoint than this; None if it need not.

    Content that PyTorch or mmengine refuses later is explained by :func:`readable_resume`.
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


def _diverged_state(checkpoint: Mapping[str, Any], states: list[dict[str, Any]]) -> str | None:
    """Which gradient or state of an optimiser is not finite."""
    optimizer = checkpoint.get("optimizer")
    # a scaler leaves out what has overflowed
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


def diverged_weights(checkpoint: Mapping[str, Any]) -> list[str]:
    """The names of weights that are not finite, of the network and of its average (either may be
    ``state_dict``)."""
    parts = [checkpoint.get(part) for part in ("state_dict", "ema_state_dict")]
    return [
        name
        for weights in parts
        if isinstance(weights, Mapping)
        for name in nonfinite_names(weights)
    ]


def _single_states(optimizer: Any) -> Iterator[dict[str, Any]]:
    """The optimiser states in ``state``, which is one state or a dict of several."""
    if isinstance(optimizer, dict) and "param_groups" in optimizer:
        yield optimizer
    elif isinstance(optimizer, dict):
        for inner in optimizer.values():
            yield from _single_states(inner)


@contextmanager
def readable_resume(runner: Any) -> Iterator[None]:
    """Context that turns errors while a Runner resumes, optimiser states of wrong shapes, and
    settings that are not those of the checkpoint into readable errors."""
    resume = runner.load_or_resume

    def checked() -> None:
        path = runner._load_from
        wanted = _settings(runner)
        try:
            resume()
        except (HypvisionError, OSError, KeyboardInterrupt):
            raise
        except Exception as error:
            # mmengine and PyTorch raise errors of many types for damaged content
            raise not_resumed(path, f"{type(error).__name__}: {one_line(error)}") from error
        wrong = _wrong_shape(runner)
        if wrong:
            raise not_resumed(path, wrong)
        _refuse_changes(wanted, _settings(runner), path)
        loop = runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop):  # epochs may be longer now, but not those done
            left = max(loop._max_epochs - loop._epoch, 0)
            loop._max_iters = loop._iter + left * len(runner.train_dataloader)

    runner.load_or_resume = checked
    try:
        yield
    finally:
        del runner.load_or_resume


def _optimizers(runner: Any) -> list[Any]:
    wrapper: Any = getattr(runner, "optim_wrapper", None)
    wrappers = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    return [one.optimizer for one in wrappers if hasattr(one, "optimizer")]


def _wrong_shape(runner: Any) -> str:
    """The first state of an optimiser that does not fit its parameter; empty if all do."""
    for optimizer in _optimizers(runner):
        for parameter, entry in optimizer.state.items():
            if hasattr(parameter, "placements"):  # the parameter is a shard, as its state is
                continue
            for name, value in entry.items():
                shape = tuple(value.shape) if isinstance(value, Tensor) else ()
                if shape[:1] not in ((), tuple(parameter.shape[:1])):
                    return (
                        f"'{name}' in its optimizer has the shape {shape} for a parameter of "
                        f"{tuple(parameter.shape)}"
                    )
    return ""


def _settings(runner: Any) -> dict[str, Any]:
    """What a config says of optimisers and schedules, and a checkpoint replaces: each group's
    settings that no schedule moves, and each schedule without its position."""
    found = runner.param_schedulers or []
    parts = found.values() if isinstance(found, dict) else [found]
    schedulers = list(itertools.chain(*parts))
    moved = {scheduler.param_name for scheduler in schedulers}
    settings: dict[str, Any] = {}
    for optimizer in _optimizers(runner):
        for number, group in enumerate(optimizer.param_groups):
            for key in _SETTINGS & group.keys() - moved:
                settings[f"{key} of group {number} of {type(optimizer).__name__}"] = group[key]
    for number, scheduler in enumerate(schedulers):
        for key in scheduler.state_dict().keys() - _POSITION:
            settings[f"{key} of {type(scheduler).__name__} {number}"] = getattr(scheduler, key)
    return settings


# of optimisers; some keep numbers of their own beside these in their groups
_SETTINGS = {
    "lr", "weight_decay", "momentum", "betas", "eps", "dampening", "nesterov", "amsgrad",
    "maximize", "alpha", "decoupled_weight_decay", "ns_steps", "move", "geoopt_first_step",
}  # fmt: skip
# of schedulers, those of the second line only of ReduceOnPlateau
_POSITION = {
    "last_step", "_global_step", "_last_value", "verbose",
    "best", "num_bad_epochs", "cooldown_counter",
}  # fmt: skip


def _refuse_changes(wanted: dict[str, Any], found: dict[str, Any], path: Any) -> None:
    """Raise an error where the settings of a config are not those of the checkpoint."""
    changes = [
        f"{key} was {value}, is {wanted.get(key)}"
        for key, value in sorted(found.items())
        if value != wanted.get(key)
    ]
    if changes:
        raise HypvisionError(
            f"'{path}' is of a training with another optimizer or schedule "
            f"({'; '.join(changes[:3])}): resume with its settings, or start a new training from "
            f"its weights: --cfg-options load_from={path}."
        )


def not_resumed(path: Any, reason: str) -> HypvisionError:
    """The error for a checkpoint that a training cannot go on from."""
    return HypvisionError(
        f"'{path}' cannot be resumed: {reason}. Give an earlier checkpoint: --resume CHECKPOINT."
    )


def find_resume_checkpoint(work_dir: str | Path) -> str | None:
    """The path of :func:`newest_checkpoint`; None if there is no checkpoint at all."""
    newest = newest_checkpoint(work_dir)
    return None if newest is None else newest[0]


def newest_checkpoint(work_dir: str | Path) -> tuple[str, dict[str, Any]] | None:
    """The newest checkpoint in a work folder that a training can resume from.

    First those that were written after ``last_checkpoint``, by a training that was killed before it
    changed that; then the one that it names; then ``epoch_N.pth`` and ``iter_N.pth`` by falling
    number (the kind that was written last comes first). Damaged files are skipped with a warning.
    The folder may have been moved since.

    Returns:
        Its path and what it holds; None if there is no checkpoint at all.

    Raises:
        HypvisionError: there are checkpoints, but none can be resumed; or the newest one, which
            ``last_checkpoint`` names, is gone: the training would lose epochs, or begin again.
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
    """The checkpoints of a work folder, the newest first; the one that ``last_checkpoint`` names,
    and whether it is gone."""
    numbered = _numbered(folder)
    found = [path for group in numbered.values() for path in group.values()]
    pointer = folder / "last_checkpoint"
    named = pointer.read_text(errors="replace").strip("\0 \n") if pointer.is_file() else ""
    if not named:
        return found, "", False
    pointed = [folder / Path(named).name, Path(named)]
    later = _written_after(pointer, pointed[0].name, numbered)
    if later:
        MMLogger.get_current_instance().warning(
            f"'{later[0]}' was written after last_checkpoint, which names '{named}': the "
            "training was killed between the two. Going on from the former; for the other give "
            "--resume CHECKPOINT."
        )
    gone = not later and not any(path.exists() for path in pointed)
    return [*later, *pointed, *found], named, gone


def _require_new(folder: Path, named: str, wrong: dict[Path, str]) -> None:
    """Raise an error for a folder of a training, of which no checkpoint can be resumed."""
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


def _numbered(folder: Path) -> dict[str, dict[int, Path]]:
    """The checkpoints with a number, of epochs and of iterations: the kind that was written last
    comes first, and in each the highest number."""
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
"""Names of the checkpoints that a training can go on from."""


def _written_after(pointer: Path, named: str, numbered: dict[str, dict[int, Path]]) -> list[Path]:
    """The checkpoints of a higher number than the one that ``last_checkpoint`` names, and written
    after it was."""
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


# libyaml's loader is ten times as fast; a config based on mmdet's reads a hundred metafiles of
# models.
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class SafeYamlHandler(YamlHandler):
    """mmengine's YAML reader without tags that create Python objects, and could run commands."""

    def load_from_fileobj(self, file: Any, **kwargs: Any) -> Any:
        return yaml.load(file, Loader=_SafeLoader)


class PickleWriter(PickleHandler):
    """mmengine's pickle handler that writes but reads JSON alone: a pickle posing as an annotation
    file could run any command. Some readers of mmdet (OpenImages) open a file as a pickle whatever
    its name; a user can give JSON instead."""

    def load_from_fileobj(self, file: Any, **kwargs: Any) -> Any:
        try:
            return json.loads(file.read().decode())
        except ValueError as error:  # mmengine passes an open file without its name
            raise HypvisionError(
                "A file that the data of the config name is a pickle (.pkl, .pickle), which could "
                "run any code, so it was not read. If you trust it, convert it to JSON, and name "
                "that file in the config."
            ) from error


_format_code = mmengine_config.FormatCode


@lru_cache(maxsize=4)
def _format(text: str, style: tuple[tuple[str, Any], ...]) -> Any:
    return _format_code(text, style_config=dict(style))


def format_once(text: str, style_config: dict[str, Any], **kwargs: Any) -> Any:
    """Format a config's text: mmengine does so anew for each checkpoint, which takes half a second
    and more."""
    return _format(text, tuple(style_config.items()))


def install() -> None:
    """Install the loaders and file handlers above in mmengine; repeated calls change nothing."""
    register_handler(["yaml", "yml"])(SafeYamlHandler)
    register_handler(["pickle", "pkl"])(PickleWriter)
    names = ("", "http://", "https://", "zoo:", "hf-hub:", "file://")
    CheckpointLoader.register_scheme(prefixes=names, loader=load, force=True)
    stores = (r"(\S+\:)?s3://", r"(\S+\:)?petrel://", "pavi://")
    CheckpointLoader.register_scheme(prefixes=stores, loader=refuse_store, force=True)
    # mmengine calls this function for torchvision://, open-mmlab:// and mmcls:// after it has found
    # the URL.
    mmengine_checkpoint.load_from_http = lambda name, map_location=None, model_dir=None: load(
        name, map_location
    )
    for prefixes, read in (
        (("modelzoo://", "torchvision://"), mmengine_checkpoint.load_from_torchvision),
        (("open-mmlab://", "openmmlab://"), mmengine_checkpoint.load_from_openmmlab),
        ("mmcls://", mmengine_checkpoint.load_from_mmcls),
    ):
        CheckpointLoader.register_scheme(prefixes=prefixes, loader=_of_a_list(read), force=True)
    mmengine_config.FormatCode = format_once
    register_backend("local", AtomicLocalBackend, force=True, prefixes="")
    # mmengine caches storage backends, so remove those of the old class.
    for key, backend in list(mmengine_io.backend_instances.items()):
        if type(backend) is LocalBackend:
            del mmengine_io.backend_instances[key]
