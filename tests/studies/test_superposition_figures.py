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
