"""Draws over an image: the colours of labels, boxes with their names, and a legend below the
image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hypvision.io.images import to_rgb

from .palette import label_colours

Box = tuple[float, float, float, float]
"""Left, low, right and high end of a box; low is the top where y points down."""


def paint(
    image: Image.Image, labels: np.ndarray, colours: np.ndarray, opacity: float | np.ndarray
) -> Image.Image:
    """Return the image, of any mode, with the colour of each pixel's label over it. ``labels``
    ``(H, W)`` below 0 leave their pixels as they are; ``colours`` are RGB ``(L, 3)``; ``opacity``
    is from 0 to 1, one number or ``(H, W)``."""
    image = to_rgb(image)
    if not len(colours):
        return image
    layer = Image.fromarray(np.asarray(colours, dtype=np.uint8)[np.maximum(labels, 0)])
    share = np.where(labels >= 0, np.rint(255 * np.asarray(opacity)), 0).astype(np.uint8)
    return Image.composite(layer, image, Image.fromarray(share))


def draw_boxes(
    image: Image.Image,
    boxes: np.ndarray,
    texts: Sequence[str],
    colours: np.ndarray,
    strips: bool = True,
) -> Image.Image:
    """Return the image with boxes ``(N, 4)`` as ``x1, y1, x2, y2`` in pixels, of which the first
    lies on top, and with a text for each.

    Texts that do not fit into the image are written above or below it, so that the picture grows;
    without ``strips`` the picture keeps the image's size."""
    texts = [printable(text) for text in texts]
    size = text_size(image)
    if not strips:
        widest = max((_extent(text, size)[0] for text in texts), default=0)
        size = max(1, math.floor(size * min(1.0, (image.width - 1) / max(widest, 1))))
    edge = (image.width - 1, image.height - 1)
    boxes = (
        np.clip(np.asarray(boxes, dtype=float).reshape(-1, 4), 0, (*edge, *edge))
        .round()
        .astype(int)
    )
    labels = place_labels(image.size, boxes, [_extent(text, size) for text in texts], strips)
    above = min([0, *labels[:, 1]])
    below = max([image.height, *labels[:, 3]])
    sheet = Image.new("RGB", (max([image.width, *labels[:, 2]]), below - above), "white")
    sheet.paste(image, (0, -above))
    draw = ImageDraw.Draw(sheet)
    shift = np.array([0, -above] * 2)
    line = max(1, size // 8)
    shades = [(int(red), int(green), int(blue)) for red, green, blue in colours]
    for box, shade in reversed(list(zip(boxes + shift, shades))):
        draw.rectangle((*box[:2], *np.maximum(box[2:], box[:2])), outline=shade, width=line)
    for (x1, y1, x2, y2), text, shade in zip(labels + shift, texts, shades):
        draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill=shade)
        dark = 0.3 * shade[0] + 0.59 * shade[1] + 0.11 * shade[2] < 120
        centre = ((x1 + x2) / 2, (y1 + y2) / 2)
        draw.text(centre, text, fill="white" if dark else "black", font=font(size), anchor="mm")
    return sheet


