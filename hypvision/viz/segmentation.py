"""A segmentation painted into its image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from hypvision.viz.overlay import add_legend, paint
from hypvision.viz.palette import label_colours


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
    colours = label_colours(len(classes))
    painted = paint(image, labels, colours, opacity)
    if not legend:
        return painted
    return add_legend(painted, [(classes[number], colours[number]) for number in np.unique(labels)])
