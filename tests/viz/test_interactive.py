"""The disk of plotly shows what that of matplotlib shows."""

import numpy as np
import pytest
import torch

pytest.importorskip("plotly")
from hypvision.geometry import Lorentz
from hypvision.viz.disk import places_of_hierarchy
from hypvision.viz.interactive import interactive_hierarchy

SPACE = Lorentz(1.0)
NAMES = ["root.n.01", "left_one.n.02", "right", "leaf", "<i>"]
EDGES = np.array([[1, 0], [2, 0], [3, 1], [4, 1]])


@pytest.fixture
def points():
    u = torch.tensor([[0, 0], [1, 0], [-1, 0.2], [2, 0.5], [2, -0.5]], dtype=torch.float64)
    return SPACE.expmap0(u)


def test_points_names_and_geodesics(points):
    figure = interactive_hierarchy(points, SPACE, NAMES, EDGES, title="<b>")
    *lines, dots = figure.data
    xy = places_of_hierarchy(points, SPACE, len(NAMES), EDGES).xy
    np.testing.assert_allclose(np.stack([dots.x, dots.y], 1), xy)
    assert dots.hovertext[3] == "<b>leaf</b><br>below left one<br>above 0 names"
    assert dots.hovertext[0] == "<b>root</b><br>below nothing<br>above 4 names"
    assert (
        dots.hovertext[4].startswith("<b>&lt;i&gt;</b>") and figure.layout.title.text == "&lt;b&gt;"
    )
    drawn = np.concatenate([np.stack([line.x, line.y], 1) for line in lines])
    assert np.isnan(drawn).all(1).sum() == len(EDGES)  # a gap after each
    for name, parent in EDGES:
        assert all(
            np.abs(drawn - xy[end]).sum(1).min(initial=9, where=~np.isnan(drawn).any(1)) < 1e-9
            for end in (name, parent)
        )


def test_names_are_not_written_on_each_other(points):
    close = SPACE.expmap0(1e-3 * torch.randn(5, 2, dtype=torch.float64))
    figure = interactive_hierarchy(close, SPACE, NAMES, EDGES)
    # the picture is not enlarged, and so there is room above and below the point alone
    dots = figure.data[-1]
    written = {
        text: place for text, place in zip(dots.text, dots.textposition, strict=True) if text
    }
    assert written == {"<b>root</b>": "top center", "<b>right</b>": "bottom center"}
    few = interactive_hierarchy(points, SPACE, NAMES, EDGES, labels=2)
    assert sum(bool(text) for text in few.data[-1].text) == 2
