"""Images of chains: an image's walk from general to specific texts, and radii by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten, wrap
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from hypvision.errors import require
from hypvision.viz.sheet import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_walks(image: Image.Image | str, walks: Mapping[str, Sequence[tuple[str, float, float]]]) -> Figure:
    """An image, or words in its place, and beside it, for each model, the texts of its walk, as (text, radius,
    similarity) from general to specific: higher up the more general.
    """
    most = max(len(walk) for walk in walks.values())
    size = (2.4 + 4.2 * len(walks), max(2.4, 0.34 * most + 0.8))
    figure: Figure = require("matplotlib.figure", "viz").Figure(size, layout="constrained")
    axes = figure.subplots(1, 1 + len(walks), width_ratios=[2, *[4] * len(walks)])
    if isinstance(image, str):
        axes[0].text(0.5, 0.5, "\n".join(wrap(image, 18)), ha="center", va="center")
    else:
        axes[0].imshow(image)
    axes[0].axis("off")
    largest = max(radius for walk in walks.values() for _, radius, _ in walk) or 1.0  # 1 if all radii are 0
    for axis, (name, walk) in zip(axes[1:], walks.items()):
        rows = range(len(walk))
        axis.barh(rows, [radius for _, radius, _ in walk], color="#cfe3f7")
        for row, (text, _, similarity) in zip(rows, walk):
            short = shorten(text, 60, placeholder="...")
            axis.text(0.01 * largest, row, f"{short}  ({similarity:.2f})", va="center", fontsize=8)
        axis.set(xlim=(0, 1.02 * largest), ylim=(most - 0.4, -0.6), yticks=[], title=name, xlabel="radius")
        axis.spines[["left", "top", "right"]].set_visible(False)
    return figure


def draw_levels(radii: Mapping[str, Tensor], path: str | Path) -> None:
    """Write histograms of the radii ``(n, L)`` of each model, a colour a level."""
    figure = require("matplotlib.figure", "viz").Figure((5 * len(radii), 3), layout="constrained")
    axes = figure.subplots(1, len(radii), squeeze=False, sharex=True)
    for axis, (name, values) in zip(axes[0], radii.items()):
        for level, column in enumerate(values.T.cpu().numpy()):
            axis.hist(column, bins=40, alpha=0.6, density=True, label=f"level {level + 1}")
        axis.set(title=name, xlabel="radius", ylabel="density")
        axis.legend(fontsize=7)
    save_figure(figure, path, dpi=110)
