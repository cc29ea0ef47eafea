"""Images of chains: an image's walk from general to specific texts, and radii by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from PIL import Image
from torch import Tensor

from hypvision.errors import require
from hypvision.files import replacing

__all__ = ["draw_levels", "draw_walks"]


def draw_walks(
    image: Image.Image | str, walks: Mapping[str, Sequence[tuple[str, float, float]]], path: str | Path
) -> None:
    """Write an image and beside it, for each model, the texts of its walk: higher up the more general.

    Args:
        image: the image, or words in its place.
        walks: for each model (text, radius, similarity), from general to specific.
        path: of the file.

    Raises:
        HypvisionError: matplotlib is missing, or the place is not writable.
    """
    pyplot = require("matplotlib.pyplot", "viz")
    most = max(len(walk) for walk in walks.values())
    figure, axes = pyplot.subplots(
        1, 1 + len(walks), figsize=(2.4 + 4.2 * len(walks), max(2.4, 0.34 * most + 0.8)),
        width_ratios=[2, *[4] * len(walks)], layout="constrained",
    )  # fmt: skip
    if isinstance(image, str):
        axes[0].text(0.5, 0.5, "\n".join(wrap(image, 18)), ha="center", va="center")
    else:
        axes[0].imshow(image)
    axes[0].axis("off")
    largest = max(radius for walk in walks.values() for _, radius, _ in walk)
    for axis, (name, walk) in zip(axes[1:], walks.items()):
        rows = range(len(walk))
        axis.barh(rows, [radius for _, radius, _ in walk], color="#cfe3f7")
        for row, (text, _, similarity) in zip(rows, walk):
            axis.text(0.01 * largest, row, f"{_short(text)}  ({similarity:.2f})", va="center", fontsize=8)
        axis.set(xlim=(0, 1.02 * largest), ylim=(most - 0.4, -0.6), yticks=[], title=name, xlabel="radius")
        axis.spines[["left", "top", "right"]].set_visible(False)
    _write(pyplot, figure, path)


def _short(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def draw_levels(radii: Mapping[str, Tensor], path: str | Path) -> None:
    """Write histograms of the radii ``(n, L)`` of each model, a colour a level.

    Raises:
        HypvisionError: matplotlib is missing, or the place is not writable.
    """
    pyplot = require("matplotlib.pyplot", "viz")
    figure, axes = pyplot.subplots(1, len(radii), figsize=(5 * len(radii), 3), squeeze=False, layout="constrained",
                                   sharex=True)  # fmt: skip
    for axis, (name, values) in zip(axes[0], radii.items()):
        for level, column in enumerate(values.T.cpu().numpy()):
            axis.hist(column, bins=40, alpha=0.6, density=True, label=f"level {level + 1}")
        axis.set(title=name, xlabel="radius", ylabel="density")
        axis.legend(fontsize=7)
    _write(pyplot, figure, path)


def _write(pyplot, figure, path: str | Path) -> None:
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=110)
    finally:
        pyplot.close(figure)
