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
    """An image, of any mode, with the classes painted in, by labels, integers (H, W) of its size, and a legend of those
    that occur; ``opacity`` of the paint from 0 to 1."""
    colours = label_colours(len(classes))
    painted = paint(image, labels, colours, opacity)
    if not legend:
        return painted
    return add_legend(painted, [(classes[number], colours[number]) for number in np.unique(labels)])
