"""Distributions of hyperbolic radii."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hypvision.errors import require
from hypvision.files import replacing

__all__ = ["draw_radii"]


def draw_radii(radii: Mapping[str, Tensor], sweep: Mapping[float, float], path: str | Path) -> None:
    """Write histograms of radii, and the mean radius by the factor of the adapter if there is a ``sweep``.

    Raises:
        HypvisionError: matplotlib is missing, or the place is not writable.
    """
    pyplot = require("matplotlib.pyplot", "viz")
    figure, axes = pyplot.subplots(1, 2 if sweep else 1, figsize=(10 if sweep else 6, 4), squeeze=False)
    for name, value in radii.items():
        axes[0, 0].hist(value.flatten().numpy(), bins=40, density=True, histtype="step", label=name)
    axes[0, 0].set(xlabel="hyperbolic radius", ylabel="density")
    axes[0, 0].legend(fontsize=7)
    if sweep:
        axes[0, 1].plot(list(sweep), list(sweep.values()), marker="o")
        axes[0, 1].set(xlabel="factor of S", ylabel="mean text radius")
    figure.tight_layout()
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=120)
    finally:
        pyplot.close(figure)
