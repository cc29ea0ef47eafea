"""Colours that stay apart, the same in every image."""

from __future__ import annotations

import colorsys

__all__ = ["palette"]


def palette(count: int) -> list[list[int]]:
    """``count`` RGB colours (0-255); the first is dark grey, for background. Hues step by the golden ratio."""
    colours = [[64, 64, 64]]
    for i in range(1, count):
        # Lightness alternates too: neighbours in the list differ in more than hue.
        rgb = colorsys.hls_to_rgb((i * 0.618034) % 1.0, (0.5, 0.65, 0.38)[i % 3], 0.75)
        colours.append([round(255 * value) for value in rgb])
    return colours[:count]
