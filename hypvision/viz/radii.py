"""Figures of hyperbolic radii: histograms, and an image's walk from general to specific texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten, wrap
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch import Tensor

from hypvision.io import StrPath, require

from .sheet import save_figure
from .traversal import apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST = 30  # number of characters of a name in a figure
_FEW = 10  # up to this number each value is drawn alone; more values become a histogram
_LINE = 0.2  # height of a name in inches
_LETTER = 0.085  # width of a letter of 9 points in inches, of most names an upper bound


def draw_radii(
    radii: Mapping[str, Tensor],
    sweep: Mapping[float, float],
    path: StrPath,
    label: str = "hyperbolic radius",
    named: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write a figure of named radii of any shape as histograms, or as dots in a column for each
    name if they are few; their axis has the ``label``. Dots of a column that ``named`` has bear
    these names. If ``sweep`` is not empty, a second panel shows its mean radii, one for each factor
    that the adapter's map S was multiplied by.
    """
    flat = {name: value.flatten().cpu().numpy() for name, value in radii.items()}
    few = max(map(len, flat.values())) <= _FEW
    texts = {name: _texts(flat[name], (named or {}).get(name, ())) for name in flat}
    flat = {name: values[np.isfinite(values)] for name, values in flat.items()}
    rooms = [
        max(0.9, 0.5 + _width(lines), 0.2 + _width(_lines(name))) for name, lines in texts.items()
    ]
    width = max(5.0, sum(rooms)) if few else 5.0
    ratios = [width + 1, 4] if sweep else [width + 1]
    figure = require("matplotlib.figure", "viz").Figure((sum(ratios), 4), layout="constrained")
    axes = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)
    if few:
        _draw_columns(axes[0, 0], flat, texts, rooms)
        axes[0, 0].set_ylabel(label)
    else:
        _draw_histograms(axes[0, 0], flat)
        axes[0, 0].set_xlabel(label)
    if sweep:
        axes[0, 1].plot(list(sweep), list(sweep.values()), marker="o")
        axes[0, 1].set(xlabel="factor of S", ylabel="mean text radius")
    save_figure(figure, path, dpi=120)


def _texts(values: np.ndarray, names: Sequence[str]) -> list[str]:
    """Return the names of the values that are finite; the others have no place in a figure."""
    return [_short(name) for value, name in zip(values, names) if np.isfinite(value)]


