"""The paper's figures from the rows of a sweep; panels without points are left out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from hypvision.scaling.data import frequencies
from hypvision.scaling.figures import (
    SMALL,
    THEORY,
    Panel,
    alpha_decay_map,
    colors,
    draw_panels,
    exponent_map,
    lines,
    log_axes,
    log_widths,
    loss_by_decay,
    means,
    nearest,
    r2_bars,
    represented_by_width,
)
from hypvision.scaling.fits import JointFit
from hypvision.scaling.measures import random_overlaps
from superposition.claims import clean_exponents, fitted
from superposition.experiments import marked
from superposition.published import HEAD_OVERLAPS, LOSS_FIT, WEAK_EXPONENTS

Row = dict[str, Any]
Weights = Callable[[Row], Tensor | None]


def draw(
    name: str,
    rows: Sequence[Row],
    folder: str | Path,
    weights: Weights | None = None,
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
            panel empty. Without this function the figure has no panels of weights.
        losses, fit: of language models, for ``fig1``; without, the line of the paper's fit stands
            for them.
        scan: the width of what fig3 and fig7 show of one width, see
            :class:`superposition.experiments.Experiment`.
    """
    marks = sorted({row["shortened"] for row in rows} - {""})
    panels: list[Panel] = [
        partial(panel, rows=rows, weights=weights, scan=scan)
        for panel in _PANELS[name]
        if weights or panel not in (_frequencies_and_norms, _norms_by_rank)
    ]
    if name == "fig7" and len({row["m"] for row in rows}) == 1:
        panels.pop()  # lines over one width are none
    if name == "fig1":
        panels.append(partial(_large_strong, rows=rows, losses=losses, fit=fit))
    return draw_panels(name, panels, "; ".join(map(marked, marks)), folder)


# quick and figure 1: loss against width


def _large_strong(
    axis: Any, rows: Sequence[Row], losses: Sequence[Mapping[str, str]], fit: JointFit | None
) -> None:
    if any(row["decay"] < 0 for row in rows):
        _language_models(axis, losses, fit)
        _loss_by_distribution(axis, rows, sign=-1, title="strong superposition")
        ticks = [8 * 4**k for k in range(6)]  # ticks up to the widths of language models
        axis.set_xticks(ticks, [str(m) for m in ticks])
        axis.legend(fontsize=SMALL, loc="lower left")


def _loss_by_distribution(axis: Any, rows: Sequence[Row], sign: int, title: str, **_: Any) -> None:
    """The loss over the width for each distribution of frequencies, of the points whose decay has
    this sign."""
    rows = [row for row in rows if sign * row["decay"] > 0]
    fits = {key[0]: value for key, value in fitted(rows).items()}
    for name in sorted({row["distribution"] for row in rows}):
        xs, ys, spread = means((row for row in rows if row["distribution"] == name), "m", "loss")
        text = f"{name}, exponent {fits[name].mean:.2f}" if name in fits else name
        axis.errorbar(xs, ys, spread, marker="o", markersize=3, linewidth=1, label=text)
    log_widths(axis, rows, "loss L")
    axis.set_title(title)


def _language_models(axis: Any, losses: Sequence[Mapping[str, str]], fit: JointFit | None) -> None:
    """Losses of language models less their offsets, or without them the line of the paper's fit."""
    if fit is None:
        exponent, _, factor = LOSS_FIT
        widths = [m for points in HEAD_OVERLAPS.values() for m, _ in points]
        ends = [min(widths), max(widths)]
        label = f"language models, the paper's fit, exponent {exponent:.2f}"
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
    lines(axis, rows, "m", "decay", "phi_half")
    axis.set(xlabel="decay γ", ylabel="represented φ(1/2), α = 1", yscale="log")
    if rows:
        axis.legend(fontsize=SMALL)


