"""A hierarchy of words, or of photos grouped by their features, as a page with a Poincare disk to
walk through."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from hypvision.data.closures import Closure, closure_of, read_closure
from hypvision.geometry import Lorentz
from hypvision.inference.progress import Progress
from hypvision.inference.sources import Sources
from hypvision.io import StrPath, ensure, require
from hypvision.io.files import read_lines
from hypvision.viz.disk import places_of_hierarchy, plain_name, to_disk
from hypvision.viz.disk_page import DiskPage

from .closures import SPREAD, embed_closure
from .embedding import Embedder, embed_sources

SIDE = 96  # side of a thumbnail in pixels
FRAMES = 40  # number of frames of the training that the page plays
RIM = 0.93  # radius of the outermost name in the disk


class Hierarchy(NamedTuple):
    """A hierarchy to draw: names and their ancestors (``closure``), the label of each name, and
    pictures of some names by their row."""

    closure: Closure
    labels: list[str]
    pictures: dict[int, Image.Image]


def read_words(source: str) -> Hierarchy:
    """Return the hierarchy that ``source`` names: a ``.txt`` file of lines
    ``animal > mammal > tiger``; such lines in ``source`` itself, separated by commas or semicolons;
    or a table of pairs, see :func:`~hypvision.data.closures.read_closure`."""
    if ">" in source and not Path(source).is_file():
        closure = _closure_of_lines(re.split(r"[\n;,]", source))
    elif source.lower().endswith((".csv", ".tsv", ".gz")):
        closure = read_closure(source, transitive=True)
    else:
        ensure(
            Path(source).is_file(),
            f"There is no file or folder '{source}'. Give names from general to special with > "
            "between them, such as 'animal > mammal > tiger', a .txt file of such lines, a .csv or "
            ".tsv file of names and parents, or a folder of photos.",
        )
        closure = _closure_of_lines(read_lines(source, "the hierarchy"))
    return Hierarchy(closure, [plain_name(name) for name in closure.names], {})


def _closure_of_lines(lines: Sequence[str]) -> Closure:
    chains = []
    for line in lines:
        names = [name.strip() for name in line.split(">")]
        chains.append([name for name in names if name])
    return closure_of(chains)


def group_photos(
    embedder: Embedder,
    sources: Sources,
    root: StrPath,
    device: str = "cpu",
    failed: list[str] | None = None,
) -> Hierarchy:
    """Return photos in a tree of three levels, by how alike their features are: Ward's clustering,
    cut into about ``N^(1/3)`` groups and ``N^(2/3)`` smaller groups.

    A group has the name of the folder of at least half of its photos, or the names of the two most
    frequent folders. The messages of photos that cannot be read are added to ``failed``; if it is
    None, they raise an error.
    """
    frames, vectors = embed_sources(embedder, sources, device=device, failed=failed)
    ensure(
        len(frames) >= 3,
        f"'{root}' has {len(frames)} photos, but a tree needs at least three. Add photos.",
    )
    groups = _groups(vectors)
    folders = np.array([Path(frame.file).parent.name for frame in frames])
    labels = {"": Path(root).resolve().name}
    told = np.char.add(folders, "/")
    if len(set(folders)) == 1:  # the name of a single folder does not tell groups apart
        folders = told = np.full(len(frames), "")
    chains = []
    for photo, frame in enumerate(frames):
        chain = [""]
        for level, numbers in enumerate(groups):
            members = np.flatnonzero(numbers == numbers[photo])
            if len(members) > 1:
                chain.append(f"{level} {numbers[photo]}")
                labels[chain[-1]] = _common(folders[members].tolist())
        chain.append(f"photo {photo}")
        labels[chain[-1]] = f"{told[photo]}{Path(frame.file).stem}"
        chains.append(chain)
    closure = closure_of(chains)
    rows = {name: row for row, name in enumerate(closure.names)}
    pictures = {
        rows[f"photo {photo}"]: ImageOps.fit(frame.open(), (SIDE, SIDE))
        for photo, frame in enumerate(frames)
    }
    return Hierarchy(closure, [labels[name] for name in rows], pictures)


def _groups(vectors: Tensor) -> list[np.ndarray]:
    """Return two arrays with the number of each photo's group: of few groups, and of more."""
    clustering = require("scipy.cluster.hierarchy", "viz")
    merges = clustering.linkage(F.normalize(vectors.double(), dim=1).numpy(), "ward")
    count = len(vectors)
    return [
        clustering.fcluster(merges, max(2, round(count ** (level / 3))), "maxclust")
        for level in (1, 2)
    ]


