"""Distributions of hyperbolic radii."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from hypvision.errors import require
from hypvision.viz.sheet import save_figure

_FEW = 10  # up to this many values, each is drawn as a line; more become a histogram


def draw_radii(
    radii: Mapping[str, Tensor], sweep: Mapping[float, float], path: str | Path, label: str = "hyperbolic radius"
) -> None:
    """Write histograms of the named radii of any shape (a few are lines), whose axis has the ``label``, and, unless
    ``sweep`` is empty, the curve of its mean radii, one for each factor that the adapter's map S was multiplied by.
    """
    figure = require("matplotlib.figure", "viz").Figure((10 if sweep else 6, 4), layout="constrained")
    axes = figure.subplots(1, 2 if sweep else 1, squeeze=False)
    flat = {name: value.flatten().cpu().numpy() for name, value in radii.items()}
    every = np.concatenate(list(flat.values()))
    bins = int(min(40, 2 * max(map(len, flat.values())) ** 0.5))
    edges = np.linspace(every.min(), max(every.max(), every.min() + 1e-6), bins + 1)
    for number, (name, values) in enumerate(flat.items()):
        colour = f"C{number}"
        if len(values) > _FEW:
            axes[0, 0].hist(values, bins=edges, density=True, histtype="step", label=name, color=colour)
        for place, value in enumerate(values if len(values) <= _FEW else ()):
            axes[0, 0].axvline(value, label=None if place else name, color=colour, linewidth=1)
    axes[0, 0].set(xlabel=label, ylabel="density")
    axes[0, 0].legend(fontsize=7)
    if sweep:
        axes[0, 1].plot(list(sweep), list(sweep.values()), marker="o")
        axes[0, 1].set(xlabel="factor of S", ylabel="mean text radius")
    save_figure(figure, path, dpi=120)
