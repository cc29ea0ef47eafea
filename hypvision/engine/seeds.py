"""The same training with several seeds, as papers report it: mean and standard deviation of the last metrics."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mmengine.dist import is_main_process

from hypvision.engine.run import train
from hypvision.errors import HypvisionError
from hypvision.files import read_json, write_text
from hypvision.records import parse

Metrics = dict[str, float]


def train_seeds(
    config: str | Path,
    seeds: int,
    work_dir: str | Path | None = None,
    cfg_options: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Metrics]:
    """Train with the seeds 0, 1, ..., each in a folder of its own, and write the last metrics of all into
    ``seeds.json``. A second call leaves out the seeds that the file has.

    Args:
        config: path of a config file, or the name of one that ships.
        seeds: how many.
        work_dir: folder; default ``work_dirs/CONFIG_NAME``.
        cfg_options: changes of the config.
        arguments: further ones of :func:`hypvision.engine.run.train`.

    Returns:
        The metrics by name of each seed.
    """
    options = dict(cfg_options or {})
    if "randomness.seed" in options:
        raise HypvisionError("Several seeds are 0, 1, ...: leave out randomness.seed, or train with that one alone.")
    folder = Path(work_dir or Path("work_dirs", Path(config).stem))
    file = folder / "seeds.json"
    found: dict[str, Metrics] = {}
    if file.is_file():
        found = parse(dict[str, Metrics], read_json(file), f"'{file}'")
    for seed in map(str, range(seeds)):
        if seed in found:
            continue
        own = options | {"randomness.seed": int(seed)}
        runner = train(config, folder / f"seed-{seed}", cfg_options=own, **arguments)
        found[seed] = _last_metrics(runner)
        if is_main_process():
            write_text(file, json.dumps(found, indent=1))
    return {seed: found[seed] for seed in map(str, range(seeds))}


def _last_metrics(runner: Any) -> Metrics:
    """Those of the last validation; without one, the last loss."""
    scalars = runner.message_hub.log_scalars
    metrics = {name.removeprefix("val/"): scalars[name].current() for name in scalars if name.startswith("val/")}
    metrics = metrics or {"loss": scalars["train/loss"].current()}
    return {name: float(value) for name, value in metrics.items() if not name.endswith("time")}


def table_of_seeds(found: dict[str, Metrics]) -> str:
    """Lines of ``metric  mean ± deviation  (each seed)``; without a deviation for one seed."""
    lines = []
    for name in next(iter(found.values())):
        values = [metrics[name] for metrics in found.values()]
        spread = f" ± {stdev(values):.4g}" if len(values) > 1 else ""
        each = ", ".join(f"{value:.4g}" for value in values)
        lines.append(f"{name}  {mean(values):.4g}{spread}  ({each})")
    return "\n".join(lines)
