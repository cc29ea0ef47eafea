"""Drawings of the clusters of a clustering backbone over the image.

A backbone with ``forward_assignments`` (:class:`~hypvision.models.hcformer.HCFormer`) gives, for
each of its blocks, the soft assignments of pixels to centres at two levels: patch (Euclidean,
inside a window) and window (hyperbolic, over the whole map). Stages, blocks and heads are counted
from 0, as in the names of the modules (``stages.2.blocks.5``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import resolve_data_config
from torch import Tensor, nn

from hypvision.io import HypvisionError, at_least, between, one_of
from hypvision.io.images import to_rgb
from hypvision.models.hcformer import StageAssignments
from hypvision.nn import ClusterAssignment

from .overlay import paint
from .palette import label_colours
from .sheet import titled_sheet

LEVELS = ("patch", "window")
STRIDE = 32  # the sides of the images that a model sees are multiples of this
LONGEST = 8  # largest ratio of the sides of an image
NARROWEST = 120  # least width of a tile in pixels, so that the text below it fits
LARGEST = 64_000_000  # largest grid in pixels; smaller grids have tiles of the photo's resolution
NEARLY_UNIFORM = 0.1  # mean confidence below which a row of maps is called nearly uniform

_logger = logging.getLogger(__name__)


@runtime_checkable
class ClusteringModel(Protocol):
    """The methods of a model whose clusters can be drawn."""

    def forward_assignments(self, x: Tensor, /) -> list[StageAssignments]:
        """Return the soft assignments of every block."""

    def forward_features(self, x: Tensor, /) -> Tensor:
        """Return the final feature map ``(B, C, h, w)``."""


# Maps of labels and of confidence


def cluster_map(
    assignment: ClusterAssignment,
    head: int,
    level: str = "patch",
    size: tuple[int, int] | None = None,
    index: int = 0,
) -> np.ndarray:
    """Return, for every pixel, the centre with the largest assignment.

    Args:
        assignment: soft assignments of a block, with M centres in a window and K over the map.
        head: number of the head.
        level: ``"patch"``: labels are ``window * M + centre``, unique over the map; ``"window"``:
            each pixel has the label, 0 to K - 1, of the window that it lies in.
        size: (height, width) to which the map is enlarged by repeating pixels; None: the size of
            the assignment.
        index: number of the image in the batch.

    Returns:
        Labels ``(H, W)``, int64.
    """
    weights = _weights(assignment, head, level, index)
    if level == "patch":
        labels = assignment.window_index * len(weights) + weights.argmax(0)
    else:
        labels = weights.argmax(0).flatten()[assignment.window_index]
    return enlarge(labels.cpu().numpy().astype(np.int64), size)


def confidence_map(
    assignment: ClusterAssignment,
    head: int,
    level: str = "patch",
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """Return how far each pixel is from an even share among its centres: 0 uniform, 1 hard,
    ``(H, W)``.

    For the largest weight w among M centres it is ``(w - 1/M) / (1 - 1/M)``; 0 if there is only one
    centre. Arguments and errors as for :func:`cluster_map`.
    """
    weights = _weights(assignment, head, level).double()
    count = len(weights)
    found = (weights.amax(0) - 1 / count) / max(1 - 1 / count, 1e-12)
    if level == "window":
        found = found.flatten()[assignment.window_index]
    return enlarge(found.cpu().numpy(), size)


def _weights(assignment: ClusterAssignment, head: int, level: str, index: int = 0) -> Tensor:
    """Return the soft assignments of one head to its centres: ``(M, H, W)``, or for the window
    level ``(K, fold, fold)``."""
    one_of(LEVELS, level=level)
    weights: Tensor | None = getattr(assignment, level)
    if weights is None:
        raise ValueError("This block has no window level. Give level='patch'.")
    between(0, weights.shape[1] - 1, integer=True, head=head)
    return weights[index, head].detach()


def enlarge(labels: np.ndarray, size: Sequence[int] | None) -> np.ndarray:
    """Return a map enlarged to another (height, width) by repeating pixels: row y of the n new rows
    is row floor(y m / n) of the m old ones; None keeps the size."""
    if size is None:
        return labels
    rows, columns = (np.arange(new) * old // new for new, old in zip(size, labels.shape))
    return labels[rows[:, None], columns]


def kmeans(points: Tensor, k: int, weights: Tensor | None = None, seed: int = 0) -> Tensor:
    """Cluster points by weighted k-means with k-means++ starts, the best of four; every call gives
    the same result.

    Args:
        points: ``(n, d)``.
        k: number of clusters.
        weights: ``(n,)``, > 0; None: all 1.
        seed: seed of the random starts.

    Returns:
        Labels ``(n,)``: 0, 1, ...; exactly k of them, or as many as there are distinct points if
        these are fewer.

    Raises:
        ValueError: k < 1, or no points.
    """
    if k < 1 or points.ndim != 2 or len(points) == 0:
        raise ValueError(
            f"k must be >= 1 and points of shape (n, d) with n >= 1, got {k} and "
            f"{tuple(points.shape)}."
        )
    # Merge equal points, so that there are enough different ones for all clusters.
    points, inverse = points.detach().cpu().double().unique(dim=0, return_inverse=True)
    mass = torch.ones(len(inverse)) if weights is None else weights.cpu()
    mass = torch.zeros(len(points), dtype=torch.float64).index_add_(0, inverse, mass.double())
    if len(points) <= k:
        return inverse
    generator = torch.Generator().manual_seed(seed)
    best_cost = float("inf")
    best = inverse
    for _ in range(4):
        labels, centers = _improved(points, mass, _spread_start(points, mass, k, generator))
        cost = float((((points - centers[labels]) ** 2).sum(1) * mass).sum())
        if cost < best_cost:
            best_cost = cost
            best = labels
    return best[inverse]


def _improved(points: Tensor, mass: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels ``(n,)`` and centres ``(k, d)`` after steps of k-means until the labels stay
    the same."""
    k = len(centers)
    previous = torch.empty(0)
    for _ in range(100):
        nearest, labels = _squared_distances(points, centers).min(1)
        for empty in sorted(set(range(k)) - set(labels.tolist())):
            # To refill an empty cluster, take the point with the largest error whose cluster has
            # other points.
            alone = labels.bincount(minlength=k)[labels] == 1
            worst = (nearest * mass).masked_fill(alone, -1).argmax()
            labels[worst] = empty
            nearest[worst] = 0
        if torch.equal(labels, previous):
            break
        previous = labels
        total = torch.zeros(k, dtype=torch.float64).index_add_(0, labels, mass)
        sums = torch.zeros_like(centers).index_add_(0, labels, points * mass[:, None])
        centers = sums / total[:, None]
    return labels, centers


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()


