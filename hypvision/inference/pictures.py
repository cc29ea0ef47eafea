"""Images and boxes cut from images, which serve as points of a walk and whose distances from the
root of the space are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from hypvision.clip.models import CLIPBundle
from hypvision.clip.radial.measure import embed_readable
from hypvision.clip.radial.texts import embed_texts
from hypvision.clip.spaces import Space
from hypvision.data.caption_folder import Box, Captioned, cut_box, find_captions, read_captions
from hypvision.io import StrPath
from hypvision.io.images import open_image

from .sources import find_files


class Picture(NamedTuple):
    """An image file, or a box cut from it."""

    path: Path
    box: Box | None = None

    def __str__(self) -> str:
        return str(self.path) if self.box is None else f"{self.path}, {self.box.words.strip()}"

    def open(self, read: Callable[[Path], Image.Image] = open_image) -> Image.Image:
        """Return the image, opened by ``read`` and cut to the box if there is one."""
        image = read(self.path)
        return image if self.box is None else cut_box(image, self.box)


def pictures_of(folder: StrPath, rows: Iterable[Captioned]) -> list[Picture]:
    """Return each image of a captioned folder, and each of its boxes, once."""
    found: dict[tuple[str, str], Picture] = {}
    for row in rows:
        path = Path(folder).expanduser() / "images" / row.image
        for picture in (Picture(path), *(Picture(path, box) for box in row.boxes)):
            found.setdefault((row.image, str(picture.box)), picture)
    return list(found.values())


def find_pictures(names: Iterable[StrPath]) -> list[Picture]:
    """Return the images that paths, folders and patterns mean
    (:func:`~hypvision.io.images.find_images`); from a folder with captions
    (:mod:`hypvision.data.caption_folder`) its images and their boxes.
    """
    found: list[Picture] = []
    for name in names:
        captioned = find_captions(Path(name).expanduser()) is not None
        found += (
            pictures_of(name, read_captions(name))
            if captioned
            else map(Picture, find_files([name]))
        )
    return found


def embed_pictures(
    clip: CLIPBundle, pictures: Sequence[Picture], batch: int = 64, failed: list[str] | None = None
) -> tuple[list[Picture], Tensor]:
    """Return the pictures that can be read, and their points ``(m, d)`` in the model's space.
    Messages about unreadable ones go into ``failed``; with ``failed=None``, or if all are
    unreadable, an error is raised."""
    # The boxes of an image follow it in the list, so keeping one image open reads each file once.
    read = lru_cache(maxsize=1)(open_image)
    return embed_readable(clip, pictures, failed, batch, lambda picture: picture.open(read))


@torch.no_grad()
def caption_radii(
    clip: CLIPBundle, folder: StrPath, space: Space, batch: int = 64
) -> dict[str, Tensor]:
    """Return the distances from the root of the space of a captioned folder
    (:mod:`hypvision.data.caption_folder`), by group: its images and captions and, if it has boxes,
    the boxes and their words. MERU and HyCoCLIP draw histograms of them."""
    rows = read_captions(folder)
    pictures = pictures_of(folder, rows)
    points = embed_pictures(clip, pictures, batch)[1]
    cut = torch.tensor([x.box is not None for x in pictures])
    texts = {
        "texts": [row.caption for row in rows],
        "box texts": [box.words for row in rows for box in row.boxes],
    }
    found = {"images": points[~cut]} | ({"box images": points[cut]} if cut.any() else {})
    found |= {
        name: embed_texts(clip.model, clip.tokenizer, given)
        for name, given in texts.items()
        if given
    }
    return {name: space.radius(value) for name, value in found.items()}
