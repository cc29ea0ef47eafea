"""What is drawn over images: paint of the colour that was asked for, and texts beside their boxes."""

import numpy as np
import pytest
from PIL import Image

from hypvision.viz import overlay
from hypvision.viz.overlay import add_legend, draw_boxes, paint

RED, BLUE = (200, 0, 0), (0, 0, 200)


def test_paint_is_a_share_of_the_colour_and_labels_below_zero_stay():
    image = Image.new("L", (3, 2), 100)
    labels = np.array([[0, 1, -1], [-1, 1, 0]])
    colours = np.array([RED, BLUE], dtype=np.uint8)
    found = np.asarray(paint(image, labels, colours, 0.25))
    assert found[0].tolist() == [[125, 75, 75], [75, 75, 125], [100, 100, 100]]
    each = np.asarray(paint(image, labels, colours, np.array([[0, 1, 1], [1, 1, 1]])))
    assert each[0].tolist() == [[100, 100, 100], list(BLUE), [100, 100, 100]]
    assert np.asarray(paint(image, np.full((2, 3), -1), colours[:0], 0.5)).max() == 100


@pytest.mark.parametrize(
    "box",
    [
        pytest.param([60, 60, 120, 110], id="in the middle"),
        pytest.param([40, 0, 120, 110], id="at the top"),
        pytest.param([0, 0, 60, 199], id="as high as the image"),
        pytest.param([80, 0, 199, 199], id="as high as the image, at its right side"),
    ],
)
def test_a_text_lies_outside_of_its_box_and_inside_of_the_image(box, monkeypatch):
    places, find = [], overlay._beside
    monkeypatch.setattr(overlay, "_beside", lambda *args: places.append(find(*args)) or places[-1])
    painted = draw_boxes(Image.new("RGB", (200, 200)), np.array([box]), ["a text"], np.array([RED]))
    pixels = np.asarray(painted).astype(int)
    left, top, right, bottom = box
    assert (pixels[top, left:right] == RED).all() and (pixels[top:bottom, left] == RED).all()
    assert pixels[top + 1 : bottom, left + 1 : right].max() == 0
    [(x1, y1, x2, y2)] = places
    assert x1 >= 0 and y1 >= 0 and x2 < 200 and y2 < 200 and x2 - x1 > 10 and y2 - y1 > 5


def test_texts_avoid_each_other(monkeypatch):
    places, find = [], overlay._beside
    monkeypatch.setattr(overlay, "_beside", lambda *args: places.append(find(*args)) or places[-1])
    boxes = np.array([[60, 60, 120, 110]] * 3)
    draw_boxes(Image.new("RGB", (300, 200)), boxes, ["one", "two", "three"], np.array([RED, BLUE, RED]))
    assert all(overlay._common(a, b) == 0 for i, a in enumerate(places) for b in [*places[:i], boxes[0]])


def test_a_legend_stands_below_the_image_with_its_colours():
    sheet = np.asarray(add_legend(Image.new("RGB", (300, 20)), [("one", RED), ("two", BLUE), ("\u4e09", RED)]))
    assert sheet.shape == (20 + 2 * 18 + 4, 300, 3) and sheet[:20].max() == 0
    assert [sheet[30, x].tolist() for x in (8, 138)] == [list(RED), list(BLUE)]
    assert add_legend(Image.new("RGB", (50, 20)), [("one", None)]).width == 130
