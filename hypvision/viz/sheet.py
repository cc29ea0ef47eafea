"""Several pictures on one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from hypvision.errors import HypvisionError
from hypvision.files import replacing

__all__ = ["contact_sheet", "picture_format", "save_picture"]

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


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
    """Write a picture under a temporary name and move it into place; missing folders are made. Returns the path.

    Args:
        picture: what to write.
        path: its ending says the format: ``.png``, ``.jpg``, ``.jpeg`` or ``.webp``.

    Raises:
        HypvisionError: another ending; the place is not writable or the disk full; an old file is as it was.
    """
    path = Path(path)
    format = picture_format(path)
    options = {"quality": 92} if format in ("JPEG", "WEBP") else {}
    with replacing(path) as temporary:
        (picture.convert("RGB") if format == "JPEG" else picture).save(temporary, format=format, **options)
    return path


def picture_format(path: str | Path) -> str:
    """Pillow's name of the format that the ending of a file asks for.

    Raises:
        HypvisionError: none of those of :func:`save_picture`.
    """
    ending = Path(path).suffix.lower()
    if ending not in _FORMATS:
        what = f"ends in '{ending}'" if ending else "has no ending"
        raise HypvisionError(f"The picture '{path}' {what}. End its name in one of {', '.join(_FORMATS)}.")
    return _FORMATS[ending]
