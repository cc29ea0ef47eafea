"""Trees that an embedding implies: average linkage, cophenetic distances, and their image.

A hierarchy is recovered if the distances of an embedding grow with the height at which the true tree joins two classes;
the cophenetic correlation says how closely (Sokal and Rohlf, 1962).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hypvision.errors import require
from hypvision.images import to_rgb

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

__all__ = [
    "average_linkage",
    "cophenetic_correlation",
    "cophenetic_distances",
    "dendrogram_purity",
    "draw_tree",
    "leaf_order",
]


def average_linkage(distances: np.ndarray) -> np.ndarray:
    """Agglomerative clustering by mean distance (UPGMA), by chains of nearest neighbours in ``O(N^2)``.

    Args:
        distances: symmetric ``(N, N)``.

    Returns:
        ``(N - 1, 4)``, as SciPy's: the two clusters that a step joins (clusters made in step ``i`` have the number
        ``N + i``), their distance, and the number of leaves; sorted by distance.

    Raises:
        ValueError: the matrix is not square, symmetric and finite.
    """
    d = np.array(distances, dtype=float)
    if d.ndim != 2 or d.shape[0] != d.shape[1] or not np.isfinite(d).all() or not np.allclose(d, d.T, atol=1e-6):
        raise ValueError(f"distances must be a symmetric finite matrix (N, N), got shape {d.shape}.")
    count = len(d)
    np.fill_diagonal(d, np.inf)
    size, alive, chain, steps = np.ones(count), np.ones(count, dtype=bool), [], []
    while len(steps) < count - 1:
        if not chain:
            chain = [int(np.flatnonzero(alive)[0])]
        while True:
            last = chain[-1]
            row = np.where(alive, d[last], np.inf)
            near = int(row.argmin())
            if len(chain) > 1 and row[chain[-2]] <= row[near]:
                near = chain[-2]
            if len(chain) > 1 and near == chain[-2]:
                break
            chain.append(near)
        a, b = chain.pop(), chain.pop()
        steps.append((a, b, d[a, b]))
        joined = (size[a] * d[a] + size[b] * d[b]) / (size[a] + size[b])
        size[a] += size[b]
        alive[b] = False
        d[a], d[:, a] = joined, joined
        d[a, a] = np.inf
        d[b], d[:, b] = np.inf, np.inf
    # Chains find the joins in another order than by height; renumber them.
    steps.sort(key=lambda step: step[2])
    parent, name, leaves, out = list(range(count)), list(range(count)), [1] * count, []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for number, (a, b, height) in enumerate(steps):
        a, b = root(a), root(b)
        out.append((*sorted((name[a], name[b])), height, leaves[a] + leaves[b]))
        parent[b], leaves[a], name[a] = a, leaves[a] + leaves[b], count + number
    return np.array(out, dtype=float).reshape(-1, 4)


def _members(linkage: np.ndarray) -> list[list[int]]:
    members = [[i] for i in range(len(linkage) + 1)]
    for a, b, _, _ in linkage:
        members.append(members[int(a)] + members[int(b)])
    return members


def leaf_order(linkage: np.ndarray) -> list[int]:
    """The leaves from one end of the tree to the other."""
    return _members(linkage)[-1]


def cophenetic_distances(linkage: np.ndarray) -> np.ndarray:
    """The height at which two leaves are joined, ``(N, N)``."""
    count = len(linkage) + 1
    out = np.zeros((count, count))
    members = _members(linkage)
    for a, b, height, _ in linkage:
        first, second = members[int(a)], members[int(b)]
        out[np.ix_(first, second)] = height
        out[np.ix_(second, first)] = height
    return out


def dendrogram_purity(linkage: np.ndarray, groups: Sequence[int]) -> float:
    """How well groups of leaves keep together in a tree (Heller and Ghahramani, ICML 2005).

    Over all pairs of leaves of one group, the mean share of that group among the leaves below the node that joins them:
    1 if each group is a sub-tree; NaN if each leaf is a group of its own.

    Args:
        linkage: of N leaves, see :func:`average_linkage`.
        groups: the group of each leaf, numbers from 0.
    """
    counts = list(np.eye(max(groups) + 1)[np.asarray(groups)])
    pure = pairs = 0.0
    for a, b, _, leaves in linkage:
        first, second = counts[int(a)], counts[int(b)]
        counts.append(first + second)
        joined = first * second
        pairs += joined.sum()
        pure += joined @ counts[-1] / leaves
    return float(pure / pairs) if pairs else float("nan")


def cophenetic_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's correlation of two distance matrices ``(N, N)`` over all pairs; NaN if one of them is constant."""
    above = np.triu_indices(len(first), 1)
    a, b = np.asarray(first, dtype=float)[above], np.asarray(second, dtype=float)[above]
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def draw_tree(
    linkage: np.ndarray,
    labels: Sequence[str],
    colours: Sequence[str] | None = None,
    leaf_images: Sequence[Image.Image] | None = None,
    title: str = "",
    axes: Axes | None = None,
) -> Figure:
    """A dendrogram, leaves at the right.

    Args:
        linkage: of :func:`average_linkage`.
        labels: the leaves' names; "" for none.
        colours: of the names.
        leaf_images: a small image for each leaf.
        title: above the tree.
        axes: where to draw; a new figure without.

    Raises:
        HypvisionError: matplotlib is not installed.
        ValueError: the numbers of leaves and labels differ.
    """
    count = len(linkage) + 1
    if len(labels) != count:
        raise ValueError(f"A tree with {count} leaves needs {count} labels, got {len(labels)}.")
    if axes is None:
        figures = require("matplotlib.figure", "viz")
        figure = figures.Figure(
            figsize=(7, max(2.0, 0.7 + count * (0.5 if leaf_images else 0.22))), layout="constrained"
        )
        axes = figure.add_subplot()
    place = {leaf: float(i) for i, leaf in enumerate(leaf_order(linkage))}
    height = dict.fromkeys(range(count), 0.0)
    for number, (a, b, level, _) in enumerate(linkage, start=count):
        a, b = int(a), int(b)
        axes.plot(
            [height[a], level, level, height[b]], [place[a], place[a], place[b], place[b]], color="0.3", linewidth=1.1
        )
        place[number], height[number] = (place[a] + place[b]) / 2, level
    top = float(linkage[-1, 2]) if len(linkage) else 1.0
    shift = 0.09 if leaf_images else 0.015
    for leaf in range(count):
        axes.text(
            -shift * top, place[leaf], labels[leaf], va="center", fontsize=9,
            color=colours[leaf] if colours is not None else "black",
        )  # fmt: skip
    if leaf_images:
        boxes = require("matplotlib.offsetbox", "viz")
        for leaf, leaf_image in enumerate(leaf_images):
            image = boxes.OffsetImage(np.asarray(to_rgb(leaf_image).resize((32, 32))), zoom=0.75)
            axes.add_artist(boxes.AnnotationBbox(image, (-0.045 * top, place[leaf]), frameon=False))
    axes.set_xlim(1.05 * top, -0.45 * top)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1.05 * top])  # names stand at the negative ones
    axes.set_ylim(-0.7, count - 0.3)
    axes.set_yticks([])
    axes.set_xlabel("distance")
    axes.set_title(title)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    return axes.figure
