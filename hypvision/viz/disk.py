"""Points, geodesics and circles in the Poincare disk.

    >>> figure, disk = poincare_disk()
    >>> xy = to_disk(points, manifold)  # any dimension: angles by PCA, radii are exact
    >>> disk.points(xy, colours=labels)
    >>> disk.geodesic(xy[0], xy[1])
    >>> figure.savefig("disk.png")

Coordinates ``(N, 2)`` are those of the unit disk with curvature 1: distances there are ``sqrt(c)``
times those on the manifold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hypvision.geometry import Lorentz, Manifold, PoincareBall, lorentz, poincare
from hypvision.io import require

from .palette import label_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Largest radius that is drawn; points beyond it cannot be told from the boundary.
_BOUNDARY = 1 - 1e-6


def to_disk(
    x: Tensor, manifold: Manifold, centre: str | Tensor = "mean", scale: float | None = None
) -> np.ndarray:
    """Return points ``(N, ...)`` of any dimension as coordinates ``(N, 2)`` in the unit disk;
    points of flat space are taken as tangent vectors.

    Points in two dimensions are shown as they are. In more dimensions the tangent vectors at the
    centre are projected onto the plane of their largest variance and given their true length again:
    distances from the centre are exact, angles are not.

    Args:
        x: points of ``manifold``.
        manifold: a ball, a hyperboloid, or flat space.
        centre: the point in the middle: ``"mean"`` (the Lorentz centroid of the points),
            ``"origin"``, or a point.
        scale: factor of all distances from the centre; None: 1, or less if the farthest point would
            otherwise lie beyond the radius 0.95.
    """
    if x.dim() != 2:
        raise ValueError(f"x must be (N, d), got {tuple(x.shape)}.")
    x = to_unit(x, manifold)
    if isinstance(centre, Tensor) or centre == "mean":
        middle = (
            to_unit(centre, manifold)
            if isinstance(centre, Tensor)
            else lorentz.centroid(x, None, 1.0)
        )
        x = lorentz.unboost(middle.expand_as(x), x, 1.0)
    elif centre != "origin":
        raise ValueError(f"centre must be 'mean', 'origin' or a point, got '{centre}'.")
    v = lorentz.logmap0(x, 1.0).numpy()
    length = np.linalg.norm(v, axis=1, keepdims=True)
    v = _in_plane(v, length)
    if scale is None:
        farthest = length.max() if len(length) else 0.0
        scale = min(1.0, 2 * np.arctanh(0.95) / farthest) if farthest > 0 else 1.0
    length = np.maximum(length, 1e-12)
    return v / length * np.minimum(np.tanh(scale * length / 2), _BOUNDARY)


def _in_plane(v: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return vectors ``(N, d)`` projected onto the plane of their largest variance, rescaled to
    their lengths ``(N, 1)``."""
    if v.shape[1] == 1:
        return np.concatenate([v, np.zeros_like(v)], 1)
    if v.shape[1] == 2:
        return v
    _, _, axes = np.linalg.svd(v - v.mean(0), full_matrices=False)
    v = v @ axes[:2].T
    return v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) * length


def to_unit(x: Tensor, manifold: Manifold) -> Tensor:
    """Return points as points of the hyperboloid of curvature 1, in float64."""
    x = x.detach().double().cpu()
    if isinstance(manifold, PoincareBall):
        return poincare.to_lorentz(x, manifold._value()) * manifold._value() ** 0.5
    if isinstance(manifold, Lorentz):
        return x * manifold._value() ** 0.5
    return lorentz.expmap0(x, 1.0)


def geodesic_arc(p: ArrayLike, q: ArrayLike, steps: int = 64) -> np.ndarray:
    """Return points ``(..., steps, 2)`` on geodesic segments between points ``(..., 2)``, evenly
    spaced in hyperbolic length."""
    start, end = (
        torch.as_tensor(np.asarray(points), dtype=torch.float64).unsqueeze(-2) for points in (p, q)
    )
    t = torch.linspace(0, 1, steps, dtype=torch.float64).unsqueeze(1)
    shape = (*start.shape[:-2], steps, 2)
    return poincare.geodesic(t, start.expand(shape), end.expand(shape), 1.0).numpy()


