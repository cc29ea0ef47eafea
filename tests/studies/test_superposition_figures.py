"""What the paper's figures show of a sweep's rows."""

import pytest
import torch

from hypvision.scaling.fits import JointFit
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


@pytest.mark.slow
def test_language_models_stand_beside_the_strong_models_of_figure_1(axis, tmp_path):
    figures._language_models(axis, [], None)
    (line,) = axis.lines
    assert line.get_xdata()[0] == 512 and line.get_ydata()[0] == pytest.approx(476.08 / 512**0.9098)
    fit = JointFit(0.9, 0.1, 100.0, {"A/x": 2.0, "B/x": 1.0}, 0.0, 6)
    losses = [
        dict(family=f, dataset="x", m="64", loss=str(loss)) for f, loss in (("A", 2.5), ("B", 1.75))
    ]
    figures._language_models(axis, losses, fit)
    assert [points.get_offsets().tolist() for points in axis.collections] == [
        [[64, 0.5]],
        [[64, 0.75]],
    ]
    rows = [
        row(m=m, loss=9 / m, distribution="linear", decay=decay)
        for m in (8, 16, 32)
        for decay in (-1.0, 0.1)
    ]
    assert [path.name for path in figures.draw("fig1", rows, tmp_path, None, losses, fit)] == [
        "fig1.png",
        "fig1.pdf",
    ]
