"""The paper's figures from the rows of a sweep; panels without points are left out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from hypvision.io.errors import require
from hypvision.io.files import replacing
from hypvision.scaling.claims import clean_exponents, exponents
from hypvision.scaling.data import frequencies
from hypvision.scaling.experiments import marked
from hypvision.scaling.fits import JointFit
from hypvision.scaling.measures import random_overlaps
from hypvision.scaling.published import HEAD_OVERLAPS, LOSS_FIT, WEAK_EXPONENTS

Row = dict[str, Any]
Weights = Callable[[Row], Tensor | None]
Panel = Callable[..., None]
"""Draws on an axis of matplotlib, or nothing if there are no points of it."""
_SIZE = (4.2, 3.4)
_PAPER = dict(color="0.55", linestyle="--", linewidth=1)


def draw(
    name: str,
    rows: Sequence[Row],
    folder: str | Path,
    weights: Weights,
    losses: Sequence[Mapping[str, str]] = (),
    fit: JointFit | None = None,
    scan: int = 63,
) -> list[Path]:
    """Draw a figure into a folder, and return its files.

    Args:
        name: ``quick``, ``fig1`` or ``fig3`` to ``fig7``.
        rows: of the sweep, see :func:`hypvision.scaling.sweep.read_rows`.
        folder: where to.
        weights: ``W`` ``(n, m)`` of a row's point; None where it is not known, which leaves that
            panel empty.
        losses, fit: of language models, for ``fig1``; without, the line of the paper's fit stands
            for them.
        scan: the width of what fig3 and fig7 show of one width, see
            :class:`hypvision.scaling.experiments.Experiment`.
    """
    marks = sorted({row["shortened"] for row in rows} - {""})
    panels: list[Panel] = [
        partial(panel, rows=rows, weights=weights, scan=scan) for panel in _PANELS[name]
    ]
    if name == "fig1":
        panels.append(partial(_large_strong, rows=rows, losses=losses, fit=fit))
    return _figure(name, panels, "; ".join(map(marked, marks)), folder)


def _figure(name: str, panels: Sequence[Panel], title: str, folder: str | Path) -> list[Path]:
    pyplot = require("matplotlib.pyplot", "viz")
    columns = min(2, len(panels))  # more beside each other cannot be read on a page
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
            figure.suptitle(title, fontsize=8, color="firebrick")
        figure.tight_layout()
        paths = [Path(folder, f"{name}.{suffix}") for suffix in ("png", "pdf")]
        for path in paths:
            with replacing(path) as temporary:
                figure.savefig(temporary, dpi=110)
    finally:
        pyplot.close(figure)
    return paths


def _colors(values: Iterable[float], name: str = "coolwarm") -> dict[float, Any]:
    """A colour for each value; decays by their sign."""
    from matplotlib import colormaps

    values = sorted(set(values))
    largest = max(map(abs, values), default=1) or 1
    if name == "coolwarm":
        return {value: colormaps[name](0.5 + value / largest / 2) for value in values}
    return {
        value: colormaps[name](i / max(1, len(values) - 1) * 0.9) for i, value in enumerate(values)
    }


def _means(rows: Iterable[Row], x: str, y: str) -> tuple[list[float], list[float], list[float]]:
    """Means of ``y`` over all rows with one ``x``, and their standard deviations.

    With one row the deviation is that over its test batches, which the loss alone has.
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


def _lines(axis: Any, rows: Sequence[Row], by: str, x: str, y: str) -> None:
    """The means of ``y`` over ``x``, a line for each value of ``by``, a key of :data:`_SYMBOLS`."""
    for value, color in _colors(
        (row[by] for row in rows), "coolwarm" if by == "decay" else "viridis"
    ).items():
        xs, ys, spread = _means((row for row in rows if row[by] == value), x, y)
        label = f"{_SYMBOLS[by]} {value:.3g}"
        axis.errorbar(
            xs, ys, spread, marker="o", markersize=3, linewidth=1, color=color, label=label
        )


