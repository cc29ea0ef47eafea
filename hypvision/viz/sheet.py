"""Sheets of several images, and the writing of images and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageOps

from hypvision.io import HypvisionError, StrPath
from hypvision.io.errors import printable as escaped
from hypvision.io.files import replacing
from hypvision.io.images import to_rgb, write_image

from .overlay import font, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def contact_sheet(
    images: Sequence[Image.Image], columns: int = 4, cell: int = 240, gap: int = 6
) -> Image.Image:
    """Return a sheet of images in rows of ``columns``, each fitted into ``cell x cell`` pixels."""
    if not images:
        raise ValueError("There are no images to put on the sheet.")
    return _rows([fitted(image, cell) for image in images], columns, cell, gap)


def search_sheet(
    query: Image.Image,
    results: Sequence[tuple[Image.Image, str]],
    columns: int = 5,
    cell: int = 160,
) -> Image.Image:
    """Return a sheet with the query, framed in blue, and its neighbours with a text below each."""
    tiles = [
        (ImageOps.pad(fitted(image, cell), (cell, cell), color="white"), text)
        for image, text in [(query, "query"), *results]
    ]
    ImageDraw.Draw(tiles[0][0]).rectangle(
        (0, 0, cell - 1, cell - 1), outline=(40, 90, 200), width=3
    )
    return titled_sheet(tiles, columns=columns)


def titled_sheet(
    tiles: Sequence[tuple[Image.Image, str]], heading: str = "", columns: int = 4
) -> Image.Image:
    """Return a sheet of images in rows of ``columns`` cells of equal size, each image above its
    title, and a heading above all.

    A title takes at most two lines, or one for each of its own lines; text that does not fit is cut
    off.
    """
    if not tiles:
        raise ValueError("There are no images to put on the sheet.")
    gap = 10
    wide, high = (max(image.size[axis] for image, _ in tiles) for axis in (0, 1))
    size = max(12, wide // 20)  # legible also where large images are shown smaller
    titles = [_lines_of(title, wide, size) for _, title in tiles]
    below = round(1.4 * size) * max(map(len, titles)) + size // 2
    cells = []
    for (image, _), lines in zip(tiles, titles):
        cell = Image.new("RGB", (wide, high + below), "white")
        cell.paste(image, ((wide - image.width) // 2, (high - image.height) // 2))
        text = "\n".join(lines)
        ImageDraw.Draw(cell).multiline_text(
            (wide / 2, high + 3), text, "black", font(size), "ma", align="center"
        )
        cells.append(cell)
    sheet = _rows(cells, columns, wide, gap)
    return _headed(sheet, heading, size, gap) if heading else sheet


def _lines_of(title: str, width: int, size: int) -> list[str]:
    """Return a title in at most two lines, or in one line for each of its own."""
    own = title.split("\n")
    most = 2 if len(own) == 1 else 1
    return [line for part in own for line in wrapped(part, width, size, most)]


def _headed(sheet: Image.Image, heading: str, size: int, gap: int) -> Image.Image:
    """Return the sheet below a heading of one line, with letters of about ``size`` pixels."""
    top = Image.new("RGB", (sheet.width, sheet.height + 2 * size + gap), "white")
    top.paste(sheet, (0, 2 * size + gap))
    (line,) = wrapped(heading, sheet.width - 2 * gap, size + 2, 1)
    ImageDraw.Draw(top).text((gap, gap), line, "black", font(size + 2), "la")
    return top


def _fitting(letters: Any, text: str, width: int, mark: str = "") -> int:
    """Return how many characters of a text, followed by ``mark``, fit into a width: at least
    one."""
    return next(
        n for n in range(len(text), 0, -1) if n == 1 or letters.getlength(text[:n] + mark) <= width
    )


def wrapped(text: str, width: int, size: int, most: int = 2) -> list[str]:
    """Return a text as at most ``most`` lines of a width in pixels, broken at spaces; text that
    does not fit is cut off."""
    letters = font(size)
    rest = " ".join(printable(text).split())
    found = list[str]()
    while rest and len(found) < most:
        end = _fitting(letters, rest, width)
        if end < len(rest) and len(found) == most - 1:
            return [*found, f"{rest[: _fitting(letters, rest[:end], width, '...')].rstrip()}..."]
        if end < len(rest) and " " in rest[: end + 1]:
            end = rest.rindex(" ", 0, end + 1)
        found.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return found


def text_tile(text: str) -> Image.Image:
    """Return a square picture of a text, to stand in the place of an image."""
    tile = Image.new("RGB", (160, 160), "white")
    lines = wrap(text, 22)[:11] or [" "]
    ImageDraw.Draw(tile).multiline_text(
        (80, 80), "\n".join(lines), "black", anchor="mm", align="center"
    )
    return tile


def fitted(image: Image.Image, cell: int) -> Image.Image:
    """Return the image resized so that its longer side is ``cell``; pixels of tiny images stay
    visible."""
    scale = cell / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return to_rgb(image).resize(
        size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC
    )


def _rows(tiles: Sequence[Image.Image], columns: int, width: int, gap: int) -> Image.Image:
    columns = min(columns, len(tiles))
    height = max(tile.height for tile in tiles)
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * (width + gap) + gap, rows * (height + gap) + gap), "white")
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        sheet.paste(tile, (gap + column * (width + gap), gap + row * (height + gap)))
    return sheet


def save_figure(figure: Figure, path: StrPath, dpi: int, **options: Any) -> None:
    """Write a figure of matplotlib as an image file, complete or not at all; ``options`` go to its
    ``savefig``."""
    show_names(figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=dpi, **options)


def show_names(figure: Figure) -> None:
    """Make matplotlib draw the texts of a figure as they are: a ``$`` begins no formula, and what
    is not UTF-8 is escaped.

    Numbers that matplotlib writes at an axis, some as formulas, are left as they are.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            names = [label.get_text() for label in axis.get_ticklabels()]
            written = [escaped(name) for name in names]
            if written != names:
                axis.set_ticks(axis.get_ticklocs(), written)
    numbers = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        if isinstance(axis.get_major_formatter(), (LogFormatter, ScalarFormatter))
        for label in axis.get_ticklabels()
    }
    for text in set(figure.findobj(Text)) - numbers:
        text.set_parse_math(False)
        text.set_text(escaped(text.get_text()))


def save_image(image: Image.Image, path: StrPath) -> Path:
    """Write an image, complete or not at all, in the format of its ending (``.png``, ``.jpg``,
    ``.jpeg`` or ``.webp``), and return the path; missing folders are made.

    Raises:
        HypvisionError: the path has another ending, cannot be written, or the disk is full. An old
            file then stays.
    """
    path = Path(path)
    format = image_format(path)
    options = {"quality": 92} if format in ("JPEG", "WEBP") else {}
    with replacing(path) as temporary:
        write_image(
            image.convert("RGB") if format == "JPEG" else image, temporary, format, **options
        )
    return path


def image_format(path: StrPath) -> str:
    """Return Pillow's name of the format that the ending of a file stands for."""
    ending = Path(path).suffix.lower()
    if ending not in _FORMATS:
        what = f"ends in '{ending}'" if ending else "has no ending"
        raise HypvisionError(
            f"The image '{path}' {what}. End its name in one of {', '.join(_FORMATS)}."
        )
    return _FORMATS[ending]
