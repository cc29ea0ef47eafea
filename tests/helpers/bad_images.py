"""Files that are not images or attack their reader: one table for every entry point of the
package."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def _encoded(image: Image.Image, format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def _noise(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    ).convert(mode)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png_of(width: int, height: int) -> bytes:
    """A PNG of a few bytes that promises so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 64)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


# PostScript that writes a file, were an interpreter to run it.
_EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n"
    b"(interpreted) (w) file dup (x) writestring closefile\nshowpage\n%%EOF\n"
)

BAD_IMAGES: dict[str, bytes] = {
    "empty.png": b"",
    "text.jpg": b"this is no image\n",
    "random.png": bytes(np.random.default_rng(1).integers(0, 256, 500, dtype=np.uint8)),
    "truncated.png": _encoded(_noise(), "PNG")[:3000],
    "truncated.jpg": _encoded(_noise(), "JPEG")[:700],
    "header_only.png": _encoded(_noise(), "PNG")[:33],
    "broken_sum.png": _encoded(_noise(), "PNG")[:40] + b"\xff" + _encoded(_noise(), "PNG")[41:],
    "bomb.png": _png_of(60_000, 60_000),
    "large.png": _png_of(2**31 - 1, 2**31 - 1),
    "postscript.png": _EPS,
    "truncated.tif": _encoded(_noise(), "TIFF", compression="tiff_lzw")[:900],
    "truncated.webp": _encoded(_noise(), "WEBP")[:200],
    "truncated.gif": _encoded(_noise("P"), "GIF")[:60],
    "icon.png": _encoded(_noise(), "ICO"),  # a format that Pillow knows, and that nobody asked for
}
