"""Make the config for a folder of images with boxes or masks in the format of COCO or YOLO
(``hypvision train FOLDER``)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from hypvision.data.usage import PARTS, entries_of
from hypvision.data.yolo import find_yaml, outlined, read_yolo
from hypvision.engine.config import load_config
from hypvision.io import HypvisionError, Plain, ensure, some
from hypvision.io.files import read_json
from hypvision.io.images import is_image
from hypvision.io.shipped import config_folder

_IN_PART = ("_annotations.coco.json", "annotations.json", "labels.json")
_WHOLE = (
    "_annotations.coco.json", "annotations/instances_default.json", "annotations.json",
    "labels.json", "result.json",
)  # fmt: skip


# The names of folders that show that the data have boxes, in lower case.
_BOXES = ("annotations", "labels", "jpegimages", "obj_train_data")


# With fewer steps the new parts of a detector are far from what they reach
# (docs/studies/photos.md).
_STEPS = 300
_VALIDATIONS = 12


class Batches(NamedTuple):
    """The number of images in a batch (None: that of the config), and of the processes that each
    take batches of their own."""

    size: int | None = None
    processes: int = 1


_OWN = Batches()


class _Coco(NamedTuple):
    """An annotation file of COCO's format, the folder of its images, and its content."""

    file: Path
    images: Path
    content: Plain


class _Found(NamedTuple):
    """The data of a folder: names of the classes, whether all objects have outlines, the images for
    training, and for each part the settings of its data set."""

    classes: Sequence[str]
    masks: bool
    images: Sequence[Any]
    parts: dict[str, Plain]


def boxes_config(source: Path, batches: Batches = _OWN) -> Config | None:
    """Return the config ``_base_/own_boxes.py``, or ``own_masks.py`` if each object has an outline,
    for a folder or a ``data.yaml``; None if the folder has annotations neither of COCO nor of YOLO.

    Args:
        source: YOLO's ``data.yaml`` or its folder; or a folder in COCO's format:
            ``annotations/instances_train2017.json`` with ``train2017/*``,
            ``train/_annotations.coco.json`` with ``train/*``, or one file for all images, of which
            every fifth is for validation.
        batches: what a step of the training takes.
    """
    yaml = source if source.is_file() else find_yaml(source)
    if yaml is not None:
        return _config(yaml.parent, _of_yolo(yaml), batches)
    parts = _coco_parts(source)
    return _config(source, _of_coco(source, parts), batches) if parts else None


def _config(folder: Path, found: _Found, batches: Batches) -> Config:
    """Return the config for data that were found; where they are one part, every fifth image is for
    validation."""
    config = _base(found.masks, folder, found.classes)
    indices = _held_out(found.images, folder) if set(found.parts) == {"train"} else None
    for part in PARTS:
        own = found.parts[nearest(part, found.parts)]
        dataset = config.dataset(part)
        dataset.update(own)
        if indices is not None:
            dataset.indices = indices[part != "train"]
        # The evaluator reads the areas of objects from COCO's file.
        elif part != "train" and "type" not in own:
            config[f"{part}_evaluator"].ann_file = str(folder / own["ann_file"])
    _set_length(config, len(found.images if indices is None else indices[0]), batches)
    return config


def _base(masks: bool, folder: Path, classes: Sequence[str]) -> Config:
    name = "own_masks.py" if masks else "own_boxes.py"
    config = load_config(config_folder() / "_base_" / name)
    config.work_dir = str(Path("work_dirs", folder.resolve().name))
    config.data_root = str(folder)
    config.model.roi_head.bbox_head.num_classes = len(classes)
    if masks:
        config.model.roi_head.mask_head.num_classes = len(classes)
    for part in PARTS:
        dataset = config.dataset(part)
        dataset.metainfo = dict(classes=tuple(classes))
        dataset.data_prefix = dict(img="")
    return config


