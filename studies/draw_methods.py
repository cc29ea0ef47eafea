#!/usr/bin/env python
"""Draw the ideas of methods for docs/methods:
``python studies/draw_methods.py docs/images/methods``."""

import io
import math
import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hypvision.geometry import lorentz, poincare
from hypvision.io.errors import guard, require
from hypvision.io.files import replacing
from hypvision.viz.disk import PoincareDisk

BLUE = "tab:blue"
ORANGE = "tab:orange"
GREEN = "tab:green"
GREY = "0.35"


def at(radius: float, degrees: float) -> np.ndarray:
    """The point of the unit disk ``(2,)`` at a hyperbolic distance from the origin and an angle."""
    angle = math.radians(degrees)
    return math.tanh(radius / 2) * np.array([math.cos(angle), math.sin(angle)])


def lifted(points: Tensor | np.ndarray) -> Tensor:
    """The points ``(..., 3)`` of the hyperboloid that points of the disk ``(..., 2)`` stand for."""
    return lorentz.expmap0(poincare.logmap0(torch.as_tensor(points), 1.0) * 2, 1.0)


def lowered(points: Tensor) -> np.ndarray:
    """The points of the disk ``(..., 2)`` for points of the hyperboloid ``(..., 3)``."""
    return (points[..., 1:] / (1 + points[..., :1])).numpy()


def cone(apex: np.ndarray, min_radius: float = 0.1, steps: int = 60) -> np.ndarray:
    """The outline ``(N, 2)`` in the disk of the entailment cone at a point: two geodesics and the
    boundary between."""
    half = float(lorentz.half_aperture(lifted(apex), 1.0, min_radius))
    outward = apex / np.linalg.norm(apex)
    sides = []
    for angle in (-half, half):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        times = torch.linspace(0, 14, steps, dtype=torch.float64)[:, None]
        start = torch.from_numpy(apex)
        way = torch.from_numpy(turn @ outward)
        sides.append(poincare.geodesic_unit(times, start, way, 1.0).numpy())
    first, last = (math.atan2(side[-1, 1], side[-1, 0]) for side in sides)
    arc = np.linspace(first, first + (last - first) % (2 * math.pi), steps)
    return np.concatenate([sides[0], np.stack([np.cos(arc), np.sin(arc)], 1), sides[1][::-1]])


def name(
    disk: PoincareDisk,
    point: np.ndarray,
    text: str,
    offset: tuple[float, float] = (6, 4),
    **options,
) -> None:
    """A text beside a point, legible above lines."""
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    options = {"fontsize": 9, "bbox": box, "zorder": 5, **options}
    disk.axes.annotate(text, point, xytext=offset, textcoords="offset points", **options)


def draw_cones(figure) -> None:
    """MERU: a text entails what lies in its cone. HyCoCLIP: parts entail the whole."""
    disk = PoincareDisk(figure.subplots())
    general = at(0.75, 75)
    special = at(1.6, 66)
    for apex, colour in ((general, BLUE), (special, ORANGE)):
        outline = cone(apex, 0.25)
        disk.axes.fill(*outline.T, color=colour, alpha=0.15, linewidth=0)
        disk.axes.plot(*outline.T, color=colour, linewidth=1.2)
        disk.points(apex[None], s=36, color=colour)
    inside = at(2.9, 66)
    outside = at(2.9, 205)
    disk.points(np.stack([inside, outside]), s=40, color=GREEN, marker="s")
    disk.points(np.zeros((1, 2)), s=20, color=GREY)
    name(disk, np.zeros(2), "origin", (6, -12))
    name(disk, general, '"an animal"', (-70, -6))
    name(disk, special, '"a dog on grass"', (9, -10))
    name(disk, inside, "a photo of it", (-84, -2))
    name(disk, outside, "a photo of a car:\nin neither cone", (-14, -34))


