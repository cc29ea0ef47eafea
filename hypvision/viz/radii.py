"""Distributions of hyperbolic radii."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hypvision.errors import require
from hypvision.viz.sheet import save_figure


def draw_radii(radii: Mapping[str, Tensor], sweep: Mapping[float, float], path: str | Path) -> None:
    """Write histograms of the named radii and, unless ``sweep`` is empty, the curve of mean radii that it holds.

    Args:
        radii: values of any shape, by their names.
        sweep: the mean radius for each factor that the adapter's map S was multiplied by.
        path: of the file.

    Raises:
        HypvisionError: matplotlib is missing, or the place is not writable.
    """
    figure = require("matplotlib.figure", "viz").Figure((10 if sweep else 6, 4), layout="constrained")
    axes = figure.subplots(1, 2 if sweep else 1, squeeze=False)
    for name, value in radii.items():
        axes[0, 0].hist(value.flatten().numpy(), bins=40, density=True, histtype="step", label=name)
    axes[0, 0].set(xlabel="hyperbolic radius", ylabel="density")
    axes[0, 0].legend(fontsize=7)
    if sweep:
        axes[0, 1].plot(list(sweep), list(sweep.values()), marker="o")
        axes[0, 1].set(xlabel="factor of S", ylabel="mean text radius")
    save_figure(figure, path, dpi=120)
