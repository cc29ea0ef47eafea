"""A drawing of the way from a photo to the root of a CLIP's embeddings, or to another photo, with
the texts and images on this way."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from hypvision.io import StrPath, require

from .sheet import save_figure

_LINE = 0.3  # height of a label in inches
_LETTER = 0.072  # mean width of a letter of 9 points in inches
_UNIT = 3.8  # length in inches of the unit of the horizontal axis
_PICTURE = 0.85  # height of a small image in inches
_BLUE = "#1f5fa8"
_ORANGE = "#c25d10"
_GREY = "#b0b0b0"


class Found(NamedTuple):
    """A text or image that is the nearest one at some point of the way: ``step`` is the number of
    the first such point, ``radius`` its own distance from the root, and ``image`` the pixels of an
    image (None for a text)."""

    step: int
    name: str
    radius: float
    image: Image.Image | None = None


def draw_traversal(
    photo: Image.Image,
    radii: Sequence[float],
    found: Sequence[Found],
    path: StrPath,
    end: Image.Image | None = None,
) -> None:
    """Write a picture of a photo and, beside it, its way from top to bottom, with the images on the
    way at the left and the texts at the right.

    ``radii`` are the distances from the root of the points of the way, beginning with the photo's;
    ``end`` is the photo where the way ends, None if it ends at the root."""
    texts = [each for each in found if each.image is None]
    pictures = [each for each in found if each.image is not None]
    height = max(3.2, _LINE * (len(texts) + 1) + 0.9, _PICTURE * len(pictures) + 1.3)
    # The horizontal axis is in multiples of _UNIT; labels beside the way get the room they need.
    left = -0.15 - (0.9 * _PICTURE + 0.6) / _UNIT if pictures else -0.16
    right = max(0.5, 0.2 + _LETTER * max((len(_label(each)) for each in texts), default=0) / _UNIT)
    ratios = [2.2, 0.7 + _UNIT * (right - left)]
    images = {"photo": photo}
    layout = [["photo", "way"]]
    heights = np.asarray(radii, float)
    last = "root"
    ylabel = "distance of the way from the root"
    if end is not None:
        images["end"] = end
        layout.append(["end", "way"])
        # Distances from the root may rise again, so the height is the share of the way that is
        # left.
        heights = np.linspace(1, 0, len(radii))
        last = "end"
        ylabel = "share of the way that is left"
    figure = require("matplotlib.figure", "viz").Figure((sum(ratios), height), layout="constrained")
    grid = figure.subplot_mosaic(layout, width_ratios=ratios)
    for name, image in images.items():
        grid[name].imshow(image)
        grid[name].axis("off")
    axis = grid["way"]
    top = max(heights[0], 1e-6)
    inch = 1.1 * top / (height - 0.9)
    axis.plot([0] * len(heights), heights, "-", color=_GREY, zorder=1)
    axis.scatter([0] * len(heights), heights, s=8, color=_GREY, zorder=2, label="points of the way")
    reach = [0.0, top]
    reach += _draw_side(axis, texts, heights, _LINE * inch, 1, _BLUE)
    reach += _draw_side(axis, pictures, heights, _PICTURE * inch, -1, _ORANGE)
    for name, place, shift, align in (
        ("photo", heights[0], 4, "bottom"),
        (last, heights[-1], -4, "top"),
    ):
        axis.annotate(
            name, (0, place), (0, shift), textcoords="offset points", ha="center", va=align,
            fontsize=9,
        )  # fmt: skip
    margin = 0.25 * inch
    axis.set(
        xlim=(left, right),
        ylim=(min(reach) - margin, max(reach) + margin),
        xticks=[],
        ylabel=ylabel,
    )
    axis.set_yticks([tick for tick in axis.get_yticks() if -1e-9 <= tick <= top + 1e-9])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    title = "in brackets: how far the text or image itself is from the root"
    figure.legend(
        loc="outside lower center",
        ncols=2,
        fontsize=9,
        frameon=False,
        title=title,
        title_fontsize=9,
    )
    save_figure(figure, path, dpi=110)


def _draw_side(
    axis: Any, found: Sequence[Found], heights: np.ndarray, gap: float, side: int, colour: str
) -> list[float]:
    """Draw the texts (``side`` 1) or the images (``side`` -1), at least ``gap`` apart, with lines
    from their places on the way; return the lowest and the highest end of all."""
    if not found:
        return []
    places = heights[[one.step for one in found]]
    labels = apart(places, gap, max(heights[0], 1e-6))
    legend = f"the nearest {'text' if side > 0 else 'image'} changes here"
    axis.scatter([0] * len(found), places, s=34, color=colour, zorder=3, label=legend)
    for place, label, one in zip(places, labels, found):
        x = [0.0, side * 0.1, side * 0.14]
        axis.plot(x, [place, label, label], "-", color=colour, linewidth=0.6, zorder=1)
        if one.image is None:
            axis.text(0.155, label, _label(one), va="center", fontsize=9)
        else:
            _put(axis, one, (-0.15, label))
    return [labels[-1] - 0.5 * gap, labels[0] + 0.5 * gap]


def _label(found: Found) -> str:
    return f"{shorten(found.name, 50, placeholder='...')}  ({found.radius:.2f})"


def _put(axis: Any, found: Found, place: tuple[float, float]) -> None:
    """Draw the image of ``found`` with its right side at ``place``, and its distance left of it."""
    assert found.image is not None
    boxes = require("matplotlib.offsetbox", "viz")
    side = 72 * 0.9 * _PICTURE  # side in points
    small = found.image.convert("RGB")
    small.thumbnail((256, 256))
    zoom = side / max(small.size)
    image = boxes.OffsetImage(np.asarray(small), zoom=zoom)
    axis.add_artist(
        boxes.AnnotationBbox(image, place, frameon=False, box_alignment=(1, 0.5), pad=0)
    )
    axis.annotate(f"({found.radius:.2f})", place, (-zoom * small.width - 4, 0),
    textcoords="offset points", ha="right",
                  va="center", fontsize=9)  # fmt: skip


def apart(places: np.ndarray, gap: float, top: float) -> np.ndarray:
    """Return places, from high to low, moved in one pass down and one pass up so that neighbours
    are at least ``gap`` apart."""
    moved = places.astype(float).copy()
    moved[0] = min(moved[0], top)
    for number in range(1, len(moved)):
        moved[number] = min(moved[number], moved[number - 1] - gap)
    below = -moved[-1]
    if below > 0:
        moved[-1] += below
        for number in range(len(moved) - 2, -1, -1):
            moved[number] = max(moved[number], moved[number + 1] + gap)
    return moved
