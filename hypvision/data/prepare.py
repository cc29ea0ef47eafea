"""Conversion of published data sets to the layouts that hypvision reads: label maps of the
open-vocabulary test sets, and images in class folders.

For a test set with label maps, ``OUT/images/validation`` and ``OUT/annotations/validation`` are
written, the layout of ``configs/hyperclip``:

| name | SOURCE | labels |
|---|---|---|
| ade847 | ADE20K_2021_17_01 | 0-846 as listed, 65535 ignored, 16 bits; short side at most 512 |
| pc59 | VOCdevkit/VOC2010 with trainval_merged.json | 0-58, 255 ignored |
| pc459 | VOCdevkit/VOC2010 with trainval/*.mat and pascalcontext_val.txt | 0-458, 16 bits |
| voc20 | VOCdevkit/VOC2012 with SegmentationClassAug | 0-19; background and borders 255 |
| voc20b | the same | background 20, borders 255 |

For images of classes, ``OUT/PART/CLASS/NAME`` is written, which ``ImageFolderDataset`` reads:

| name | SOURCE | parts |
|---|---|---|
| cifar10, cifar100 | folder of cifar-10-batches-py or cifar-100-python | train, test: PNG files |
| tiny-imagenet | tiny-imagenet-200 | train, val: the published JPEG files |

The data sets of :mod:`hypvision.data.archives` are written from their archives.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from hypvision.io import (
    HypvisionError,
    Plain,
    StrPath,
    ensure,
    explaining,
    one_line,
    one_of,
    require,
)
from hypvision.io.files import (
    below,
    check_output_folder,
    inside,
    json_text,
    read_json,
    read_lines,
    replacing,
    write_same,
)
from hypvision.io.images import image_kind, open_image, read_labels, shown_size, write_image

from . import archives
from .annotations import whole_size
from .archives import Picture
from .classes import official_ids
from .image_folder import CIFARDataset
from .label_maps import check_size, read_label_map
from .masks import decode
from .published import read_matlab, read_rows

# name of an image, its path, the path of the file with its labels, a function that reads these
Item = tuple[str, Path, Path, Callable[[], np.ndarray]]


def ade847_labels(image: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return labels uint16 (H, W) from the pixels of a ``*_seg.png``, uint8 (H, W, 3), whose
    category is (R / 10) * 256 + G; ``table`` has the label of each category, 65535 if it is
    ignored."""
    category = (image[..., 0].astype(np.int64) // 10) * 256 + image[..., 1]
    return table[np.minimum(category, len(table) - 1)]


def voc_labels(labels: np.ndarray, background: bool) -> np.ndarray:
    """Convert Pascal VOC's labels, 0 (background), 1 to 20 and 255 (border), to 0 to 19 for the
    classes, 255 for the border, and for the background 20 if ``background``, else 255."""
    table = np.full(256, 255, dtype=np.uint8)
    table[1:21] = np.arange(20)
    table[0] = 20 if background else 255
    return table[labels]


def _plain(name: str) -> str:
    """Return ``name``, an image's name from a list, after a check that it does not lead to another
    folder."""
    ensure(
        Path(name).name == name,
        f"'{name}' is not the name of an image: it leads to another folder. Correct the list.",
    )
    return name


def _need(path: Path) -> Path:
    ensure(
        path.exists(),
        f"'{path}' does not exist. Check SOURCE; docs/data.md and docs/open-vocabulary.md say what "
        "it must hold.",
    )
    return path


def _names(path: Path) -> list[str]:
    return [
        _plain(name)
        for line in read_lines(_need(path), "the list of images")
        for name in line.split()
    ]


def _reading(path: Path) -> AbstractContextManager[None]:
    # pycocotools raises errors of many classes for damaged annotations.
    return explaining(
        lambda error: f"'{path}' cannot be read ({one_line(error)}). Replace it by an intact copy."
    )


def _ade847(source: Path) -> Iterator[Item]:
    ids = official_ids("ade847")
    table = np.full(max(ids) + 2, 65535, dtype=np.uint16)
    table[ids] = np.arange(len(ids))
    folder = _need(source / "images/ADE/validation")

    def labels(path: Path) -> np.ndarray:
        mode = image_kind(path)[1]
        ensure(
            mode in ("RGB", "RGBA"),
            f"'{path}' has Pillow's mode {mode}; the published *_seg.png are RGB, their "
            "colours stand for the classes. Copy it again.",
        )
        return ade847_labels(read_labels(path, mode="RGB"), table)

    for path in sorted(folder.rglob("*.jpg")):
        seg = _need(path.with_name(f"{path.stem}_seg.png"))
        yield path.stem, path, seg, partial(labels, seg)


def _pc59(source: Path) -> Iterator[Item]:
    ids = official_ids("pc59")
    table = np.full(max(ids) + 1, 255, dtype=np.uint8)
    table[ids[1:]] = np.arange(len(ids) - 1)
    by_image: dict[Any, list[dict]] = {}
    file = _need(source / "trainval_merged.json")
    with _reading(file):
        content = read_json(file)
        for annotation in content["annos" if "annos" in content else "annotations"]:
            by_image.setdefault(annotation["image_id"], []).append(annotation)
        images = [item for item in content["images"] if item.get("phase", "val") == "val"]
        wanted = [(Path(item["file_name"]).stem, item) for item in images]

    def labels(item: dict) -> np.ndarray:
        with _reading(file):
            size = (item["height"], item["width"])
            ensure(whole_size(*size), f"'{file}' has an image of the size {size}.")
            painted = np.zeros(size, dtype=np.int64)
            for annotation in by_image.get(item["image_id" if "image_id" in item else "id"], ()):
                mask = decode(annotation["segmentation"], *size)
                if mask.shape != painted.shape:
                    raise HypvisionError(
                        f"'{file}' has a mask of {mask.shape[1]} x {mask.shape[0]} pixels for "
                        f"'{item['file_name']}', which has {size[1]} x {size[0]}. Replace the file "
                        "by an intact copy."
                    )
                painted[mask] = annotation["category_id"]
            return table[np.where(painted < len(table), painted, 0)]

    for name, item in wanted:
        yield name, _need(source / "JPEGImages" / f"{name}.jpg"), file, partial(labels, item)


def _pc459(source: Path) -> Iterator[Item]:
    def labels(path: Path) -> np.ndarray:
        found = read_matlab(path, "LabelMap").astype(np.int64)
        if found.min() < 1 or found.max() > 459:
            raise HypvisionError(
                f"'{path}' has labels from {found.min()} to {found.max()}; expected 1 to 459."
            )
        return (found - 1).astype(np.uint16)

    for name in _names(source / "pascalcontext_val.txt"):
        path = _need(source / "trainval" / f"{name}.mat")
        yield name, _need(source / "JPEGImages" / f"{name}.jpg"), path, partial(labels, path)


def _voc(background: bool) -> Callable[[Path], Iterator[Item]]:
    def labels(path: Path) -> np.ndarray:
        found = read_label_map(path)
        wrong = found[(found < 0) | ((found > 20) & (found != 255))]
        if wrong.size:
            raise HypvisionError(
                f"'{path}' has the label {wrong[0]}; expected are 0 to 20, and 255 for the "
                "borders. Take the maps of SegmentationClassAug."
            )
        return voc_labels(found, background)

    def items(source: Path) -> Iterator[Item]:
        for name in _names(source / "ImageSets/Segmentation/val.txt"):
            path = _need(source / "SegmentationClassAug" / f"{name}.png")
            yield name, _need(source / "JPEGImages" / f"{name}.jpg"), path, partial(labels, path)

    return items


# From a data set's name to a function that lists the items in its source folder, the suffix of the
# label maps, and the largest short side of an image, to which larger images are scaled down.
PREPARED: dict[str, tuple[Callable[[Path], Iterator[Item]], str, int | None]] = {
    "ade847": (_ade847, ".tif", 512),
    "pc59": (_pc59, ".png", None),
    "pc459": (_pc459, ".tif", None),
    "voc20": (_voc(False), ".png", None),
    "voc20b": (_voc(True), ".png", None),
}


def _cifar(name: str, source: Path) -> Iterator[Picture]:
    for part in ("train", "test"):
        data = CIFARDataset(str(source), lambda image: image, train=part == "train", name=name)
        for number, label in enumerate(data.labels):
            image = data.read(number)
            class_name = data.metainfo["classes"][label]
            yield f"{part}/{class_name}/{number:05d}.png", partial(write_image, image, format="PNG")


def _tiny_imagenet(source: Path) -> Iterator[Picture]:
    inner = source / "tiny-imagenet-200"
    source = inner if inner.is_dir() else source
    classes = _names(source / "wnids.txt")
    for wnid in sorted(classes):
        for path in sorted(_need(source / "train" / wnid / "images").iterdir()):
            yield f"train/{wnid}/{path.name}", partial(shutil.copyfile, path)
    table = _need(source / "val/val_annotations.txt")
    for name, wnid, *_ in read_rows(table, "the classes of the validation images", 2):
        if wnid not in classes:
            raise HypvisionError(
                f"'{table}' has the class '{wnid}', which wnids.txt does not list. Replace it."
            )
        yield (
            f"val/{wnid}/{_plain(name)}",
            partial(shutil.copyfile, _need(source / "val/images" / name)),
        )


# From a data set's name to a function that lists the images in its source folder.
FOLDERS: dict[str, Callable[[Path], Iterator[Picture]]] = {
    "cifar10": partial(_cifar, "cifar10"),
    "cifar100": partial(_cifar, "cifar100"),
    "tiny-imagenet": _tiny_imagenet,
}


# From a data set's name to a function that lists the files to write from its archives.
ARCHIVES: dict[str, Callable[[Path], Iterator[Picture]]] = {
    "imagenet": archives.imagenet,
    "ade20k": archives.ade20k,
    "coco-stuff": archives.coco_stuff,
}


NAMES = (*PREPARED, *FOLDERS, *ARCHIVES, "ade-panoptic")


def _prepare_ade_panoptic(source: Path, out: Path) -> int:
    segments: list[Plain] = []
    pictures = archives.ade_panoptic(source, segments)
    written = _write_all("ade-panoptic", pictures, source, out) // 2
    content = archives.panoptic_json(segments)
    write_same(out / "ade20k_panoptic_val.json", json_text(content, indent=None))
    return written


def _write_all(name: str, pictures: Iterator[Picture], source: Path, out: Path) -> int:
    check_output_folder(out)
    count = 0
    for place, write in tqdm(pictures, desc=name, unit="img", disable=None):
        target = below(out, place)
        if not target.exists():
            with replacing(target) as temporary:
                write(temporary)
        count += 1
    ensure(
        count != 0, f"'{source}' lists no images of {name}. Check SOURCE: it may not be complete."
    )
    return count


def prepare(name: str, source: StrPath, out: StrPath) -> int:
    """Write a data set from the folder of its published files, and return the number of images.
    Images that ``out`` has already are skipped, so an interrupted call can be repeated."""
    one_of(NAMES, name=name)
    source = _need(Path(source).expanduser())
    out = Path(out).expanduser()
    if name in FOLDERS:
        with archives.unpacked(name, source) as folder:
            return _write_all(name, FOLDERS[name](folder), source, out)
    if name == "ade-panoptic":
        return _prepare_ade_panoptic(source, out)
    if name in ARCHIVES:
        return _write_all(name, ARCHIVES[name](source), source, out)
    return _prepare_maps(name, source, out)


def _prepare_maps(name: str, source: Path, out: Path) -> int:
    """Write the images and label maps of a test set, and return the number of images."""
    items, suffix, limit = PREPARED[name]
    images = out / "images/validation"
    annotations = out / "annotations/validation"
    check_output_folder(out)
    found = list(items(source))
    ensure(found, f"'{source}' lists no images of {name}. Check SOURCE: it may not be complete.")
    inside([path for _, image, labels_file, _ in found for path in (image, labels_file)], source)
    for stem, source_image, labels_file, labels in tqdm(found, desc=name, unit="img", disable=None):
        # A list from outside may name any path, so the targets must be checked to lie in ``out``.
        target = below(out, f"{annotations.relative_to(out)}/{_plain(stem)}{suffix}")
        image = below(out, f"{images.relative_to(out)}/{stem}.jpg")
        if not target.exists():
            with _reading(labels_file):
                values = labels()
            check_size(labels_file, values.shape, source_image, shown_size(source_image))
            _write(source_image, values, image, target, limit)
    return len(found)


def _write(
    source_image: Path, labels: np.ndarray, image_path: Path, label_path: Path, limit: int | None
) -> None:
    """Write an item's image and then its label map, so that an item with a label map is
    complete."""
    short = min(labels.shape)
    if limit is not None and short > limit:
        cv2 = require("cv2", "mm")
        size = tuple(round(side * limit / short) for side in labels.shape[::-1])
        image = cv2.resize(
            np.asarray(open_image(source_image)), size, interpolation=cv2.INTER_LINEAR
        )
        labels = cv2.resize(labels, size, interpolation=cv2.INTER_NEAREST)
        with replacing(image_path) as temporary:
            write_image(Image.fromarray(image), temporary, "JPEG", quality=95)
    else:
        with replacing(image_path) as temporary:
            shutil.copyfile(source_image, temporary)
    with replacing(label_path) as temporary:
        write_image(
            Image.fromarray(labels), temporary, "TIFF" if label_path.suffix == ".tif" else "PNG"
        )
