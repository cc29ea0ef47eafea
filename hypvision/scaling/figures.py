"""Figures of a sweep: panels that draw rows of results and fits, and the sheets on which panels
stand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hypvision.io import StrPath, require
from hypvision.io.files import replacing

from .fits import Exponent, Setting

Row = dict[str, Any]
Panel = Callable[[Any], None]
"""A function that draws on an axis of matplotlib, or draws nothing if it has no points."""
THEORY = dict(color="0.55", linestyle="--", linewidth=1)
_SIZE = (4.2, 3.4)
SMALL = 8
"""Size in points of the smallest letters, legible where a page shows a sheet at three quarters."""


def draw_sweep(
    rows: Sequence[Row], found: Mapping[Setting, Exponent], folder: StrPath
) -> list[Path]:
    """Draw the rows of a sweep and the exponents fitted to them into ``sweep.png`` and
    ``sweep.pdf`` in a folder, and return these files.

    Each kind of frequencies has two panels, the loss and the share of represented features against
    the width; with more than two exponents of the frequencies there are maps of R² and of the
    exponent instead.
    """
    kinds = sorted({(row["distribution"], row["alpha"], row["density"]) for row in rows})
    panels: list[Panel] = []
    if len({alpha for _, alpha, _ in kinds}) > 2:
        panels = [partial(r2_bars, found=found), partial(exponent_map, found=found)]
    else:
        for kind in kinds:
            part = [
                row for row in rows if (row["distribution"], row["alpha"], row["density"]) == kind
            ]
            fits = {key: value for key, value in found.items() if key[:3] == kind}
            panels.append(partial(loss_by_decay, rows=part, found=fits))
            panels.append(partial(represented_by_width, rows=part))
    return draw_panels("sweep", panels, "", folder)


def draw_panels(name: str, panels: Sequence[Panel], title: str, folder: StrPath) -> list[Path]:
    """Draw panels, at most two side by side, into ``NAME.png`` and ``NAME.pdf`` in a folder, and
    return these files. A panel without points shows a text that says so."""
    pyplot = require("matplotlib.pyplot", "viz")
    columns = min(2, len(panels))  # three panels side by side cannot be read on a page
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(_SIZE[0] * columns, _SIZE[1] * rows), squeeze=False
    )
    try:
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for panel, axis in zip(panels, axes.flat):
            panel(axis)
            if not axis.has_data():
                axis.set_axis_off()
                axis.text(0.5, 0.5, "no points, or no weights", ha="center", va="center")
        if title:
            figure.suptitle(title, fontsize=SMALL, color="firebrick")
        figure.tight_layout()
        paths = [Path(folder, f"{name}.{suffix}") for suffix in ("png", "pdf")]
        for path in paths:
            with replacing(path) as temporary:
                figure.savefig(temporary, dpi=110)
    finally:
        pyplot.close(figure)
    return paths


def colors(values: Iterable[float], name: str = "coolwarm") -> dict[float, Any]:
    """Return a colour for each value; in the map "coolwarm", which is for decays, the colour shows
    the sign."""
    from matplotlib import colormaps

    values = sorted(set(values))
    largest = max(map(abs, values), default=1) or 1
    if name == "coolwarm":
        return {value: colormaps[name](0.5 + value / largest / 2) for value in values}
    return {
        value: colormaps[name](i / max(1, len(values) - 1) * 0.9) for i, value in enumerate(values)
    }


def means(rows: Iterable[Row], x: str, y: str) -> tuple[list[float], list[float], list[float]]:
    """Return the different values of ``x``, and for each of them the mean and the standard
    deviation of ``y`` over the rows.

    For a single row the deviation is the row's own, over its test batches, which only the loss has.
    """
    found: dict[float, list[float]] = {}
    alone: dict[float, float] = {}
    for row in rows:
        if row[y] is not None:
            found.setdefault(row[x], []).append(row[y])
            alone[row[x]] = row.get(f"{y}_std") or 0.0
    xs = sorted(found)
    spread = [statistics.stdev(found[v]) if len(found[v]) > 1 else alone[v] for v in xs]
    return xs, [statistics.mean(found[v]) for v in xs], spread


_SYMBOLS = {"decay": "γ", "alpha": "α", "m": "m", "active": "E"}


def lines(axis: Any, rows: Sequence[Row], by: str, x: str, y: str) -> None:
    """Draw the means of ``y`` over ``x``, with a line for each value of ``by``, a key of
    :data:`_SYMBOLS`."""
    for value, color in colors(
        (row[by] for row in rows), "coolwarm" if by == "decay" else "viridis"
    ).items():
        xs, ys, spread = means((row for row in rows if row[by] == value), x, y)
        label = f"{_SYMBOLS[by]} {value:.3g}"
        axis.errorbar(
            xs, ys, spread, marker="o", markersize=3, linewidth=1, color=color, label=label
        )


def log_axes(axis: Any, xlabel: str, ylabel: str) -> None:
    """Make both axes logarithmic, and add their labels and a legend."""
    axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    axis.legend(fontsize=SMALL)


def log_widths(axis: Any, rows: Iterable[Row], ylabel: str, yscale: str = "log") -> None:
    """Make a logarithmic horizontal axis of the rows' widths, with a tick for each width."""
    from matplotlib.ticker import NullLocator

    widths = sorted({row["m"] for row in rows})
    axis.set(xscale="log", yscale=yscale, xlabel="width m", ylabel=ylabel)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(widths, [str(m) for m in widths])
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=SMALL)


