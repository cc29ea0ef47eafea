"""Sheets of images with texts."""

from helpers.cases import each

from hypvision.viz.overlay import font
from hypvision.viz.sheet import wrapped

TEXTS = [
    "a " * 40,
    "MMMMMMMM WWWWWWWW " * 3,
    "photos/" + "i" * 90,
    "true: yellow traffic light 0.93",
]


@each("text", TEXTS)
@each("most", [1, 2])
def test_lines_are_as_wide_as_they_may_be(text, most):
    lines = wrapped(text, 160, 13, most)
    widths = [font(13).getlength(line) for line in lines]
    assert len(lines) <= most and max(widths) <= 160
    if (cut := lines[-1].endswith("...")) and " " not in text:
        assert max(widths) > 140  # nothing is cut that would have fitted
    assert cut or "".join(lines).replace(" ", "") == text.replace(" ", "")
