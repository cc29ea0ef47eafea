"""Read data sets from the archives that their authors publish, checked by the published sums.

| name | archives in SOURCE, or the same unpacked | written |
|---|---|---|
| imagenet | ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz; or train.tar and val.tar of class folders (timm); or val/ without folders, and the devkit | {train,val}/WNID |
| ade20k | ADEChallengeData2016.zip | ADEChallengeData2016/{images,annotations}/{training,validation} |
| ade-panoptic | the same, and annotations_instance.tar | images/validation, ade20k_panoptic_val, ade20k_panoptic_val.json |
| coco-stuff | train2017.zip, val2017.zip, stuffthingmaps_trainval2017.zip | images/{train,val}2017, annotations/{train,val}2017/NAME_labelTrainIds.png |
| cifar10, cifar100, tiny-imagenet | cifar-10-python.tar.gz, cifar-100-python.tar.gz, tiny-imagenet-200.zip | see :mod:`hypvision.data.prepare` |
"""  # noqa: E501 - a table

from __future__ import annotations

import hashlib
import lzma
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from hypvision.io import HypvisionError, Plain, ensure
from hypvision.io.files import check_regular, read_lines, read_pieces
from hypvision.io.images import is_hidden, read_labels, write_image

from .classes import load_classes, official_ids
from .masks import box_of
from .published import read_label, read_matlab

# limit in bytes for a file in an archive; images and label maps have some megabytes
LARGEST = 2**28

Picture = tuple[str, Callable[[Path], object]]
"""The path of a file to write, and a function that writes the file to a path."""

SUMS = {
    "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
    "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
    "ILSVRC2012_devkit_t12.tar.gz": "fa75699e90414af021442c21a62c3abf",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de",
    "ADEChallengeData2016.zip": "219e1696abb36c8ba3a3afe7fb2f4b4606a897c7",
    "train2017.zip": "10ad623668ab00c62c096f0ed636d6aff41faca5",
    "val2017.zip": "4950dc9d00dbe1c933ee0170f5797584351d2a41",
}
"""MD5 or SHA-1 sums of archives, as published with them or with their loaders."""

UNPACKED = {
    "cifar10": ("cifar-10-python.tar.gz", "cifar-10-batches-py"),
    "cifar100": ("cifar-100-python.tar.gz", "cifar-100-python"),
    "tiny-imagenet": ("tiny-imagenet-200.zip", "tiny-imagenet-200"),
}
"""For small data sets the name of the archive and of the folder in it."""

# The 100 things of ADE20K's 150 classes, counted from 1, are numbered by their order in the maps of
# instances.
_STUFF = set(official_ids("ade150_stuff"))
_THINGS = [number for number in range(1, 151) if number not in _STUFF]
# The values of COCO-Stuff's maps that no pixel has: those of COCO's 91 categories without objects.
_UNUSED = (11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90)