def nearest(rows: Sequence[Row], **wanted: float) -> list[Row]:
    """Return the rows whose values are nearest to the ``wanted`` ones, by one name after the
    other."""
    for name, value in wanted.items():
        if rows:
            best = min((row[name] for row in rows), key=lambda candidate: abs(candidate - value))
            rows = [row for row in rows if row[name] == best]
    return list(rows)


def alpha_decay_map(
    axis: Any, values: dict[tuple[float, float], float], label: str, **limits: float
) -> None:
    """Draw a map of values over (alpha, decay), with its colour bar."""
    import numpy as np

    if not values:
        return
    alphas, decays = map(np.unique, zip(*values))
    table = np.array([[values.get((a, d), math.nan) for d in decays] for a in alphas])
    shown = axis.imshow(table, origin="lower", aspect="auto", cmap="viridis", **limits)
    axis.set(xlabel="decay γ", ylabel="α", title=label)
    axis.set_xticks(range(len(decays)), map("{:.2f}".format, decays), fontsize=SMALL, rotation=60)
    axis.set_yticks(range(len(alphas)), map("{:g}".format, alphas), fontsize=SMALL)
    for (i, j), value in np.ndenumerate(table):
        if len(values) <= 60 and not math.isnan(value):
            # the upper colours of the map are light
            ink = "k" if shown.norm(value) > 0.6 else "w"
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=SMALL, color=ink)
    axis.figure.colorbar(shown, ax=axis)


def loss_by_decay(axis: Any, rows: Sequence[Row], found: Mapping[Setting, Exponent]) -> None:
    """Draw the loss against the width, with a line for each decay and the power law of its mean
    exponent."""
    fits = {key[3]: value for key, value in found.items()}
    lines(axis, rows, "decay", "m", "loss")
    xs = sorted({row["m"] for row in rows})
    for value in fits.values():
        factor = statistics.geometric_mean(fit.factor for fit in value.fits)
        axis.plot(xs, [factor * x**-value.mean for x in xs], **THEORY)
    handles, labels = axis.get_legend_handles_labels()
    decays = sorted({row["decay"] for row in rows})
    named = [
        f"{text}, exponent {fits[d].mean:.2f}" if d in fits else text
        for text, d in zip(labels, decays)
    ]
    if fits:
        handles.append(axis.lines[-1])
        named.append("fitted power laws")
    log_widths(axis, rows, "loss L")
    axis.legend(handles, named, fontsize=SMALL)


def represented_by_width(axis: Any, rows: Sequence[Row]) -> None:
    """Draw the share of represented features against the width, with a line for each decay."""
    lines(axis, rows, "decay", "m", "phi_half")
    log_widths(axis, rows, "represented φ(1/2)")


def r2_bars(axis: Any, found: Mapping[Setting, Exponent]) -> None:
    """Draw the R² of the power-law fits: for each decay the mean over the exponents of the
    frequencies, with a bar from the least to the largest."""
    by_decay: dict[float, list[float]] = {}
    for (_, _, density, decay), value in found.items():
        if density == 0 and not math.isnan(value.r2):
            by_decay.setdefault(decay, []).append(value.r2)
    if not by_decay:
        return
    decays = sorted(by_decay)
    centers = [statistics.mean(by_decay[decay]) for decay in decays]
    ends = [
        *zip(
            *(
                (mean - min(by_decay[d]), max(by_decay[d]) - mean)
                for mean, d in zip(centers, decays)
            )
        )
    ]
    inks = [*colors(decays).values()]
    axis.bar(range(len(decays)), centers, yerr=ends, color=inks, ecolor="0.3", capsize=2)
    axis.set_xticks(range(len(decays)), [f"{d:.2f}" for d in decays], fontsize=SMALL, rotation=60)
    axis.set(
        xlabel="decay γ",
        ylabel="R² of L ~ m^-α_m",
        title="mean over α, least and largest",
        ylim=(0, 1.02),
    )


def exponent_map(axis: Any, found: Mapping[Setting, Exponent]) -> None:
    """Draw a map of the loss's exponent over the decay and the exponent of the frequencies."""
    values = {(key[1], key[3]): value.mean for key, value in found.items() if key[2] == 0}
    alpha_decay_map(axis, values, "model exponent α_m")
