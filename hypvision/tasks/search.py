"""Search by example or by words for the nearest images of a gallery, as in
``hypvision metric search`` and the app."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from hypvision.inference.sources import Frame, Sources, find_files, find_sources
from hypvision.io.errors import HypvisionError
from hypvision.tasks.embedding import Embedder, distances, embed_sources
from hypvision.tasks.metric_learning_metrics import nearest
from hypvision.viz.sheet import text_tile

_SIDE = 320  # longer side of thumbnails in pixels


class Neighbour(NamedTuple):
    """An image of the gallery: where it is from, its distance from the query, and a small copy."""

    frame: Frame
    distance: float
    image: Image.Image


class Found(NamedTuple):
    """A query, an image or a text, with a small copy of it, its neighbours, the nearest first."""

    query: Frame
    image: Image.Image
    neighbours: list[Neighbour]


def find_gallery(gallery: str | Path, every: int = 1) -> Sources:
    """The images of a folder, or whatever else :func:`find_sources` takes."""
    folder = Path(gallery).expanduser()
    if not folder.is_dir():
        return find_sources(gallery, every)
    return find_sources(find_files([folder]), every)


def search(
    embedder: Embedder,
    queries: Sources | Sequence[str],
    gallery: Sources,
    k: int = 9,
    batch: int = 32,
    device: str = "cpu",
    embedded: tuple[list[Frame], Tensor] | None = None,
    failed: list[str] | None = None,
) -> list[Found]:
    """The ``k`` nearest images of each query, which is not one of its own neighbours.

    Args:
        queries: images, or texts for a model that reads.
        gallery: where to search, see :func:`find_gallery`; ``k`` neighbours of a query, or as many
            as there are.
        batch, device: images at a time, and where the ``embedder`` is.
        embedded: what :func:`~hypvision.tasks.embedding.embed_sources` gives for the gallery; None:
            it is embedded now.
        failed: a list for the messages of images without an embedding; these images are skipped.
            None: it raises.
    """
    if isinstance(queries, Sources):
        asked, points = embed_sources(embedder, queries, batch, device, failed)
    else:
        asked = [_drawn(number, text) for number, text in enumerate(queries)]
        points = embedder.embed_texts(queries).float().cpu()
    frames, vectors = embedded or embed_sources(embedder, gallery, batch, device, failed)
    exclude = _own_places(asked, frames) if isinstance(queries, Sources) else None
    blocks = nearest(points, vectors, k, embedder.space, exclude)
    neighbours = torch.cat([numbers for _, numbers in blocks]).tolist()
    shown = _small_copies(gallery, [frames[number] for number in {*itertools.chain(*neighbours)}])
    own_copies = _small_copies(queries if isinstance(queries, Sources) else asked, asked)
    found = []
    for place, (query, numbers) in enumerate(zip(asked, neighbours)):
        far = distances(points[place], vectors[numbers], embedder.space, embedder.c).tolist()
        near = [
            Neighbour(frames[number], distance, shown[_key(frames[number])])
            for number, distance in zip(numbers, far)
        ]
        found.append(Found(query, own_copies[_key(query)], near))
    return found


def _drawn(number: int, text: str) -> Frame:
    """A text as an image."""
    slug = re.sub(r"[^0-9A-Za-z]+", "-", text)[:40].strip("-")
    return Frame(text, f"{number:02d}_{slug}", None, text_tile(text))


def _own_places(asked: Sequence[Frame], frames: Sequence[Frame]) -> Tensor | None:
    """Where each query is in the gallery, -1 of one that is not; None if none is."""
    places = {_identity(frame): number for number, frame in enumerate(frames)}
    own = torch.tensor([places.get(_identity(query), -1) for query in asked])
    if not (own >= 0).any():
        return None
    if len(frames) == 1:
        raise HypvisionError(
            f"The only image to search is '{frames[0].file}', the example itself. Give a folder "
            "with more images."
        )
    return own


def _identity(frame: Frame) -> tuple[Path, int | None]:
    return Path(frame.file).resolve(), frame.number


def _key(frame: Frame) -> tuple[str, int | None]:
    """The key that identifies a frame among those of the same sources."""
    return frame.name, frame.number


def _small_copies(
    sources: Sources | Iterable[Frame], frames: Iterable[Frame]
) -> dict[tuple, Image.Image]:
    """Copies of those images of the sources that are among the frames, which have no pixels of
    videos."""
    wanted = set(map(_key, frames))
    found = {}
    for frame in sources.frames(failed=[]) if isinstance(sources, Sources) else sources:
        key = _key(frame)
        if key in wanted:
            found[key] = frame.open()
            found[key].thumbnail((_SIDE, _SIDE))
    return found
