"""Change the length of a training and move its schedule in proportion (``hypvision train
--epochs``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mmengine.registry import DATASETS, DefaultScope

from hypvision.io import Plain, ensure

from .checks import as_list
from .config import Run, import_extensions


def with_epochs(config: Run, epochs: int, launcher: str = "none") -> list[str]:
    """Change the length of a training and, in proportion, its schedules (warm-up, decay) that count
    in the same unit as the length.

    Args:
        config: a config with a training by epochs or by iterations; iterations become as many as
            ``epochs`` epochs have.
        epochs: the new length of the training.
        launcher: the launcher of the training, whose processes share an epoch.

    Returns:
        Sentences for the user that say what was moved and what was not.
    """
    unit, old, _ = config.schedule
    word = "epochs" if unit == "max_epochs" else "iterations"
    ensure(
        old,
        f"The config '{config.filename}' does not say its length, so --epochs cannot change "
        f"it. Set train_cfg.{unit}.",
    )
    new = epochs if unit == "max_epochs" else epochs * _iterations(config, launcher)
    told = [f"length  {new} {word} in place of {old}"]
    config.train_cfg[unit] = new
    by_epoch = unit == "max_epochs"
    for holder, key in _lists(config):
        parts = [part for part in as_list(holder[key]) if isinstance(part, dict)]
        moved = []
        for part in parts:
            if part.get("by_epoch", True) != by_epoch:
                told.append(f"{part['type']} counts in another unit and stays as it is")
            elif not _move(part, old, new):
                told.append(f"{part['type']} is left out: the training is too short for it")
                continue
            else:
                told.append(f"{part['type']} {part.get('begin', 0)} to {part.get('end', new)}")
            moved.append(part)
        holder[key] = moved
    told += _intervals(config, by_epoch, new)
    return told


def _iterations(config: Run, launcher: str) -> int:
    """Return the number of iterations that show all training data once."""
    loader = config.train_dataloader
    import_extensions(config)
    with DefaultScope.overwrite_default_scope(config.scope):
        count = len(DATASETS.build(loader.dataset))
    return max(1, round(count / (loader.batch_size * processes_of(launcher))))


def processes_of(launcher: str) -> int:
    """Return the number of processes that a launcher started, among which an epoch's images are
    shared; 1 for ``"none"``."""
    names = dict(pytorch="WORLD_SIZE", slurm="SLURM_NTASKS", mpi="OMPI_COMM_WORLD_SIZE")
    return int(os.environ.get(names.get(launcher, "")) or 1)


def _lists(config: Run) -> Iterator[tuple[Any, str]]:
    """Yield the places of the lists of schedules, each as a container and its key: one for one
    optimiser, or one for each of several optimisers."""
    found = config.get("param_scheduler")
    if isinstance(found, dict) and "type" not in found:
        yield from ((found, name) for name in found)
    elif found:
        yield config, "param_scheduler"


def _move(part: Plain, old: int, new: int) -> bool:
    """Move a schedule of a training of length ``old`` to the length ``new``, in place; return False
    if nothing of it is left."""

    def moved(point: int) -> int:
        if point <= 0 or point >= old:
            return 0 if point <= 0 else max(new, round(point * new / old))
        return min(max(1, round(point * new / old)), new - 1)

    begin = part.get("begin", 0)
    if "T_max" in part:
        part["T_max"] = moved(begin + part["T_max"]) - moved(begin)
    if "milestones" in part:
        part["milestones"] = sorted({moved(point) for point in part["milestones"]})
    for key in ("step_size", "epochs"):
        if key in part:
            part[key] = max(1, round(part[key] * new / old))
    for key in ("begin", "end"):
        if key in part:
            part[key] = moved(part[key])
    return part.get("end", new) > part.get("begin", 0)


def _intervals(config: Run, by_epoch: bool, new: int) -> list[str]:
    """Let a training that is shorter than its intervals validate and write a checkpoint at its end,
    and return sentences that say so."""
    told = []
    if config.train_cfg.get("val_interval", 1) > new:
        config.train_cfg.val_interval = new
        told.append(f"validation after {new}")
    hook = (config.get("default_hooks") or {}).get("checkpoint") or {}
    if hook.get("by_epoch", True) == by_epoch and hook.get("interval", 1) > new:
        hook["interval"] = new
        told.append(f"checkpoint after {new}")
    return told
