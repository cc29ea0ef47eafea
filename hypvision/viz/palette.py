"""Colours that are easy to tell apart, the same in every image."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np


def palette(count: int) -> list[list[int]]:
    """Return ``count`` RGB colours (0-255); the first is dark grey, for the background. Hues step
    by the golden ratio."""
    colours = [[64, 64, 64]]
    for i in range(1, count):
        # Lightness alternates as well, so that neighbours in the list differ in more than hue.
        rgb = colorsys.hls_to_rgb((i * 0.618034) % 1.0, (0.5, 0.65, 0.38)[i % 3], 0.75)
        colours.append([round(255 * value) for value in rgb])
    return colours[:count]


def css(shade: Sequence[float]) -> str:
    """Return a colour of three numbers from 0 to 1 as HTML writes it, ``#rrggbb``."""
    return "#" + "".join(f"{round(255 * float(part)):02x}" for part in shade)


def line_colours(count: int) -> list[Any]:
    """Return colours for the lines of a matplotlib figure: up to ten that differ most, or for more
    lines those of a rainbow."""
    from matplotlib import colormaps

    return [
        colormaps["tab10"](i) if count <= 10 else colormaps["turbo"]((i + 0.5) / count)
        for i in range(count)
    ]


def label_colours(count: int) -> np.ndarray:
    """Return the palette without its grey, uint8 ``(count, 3)``: a colour for each label from
    0."""
    return np.array(palette(count + 1)[1:], dtype=np.uint8).reshape(-1, 3)
