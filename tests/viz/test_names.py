"""Names of classes, files and texts are drawn as they are, whatever is in them."""

import pytest
import torch
from helpers.cases import each

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from hypvision.viz.evaluation import to_image
from hypvision.viz.radii import draw_radii
from hypvision.viz.sheet import save_figure

NAMES = ["$5 and $6", r"a\frac{$ $", r"$\unknown$", "\udcff", "a\x1b[2J", "x_{"]


@each("name", NAMES)
def test_no_name_is_a_formula(name):
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.set_xticks([0, 1], [name, "b"])
    axes.plot([0, 1], label=name)
    axes.set_title(name)
    axes.legend()
    assert to_image(figure).size > (100, 100)
    shown = [
        axes.get_title(),
        axes.get_legend().get_texts()[0].get_text(),
        axes.get_xticklabels()[0].get_text(),
    ]
    assert len({*shown}) == 1 and shown[0].encode() and (shown[0] == name or "\\" in shown[0])


def test_radii_of_any_names_are_drawn(tmp_path):
    draw_radii({name: torch.rand(30) for name in NAMES}, {}, tmp_path / "b.png")


def test_numbers_of_an_axis_stay(tmp_path):
    """Those of a logarithmic one are formulas of matplotlib's own."""
    figure = Figure()
    axes = figure.subplots()
    axes.loglog([1e-3, 1], [1, 10])
    save_figure(figure, tmp_path / "a.png", dpi=50)
    assert all(label.get_parse_math() for label in axes.get_xticklabels())
    assert not axes.title.get_parse_math()
