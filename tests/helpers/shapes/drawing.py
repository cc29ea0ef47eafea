"""Drawing of the procedural data set's images: outlines, textures and backgrounds in plain numpy.

An outline is a *signed distance*: a function of points that is negative inside the shape, positive
outside and grows by about one per unit across the edge. Points are in the shape's own frame, where
x points right, y points down and the shape fits the unit circle. Outlines use only +, *, min, max,
abs and sqrt on arrays (trigonometry is done on scalars): these operations round alike everywhere,
which keeps the images equal between machines as far as numpy allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np

# An outline maps arrays x and y of one shape to the signed distances, an array of that shape.
Outline = Callable[[np.ndarray, np.ndarray], np.ndarray]

TEXTURES = ("checkered", "dotted", "plain", "striped")

# RGB values. The hue of orange is halfway between red and yellow, so that jitter of the colours
# does not make two of the six alike.
COLOURS = {
    "blue": (50, 90, 220),
    "green": (40, 165, 65),
    "orange": (245, 130, 20),
    "purple": (150, 60, 190),
    "red": (215, 35, 45),
    "yellow": (240, 215, 40),
}


# Outlines of geometric figures
# --------------------------------------------------------------------------------------------------


def circle(cx: float, cy: float, radius: float) -> Outline:
    """Return the outline of a disk of ``radius`` around (cx, cy)."""
    return lambda x, y: np.sqrt((x - cx) ** 2 + (y - cy) ** 2) - radius


def box(left: float, top: float, right: float, bottom: float) -> Outline:
    """Return the outline of an upright rectangle."""
    cx = (left + right) / 2
    cy = (top + bottom) / 2
    a = (right - left) / 2
    b = (bottom - top) / 2
    return lambda x, y: np.maximum(np.abs(x - cx) - a, np.abs(y - cy) - b)


def ellipse(a: float, b: float) -> Outline:
    """Return the outline of an ellipse with semi-axes ``a``, ``b`` at the origin; its distance is
    exact to first order at the edge, which is where it is used."""

    def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        level = np.sqrt((x / a) ** 2 + (y / b) ** 2)
        slope = np.sqrt((x / (a * a)) ** 2 + (y / (b * b)) ** 2)
        return level * (level - 1) / np.maximum(slope, 1e-6)

    return distance


def convex(vertices: Sequence[tuple[float, float]]) -> Outline:
    """Return the outline of a convex polygon: the largest of the signed distances to its edges'
    lines. The vertices run clockwise as seen on the screen (y points down)."""
    planes = []
    for (x0, y0), (x1, y1) in zip(vertices, [*vertices[1:], vertices[0]]):
        length = math.hypot(x1 - x0, y1 - y0)
        # (nx, ny) is the unit normal of the edge that points out of the polygon
        nx = (y1 - y0) / length
        ny = (x0 - x1) / length
        planes.append((nx, ny, nx * x0 + ny * y0))

    return lambda x, y: reduce(np.maximum, (nx * x + ny * y - offset for nx, ny, offset in planes))


def regular(sides: int) -> Outline:
    """Return the outline of a regular polygon inscribed in the unit circle, with one vertex at the
    top."""
    turns = [2 * math.pi * k / sides for k in range(sides)]
    return convex([(math.sin(t), -math.cos(t)) for t in turns])


def star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed distance of points to a five-pointed star. A point inside the star lies
    outside at most one of the five edge lines, so the distance is the second largest of the
    five."""
    turns = [math.pi + 2 * math.pi * k / 5 for k in range(5)]
    planes = np.stack([math.sin(t) * x - math.cos(t) * y for t in turns])
    return np.partition(planes, 3, axis=0)[3] - math.cos(2 * math.pi / 5)


def bars(count: int, width: float) -> Outline:
    """Return the outline of ``count`` bars of half-width ``width`` through the origin, at equal
    angles: a cross (2) or an asterisk (3)."""
    length = math.sqrt(1 - width * width)
    turns = [(math.cos(math.pi * k / count), math.sin(math.pi * k / count)) for k in range(count)]

    def bar(c: float, s: float) -> Outline:
        return lambda x, y: np.maximum(abs(s * x + c * y) - width, abs(c * x - s * y) - length)

    return union(*(bar(c, s) for c, s in turns))


def union(*outlines: Outline) -> Outline:
    """Return the outline of the union of outlines; they should overlap, or a soft seam shows where
    they only touch."""
    return lambda x, y: reduce(np.minimum, (outline(x, y) for outline in outlines))


def without(outline: Outline, hole: Outline) -> Outline:
    """Return the outline of ``outline`` with ``hole`` cut out."""
    return lambda x, y: np.maximum(outline(x, y), -hole(x, y))


