"""A hierarchy in the Poincare disk as one HTML page to walk through, and as a GIF of such a walk.

A walk is a translation of the disk, the Moebius transformation that takes a point ``a`` to the
centre: ``z -> (z - a) / (1 - conj(a) z)``. The page computes it in JavaScript, the GIF in this
module.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from hypvision.io import StrPath
from hypvision.io.files import replacing, write_text
from hypvision.io.images import write_image

from .overlay import Box, font, is_free, printable
from .palette import css
from .sheet import contact_sheet

_TEMPLATE = Path(__file__).with_name("disk_page.html")
_ARC = 12  # number of points drawn on a geodesic
_FINER = 2  # frames of the GIF are drawn so many times as large as they are written


@dataclass(frozen=True)
class DiskPage:
    """The content of the page.

    Attributes:
        title: heading of the page.
        frames: coordinates ``(T, N, 2)`` in the unit disk during the training; the last frame is
            its end.
        labels: text for each name.
        edges: rows ``(E, 2)``: a name and one of its parents.
        shades: colours ``(N, 3)``, from 0 to 1.
        order: order in which names should be written; the first is in the middle.
        pictures: square thumbnails of some names, by row.
        scale: factor by which distances from the middle were multiplied.
    """

    title: str
    frames: np.ndarray
    labels: Sequence[str]
    edges: np.ndarray
    shades: np.ndarray
    order: Sequence[int]
    pictures: dict[int, Image.Image] = field(default_factory=dict)
    scale: float = 1.0


def write_page(page: DiskPage, path: StrPath) -> None:
    """Write the page as one HTML file that needs no other file and no network."""
    data = {
        "frames": np.round(page.frames, 6).tolist(),
        "labels": list(page.labels),
        "edges": np.asarray(page.edges).tolist(),
        "colours": [css(shade) for shade in page.shades],
        "order": [int(row) for row in page.order],
        "pictures": {str(row): _data_url(image) for row, image in page.pictures.items()},
        "scale": page.scale,
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("{{title}}", escape(page.title))
    # Escape "<", because a label must not end the script.
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    write_text(path, text.replace("{{data}}", content))


def _data_url(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def moved(z: np.ndarray, a: complex | np.ndarray) -> np.ndarray:
    """Return complex points of the disk after the translation that takes ``a`` to the centre; with
    an array ``a`` each point has its own translation."""
    return (z - a) / (1 - np.conj(a) * z)


def geodesics(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return complex points ``(E, 12)`` on the geodesics between complex points ``(E,)`` of the
    disk."""
    way = moved(q, p)[:, None] * np.linspace(0, 1, _ARC)
    return moved(way, -p[:, None])


def draw_page(page: DiskPage, z: np.ndarray, size: int = 400) -> Image.Image:
    """Return a picture of the disk with the names at the complex places ``z``, as the page draws
    it."""
    side = size * _FINER
    image = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(image)
    half = side / 2
    radius = half - 2 * _FINER
    draw.ellipse(
        (half - radius, half - radius, half + radius, half + radius),
        fill="#fafafa",
        outline="#888",
        width=_FINER,
    )

    def pixels(points: np.ndarray) -> np.ndarray:
        return np.stack([half + radius * points.real, half - radius * points.imag], -1)

    colours = [css(shade) for shade in page.shades]
    arcs = pixels(geodesics(z[page.edges[:, 1]], z[page.edges[:, 0]]))
    for (name, _), arc in zip(page.edges, arcs):
        draw.line([tuple(point) for point in arc], fill=colours[name], width=_FINER)
    near = 1 - np.abs(z) ** 2  # the conformal factor: 1 in the centre, 0 at the rim
    places = pixels(z)
    for row in np.argsort(near):  # draws names near the centre last, over the others
        _draw_name(image, draw, page.pictures.get(int(row)), places[row], near[row], colours[row])
    _write_labels(draw, page, places, near, side)
    return image.resize((size, size), Image.Resampling.LANCZOS)


def _draw_name(
    image: Image.Image,
    draw: ImageDraw.ImageDraw,
    picture: Image.Image | None,
    place: np.ndarray,
    near: float,
    colour: str,
) -> None:
    x, y = place
    side = image.width
    if picture is None:
        radius = max(0.004, 0.014 * near) * side
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        return
    width = max(4, round(0.17 * side * near))
    left = round(x - width / 2)
    top = round(y - width / 2)
    edge = max(1, width // 24)
    box = (left - edge, top - edge, left + width + edge - 1, top + width + edge - 1)
    draw.rectangle(box, fill=colour)
    image.paste(picture.resize((width, width), Image.Resampling.BILINEAR), (left, top))


def _write_labels(
    draw: ImageDraw.ImageDraw, page: DiskPage, places: np.ndarray, near: np.ndarray, side: int
) -> None:
    """Write the names that are near the centre, none over another: above its point, or below it
    where another stands."""
    letters = font(round(0.03 * side))
    taken: list[Box] = []
    for row in page.order:
        text = printable(page.labels[row])
        if not text or near[row] < 0.08 or row in page.pictures:
            continue
        x, y = places[row]
        half = letters.getlength(text) / 2 + 2 * _FINER
        x = min(max(x, half), side - half)
        gap = 0.016 * side
        for line, anchor in ((y - gap, "mb"), (y + gap, "mt")):
            box = draw.textbbox((x, line), text, letters, anchor)
            if is_free(box, taken):
                taken.append(box)
                draw.text(
                    (x, line),
                    text,
                    "#222",
                    letters,
                    anchor,
                    stroke_width=_FINER,
                    stroke_fill="white",
                )
                break


def walk_frames(page: DiskPage, size: int = 320) -> list[Image.Image]:
    """Return pictures of the training, and of a walk from the middle to the largest branch, to the
    outermost name below it, and back."""
    training = (page.frames[..., 0] + 1j * page.frames[..., 1])[::-2][::-1]  # every second frame
    drawn = [draw_page(page, z, size) for z in training]
    last = training[-1]
    branch = next((row for row in page.order[1:] if abs(last[row]) > 0.2), page.order[-1])
    deepest = max(_below(page.edges, branch), key=lambda row: abs(last[row]), default=branch)
    stations = [0j, last[branch], last[deepest], 0j]
    drawn += [drawn[-1]] * 5
    for start, end in zip(stations, stations[1:]):
        for place in geodesics(np.array([start]), np.array([end]))[0]:
            drawn.append(draw_page(page, moved(last, 0.98 * place), size))
        drawn += [drawn[-1]] * 5
    return drawn


def _below(edges: np.ndarray, top: int) -> set[int]:
    found: set[int] = set()
    fresh = {int(top)}
    while fresh:
        fresh = {int(name) for name, parent in edges if int(parent) in fresh} - found
        found |= fresh
    return found


def write_gif(page: DiskPage, path: StrPath, size: int = 320) -> None:
    """Write the pictures of :func:`walk_frames` as a GIF that repeats."""
    frames = walk_frames(page, size)
    # All frames share one table of colours, so that nothing flickers.
    swatches = [Image.new("RGB", (96, 96), css(shade)) for shade in np.unique(page.shades, axis=0)]
    samples = contact_sheet([frames[-1], *swatches, *page.pictures.values()], cell=96)
    table = samples.quantize(128)
    drawn = [frame.quantize(palette=table, dither=Image.Dither.NONE) for frame in frames]
    with replacing(path) as temporary:
        write_image(
            drawn[0], temporary, "GIF", save_all=True, append_images=drawn[1:], duration=110, loop=0
        )
