"""Figures of radii: names beside dots, levels beside each other, walks."""

import pytest
import torch

pytest.importorskip("matplotlib")
from hypvision.viz import radii
from hypvision.viz.radii import draw_levels, draw_radii, draw_walks


def test_names_of_equal_radii_do_not_cover_each_other(tmp_path, monkeypatch):
    """Ten texts at nearly one radius and long names beside them: no two boxes of labels meet."""
    figures = []
    monkeypatch.setattr(radii, "save_figure", lambda figure, *_, **__: figures.append(figure))
    values = {
        "images": torch.tensor([0.5, 0.5]),
        "texts": torch.tensor([0.7] * 5 + [0.7001] * 4 + [0.2]),
        "gallery": torch.tensor([0.7]),
    }
    named = {name: [f"{name} of a long name {n}" for n in range(10)] for name in values}
    draw_radii(values, {}, tmp_path / "radii.png", "distance", named)
    [figure] = figures
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 13
    for number, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_long_names_of_columns_and_values_without_a_place(tmp_path, monkeypatch, value):
    """Names of columns are wrapped, and what is not finite is left out with its name."""
    figures = []
    monkeypatch.setattr(radii, "save_figure", lambda figure, *_, **__: figures.append(figure))
    names = ["text a tiger, a lion, a brown bear", f"text /{'long/' * 14}words.txt", "text apple"]
    values = {name: torch.tensor([0.5, value, 0.7]) for name in names}
    draw_radii(values, {}, tmp_path / "radii.png", "radius", {names[0]: ["one", "two", "three"]})
    draw_radii({"a": torch.tensor([value])}, {}, tmp_path / "none.png")
    figure = figures[0]
    figure.draw_without_rendering()
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.texts] == ["three", "one"]
    boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
    assert len(boxes) == 3
    for number, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_each_level_has_an_axis_of_its_own_and_all_have_the_same_bins(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(radii, "save_figure", lambda figure, *_, **__: figures.append(figure))
    values = torch.tensor([[0.1, 0.5, 0.9], [0.1, 0.6, 1.0]])
    draw_levels({"before": values, "after": 2 * values}, tmp_path / "levels.png")
    [figure] = figures
    assert len(figure.axes) == 6
    widths = set()
    for axis in figure.axes:
        assert sum(bar.get_height() for bar in axis.patches) == 2
        widths |= {round(bar.get_width(), 6) for bar in axis.patches}
    assert len(widths) == 1
    medians = [float(axis.lines[0].get_xdata()[0]) for axis in figure.axes]
    assert medians[:2] == pytest.approx([0.1, 0.2])


def test_texts_of_a_walk_stay_in_their_panels():
    walk = [("face with bags under eyes: bored, exhausted, fatigued, sleepy", 0.5, 0.63)]
    figure = draw_walks("grinning face", {"before": walk, "after": walk})
    figure.draw_without_rendering()
    for axis in figure.axes[1:]:
        [text] = axis.texts
        assert text.get_window_extent().x1 <= axis.get_window_extent().x1