# The parts of each shape
# ------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One part of a shape. ``paint`` is ``texture`` (the object's colour and texture), or ``dark``
    or ``light``, shades of the object's colour."""

    name: str
    paint: str
    outline: Outline


def _simple(outline: Outline) -> tuple[Part, ...]:
    return (Part("", "texture", outline),)


# The parts of a shape are painted in this order, later ones on top.
OUTLINES: dict[str, tuple[Part, ...]] = {
    "disk": _simple(circle(0, 0, 1)),
    "ring": _simple(without(circle(0, 0, 1), circle(0, 0, 0.52))),
    "ellipse": _simple(ellipse(1, 0.5)),
    "crescent": _simple(without(circle(0, 0, 1), circle(0.5, 0, 0.82))),
    "triangle": _simple(regular(3)),
    "square": _simple(regular(4)),
    "pentagon": _simple(regular(5)),
    "hexagon": _simple(regular(6)),
    "star": _simple(star),
    "cross": _simple(bars(2, 0.3)),
    "asterisk": _simple(bars(3, 0.17)),
    "arrow": _simple(union(box(-0.95, -0.2, 0.3, 0.2), convex([(0.1, -0.7), (1, 0), (0.1, 0.7)]))),
    "house": (
        Part("wall", "texture", box(-0.62, -0.25, 0.62, 0.75)),
        Part("roof", "dark", convex([(0, -0.95), (0.9, -0.15), (-0.9, -0.15)])),
        Part("door", "light", box(-0.17, 0.2, 0.17, 0.75)),
    ),
    "car": (
        Part("body", "texture", box(-0.95, -0.1, 0.95, 0.3)),
        Part(
            "cabin", "light", convex([(-0.4, -0.55), (0.35, -0.55), (0.6, -0.08), (-0.65, -0.08)])
        ),
        Part("wheel", "dark", union(circle(-0.52, 0.32, 0.24), circle(0.52, 0.32, 0.24))),
    ),
    "face": (
        Part("head", "texture", circle(0, 0, 1)),
        Part("eye", "dark", union(circle(-0.38, -0.25, 0.17), circle(0.38, -0.25, 0.17))),
        Part("mouth", "dark", without(circle(0, 0.2, 0.55), circle(0, -0.02, 0.6))),
    ),
    "tree": (
        Part("trunk", "dark", box(-0.16, 0.1, 0.16, 0.98)),
        Part(
            "crown",
            "texture",
            union(circle(-0.4, 0.02, 0.42), circle(0.4, 0.02, 0.42), circle(0, -0.45, 0.52)),
        ),
    ),
}

PARTS: tuple[str, ...] = tuple(
    f"{shape}/{part.name}"
    for shape, parts in sorted(OUTLINES.items())
    for part in parts
    if part.name
)
"""Names of all parts, as SHAPE/PART; part ``i`` of this tuple has the number ``i + 1`` in a part
map, in which 0 means no part."""

_PART_NUMBER = {name: number for number, name in enumerate(PARTS, start=1)}


# Turning sprites into pixels
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sprite:
    """One object of a scene, with all that its drawing needs. Lengths are in pixels, angles in
    radians clockwise; pixel (0, 0) spans [0, 1]²."""

    shape: str
    texture: str
    colour: str
    x: float  # x and y are the centre of the enclosing circle, radius its radius
    y: float
    radius: float
    angle: float
    period: float  # length in pixels after which the texture repeats
    grain: float  # angle by which the texture is turned
    phase: tuple[float, float]
    lighter: bool  # whether the texture's second shade is lighter than the colour; else darker
    tint: tuple[float, float, float]  # RGB added to the colour, so that no two objects are equal


class Stamp(NamedTuple):
    """Pixels of a drawn sprite: the ``window`` of the image that it covers, ``cover`` (h, w) in [0,
    1], ``paint`` RGB (h, w, 3), and ``parts``, the part numbers (h, w)."""

    window: tuple[slice, slice]
    cover: np.ndarray
    paint: np.ndarray
    parts: np.ndarray

    @property
    def inside(self) -> np.ndarray:
        """Return the mask (h, w) of the pixels that the sprite covers at least half."""
        return self.cover >= 0.5

    def blend(self, canvas: np.ndarray) -> None:
        """Paint the sprite onto ``canvas`` (H, W, 3), float32, in place."""
        under = canvas[self.window]
        under += self.cover[..., None] * (self.paint - under)


