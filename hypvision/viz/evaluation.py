"""Figures of a test: confusion matrices, curves of precision and recall, bars, and sheets of the
worst mistakes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from .overlay import add_legend
from .palette import line_colours
from .report import Part
from .sheet import contact_sheet, show_names, titled_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 110
# Largest number of classes of a matrix that shows counts, and of one that shows names.
_NUMBERED = 20
_NAMED = 100
_LARGE = 10_000  # a matrix with a count of at least this shows percentages instead
_LINES = 10  # largest number of classes with a curve
_SHORT = 24  # longest class name beside a matrix, in letters


class Mistake(NamedTuple):
    """A tile of a sheet of mistakes: pictures side by side, and lines of text below."""

    pictures: Sequence[Image.Image]
    lines: Sequence[str]


def confusion_figure(
    counts: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    order: Sequence[int] | None = None,
) -> Image.Image:
    """Draw a confusion matrix with true classes in rows and predicted classes in columns.

    The colour is the share in the row, so that rare classes are shown as strongly as others. With
    up to 20 classes numbers are written: counts, or percentages of the row if counts are large.
    ``order`` lists the classes in the order to show; rows and columns after the last of them stay
    in place."""
    from matplotlib.figure import Figure

    if order is not None:
        down, across = ([*order, *range(len(order), len(names))] for names in (rows, columns))
        counts = counts[np.ix_(down, across)]
        rows = [rows[i] for i in down]
        columns = [columns[i] for i in across]
    share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    most = max(counts.shape)
    side = max(4.0, 0.42 * most if most <= _NUMBERED else 0.16 * most) if most <= _NAMED else 9.0
    figure = Figure((side + 2.6, side + 1.6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        share, cmap="Blues", vmin=0, vmax=100, interpolation="nearest", aspect="auto"
    )
    axes.set(xlabel="predicted", ylabel="true")
    _write_names(axes, rows, columns, most)
    if most <= _NUMBERED:
        _write_numbers(axes, counts, share)
    bar = figure.colorbar(image, ax=axes, shrink=0.6)
    bar.set_label("% of the true class", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return to_image(figure)


def _write_names(axes: Any, rows: Sequence[str], columns: Sequence[str], most: int) -> None:
    if most > _NAMED:
        axes.set(xticks=[], yticks=[])
        return
    size = 9 if most <= _NUMBERED else 6.5
    across = [_short(name) for name in columns]
    axes.set_xticks(range(len(columns)), across, rotation=90, fontsize=size)
    axes.set_yticks(range(len(rows)), [_short(name) for name in rows], fontsize=size)


def _write_numbers(axes: Any, counts: np.ndarray, share: np.ndarray) -> None:
    numbers = counts
    if counts.max() >= _LARGE:
        numbers = np.rint(share).astype(int)
        axes.set_title("numbers: % of the true class", fontsize=9)
    for (y, x), number in np.ndenumerate(numbers):
        if number:
            colour = "white" if share[y, x] > 55 else "black"
            axes.text(x, y, str(number), ha="center", va="center", color=colour, fontsize=8)


def _short(name: str) -> str:
    return name if len(name) <= _SHORT else f"{name[: _SHORT - 1]}…"


def precision_recall_figure(
    recall: np.ndarray, panels: Mapping[str, Mapping[str, np.ndarray]]
) -> Image.Image:
    """Draw curves of precision over ``recall`` ``(R,)``; ``panels`` has for each title the
    precision ``(R,)`` of each named line."""
    from matplotlib.figure import Figure

    figure = Figure((5.6 * len(panels), 4.6), layout="constrained")
    for axes, (title, lines) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items()
    ):
        for (name, precision), colour in zip(lines.items(), line_colours(len(lines))):
            axes.plot(recall, precision, label=_short(name), color=colour, linewidth=1.5)
        axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.03))
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="lower left")
    return to_image(figure)


def bars_figure(
    names: Sequence[str], groups: Mapping[str, np.ndarray], xlabel: str, ylabel: str
) -> Image.Image:
    """Draw groups of bars at the named places of an axis; ``groups`` has for each name the heights
    of its bars."""
    from matplotlib.figure import Figure

    figure = Figure((max(4.5, 0.9 * len(names) + 2), 3.6), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(groups)
    for i, ((name, heights), colour) in enumerate(
        zip(groups.items(), ("#2a78b8", "#c4c4c4", "#d98b2b"))
    ):
        places = np.arange(len(names)) + (i - (len(groups) - 1) / 2) * width
        drawn = axes.bar(places, heights, width, label=name, color=colour)
        axes.bar_label(drawn, fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(names)), names)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8)
    return to_image(figure)


def to_image(figure: Figure) -> Image.Image:
    """Return a figure of matplotlib as an RGB image."""
    content = io.BytesIO()
    show_names(figure)
    figure.savefig(content, dpi=_DPI, format="png")
    return Image.open(content).convert("RGB")


def mistake_sheet(
    mistakes: Sequence[Mistake],
    columns: int,
    cell: int = 220,
    heading: str = "",
    legend: Sequence[tuple[str, Sequence[int] | None]] = (),
) -> Image.Image:
    """Draw mistakes in rows of ``columns``, their pictures with a longer side of ``cell`` pixels,
    above a legend of texts with their colours (None: no field of colour)."""
    tiles = [
        (contact_sheet(m.pictures, len(m.pictures), cell), "\n".join(m.lines)) for m in mistakes
    ]
    sheet = titled_sheet(tiles, heading, columns)
    return add_legend(sheet, legend, size=13) if legend else sheet


def curve_part(
    recall: np.ndarray,
    overall: Mapping[str, Mapping[str, np.ndarray]],
    classes: str,
    curves: Mapping[str, np.ndarray],
    ap: Mapping[str, float],
    text: str,
    head: Sequence[str],
    lines: Mapping[tuple[Any, ...], np.ndarray],
) -> Part:
    """Return the part of a report with curves of precision over recall: the panels ``overall``, and
    a panel ``classes`` with the five best and the five worst classes.

    ``curves`` are precisions ``(R,)`` by class, ``ap`` average precisions in percent. The table has
    the ``lines``, named by the values of the first columns ``head``."""
    order = sorted(curves, key=lambda name: -ap[name])
    chosen = order if len(order) <= _LINES else [*order[: _LINES // 2], *order[-_LINES // 2 :]]
    panels = {**overall, classes: {f"{name}  ({ap[name]:.1f})": curves[name] for name in chosen}}
    text += "" if chosen == order else " On the right are the five best and the five worst classes."
    picture = precision_recall_figure(recall, panels)
    table: list[Sequence[Any]] = [(*head, "recall", "precision")]
    for name, line in lines.items():
        table += [(*name, *point) for point in zip(recall.tolist(), line.tolist())]
    return Part("Precision and recall", "precision_recall", text, picture, table, shown=False)


def worst_part(
    mistakes: Sequence[Mistake],
    wrong: bool,
    right: str,
    text: str,
    table: Sequence[Sequence[Any]],
    **sheet: Any,
) -> Part:
    """Return the part of a report with a sheet of the worst images, if some are wrong and have
    files. ``right`` is the text if none is wrong; ``sheet`` are further arguments of
    :func:`mistake_sheet`."""
    if not mistakes:
        text = "The images have no files, so none is shown." if wrong else right
        return Part("Worst images", "mistakes", text, table=table, shown=False)
    picture = mistake_sheet(mistakes, **sheet)
    return Part("Worst images", "mistakes", text, picture, table, photo=True, shown=False)
