"""An interactive figure of a hierarchy in the Poincare disk: the mouse zooms and moves it and shows
names. It needs plotly."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from hypvision.geometry import Manifold
from hypvision.io import require

from .disk import geodesic_arc, places_of_hierarchy, plain_name
from .overlay import Box, is_free
from .palette import css

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_STEPS = 16  # number of points of an arc
# Width of a character and height of a line, in units of the disk's radius.
_LETTER = 0.022
_LINE = 0.055


def interactive_hierarchy(
    x: Tensor,
    manifold: Manifold,
    names: Sequence[str],
    edges: np.ndarray,
    labels: int = 60,
    title: str = "",
) -> Figure:
    """Return the drawing of :func:`~hypvision.viz.disk.draw_hierarchy` as a plotly figure, in which
    the mouse shows names and parents. At most ``labels`` names are written; the other arguments are
    those of ``draw_hierarchy``."""
    graphs = require("plotly.graph_objects", "app")
    xy, shades, sizes, order = places_of_hierarchy(x, manifold, len(names), edges)
    shown = list(map(html.escape, map(plain_name, names)))
    figure = graphs.Figure()
    arcs = geodesic_arc(xy[edges[:, 1]], xy[edges[:, 0]], _STEPS)
    for shade in np.unique(shades, axis=0):  # one plotly trace for all lines of one colour
        lines = arcs[(shades[edges[:, 0]] == shade).all(1)]
        gaps = np.concatenate([lines, np.full((len(lines), 1, 2), np.nan)], 1).reshape(-1, 2)
        style = dict(color=css(shade), width=1)
        figure.add_scatter(
            x=gaps[:, 0], y=gaps[:, 1], mode="lines", line=style, opacity=0.6, hoverinfo="skip"
        )
    parents: list[list[str]] = [[] for _ in names]
    for name, parent in edges.tolist():
        parents[name].append(shown[parent])
    about = [
        f"<b>{name}</b><br>below {', '.join(above) or 'nothing'}<br>above {size} names"
        for name, above, size in zip(shown, parents, sizes.tolist())
    ]
    written = _written(xy, list(map(plain_name, names)), order, labels)
    dots = dict(
        size=5 + 1.5 * np.sqrt(sizes), color=[css(shade) for shade in shades], line=dict(width=0)
    )
    texts = [f"<b>{name}</b>" if place else "" for name, place in zip(shown, written)]
    figure.add_scatter(
        x=xy[:, 0],
        y=xy[:, 1],
        mode="markers+text",
        marker=dots,
        text=texts,
        textposition=np.where(written == "", "top center", written),
        textfont=dict(size=11, color=[css(0.6 * shade) for shade in shades]),
        hovertext=about,
        hoverinfo="text",
    )
    figure.add_shape(type="circle", x0=-1, y0=-1, x1=1, y1=1, line=dict(color="#555", width=1.5))
    axis = dict(visible=False, range=[-1.05, 1.05])
    figure.update_layout(
        xaxis=axis,
        yaxis=dict(axis, scaleanchor="x"),
        showlegend=False,
        plot_bgcolor="white",
        paper_bgcolor="white",
        height=720,
        margin=dict(l=10, r=10, t=40, b=10),
        dragmode="pan",
        hovermode="closest",
        title=dict(text=html.escape(title), font=dict(size=14, color="#333"), x=0.5),
    )
    return figure


def _written(xy: np.ndarray, names: Sequence[str], order: Sequence[int], count: int) -> np.ndarray:
    """Return where each name is written, at most the first ``count`` in ``order``: above its point,
    or below it where an earlier name is in the way; an empty text for the others."""
    found = np.full(len(names), "", dtype="U13")
    taken: list[Box] = []
    for row in order:
        if len(taken) == count:
            break
        half = _LETTER * len(names[row]) / 2
        x, y = xy[row]
        for position, bottom in (("top center", y), ("bottom center", y - _LINE)):
            box = (x - half, bottom, x + half, bottom + _LINE)
            if is_free(box, taken):
                taken.append(box)
                found[row] = position
                break
    return found
