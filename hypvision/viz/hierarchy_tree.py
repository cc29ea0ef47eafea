"""The tree of visual parts that a Hi-Mapper sees in an image.

Each node of the tree attends to the map of the backbone; the attention is a soft map of a part. Three views of it:

- :func:`draw_tree`: every node as a small image lit by its map, parents above their children;
- :func:`draw_levels`: for each level the image cut into the parts that win;
- :func:`draw_disk`: the nodes in the Poincare disk, joined to their parents by geodesics.

:func:`containment` measures whether the maps of parents cover those of their children.

>>> model = timm.create_model("himapper_deit_tiny_patch16_224", pretrained=True)
>>> explain_hierarchy(model, Image.open("cat.jpg"))["tree"].show()
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor, nn

from hypvision.errors import HypvisionError
from hypvision.geometry import lorentz, poincare
from hypvision.images import to_rgb

__all__ = [
    "Containment",
    "containment",
    "disk_positions",
    "draw_disk",
    "draw_levels",
    "draw_tree",
    "explain_hierarchy",
    "node_colours",
    "part_maps",
]

GAP, MARGIN = 4, 12


# Maps


@torch.no_grad()
def part_maps(model: nn.Module, x: Tensor, source: str = "attention") -> tuple[list[Tensor], dict]:
    """Soft map of each node.

    Args:
        model: a :class:`~hypvision.models.HiMapper`; evaluated without dropout and noise, and left as it was.
        x: normalised images ``(B, 3, H, W)``.
        source: ``"attention"``, that of the decomposition, or ``"cosine"``, the similarity of the tokens of the map and
            the node, above 0, divided by its sum.

    Returns:
        For each level, the finest first, ``(B, n_l, h, w)`` with sum 1 over the map; and what
        ``forward_with_hierarchy`` gives.

    Raises:
        HypvisionError: the model has no hierarchy, or a map whose shape is not told by the image's.
    """
    if not hasattr(model, "forward_with_hierarchy"):
        raise HypvisionError(f"The model {type(model).__name__} has no hierarchy. Take a Hi-Mapper.")
    if source not in ("attention", "cosine"):
        raise ValueError(f"source must be 'attention' or 'cosine', got {source!r}.")
    training, mode = [module for module in model.modules() if module.training], model.mapper.eval_noise
    model.eval()
    model.mapper.eval_noise = "mean"
    try:
        out = model.forward_with_hierarchy(x.to(next(model.parameters())), maps=True)
    finally:
        model.mapper.eval_noise = mode
        for module in training:
            module.training = True
    tokens = out["tokens"]
    height, width = _grid(tokens.shape[1], x.shape[-2], x.shape[-1])
    if source == "attention":
        # with kv="all" class tokens come first
        maps = [level[..., level.shape[-1] - tokens.shape[1] :].float() for level in out["attention"]]
    else:
        unit = F.normalize(tokens.float(), dim=-1)
        maps = [F.relu(F.normalize(nodes.float(), dim=-1) @ unit.mT) for nodes in out["nodes"]]
    maps = [level / level.sum(-1, keepdim=True).clamp(min=1e-12) for level in maps]
    return [level.unflatten(-1, (height, width)).cpu() for level in maps], out


def _grid(count: int, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a map of ``count`` tokens over an image; of those that divide it the most like its shape."""
    rows = [r for r in range(1, count + 1) if count % r == 0]
    best = min(rows, key=lambda r: abs(np.log(r / (count / r) * width / height)))
    return best, count // best


class Containment(NamedTuple):
    """Share of the children's maps inside the region of their parent, the same for the other nodes of the parent's
    level (chance), and for how many children the parent has more of it than the average other node; each of 0 to 1."""

    score: float
    chance: float
    wins: float


def containment(maps: Sequence[Tensor], mass: float = 0.5) -> Containment:
    """Whether the maps of parents cover those of their children.

    The region of a node is the smallest set of pixels that holds ``mass`` of its map. A child is contained in a node
    by the share of its map in that region. The score is the mean over all children of the containment in the parent;
    chance is that in the other nodes of the parent's level, which have regions of the same kind.

    Args:
        maps: of the levels from the finest, ``(B, n_l, h, w)`` or ``(n_l, h, w)``, >= 0.
        mass: share of its map that a region holds.

    Raises:
        ValueError: fewer than two levels, or a coarsest level of one node, for which there is no chance.
    """
    if len(maps) < 2 or maps[-1].shape[-3] < 2:
        raise ValueError("Containment needs two levels or more, and two nodes or more in the coarsest.")
    scores, chances = [], []
    for children, parents in zip(maps, maps[1:]):
        flat, region = (
            level.flatten(-2) / level.sum((-2, -1))[..., None].clamp(min=1e-12) for level in (children, parents)
        )
        ordered, order = region.sort(-1, descending=True)
        inside = torch.zeros_like(region).scatter(-1, order, ((ordered.cumsum(-1) - ordered) < mass).to(region.dtype))
        shares = flat @ inside.mT  # (..., n, n / 2)
        count = shares.shape[-1]
        own = torch.arange(shares.shape[-2]) // 2
        mine = shares[..., torch.arange(len(own)), own]
        scores.append(mine.flatten())
        chances.append(((shares.sum(-1) - mine) / (count - 1)).flatten())
    score, chance = torch.cat(scores), torch.cat(chances)
    return Containment(score.mean().item(), chance.mean().item(), (score > chance).double().mean().item())


