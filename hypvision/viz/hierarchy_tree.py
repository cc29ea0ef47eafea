"""Drawings of the tree of visual parts that a Hi-Mapper finds in an image.

Each node of the tree attends to the backbone's map; the attention is a soft map of a visual part.

>>> model = timm.create_model("himapper_deit_tiny_patch16_224", pretrained=True)
>>> explain_hierarchy(model, Image.open("cat.jpg"))["tree"].show()
"""

from __future__ import annotations

import colorsys
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor, nn

from hypvision.geometry import Lorentz, lorentz
from hypvision.io import HypvisionError, Plain
from hypvision.io.images import to_rgb
from hypvision.models.hierarchy_mapper import HierarchyMapper
from hypvision.models.himapper import HiMapper

from .clusters import enlarge, evaluating, explain_image, prepare_for
from .disk import geodesic_arc, to_disk
from .overlay import font, paint
from .sheet import titled_sheet, wrapped

GAP = 4
MARGIN = 12
_BRANCH = 40  # room in pixels between two levels of the tree
_LETTERS = 18  # their height in the tree, which is shown at about two thirds of its width
_FARTHEST = 3.0  # largest distance drawn, for curvature -1: 0.91 of the disk's radius
_LEGEND = (
    "In colour: the patches in which the attention of a node is the largest of its level. "
    "Beside it: the name of the node and the number of these patches."
)


# Maps of parts


@torch.no_grad()
def part_maps(model: nn.Module, x: Tensor) -> tuple[list[Tensor], Plain]:
    """Return the soft map of each node of the tree: its attention to the tokens of the map.

    Args:
        model: a :class:`~hypvision.models.HiMapper`; it is evaluated without dropout and noise, and
            its mode is left as it was.
        x: normalised images ``(B, 3, H, W)``.

    Returns:
        For each level, the finest first, maps ``(B, n_l, h, w)`` whose sum over the map is 1; and
        the result of ``forward_with_hierarchy``.
    """
    himapper, mapper = _with_mapper(model)
    mode = mapper.eval_noise
    mapper.eval_noise = "mean"
    try:
        with evaluating(model):
            out = himapper.forward_with_hierarchy(x.to(next(model.parameters())), maps=True)
    finally:
        mapper.eval_noise = mode
    count = out["tokens"].shape[1]
    height, width = _grid(count, x.shape[-2], x.shape[-1])
    # With kv="all" class tokens come before the pixels; leave them out.
    maps = [level[..., level.shape[-1] - count :].float() for level in out["attention"]]
    maps = [level / level.sum(-1, keepdim=True).clamp(min=1e-12) for level in maps]
    return [level.unflatten(-1, (height, width)).cpu() for level in maps], out


def _with_mapper(model: nn.Module) -> tuple[HiMapper, HierarchyMapper]:
    if not isinstance(model, HiMapper) or model.mapper is None:
        raise HypvisionError(
            f"The model {type(model).__name__} has no hierarchy. Take a Hi-Mapper, such as "
            "himapper_resnet50."
        )
    return model, model.mapper


def _grid(count: int, height: int, width: int) -> tuple[int, int]:
    """Return the rows and columns of a map of ``count`` tokens: the pair whose shape is nearest to
    that of the image."""

    def stretch(rows: int) -> float:
        return abs(math.log(rows * rows / count * width / height))

    best = min((rows for rows in range(1, count + 1) if count % rows == 0), key=stretch)
    return best, count // best


# Colours and names of nodes


