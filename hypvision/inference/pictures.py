"""Images and boxes of images, which a walk may pass and whose distances from the root are
measured."""

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
from hypvision.inference.sources import find_files
from hypvision.io.images import open_image


class Picture(NamedTuple):
    """An image, or a box of it."""

    path: Path
    box: Box | None = None

    def __str__(self) -> str:
        return str(self.path) if self.box is None else f"{self.path}, {self.box.words.strip()}"

    def open(self, read: Callable[[Path], Image.Image] = open_image) -> Image.Image:
        """The image, which ``read`` opens, cut to the box."""
        image = read(self.path)
        return image if self.box is None else cut_box(image, self.box)


def pictures_of(folder: str | Path, rows: Iterable[Captioned]) -> list[Picture]:
    """The images of a folder with captions, and their boxes, each once."""
    found: dict[tuple[str, str], Picture] = {}
    for row in rows:
        path = Path(folder).expanduser() / "images" / row.image
        for picture in (Picture(path), *(Picture(path, box) for box in row.boxes)):
            found.setdefault((row.image, str(picture.box)), picture)
    return list(found.values())


def find_pictures(names: Iterable[str | Path]) -> list[Picture]:
    """The images of paths, folders and patterns (:func:`~hypvision.io.images.find_images`); images
    and boxes of a folder with captions (:mod:`hypvision.data.caption_folder`).
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
    """The pictures that can be read, and their points ``(m, d)`` in the model's space; the messages
    of the others go into ``failed``. None: one raises, as all of them do."""
    # the boxes of an image follow it in the list, so keep the last image open
    read = lru_cache(maxsize=1)(open_image)
    return embed_readable(clip, pictures, failed, batch, lambda picture: picture.open(read))


@torch.no_grad()
def caption_radii(
    clip: CLIPBundle, folder: str | Path, space: Space, batch: int = 64
) -> dict[str, Tensor]:
    """Distances from the root of the images and captions of a folder
    (:mod:`hypvision.data.caption_folder`), and of its boxes and their words, if it has any: the
    histogram of MERU and HyCoCLIP."""
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
