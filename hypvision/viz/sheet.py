"""Several pictures on one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from hypvision.files import replacing

__all__ = ["contact_sheet", "save_picture"]


def contact_sheet(pictures: Sequence[Image.Image], columns: int = 4, cell: int = 240, gap: int = 6) -> Image.Image:
    """Pictures in rows of ``columns``, each fitted into ``cell x cell`` pixels.

    Raises:
        ValueError: there are no pictures.
    """
    if not pictures:
        raise ValueError("There are no pictures to put on the sheet.")
    columns = min(columns, len(pictures))
    fitted = []
    for picture in pictures:
        scale = cell / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        fitted.append(picture.convert("RGB").resize(size, Image.Resampling.BICUBIC))
    height = max(picture.height for picture in fitted)
    rows = -(-len(fitted) // columns)
    sheet = Image.new("RGB", (columns * (cell + gap) + gap, rows * (height + gap) + gap), "white")
    for i, picture in enumerate(fitted):
        row, column = divmod(i, columns)
        sheet.paste(picture, (gap + column * (cell + gap), gap + row * (height + gap)))
    return sheet


def save_picture(picture: Image.Image, path: str | Path) -> Path:
    """Write a PNG under a temporary name and move it into place; missing folders are made. Returns the path.

    Raises:
        HypvisionError: the place is not writable or the disk full; an old file is as it was.
    """
    path = Path(path)
    with replacing(path) as temporary:
        picture.save(temporary, format="PNG")
    return path
