"""Write the procedural data set to disk in the layouts that training code expects: ImageFolder,
ADE20K, COCO.

Each data set is written to a temporary folder beside its place and moved there when it is complete,
so that an interrupted export leaves nothing half done. The parameters lie in ``dataset.json``: the
same export again does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from hypvision.data.emoji_export import FORMAT, RECORD, already_there, coco_instance
from hypvision.io.checks import one_of
from hypvision.io.files import replacing_folder, write_json
from hypvision.io.images import write_image

from .images import ShapesClassification, ShapesScenes
from .taxonomy import TAXONOMY


def _write_imagefolder(
    root: Path, lengths: dict[str, int], size: tuple[int, int], seed: int, level: str
) -> None:
    """``{train,val}/CLASS/NNNNNN.png``."""
    for split, length in lengths.items():
        data = ShapesClassification(split, length, size, seed, level)
        for name in data.classes:
            (root / split / name).mkdir(parents=True)
        for i in tqdm(
            range(length), desc=f"imagefolder {split}", unit="img", leave=False, disable=None
        ):
            image, label = data[i]
            image.save(root / split / data.classes[label] / f"{i:06d}.png")


def _write_ade(
    root: Path, lengths: dict[str, int], size: tuple[int, int], seed: int, level: str
) -> None:
    """``{images,annotations}/{training,validation}``: label 1 is the ground, 2 and up are classes,
    0 is never used."""
    names = ("background", *TAXONOMY.classes[level])
    for split, length in lengths.items():
        folder = {"train": "training", "val": "validation"}[split]
        for kind in ("images", "annotations"):
            (root / kind / folder).mkdir(parents=True)
        data = ShapesScenes(split, length, size, seed)
        for i in tqdm(range(length), desc=f"ade {split}", unit="img", leave=False, disable=None):
            scene = data[i]
            write_image(scene.image, root / "images" / folder / f"{i:06d}.jpg", "JPEG", quality=95)
            labels = (scene.semantic_at(level) + 1).astype(
                np.uint8 if len(names) < 255 else np.uint16
            )
            Image.fromarray(labels).save(root / "annotations" / folder / f"{i:06d}.png")
    (root / "objectInfo.txt").write_text(
        "".join(f"{i}\t{name}\n" for i, name in enumerate(names, start=1))
    )


def _write_coco(
    root: Path, lengths: dict[str, int], size: tuple[int, int], seed: int, level: str
) -> None:
    """``{train,val}2017/*.jpg`` and ``annotations/instances_{train,val}2017.json``."""
    kinds = TAXONOMY.classes["kind"]
    kind_of = TAXONOMY.ancestors("kind", of=level)
    names = enumerate(TAXONOMY.classes[level])
    categories = [dict(id=i + 1, name=name, supercategory=kinds[kind_of[i]]) for i, name in names]
    (root / "annotations").mkdir(parents=True)
    for split, length in lengths.items():
        folder = root / f"{split}2017"
        folder.mkdir()
        images: list[dict] = []
        instances: list[dict] = []
        data = ShapesScenes(split, length, size, seed)
        for i in tqdm(range(length), desc=f"coco {split}", unit="img", leave=False, disable=None):
            scene = data[i]
            name = f"{i:012d}.jpg"
            write_image(scene.image, folder / name, "JPEG", quality=95)
            width, height = scene.image.size
            images.append(dict(id=i, file_name=name, width=width, height=height))
            for item, mask in zip(scene.objects, scene.masks):
                coco_instance(instances, i, item.label(level) + 1, item.box, mask)
        content = dict(
            info={"description": f"hypvision shapes, seed {seed}"},
            licenses=[],
            images=images,
            annotations=instances,
            categories=categories,
        )
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))


LAYOUTS: dict[str, Callable[[Path, dict[str, int], tuple[int, int], int, str], None]] = {
    "imagefolder": _write_imagefolder,
    "ade": _write_ade,
    "coco": _write_coco,
}


def export(
    out: str | Path,
    layout: str = "imagefolder",
    train: int = 1000,
    val: int = 200,
    size: int | tuple[int, int] = 128,
    seed: int = 0,
    level: str = "shape",
    overwrite: bool = False,
) -> Path:
    """Write one data set into its folder, or leave it if it is there already; returns the folder.

    Args:
        out: the folder.
        layout: ``"imagefolder"`` (single objects), ``"ade"`` or ``"coco"`` (scenes).
        train, val: numbers of images.
        size: side, or (height, width), in pixels; at least 32.
        seed: each seed gives another data set.
        level: what the classes are: ``"kind"`` (4), ``"shape"`` (16) or ``"instance"`` (384; 16-bit
            ADE masks).
        overwrite: replace another data set of ours that lies in ``out``.
    """
    out = Path(out)
    one_of(LAYOUTS, layout=layout)
    height, width = (size, size) if isinstance(size, int) else size
    record = dict(
        format=FORMAT,
        layout=layout,
        train=train,
        val=val,
        size=[height, width],
        seed=seed,
        level=level,
    )
    if already_there(out, record, overwrite):
        return out
    # Check all arguments before anything is written.
    for split, length in (("train", train), ("val", val)):
        ShapesClassification(split, length, (height, width), seed, level)
    with replacing_folder(out) as temporary:
        LAYOUTS[layout](temporary, {"train": train, "val": val}, (height, width), seed, level)
        write_json(temporary / RECORD, record)
    return out
