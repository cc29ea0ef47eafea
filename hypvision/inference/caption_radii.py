"""How far from the root a CLIP puts images, captions, boxes and their words."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hypvision.clip.models import CLIPBundle
from hypvision.clip.radial.texts import embed_texts
from hypvision.clip.spaces import Space
from hypvision.data.caption_folder import read_captions
from hypvision.inference.pictures import embed_pictures, pictures_of


@torch.no_grad()
def caption_radii(clip: CLIPBundle, folder: str | Path, space: Space, batch: int = 64) -> dict[str, Tensor]:
    """Distances from the root of the images and captions of a folder (:mod:`hypvision.data.caption_folder`), and of its
    boxes and their words, if it has any: the histogram of MERU and HyCoCLIP."""
    rows = read_captions(folder)
    pictures = pictures_of(folder, rows)
    points, cut = embed_pictures(clip, pictures, batch)[1], torch.tensor([x.box is not None for x in pictures])
    texts = {"texts": [row.caption for row in rows], "box texts": [box.words for row in rows for box in row.boxes]}
    found = {"images": points[~cut]} | ({"box images": points[cut]} if cut.any() else {})
    found |= {name: embed_texts(clip.model, clip.tokenizer, given) for name, given in texts.items() if given}
    return {name: space.radius(value) for name, value in found.items()}
