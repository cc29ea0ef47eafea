"""Export of scenes of emoji on photos, as label maps or in COCO's layout, with functions that other
exports use, too.

Each data set is written to a temporary folder beside its destination and moved there when it is
complete, so that an interrupted export leaves no incomplete data. The parameters are kept in its
``dataset.json``: a second export with the same parameters does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from hypvision.io import HypvisionError, Plain, StrPath, at_least, one_of
from hypvision.io.files import check_output_folder, replacing_folder, write_json
from hypvision.io.images import write_image
from hypvision.io.records import read_record

from .masks import box_of, run_length

RECORD = "dataset.json"  # file in an exported data set with the parameters of the export
FORMAT = 1  # version of the exports, increased when the images or the layouts change
PHOTO = "photo"  # name of the class of pixels that show no emoji


def export_emoji(
    out: StrPath,
    emoji: StrPath,
    photos: StrPath,
    layout: str = "masks",
    train: int = 1000,
    val: int = 200,
    size: int = 128,
    seed: int = 0,
    level: str = "group",
    pale: float = 0.0,
    styles: Sequence[str] = ("noto",),
    val_emoji: str = "val",
    overwrite: bool = False,
) -> Path:
    """Write scenes of emoji on photos (:class:`~hypvision.data.emoji_scenes.EmojiScenes`) with
    their masks or boxes to a folder, and return its path.

    Args:
        out: the folder to write.
        train, val: numbers of images. Emoji are turned, mirrored and recoloured in training scenes
            only.
        size: height and width of the images in pixels.
        seed: seed of all random choices; each seed gives another data set.
        overwrite: whether to replace an earlier export with other parameters in ``out``.
        emoji: folder of the emoji (:mod:`hypvision.data.emoji`) with the splits ``train`` and
            ``val_emoji``.
        photos: folder with ``train`` and ``test``, in which photos for the training and for the
            validation scenes lie, at any depth.
        layout: ``"masks"``: ``{train,val}/{images,masks}`` and ``classes.txt``, with label 0 for
            the photo; or ``"coco"``.
        level: what the class of an emoji is: its ``"name"``, its ``"class"`` or its ``"group"``.
        pale: share of white that is mixed into the photos, 0 to 1: the emoji then stand out more,
            and less training is enough.
        styles: vendors of the pictures: names of folders in the emoji's folder ``images``.
        val_emoji: split whose emoji the validation scenes show; ``"train"``: the emoji of the
            training scenes.
    """
    from .emoji_scenes import EmojiScenes  # late, because it imports mmengine, which is slow

    out = Path(out)
    one_of(_WRITERS, layout=layout)
    one_of(("name", "class", "group"), level=level)
    at_least(1, integer=True, train=train, val=val, size=size)
    record = dict(
        format=FORMAT, layout=layout, train=train, val=val, size=size, seed=seed, level=level,
        emoji=str(emoji), photos=str(photos), pale=pale, styles=list(styles), val_emoji=val_emoji,
    )  # fmt: skip
    if already_there(out, record, overwrite):
        return out
    make = partial(EmojiScenes, emoji, size=size, seed=seed, pale=pale, styles=styles)
    scenes = {
        "train": make(photos=Path(photos) / "train", split="train", length=train),
        "val": make(photos=Path(photos) / "test", split=val_emoji, length=val, augmented=False),
    }
    field = {"class": "classname"}.get(level, level)
    items = [item for data in scenes.values() for item in data.emoji]
    if level == "class":
        items.sort(key=lambda item: item.label)
    classes = list(dict.fromkeys(getattr(item, field) for item in items))
    place = {name: number for number, name in enumerate(classes)}
    with replacing_folder(out) as temporary:
        for split, data in scenes.items():
            labels = [place[getattr(item, field)] for item in data.emoji]
            numbers = tqdm(range(len(data)), f"{layout} {split}", leave=False, disable=None)
            _WRITERS[layout](temporary, split, map(data.scene, numbers), labels, classes)
        write_json(temporary / RECORD, record)
    return out


def _write_masks(
    root: Path, split: str, scenes: Iterable[Any], labels: Sequence[int], classes: Sequence[str]
) -> None:
    for kind in ("images", "masks"):
        (root / split / kind).mkdir(parents=True)
    for i, scene in enumerate(scenes):
        write_image(
            Image.fromarray(scene.image),
            root / split / "images" / f"{i:06d}.jpg",
            "JPEG",
            quality=95,
        )
        found = np.zeros(scene.image.shape[:2], np.uint8 if len(classes) < 255 else np.uint16)
        for placed in scene.objects:
            found[placed.mask] = labels[placed.emoji] + 1
        Image.fromarray(found).save(root / split / "masks" / f"{i:06d}.png")
    (root / "classes.txt").write_text("\n".join([PHOTO, *classes]) + "\n", encoding="utf-8")


def _write_instances(
    root: Path, split: str, scenes: Iterable[Any], labels: Sequence[int], classes: Sequence[str]
) -> None:
    folder = root / f"{split}2017"
    folder.mkdir()
    images: list[dict] = []
    instances: list[dict] = []
    for i, scene in enumerate(scenes):
        name = f"{i:012d}.jpg"
        (height, width) = scene.image.shape[:2]
        write_image(Image.fromarray(scene.image), folder / name, "JPEG", quality=95)
        images.append(dict(id=i, file_name=name, width=width, height=height))
        for placed in scene.objects:
            # box and mask are those of the visible pixels
            coco_instance(instances, i, labels[placed.emoji] + 1, box_of(placed.mask), placed.mask)
    (root / "annotations").mkdir(exist_ok=True)
    content = dict(images=images, annotations=instances, categories=[
        dict(id=label, name=name) for label, name in enumerate(classes, start=1)
    ])  # fmt: skip
    (root / "annotations" / f"instances_{split}2017.json").write_text(
        json.dumps(content), encoding="utf-8"
    )


_WRITERS = {"masks": _write_masks, "coco": _write_instances}
EMOJI_LAYOUTS = tuple(_WRITERS)


def coco_instance(
    annotations: list[dict], image: int, category: int, box: Sequence[int], mask: np.ndarray
) -> None:
    """Append an object to COCO's ``annotations``; ``box`` is (left, top, right, bottom), with right
    and bottom one past the last pixel."""
    left, top, right, bottom = box
    annotations.append(dict(
        id=len(annotations) + 1, image_id=image, category_id=category,
        bbox=[left, top, right - left, bottom - top], area=int(mask.sum()),
        segmentation=run_length(mask), iscrowd=0,
    ))  # fmt: skip


def already_there(out: Path, record: dict, overwrite: bool) -> bool:
    """Return whether ``out`` holds a data set that was exported with the parameters ``record``;
    raise an error if ``out`` has other files, or if it has another export and not ``overwrite``."""
    if not check_output_folder(out).exists() or not any(out.iterdir()):
        return False
    try:
        found = read_record(Plain, out / RECORD, "")
    except HypvisionError:
        raise HypvisionError(
            f"'{out}' exists and is not a data set of `hypvision data make`. Choose another "
            "folder, or remove it."
        ) from None
    if found == record:
        return True
    if not overwrite:
        different = ", ".join(key for key in record if found.get(key) != record[key])
        raise HypvisionError(
            f"'{out}' holds a data set with other parameters ({different}). Choose another folder, "
            "or pass --overwrite."
        )
    return False
