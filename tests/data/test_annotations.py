"""Masks of annotation files, against pycocotools; the boxes are tested with their readers."""

import numpy as np
import pytest
from helpers.cases import each

from hypvision.data.annotations import (
    MAX_POINTS,
    check_names,
    compare_names,
    decode_counts,
    mask_fault,
)
from hypvision.io.errors import HypvisionError

mask_tools = pytest.importorskip("pycocotools.mask")
HEIGHT, WIDTH = 72, 96
TRIANGLE = [10, 10, 40, 10, 20, 50]


def encoded(pixels):
    return mask_tools.encode(np.asfortranarray(pixels.astype(np.uint8)))


def masks():
    random = np.random.default_rng(0)
    for share in (0, 0.001, 0.3, 0.9, 1):
        yield random.random((HEIGHT, WIDTH)) < share
    yield np.pad(np.ones((30, 40)), ((20, 22), (56, 0)))


def runs(rle):
    pixels = mask_tools.decode(rle).ravel(order="F")
    edges = np.flatnonzero(np.diff(pixels)) + 1
    return [0] * int(pixels[0]) + np.diff([0, *edges, len(pixels)]).tolist()


@each("pixels", [*masks()])
def test_right_masks(pixels):
    rle = encoded(pixels)
    assert decode_counts(rle["counts"]) == runs(rle)
    for counts in (rle["counts"], rle["counts"].decode(), runs(rle)):
        assert mask_fault(dict(size=[HEIGHT, WIDTH], counts=counts), HEIGHT, WIDTH) == ""
    assert mask_fault([TRIANGLE, [-3.5, 0, 99, 1, 4, 80.25]], HEIGHT, WIDTH) == ""


def rle(**changes):
    full = encoded(next(masks()) | True)
    return {**dict(full, counts=full["counts"].decode()), **changes}


WRONG = {
    "none": (None, "is empty"),
    "no polygon": ([], "is empty"),
    "an empty polygon": ([TRIANGLE, []], "a polygon of 0 numbers"),
    "two points": ([TRIANGLE[:4]], "a polygon of 4 numbers"),
    "half a point": ([TRIANGLE[:5] * 3], "a polygon of 15 numbers"),
    "a list too few": (TRIANGLE, "is a list of numbers"),
    "a list too many": ([[TRIANGLE]], "a polygon of lists in a list"),
    "pairs": ([[[1, 2], [3, 4], [5, 6]]], "a polygon of lists in a list"),
    "a dict": ([dict(x=1, y=2)], "is a list of a dict"),
    "points as dicts": ([[dict(x=1, y=2)] * 3], "a polygon of a dict"),
    "text": ("10 10 40 10", "is text"),
    "numbers as text": ([["1", "2", "3", "4", "5", "6"]], "a polygon of text"),
    "nothing": ([[1, 2, None, 4, 5, 6]], "a polygon of None"),
    "NaN": ([[*TRIANGLE[:5], float("nan")]], "not finite"),
    "infinite": ([[*TRIANGLE[:5], float("inf")]], "not finite"),
    "beyond floats": ([[*TRIANGLE[:5], 10**400]], "not finite"),
    "elsewhere": ([[*TRIANGLE[:5], 1e9]], "beyond the image"),
    "huge": ([TRIANGLE * (MAX_POINTS // 3 + 1)], "more than 100,000 points"),
    "many": ([TRIANGLE] * 10**6, "more than 100,000 points"),
    "without size": (dict(counts="a"), "without the lists"),
    "without counts": (dict(size=[HEIGHT, WIDTH]), "without the lists"),
    "swapped": (
        rle(size=[WIDTH, HEIGHT]),
        r"size \[96, 72\] \(height, width\), but its image \[72, 96\]",
    ),
    "too many pixels": (rle(counts=[0, 203954]), "203,954 pixels in all, but its image 6,912"),
    "too few pixels": (rle(counts=[100, 5]), "105 pixels in all"),
    "negative runs": (rle(counts=[HEIGHT * WIDTH + 5, -5]), "damaged"),
    "runs as text": (rle(counts=["1", "2"]), "damaged"),
    "cut off": (rle(counts=rle()["counts"][:-1]), "damaged|pixels in all"),
    "no end": (rle(counts="@@"), "damaged|pixels"),
    "endless": (rle(counts="o" * 1000 + "0"), "damaged"),
    "no text": (rle(counts=""), "damaged"),
    "no ASCII": (rle(counts="é"), "damaged"),
    "too low": (rle(counts="!"), "damaged"),
}


@each("kind", WRONG)
def test_wrong_masks(kind):
    import re

    mask, message = WRONG[kind]
    assert re.search(message, mask_fault(mask, HEIGHT, WIDTH))


@each(
    "own, ignored, mentioned",
    [
        (["dog", "cat"], (), None),
        (["dog", "cat", "tree"], ["tree"], None),
        (["dog", "cat", "tree"], "others", None),
        (["dog", "cat", "tree"], (), "'tree'"),
        (["dog"], "others", "'cat'"),
        (["Cat", "dog"], (), "'cat'.*'Cat'"),
    ],
)
def test_names_of_file_and_config(own, ignored, mentioned):
    if mentioned is None:
        compare_names(own, ["cat", "dog"], "The file 'a.json'", ignored)
    else:
        with pytest.raises(HypvisionError, match=f"a.json.*{mentioned}.*metainfo"):
            compare_names(own, ["cat", "dog"], "The file 'a.json'", ignored)


def test_names_that_are_one_text():
    check_names(("cat",))
    with pytest.raises(HypvisionError, match=r'\("cat",\)'):
        check_names("cat")
