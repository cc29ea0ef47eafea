"""A segmentation painted into its image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from hypvision.images import to_rgb
from hypvision.viz.palette import palette

__all__ = ["draw_segmentation"]


def draw_segmentation(
    image: Image.Image, labels: np.ndarray, classes: Sequence[str], opacity: float = 0.55, legend: bool = True
) -> Image.Image:
    """An image with the classes painted in, and a legend of those that occur.

    Args:
        image: of any mode.
        labels: integers (H, W) of the size of the image, numbers of classes.
        classes: their names.
        opacity: of the paint, 0 to 1.
        legend: names and colours below the image.
    """
    colours = np.array(palette(len(classes) + 1)[1:], dtype=np.uint8)
    painted = Image.blend(to_rgb(image), Image.fromarray(colours[labels]), opacity)
    if not legend:
        return painted
    present = [int(number) for number in np.unique(labels)]
    columns = max(1, painted.width // 130)
    rows = math.ceil(len(present) / columns)
    sheet = Image.new("RGB", (painted.width, painted.height + 18 * rows + 4), "white")
    sheet.paste(painted, (0, 0))
    draw = ImageDraw.Draw(sheet)
    for place, number in enumerate(present):
        x, y = 4 + place % columns * 130, painted.height + 4 + place // columns * 18
        draw.rectangle((x, y, x + 12, y + 12), fill=tuple(int(value) for value in colours[number]))
        draw.text((x + 17, y), classes[number][:17], fill="black")
    return sheet