def rasterise(sprite: Sprite, height: int, width: int) -> Stamp:
    """Return the pixels of a sprite in an image of ``height`` x ``width``; what lies outside the
    image is cut off."""
    reach = sprite.radius + 1
    top = max(0, math.floor(sprite.y - reach))
    bottom = min(height, math.ceil(sprite.y + reach))
    left = max(0, math.floor(sprite.x - reach))
    right = min(width, math.ceil(sprite.x + reach))
    dx = (np.arange(left, right, dtype=np.float32) + np.float32(0.5 - sprite.x))[None, :]
    dy = (np.arange(top, bottom, dtype=np.float32) + np.float32(0.5 - sprite.y))[:, None]
    x, y = _turn(dx, dy, sprite.angle, 1 / sprite.radius)

    base = np.clip(np.add(COLOURS[sprite.colour], sprite.tint), 0, 255).astype(np.float32)
    dark = base * np.float32(0.4)
    light = base + (255 - base) * np.float32(0.65)
    # Each part of the shape has a coverage (h, w), a colour and a part number.
    layers: list[tuple[np.ndarray, np.ndarray, int]] = []
    for part in OUTLINES[sprite.shape]:
        amount = np.clip(0.5 - part.outline(x, y) * sprite.radius, 0, 1)
        if part.paint == "texture" and sprite.texture != "plain":
            second = light if sprite.lighter else dark
            shade = base + _texture(sprite, dx, dy)[..., None] * (second - base)
        else:
            shade = {"texture": base, "dark": dark, "light": light}[part.paint]
        layers.append((amount, shade, _PART_NUMBER.get(f"{sprite.shape}/{part.name}", 0)))
    cover, shade, number = layers[0]
    paint = np.broadcast_to(shade, (*cover.shape, 3)).copy()
    parts = np.where(cover >= 0.5, np.uint8(number), np.uint8(0))
    for amount, shade, number in layers[1:]:
        cover = np.maximum(cover, amount)
        paint += amount[..., None] * (shade - paint)
        parts[amount >= 0.5] = number
    return Stamp((slice(top, bottom), slice(left, right)), cover, paint, parts)


def _turn(
    dx: np.ndarray, dy: np.ndarray, angle: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates in a frame turned by ``angle`` and scaled by ``scale``; ``dx`` (1, w) and
    ``dy`` (h, 1) broadcast to (h, w)."""
    c = np.float32(math.cos(angle) * scale)
    s = np.float32(math.sin(angle) * scale)
    return c * dx + s * dy, c * dy - s * dx


def _texture(sprite: Sprite, dx: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Return the weight (h, w), from 0 to 1, of the texture's second shade at each pixel; its edges
    are soft over one pixel."""
    s, t = _turn(dx, dy, sprite.grain, 1 / sprite.period)
    s = (s + np.float32(sprite.phase[0])) % 1 - np.float32(0.5)
    if sprite.texture == "striped":
        return np.clip(0.5 + (0.25 - np.abs(s)) * sprite.period, 0, 1)
    t = (t + np.float32(sprite.phase[1])) % 1 - np.float32(0.5)
    if sprite.texture == "dotted":
        return np.clip(0.5 + (0.31 - np.sqrt(s * s + t * t)) * sprite.period, 0, 1)
    # A checkered texture is the product of stripes in both directions.
    a = np.clip((0.25 - np.abs(s)) * sprite.period, -0.5, 0.5)
    b = np.clip((0.25 - np.abs(t)) * sprite.period, -0.5, 0.5)
    return 0.5 + 2 * a * b


def draw_background(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return a greyish, softly varying background (height, width, 3), float32 in [0, 255]."""
    knots = 4
    grid = (
        rng.uniform(70, 190)
        + rng.uniform(-25, 25, (knots, knots, 1))
        + rng.uniform(-8, 8, (knots, knots, 3))
    )
    rows, columns = (_hat_weights(length, knots) for length in (height, width))
    strips = (rows @ grid.astype(np.float32).reshape(knots, -1)).reshape(height, knots, 3)
    return columns @ strips


def add_noise(rng: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """Return a finished image, uint8 (H, W, 3): ``canvas`` with grey pixel noise of up to 6
    levels."""
    height, width, _ = canvas.shape
    noise = rng.random((height, width, 1), dtype=np.float32) * 12 - 6
    return np.clip(np.rint(canvas + noise), 0, 255).astype(np.uint8)


def _hat_weights(length: int, knots: int) -> np.ndarray:
    """Return the matrix (length, knots) of linear interpolation from ``knots`` values to ``length``
    pixels."""
    position = (np.arange(length, dtype=np.float32) + 0.5) / length * (knots - 1)
    return np.clip(1 - np.abs(position[:, None] - np.arange(knots, dtype=np.float32)), 0, 1).astype(
        np.float32
    )
