"""Write the procedural data set to disk in the layouts that training code expects: ImageFolder,
ADE20K, COCO.

Each data set is written to a temporary folder beside its place and moved there when it is complete,
so that an interrupted export leaves nothing half done. The parameters lie in ``dataset.json``: the
same export again does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from hypvision.io.checks import at_least, one_of
from hypvision.io.errors import HypvisionError
from hypvision.io.files import check_output_folder, replacing_folder, write_json
from hypvision.io.images import write_image
from hypvision.io.records import read_record

from .masks import box_of, run_length
from .shapes import ShapesClassification, ShapesScenes
from .taxonomy import TAXONOMY

_RECORD = "dataset.json"
_FORMAT = 1  # version, increased when the images or the layouts change


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
    """``{train,val}2017/*.jpg`` and ``annotations/{instances,captions}_{train,val}2017.json``."""
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
        captions: list[dict] = []
        data = ShapesScenes(split, length, size, seed)
        for i in tqdm(range(length), desc=f"coco {split}", unit="img", leave=False, disable=None):
            scene = data[i]
            name = f"{i:012d}.jpg"
            write_image(scene.image, folder / name, "JPEG", quality=95)
            width, height = scene.image.size
            images.append(dict(id=i, file_name=name, width=width, height=height))
            for item, mask in zip(scene.objects, scene.masks):
                _instance(instances, i, item.label(level) + 1, item.box, mask)
            for depth, (true, false) in enumerate(zip(scene.captions, scene.contradictions)):
                number = len(captions) + 1
                captions.append(
                    dict(id=number, image_id=i, level=depth, caption=true, contradiction=false)
                )
        shared = dict(
            info={"description": f"hypvision shapes, seed {seed}"}, licenses=[], images=images
        )
        boxes = dict(annotations=instances, categories=categories)
        sentences = dict(annotations=captions)
        for kind, record in dict(instances=boxes, captions=sentences).items():
            (root / "annotations" / f"{kind}_{split}2017.json").write_text(
                json.dumps(shared | record)
            )


def _instance(
    annotations: list[dict], image: int, category: int, box: Sequence[int], mask: np.ndarray
) -> None:
    """Append an object to COCO's annotations; its box is (left, top, right, bottom), right and
    bottom outside."""
    left, top, right, bottom = box
    annotations.append(dict(
        id=len(annotations) + 1, image_id=image, category_id=category,
        bbox=[left, top, right - left, bottom - top], area=int(mask.sum()),
        segmentation=run_length(mask), iscrowd=0,
    ))  # fmt: skip


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
        format=_FORMAT,
        layout=layout,
        train=train,
        val=val,
        size=[height, width],
        seed=seed,
        level=level,
    )
    if _already_there(out, record, overwrite):
        return out
    # Check all arguments before anything is written.
    for split, length in (("train", train), ("val", val)):
        ShapesClassification(split, length, (height, width), seed, level)
    with replacing_folder(out) as temporary:
        LAYOUTS[layout](temporary, {"train": train, "val": val}, (height, width), seed, level)
        write_json(temporary / _RECORD, record)
    return out


EMOJI_LAYOUTS = ("masks", "coco")
PHOTO = "photo"  # class of the pixels without emoji


def export_emoji(
    out: str | Path,
    emoji: str | Path,
    photos: str | Path,
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
    their masks and boxes.

    Args:
        out, train, val, size, seed, overwrite: as for :func:`export`; scenes are square. Only
            training scenes turn, mirror and recolour the emoji.
        emoji: folder of the emoji (:mod:`hypvision.data.emoji`) with the splits ``train`` and
            ``val_emoji``.
        photos: folder with ``train`` and ``test``, photos at any depth, behind the training and
            validation scenes.
        layout: ``"masks"``: ``{train,val}/{images,masks}`` and ``classes.txt``, label 0 for the
            photo; or ``"coco"``.
        level: what the classes are: ``"name"`` of the emoji, its ``"class"`` or its ``"group"``.
        pale: share of white in the photos, 0 to 1: the emoji stand out more, and less training is
            enough.
        styles: vendors of the pictures, folders of ``images``.
        val_emoji: the split whose emoji the validation scenes show; ``"train"``: those of the
            training scenes.
    """
    from .emoji_scenes import EmojiScenes  # imports mmengine

    out = Path(out)
    one_of(EMOJI_LAYOUTS, layout=layout)
    one_of(("name", "class", "group"), level=level)
    at_least(1, integer=True, train=train, val=val, size=size)
    record = dict(
        format=_FORMAT, layout=layout, train=train, val=val, size=size, seed=seed, level=level,
        emoji=str(emoji), photos=str(photos), pale=pale, styles=list(styles), val_emoji=val_emoji,
    )  # fmt: skip
    if _already_there(out, record, overwrite):
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
            found = (
                data.scene(i)
                for i in tqdm(range(len(data)), f"{layout} {split}", leave=False, disable=None)
            )
            (_write_masks if layout == "masks" else _write_instances)(
                temporary, split, found, labels, classes
            )
        write_json(temporary / _RECORD, record)
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
            # of what is seen
            _instance(instances, i, labels[placed.emoji] + 1, box_of(placed.mask), placed.mask)
    (root / "annotations").mkdir(exist_ok=True)
    content = dict(images=images, annotations=instances, categories=[
        dict(id=label, name=name) for label, name in enumerate(classes, start=1)
    ])  # fmt: skip
    (root / "annotations" / f"instances_{split}2017.json").write_text(
        json.dumps(content), encoding="utf-8"
    )


def _already_there(out: Path, record: dict, overwrite: bool) -> bool:
    """Whether ``out`` holds this very data set; an error for what must not be replaced."""
    if not check_output_folder(out).exists() or not any(out.iterdir()):
        return False
    try:
        found = read_record(dict[str, Any], out / _RECORD, "")
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