def draw_ancestors(figure) -> None:
    """HIER: a triplet and the proxies that are drawn as its lowest common ancestors."""
    disk = PoincareDisk(figure.subplots())
    i = at(3.0, 62)
    j = at(3.1, 100)
    k = at(2.9, 205)
    near = at(1.75, 80)
    far = at(0.7, 130)
    other = [at(1.6, 300), at(2.0, 250), at(1.9, 20), at(1.2, 350)]
    for start, end, colour in (
        (i, near, BLUE),
        (j, near, BLUE),
        (near, far, GREY),
        (k, far, ORANGE),
    ):
        disk.geodesic(start, end, color=colour, linewidth=1.8)
    disk.points(np.stack(other), s=40, marker="^", color="0.75")
    disk.points(np.stack([near, far]), s=60, marker="^", color=GREY)
    disk.points(np.stack([i, j]), s=40, color=BLUE)
    disk.points(k[None], s=40, color=ORANGE)
    name(disk, i, "i")
    name(disk, j, "j, related to i", (-40, 8))
    name(disk, k, "k, unrelated", (2, -16))
    name(disk, near, "ancestor of i and j", (8, -6))
    name(disk, far, "ancestor of all three", (8, -10))
    name(disk, other[0], "other proxies", (6, -14), color="0.5")


def draw_attributes(figure) -> None:
    """LatHAdapter: classes above latent attributes above images."""
    disk = PoincareDisk(figure.subplots())
    classes = np.stack([at(0.9, 60), at(0.9, 180), at(0.9, 300)])
    for number, text in enumerate(classes):
        for step in (-34, 0, 34):
            degrees = 60 + 120 * number + step
            member = at(2.1, degrees)
            disk.geodesic(text, member, color=GREY, linewidth=1.3)
            disk.points(member[None], s=34, color=BLUE)
            for turn in (-9, 0, 9):
                image = at(3.4, degrees + turn)
                disk.geodesic(member, image, color="0.75")
                disk.points(image[None], s=14, color=GREEN, marker="s")
    disk.points(classes, s=60, color=ORANGE, marker="^")
    name(disk, classes[1], "class text", (9, -3))
    name(disk, at(2.1, 146), "latent attribute", (9, -2))
    name(disk, at(3.4, 223), "image", (8, -5))


def boosted(points: Tensor, degrees: float, to: np.ndarray) -> list[np.ndarray]:
    """Points of the disk ``(N, 2)``: as they are, rotated, and rotated and then boosted."""
    angle = math.radians(degrees)
    turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    matrix = torch.tensor(turn, dtype=points.dtype)
    on = lifted(points)
    rotated = lorentz.rotate(on, matrix, 1.0)
    moved = lorentz.boost(lifted(to).expand_as(rotated), rotated, 1.0)
    return [lowered(x) for x in (on, rotated, moved)]


