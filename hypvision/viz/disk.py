"""Points, geodesics and circles in the Poincare disk.

    >>> figure, disk = poincare_disk()
    >>> xy = to_disk(points, manifold)                 # any dimension: angles by PCA, radii as they are
    >>> disk.points(xy, colours=labels)
    >>> disk.geodesic(xy[0], xy[1])
    >>> figure.savefig("disk.png")

Coordinates ``(N, 2)`` are those of the unit disk, of curvature 1: distances there are ``sqrt(c)`` times those on
the manifold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hypvision.errors import require
from hypvision.geometry import Euclidean, Lorentz, Manifold, PoincareBall, lorentz, poincare
from hypvision.viz.palette import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PoincareDisk", "draw_embedding", "geodesic_arc", "poincare_disk", "to_disk"]

# Largest radius that is drawn: beyond, points of the unit disk look like its boundary anyway.
_BOUNDARY = 1 - 1e-6


def to_disk(x: Tensor, manifold: Manifold, centre: str | Tensor = "mean", scale: float | None = None) -> np.ndarray:
    """Points of any dimension in the unit disk.

    Two dimensions are shown as they are. Of more, the tangent vectors at the centre are projected onto the plane of
    their largest variance and given their true length again: distances from the centre are exact, angles are not.

    Args:
        x: points ``(N, ...)`` of ``manifold``.
        manifold: a ball, a hyperboloid, or flat space (drawn as the tangent space of curvature 1).
        centre: what becomes the middle: ``"mean"`` (the Lorentz centroid of the points), ``"origin"``, or a point.
        scale: factor of all distances from the centre; None draws the farthest at 0.95, if it lies beyond.

    Returns:
        Coordinates ``(N, 2)``.

    Raises:
        ValueError: ``x`` is not ``(N, d)``, or an unknown ``centre``.
    """
    if x.dim() != 2:
        raise ValueError(f"x must be (N, d), got {tuple(x.shape)}.")
    x = x.detach().double().cpu()
    c = 1.0 if isinstance(manifold, Euclidean) else manifold._value()
    if isinstance(manifold, PoincareBall):
        x = poincare.to_lorentz(x, c)
    elif not isinstance(manifold, Lorentz):
        x = lorentz.expmap0(x, 1.0)
    x = x * c**0.5
    if isinstance(centre, Tensor):
        middle = to_unit(centre, manifold)
    elif centre == "mean":
        middle = lorentz.centroid(x, None, 1.0)
    elif centre == "origin":
        middle = None
    else:
        raise ValueError(f"centre must be 'mean', 'origin' or a point, got '{centre}'.")
    if middle is not None:
        x = lorentz.unboost(middle.expand_as(x), x, 1.0)
    v = lorentz.logmap0(x, 1.0).numpy()
    length = np.linalg.norm(v, axis=1, keepdims=True)
    if v.shape[1] == 1:
        v = np.concatenate([v, np.zeros_like(v)], 1)
    elif v.shape[1] > 2:
        _, _, axes = np.linalg.svd(v - v.mean(0), full_matrices=False)
        v = v @ axes[:2].T
        v = v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) * length
    if scale is None:
        farthest = length.max() if len(length) else 0.0
        scale = min(1.0, 2 * np.arctanh(0.95) / farthest) if farthest > 0 else 1.0
    length = np.maximum(length, 1e-12)
    return v / length * np.minimum(np.tanh(scale * length / 2), _BOUNDARY)


def to_unit(x: Tensor, manifold: Manifold) -> Tensor:
    """A point as one of the hyperboloid of curvature 1, in float64."""
    x = x.detach().double().cpu()
    if isinstance(manifold, PoincareBall):
        return poincare.to_lorentz(x, manifold._value()) * manifold._value() ** 0.5
    if isinstance(manifold, Lorentz):
        return x * manifold._value() ** 0.5
    return lorentz.expmap0(x, 1.0)


def geodesic_arc(p: Sequence[float], q: Sequence[float], steps: int = 64) -> np.ndarray:
    """Points ``(steps, 2)`` on the geodesic segment from ``p`` to ``q``, evenly spaced in hyperbolic length."""
    start, end = (torch.as_tensor(np.asarray(point), dtype=torch.float64).expand(steps, 2) for point in (p, q))
    t = torch.linspace(0, 1, steps, dtype=torch.float64).unsqueeze(1)
    return poincare.geodesic(t, start, end, 1.0).numpy()


class PoincareDisk:
    """A matplotlib axes with the unit disk; every method takes coordinates ``(N, 2)`` and passes options on.

    Args:
        axes: where to draw.
        grid: radii, in hyperbolic distance, of circles around the origin.
    """

    def __init__(self, axes: Axes, grid: Sequence[float] = (1, 2, 3, 4)):
        self.axes = axes
        axes.set_aspect("equal")
        axes.set_xlim(-1.04, 1.04)
        axes.set_ylim(-1.04, 1.04)
        axes.axis("off")
        self.boundary()
        for radius in grid:
            self.circle((0, 0), radius, color="0.9", linewidth=0.7, zorder=0)

    def boundary(self, **options: Any) -> None:
        """The boundary of the disk."""
        circles = require("matplotlib.patches", "viz")
        options = {"fill": False, "color": "0.3", "linewidth": 1.2, **options}
        self.axes.add_patch(circles.Circle((0, 0), 1.0, **options))

    def points(
        self, xy: np.ndarray, colours: Sequence[int] | None = None, labels: Sequence[str] | None = None, **options: Any
    ) -> None:
        """Points.

        Args:
            xy: coordinates.
            colours: a number for each, that chooses its colour.
            labels: a text for each, beside it.
            options: of ``Axes.scatter``.
        """
        if colours is not None:
            table = np.array(palette(int(max(colours, default=0)) + 2)[1:]) / 255
            options["c"] = table[np.asarray(colours)]
        self.axes.scatter(xy[:, 0], xy[:, 1], **{"s": 12, "linewidths": 0, **options})
        for text, (x, y) in zip(labels or (), xy):
            self.axes.annotate(text, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=8)

    def geodesic(self, p: Sequence[float], q: Sequence[float], **options: Any) -> None:
        """The segment between two points."""
        arc = geodesic_arc(p, q)
        self.axes.plot(arc[:, 0], arc[:, 1], **{"color": "0.4", "linewidth": 0.9, **options})

    def geodesics(self, starts: np.ndarray, ends: np.ndarray, steps: int = 24, **options: Any) -> None:
        """Many segments as one drawing, between points ``(N, 2)``; ``options`` of matplotlib's ``LineCollection``."""
        collections = require("matplotlib.collections", "viz")
        p, q = (torch.as_tensor(np.asarray(points), dtype=torch.float64).unsqueeze(1) for points in (starts, ends))
        t = torch.linspace(0, 1, steps, dtype=torch.float64).unsqueeze(1)
        arcs = poincare.geodesic(t, p.expand(-1, steps, -1), q.expand(-1, steps, -1), 1.0).numpy()
        options = {"colors": "0.4", "linewidths": 0.9, "zorder": 1, **options}
        self.axes.add_collection(collections.LineCollection(arcs, **options))

    def line(self, start: float, end: float, **options: Any) -> None:
        """The whole geodesic between two points of the boundary, given by their angles in radians."""
        ends = [_BOUNDARY * np.array([np.cos(angle), np.sin(angle)]) for angle in (start, end)]
        self.geodesic(*ends, **options)

    def circle(self, centre: Sequence[float], radius: float, **options: Any) -> None:
        """The points at a hyperbolic distance from a centre; a Euclidean circle, with another centre."""
        circles = require("matplotlib.patches", "viz")
        p, r = np.asarray(centre, dtype=float), np.tanh(radius / 2)
        square = p @ p
        shrink = 1 - square * r * r
        options = {"fill": False, "color": "0.6", "linewidth": 0.9, **options}
        self.axes.add_patch(circles.Circle(p * (1 - r * r) / shrink, r * (1 - square) / shrink, **options))


