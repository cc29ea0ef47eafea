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
from hypvision.io import HypvisionError, StrPath
from hypvision.viz.sheet import text_tile

from .embedding import Embedder, distances, embed_sources
from .metric_learning_metrics import nearest

_SIDE = 320  # longer side of thumbnails in pixels


class Neighbour(NamedTuple):
    """An image of the gallery: its frame, its distance from the query, and a small copy of it."""

    frame: Frame
    distance: float
    image: Image.Image


class Found(NamedTuple):
    """A query (an image or a text), a small copy of it, and its neighbours, the nearest first."""

    query: Frame
    image: Image.Image
    neighbours: list[Neighbour]


def find_gallery(gallery: StrPath, every: int = 1) -> Sources:
    """Return the images of a folder with its sub-folders, or of any other source that
    :func:`find_sources` takes."""
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
    """Return the ``k`` nearest images of each query; a query is not its own neighbour.

    Args:
        embedder: the model.
        queries: images, or texts for a model that embeds texts.
        gallery: the images to search, see :func:`find_gallery`.
        k: number of neighbours of a query; a smaller gallery gives fewer.
        batch: number of images in a batch.
        device: device of the ``embedder``.
        embedded: frames and embeddings of the gallery from
            :func:`~hypvision.tasks.embedding.embed_sources`; None: they are computed here.
        failed: a list for the messages of images that cannot be embedded; these are skipped. None:
            such an image raises an error.
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
    """Return the frame of a text query, whose picture is the drawn text."""
    slug = re.sub(r"[^0-9A-Za-z]+", "-", text)[:40].strip("-")
    return Frame(text, f"{number:02d}_{slug}", None, text_tile(text))


def _own_places(asked: Sequence[Frame], frames: Sequence[Frame]) -> Tensor | None:
    """Return the position of each query in the gallery, -1 for a query that is not in it; None if
    no query is in it."""
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
    """Return the key that identifies a frame among those of the same sources."""
    return frame.name, frame.number


def _small_copies(
    sources: Sources | Iterable[Frame], frames: Iterable[Frame]
) -> dict[tuple, Image.Image]:
    """Return small copies of the images of ``frames``, read from the sources, because frames of
    videos are kept without pixels."""
    wanted = set(map(_key, frames))
    found = {}
    for frame in sources.frames(failed=[]) if isinstance(sources, Sources) else sources:
        key = _key(frame)
        if key in wanted:
            found[key] = frame.open()
            found[key].thumbnail((_SIDE, _SIDE))
    return found