def _set_length(config: Config, images: int, batches: Batches) -> None:
    """Set the batch size, and give a training on few images as many epochs as make ``_STEPS``
    steps."""
    loader = config.train_dataloader
    loader.batch_size = batches.size or loader.batch_size
    steps = math.ceil(images / (loader.batch_size * batches.processes))
    epochs = max(config.train_cfg.max_epochs, math.ceil(_STEPS / steps))
    set_epochs(config, epochs, max(1, epochs // _VALIDATIONS))


def set_epochs(config: Config, epochs: int, part: int = 1) -> None:
    """Set the length of a training on a folder; ``part`` epochs are its warm-up, and lie between
    two validations and checkpoints."""
    warm_up, cosine = config.param_scheduler
    warm_up.end = cosine.begin = part
    cosine.end = epochs
    config.train_cfg.update(max_epochs=epochs, val_interval=part)
    config.default_hooks.checkpoint.interval = part


# Data in YOLO's format


def _of_yolo(yaml: Path) -> _Found:
    data = read_yolo(yaml)
    ensure(
        "train" in data.images,
        f"'{yaml}' names no training data. Add a line such as 'train: images/train'.",
    )
    place = dict(type="YOLODataset", data_root=str(yaml.parent), ann_file=yaml.name)
    parts = {part: dict(place, part=part) for part in data.images}
    return _Found(data.names, outlined(data), data.images["train"], parts)


def nearest(part: str, known: Any) -> str:
    """Return the part that is used for ``part`` if that does not exist: test for val, and the
    reverse."""
    others = dict(train=("train",), val=("val", "test", "train"), test=("test", "val", "train"))
    return next(name for name in others[part] if name in known)


def _held_out(images: Sequence[Any], place: Path) -> tuple[list[int], list[int]]:
    """Return the positions of the images for training, and of every fifth image, for validation."""
    ensure(
        len(images) >= 2,
        f"'{place}' has one image. Expected: at least two, one of them to validate with. Add "
        "images.",
    )
    apart = list(range(len(images) - 1, -1, -5))[::-1]
    return [number for number in range(len(images)) if number not in set(apart)], apart


# Data in COCO's format


def _coco_parts(folder: Path) -> dict[str, _Coco]:
    """Return the annotation file of each part; only ``train`` if one file has all images."""
    found = {}
    for part, names in PARTS.items():
        one = next(filter(None, (_coco_of(folder, name) for name in names)), None)
        if one is not None:
            found[part] = one
    if found:
        return found
    whole = next((folder / name for name in _WHOLE if (folder / name).is_file()), None)
    one = None if whole is None else _opened(whole, [folder, folder / "images", folder / "data"])
    return {} if one is None else {"train": one}


def _coco_of(folder: Path, name: str) -> _Coco | None:
    """Return the annotation file of the part with this name, in letters of any size; None if there
    is none."""
    place = entries_of(folder).get(name, folder / name)
    for file in (place / own for own in _IN_PART):
        if file.is_file():
            return _opened(file, [file.parent, file.parent / "images", file.parent / "data"])
    pattern = re.compile(rf"(instances_)?{name}(\d{{4}})?", re.IGNORECASE)
    # The newest year comes first.
    for file in sorted(folder.glob("annotations/*.json"), reverse=True):
        if pattern.fullmatch(file.stem):
            stem = file.stem.removeprefix("instances_")
            named = place.name
            inner = [stem, f"images/{stem}", named, f"images/{named}", "images", "."]
            return _opened(file, [folder / place for place in inner])
    return None


def _opened(file: Path, places: Sequence[Path]) -> _Coco | None:
    """Return the file with the folder where its first image lies; None if the file is not of COCO's
    format."""
    content = read_json(file)
    if not isinstance(content, dict):
        return None
    if not all(isinstance(content.get(key), list) for key in ("images", "categories")):
        return None
    ensure(
        content["images"],
        f"'{file}' lists no images. Take an intact copy of the file.",
    )
    first = content["images"][0]
    name = str(first.get("file_name") if isinstance(first, dict) else first)
    images = next((place for place in places if (place / name).is_file()), None)
    if images is None:
        looked = ", ".join(f"'{place}'" for place in dict.fromkeys(places))
        raise HypvisionError(
            f"'{file}' names the image '{name}', which is in none of {looked}. Put the images "
            "there, or write a config (docs/own-data.md)."
        )
    return _Coco(file, images, content)


def _of_coco(folder: Path, parts: dict[str, _Coco]) -> _Found:
    if "train" not in parts:
        found = ", ".join(f"'{part.file}'" for part in parts.values())
        raise HypvisionError(
            f"'{folder}' has {found}, but no annotations of training images. Add them, for example "
            f"as '{folder}/annotations/instances_train.json'."
        )
    train = parts["train"].content
    classes, empty = _classes(train)
    objects = [item for part in parts.values() for item in _objects(part.content)]
    masks = bool(objects) and all(item.get("segmentation") for item in objects)
    settings = {
        part: dict(
            data_root=str(folder),
            ann_file=str(own.file.relative_to(folder)),
            data_prefix=dict(img=str(own.images.relative_to(folder))),
            ignored=empty,
        )
        for part, own in parts.items()
    }
    return _Found(classes, masks, train["images"], settings)


def _objects(content: Plain) -> list[Plain]:
    found = content.get("annotations")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _classes(content: Plain) -> tuple[list[str], list[str]]:
    """Return the names of the categories that objects have, and of those that only group others (as
    the first of Roboflow's)."""
    items = [item for item in content["categories"] if isinstance(item, dict)]
    above = {str(item.get("supercategory")) for item in items}
    used = {_id(item, "category_id") for item in _objects(content)}
    names: dict[bool, list[str]] = {True: [], False: []}
    for item in items:
        counts = _id(item, "id") in used or str(item.get("name")) not in above
        names[counts].append(str(item.get("name")))
    return names[True], names[False]


def _id(item: Plain, key: str) -> Any:
    """Return an entry if it is a number or a text, which can be looked up; None for other
    values."""
    value = item.get(key)
    return value if isinstance(value, (int, float, str)) else None


def refuse_other_boxes(folder: Path) -> None:
    """Raise an error for a folder that has boxes in a layout that is not read, before its folders
    are taken for classes."""
    entries = sorted(folder.iterdir())
    folders = {path.name.lower(): path for path in entries if path.is_dir()}
    images = {path.stem for path in entries if is_image(path)}
    known = [folders[name] for name in _BOXES if name in folders]
    known += [path for path in entries if path.suffix in (".json", ".xml") and path.stem in images]
    if known:
        raise HypvisionError(
            f"'{folder}' has '{known[0].name}', so it seems to hold boxes, but it has "
            "neither YOLO's data.yaml nor a file of COCO such as annotations/instances_train.json "
            "or train/_annotations.coco.json. For YOLO write a data.yaml, with 'names: [cat, dog]' "
            "and 'train: images'. For VOC, LabelMe or CreateML use hypvision data convert. Unpack "
            "files that end in .gz."
        )


def choose_boxes(config: Config, image_size: int | None) -> None:
    """Set the size of the images in a config with boxes."""
    for part in PARTS if image_size else ():
        for step in config.dataset(part).pipeline:
            if step.type == "Resize":
                step.scale = (image_size, image_size)


def described_boxes(config: Config) -> str:
    """Return a line that says what was found in a folder."""
    train, val, test = (config.dataset(part) for part in PARTS)
    kind = "YOLO" if train.type == "YOLODataset" else "COCO"
    what = "masks" if config.model.type == "MaskRCNN" else "boxes"
    place = str(Path(train.data_root, train.ann_file))
    return told(f"{kind} with {what}", place, train.metainfo.classes, *map(_source, (val, test)))


def _source(dataset: Any) -> str:
    """Return words for the images of a part that is not for training."""
    if dataset.get("indices") is not None:
        return "every fifth image"
    if dataset.type == "YOLODataset":
        return f"its '{dataset.part}'"
    return f"'{Path(dataset.data_root, dataset.ann_file)}'"


def told(kind: str, place: str, classes: Sequence[str], val: str, test: str) -> str:
    """Return the line that says what was found: the kind of the data, their place, the classes, and
    what is for validation and for the test."""
    apart = f"validation: {val}; test: {test}"
    if val == test:
        apart = f"validation and test: {val}"
    return f"found: {kind}, '{place}', {len(classes)} classes ({some(classes, 20)}); {apart}"