def _log(axis: Any, xlabel: str, ylabel: str) -> None:
    axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
    axis.legend(fontsize=6)


def _log_widths(axis: Any, rows: Iterable[Row], ylabel: str, yscale: str = "log") -> None:
    from matplotlib.ticker import NullLocator

    widths = sorted({row["m"] for row in rows})
    axis.set(xscale="log", yscale=yscale, xlabel="width m", ylabel=ylabel)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(widths, [str(m) for m in widths])
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6)


def _nearest(rows: Sequence[Row], **wanted: float) -> list[Row]:
    """The rows whose values are nearest to those wanted, one name after the other."""
    for name, value in wanted.items():
        if rows:
            best = min((row[name] for row in rows), key=lambda candidate: abs(candidate - value))
            rows = [row for row in rows if row[name] == best]
    return list(rows)


def _grid(axis: Any, values: dict[tuple[float, float], float], label: str, **limits: float) -> None:
    """A map over (alpha, decay)."""
    import numpy as np

    if not values:
        return
    alphas, decays = (sorted({key[i] for key in values}) for i in (0, 1))
    table = np.array([[values.get((a, d), math.nan) for d in decays] for a in alphas])
    shown = axis.imshow(table, origin="lower", aspect="auto", cmap="viridis", **limits)
    axis.set(xlabel="decay γ", ylabel="α", title=label)
    axis.set_xticks(range(len(decays)), [f"{d:.2f}" for d in decays], fontsize=6, rotation=60)
    axis.set_yticks(range(len(alphas)), [f"{a:g}" for a in alphas], fontsize=6)
    if len(values) <= 60:
        for i, row in enumerate(table):
            for j, value in enumerate(row):
                if not math.isnan(value):
                    # the upper colours of the map are light
                    ink = "k" if shown.norm(value) > 0.6 else "w"
                    axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6, color=ink)
    axis.figure.colorbar(shown, ax=axis)


# quick and figure 1: loss against width