class PoincareDisk:
    """A matplotlib axes with the unit disk and circles around the origin at the hyperbolic
    distances ``grid``. Its methods take coordinates ``(N, 2)`` and pass ``options`` on to
    matplotlib."""

    def __init__(self, axes: Axes, grid: Sequence[float] = (1, 2, 3, 4)):
        self.axes = axes
        axes.set(aspect="equal", xlim=(-1.04, 1.04), ylim=(-1.04, 1.04))
        axes.axis("off")
        circles = require("matplotlib.patches", "viz")
        axes.add_patch(circles.Circle((0, 0), 1.0, fill=False, color="0.3", linewidth=1.2))
        for radius in grid:
            self.circle((0, 0), radius, color="0.9", linewidth=0.7, zorder=0)

    def points(
        self,
        xy: np.ndarray,
        colours: Sequence[int] | None = None,
        labels: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """Draw points; ``colours`` are numbers of colours, ``labels`` texts beside the points, and
        ``options`` go to ``Axes.scatter``."""
        if colours is not None:
            options["c"] = (
                label_colours(int(max(colours, default=0)) + 1)[np.asarray(colours)] / 255
            )
        self.axes.scatter(xy[:, 0], xy[:, 1], **{"s": 12, "linewidths": 0, **options})
        for text, (x, y) in zip(labels or (), xy):
            self.axes.annotate(text, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=8)

    def geodesic(self, p: ArrayLike, q: ArrayLike, **options: Any) -> None:
        """Draw the geodesic segment between two points."""
        arc = geodesic_arc(p, q)
        self.axes.plot(arc[:, 0], arc[:, 1], **{"color": "0.4", "linewidth": 0.9, **options})

    def geodesics(
        self, starts: np.ndarray, ends: np.ndarray, steps: int = 24, **options: Any
    ) -> None:
        """Draw many geodesic segments between points ``(N, 2)`` as one collection; ``options`` go
        to matplotlib's ``LineCollection``."""
        collections = require("matplotlib.collections", "viz")
        options = {"colors": "0.4", "linewidths": 0.9, "zorder": 1, **options}
        self.axes.add_collection(
            collections.LineCollection(geodesic_arc(starts, ends, steps), **options)
        )

    def circle(self, centre: ArrayLike, radius: float, **options: Any) -> None:
        """Draw the points at a hyperbolic distance from a centre: a Euclidean circle with another
        centre."""
        circles = require("matplotlib.patches", "viz")
        p = np.asarray(centre, dtype=float)
        r = np.tanh(radius / 2)
        square = p @ p
        shrink = 1 - square * r * r
        options = {"fill": False, "color": "0.6", "linewidth": 0.9, **options}
        self.axes.add_patch(
            circles.Circle(p * (1 - r * r) / shrink, r * (1 - square) / shrink, **options)
        )


def poincare_disk(size: float = 6.0, **options: Any) -> tuple[Figure, PoincareDisk]:
    """Return a new figure of ``size`` inches and the disk in it; ``options`` go to
    :class:`PoincareDisk`."""
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
    """Draw samples ``(N, ...)`` of ``manifold`` coloured by class, the centre of each class with
    its name, and the proxies of HIER, in one disk."""
    classes_of = np.asarray(labels)
    xy = to_disk(x if proxies is None else torch.cat([x, proxies.to(x)]), manifold)
    samples = xy[: len(x)]
    figure, disk = poincare_disk(7.0)
    disk.points(xy[len(x) :], s=14, marker="^", color="0.55", zorder=1)
    disk.points(samples, colours=labels, s=8, alpha=0.5, zorder=2)
    numbers = np.unique(classes_of).tolist()
    members = (torch.from_numpy(samples[classes_of == n]) for n in numbers)
    centres = np.stack([poincare.midpoint(points, None, 1.0).numpy() for points in members])
    names = [str(n) if classes is None else classes[n] for n in numbers]
    disk.points(
        centres, colours=numbers, labels=names, s=70, edgecolors="black", linewidths=0.8, zorder=3
    )
    disk.axes.set_title(title)
    return figure


def draw_hierarchy(
    x: Tensor,
    manifold: Manifold,
    names: Sequence[str],
    edges: np.ndarray,
    title: str = "",
) -> Figure:
    """Draw a hierarchy in the disk: names as points, edges to parents as geodesics, and each of the
    largest branches in its own colour.

    At most 40 names are written, those with the most descendants first, and none over another;
    WordNet's endings, such as ``.n.01``, are left out. ``edges`` ``(E, 2)`` are rows of ``x``: a
    name and one of its parents, without cycles."""
    xy, shades, sizes, order = places_of_hierarchy(x, manifold, len(names), edges)
    figure, disk = poincare_disk(6.0, grid=())
    disk.geodesics(
        xy[edges[:, 1]], xy[edges[:, 0]], colors=shades[edges[:, 0]], linewidths=0.4, alpha=0.6
    )
    disk.points(xy, c=shades, s=4 + 3 * np.sqrt(sizes), zorder=2)
    disk.axes.set_title(title)
    _write_apart(figure, disk.axes, xy, list(map(plain_name, names)), order, shades)
    return figure


class HierarchyPlaces(NamedTuple):
    """Places and colours of the names of a hierarchy: coordinates ``xy`` ``(N, 2)`` in the disk,
    colours ``shades`` ``(N, 3)`` from 0 to 1, ``sizes``, how many names are below each, and
    ``order``, in which names should be written: the top, its branches, the rest."""

    xy: np.ndarray
    shades: np.ndarray
    sizes: np.ndarray
    order: list[int]


def places_of_hierarchy(
    x: Tensor, manifold: Manifold, count: int, edges: np.ndarray
) -> HierarchyPlaces:
    """Return the places of ``count`` names, with the root that has the most names below it in the
    middle; the arguments are those of :func:`draw_hierarchy`."""
    below = _names_below(count, edges)
    sizes = np.array([len(found) for found in below])
    roots = np.setdiff1d(np.arange(count), edges[:, 0])
    top = roots[sizes[roots].argmax()]
    colours = np.full(count, -1)
    chosen = _branches(top, below, edges)
    for number, branch in enumerate(sorted(chosen, key=lambda name: -sizes[name])):
        colours[[branch, *below[branch]]] = number
    shades = np.concatenate([label_colours(len(chosen)) / 255, [[0.6, 0.6, 0.6]]])[colours]
    order = sorted(range(count), key=lambda name: (name != top, name not in chosen, -sizes[name]))
    return HierarchyPlaces(to_disk(x, manifold, centre=x[top]), shades, sizes, order)


def plain_name(name: str) -> str:
    """Return a name without WordNet's ending, such as ``.n.01``, and with spaces for
    underscores."""
    return re.sub(r"\.[a-z]\.\d+$", "", name).replace("_", " ")


def _names_below(count: int, edges: np.ndarray) -> list[set[int]]:
    """Return, for each name, the set of all names below it."""
    below: list[set[int]] = [set() for _ in range(count)]
    for name, parent in edges.tolist():
        below[parent].add(name)
    # static_order yields children before their parents.
    for name in TopologicalSorter(dict(enumerate(below))).static_order():
        below[name] |= set().union(*(below[child] for child in below[name]))
    return below


def _branches(top: int, below: Sequence[set[int]], edges: np.ndarray) -> set[int]:
    """Return names under ``top`` that together have nearly all others below them: beginning with
    ``top``, the largest is divided into its children until there are eight."""
    found = {int(top)}
    while len(found) < 8:
        largest = max(found, key=lambda name: len(below[name]))
        children = {
            int(name)
            for name in edges[edges[:, 1] == largest, 0]
            if len(below[name]) > len(below[top]) / 100
        }
        if not children:
            break
        found = (found - {largest}) | children
    # Drop names that lie below another found name, because its branch contains them.
    return {name for name in found if not any(name in below[other] for other in found)}


def _write_apart(
    figure: Figure,
    axes: Axes,
    xy: np.ndarray,
    names: Sequence[str],
    order: Sequence[int],
    shades: np.ndarray,
) -> None:
    """Write names above or below their points in the given order, leaving out names that would
    cover an earlier one."""
    backend = require("matplotlib.backends.backend_agg", "viz")
    effects = require("matplotlib.patheffects", "viz")
    halo = [effects.withStroke(linewidth=2.5, foreground="white")]
    backend.FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    taken: list[Any] = []
    for row in order:
        if len(taken) == 40:
            break
        for shift, side in ((5, "baseline"), (-5, "top")):  # above the point, else below it
            text = axes.annotate(
                names[row], xy[row], xytext=(0, shift), textcoords="offset points", ha="center",
                va=side, fontsize=9, color=0.6 * shades[row], path_effects=halo, zorder=4,
            )  # fmt: skip
            place = text.get_window_extent().padded(2)
            if not any(place.overlaps(other) for other in taken):
                taken.append(place)
                break
            text.remove()
