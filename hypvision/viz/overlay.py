"""What is drawn over an image: colours of labels, boxes with their names, and a legend below it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image, ImageDraw

from hypvision.images import to_rgb


def paint(image: Image.Image, labels: np.ndarray, colours: np.ndarray, opacity: float | np.ndarray) -> Image.Image:
    """The image with the colour of each pixel's label over it.

    Args:
        image: of any mode.
        labels: integers (H, W) of the size of the image; below 0: the pixel stays as it is.
        colours: RGB (L, 3), one a label.
        opacity: 0 to 1, for all pixels, or (H, W) for each.
    """
    image = to_rgb(image)
    if not len(colours):
        return image
    layer = Image.fromarray(np.asarray(colours, dtype=np.uint8)[np.maximum(labels, 0)])
    share = np.where(labels >= 0, np.rint(255 * np.asarray(opacity)), 0).astype(np.uint8)
    return Image.composite(layer, image, Image.fromarray(share))


def draw_boxes(image: Image.Image, boxes: np.ndarray, texts: Sequence[str], colours: np.ndarray) -> Image.Image:
    """The image with boxes and a text for each, where possible outside of its box.

    A text lies above, below, right or left of its box: where it covers least of that box, then of the other boxes and
    texts.

    Args:
        image: RGB; it stays as it is.
        boxes: (N, 4), ``x1, y1, x2, y2`` in pixels; the first lies on top.
        texts: one a box.
        colours: RGB (N, 3), one a box.
    """
    image = image.copy()
    draw = ImageDraw.Draw(image)
    colour_of = [(int(red), int(green), int(blue)) for red, green, blue in colours]
    for box, colour in reversed(list(zip(boxes.tolist(), colour_of))):
        left, top, right, bottom = box
        draw.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour)
    taken = boxes.tolist()
    for box, text, colour in zip(boxes.tolist(), map(printable, texts), colour_of):
        place = _beside(box, draw.textbbox((0, 0), text), image.size, taken)
        taken.append(place)
        draw.rectangle(place, fill=colour)
        draw.text((place[0] + 1, place[1]), text, fill="black" if sum(colour) > 384 else "white")
    return image


def _beside(
    box: Sequence[float], text: Sequence[float], size: tuple[int, int], taken: Iterable[Sequence[float]]
) -> tuple[float, float, float, float]:
    """Where a text goes, see :func:`draw_boxes`; a place that leaves the image is moved into it."""
    left, top, right, bottom = box
    width, height = text[2] + 2, text[3] + 2
    corners = [(left, top - height - 1), (left, bottom + 1), (right + 1, top), (left - width - 1, top)]
    places = []
    for x, y in corners:
        x, y = (max(0.0, min(at, whole - part - 1)) for at, whole, part in zip((x, y), size, (width, height)))
        places.append((x, y, x + width, y + height))
    return min(places, key=lambda place: (_common(place, box), sum(_common(place, other) for other in taken)))


def _common(one: Sequence[float], other: Sequence[float]) -> float:
    """Area that two boxes share."""
    width, height = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1))
    return max(width, 0.0) * max(height, 0.0)


def add_legend(
    image: Image.Image, entries: Sequence[tuple[str, Sequence[int] | None]], column: int = 130
) -> Image.Image:
    """The image above a list of texts, each beside a field of its colour.

    Args:
        image: RGB.
        entries: texts with their colours, RGB; None: no field.
        column: width of a column in pixels; an image that is narrower than one gets white sides.
    """
    width = max(image.width, column)
    columns = width // column
    sheet = Image.new("RGB", (width, image.height + 18 * math.ceil(len(entries) / columns) + 4), "white")
    sheet.paste(image, ((width - image.width) // 2, 0))
    draw = ImageDraw.Draw(sheet)
    for place, (text, colour) in enumerate(entries):
        x, y = 4 + place % columns * column, image.height + 4 + place // columns * 18
        if colour is not None:
            draw.rectangle((x, y, x + 12, y + 12), fill=tuple(map(int, colour)))
            x += 17
        draw.text((x, y), printable(text), fill="black")
    return sheet


def printable(text: str) -> str:
    """The text with ``?`` for what Pillow's own font cannot write."""
    return text.encode("latin-1", "replace").decode("latin-1")