def _represented_map(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    values: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        if row["m"] == scan and row["density"] == 0:
            values.setdefault((row["alpha"], row["decay"]), []).append(row["phi_half"])
    shares = {key: statistics.mean(found) for key, found in values.items()}
    alpha_decay_map(axis, shares, f"represented φ(1/2), m = {scan}", vmin=0, vmax=1)


def _frequencies_and_norms(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    """Frequencies by rank, and the norms at alpha = 1 with the strongest growth and the strongest
    decay."""
    rows = [row for row in rows if row["density"] == 0 and row["replicate"] == 0]
    if not rows:
        return
    near = nearest(rows, alpha=1, m=scan)
    ends = [nearest(near, decay=pick(row["decay"] for row in rows))[0] for pick in (min, max)]
    matrices = [matrix for row in ends if (matrix := weights(row)) is not None]
    if len(matrices) < len(ends):
        return
    for alpha in sorted({row["alpha"] for row in rows} & {0.0, 0.5, 1.0, 1.5, 2.0}):
        p = frequencies("power", rows[0]["n"], alpha)
        axis.plot(range(1, len(p) + 1), p.tolist(), linewidth=1, label=f"α {alpha:g}")
    axis.set(xscale="log", yscale="log", xlabel="rank of the feature", ylabel="frequency")
    axis.legend(fontsize=SMALL, loc="upper right")
    inset = axis.inset_axes([0.1, 0.1, 0.42, 0.35])
    for row, matrix, color in zip(ends, matrices, ("C0", "C3")):
        inset.hist(
            matrix.norm(dim=1).tolist(),
            bins=30,
            color=color,
            alpha=0.6,
            label=f"γ {row['decay']:.2f}",
        )
    inset.axvline(0.5, **THEORY)
    inset.set_title(f"norms, α {ends[0]['alpha']:g}, m {ends[0]['m']}", fontsize=SMALL)
    inset.tick_params(labelsize=SMALL)
    inset.legend(fontsize=SMALL)


# figure 5: weak superposition


def _loss_against(axis: Any, rows: Sequence[Row], name: str, xlabel: str, **_: Any) -> None:
    shown = [row for row in rows if (row.get(name) or 0) > 0]
    if not shown:
        return
    marks = _marks(row["alpha"] for row in rows)
    for decay, color in colors(row["decay"] for row in rows).items():
        for alpha, mark in marks.items():
            part = [row for row in shown if (row["decay"], row["alpha"]) == (decay, alpha)]
            xs, ys = ([row[key] for row in part] for key in (name, "loss"))
            axis.scatter(xs, ys, s=14, marker=mark, color=color)
        axis.plot([], [], "o", color=color, label=f"γ {decay:.3g}")
    if len(set(marks.values())) > 1:
        for alpha, mark in marks.items():
            axis.plot([], [], mark, color="0.3", label=f"α {alpha:g}")
    axis.axline((0.1, 0.1), slope=1, label="both equal", **THEORY)
    log_axes(axis, xlabel, "loss L")
    axis.set_title("a point a model: every α and width m")


def _marks(alphas: Iterable[float]) -> dict[float, str]:
    """A marker for each exponent of the frequencies; of many all have the same."""
    values = sorted(set(alphas))
    marks = "os^D"
    return dict(zip(values, marks)) if len(values) <= len(marks) else dict.fromkeys(values, "o")


def _weak_exponents(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    clean = clean_exponents(rows)
    if not clean:
        return
    inks = colors((decay for _, decay in WEAK_EXPONENTS), "viridis")
    for (alpha, decay), paper in WEAK_EXPONENTS.items():
        axis.plot(alpha, paper, "x", color=inks[decay], label=f"γ {decay:.3g} (paper)")
    for (alpha, decay), value in clean.items():
        axis.errorbar(
            alpha, value.mean, value.error, marker="o", color=inks[decay], label=f"γ {decay:.3g}"
        )
    axis.axline((1, 0), slope=1, label="theory, α - 1", **THEORY)
    axis.set(
        xlabel="α of the frequencies",
        ylabel="model exponent α_m",
        title="the paper's cleanest cases",
    )
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(
        dict(zip(labels, handles)).values(), dict(zip(labels, handles)).keys(), fontsize=SMALL
    )


# figure 6: strong superposition


def _norms_by_rank(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    chosen = nearest(
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
    inset.set_title(f"norms, m {row['m']}, γ {row['decay']:.2f}", fontsize=SMALL)
    inset.tick_params(labelsize=SMALL)


def _strong_by_width(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] == -1 and row["density"] == 0]
    if not rows:
        return
    lines(axis, rows, "alpha", "m", "phi_one")
    widths = sorted({row["m"] for row in rows})
    n = rows[0]["n"]
    axis.plot(widths, [m / n for m in widths], label="m/n", **THEORY)
    axis.plot(
        widths,
        [min(1, m * m / 2 / n) for m in widths],
        label="m²/2n",
        **(THEORY | dict(linestyle=":")),
    )
    log_widths(axis, rows, "norm above 1: φ(1), γ = -1")


def _overlap_means(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] < 0 and row["strong_rows"] > row["m"]]
    if not rows:
        return
    lines(axis, rows, "decay", "m", "overlap_mean")
    widths = sorted({row["m"] for row in rows})
    axis.plot(widths, [1 / m for m in widths], label="1/m", **THEORY)
    log_widths(axis, rows, "mean squared overlap")


def _overlap_variances(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] < -0.3 and row["strong_rows"] > row["m"] > 1]
    rows = nearest(rows, decay=-0.5556)
    if not rows:
        return
    rows = [row | {"ratio": row["overlap_variance"] / random_overlaps(row["m"])[1]} for row in rows]
    lines(axis, rows, "alpha", "m", "ratio")
    axis.axhline(1, label="random vectors", **THEORY)
    log_widths(axis, rows, f"variance / random, γ = {rows[0]['decay']:.2f}", yscale="linear")


def _strong_exponents(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    found = {
        (key[3], key[1]): value
        for key, value in fitted(rows).items()
        if key[3] < -0.3 and key[2] == 0
    }
    if not found:
        return
    for decay, color in colors((decay for decay, _ in found), "viridis").items():
        part = sorted(
            (alpha, value.mean, value.error) for (d, alpha), value in found.items() if d == decay
        )
        axis.errorbar(
            *zip(*part), marker="o", markersize=3, linewidth=1, color=color, label=f"γ {decay:.3g}"
        )
    axis.axhline(1, label="theory, 1", **THEORY)
    axis.axline((1.5, 1), slope=2, label="theory, 2(α - 1)", **(THEORY | dict(linestyle=":")))
    axis.set(xlabel="α of the frequencies", ylabel="model exponent α_m", ylim=(0, 3))
    axis.legend(fontsize=SMALL)


# figure 7: density


def _loss_by_density(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["alpha"] == 1 and row["m"] == scan]
    lines(axis, rows, "decay", "active", "loss")
    axis.set(xlabel="active features E", ylabel=f"loss L, m = {scan}")
    axis.legend(fontsize=SMALL)


def _lines_by_density(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    rows = [row for row in rows if row["decay"] == -0.5556 and row["alpha"] == 1]
    lines(axis, rows, "active", "m", "loss")
    log_widths(axis, rows, "loss L, γ = -0.556")


def _loss_by_decay(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    loss_by_decay(axis, rows, fitted(rows))


def _represented_by_width(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    represented_by_width(axis, rows)


def _r2_bars(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    r2_bars(axis, fitted(rows))


def _exponent_map(axis: Any, rows: Sequence[Row], weights: Weights, scan: int) -> None:
    exponent_map(axis, fitted(rows))


_PANELS: dict[str, list[Callable[..., None]]] = {
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
        axis.plot([256, 16384], [1 / 256, 1 / 16384], label="1/m", **THEORY)
        log_axes(axis, "width m", "mean squared overlap of the head's rows")

    def excess(axis: Any) -> None:
        if fit is None:
            return
        _language_models(axis, losses, fit)
        widths = sorted({float(row["m"]) for row in losses})
        axis.plot(
            widths,
            [fit.factor / m**fit.exponent for m in widths],
            label=f"exponent {fit.exponent:.2f}",
            **THEORY,
        )
        log_axes(axis, "width m", "loss less its offset")

    return draw_panels("fig8", [overlaps, excess], "", folder)