def _spread_start(points: Tensor, mass: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return the first centres of k-means++: each next centre is drawn with a probability
    proportional to its mass times the squared distance to the nearest centre so far."""
    chosen = [int(torch.multinomial(mass, 1, generator=generator))]
    nearest = _squared_distances(points, points[chosen]).squeeze(1)
    for _ in range(k - 1):
        chosen.append(int(torch.multinomial(nearest * mass, 1, generator=generator)))
        nearest = torch.minimum(nearest, _squared_distances(points, points[chosen[-1:]]).squeeze(1))
    return points[chosen]


def _follow(assignments: Sequence[ClusterAssignment], head: int) -> list[np.ndarray]:
    """Return the clusters of the finest map, and those that they form at each coarser map: for each
    map labels 0, 1, ... ``(H, W)``.

    A cluster goes as a whole to the coarser centre with the largest sum of assignments of its
    pixels.
    """
    shape = assignments[0].window_index.shape
    labels = np.unique(cluster_map(assignments[0], head), return_inverse=True)[1].reshape(shape)
    found = [labels]
    for coarse in assignments[1:]:
        centers, height, width = coarse.patch.shape[2:]
        y, x = (torch.arange(old) * new // old for old, new in zip(shape, (height, width)))
        soft = (
            coarse.patch[0, min(head, coarse.patch.shape[1] - 1)].double().cpu()[:, y[:, None], x]
        )
        windows = coarse.window_index.cpu()[y[:, None], x].flatten()
        count = int(coarse.window_index.max()) + 1
        votes = torch.zeros(int(labels.max()) + 1, count, centers, dtype=torch.float64)
        votes.index_put_(
            (torch.from_numpy(labels).flatten(), windows), soft.flatten(1).t(), accumulate=True
        )
        parents = votes.flatten(1).argmax(1).numpy()
        labels = np.unique(parents[labels], return_inverse=True)[1].reshape(shape)
        found.append(labels)
    return found


def merge_clusters(
    stage_assignments: Iterable[StageAssignments],
    features: Tensor,
    k: int,
    head: int = 0,
) -> np.ndarray:
    """Return regions made from the clusters of all stages, as :func:`merge_regions` describes, for
    the first image of a batch.

    Args:
        stage_assignments: the result of ``forward_assignments``; the last block of each stage is
            used.
        features: final feature map ``(B, C, h, w)``.
        k, head: as for :func:`merge_regions`.

    Returns:
        Labels ``(H, W)`` in the resolution of the finest stage, sorted by area: 0 is the largest
        region.
    """
    at_least(1, integer=True, k=k)
    last = {entry.stage: entry.assignment for entry in stage_assignments}
    chain = _follow([last[stage] for stage in sorted(last)], head)
    labels = next((found for found in reversed(chain) if found.max() + 1 >= k), chain[0])
    pixels = F.interpolate(
        features[:1].detach().float().cpu(), labels.shape, mode="bilinear", align_corners=False
    )
    member = torch.from_numpy(labels).flatten()
    area = member.bincount().double()
    centers = torch.zeros(len(area), pixels.shape[1], dtype=torch.float64)
    centers.index_add_(0, member, pixels[0].flatten(1).t().double())
    regions = kmeans(centers / area[:, None], k, area)[member]
    order = regions.bincount().argsort(descending=True, stable=True)
    return order.argsort()[regions].reshape(labels.shape).numpy()


@torch.no_grad()
def merge_regions(model: nn.Module, image: Tensor, k: int, head: int = 0) -> np.ndarray:
    """Group the pixels of an image into k regions, from fine clusters to coarse ones.

    1. Each pixel of the first stage joins its arg-max centre (last block of the stage).
    2. At each coarser stage a cluster goes as a whole to the centre with the largest sum of
       assignments of its pixels. So the outlines of regions are those of the finest stage.
    3. The clusters of the coarsest stage that still has at least k of them are merged by k-means
       (seeded, each cluster weighted by its area). Their features are means over the cluster of the
       final feature map, which is enlarged bilinearly to the resolution of the first stage.

    Args:
        model: a model with ``forward_assignments`` and ``forward_features``.
        image: normalised image ``(3, H, W)`` or ``(1, 3, H, W)``.
        k: number of regions.
        head: number of the head to follow; a stage with fewer heads uses its last.

    Returns:
        Labels ``(H, W)``, int64, sorted by area: 0 is the largest region. There are k of them, or
        fewer only if the image has fewer clusters or fewer different features (an image of one
        colour).

    Raises:
        HypvisionError: the model has no ``forward_assignments``.
        ValueError: k < 1, or a head that the first stage does not have.
    """
    x = image.unsqueeze(0) if image.ndim == 3 else image
    assignments, features = _look(model, x)
    return enlarge(merge_clusters(assignments, features, k, head), x.shape[-2:])


@torch.no_grad()
def _look(model: nn.Module, x: Tensor) -> tuple[list[StageAssignments], Tensor]:
    """Return assignments and final features of images in evaluation mode; the model's mode is left
    as it was."""
    if not isinstance(model, ClusteringModel):
        raise HypvisionError(
            f"The model {type(model).__name__} does not cluster: it has no forward_assignments. "
            "Take a clustering backbone, e.g. hcformer_nano."
        )
    x = x.to(next(model.parameters()))
    with evaluating(model):
        return model.forward_assignments(x), model.forward_features(x)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside the block; afterwards every module has the mode that
    it had before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


# Drawing images


def draw_regions(
    image: Image.Image, labels: np.ndarray, alpha: float = 0.5, outlines: bool = True
) -> Image.Image:
    """Return the image with each label's colour over it; ``labels`` ``(H, W)``, integers >= 0, are
    enlarged by repeating pixels.

    Args:
        alpha: opacity of the colours, 0 to 1.
        outlines: draw white borders between labels.
    """
    labels = enlarge(np.asarray(labels), (image.height, image.width))
    painted = paint(image, labels, label_colours(int(labels.max()) + 1), alpha)
    if not outlines:
        return painted
    border = np.zeros(labels.shape, dtype=bool)
    border[1:] |= labels[1:] != labels[:-1]
    border[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    painted.paste("white", mask=Image.fromarray(border))
    return painted


_Row: TypeAlias = tuple[StageAssignments, str, list[int]]
"""A row of a grid of cluster maps: the assignments of a block, the level, and numbers of heads."""


def _rows(
    stage_assignments: Iterable[StageAssignments],
    stage: int | None,
    block: int | None,
    head: int | None,
    level: str,
) -> list[_Row]:
    """Return the rows that :func:`draw_cluster_maps` draws."""
    one_of((*LEVELS, "both"), level=level)
    names = LEVELS if level == "both" else (level,)
    entries = list(stage_assignments)
    # For each stage this keeps the last one of the blocks that are asked for.
    chosen = {e.stage: e for e in entries if block in (None, e.block) and stage in (None, e.stage)}
    rows: list[_Row] = []
    for entry in chosen.values():
        count = entry.assignment.patch.shape[1]
        heads = [number for number in range(count) if head in (None, number)]
        rows += [(entry, name, heads) for name in names if heads and _centres(entry, name) > 1]
    if not rows:
        raise HypvisionError(
            f"There are no cluster maps for stage={stage}, block={block}, head={head}, "
            f"level={level} (None: all, or the last block). Counted from 0, the model has "
            f"{_told(entries)}."
        )
    return rows


def _centres(entry: StageAssignments, level: str) -> int:
    """Return how many centres a level of a block has; 0 if it does not have this level."""
    weights: Tensor | None = getattr(entry.assignment, level)
    return 0 if weights is None else weights.shape[2]


def _told(entries: Sequence[StageAssignments]) -> str:
    """Return a text that lists the blocks, heads and levels of each stage, for a message."""
    said = []
    for entry in {entry.stage: entry for entry in entries}.values():
        heads = f"heads 0 to {entry.assignment.patch.shape[1] - 1}"
        text = f"stage {entry.stage}: blocks 0 to {entry.block}, {heads}"
        text += "" if _centres(entry, "window") else ", no window level"
        said.append(text + (", a single centre" if _centres(entry, "patch") == 1 else ""))
    return "; ".join(said)


def draw_cluster_maps(
    image: Image.Image,
    stage_assignments: Iterable[StageAssignments],
    stage: int | None = None,
    block: int | None = None,
    head: int | None = None,
    level: str = "both",
    alpha: float = 0.6,
) -> Image.Image:
    """Draw a grid of cluster maps over the image: a row for each stage and level, a column for each
    head.

    The opacity of a pixel is its confidence (:func:`confidence_map`) divided by the largest one of
    its map, times ``alpha``; the mean confidence stands below each map. Levels with a single centre
    are left out.

    Args:
        image: the photo; the model may have seen it smaller. Its tiles are smaller if the grid
            would have more than 64 million pixels, but at least wide enough for the lines below
            them.
        stage_assignments: the result of ``forward_assignments``; the first image of the batch is
            drawn.
        stage, head: number of the only stage or head to draw; None: all.
        block: number of the block in each stage; None: the last.
        level: ``"patch"``, ``"window"`` or ``"both"``.
        alpha: largest opacity of the colours, 0 to 1.

    Returns:
        The grid; each row begins with the image itself. Lines below the tiles name block, level and
        head.

    Raises:
        HypvisionError: there is nothing to draw: the stage, block or head does not exist, has no
            window level, or has only one centre.
    """
    rows = _rows(stage_assignments, stage, block, head, level)
    columns = 1 + max(len(heads) for *_, heads in rows)
    fits = (LARGEST / (len(rows) * columns * image.width * image.height)) ** 0.5
    scale = max(min(1.0, fits), NARROWEST / image.width)
    width, height = (max(round(side * scale), 1) for side in image.size)
    small = to_rgb(image).resize((width, height), Image.Resampling.BICUBIC)
    tiles: list[tuple[Image.Image, str]] = []
    for entry, name, heads in rows:
        tiles.append((small, f"stages.{entry.stage}.blocks.{entry.block}\n{name} level"))
        for number in heads:
            labels = cluster_map(entry.assignment, number, name, (height, width))
            sure = confidence_map(entry.assignment, number, name, (height, width))
            colours = label_colours(int(labels.max()) + 1)
            painted = paint(small, labels, colours, alpha * sure / max(sure.max(), 1e-12))
            tiles.append((painted, f"head {number}\nconfidence {sure.mean():.0%}"))
        tiles += [(Image.new("RGB", (1, 1), "white"), "")] * (columns - 1 - len(heads))
    return titled_sheet(tiles, columns=columns)


def prepare_for(
    model: nn.Module,
    image: Image.Image,
    size: int,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[Image.Image, Tensor]:
    """Resize an image of any size and mode for a model, and return it together with its normalised
    tensor ``(1, C, H, W)``.

    The short side gets ``size`` pixels, a multiple of 32, and the long side is rounded to such a
    multiple. ``mean`` and ``std`` are by default what timm resolves for the model; the image
    becomes grey if the mean has a single value."""
    if size < STRIDE or size % STRIDE:
        raise HypvisionError(
            f"size must be a multiple of {STRIDE} and at least {STRIDE}, got {size}."
        )
    if max(image.size) > LONGEST * min(image.size):
        raise HypvisionError(
            f"An image of {image.width} x {image.height} pixels is too narrow: crop it to at most "
            f"{LONGEST} times the length of its short side."
        )
    given = {
        name: tuple(value) for name, value in (("mean", mean), ("std", std)) if value is not None
    }
    config = resolve_data_config(given, model=model)
    channels = len(config["mean"])
    image = to_rgb(image)
    image = image.convert("L") if channels == 1 else image
    short = min(image.size)
    width, height = (
        size if side == short else max(round(side * size / short / STRIDE), 1) * STRIDE
        for side in image.size
    )
    way = getattr(Image.Resampling, config["interpolation"].upper(), Image.Resampling.BICUBIC)
    image = image.resize((width, height), way)
    pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).reshape(
        height, width, channels
    )
    pixels = (pixels - torch.tensor(config["mean"])) / torch.tensor(config["std"])
    return image, pixels.permute(2, 0, 1).unsqueeze(0).contiguous()


def explain_image(
    model: nn.Module,
    image: Image.Image,
    size: int = 224,
    regions: int = 8,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    stage: int | None = None,
    block: int | None = None,
    head: int | None = None,
    level: str = "both",
) -> dict[str, Image.Image]:
    """Draw the clusters and the regions of an image at its own resolution; a warning names the maps
    whose assignments are nearly uniform.

    Args:
        model: a model with ``forward_assignments`` and ``forward_features``; its mode and weights
            are left as they are.
        image: an image of any size and mode.
        size: short side of the image that the model sees, a multiple of 32.
        regions: number of regions to merge the clusters into; 0 for none.
        mean, std: normalisation; None: what timm resolves for the model.
        stage, block, head, level: see :func:`draw_cluster_maps`; regions follow ``head``, or head
            0.

    Returns:
        ``"clusters"``: the grid of cluster maps; ``"regions"`` (unless 0): the image with the
            regions over it.
    """
    at_least(0, integer=True, regions=regions)
    _, x = prepare_for(model, image, size, mean, std)
    assignments, features = _look(model, x)
    photo = to_rgb(image)
    result = {"clusters": draw_cluster_maps(photo, assignments, stage, block, head, level)}
    weak = []
    for entry, name, heads in _rows(assignments, stage, block, head, level):
        maps = [confidence_map(entry.assignment, number, name) for number in heads]
        sure = float(np.mean(maps))
        if sure < NEARLY_UNIFORM:
            weak.append(f"stages.{entry.stage}.blocks.{entry.block}, {name} level ({sure:.0%})")
    if weak:
        _logger.warning(
            "The assignments are nearly uniform in %s, where 100 %% is hard: the colours there "
            "show small preferences, not groups that the model tells apart.",
            "; ".join(weak),
        )
    if regions:
        first = assignments[0].assignment.patch.shape[1]
        labels = merge_clusters(assignments, features, regions, min(head or 0, first - 1))
        result["regions"] = draw_regions(photo, labels)
    return result
