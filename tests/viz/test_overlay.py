"""What is drawn over images: paint of the colour that was asked for, and texts beside their
boxes."""

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image

from hypvision.viz.overlay import (
    add_legend,
    draw_boxes,
    draw_name,
    font,
    paint,
    place_labels,
    printable,
    text_size,
)

RED, BLUE = (200, 0, 0), (0, 0, 200)


def common(one, other):
    """Areas that rectangles (M, 4) share with rectangles (N, 4)."""
    sides = np.minimum(one[:, None, 2:], other[None, :, 2:]) - np.maximum(
        one[:, None, :2], other[None, :, :2]
    )
    return sides.clip(0).prod(-1)


def test_paint_is_a_share_of_the_colour_and_labels_below_zero_stay():
    image = Image.new("L", (3, 2), 100)
    labels = np.array([[0, 1, -1], [-1, 1, 0]])
    colours = np.array([RED, BLUE], dtype=np.uint8)
    found = np.asarray(paint(image, labels, colours, 0.25))
    assert found[0].tolist() == [[125, 75, 75], [75, 75, 125], [100, 100, 100]]
    each = np.asarray(paint(image, labels, colours, np.array([[0, 1, 1], [1, 1, 1]])))
    assert each[0].tolist() == [[100, 100, 100], list(BLUE), [100, 100, 100]]
    assert np.asarray(paint(image, np.full((2, 3), -1), colours[:0], 0.5)).max() == 100


@each("count", [3, 12, 60])
@each("size", [(96, 96), (640, 300)])
def test_labels_cover_no_box_and_no_label_however_crowded_the_image(count, size):
    rng = np.random.default_rng(count)
    corner = rng.uniform(-0.1, 0.9, (count, 2)) * size
    boxes = np.concatenate([corner, corner + rng.uniform(0.02, 0.6, (count, 2)) * size], 1)
    boxes = np.clip(boxes, 0, (size[0] - 1, size[1] - 1) * 2).astype(int)
    extents = [(int(width), 14) for width in rng.integers(20, 90, count)]
    labels = place_labels(size, boxes, extents)
    assert [(x2 - x1, y2 - y1) for x1, y1, x2, y2 in labels.tolist()] == extents
    assert labels[:, 0].min() >= 0 and labels[:, 2].max() <= size[0]
    assert common(labels, boxes + (0, 0, 1, 1)).sum() == 0
    assert np.triu(common(labels, labels), 1).sum() == 0
    outside = (labels[:, 3] <= 0) | (labels[:, 1] >= size[1])
    inside = (labels[:, 1] >= 0) & (labels[:, 3] <= size[1])
    assert (inside ^ outside).all()

    fixed = place_labels(size, boxes, extents, strips=False)
    assert fixed.min() >= 0 and (fixed[:, 2:].max(0) <= size).all()


@pytest.mark.parametrize(
    ("box", "label"),
    [
        pytest.param([60, 60, 120, 110], [60, 50, 90, 60], id="above"),
        pytest.param([60, 0, 120, 110], [60, 111, 90, 121], id="below"),
        pytest.param([40, 0, 100, 199], [101, 0, 131, 10], id="to the right"),
        pytest.param([80, 0, 199, 199], [50, 0, 80, 10], id="to the left"),
        pytest.param([0, 0, 199, 199], [84, 200, 114, 210], id="in the strip below"),
        pytest.param([0, 0, 199, 195], [84, -11, 114, -1], id="in the strip above"),
    ],
)
def test_the_place_of_a_label(box, label):
    assert place_labels((200, 200), np.array([box]), [(30, 10)]).tolist() == [label]


def test_a_label_without_room_in_an_image_that_may_not_grow_leaves_its_own_object_free():
    boxes = np.array([[0, 0, 199, 199], [60, 60, 119, 119]])
    _, inner = place_labels((200, 200), boxes, [(30, 10)] * 2, strips=False)
    assert common(inner[None], boxes[1:]).sum() == 0


def test_boxes_and_the_whole_of_their_texts_are_drawn():
    image, boxes = (
        Image.new("RGB", (200, 100), "grey"),
        np.array([[50, 40, 99.0, 80], [0, 0, 240, 99]]),
    )
    colours = np.array([RED, (250, 240, 90)])
    texts = ["object 0.93", "a name that is wider than the image, by far"]
    drawn = np.asarray(draw_boxes(image, boxes, texts, colours))
    assert drawn.shape[0] > 100 and drawn.shape[1] > 200
    assert (drawn[40, 50:99] == RED).all() and (drawn[41:80, 51:99] == 128).all()
    # Both texts are in the strip below the image: white on the dark label, black on the light one.
    strip = drawn[100:].astype(int)
    first = np.nonzero((strip == RED).all(-1))
    second = np.nonzero((strip == colours[1]).all(-1))
    contrast = [
        strip[rows.min() : rows.max(), columns.min() : columns.max()]
        for rows, columns in (first, second)
    ]
    assert contrast[0].min(-1).max() > 200 and contrast[1].max(-1).min() < 60
    assert all((edge == RED).all() for edge in (contrast[0][:, 0], contrast[0][:, -1]))

    frame = draw_boxes(image, boxes, texts, colours, strips=False)
    assert frame.size == image.size
    assert draw_boxes(image, boxes[:0], [], colours[:0]).tobytes() == image.tobytes()


def test_texts_grow_with_the_image():
    sizes = [text_size(Image.new("RGB", size)) for size in ((32, 32), (640, 480), (4000, 3000))]
    assert sizes == [11, 12, 76]


def test_a_legend_stands_below_the_image_with_its_colours_and_whole_texts():
    image = Image.new("RGB", (300, 20))
    sheet = np.asarray(add_legend(image, [("one", RED), ("two", BLUE), ("\u4e09", RED)]))
    assert sheet.shape[1] == 300 and sheet.shape[0] > 30 and sheet[:20].max() == 0
    assert all((sheet == colour).all(-1).any() for colour in (RED, BLUE))
    assert add_legend(image, [("one", RED), ("two", BLUE)], columns=1).height > len(sheet)
    long = np.asarray(add_legend(image.crop((0, 0, 20, 20)), [("the name of a class " * 3, None)]))
    assert long.shape[1] > 300 and long[20:, -5:].min() == 255  # it ends before the edge
    narrow = np.asarray(add_legend(image, [("the name of a class " * 3, None)], width=300))
    assert narrow.shape[1] == 300 and narrow[20:, -5:].min() == 255


def test_a_name_stays_within_the_image():
    image = Image.new("RGB", (120, 60))
    draw_name(image, "corner", (0, 0))
    other = Image.new("RGB", (120, 60))
    draw_name(other, "corner", (119, 59))
    written, moved = (
        pixels[np.ix_(*(np.unique(axis) for axis in pixels.nonzero()))]
        for pixels in (np.asarray(picture.convert("L")) for picture in (image, other))
    )
    assert (
        written == moved
    ).all() and written.size > 200  # the same pixels elsewhere: nothing was cut


def test_european_letters_are_written():
    """Not as the box that a font draws for a letter that it lacks."""
    pytest.importorskip("matplotlib")
    assert printable("Süß, яблоко, μήλο 🍎") == "Süß, яблоко, μήλο ?"
    missing = bytes(font(20).getmask("\ue123"))
    assert all(bytes(font(20).getmask(letter)) != missing for letter in "üßïяблοκμήλ")
