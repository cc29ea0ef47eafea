#!/usr/bin/env python
"""Draw the images of docs/geometry.md: ``python studies/draw_geometry.py docs/images/geometry``."""

import math
import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch

from hypvision.geometry import poincare
from hypvision.io.errors import guard, require
from hypvision.io.files import replacing
from hypvision.viz.disk import PoincareDisk

# A triangle in the unit disk.
CORNERS = torch.tensor([[-0.55, -0.5], [0.75, -0.15], [-0.1, 0.75]], dtype=torch.float64)


def angle_sum(corners: torch.Tensor) -> float:
    """Sum of the angles between the geodesics that join three points ``(3, 2)``."""
    total = 0.0
    for i in range(3):
        x = corners[i]
        y = corners[(i + 1) % 3]
        z = corners[(i + 2) % 3]
        u = poincare.logmap(x, y, 1.0)
        v = poincare.logmap(x, z, 1.0)
        total += math.acos(float(u @ v / (u.norm() * v.norm())))
    return total


def carried(corners: torch.Tensor, steps: int = 7) -> tuple[np.ndarray, np.ndarray, float]:
    """A vector that is transported around a triangle.

    Returns:
        Points on the way ``(3 steps + 1, 2)``, the vector there, of one hyperbolic length, and the
        angle in radians by which it has turned on its return.
    """
    v = poincare.logmap(corners[0], corners[1], 1.0)
    v = 0.25 * v / poincare.norm(corners[0], v, 1.0)
    first = v
    places = []
    vectors = []
    for i in range(3):
        x = corners[i]
        y = corners[(i + 1) % 3]
        for t in torch.arange(steps, dtype=torch.float64) / steps:
            point = poincare.geodesic(t, x, y, 1.0)
            places.append(point)
            vectors.append(poincare.transp(x, point, v, 1.0))
        v = poincare.transp(x, y, v, 1.0)
    places.append(corners[0])
    vectors.append(v)
    turned = math.atan2(float(first[0] * v[1] - first[1] * v[0]), float(first @ v))
    return torch.stack(places).numpy(), torch.stack(vectors).numpy(), turned


def draw(path: Path) -> None:
    """Parallels and circles; a triangle with a transported vector."""
    figure = require("matplotlib.figure", "viz").Figure(figsize=(9.2, 5.6), layout="constrained")
    left, right = (PoincareDisk(axes) for axes in figure.subplots(1, 2))
    ends = 0.9999 * np.stack([np.cos([0.2, 2.4]), np.sin([0.2, 2.4])], 1)
    left.geodesic(*ends, color="tab:blue", linewidth=1.6)
    point = torch.tensor([-0.1, -0.25], dtype=torch.float64)
    for angle in (-0.7, -0.4, -0.1, 0.2):
        v = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
        ends = (poincare.geodesic_unit(t, point, v, 1.0).numpy() for t in (-12.0, 12.0))
        left.geodesic(*ends, color="tab:orange")
    for centre in ((0.1, -0.6), (0.75, -0.45), (-0.85, 0.15)):
        left.circle(centre, 0.5, color="tab:green")
        left.points(np.array([centre]), s=8, color="tab:green")
    left.axes.set_title(
        "Lines through a point that do not meet the blue one;\ncircles of one radius", fontsize=10
    )
    for i in range(3):
        right.geodesic(CORNERS[i].numpy(), CORNERS[(i + 1) % 3].numpy(), color="tab:blue")
    places, vectors, turned = carried(CORNERS)
    right.axes.quiver(
        *places.T,
        *vectors.T,
        np.arange(len(places)),
        cmap="viridis",
        angles="xy",
        scale_units="xy",
        scale=1,
        width=0.006,
    )
    total = angle_sum(CORNERS)
    right.axes.set_title(
        f"Angle sum {total:.3f}: the area is {math.pi - total:.3f},\n"
        f"and a vector carried round has turned by {abs(turned):.3f}",
        fontsize=10,
    )
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, bbox_inches="tight", pad_inches=0.05)


if __name__ == "__main__":
    parser = ArgumentParser(description="Draw the images of docs/geometry.md.")
    parser.add_argument("folder", type=Path, help="where lines.png goes")
    sys.exit(guard(lambda args: draw(args.folder / "lines.png"), parser.parse_args()))