def poincare_disk(size: float = 6.0, **options: Any) -> tuple[Figure, PoincareDisk]:
    """A new figure of ``size`` inches with a disk in it; ``options`` of :class:`PoincareDisk`.

    Raises:
        HypvisionError: matplotlib is not installed.
    """
    figures = require("matplotlib.figure", "viz")
    figure = figures.Figure(figsize=(size, size), layout="constrained")
    return figure, PoincareDisk(figure.add_subplot(), **options)


def draw_embedding(
    x: Tensor,
    labels: Sequence[int],
    manifold: Manifold,
    classes: Sequence[str] | None = None,
    proxies: Tensor | None = None,
    title: str = "",
) -> Figure:
    """Samples coloured by class, the centre of each class, and the proxies of HIER, in one disk.

    Args:
        x: points ``(N, ...)`` of ``manifold``.
        labels: their classes.
        manifold: where they live.
        classes: names.
        proxies: points of ``manifold``.
        title: above the disk.
    """
    labels = np.asarray(labels)
    parts = [x] if proxies is None else [x, proxies.to(x)]
    xy = to_disk(torch.cat(parts), manifold)
    samples, inner = xy[: len(x)], xy[len(x) :]
    figure, disk = poincare_disk(7.0)
    disk.points(inner, s=14, marker="^", color="0.55", zorder=1)
    disk.points(samples, colours=labels, s=8, alpha=0.5, zorder=2)
    numbers = np.unique(labels)
    centres = np.stack([_middle(samples[labels == n]) for n in numbers])
    names = [str(classes[n]) if classes is not None else str(n) for n in numbers]
    disk.points(centres, colours=numbers, labels=names, s=70, edgecolors="black", linewidths=0.8, zorder=3)
    disk.axes.set_title(title)
    return figure


def _middle(xy: np.ndarray) -> np.ndarray:
    """Gyromidpoint of points of the disk."""
    return poincare.midpoint(torch.from_numpy(xy), None, 1.0).numpy()
