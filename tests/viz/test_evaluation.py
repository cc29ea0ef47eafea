"""Figures and sheets of a test."""

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib")
from hypvision.viz.evaluation import (
    Mistake,
    bars_figure,
    confusion_figure,
    mistake_sheet,
    precision_recall_figure,
)

BLUES_AT_100 = (8, 48, 107)  # the last colour of matplotlib's map


def dark(image, part):
    """Where, in shares of the width or height, the pixels of a full share lie."""
    pixels = np.asarray(image)[:, : int(0.8 * image.width)]
    return np.argwhere((pixels == BLUES_AT_100).all(2))[:, part].mean() / pixels.shape[part]


def test_the_colour_is_the_share_of_a_row_and_the_order_holds():
    counts = np.array([[0, 0, 900], [0, 0, 0], [1, 1, 0]])
    names = ["a", "b", "c"]
    plain = confusion_figure(
        counts, names, names
    )  # the only full share is a -> c: above, and right
    turned = confusion_figure(counts, names, names, order=[2, 1, 0])  # below, and left
    assert dark(plain, 0) < 0.4 < 0.5 < dark(turned, 0)
    assert dark(plain, 1) > 0.6 > 0.5 > dark(turned, 1)


@pytest.mark.parametrize("count", [1, 130])
def test_a_matrix_of_any_size_is_drawn(count):
    image = confusion_figure(
        np.eye(count, dtype=int) * 20_000, ["name"] * count, ["n" * 99] * count
    )
    assert min(image.size) > 400 and max(image.size) < 3000


def test_curves_and_bars_are_drawn():
    lines = {f"class {i}": np.linspace(1, 0, 101) for i in range(12)}
    assert (
        precision_recall_figure(
            np.linspace(0, 1, 101), {"a": lines, "b": {"c": np.ones(101)}}
        ).width
        > 1000
    )
    assert bars_figure(["2", "4"], {"mistakes": [3, 1], "by chance": [2, 2]}, "x", "y").height > 300


def test_tiles_keep_their_places_and_sizes():
    red, blue = Image.new("RGB", (10, 10), "red"), Image.new("RGB", (40, 20), "blue")
    mistakes = [Mistake([red, blue], ["x" * 500]), Mistake([blue, red], [])]
    sheet = np.asarray(
        mistake_sheet(mistakes, 1, cell=100, heading="image, truth", legend=[("l", (0, 255, 0))])
    )
    places = {
        name: np.argwhere((sheet == colour).all(2))
        for name, colour in (("red", [255, 0, 0]), ("blue", [0, 0, 255]))
    }
    assert len(places["red"]) == 2 * 100 * 100 and len(places["blue"]) == 2 * 100 * 50
    upper = places["red"][: 100 * 100]
    assert upper[:, 1].max() < 120 and places["red"][100 * 100 :, 1].min() > 110
    assert (
        (sheet[places["blue"].max(0)[0] :] == [0, 255, 0]).all(2).any()
    )  # the legend stands below