def _common(names: Sequence[str]) -> str:
    """Return the name that at least half of all have, or else the two most frequent names."""
    ranked = Counter(names).most_common(2)
    kept = ranked[:1] if 2 * ranked[0][1] >= len(names) else ranked
    return ", ".join(name for name, _ in kept)


def in_order(closure: Closure) -> Tensor:
    """Return small tangent vectors ``(N, 2)`` from which the training begins: leaves lie around the
    origin in the order of the tree, every other name in the middle of its leaves.

    With random vectors a name may start on the wrong side of other names, which it cannot pass.
    """
    count = len(closure.names)
    below: list[list[int]] = [[] for _ in range(count)]
    for name, parent in closure.parents().tolist():
        below[parent].append(name)
    roots = set(range(count)) - {name for names in below for name in names}
    leaves: list[int] = []
    waiting = sorted(roots, reverse=True)
    while waiting:
        name = waiting.pop()
        waiting += reversed(below[name])
        if not below[name]:
            leaves.append(name)
    leaves = list(dict.fromkeys(leaves))  # a name may have two parents
    angles = torch.arange(len(leaves), dtype=torch.float32) * (2 * torch.pi / len(leaves))
    start = torch.zeros(count, 2)
    start[leaves] = torch.stack([angles.cos(), angles.sin()], 1)
    ends = torch.zeros(count, count)  # row: a name, column: 1 if this leaf is below it
    ends[closure.pairs[:, 1], closure.pairs[:, 0]] = 1.0
    ends[:, [bool(names) for names in below]] = 0.0
    inner = ends.any(1)
    start[inner] = (ends @ start)[inner] / ends.sum(1, keepdim=True)[inner]
    return SPREAD * start


def settle(hierarchy: Hierarchy, title: str, steps: int = 400, seed: int = 0) -> DiskPage:
    """Train points of the names in two dimensions, and return the content of the page, including
    frames of the training.

    The name with the most names below it is in the middle. All distances from it are multiplied by
    one factor, so that the outermost name is at the radius :data:`RIM`.
    """
    closure = hierarchy.closure
    space = Lorentz(1.0)
    seen: list[Tensor] = []

    bar = Progress("settling", steps, unit="step", closing=False)

    def watch(step: int, points: Tensor) -> None:
        bar.update(step + 1)
        if step % max(1, steps // FRAMES) == 0:
            seen.append(points.clone())

    points = embed_closure(
        closure, space=space, steps=steps, seed=seed, start=in_order(closure), watch=watch
    )
    bar.close()
    edges = closure.parents()
    places = places_of_hierarchy(points, space, len(closure.names), edges)
    top = places.order[0]
    farthest = float(space.dist(points, points[top].expand_as(points)).max())
    scale = 2 * float(np.arctanh(RIM)) / max(farthest, 1e-6)
    pictured = torch.stack([*(each.double() for each in seen), points])
    frames = [to_disk(each, space, each[top], scale) for each in pictured]
    return DiskPage(
        title=title,
        frames=np.stack(frames),
        labels=hierarchy.labels,
        edges=edges,
        shades=places.shades,
        order=places.order,
        pictures=hierarchy.pictures,
        scale=scale,
    )
