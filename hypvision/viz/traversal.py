"""The way of a photo to the root of a CLIP's embeddings, with the texts on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np
from PIL import Image

from hypvision.errors import require
from hypvision.viz.sheet import save_figure

_LINE = 0.3  # inches of a label


def draw_traversal(
    image: Image.Image, radii: Sequence[float], found: Sequence[tuple[int, str, float]], path: str | Path
) -> None:
    """Write a photo and beside it its way to the root, from top to bottom.

    Args:
        image: the photo.
        radii: distances from the root of the points of the way, the photo's first, the root's last.
        found: for each text that is the nearest somewhere on the way the number of the first such point, the text, and
            its own distance from the root.
        path: of the file.

    Raises:
        HypvisionError: matplotlib is missing, or the place is not writable.
    """
    height = max(3.2, _LINE * (len(found) + 1) + 0.9)
    figure = require("matplotlib.figure", "viz").Figure((8, height), layout="constrained")
    photo, axis = figure.subplots(1, 2, width_ratios=[1, 1.7])
    photo.imshow(image)
    photo.axis("off")
    top = max(radii[0], 1e-6)
    gap = 1.1 * top * _LINE / (height - 0.9)
    places = np.array([radii[step] for step, _, _ in found])
    labels = _apart(places, gap, top)
    axis.plot([0] * len(radii), radii, "-", color="#b0b0b0", zorder=1)
    axis.scatter([0] * len(radii), radii, s=8, color="#b0b0b0", zorder=2, label="points from the photo to the root")
    axis.scatter([0] * len(found), places, s=34, color="#1f5fa8", zorder=3,
                 label="from here on the nearest is ... (its distance from the root)")  # fmt: skip
    for place, label, (_, text, radius) in zip(places, labels, found):
        axis.plot([0.0, 0.12, 0.17], [place, label, label], "-", color="#1f5fa8", linewidth=0.6, zorder=1)
        axis.text(0.185, label, f"{shorten(text, 50, placeholder='...')}  ({radius:.2f})", va="center", fontsize=9)
    for name, place in (("photo", radii[0]), ("root", radii[-1])):
        axis.text(-0.03, place, name, ha="right", va="center", fontsize=9)
    low, high = min(0.0, *labels) - 0.05 * top, max(top, *labels) + 0.05 * top
    axis.set(xlim=(-0.16, 1.0), ylim=(low, high), xticks=[], ylabel="distance from the root")
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    save_figure(figure, path, dpi=110)


def _apart(places: np.ndarray, gap: float, top: float) -> np.ndarray:
    """Places from high to low, moved so that neighbours are ``gap`` apart, as near to where they were as one pass down
    and one pass up leave them."""
    moved = places.astype(float).copy()
    moved[0] = min(moved[0], top)
    for number in range(1, len(moved)):
        moved[number] = min(moved[number], moved[number - 1] - gap)
    if (below := -moved[-1]) > 0:
        moved[-1] += below
        for number in range(len(moved) - 2, -1, -1):
            moved[number] = max(moved[number], moved[number + 1] + gap)
    return moved
