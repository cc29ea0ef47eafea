"""Conversion of folders of images, with captions and boxes or in class folders, to shards
(webdataset).

>>> # photos/images/ and photos/captions.csv, or photos/CLASS/*.jpg
>>> write_shards("photos", "shards")
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from hypvision.io import StrPath, at_least, require
from hypvision.io.files import check_new_folder, replacing_folder
from hypvision.io.images import open_image

from .caption_folder import cut_box, find_captions, read_captions
from .image_folder import ImageFolderDataset
from .shards import CaptionShards, ImageShards

# Files of these formats are copied unchanged; the values are their suffixes in a shard.
_KEPT = {".jpg": "jpg", ".jpeg": "jpg", ".png": "png", ".webp": "webp"}
_QUALITY = 95  # of the JPEG files of boxes, which are cut out of the images


class Written(NamedTuple):
    """The result of :func:`write_shards`: ``kind`` (``"captions"``, ``"captions and boxes"`` or
    ``"labels"``), and the numbers of samples and of shards."""

    kind: str
    samples: int
    shards: int


def write_shards(
    folder: StrPath,
    out: StrPath,
    samples: int = 1000,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    workers: int = 0,
) -> Written:
    """Write the images of a folder, with captions (:mod:`hypvision.data.caption_folder`) or in one
    folder a class, into shards.

    JPEG, PNG and WebP files are copied unchanged; images of other formats are stored as PNG, and
    boxes as JPEG. The samples are written in a random order, since a training mixes samples only
    within a shard and a buffer.

    Args:
        folder: the folder of the images.
        out: the folder to create; it is written under a temporary name and then moved.
        samples: number of samples in each shard.
        classes: names of the class folders in the order of the labels; None: sorted by name.
        seed: seed of the random order.
        workers: number of processes that read the images; 0: the calling process reads them.
    """
    at_least(1, samples=samples)
    out = check_new_folder(out)
    folder = Path(folder).expanduser()
    captioned = find_captions(folder) is not None
    data: Any = _Captioned(folder) if captioned else _Labelled(folder, classes)
    order = np.random.default_rng(seed).permutation(len(data)).tolist()
    with replacing_folder(out) as temporary:
        files = DataLoader(
            data, batch_size=None, sampler=order, num_workers=workers, collate_fn=dict
        )
        count = _write(temporary, files, len(data), samples)
        if captioned:  # opening the shards counts their samples and writes the index file
            for boxes in (False, True) if data.boxes else (False,):
                CaptionShards(temporary, boxes=boxes)
        else:
            (temporary / "classes.txt").write_text("\n".join(data.classes) + "\n", encoding="utf-8")
            ImageShards(temporary, None)
    kind = "labels" if not captioned else "captions and boxes" if data.boxes else "captions"
    return Written(kind, len(data), count)


class _Captioned(Dataset):
    """Data set for writing: the files of each captioned sample as bytes by suffix, ``jpg`` and
    ``txt``; if the data have boxes, by the names that GRIT's shards use."""

    def __init__(self, folder: Path):
        self.images = folder / "images"
        self.rows = read_captions(folder)
        self.boxes = any(row.boxes for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, bytes]:
        row = self.rows[index]
        path = self.images / row.image
        prefix = "child." if self.boxes else ""
        image, data, suffix = _encoded(path)
        found = {f"{prefix}{suffix}": data, f"{prefix}txt": row.caption.strip().encode()}
        if self.boxes:
            found["numparents.txt"] = str(len(row.boxes)).encode()
        for number, box in enumerate(row.boxes):
            out = io.BytesIO()
            cut_box(image, box).save(out, "JPEG", quality=_QUALITY)
            found |= {
                f"parent{number:03}.jpg": out.getvalue(),
                f"parent{number:03}.txt": box.words.strip().encode(),
            }
        return found


class _Labelled(Dataset):
    """Data set for writing: the files of each labelled sample as bytes by suffix, ``jpg`` and
    ``cls``."""

    def __init__(self, folder: Path, classes: Sequence[str] | None):
        self.data = ImageFolderDataset(str(folder), lambda image: image, classes=classes)
        self.classes = self.data.metainfo["classes"]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, bytes]:
        _, data, suffix = _encoded(Path(self.data.name(index)))
        return {suffix: data, "cls": str(int(self.data.labels[index])).encode()}


def _write(folder: Path, samples: Iterable[dict[str, bytes]], total: int, size: int) -> int:
    """Write the samples into shards of ``size`` samples, and return the number of shards."""
    TarWriter: Any = require("webdataset", "shards").TarWriter
    count = -(-total // size)
    stream = iter(samples)
    with tqdm(total=total, desc="shards", unit="image", disable=None) as bar:
        for shard in range(count):
            with (
                (folder / f"{shard:06}.tar").open("wb") as file,
                TarWriter(file, encoder=False, mtime=0, user="", group="") as tar,
            ):
                for number in range(shard * size, min((shard + 1) * size, total)):
                    tar.write({"__key__": f"{number:09}", **next(stream)})
                    bar.update()
    return count


def _encoded(path: Path) -> tuple[Image.Image, bytes, str]:
    """Return an image as it is shown, the bytes of a file of it in a format that shards may have,
    and that file's suffix."""
    image = open_image(path)
    if path.suffix.lower() in _KEPT:
        return image, path.read_bytes(), _KEPT[path.suffix.lower()]
    out = io.BytesIO()
    image.save(out, "PNG")
    return image, out.getvalue(), "png"