def _loss_by_decay(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    fits = {key[3]: value for key, value in exponents(rows).items()}
    _lines(axis, rows, "decay", "m", "loss")
    xs = sorted({row["m"] for row in rows})
    for value in fits.values():  # the power law with the mean exponent
        factor = statistics.geometric_mean(fit.factor for fit in value.fits)
        axis.plot(xs, [factor * x**-value.mean for x in xs], **_PAPER)
    handles, labels = axis.get_legend_handles_labels()
    decays = sorted({row["decay"] for row in rows})
    named = [
        f"{text}: {fits[d].mean:.2f}" if d in fits else text for text, d in zip(labels, decays)
    ]
    _log_widths(axis, rows, "loss L")
    axis.legend(handles, named, fontsize=6)


def _represented_by_width(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    _lines(axis, rows, "decay", "m", "phi_half")
    _log_widths(axis, rows, "represented φ(1/2)")


def _large_strong(
    axis: Any, rows: Sequence[Row], losses: Sequence[Mapping[str, str]], fit: JointFit | None
) -> None:
    if any(row["decay"] < 0 for row in rows):
        _language_models(axis, losses, fit)
        _loss_by_distribution(axis, rows, sign=-1, title="strong superposition")
        ticks = [8 * 4**k for k in range(6)]  # ticks up to the widths of language models
        axis.set_xticks(ticks, [str(m) for m in ticks])
        axis.legend(fontsize=6, loc="lower left")


def _loss_by_distribution(axis: Any, rows: Sequence[Row], sign: int, title: str, **_: Any) -> None:
    """The loss over the width for each distribution of frequencies, of the points whose decay has
    this sign."""
    rows = [row for row in rows if sign * row["decay"] > 0]
    fits = {key[0]: value for key, value in exponents(rows).items()}
    for name in sorted({row["distribution"] for row in rows}):
        xs, ys, spread = _means((row for row in rows if row["distribution"] == name), "m", "loss")
        text = f"{name}: {fits[name].mean:.2f}" if name in fits else name
        axis.errorbar(xs, ys, spread, marker="o", markersize=3, linewidth=1, label=text)
    _log_widths(axis, rows, "loss L")
    axis.set_title(title)


def _language_models(axis: Any, losses: Sequence[Mapping[str, str]], fit: JointFit | None) -> None:
    """Losses of language models less their offsets, or without them the line of the paper's fit."""
    if fit is None:
        exponent, _, factor = LOSS_FIT
        widths = [m for points in HEAD_OVERLAPS.values() for m, _ in points]
        ends = [min(widths), max(widths)]
        label = f"language models, the paper's fit: {exponent:.2f}"
        axis.plot(ends, [factor * m**-exponent for m in ends], color="k", linewidth=1, label=label)
        return
    for family in dict.fromkeys(row["family"] for row in losses):
        part = [row for row in losses if row["family"] == family]
        points = [
            (float(r["m"]), float(r["loss"]) - fit.offsets[f"{family}/{r['dataset']}"])
            for r in part
        ]
        axis.scatter(*zip(*points), s=8, marker="x", label=family)


# figure 3: what is represented


def _represented_by_decay(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["alpha"] == 1 and row["density"] == 0]
    _lines(axis, rows, "m", "decay", "phi_half")
    axis.set(xlabel="decay γ", ylabel="represented φ(1/2), α = 1", yscale="log")
    if rows:
        axis.legend(fontsize=6)


def _represented_map(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    values: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        if row["m"] == scan and row["density"] == 0:
            values.setdefault((row["alpha"], row["decay"]), []).append(row["phi_half"])
    means = {key: statistics.mean(found) for key, found in values.items()}
    return _grid(axis, means, f"represented φ(1/2), m = {scan}", vmin=0, vmax=1)


def _frequencies_and_norms(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    """Frequencies by rank, and the norms at alpha = 1 with the strongest growth and the strongest
    decay."""
    rows = [row for row in rows if row["density"] == 0 and row["replicate"] == 0]
    if not rows:
        return
    near = _nearest(rows, alpha=1, m=scan)
    ends = [_nearest(near, decay=pick(row["decay"] for row in rows))[0] for pick in (min, max)]
    matrices = [matrix for row in ends if (matrix := weights(row)) is not None]
    if len(matrices) < len(ends):
        return
    for alpha in sorted({row["alpha"] for row in rows} & {0.0, 0.5, 1.0, 1.5, 2.0}):
        p = frequencies("power", rows[0]["n"], alpha)
        axis.plot(range(1, len(p) + 1), p.tolist(), linewidth=1, label=f"α {alpha:g}")
    axis.set(xscale="log", yscale="log", xlabel="rank of the feature", ylabel="frequency")
    axis.legend(fontsize=6, loc="upper right")
    inset = axis.inset_axes([0.1, 0.1, 0.42, 0.35])
    for row, matrix, color in zip(ends, matrices, ("C0", "C3")):
        inset.hist(
            matrix.norm(dim=1).tolist(),
            bins=30,
            color=color,
            alpha=0.6,
            label=f"γ {row['decay']:.2f}",
        )
    inset.axvline(0.5, **_PAPER)
    inset.set_title(f"norms, α {ends[0]['alpha']:g}, m {ends[0]['m']}", fontsize=6)
    inset.tick_params(labelsize=5)
    inset.legend(fontsize=5)


# figure 4: exponents


def _r2_bars(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    """For each decay the mean over the exponents of the frequencies, with a bar from the least to
    the largest."""
    found: dict[float, list[float]] = {}
    for (_, _, density, decay), value in exponents(rows).items():
        if density == 0 and not math.isnan(value.r2):
            found.setdefault(decay, []).append(value.r2)
    if not found:
        return
    decays = sorted(found)
    means = [statistics.mean(found[decay]) for decay in decays]
    ends = [*zip(*((mean - min(found[d]), max(found[d]) - mean) for mean, d in zip(means, decays)))]
    colors = [*_colors(decays).values()]
    axis.bar(range(len(decays)), means, yerr=ends, color=colors, ecolor="0.3", capsize=2)
    axis.set_xticks(range(len(decays)), [f"{d:.2f}" for d in decays], fontsize=6, rotation=60)
    axis.set(
        xlabel="decay γ",
        ylabel="R² of L ~ m^-α_m",
        title="mean over α, least and largest",
        ylim=(0, 1.02),
    )


def _exponent_map(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    values = {(key[1], key[3]): value.mean for key, value in exponents(rows).items() if key[2] == 0}
    return _grid(axis, values, "model exponent α_m")


# figure 5: weak superposition


def _loss_against(axis: Any, rows: Sequence[Row], name: str, xlabel: str, **_: Any) -> None:
    shown = [row for row in rows if (row.get(name) or 0) > 0]
    if not shown:
        return
    for decay, color in _colors(row["decay"] for row in rows).items():
        xs, ys = ([row[key] for row in shown if row["decay"] == decay] for key in (name, "loss"))
        axis.scatter(xs, ys, s=6, color=color, label=f"γ {decay:.3g}")
    axis.axline((0.1, 0.1), slope=1, **_PAPER)
    _log(axis, xlabel, "loss L")


def _weak_exponents(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    clean = clean_exponents(rows)
    if not clean:
        return
    colors = _colors((decay for _, decay in WEAK_EXPONENTS), "viridis")
    for (alpha, decay), paper in WEAK_EXPONENTS.items():
        axis.plot(alpha, paper, "x", color=colors[decay], label=f"γ {decay:.3g} (paper)")
    for (alpha, decay), value in clean.items():
        axis.errorbar(
            alpha, value.mean, value.error, marker="o", color=colors[decay], label=f"γ {decay:.3g}"
        )
    axis.axline((1, 0), slope=1, **_PAPER)
    axis.set(
        xlabel="α of the frequencies",
        ylabel="model exponent α_m",
        title="the paper's cleanest cases, line α - 1",
    )
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(dict(zip(labels, handles)).values(), dict(zip(labels, handles)).keys(), fontsize=6)


# figure 6: strong superposition


def _norms_by_rank(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    chosen = _nearest(
        [row for row in rows if row["density"] == 0], alpha=1, decay=-0.7778, m=15, replicate=0
    )
    if not chosen:
        return
    row = chosen[0]
    weight = weights(row)
    if weight is None:
        return
    lengths = weight.norm(dim=1)
    p = frequencies(row["distribution"], len(lengths), row["alpha"])
    rank = range(1, len(lengths) + 1)
    axis.scatter(
        rank, p.tolist(), s=4, c=["C3" if length > 1 else "C0" for length in lengths.tolist()]
    )
    axis.set(
        xscale="log", yscale="log", xlabel="rank of the feature", ylabel="frequency; red: norm > 1"
    )
    inset = axis.inset_axes([0.12, 0.12, 0.38, 0.35])
    inset.hist(lengths.tolist(), bins=40)
    inset.set_title(f"norms, m {row['m']}, γ {row['decay']:.2f}", fontsize=6)
    inset.tick_params(labelsize=5)


def _strong_by_width(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] == -1 and row["density"] == 0]
    if not rows:
        return
    _lines(axis, rows, "alpha", "m", "phi_one")
    widths = sorted({row["m"] for row in rows})
    n = rows[0]["n"]
    axis.plot(widths, [m / n for m in widths], label="m/n", **_PAPER)
    axis.plot(
        widths,
        [min(1, m * m / 2 / n) for m in widths],
        label="m²/2n",
        **(_PAPER | dict(linestyle=":")),
    )
    _log_widths(axis, rows, "norm above 1: φ(1), γ = -1")


def _overlap_means(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] < 0 and row["strong_rows"] > row["m"]]
    if not rows:
        return
    _lines(axis, rows, "decay", "m", "overlap_mean")
    widths = sorted({row["m"] for row in rows})
    axis.plot(widths, [1 / m for m in widths], label="1/m", **_PAPER)
    _log_widths(axis, rows, "mean squared overlap")


def _overlap_variances(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] < -0.3 and row["strong_rows"] > row["m"] > 1]
    rows = _nearest(rows, decay=-0.5556)
    if not rows:
        return
    rows = [row | {"ratio": row["overlap_variance"] / random_overlaps(row["m"])[1]} for row in rows]
    _lines(axis, rows, "alpha", "m", "ratio")
    axis.axhline(1, **_PAPER)
    _log_widths(axis, rows, f"variance / random, γ = {rows[0]['decay']:.2f}", yscale="linear")


def _strong_exponents(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    found = {
        (key[3], key[1]): value
        for key, value in exponents(rows).items()
        if key[3] < -0.3 and key[2] == 0
    }
    if not found:
        return
    for decay, color in _colors((decay for decay, _ in found), "viridis").items():
        part = sorted(
            (alpha, value.mean, value.error) for (d, alpha), value in found.items() if d == decay
        )
        axis.errorbar(
            *zip(*part), marker="o", markersize=3, linewidth=1, color=color, label=f"γ {decay:.3g}"
        )
    axis.axhline(1, **_PAPER)
    axis.axline((1.5, 1), slope=2, **_PAPER)
    axis.set(
        xlabel="α of the frequencies",
        ylabel="model exponent α_m",
        title="lines 1 and 2(α - 1)",
        ylim=(0, 3),
    )
    axis.legend(fontsize=6)


# figure 7: density


def _loss_by_density(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["alpha"] == 1 and row["m"] == scan]
    _lines(axis, rows, "decay", "active", "loss")
    axis.set(xlabel="active features E", ylabel=f"loss L, m = {scan}")
    axis.legend(fontsize=6)


def _lines_by_density(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] == -0.5556 and row["alpha"] == 1]
    _lines(axis, rows, "active", "m", "loss")
    _log_widths(axis, rows, "loss L, γ = -0.556")


_PANELS: dict[str, list[Panel]] = {
    "quick": [_loss_by_decay, _represented_by_width],
    "fig1": [partial(_loss_by_distribution, sign=1, title="weak superposition")],
    "fig3": [_represented_by_decay, _represented_map, _frequencies_and_norms],
    "fig4": [_r2_bars, _exponent_map],
    "fig5": [
        partial(
            _loss_against,
            name="unlearned_approximation",
            xlabel="4/3 of the frequencies beyond rank n φ(1/2)",
        ),
        partial(_loss_against, name="lost_loss", xlabel="loss of the features of norm below 1/2"),
        _weak_exponents,
    ],
    "fig6": [
        _norms_by_rank,
        _strong_by_width,
        _overlap_variances,
        _overlap_means,
        _strong_exponents,
    ],
    "fig7": [_loss_by_density, _lines_by_density],
}


# figure 8: language models


def draw_language_models(
    heads: Sequence[Mapping[str, str]],
    losses: Sequence[Mapping[str, str]],
    fit: JointFit | None,
    folder: str | Path,
) -> list[Path]:
    """Draw figure 8: overlaps of heads (:func:`~hypvision.scaling.language_models.head_statistics`)
    beside the paper's, and losses less their offsets with the fit, if there is one."""

    def overlaps(axis: Any) -> None:
        for family, points in HEAD_OVERLAPS.items():
            axis.scatter(*zip(*points), s=10, marker="x", alpha=0.6, label=f"{family} (paper)")
        if heads:
            measured = [(float(row["m"]), float(row["overlap_mean"])) for row in heads]
            axis.scatter(*zip(*measured), s=16, color="k", label="measured here")
        axis.plot([256, 16384], [1 / 256, 1 / 16384], label="1/m", **_PAPER)
        _log(axis, "width m", "mean squared overlap of the head's rows")

    def excess(axis: Any) -> None:
        if fit is None:
            return
        _language_models(axis, losses, fit)
        widths = sorted({float(row["m"]) for row in losses})
        axis.plot(
            widths,
            [fit.factor / m**fit.exponent for m in widths],
            label=f"exponent {fit.exponent:.2f}",
            **_PAPER,
        )
        _log(axis, "width m", "loss less its offset")

    return _figure("fig8", [overlaps, excess], "", folder)