def _range(flat: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the least and the largest value of all; 0 and 0 if there are none."""
    every = np.concatenate(list(flat.values()))
    return (float(every.min()), float(every.max())) if len(every) else (0.0, 0.0)


def _lines(name: str) -> list[str]:
    """Return a column's name in lines that are not much wider than a column; of a long one, such as
    a path, the end."""
    return wrap(name if len(name) <= 48 else f"...{name[-45:]}", 16)


def _width(lines: Sequence[str]) -> float:
    return _LETTER * max(map(len, lines), default=0)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _draw_histograms(axes: Axes, flat: Mapping[str, np.ndarray]) -> None:
    lowest, highest = _range(flat)
    bins = int(min(40, 2 * max(map(len, flat.values())) ** 0.5))
    edges = np.linspace(lowest, max(highest, lowest + 1e-6), max(bins, 1) + 1)
    for number, (name, values) in enumerate(flat.items()):
        colour = f"C{number}"
        if len(values) > _FEW:
            axes.hist(
                values, bins=edges.tolist(), density=True, histtype="step", label=name, color=colour
            )
        else:
            lines = axes.get_xaxis_transform()
            axes.vlines(values, 0, 1, linewidth=1, transform=lines, label=name, color=colour)
    axes.set_ylabel("density")
    axes.legend(fontsize=9)


def _draw_columns(
    axes: Axes,
    flat: Mapping[str, np.ndarray],
    texts: Mapping[str, Sequence[str]],
    rooms: Sequence[float],
) -> None:
    """Draw each value as a dot, in a column of ``rooms`` inches for each name, and the ``texts``
    beside them, moved apart where dots are near, with lines from their dots."""
    lowest, highest = _range(flat)
    span = highest - lowest
    if span < 1e-6:  # one radius alone: names are spread above it
        span = max(0.1 * abs(lowest), 1e-3)
    gap = span * _LINE / 3  # the axis is about three inches high
    lefts = np.cumsum([0, *rooms])
    for number, (name, values) in enumerate(flat.items()):
        left = lefts[number]
        colour = f"C{number}"
        axes.scatter([left] * len(values), values, color=colour, zorder=2)
        order = np.argsort(-values, kind="stable")[: len(texts[name])]
        if not len(order):
            continue
        for row, place in zip(order, apart(values[order] - lowest, gap, span) + lowest):
            ends = [values[row], place, place]
            axes.plot([left, left + 0.14, left + 0.2], ends, color=colour, linewidth=0.6, zorder=1)
            axes.text(left + 0.24, place, texts[name][row], va="center", fontsize=9)
    names = [_lines(name) for name in flat]
    axes.set_xticks(lefts[:-1], ["\n".join(lines) for lines in names])
    axes.set_xlim(min(-0.3, -0.1 - _width(names[0]) / 2), lefts[-1])
    axes.set_ylim(lowest - 0.07 * span, lowest + 1.07 * span)


def draw_levels(radii: Mapping[str, Tensor], path: StrPath) -> None:
    """Write histograms of the radii ``(n, L)`` of each model, a column for each model and a row for
    each level, so that no level covers another; all have the same bins."""
    found = {name: values.T.cpu().numpy() for name, values in radii.items()}
    levels = max(map(len, found.values()))
    size = (4.2 * len(found), 0.9 * levels + 1.0)
    figure = require("matplotlib.figure", "viz").Figure(size, layout="constrained")
    axes = figure.subplots(levels, len(found), squeeze=False, sharex=True)
    every = np.concatenate([values.ravel() for values in found.values()])
    edges = np.linspace(every.min(), max(every.max(), every.min() + 1e-6), 61)
    for column, (name, values) in zip(axes.T, found.items()):
        column[0].set_title(name)
        column[-1].set_xlabel("radius")
        for level, (axis, numbers) in enumerate(zip(column, values)):
            axis.hist(numbers, bins=edges.tolist(), color=f"C{level}")
            axis.axvline(np.median(numbers), color="0.2", linewidth=1, linestyle="--")
            axis.spines[["top", "right"]].set_visible(False)
    for level, axis in enumerate(axes[:, 0]):
        axis.set_ylabel(f"texts of\nlevel {level + 1}")
    figure.supxlabel("dashed: the median of a level", fontsize=9)
    save_figure(figure, path, dpi=110)


def draw_walks(
    image: Image.Image | str, walks: Mapping[str, Sequence[tuple[str, float, float]]]
) -> Figure:
    """Return a figure of an image (or words in its place) and, for each model, the texts of its
    walk beside it, as (text, radius, similarity) from general to specific, the most general on top.
    """
    most = max(len(walk) for walk in walks.values())
    size = (1.6 + 3.8 * len(walks), max(2.4, 0.34 * most + 0.8))
    figure: Figure = require("matplotlib.figure", "viz").Figure(size, layout="constrained")
    axes = figure.subplots(1, 1 + len(walks), width_ratios=[1.4, *[4] * len(walks)])
    if isinstance(image, str):
        axes[0].text(0.5, 0.5, "\n".join(wrap(image, 14)), ha="center", va="center")
    else:
        axes[0].imshow(image)
    axes[0].axis("off")
    # If all radii are 0, the axis ends at 1.
    largest = max(radius for walk in walks.values() for _, radius, _ in walk) or 1.0
    for axis, (name, walk) in zip(axes[1:], walks.items()):
        rows = range(len(walk))
        axis.barh(rows, [radius for _, radius, _ in walk], color="#cfe3f7")
        for row, (text, _, similarity) in zip(rows, walk):
            short = shorten(text, 42, placeholder="...")
            axis.text(0.01 * largest, row, f"{short}  ({similarity:.2f})", va="center", fontsize=9)
        axis.set(xlim=(0, 1.02 * largest), ylim=(most - 0.4, -0.6), yticks=[])
        axis.set(title=name, xlabel="radius; in brackets: similarity")
        axis.locator_params(axis="x", nbins=5)
        axis.spines[["left", "top", "right"]].set_visible(False)
    return figure
