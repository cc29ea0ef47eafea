"""What figures show of a sweep's rows."""

import pytest
import torch

from hypvision.scaling.fits import JointFit
from hypvision.scaling.measures import represented

pytestmark = pytest.mark.drawn
pyplot = pytest.importorskip("matplotlib.pyplot")

from hypvision.scaling.figures import (  # noqa: E402
    _figure,
    _frequencies_and_norms,
    _grid,
    _language_models,
    _means,
    _r2_bars,
    draw,
)  # fmt: skip


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


def test_error_bars_are_over_replicates_or_over_test_batches():
    one = [
        dict(m=8, loss=2.0, loss_std=0.3, phi_half=0.5),
        dict(m=4, loss=3.0, loss_std=None, phi_half=1.0),
    ]
    assert _means(one, "m", "loss") == ([4, 8], [3.0, 2.0], [0.0, 0.3])
    assert _means(one, "m", "phi_half") == ([4, 8], [1.0, 0.5], [0.0, 0.0])
    two = [*one, dict(m=8, loss=4.0, loss_std=0.3, phi_half=0.5)]
    assert _means(two, "m", "loss")[2] == [0.0, pytest.approx(2**0.5)]


@pytest.mark.slow
def test_panels_stand_in_rows_of_two(tmp_path):
    """A figure of five beside each other has letters that cannot be read on a page."""
    sizes = {}
    for count in (1, 2, 5):
        path = _figure(f"of{count}", [lambda axis: axis.plot([0, 1])] * count, "", tmp_path)[0]
        sizes[count] = pyplot.imread(path).shape[:2]
    (high, wide), two, five = sizes.values()
    assert two == (high, 2 * wide) and five == (3 * high, 2 * wide)


def test_numbers_on_light_cells_are_dark(axis):
    _grid(axis, {(0.0, -1.0): 0.1, (0.0, 1.0): 2.0}, "exponent")
    assert {text.get_text(): text.get_color() for text in axis.texts} == {"0.10": "w", "2.00": "k"}


def test_r2_has_a_bar_for_each_decay(axis):
    rows = [row(m=m, loss=9 / m, alpha=alpha) for m in (8, 16, 32) for alpha in (0.0, 1.0)]
    bent = [row(m=m, loss=loss, decay=0.5, alpha=alpha)
            for alpha, losses in ((0.0, (4, 2, 1)), (1.0, (4, 1, 4)), (2.0, (2, 2, 2)))
            for m, loss in zip((8, 16, 32), losses)]  # fmt: skip
    assert _r2_bars(axis, rows + bent, None, 8) is None
    assert [bar.get_height() for bar in axis.patches] == pytest.approx(
        [1, 0.5]
    )  # a line, none; constants have no R2
    ends = axis.collections[0].get_segments()
    assert ends[1][:, 1].tolist() == pytest.approx([0, 1])


def test_frequencies_and_norms_are_those_of_figure_3(axis):
    rows = [row(decay=decay, alpha=alpha) for decay in (-1.0, 0.1, 1.0) for alpha in (0.0, 1.0)]
    weights = {
        -1.0: torch.eye(100)[:, :8] + torch.eye(100)[:, 8:16],
        1.0: 2 * torch.eye(100)[:, :8],
    }
    assert _frequencies_and_norms(axis, rows, lambda row: weights[row["decay"]], 8) is None
    flat, harmonic = axis.lines
    assert flat.get_ydata() == pytest.approx([0.01] * 100)
    assert harmonic.get_ydata()[0] / harmonic.get_ydata()[9] == pytest.approx(10)
    (inset,) = axis.child_axes
    long = sum(bar.get_height() for bar in inset.patches if bar.get_x() > 0.5)
    assert long == 16 + 8 == sum(100 * represented(weight) for weight in weights.values())


@pytest.mark.slow
def test_language_models_stand_beside_the_strong_models_of_figure_1(axis, tmp_path):
    _language_models(axis, [], None)
    (line,) = axis.lines
    assert line.get_xdata()[0] == 512 and line.get_ydata()[0] == pytest.approx(476.08 / 512**0.9098)
    fit = JointFit(0.9, 0.1, 100.0, {"A/x": 2.0, "B/x": 1.0}, 0.0, 6)
    losses = [
        dict(family=f, dataset="x", m="64", loss=str(loss)) for f, loss in (("A", 2.5), ("B", 1.75))
    ]
    _language_models(axis, losses, fit)
    assert [points.get_offsets().tolist() for points in axis.collections] == [
        [[64, 0.5]],
        [[64, 0.75]],
    ]
    rows = [
        row(m=m, loss=9 / m, distribution="linear", decay=decay)
        for m in (8, 16, 32)
        for decay in (-1.0, 0.1)
    ]
    assert [path.name for path in draw("fig1", rows, tmp_path, None, losses, fit)] == [
        "fig1.png",
        "fig1.pdf",
    ]
