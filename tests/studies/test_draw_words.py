import numpy as np
import pytest

pytest.importorskip("open_clip")

from draw_words import colours_of, tile
from PIL import Image

from hypvision.viz.palette import label_colours


def test_a_tile_paints_labels_where_they_are_and_names_them():
    labels = np.zeros((96, 96), int)
    labels[:, 48:] = 2  # of the names photo, a, b
    names = ["photo", "a", "b"]
    colours = label_colours(3)
    drawn = np.asarray(tile(Image.new("RGB", (96, 96)), labels, names, ["b"], colours, 192))
    colour = 0.6 * np.array(colours[1])
    assert drawn.shape[1] == 192 and drawn.shape[0] > 192  # the legend
    np.testing.assert_allclose(drawn[96, 183], colour, atol=2)
    assert not drawn[96, 9].any()


def test_labels_that_are_named_take_the_first_colours():
    labels = np.zeros((10, 10), int)
    labels[:5] = 7
    labels[5, 0] = 2  # a hundredth of the pixels: painted and not named
    labels[6:] = 4
    colours = colours_of([labels], 9)
    np.testing.assert_array_equal(colours[[3, 6]], label_colours(9)[:2])
    assert len(np.unique(colours, axis=0)) == 9
