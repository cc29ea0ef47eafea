"""Train a config with several seeds and give the mean and standard deviation of the last metrics,
as papers report them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_main_process

from hypvision.io import HypvisionError, Metrics, Plain, ensure
from hypvision.io.files import write_text
from hypvision.io.records import read_record

from .config import load_config
from .run import train


@dataclass
class _Found:
    """The content of ``seeds.json``: a sum of its training (:func:`_training`), and the metrics of
    each seed."""

    training: str
    seeds: dict[str, Metrics]


def train_seeds(
    config: str | Path | Config,
    seeds: int,
    work_dir: str | Path | None = None,
    cfg_options: Plain | None = None,
    **arguments: Any,
) -> dict[str, Metrics]:
    """Train with the seeds 0, 1, ..., each in a folder of its own, and write the last metrics of
    all into ``seeds.json``. A repeated call for the same training skips the seeds that the file
    has.

    Args:
        config: path of a config file, the name of a shipped config, or a config.
        seeds: number of seeds.
        work_dir: folder of all seeds; default ``work_dirs/CONFIG_NAME``.
        cfg_options: changes of the config.
        arguments: further arguments of :func:`hypvision.engine.run.train`.

    Returns:
        For each seed its metrics by name.

    Raises:
        HypvisionError: ``seeds.json`` comes from another config, or from other ``cfg_options``.
    """
    options = dict(cfg_options or {})
    if "randomness.seed" in options:
        raise HypvisionError(
            "With several seeds these are 0, 1, ...: leave out randomness.seed, or the number of "
            "seeds."
        )
    known = load_config(config)
    folder = Path(work_dir or known.get("work_dir") or Path("work_dirs", known.stem))
    file = folder / "seeds.json"
    found = _earlier(file, _training(config, options, bool(arguments.get("amp"))))
    for seed in map(str, range(seeds)):
        if seed in found.seeds:
            continue
        own = options | {"randomness.seed": int(seed)}
        runner = train(config, folder / f"seed-{seed}", cfg_options=own, **arguments)
        found.seeds[seed] = _last_metrics(runner)
        if is_main_process():
            write_text(file, json.dumps(asdict(found), indent=1))
    return {seed: found.seeds[seed] for seed in map(str, range(seeds))}


def _earlier(file: Path, training: str) -> _Found:
    """Return what earlier calls for this training have written into ``file``; without a file
    nothing."""
    if not file.is_file():
        return _Found(training, {})
    advice = "Give another folder with --work-dir, or delete the file."
    found = read_record(_Found, file, advice)
    ensure(
        found.training == training,
        f"'{file}' comes from a training with another config or other options. {advice}",
    )
    return found


def _training(config: str | Path | Config, options: Plain, amp: bool) -> str:
    """Return the SHA-256 of all that trainings with several seeds have in common: the resolved
    config and the precision."""
    settings = load_config(config, options).to_dict()
    settings.pop("work_dir", None)
    text = json.dumps([settings, amp], sort_keys=True, default=_name)
    return hashlib.sha256(text.encode()).hexdigest()


def _name(value: Any) -> str:
    """Return the name of a class or function: its text would contain a memory address, which
    changes."""
    return getattr(value, "__qualname__", type(value).__qualname__)


def _last_metrics(runner: Any) -> Metrics:
    """Return the metrics of the last validation; without a validation, the last loss."""
    scalars = runner.message_hub.log_scalars
    metrics = {
        name.removeprefix("val/"): scalars[name].current()
        for name in scalars
        if name.startswith("val/")
    }
    metrics = metrics or {"loss": scalars["train/loss"].current()}
    return {name: float(value) for name, value in metrics.items() if not name.endswith("time")}


def table_of_seeds(found: dict[str, Metrics]) -> str:
    """Return lines ``metric  mean ± deviation  (each seed)``; for one seed there is no
    deviation."""
    lines = []
    for name in next(iter(found.values())):
        values = [metrics[name] for metrics in found.values()]
        spread = f" ± {stdev(values):.4g}" if len(values) > 1 else ""
        each = ", ".join(f"{value:.4g}" for value in values)
        lines.append(f"{name}  {mean(values):.4g}{spread}  ({each})")
    return "\n".join(lines)
