import numpy as np
import pytest

pytest.importorskip("open_clip")

from draw_words import tile
from PIL import Image

from hypvision.viz.palette import label_colours


def test_a_tile_paints_labels_where_they_are_and_names_them():
    labels = np.zeros((96, 96), int)
    labels[:, 48:] = 2  # of the names photo, a, b
    drawn = np.asarray(tile(Image.new("RGB", (96, 96)), labels, ["photo", "a", "b"], ["b"], 192))
    colour = 0.6 * np.array(label_colours(3)[1])
    assert drawn.shape[1] == 192 and drawn.shape[0] > 192  # the legend
    np.testing.assert_allclose(drawn[96, 183], colour, atol=2)
    assert not drawn[96, 9].any()