def draw_boost(figure) -> None:
    """HECNN+: a linear layer is a rotation and a boost, and keeps all distances where it keeps the
    dimension."""
    side = torch.linspace(-0.45, 0.45, 5, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    pairs = [(a, b) for a in range(25) for b in range(25) if b - a == 5 or (b - a == 1 and b % 5)]
    titles = ("points", "rotated about the origin", "boosted: the origin moves")
    for axes, title, xy in zip(figure.subplots(1, 3), titles, boosted(grid, 35, at(1.6, 25))):
        disk = PoincareDisk(axes)
        disk.geodesics(*(xy[list(ends)] for ends in zip(*pairs)), colors="0.6")
        disk.points(xy, colours=[number // 5 for number in range(25)], s=26)
        disk.points(xy[12:13], s=60, color="black")
        axes.set_title(title, fontsize=10)


def centroid(points: np.ndarray, weights: list[float]) -> np.ndarray:
    """The Lorentz centroid ``(2,)`` of points of the disk ``(N, 2)``."""
    return lowered(lorentz.centroid(lifted(points), torch.tensor(weights).double(), 1.0))


def draw_averages(figure) -> None:
    """LViT: attention gives a token the centroid of other tokens, and the connection the average of
    both."""
    left, right = figure.subplots(1, 2)
    disk = PoincareDisk(left)
    token = at(1.0, 100)
    values = np.stack([at(2.0, 60), at(1.5, 20), at(2.6, 330), at(2.2, 200), at(2.8, 250)])
    weights = [0.4, 0.3, 0.2, 0.05, 0.05]
    found = centroid(values, weights)
    for value, weight in zip(values, weights):
        disk.geodesic(found, value, color="0.75", linewidth=6 * weight + 0.5)
        disk.points(value[None], s=30 + 200 * weight, color=BLUE)
    disk.points(token[None], s=50, color="black")
    disk.points(found[None], s=60, color=ORANGE, marker="^")
    name(disk, token, "token", (-40, 4))
    name(disk, found, "centroid", (-30, -16))
    left.set_title("attention: nearer tokens weigh more", fontsize=10)
    disk = PoincareDisk(right)
    between = centroid(np.stack([token, found]), [0.5, 0.5])
    disk.geodesic(token, found, color=GREY)
    disk.points(token[None], s=50, color="black")
    disk.points(found[None], s=60, color=ORANGE, marker="^")
    disk.points(between[None], s=60, color=GREEN, marker="s")
    name(disk, token, "token", (-40, 4))
    name(disk, found, "centroid", (4, -14))
    name(disk, between, "average", (8, 4))
    right.set_title("residual connection: the average", fontsize=10)


def draw_pixels(figure) -> None:
    """Hyperbolic segmentation: hyperplanes choose the class, the distance from the origin says how
    sure it is."""
    disk = PoincareDisk(figure.subplots())
    side = torch.linspace(-1, 1, 501, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    radius = grid.norm(dim=1)
    offsets = torch.from_numpy(np.stack([at(0.8, degrees) for degrees in (40, 160, 280)]))
    logits = poincare.ganea_logits(
        grid * (0.999 / radius.clamp(min=1))[:, None], offsets, offsets, 1.0
    )
    shades = torch.tensor([[31, 119, 180], [255, 127, 14], [44, 160, 44]])[logits.argmax(1)] / 255
    alpha = torch.where(radius < 1, 0.75 * radius, 0)
    image = torch.cat([shades, alpha[:, None]], 1).reshape(501, 501, 4).transpose(0, 1).numpy()
    disk.axes.imshow(image, extent=(-1, 1, -1, 1), origin="lower", zorder=-1)
    for degrees in (40, 160, 280):
        ends = [at(9, degrees + turn) for turn in (-48, 48)]
        disk.geodesic(*ends, color=GREY, linewidth=1.3)
    name(disk, at(0.0, 0), "uncertain", (6, -4))
    name(disk, at(3.2, 55), "sure", (-12, 0))


DRAWINGS = {
    "cones": (draw_cones, (4.8, 4.8)),
    "ancestors": (draw_ancestors, (4.8, 4.8)),
    "attributes": (draw_attributes, (4.8, 4.8)),
    "pixels": (draw_pixels, (4.8, 4.8)),
    "boost": (draw_boost, (9.2, 3.6)),
    "averages": (draw_averages, (8.4, 4.6)),
}


def draw(folder: Path) -> None:
    """All drawings, as PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for title, (paint, size) in DRAWINGS.items():
        figure = require("matplotlib.figure", "viz").Figure(figsize=size, layout="constrained")
        paint(figure)
        picture = io.BytesIO()
        figure.savefig(picture, dpi=110, bbox_inches="tight", pad_inches=0.05)
        with replacing(folder / f"{title}.png") as temporary:  # a palette: a third of the bytes
            Image.open(picture).convert("RGB").quantize(256).save(
                temporary, format="PNG", optimize=True
            )


if __name__ == "__main__":
    parser = ArgumentParser(description="Draw the ideas of methods.")
    parser.add_argument("folder", type=Path, help="where the PNG files go")
    sys.exit(guard(lambda args: draw(args.folder), parser.parse_args()))