def node_colours(nodes: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Return a colour for each node of each level; ``nodes`` are the numbers of nodes, from the
    finest level to the coarsest. Each coarsest node has a hue, the nodes below it have shades of
    this hue."""

    def colour(node: int, below: int) -> tuple[int, int, int]:
        hue = (node // below) / nodes[-1] + 0.03
        # Position among the nodes with the same coarsest ancestor.
        place = (node % below + 0.5) / below
        red, green, blue = colorsys.hls_to_rgb(hue % 1.0, 0.35 + 0.35 * place, 0.75)
        return round(255 * red), round(255 * green), round(255 * blue)

    return [[colour(node, count // nodes[-1]) for node in range(count)] for count in nodes]


def letter(node: int) -> str:
    """Return the name of a coarsest node in all drawings of an image: A, B, ..."""
    return chr(ord("A") + node) if node < 26 else str(node + 1)


def node_name(node: int, depth: int) -> str:
    """Return the name of a node that lies ``depth`` levels below the coarsest: the letter of its
    ancestor there, and for each step down the number of the child, as in A12."""
    steps = [str(1 + (node >> bit) % 2) for bit in reversed(range(depth))]
    return letter(node >> depth) + "".join(steps)


# Drawing images


def draw_tree(image: Image.Image, maps: Sequence[Tensor], leaf: int = 64) -> Image.Image:
    """Draw the tree from left to right: the image with outlines of the coarsest parts, then a
    column for each level, the coarsest first.

    A node is shown as the image, in colour where its attention is the largest of its level and pale
    elsewhere; beside it stand its name and the number of these patches. Names tell the way from the
    coarsest node: A12 is the second child of the first child of A. A node that is the strongest in
    no patch is a dot if a node below it is shown, and left out otherwise.

    Args:
        image: the image that the model saw.
        maps: maps of one image, ``(n_l, h, w)`` for each level from the finest.
        leaf: height in pixels of a node of the finest level; those of coarser levels are larger.
    """
    photo = to_rgb(image)
    labels = [level.argmax(0).numpy() for level in maps]
    won = [np.bincount(label.ravel(), minlength=len(level)) for label, level in zip(labels, maps)]
    colours = node_colours(list(map(len, maps)))
    plan = _plan(won, image.width / image.height, leaf)
    said = wrapped(_LEGEND, plan.right - MARGIN, _LETTERS, 4)
    line = round(1.4 * _LETTERS)
    below = plan.bottom + MARGIN
    size = (plan.right + MARGIN, round(below + line * len(said) + MARGIN / 2))
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    whole = photo.resize(plan.root, Image.Resampling.BICUBIC)
    coarse = enlarge(labels[-1], plan.root[::-1])
    whole = _outlined(whole, coarse, colours[-1], 7)
    _name_parts(whole, coarse)
    sheet.paste(whole, (MARGIN, round(plan.middle - plan.root[1] / 2)))
    for l in reversed(range(len(maps))):
        small = photo.resize(plan.sizes[l], Image.Resampling.BICUBIC)
        parts = enlarge(labels[l], plan.sizes[l][::-1])
        for node in plan.heights[l]:
            drawing = _lit(small, parts == node, colours[l][node]) if won[l][node] else None
            _draw_node(sheet, plan, l, node, drawing, colours[l][node])
    for number, text in enumerate(said):
        draw.text((MARGIN, below + line * number), text, "black", font(_LETTERS), "la")
    return sheet


class _Plan(NamedTuple):
    """Where a drawn tree has what, in pixels: ``root``, width and height of the whole image, whose
    ``middle`` is the height of its centre; for each level from the finest ``sizes`` of its images,
    ``lefts``, and by node ``heights`` of their centres and ``texts``; ``right`` and ``bottom`` of
    all."""

    root: tuple[int, int]
    middle: float
    sizes: list[tuple[int, int]]
    lefts: list[int]
    heights: list[dict[int, float]]
    texts: list[list[str]]
    right: int
    bottom: float


def _plan(won: Sequence[np.ndarray], aspect: float, leaf: int) -> _Plan:
    """Return the plan of a tree whose nodes are the strongest in ``won`` patches, for an image of
    which width over height is ``aspect``."""
    rows = _rows(won)
    step = leaf + 2 * GAP
    # Nodes grow towards the root, but no higher than the distance of neighbours allows.
    apart = [min(np.diff(sorted(level.values())), default=np.inf) for level in rows]
    sizes = [
        _size(int(min(leaf * 1.3**l, step * gap - 2 * GAP)), aspect) for l, gap in enumerate(apart)
    ]
    texts = _texts(won)
    root = _size(4 * leaf, aspect)
    lefts = [0] * len(won)
    right = MARGIN + root[0]
    for l in reversed(range(len(won))):
        lefts[l] = right + _BRANCH
        letters = max(font(_LETTERS).getlength(line) for line in "\n".join(texts[l]).split("\n"))
        right = round(lefts[l] + sizes[l][0] + 3 * GAP + letters)
    centres = [{node: step * (row + 0.5) for node, row in level.items()} for level in rows]
    over, lowest = _reach(sizes, centres)
    top = MARGIN + over
    bottom = max(top + lowest, 2 * MARGIN + root[1])
    heights = [{node: top + y for node, y in level.items()} for level in centres]
    return _Plan(root, (top + bottom - MARGIN) / 2, sizes, lefts, heights, texts, right, bottom)


def _texts(won: Sequence[np.ndarray]) -> list[list[str]]:
    """Return the name of each node of each level, and below it the number of its patches."""
    return [
        [f"{node_name(node, len(won) - 1 - l)}\n{number}" for node, number in enumerate(level)]
        for l, level in enumerate(won)
    ]


def _reach(
    sizes: Sequence[tuple[int, int]], centres: Sequence[dict[int, float]]
) -> tuple[float, float]:
    """Return how far the nodes extend above 0 and below it: coarse nodes at the edge extend beyond
    the rows below them."""
    halves = [height / 2 for _, height in sizes]
    over = max(half - min(level.values()) for half, level in zip(halves, centres))
    lowest = max(half + max(level.values()) for half, level in zip(halves, centres))
    return max(0.0, over), lowest


def _size(height: int, aspect: float) -> tuple[int, int]:
    return max(1, round(height * aspect)), height


def _draw_node(
    sheet: Image.Image,
    plan: _Plan,
    level: int,
    node: int,
    drawing: Image.Image | None,
    colour: tuple[int, int, int],
) -> None:
    """Draw a node with the branch that leads to it: ``drawing``, or a dot for None."""
    draw = ImageDraw.Draw(sheet)
    left = plan.lefts[level]
    y = plan.heights[level][node]
    start = (MARGIN + plan.root[0], plan.middle)
    if level + 1 < len(plan.lefts):
        start = (left - _BRANCH, plan.heights[level + 1][node // 2])
    draw.line([start, (left, y)], fill=colour, width=3)
    width, height = plan.sizes[level]
    end = left + width
    if drawing is not None:
        sheet.paste(drawing, (left, round(y - height / 2)))
    else:
        draw.line([(left, y), (end, y)], fill=colour, width=3)
        draw.ellipse([end - 10, y - 5, end, y + 5], fill=colour)
    text = plan.texts[level][node]
    draw.multiline_text((end + GAP, y), text, "black", font(_LETTERS), "lm", spacing=2)


def _lit(photo: Image.Image, inside: np.ndarray, colour: tuple[int, int, int]) -> Image.Image:
    """Return the photo, pale and grey but for the pixels ``inside`` ``(H, W)``, with the border of
    these and a frame in a colour."""
    pixels = np.asarray(photo, dtype=np.float32)
    pale = 0.7 * 255 + 0.3 * pixels.mean(-1, keepdims=True)
    shown = np.where(inside[..., None], pixels, pale).astype(np.uint8)
    lit = Image.fromarray(_bordered(shown, inside, colour, 5))
    ImageDraw.Draw(lit).rectangle((0, 0, lit.width - 1, lit.height - 1), outline=colour)
    return lit


def _rows(won: Sequence[np.ndarray]) -> list[dict[int, float]]:
    """Return, for each level, the nodes to show with the row of each: those that are the strongest
    in ``won`` patches and those above them. The end of a branch has a row of its own, another node
    lies in the middle of its children."""
    shown = [set(np.flatnonzero(level).tolist()) for level in won]
    for below, level in zip(shown, shown[1:]):
        level |= {node // 2 for node in below}
    rows: list[dict[int, float]] = [{} for _ in won]
    free = itertools.count()

    def place(level: int, node: int) -> float:
        below = [n for n in (2 * node, 2 * node + 1) if level and n in shown[level - 1]]
        places = [place(level - 1, child) for child in below]
        rows[level][node] = sum(places) / len(places) if places else float(next(free))
        return rows[level][node]

    for node in sorted(shown[-1]):
        place(len(won) - 1, node)
    return rows


def draw_levels(image: Image.Image, maps: Sequence[Tensor]) -> Image.Image:
    """Draw the image that the model saw and, for each level from the finest, its patches in the
    colours of the nodes that are the strongest there; ``maps`` of one image are ``(n_l, h, w)`` for
    each level."""
    side = 224
    height = round(side * image.height / image.width)
    small = to_rgb(image).resize((side, height), Image.Resampling.BICUBIC)
    tiles = [(small, "image")]
    for number, (level, colours) in enumerate(zip(maps, node_colours(list(map(len, maps))))):
        labels = level.argmax(0).numpy()
        painted = paint(small, enlarge(labels, (height, side)), np.array(colours), 0.6)
        end = {0: " (finest)", len(maps) - 1: " (coarsest)"}.get(number, "")
        text = f"level {number}{end}: {len(np.unique(labels))} of {len(level)} nodes"
        tiles.append((painted, text))
    return titled_sheet(tiles, columns=len(tiles))


def draw_parts(image: Image.Image, maps: Sequence[Tensor], side: int = 480) -> Image.Image:
    """Draw the image that the model saw with outlines of its parts, the regions in which a node is
    the strongest of its level, and the names of the nodes: for the coarsest level and the one below
    it.

    Args:
        image: the image that the model saw.
        maps: maps of one image, ``(n_l, h, w)`` for each level from the finest.
        side: width of each picture in pixels.
    """
    height = round(side * image.height / image.width)
    large = to_rgb(image).resize((side, height), Image.Resampling.BICUBIC)
    colours = node_colours(list(map(len, maps)))
    tiles = []
    for l, kind in zip(reversed(range(len(maps))), ("the coarsest nodes", "the nodes below")):
        labels = enlarge(maps[l].argmax(0).numpy(), (height, side))
        drawn = _outlined(large, labels, colours[l])
        _name_parts(drawn, labels, len(maps) - 1 - l)
        tiles.append((drawn, f"{kind}: {len(np.unique(labels))} parts"))
    return titled_sheet(tiles, columns=len(tiles))


def _outlined(
    image: Image.Image,
    labels: np.ndarray,
    colours: Sequence[tuple[int, int, int]],
    width: int = 11,
) -> Image.Image:
    """Return a copy of an image in which the inner border of each region of ``labels`` ``(H, W)``
    has the region's colour; a line between two regions is about ``width`` (odd) pixels wide."""
    pixels = np.asarray(image)
    for label in np.unique(labels):
        pixels = _bordered(pixels, labels == label, colours[label], width)
    return Image.fromarray(pixels)


def _bordered(
    pixels: np.ndarray, inside: np.ndarray, colour: tuple[int, int, int], width: int
) -> np.ndarray:
    """Return pixels ``(H, W, 3)`` in which the inner border of a region ``(H, W)`` has a colour."""
    region = Image.fromarray((255 * inside).astype(np.uint8))
    core = np.asarray(region.filter(ImageFilter.MinFilter(width)))
    border = inside & (core == 0)
    return np.where(border[..., None], np.array(colour, np.uint8), pixels)


def _name_parts(image: Image.Image, labels: np.ndarray, depth: int = 0) -> None:
    """Write the name of each part, of nodes ``depth`` levels below the coarsest, at the point whose
    surroundings belong to it most."""
    draw = ImageDraw.Draw(image)
    around = max(1, image.width // 12)
    for label in np.unique(labels):
        inside = np.pad((255 * (labels == label)).astype(np.uint8), around)
        blurred = Image.fromarray(inside).filter(ImageFilter.BoxBlur(around))
        share = np.asarray(blurred)[around:-around, around:-around]
        row, column = np.unravel_index(share.argmax(), share.shape)
        draw.text(
            (int(column), int(row)), node_name(int(label), depth), "white", font(26), "mm",
            stroke_width=3, stroke_fill="black",
        )  # fmt: skip


def disk_positions(points: Sequence[Tensor], c: float, scale: float | None = 1.0) -> list[Tensor]:
    """Return positions ``(n_l, 2)`` in the Poincare disk of curvature -1 for each level's points
    ``(n_l, D + 1)`` on a hyperboloid of curvature ``-c``, see :func:`hypvision.viz.disk.to_disk`;
    distances from the origin are exact, times ``scale``."""
    places = to_disk(torch.cat(list(points)), Lorentz(c), centre="origin", scale=scale)
    return list(torch.from_numpy(places).split([len(level) for level in points]))


def draw_disk(points: Sequence[Tensor], c: float) -> Image.Image:
    """Draw the nodes in the Poincare disk, each joined to its parent by a geodesic; coarser nodes
    have larger dots.

    Nodes near the origin are drawn enlarged: the circle is then grey, and a text says at which
    hyperbolic radius it lies. If nodes are so far out that they would all lie on the rim, distances
    are drawn shorter, and the text says by how much. ``points`` of one image are ``(n_l, D + 1)``
    for each level from the finest, with curvature ``c``."""
    radii = lorentz.dist0(torch.cat(list(points)).double(), c)
    # The largest distance in the unit of curvature -1, as in the disk.
    shorter = min(1.0, _FARTHEST / max(float(radii.max()) * c**0.5, 1e-6))
    places = disk_positions(points, c, shorter)
    colours = node_colours(list(map(len, points)))
    # Draw at a larger size and reduce the picture, for smooth lines.
    scale = 2
    size = 640
    side = size * scale
    half = size * scale / 2
    farthest = float(torch.cat(places).norm(dim=1).max())
    zoom = max(1.0, 0.85 / max(farthest, 1e-3))
    reach = (half - MARGIN * scale) * zoom
    below = 3 * 18  # height of the text below the disk
    sheet = Image.new("RGB", (side, side + below * scale), "white")
    draw = ImageDraw.Draw(sheet)
    ring = half - MARGIN * scale
    shade = "black" if zoom == 1 else (170, 170, 170)
    draw.ellipse(
        [half - ring, half - ring, half + ring, half + ring], outline=shade, width=2 * scale
    )
    drawn = f", drawn times {shorter:.2f}" if shorter < 1 else ""
    place = (
        "infinitely far away" if zoom == 1 else f"distance {2 * np.arctanh(1 / zoom) / c**0.5:.2f}"
    )
    lines = [
        f"large dots: the coarsest nodes, {letter(0)} to {letter(len(points[-1]) - 1)}",
        f"distances from the centre: {radii.min():.1f} to {radii.max():.1f}{drawn}",
        f"circle: {place}; curvature -{c:.2f}",
    ]
    for row, text in enumerate(lines):
        corner = (8 * scale, (size + 18 * row) * scale)
        draw.text(corner, text, fill="black", font_size=12 * scale)

    def pixels(positions: np.ndarray) -> list[tuple[float, float]]:
        return [(half + reach * x, half - reach * y) for x, y in positions.tolist()]

    for level, above, shades in zip(places, places[1:], colours):
        parents = above[torch.arange(len(level)) // 2]
        for path, colour in zip(geodesic_arc(level, parents, 128), shades):
            draw.line(pixels(path), fill=colour, width=scale)
    for l, (level, shades) in enumerate(zip(places, colours)):
        r = (3 + 2 * l) * scale
        for (x, y), colour in zip(pixels(level.numpy()), shades):
            draw.ellipse([x - r, y - r, x + r, y + r], fill=colour, outline="black", width=scale)
    for node, (x, y) in enumerate(pixels(places[-1].numpy())):
        towards = 22 * scale / max(math.hypot(half - x, half - y), 1e-6)
        beside = (x + towards * (half - x), y + towards * (half - y))
        draw.text(beside, letter(node), "black", font(18 * scale), "mm")
    return sheet.resize((size, size + below), Image.Resampling.LANCZOS)


def explain_hierarchy(
    model: nn.Module,
    image: Image.Image,
    size: int = 224,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> dict[str, Image.Image]:
    """Draw the tree, the parts, the levels and the disk of an image.

    Args:
        model: a :class:`~hypvision.models.HiMapper`; its mode and weights are left as they are.
        image: an image of any size and mode.
        size: short side of the image that the model sees, a multiple of 32.
        mean, std: normalisation; None: what timm resolves for the model.

    Returns:
        ``"tree"``, ``"parts"``, ``"levels"`` and, unless the model's geometry is flat, ``"disk"``.
    """
    seen, x = prepare_for(model, image, size, mean, std)
    try:
        maps, out = part_maps(model, x)
    except AssertionError as error:  # timm asserts that the size fits
        raise HypvisionError(
            f"The model does not accept images of {seen.width} x {seen.height} pixels ({error}). "
            "Give --size, or --model-args dynamic_img_size=True (ViT) or strict_img_size=False "
            "(Swin)."
        ) from error
    first = [level[0] for level in maps]
    result = {
        "tree": draw_tree(seen, first),
        "parts": draw_parts(seen, first),
        "levels": draw_levels(seen, first),
    }
    if isinstance(_with_mapper(model)[1].lift.manifold, Lorentz):
        result["disk"] = draw_disk([level[0] for level in out["points"]], float(out["curvature"]))
    return result


def explain(
    model: nn.Module,
    image: Image.Image,
    size: int = 224,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **clusters: Any,
) -> dict[str, Image.Image]:
    """Draw the tree of parts of a Hi-Mapper (:func:`~hypvision.viz.explain_hierarchy`), or the
    clusters of an HCFormer (:func:`~hypvision.viz.explain_image`), and return the pictures by name.
    ``clusters`` are further arguments for an HCFormer, and an error for a Hi-Mapper."""
    if hasattr(model, "forward_with_hierarchy"):
        if clusters:
            raise HypvisionError(
                "A Hi-Mapper has a tree of parts, but no clusters: leave out "
                f"{', '.join(clusters)}."
            )
        return explain_hierarchy(model, image, size, mean, std)
    return explain_image(model, image, size, mean=mean, std=std, **clusters)