# Colours


def node_colours(nodes: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """A colour for each node of each level: a hue for each of the coarsest, shades of it for what is below.

    Args:
        nodes: how many nodes the levels have, from the finest.
    """
    roots, found = nodes[-1], []
    for count in nodes:
        below = count // roots
        level = []
        for node in range(count):
            hue = (node // below) / roots + 0.03
            place = (node % below + 0.5) / below  # where among its siblings and cousins
            level.append(colorsys.hls_to_rgb(hue % 1.0, 0.35 + 0.35 * place, 0.75))
        found.append([tuple(round(255 * v) for v in colour) for colour in level])
    return found


# Images


def _enlarge(level: Tensor, size: tuple[int, int]) -> np.ndarray:
    """Maps ``(n, h, w)`` at the size ``(height, width)``, each with the maximum 1."""
    found = F.interpolate(level[None].float(), size, mode="bilinear", align_corners=False)[0]
    return (found / found.flatten(1).amax(1)[:, None, None].clamp(min=1e-12)).numpy()


def draw_tree(image: Image.Image, maps: Sequence[Tensor], leaf: int = 56, labels: bool = True) -> Image.Image:
    """The tree, its coarsest nodes on top: each node is the image lit by its map, framed in its colour.

    Args:
        image: what the model saw.
        maps: of one image, ``(n_l, h, w)`` for each level from the finest.
        leaf: width in pixels of a leaf.
        labels: write under each node for how many patches it is the strongest of its level; the frame of one that is
            strongest nowhere is grey.
    """
    counts = [len(level) for level in maps]
    colours, step = node_colours(counts), leaf + GAP
    aspect = image.height / image.width
    widths = [min(leaf * 2**l - GAP * (l > 0), int(leaf * 1.5**l)) for l in range(len(maps))]
    heights = [max(1, round(w * aspect)) for w in widths]
    line, text = 26, 13 if labels else 0
    tops, top = {}, MARGIN
    for l in reversed(range(len(maps))):
        tops[l] = top
        top += heights[l] + text + line
    sheet = Image.new("RGB", (2 * MARGIN + counts[0] * step, top - line + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)

    def centre(level: int, node: int) -> float:
        return MARGIN + step * 2**level * (node + 0.5)

    for l in range(len(maps) - 1):  # edges first, below the images
        for node in range(counts[l]):
            start = (centre(l + 1, node // 2), tops[l + 1] + heights[l + 1] + text)
            draw.line([start, (centre(l, node), tops[l])], fill=colours[l][node], width=2)
    for l, level in enumerate(maps):
        size = (widths[l], heights[l])
        pixels = np.asarray(to_rgb(image).resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
        light = _enlarge(level, (heights[l], widths[l]))
        won = torch.bincount(level.flatten(1).argmax(0), minlength=counts[l])
        for node in range(counts[l]):
            lit = pixels * (0.25 + 0.75 * np.sqrt(light[node])[..., None])  # peaked maps would be dark else
            x, y = round(centre(l, node) - widths[l] / 2), tops[l]
            sheet.paste(Image.fromarray(lit.clip(0, 255).astype(np.uint8)), (x, y))
            frame = colours[l][node] if won[node] else (190, 190, 190)
            draw.rectangle([x - 2, y - 2, x + widths[l] + 1, y + heights[l] + 1], outline=frame, width=2)
            if labels:
                draw.text((x, y + heights[l] + 1), str(int(won[node])), fill="black" if won[node] else (150, 150, 150))
    return sheet


def draw_levels(image: Image.Image, maps: Sequence[Tensor], alpha: float = 0.6, side: int = 224) -> Image.Image:
    """The image and, for each level from the finest, its patches in the colours of the nodes that win them.

    Args:
        image: what the model saw.
        maps: of one image, ``(n_l, h, w)`` for each level.
        alpha: opacity of the colours.
        side: width of each image.
    """
    height = round(side * image.height / image.width)
    small = to_rgb(image).resize((side, height), Image.Resampling.BICUBIC)
    sheet = Image.new("RGB", (GAP + (len(maps) + 1) * (side + GAP), height + 14 + 2 * GAP), "white")
    draw = ImageDraw.Draw(sheet)
    sheet.paste(small, (GAP, GAP + 14))
    for place, (level, colours) in enumerate(zip(maps, node_colours([len(m) for m in maps])), start=1):
        labels = level.argmax(0).numpy()
        painted = Image.fromarray(np.array(colours, dtype=np.uint8)[labels]).resize(
            (side, height), Image.Resampling.NEAREST
        )
        left = GAP + place * (side + GAP)
        sheet.paste(Image.blend(small, painted, alpha), (left, GAP + 14))
        draw.text((left, GAP), f"level {place - 1}: {len(np.unique(labels))} of {len(level)} nodes", fill="black")
    return sheet


def disk_positions(points: Sequence[Tensor], c: float) -> list[Tensor]:
    """Points of the hyperboloid in the Poincare disk of curvature -1.

    Their directions from the origin are projected to the plane in which they spread most (without loss there are two
    dimensions only); distances from the origin stay what they are.

    Args:
        points: of the levels, ``(n_l, D + 1)``.
        c: their curvature.

    Returns:
        Positions ``(n_l, 2)``, inside the unit circle.
    """
    tangent = torch.cat([lorentz.logmap0(level.double(), c) for level in points])
    _, _, axes = torch.linalg.svd(tangent - tangent.mean(0), full_matrices=False)
    plane = torch.zeros(len(tangent), 2, dtype=tangent.dtype)
    plane[:, : min(2, len(axes))] = tangent @ axes[:2].T
    radius = tangent.norm(dim=1, keepdim=True) * c**0.5
    plane = plane / plane.norm(dim=1, keepdim=True).clamp(min=1e-12) * radius
    return list(poincare.expmap0(plane / 2, 1.0).split([len(level) for level in points]))


def draw_disk(points: Sequence[Tensor], c: float, size: int = 640) -> Image.Image:
    """The nodes in the Poincare disk, each joined to its parent by the geodesic; the coarser, the larger the dot.

    Nodes near the origin are drawn enlarged: a grey circle then says at which hyperbolic radius it lies.

    Args:
        points: of one image, ``(n_l, D + 1)`` for each level from the finest; see :func:`disk_positions`.
        c: their curvature.
        size: side of the image.
    """
    places, colours = disk_positions(points, c), node_colours([len(level) for level in points])
    scale = 2  # drawn larger and reduced, for smooth lines
    side, half = size * scale, size * scale / 2
    farthest = max(float(level.norm(dim=1).max()) for level in places)
    zoom = max(1.0, 0.85 / max(farthest, 1e-3))
    reach = (half - MARGIN * scale) * zoom
    sheet = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(sheet)
    ring = half - MARGIN * scale
    shade = "black" if zoom == 1 else (170, 170, 170)
    draw.ellipse([half - ring, half - ring, half + ring, half + ring], outline=shade, width=2 * scale)
    radius = "the boundary" if zoom == 1 else f"hyperbolic radius {2 * np.arctanh(1 / zoom) / c**0.5:.2f}"
    draw.text((8 * scale, 6 * scale), f"circle: {radius}; curvature -{c:.2f}", fill="black", font_size=12 * scale)

    def pixel(position: Tensor) -> tuple[float, float]:
        return half + reach * float(position[0]), half - reach * float(position[1])

    steps = torch.linspace(0, 1, 24, dtype=torch.float64)[:, None]
    for l in range(len(places) - 1):
        for node, place in enumerate(places[l]):
            path = poincare.geodesic(steps, place[None], places[l + 1][node // 2][None], 1.0)
            draw.line([pixel(position) for position in path], fill=colours[l][node], width=scale)
    for l, (level, shades) in enumerate(zip(places, colours)):
        r = (3 + 2 * l) * scale
        for place, colour in zip(level, shades):
            x, y = pixel(place)
            draw.ellipse([x - r, y - r, x + r, y + r], fill=colour, outline="black", width=scale)
    return sheet.resize((size, size), Image.Resampling.LANCZOS)


def explain_hierarchy(
    model: nn.Module,
    image: Image.Image,
    size: int = 224,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    source: str = "attention",
) -> dict[str, Image.Image]:
    """All views of an image.

    Args:
        model: a :class:`~hypvision.models.HiMapper`; its mode and weights are left as they are.
        image: any size and mode.
        size: short side that the model sees, a multiple of 32.
        mean, std: normalisation; None: what timm resolves for the model.
        source: see :func:`part_maps`.

    Returns:
        ``"tree"``, ``"levels"`` and, unless the model's geometry is flat, ``"disk"``.

    Raises:
        HypvisionError: the model has no hierarchy, or the image or its size does not fit.
    """
    from timm.data import resolve_data_config

    from hypvision.geometry import Lorentz
    from hypvision.viz.clusters import prepare_image

    given = {name: tuple(value) for name, value in (("mean", mean), ("std", std)) if value is not None}
    config = resolve_data_config(given, model=model)
    cropped, x = prepare_image(image, size, config["mean"], config["std"], config["interpolation"])
    try:
        maps, out = part_maps(model, x, source)
    except AssertionError as error:  # timm's check of the size
        raise HypvisionError(
            f"The model does not accept images of {cropped.width} x {cropped.height} pixels ({error}). Give --size, "
            "or --model-args dynamic_img_size=True (ViT) or strict_img_size=False (Swin)."
        ) from error
    first = [level[0] for level in maps]
    result = {"tree": draw_tree(cropped, first), "levels": draw_levels(cropped, first)}
    if isinstance(model.mapper.lift.manifold, Lorentz):
        result["disk"] = draw_disk([level[0] for level in out["points"]], float(out["curvature"]))
    return result
