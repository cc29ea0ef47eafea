"""What the paper's figures show of a sweep's rows."""

import pytest
import torch

from hypvision.scaling.measures import represented

pytestmark = pytest.mark.drawn
pyplot = pytest.importorskip("matplotlib.pyplot")

from superposition import figures  # noqa: E402


@pytest.fixture
def axis():
    figure, axis = pyplot.subplots()
    yield axis
    pyplot.close(figure)


def row(**values):
    known = dict(
        distribution="power", alpha=1.0, density=0.0, decay=-1.0, m=8, replicate=0, n=100, loss=1.0
    )
    return known | dict(loss_std=0.1, shortened="") | values


def test_frequencies_and_norms_are_those_of_figure_3(axis):
    rows = [row(decay=decay, alpha=alpha) for decay in (-1.0, 0.1, 1.0) for alpha in (0.0, 1.0)]
    weights = {
        -1.0: torch.eye(100)[:, :8] + torch.eye(100)[:, 8:16],
        1.0: 2 * torch.eye(100)[:, :8],
    }
    assert figures._frequencies_and_norms(axis, rows, lambda row: weights[row["decay"]], 8) is None
    flat, harmonic = axis.lines
    assert flat.get_ydata() == pytest.approx([0.01] * 100)
    assert harmonic.get_ydata()[0] / harmonic.get_ydata()[9] == pytest.approx(10)
    (inset,) = axis.child_axes
    long = sum(bar.get_height() for bar in inset.patches if bar.get_x() > 0.5)
    assert long == 16 + 8 == sum(100 * represented(weight) for weight in weights.values())


def test_lines_and_markers_are_named(axis):
    rows = [row(alpha=alpha, decay=decay, x=0.5) for alpha in (0.0, 1.0) for decay in (0.3, 1.0)]
    figures._loss_against(axis, rows, "x", "x")
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == ["γ 0.3", "γ 1", "α 0", "α 1", "both equal"]
    flat, harmonic = axis.collections[:2]
    assert len(flat.get_paths()[0].vertices) != len(harmonic.get_paths()[0].vertices)


def test_kept_rows_draw_a_figure_without_its_panels_of_weights(tmp_path, monkeypatch):
    rows = [row(m=m, phi_half=0.5, density=0.0) for m in (4, 8)]
    drawn = []
    monkeypatch.setattr(figures, "draw_panels", lambda name, panels, *_: drawn.extend(panels))
    figures.draw("fig3", rows, tmp_path)
    shown = [panel.func for panel in drawn]
    assert shown == [figures._represented_by_decay, figures._represented_map]
