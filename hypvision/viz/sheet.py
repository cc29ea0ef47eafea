"""Several pictures on one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

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
    """Write a PNG under a temporary name and move it into place; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(suffix=".png", prefix=f".{path.stem}-", dir=path.parent)
    os.close(handle)
    try:
        picture.save(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path
