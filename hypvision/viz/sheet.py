"""Several images on one, and writing images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from hypvision.errors import HypvisionError
from hypvision.files import replacing
from hypvision.images import to_rgb

__all__ = ["contact_sheet", "image_format", "save_image", "search_sheet"]

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def contact_sheet(images: Sequence[Image.Image], columns: int = 4, cell: int = 240, gap: int = 6) -> Image.Image:
    """Images in rows of ``columns``, each fitted into ``cell x cell`` pixels.

    Raises:
        ValueError: there are no images.
    """
    if not images:
        raise ValueError("There are no images to put on the sheet.")
    columns = min(columns, len(images))
    fitted = []
    for image in images:
        scale = cell / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        fitted.append(to_rgb(image).resize(size, Image.Resampling.BICUBIC))
    height = max(image.height for image in fitted)
    rows = -(-len(fitted) // columns)
    sheet = Image.new("RGB", (columns * (cell + gap) + gap, rows * (height + gap) + gap), "white")
    for i, image in enumerate(fitted):
        row, column = divmod(i, columns)
        sheet.paste(image, (gap + column * (cell + gap), gap + row * (height + gap)))
    return sheet


def search_sheet(
    query: Image.Image, results: Sequence[tuple[Image.Image, str]], columns: int = 5, cell: int = 160
) -> Image.Image:
    """An image of the query, framed in blue, and of its neighbours with a line of text below each."""
    tiles = [(query, "query"), *results]
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    gap, line = 8, 16
    sheet = Image.new("RGB", (columns * (cell + gap) + gap, rows * (cell + line + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (image, text) in enumerate(tiles):
        row, column = divmod(i, columns)
        x, y = gap + column * (cell + gap), gap + row * (cell + line + gap)
        scale = cell / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        smooth = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC
        tile = to_rgb(image).resize(size, smooth)
        sheet.paste(tile, (x + (cell - size[0]) // 2, y + (cell - size[1]) // 2))
        if i == 0:
            draw.rectangle((x - 3, y - 3, x + cell + 2, y + cell + 2), outline=(40, 90, 200), width=3)
        draw.text((x, y + cell + 2), text[: cell // 6], fill="black")
    return sheet


def save_image(image: Image.Image, path: str | Path) -> Path:
    """Write an image under a temporary name and move it into place; missing folders are made. Returns the path.

    Args:
        image: what to write.
        path: its ending says the format: ``.png``, ``.jpg``, ``.jpeg`` or ``.webp``.

    Raises:
        HypvisionError: another ending; the place is not writable or the disk full; an old file is as it was.
    """
    path = Path(path)
    format = image_format(path)
    options = {"quality": 92} if format in ("JPEG", "WEBP") else {}
    with replacing(path) as temporary:
        (image.convert("RGB") if format == "JPEG" else image).save(temporary, format=format, **options)
    return path


def image_format(path: str | Path) -> str:
    """Pillow's name of the format that the ending of a file asks for.

    Raises:
        HypvisionError: none of those of :func:`save_image`.
    """
    ending = Path(path).suffix.lower()
    if ending not in _FORMATS:
        what = f"ends in '{ending}'" if ending else "has no ending"
        raise HypvisionError(f"The image '{path}' {what}. End its name in one of {', '.join(_FORMATS)}.")
    return _FORMATS[ending]
