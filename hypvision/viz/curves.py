"""Curves of trainings, drawn from their logs ``WORK_DIR/TIME/vis_data/scalars.json``."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import filter as fnmatch_filter
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from hypvision.io import HypvisionError, Plain, StrPath, Values, did_you_mean, refuse, require, some
from hypvision.io.files import csv_text, parse_json, read_lines, why_no_file, write_text

from .palette import line_colours
from .sheet import save_figure

LOG = "vis_data/scalars.json"
_SUFFIXES = {"train": "", "val": " (validation)"}  # endings of the titles of panels
_PLACES = ("step", "iter", "epoch")  # keys of a log line that say how far the training was
MOST = 15  # largest number of panels of a figure whose quantities were not chosen


class Curve(NamedTuple):
    """The values that a run has logged of one quantity."""

    run: str  # name of the run
    split: str  # "train" or "val", the part of the data
    quantity: str  # name of the quantity in the log
    unit: str  # unit of the steps, "iteration" or "epoch"
    steps: list[float]  # step at which each value was logged
    values: list[float]


def read_runs(places: Sequence[StrPath]) -> list[Curve]:
    """Return every quantity that runs have logged. A run is given as its work dir, one of the
    time-stamped folders in it, or a ``scalars.json``. A work dir with several logs is one training
    that was resumed: from its first step on, a log replaces the earlier ones."""
    found: list[Curve] = []
    for place, name in zip(places, _names([Path(place).absolute() for place in places])):
        records: list[Plain] = []
        for path in _logs(Path(place)):
            new = _records(path)
            first = min((record["step"] for record in new if "iter" in record), default=math.inf)
            is_repeated = (
                i
                for i, record in enumerate(records)
                if "iter" in record and record["step"] >= first
            )
            records = records[: next(is_repeated, len(records))] + new
        found += _curves(name, records)
    return found


def _names(places: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, as many as are needed to tell them apart."""
    parts = [
        path.parts[: -len(Path(LOG).parts)] if path.name == Path(LOG).name else path.parts
        for path in places
    ]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len({*names}) == len({*parts}):
            break
    return names if parts else []


def _logs(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    found = [place / LOG] if (place / LOG).is_file() else sorted(place.glob(f"*/{LOG}"))
    if not found:
        missing = (
            f"'{place}' has no log of a training." if place.is_dir() else why_no_file(place, "run")
        )
        raise HypvisionError(
            f"{missing} Give the work dir of a training, which contains TIME/{LOG}, or such a file."
        )
    return found


def _records(path: Path) -> list[Plain]:
    found = []
    for number, line in enumerate(read_lines(path, "the log of a training", blank=True), 1):
        if not line:
            continue
        record = None
        with suppress(ValueError):
            record = parse_json(line)
        if not isinstance(record, dict) or not _is_value(record.get("step")):
            raise HypvisionError(
                f"Line {number} of '{path}' is not a record of a training log. Expected: JSON with "
                'a number "step", such as {"loss": 0.5, "iter": 10, "step": 10}. Give the work dir '
                "of a training."
            )
        found.append(record)
    return found


def _is_value(value: Any) -> bool:
    """Return whether the value is a number within the range of a float."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _curves(run: str, records: list[Plain]) -> list[Curve]:
    by_epoch = any("epoch" in record for record in records)
    found: dict[tuple[str, str], Curve] = {}
    last = 0.0
    for record in records:
        split = "train" if "iter" in record else "val"
        step = record["step"]
        last = step if split == "train" else last
        unit = "epoch" if split == "val" and (by_epoch or step < last) else "iteration"
        for name, value in _quantities(record).items():
            curve = found.setdefault((split, name), Curve(run, split, name, unit, [], []))
            kept = bisect_left(curve.steps, step)  # a resumed training validates some steps again
            del curve.steps[kept:], curve.values[kept:]
            curve.steps.append(step)
            curve.values.append(value)
    return list(found.values())


def _quantities(record: Plain) -> dict[str, float]:
    """Return the numbers of a log record that can be drawn, by name."""
    return {
        name: float(value)
        for name, value in record.items()
        if name not in _PLACES and _is_value(value)
    }


def write_curves(curves: Sequence[Curve], path: StrPath) -> None:
    """Write every value of the curves as a row of a csv table with the columns run, split,
    quantity, unit, step and value."""
    rows = (
        [(*curve[:4], step, value) for step, value in zip(curve.steps, curve.values)]
        for curve in curves
    )
    write_text(
        path, csv_text([("run", "split", "quantity", "unit", "step", "value"), *chain(*rows)])
    )


def choose(curves: Sequence[Curve], patterns: Sequence[str] = ()) -> dict[str, list[Curve]]:
    """Return the curves of each panel of a figure, under the panel's title.

    The panels are the quantities that the ``patterns`` name, with ``*`` for any letters; without
    patterns the loss, the learning rate and the metrics of the validation."""
    known = list(dict.fromkeys(curve.quantity for curve in curves))
    logged = ", ".join(known) or "nothing"
    for pattern in patterns:
        if not fnmatch_filter(known, pattern):
            hint = did_you_mean(pattern, known)
            raise HypvisionError(f"No run has logged {some([pattern])}.{hint} There are: {logged}.")
    panels: dict[str, list[Curve]] = {}
    for pattern in patterns or ("loss", "lr", "*"):
        for curve in curves:
            if _fits(curve, pattern, bool(patterns)):
                panel = panels.setdefault(curve.quantity + _SUFFIXES[curve.split], [])
                if curve not in panel:
                    panel.append(curve)
    neither = "The runs have logged neither loss, rate nor metrics of a validation"
    refuse((not panels, f"{neither}. There are: {logged}."))
    return panels


def _fits(curve: Curve, pattern: str, named: bool) -> bool:
    """Return whether a pattern matches a curve; a ``*`` that the user has not ``named`` only
    matches the usual quantities."""
    return fnmatch(curve.quantity, pattern) and (named or pattern != "*" or _is_usual(curve))


def _is_usual(curve: Curve) -> bool:
    return curve.split == "val" and curve.quantity not in ("time", "data_time")


def draw_curves(panels: Mapping[str, Sequence[Curve]], path: StrPath) -> None:
    """Write a figure with a panel for each quantity (see :func:`choose`) and in it a line for each
    run, in the format that the path's ending names."""
    require("matplotlib", "viz")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    runs = list(dict.fromkeys(curve.run for panel in panels.values() for curve in panel))
    colours = line_colours(len(runs))
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure((4.2 * columns, 3 * rows + 0.5), layout="constrained")
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, panel) in zip(every, panels.items()):
        _draw_panel(axes, title, panel, dict(zip(runs, colours)))
    if len(runs) == 1:
        figure.suptitle(runs[0], fontsize=11)
    else:
        handles = [Line2D([], [], color=colour, linewidth=2) for colour in colours]
        figure.legend(
            handles, runs, loc="outside upper center", ncols=max(1, min(3, len(runs))), fontsize=9
        )
    save_figure(figure, path, dpi=110)


def _draw_panel(axes: Any, title: str, panel: Sequence[Curve], colours: Values) -> None:
    """Draw the curves of a panel, each in the colour of its run."""
    from matplotlib.ticker import MaxNLocator

    for curve in panel:
        marker = "." if len(curve.steps) <= 30 else None
        axes.plot(curve.steps, curve.values, color=colours[curve.run], marker=marker, linewidth=1.4)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(" or ".join(dict.fromkeys(curve.unit for curve in panel)), fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
