"""How far from the root a CLIP puts images, captions, boxes and their words."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from hypvision.clip.models import CLIPBundle
from hypvision.clip.radial.texts import embed_texts
from hypvision.clip.spaces import Space
from hypvision.clip.views import view_of
from hypvision.data.caption_folder import cut_box, read_captions
from hypvision.images import open_image


@torch.no_grad()
def caption_radii(clip: CLIPBundle, folder: str | Path, space: Space, batch: int = 64) -> dict[str, Tensor]:
    """Distances from the root of the images and captions of a folder (:mod:`hypvision.data.caption_folder`), and of its
    boxes and their words, if it has any: the histogram of MERU and HyCoCLIP."""
    folder = Path(folder).expanduser()
    rows, view = read_captions(folder), view_of(clip.model)
    points: dict[str, list[Tensor]] = {"images": [], "box images": []}
    for start in tqdm(range(0, len(rows), batch), desc="images", leave=False, disable=None):
        wholes, boxes = [], []
        for row in rows[start : start + batch]:
            image = open_image(folder / "images" / row.image)
            wholes.append(view(image))
            boxes += [view(cut_box(image, box)) for box in row.boxes]
        for name, part in (("images", wholes), ("box images", boxes)):
            points[name] += [clip.embed_images(torch.stack(part))] if part else []
    texts = {"texts": [row.caption for row in rows], "box texts": [box.words for row in rows for box in row.boxes]}
    found = {name: torch.cat(parts) for name, parts in points.items() if parts}
    found |= {name: embed_texts(clip.model, clip.tokenizer, given) for name, given in texts.items() if given}
    return {name: space.radius(value) for name, value in found.items()}
