"""Trees of an embedding: average linkage, cophenetic distances, and their drawing. Needs SciPy.

A hierarchy is recovered if the distances of an embedding grow with the height at which the true
tree joins two classes; the cophenetic correlation says how closely (Sokal and Rohlf, 1962).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from hypvision.io import require
from hypvision.io.images import to_rgb

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image


def _pairs(distances: np.ndarray) -> np.ndarray:
    """Return the distances above the diagonal of a matrix, row by row."""
    return cast(np.ndarray, np.asarray(distances, dtype=float)[np.triu_indices(len(distances), 1)])


def average_linkage(distances: np.ndarray) -> np.ndarray:
    """Cluster by average linkage (UPGMA) a symmetric matrix of distances ``(N, N)``, N >= 2.

    Returns SciPy's linkage ``(N - 1, 4)``, sorted by distance: the two clusters that each step
    joins (the cluster made in step ``i`` has the number ``N + i``), their distance, and the number
    of leaves of the new cluster."""
    d = np.array(distances, dtype=float)
    square = d.ndim == 2 and d.shape[0] == d.shape[1] > 1
    if not square or not np.isfinite(d).all() or not np.allclose(d, d.T, atol=1e-6):
        raise ValueError(
            f"distances must be a symmetric finite matrix (N, N) with N >= 2, got shape {d.shape}."
        )
    return cast(np.ndarray, require("scipy.cluster.hierarchy", "viz").linkage(_pairs(d), "average"))


def cophenetic_distances(linkage: np.ndarray) -> np.ndarray:
    """Return the heights at which each two leaves are joined, ``(N, N)``."""
    squareform = require("scipy.spatial.distance", "viz").squareform
    return cast(np.ndarray, squareform(require("scipy.cluster.hierarchy", "viz").cophenet(linkage)))


def dendrogram_purity(linkage: np.ndarray, groups: Sequence[int]) -> float:
    """Return how well groups of leaves keep together in a tree (Heller and Ghahramani, ICML 2005),
    for a ``linkage`` of N leaves by :func:`average_linkage` and the group of each leaf, numbers
    from 0.

    For each pair of leaves of one group, take the share of this group among the leaves below the
    node that joins the pair; the purity is the mean over all pairs: 1 if each group is a sub-tree,
    NaN if each leaf is its own group.
    """
    counts = list(np.eye(max(groups) + 1)[np.asarray(groups)])
    pure = pairs = 0.0
    for a, b, _, leaves in linkage:
        first = counts[int(a)]
        second = counts[int(b)]
        counts.append(first + second)
        joined = first * second
        pairs += joined.sum()
        pure += joined @ counts[-1] / leaves
    return float(pure / pairs) if pairs else float("nan")


def cophenetic_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation of two distance matrices ``(N, N)`` over all pairs; NaN if one
    of them is constant, as for a single pair."""
    if len(first) < 3:
        return float("nan")
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(_pairs(first), _pairs(second))[0, 1])


def draw_tree(
    linkage: np.ndarray,
    labels: Sequence[str],
    colours: Sequence[str] | None = None,
    leaf_images: Sequence[Image.Image] | None = None,
    title: str = "",
) -> Figure:
    """Return a figure of the dendrogram of an :func:`average_linkage`, with the leaves at the
    right: their names in ``colours``, and small images beside them."""
    count = len(linkage) + 1
    if len(labels) != count:
        raise ValueError(f"A tree with {count} leaves needs {count} labels, got {len(labels)}.")
    height = max(2.0, 0.7 + count * (0.5 if leaf_images else 0.22))
    figure: Figure = require("matplotlib.figure", "viz").Figure(
        figsize=(7, height), layout="constrained"
    )
    axes = figure.add_subplot()
    tree = require("scipy.cluster.hierarchy", "viz").dendrogram(
        linkage, orientation="left", labels=labels, color_threshold=0, above_threshold_color="0.3",
        leaf_font_size=9, ax=axes,
    )  # fmt: skip
    axes.tick_params(axis="y", pad=26 if leaf_images else 4)
    for text, place, leaf in zip(axes.get_yticklabels(), axes.get_yticks(), tree["leaves"]):
        if colours is not None:
            text.set_color(colours[leaf])
        if leaf_images:
            boxes = require("matplotlib.offsetbox", "viz")
            image = boxes.OffsetImage(
                np.asarray(to_rgb(leaf_images[leaf]).resize((32, 32))), zoom=0.75
            )
            beside = dict(
                xycoords="data", boxcoords="offset points", frameon=False, annotation_clip=False
            )
            axes.add_artist(boxes.AnnotationBbox(image, (0, place), xybox=(14, 0), **beside))
    axes.set_xlabel("distance")
    axes.set_title(title)
    axes.spines[["left", "right", "top"]].set_visible(False)
    return figure