class Files:
    """The files in a folder, a zip or a tar archive, by their paths in it.

    Raises:
        HypvisionError: the archive is damaged, needs a password, or does not exist as a file.
    """

    def __init__(self, place: Path):
        self.place = check_regular(place, sys.maxsize)  # ImageNet has 138 GB
        self._archive: Any = None
        with _readable(place):
            self.names = self._listed()

    def _listed(self) -> list[str]:
        if self.place.is_dir():
            found = (path.relative_to(self.place) for path in sorted(self.place.rglob("*")))
            names = [path.as_posix() for path in found if (self.place / path).is_file()]
        elif self.place.suffix == ".zip":
            self._archive = zipfile.ZipFile(self.place)
            names = [item.filename for item in self._archive.infolist() if not item.is_dir()]
        else:
            # The archive is read later, so it stays open.
            self._archive = tarfile.open(self.place)  # noqa: SIM115
            self._members = {item.name: item for item in self._archive if item.isreg()}
            names = list(self._members)
        return [name for name in names if not any(map(is_hidden, PurePosixPath(name).parts))]

    def open(self, name: str) -> Any:
        """Return a file, opened for reading."""
        if self._archive is None:
            return (self.place / name).open("rb")
        if isinstance(self._archive, zipfile.ZipFile):
            return self._archive.open(name)
        return self._archive.extractfile(self._members[name])

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            HypvisionError: the file is damaged, needs a password, or has more than :data:`LARGEST`
                bytes.
        """
        with _readable(self.place, name), self.open(name) as file:
            return bytes(read_pieces(file, LARGEST, self.place / name))

    def copy(self, name: str, target: Path) -> None:
        target.write_bytes(self.read(name))


@contextmanager
def _readable(place: Path, name: str = "") -> Iterator[None]:
    """Context that explains in its errors why an archive, or a file in it, cannot be read."""
    what = f"'{name}' in '{place}'" if name else f"'{place}'"
    try:
        yield
    except NotImplementedError as error:
        raise HypvisionError(
            f"{what} is packed in a way that Python does not know ({error}). Unpack the archive, "
            "and give the folder."
        ) from error
    # zipfile raises this error about passwords.
    except RuntimeError as error:
        raise HypvisionError(
            f"{what} cannot be read: {error}. Unpack the archive with its password, and give the "
            "folder."
        ) from error
    except (
        zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError
    ) as error:  # fmt: skip
        # An error with a number comes from the disk, not from the archive.
        if getattr(error, "errno", None) is not None:
            raise
        raise HypvisionError(f"{what} is damaged ({error}). Fetch it again.") from error


def find(source: Path, *names: str) -> Files:
    """Return the files of the first of these archives or folders that exists in ``source``, after
    its sum was checked.

    Raises:
        HypvisionError: ``source`` has none of them, or the sum of the archive differs.
    """
    place = next((source / name for name in names if (source / name).exists()), None)
    if place is None:
        raise HypvisionError(
            f"'{source}' has none of {', '.join(names)}. Fetch it, or give the folder that has it "
            "(docs/data.md)."
        )
    _check_sum(place)
    return Files(place)


def _check_sum(place: Path) -> None:
    wanted = SUMS.get(place.name)
    if wanted is None or not place.is_file():
        return
    found = hashlib.new("md5" if len(wanted) == 32 else "sha1", usedforsecurity=False)
    size = place.stat().st_size
    with (
        place.open("rb") as file,
        tqdm(
            desc=f"sum of {place.name}", total=size, unit="B", unit_scale=True, disable=None
        ) as bar,
    ):
        for piece in iter(partial(file.read, 2**22), b""):
            found.update(piece)
            bar.update(len(piece))
    if found.hexdigest() != wanted:
        raise HypvisionError(
            f"'{place}' has the sum {found.hexdigest()}, but the published file has {wanted}: the "
            "archive is not complete, or another one. Fetch it again."
        )


@contextmanager
def unpacked(name: str, source: Path) -> Iterator[Path]:
    """Context with the folder that a small data set is read from: ``source``, or a temporary folder
    into which its archive is unpacked."""
    archive, folder = UNPACKED[name]
    file = source if source.name == archive else source / archive
    if (source / folder).exists() or source.name == folder or not file.is_file():
        yield source
        return
    _check_sum(file)
    with TemporaryDirectory(prefix="hypvision-", ignore_cleanup_errors=True) as place:
        with _readable(file):
            if file.suffix == ".zip":
                with zipfile.ZipFile(file) as packed:
                    packed.extractall(place)
            else:
                with tarfile.open(file) as packed_tar:
                    packed_tar.extractall(place, filter="data")
        yield Path(place)


# ImageNet


def imagenet(source: Path) -> Iterator[Picture]:
    """Yield the images of the training and the validation part, in class folders."""
    train = find(source, "ILSVRC2012_img_train.tar", "train.tar", "train")
    for name in train.names:
        # The archive has the images of one class.
        if name.endswith(".tar"):
            yield from _of_class(train, name)
        elif _is_jpeg(name):
            yield f"train/{_class_of(name, train)}/{Path(name).name}", partial(train.copy, name)
    yield from _validation(source)


def _validation(source: Path) -> Iterator[Picture]:
    val = find(source, "ILSVRC2012_img_val.tar", "val.tar", "validation.tar", "val", "validation")
    images = [name for name in val.names if _is_jpeg(name)]
    flat = images and not PurePosixPath(images[0]).parent.name.startswith("n")
    labels = _devkit(source) if flat else {}
    for name in images:
        file = Path(name).name
        if flat and file not in labels:
            raise HypvisionError(
                f"'{val.place}' has '{file}', which the devkit does not know: expected are the "
                "names ILSVRC2012_val_00000001.JPEG and so on."
            )
        wnid = labels[file] if flat else _class_of(name, val)
        yield f"val/{wnid}/{file}", partial(val.copy, name)


def _is_jpeg(name: str) -> bool:
    return name.lower().endswith((".jpeg", ".jpg"))


def _of_class(train: Files, name: str) -> Iterator[Picture]:
    """Yield the images in the archive of one class, which lies in the archive of all classes."""
    wnid = Path(name).stem
    with (
        _readable(train.place, name),
        train.open(name) as outer,
        tarfile.open(fileobj=outer) as inner,
    ):
        for member in inner:
            if member.isreg():
                content: Any = inner.extractfile(member)
                write = partial(_write_stream, content, train.place / name)
                yield f"train/{wnid}/{Path(member.name).name}", write


def _write_stream(content: Any, name: Path, target: Path) -> None:
    with _readable(name):
        data = read_pieces(content, LARGEST, name)
    target.write_bytes(data)


def _class_of(name: str, files: Files) -> str:
    folder = PurePosixPath(name).parent.name
    ensure(
        folder,
        f"'{name}' in '{files.place}' does not lie in the folder of a class. Expected: "
        "n01440764/..., one folder or archive for each class.",
    )
    return folder


def _devkit(source: Path) -> dict[str, str]:
    """Return the class of each validation image, by the name of the image."""
    kit = find(source, "ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12")
    with TemporaryDirectory(prefix="hypvision-") as folder:
        places = []
        for file in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt"):
            name = next((name for name in kit.names if name.endswith(f"data/{file}")), None)
            if name is None:
                raise HypvisionError(f"'{kit.place}' has no data/{file}. Fetch it again.")
            places.append(Path(folder, file))
            kit.copy(name, places[-1])
        synsets = np.atleast_1d(read_matlab(places[0], "synsets", squeeze_me=True))
        classes = {int(item["ILSVRC2012_ID"]): str(item["WNID"]) for item in synsets}
        labels = [
            read_label(line, places[1], max(classes))
            for line in read_lines(places[1], "the classes of the validation images")
        ]
    return {
        f"ILSVRC2012_val_{number:08}.JPEG": classes[label]
        for number, label in enumerate(labels, start=1)
    }


# ADE20K and COCO-Stuff


def _ade_files(source: Path) -> tuple[Files, str]:
    """Return the files of the scene parsing challenge, and the prefix of their paths."""
    if source.name == "ADEChallengeData2016.zip":
        source = source.parent
    if source.name == "ADEChallengeData2016":
        return Files(source), ""
    files = find(source, "ADEChallengeData2016", "ADEChallengeData2016.zip")
    return files, "" if files.place.is_dir() else "ADEChallengeData2016/"


def ade20k(source: Path) -> Iterator[Picture]:
    """Yield the images and label maps, unchanged."""
    files, prefix = _ade_files(source)
    for name in files.names:
        inner = name.removeprefix(prefix)
        if inner.startswith(("images/", "annotations/")):
            yield f"ADEChallengeData2016/{inner}", partial(files.copy, name)


def ade_panoptic(source: Path, segments: list[Plain]) -> Iterator[Picture]:
    """Yield the images and segment maps of the validation part; the entry of each image is added to
    ``segments``."""
    files, prefix = _ade_files(source)
    instances = find(
        files.place.parent, "annotations_instance.tar", "annotations_instance",
        "ADEChallengeData2016/annotations_instance",
    )  # fmt: skip
    maps = {Path(name).stem: name for name in instances.names if "validation" in name}
    known = set(files.names)
    for name in sorted(files.names):
        if not name.startswith(f"{prefix}images/validation/"):
            continue
        stem = Path(name).stem
        semantic = f"{prefix}annotations/validation/{stem}.png"
        if stem not in maps or semantic not in known:
            raise HypvisionError(
                f"'{stem}' has no map in '{instances.place}' or '{files.place}'. Fetch them again."
            )
        labels = _pixels(files, semantic)
        ids, found = panoptic_map(labels, _pixels(instances, maps[stem]))
        height, width = labels.shape
        image = dict(id=stem, file_name=f"{stem}.jpg", height=height, width=width)
        segments.append(dict(image, segments_info=found))
        yield f"images/validation/{stem}.jpg", partial(files.copy, name)
        yield f"ade20k_panoptic_val/{stem}.png", partial(_write_ids, ids)


def _pixels(files: Files, name: str) -> np.ndarray:
    return read_labels(files.place / name, data=files.read(name))


def panoptic_map(semantic: np.ndarray, instances: np.ndarray) -> tuple[np.ndarray, list[Plain]]:
    """Return the numbers of segments (H, W), 0 for no segment, and the entry of each segment: stuff
    comes from the label map, things from the map of instances. A thing without an instance is left
    out.

    Args:
        semantic: labels (H, W), 0 for no class, 1 to 150.
        instances: map of instances (H, W, 3): the number of the thing's class, 1 to 100, and the
            number of the instance.
    """
    ensure(
        instances.ndim == 3 and instances.shape[:2] == semantic.shape,
        f"A map of instances has the shape {instances.shape}, but its label map "
        f"{semantic.shape}. Fetch the archives again.",
    )
    ids = np.zeros(semantic.shape, dtype=np.int64)
    found = []
    masks = [(label - 1, semantic == label) for label in np.unique(semantic) if label in _STUFF]
    own = instances[..., 1]
    for number in np.unique(own[own > 0]):
        mask = own == number
        thing = int(instances[..., 0][mask][0])
        if 1 <= thing <= len(_THINGS):
            masks.append((_THINGS[thing - 1] - 1, mask))
    for number, (_, mask) in enumerate(masks, start=1):
        ids[mask] = number
    for number, (category, _) in enumerate(masks, start=1):
        mask = ids == number
        # Things may lie over the whole segment, so that nothing of it is left.
        if mask.any():
            left, top, right, bottom = box_of(mask)
            box = [left, top, right - left, bottom - top]
            about = dict(area=int(mask.sum()), bbox=box, iscrowd=0)
            found.append(dict(id=number, category_id=int(category), **about))
    return ids, found


def _write_ids(ids: np.ndarray, target: Path) -> None:
    colours = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=-1).astype(np.uint8)
    write_image(Image.fromarray(colours), target, "PNG")


def panoptic_json(segments: list[Plain]) -> Plain:
    """Return the content of ``ade20k_panoptic_val.json``."""
    keys = ("id", "file_name", "height", "width")
    images = [{key: item[key] for key in keys} for item in segments]
    annotations = [
        dict(
            image_id=item["id"],
            file_name=f"{item['id']}.png",
            segments_info=item["segments_info"],
        )
        for item in segments
    ]
    categories = [
        dict(id=number, name=name.strip(), isthing=int(number + 1 not in _STUFF))
        for number, name in enumerate(load_classes("ade150"))
    ]
    return dict(images=images, annotations=annotations, categories=categories)


def coco_stuff(source: Path) -> Iterator[Picture]:
    """Yield the images, unchanged, and the label maps with the 171 classes numbered from 0."""
    maps = find(source, "stuffthingmaps_trainval2017.zip", "stuffthingmaps", "annotations")
    labels = {name: Path(name) for name in maps.names if name.endswith(".png")}
    for part in ("train2017", "val2017"):
        images = find(source, f"{part}.zip", part, f"images/{part}")
        stems = {Path(name).stem: name for name in images.names if _is_jpeg(name)}
        for name, path in labels.items():
            if path.parent.name != part or path.stem.endswith("_labelTrainIds"):
                continue
            if path.stem not in stems:
                raise HypvisionError(
                    f"'{maps.place}' has '{name}', but '{images.place}' no image of this name. "
                    "Fetch them again."
                )
            image = stems[path.stem]
            yield f"images/{part}/{Path(image).name}", partial(images.copy, image)
            target = f"annotations/{part}/{path.stem}_labelTrainIds.png"
            yield target, partial(_write_stuff, maps, name)


def stuff_table() -> np.ndarray:
    """Return the label of each value in COCO-Stuff's maps, uint8 (256,): 0 to 170, and 255 for no
    class."""
    table = np.full(256, 255, dtype=np.uint8)
    used = [value for value in range(182) if value not in _UNUSED]
    table[used] = np.arange(len(used))
    return table


def _write_stuff(maps: Files, name: str, target: Path) -> None:
    labels = _pixels(maps, name)
    ensure(
        labels.ndim == 2 and labels.dtype == np.uint8,
        f"'{name}' in '{maps.place}' is no label map of 8 bits. Fetch it again.",
    )
    write_image(Image.fromarray(stuff_table()[labels]), target, "PNG")
