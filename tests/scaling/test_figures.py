"""What figures show of a sweep's rows."""

import pytest

pytestmark = pytest.mark.drawn
pyplot = pytest.importorskip("matplotlib.pyplot")

from hypvision.scaling.figures import (  # noqa: E402
    alpha_decay_map,
    draw_panels,
    draw_sweep,
    means,
    r2_bars,
)
from hypvision.scaling.fits import exponents  # noqa: E402


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
    assert means(one, "m", "loss") == ([4, 8], [3.0, 2.0], [0.0, 0.3])
    assert means(one, "m", "phi_half") == ([4, 8], [1.0, 0.5], [0.0, 0.0])
    two = [*one, dict(m=8, loss=4.0, loss_std=0.3, phi_half=0.5)]
    assert means(two, "m", "loss")[2] == [0.0, pytest.approx(2**0.5)]


def test_numbers_on_light_cells_are_dark(axis):
    alpha_decay_map(axis, {(0.0, -1.0): 0.1, (0.0, 1.0): 2.0}, "exponent")
    assert {text.get_text(): text.get_color() for text in axis.texts} == {"0.10": "w", "2.00": "k"}


def test_r2_has_a_bar_for_each_decay(axis):
    rows = [row(m=m, loss=9 / m, alpha=alpha) for m in (8, 16, 32) for alpha in (0.0, 1.0)]
    bent = [row(m=m, loss=loss, decay=0.5, alpha=alpha)
            for alpha, losses in ((0.0, (4, 2, 1)), (1.0, (4, 1, 4)), (2.0, (2, 2, 2)))
            for m, loss in zip((8, 16, 32), losses)]  # fmt: skip
    assert r2_bars(axis, exponents(rows + bent)) is None
    assert [bar.get_height() for bar in axis.patches] == pytest.approx(
        [1, 0.5]
    )  # a line, none; constants have no R2
    ends = axis.collections[0].get_segments()
    assert ends[1][:, 1].tolist() == pytest.approx([0, 1])


@pytest.mark.slow
def test_a_sweep_has_lines_for_its_frequencies_or_maps_of_several(tmp_path, monkeypatch):
    from hypvision.scaling import figures

    drawn = []

    def kept(name, panels, title, folder):
        drawn.append([panel.func.__name__ for panel in panels])
        return draw_panels(name, panels, title, folder)

    monkeypatch.setattr(figures, "draw_panels", kept)
    rows = [
        row(m=m, loss=9 / m, alpha=alpha, decay=decay, phi_half=1.0)
        for m in (8, 16, 32)
        for alpha in (0.0, 1.0, 2.0)
        for decay in (-1.0, 0.5)
    ]
    one = [row for row in rows if row["alpha"] == 1]
    for part in (one, rows):
        paths = draw_sweep(part, exponents(part), tmp_path)
        assert [path.name for path in paths] == ["sweep.png", "sweep.pdf"]
    assert drawn == [["loss_by_decay", "represented_by_width"], ["r2_bars", "exponent_map"]]