def _corners(box: Sequence[int], wide: int, high: int) -> list[tuple[int, int]]:
    """Return upper left corners that a label of a box may have, the best first."""
    left, top, right, bottom = box
    starts = (left, right + 1 - wide, (left + right - wide) // 2)
    middles = (top, bottom + 1 - high, (top + bottom - high) // 2)
    corners = []
    for gap in (0, high // 2, high + 1):  # later corners are farther away
        corners += [(x, y) for y in (top - high - gap, bottom + 1 + gap) for x in starts]
        corners += [(x, y) for x in (right + 1 + gap, left - wide - gap) for y in middles]
    return corners


def place_labels(
    size: tuple[int, int],
    boxes: np.ndarray,
    extents: Sequence[tuple[int, int]],
    strips: bool = True,
) -> np.ndarray:
    """Return rectangles for the labels of boxes, int (N, 4), with ``x2`` and ``y2`` exclusive.

    A label lies above its box, or else below or beside it, where it touches no box and no other
    label. A label without such a place goes into a strip above or below the image, with ``y`` below
    0 or from the height on; without ``strips`` it stays in the image, where it covers least (its
    own box and other labels count for more than other boxes). ``boxes`` are int (N, 4) within the
    image, including the last pixels; ``extents`` are the width and height of each label."""
    width, height = size
    labels = np.zeros((len(boxes), 4), dtype=int)
    taken = np.concatenate([boxes + (0, 0, 1, 1), labels])
    homeless = []
    for i, (box, (wide, high)) in enumerate(zip(boxes.tolist(), extents)):
        corners = _corners(box, wide, high)
        spots = np.array(corners).clip(0, np.maximum((width - wide, height - high), 0))
        places = np.concatenate([spots, spots + (wide, high)], axis=1)
        covered = _common(places, taken)
        best = (covered.sum(1) + 9 * (covered[:, i] + covered[:, len(boxes) :].sum(1))).argmin()
        if strips and (covered[best].any() or (places[best, 2:] > size).any()):
            homeless.append(i)
        else:
            labels[i] = taken[len(boxes) + i] = places[best]
    upper = {i for i in homeless if boxes[i, 1] < height - 1 - boxes[i, 3]}
    for chosen, start in ((upper, None), ({*homeless} - upper, height)):
        order = sorted(sorted(chosen), key=lambda i: boxes[i, 0] + boxes[i, 2])
        middles = [int(boxes[i, 0] + boxes[i, 2]) for i in order]
        labels[order] = _strip(width, middles, [extents[i] for i in order], start)
    return labels


def _strip(
    width: int, middles: Sequence[int], extents: Sequence[tuple[int, int]], start: int | None
) -> np.ndarray:
    """Return rectangles, int (N, 4), for labels in rows above an image of this width, or below it
    from ``start`` (its height) on. ``middles`` are twice the wanted middle of each label,
    ascending."""
    placed = np.zeros((len(extents), 4), dtype=int)
    rows: list[int] = []  # end of the last label of each row
    for i, (middle, (wide, high)) in enumerate(zip(middles, extents)):
        wanted = max(0, min((middle - wide) // 2, width - wide))
        row = next(
            (row for row, end in enumerate(rows) if max(wanted, end) + wide <= width), len(rows)
        )
        x = max(wanted, rows[row]) if row < len(rows) else wanted
        rows[row : row + 1] = [x + wide + 2]
        y = -(row + 1) * (high + 1) if start is None else start + row * (high + 1)
        placed[i] = (x, y, x + wide, y + high)
    return placed


def _common(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the areas (M, N) that rectangles (M, 4) and (N, 4) share."""
    ends = np.minimum(some[:, None, 2:], others[None, :, 2:])
    sides = (ends - np.maximum(some[:, None, :2], others[None, :, :2])).clip(0)
    return sides[..., 0] * sides[..., 1]


def text_size(image: Image.Image) -> int:
    """Return the height of texts in pixels: it grows with the image and is at least 11."""
    return max(11, round(0.022 * math.sqrt(image.width * image.height)))


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return a font of a size in pixels: DejaVu Sans, if Matplotlib is installed, or Pillow's
    default."""
    path = _dejavu()
    return ImageFont.load_default(size) if path is None else ImageFont.truetype(path, size)


@cache
def _dejavu() -> Path | None:
    """Return the file of DejaVu Sans, which has Greek and Cyrillic letters; None without
    Matplotlib."""
    found = find_spec("matplotlib")
    path = Path(found.origin or "").parent / "mpl-data/fonts/ttf/DejaVuSans.ttf" if found else None
    return path if path and path.is_file() else None


def _extent(text: str, size: int) -> tuple[int, int]:
    """Return the width and height of a text with a margin."""
    margin = 2 * max(2, size // 5)
    return math.ceil(font(size).getbbox(text)[2]) + margin, math.ceil(1.25 * size) + margin // 2


def _widest(texts: Sequence[str], size: int) -> int:
    """Return the width of the widest text with its margin; 1 if there are no texts."""
    return max((_extent(text, size)[0] for text in texts), default=1)


def add_legend(
    image: Image.Image,
    entries: Sequence[tuple[str, Sequence[int] | None]],
    columns: int | None = None,
    width: int | None = None,
    size: int | None = None,
) -> Image.Image:
    """Return the image above a list of texts, each beside a field of its colour (None: no field).

    The texts stand in ``columns``, by default as many as fit; if the list is wider than the image,
    the image gets white sides. With a given ``width`` texts that are too wide become smaller."""
    texts = [printable(text) for text, _ in entries]
    size = size or text_size(image)
    indent = round(1.5 * size)
    row = round(1.6 * size)
    widest = _widest(texts, size)
    width = width or max(image.width, indent + size + widest)
    letters = size
    while letters > 1 and indent + size + widest > width:
        letters -= 1
        widest = _widest(texts, letters)
    columns = columns or width // (indent + size + widest)
    sheet = Image.new(
        "RGB", (width, image.height + row * math.ceil(len(entries) / columns) + size // 2), "white"
    )
    sheet.paste(image, ((sheet.width - image.width) // 2, 0))
    draw = ImageDraw.Draw(sheet)
    for place, (text, (_, colour)) in enumerate(zip(texts, entries)):
        x = size // 3 + place % columns * (sheet.width // columns)
        middle = image.height + size // 4 + place // columns * row + row // 2
        if colour is not None:
            draw.rectangle(
                (x, middle - size // 2, x + size, middle + size // 2), fill=tuple(map(int, colour))
            )
            x += indent
        draw.text((x, middle), text, fill="black", font=font(letters), anchor="lm")
    return sheet


def draw_segmentation(
    image: Image.Image,
    labels: np.ndarray,
    classes: Sequence[str],
    opacity: float = 0.55,
    legend: bool = True,
) -> Image.Image:
    """Return an image, of any mode, with its classes painted over it and a legend of those that
    occur; ``labels`` are integers (H, W) of the image's size, ``opacity`` is from 0 to 1."""
    colours = label_colours(len(classes))
    painted = paint(image, labels, colours, opacity)
    if not legend:
        return painted
    return add_legend(painted, [(classes[number], colours[number]) for number in np.unique(labels)])


def draw_name(image: Image.Image, name: str, at: tuple[float, float]) -> None:
    """Write the name into the image around a point, but within the edges, in white with a dark
    border."""
    text = printable(name)
    size = text_size(image)
    wide, high = _extent(text, size)
    if wide > image.width:
        size = max(1, size * image.width // wide)
        wide, high = _extent(text, size)
    middle = [
        max(part / 2, min(where, whole - part / 2))
        for where, part, whole in zip(at, (wide, high), image.size)
    ]
    ImageDraw.Draw(image).text(
        (middle[0], middle[1]),
        text,
        "white",
        font(size),
        anchor="mm",
        stroke_width=1,
        stroke_fill="black",
    )


def is_free(box: Box, taken: Sequence[Box]) -> bool:
    """Return whether a box covers none of those that are taken."""
    return all(
        box[2] <= left or box[0] >= right or box[3] <= low or box[1] >= high
        for left, low, right, high in taken
    )


def printable(text: str) -> str:
    """Return the text with ``?`` in place of characters that :func:`font` cannot draw, such as
    emoji and letters of scripts outside Europe."""
    # The last characters of the Latin-1 block and, for DejaVu Sans, of the Armenian block.
    last = "\xff" if _dejavu() is None else "\u058a"
    return "".join(letter if letter <= last else "?" for letter in text)
