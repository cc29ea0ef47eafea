"""Image classification data: class folders, a list of images, or the official CIFAR batches.

Every data set gives samples ``dict(inputs=(3, H, W) float tensor, label=int, index=int)``, which
``collate_fn=dict(type="default_collate")`` stacks into batches. Augmentation is timm's
(:func:`timm.data.create_transform`), described in the config by its keyword arguments.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.registry import DATASETS
from PIL import Image
from timm.data import ImageNetInfo, auto_augment, create_transform
from torch.utils.data import Dataset
from torchvision import datasets as tv_datasets
from torchvision import transforms as tv_transforms
from torchvision.transforms.v2 import functional

from hypvision.io import (
    HypvisionError,
    NameList,
    Plain,
    StrPath,
    did_you_mean,
    ensure,
    explaining,
    one_of,
    refuse,
    some,
    whole_number,
)
from hypvision.io.files import inside, on_disk, read_lines, why_no_file
from hypvision.io.images import WHITE, check_normalisation, open_channels, open_image
from hypvision.io.shipped import where_data_come_from

from .classes import MAX_CLASSES, check_classes, numbered
from .usage import (
    Listing,
    Usage,
    check_depth,
    class_images,
    class_names,
    find_white,
    natural,
    similar_names,
)

CIFAR_LAYOUT = {
    "cifar10": (tv_datasets.CIFAR10, "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"),
    "cifar100": (tv_datasets.CIFAR100, "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"),
}


def unrecorded(transform: Plain | None) -> str:
    """Return which settings of a test transform a checkpoint cannot record, because they do more
    to images than to resize, crop and normalise them, e.g. ``"normalize = False"``; an empty text
    if there are none."""
    plain = dict(
        crop_border_pixels=0,
        normalize=True,
        is_training=False,
        naflex=False,
        patchify=False,
        use_prefetcher=False,
    )
    given = transform or {}
    return ", ".join(
        f"{key} = {given[key]}"
        for key, usual in plain.items()
        if (given.get(key, usual) or 0) != usual
    )


def build_transform(config: Plain | Callable | None) -> Callable:
    """Build timm's image transform from its keyword arguments.

    Args:
        config: arguments of :func:`timm.data.create_transform`, e.g. ``dict(input_size=224,
            is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25)``. One more key,
            ``pad_crop=4``, replaces timm's random resized crop by the one that is usual for small
            images: the short side is resized to ``input_size`` (images of this size stay as they
            are), the image is padded by so many pixels, cropped at random and flipped; arguments
            that shape timm's crop (``scale``, ``ratio``, ``train_crop_mode``) are then an error.
            ``pad_mode`` says what is padded with: "reflect", the default, or "constant", which is
            black. A callable is returned as it is. None: the pixels, uint8 (3, H, W).
    """
    if config is None:
        return functional.pil_to_tensor
    if callable(config):
        return config
    config = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
    }
    pad_crop = config.pop("pad_crop", None)
    with explaining(
        lambda error: (
            "The config has a 'transform' that timm.data.create_transform does not accept: "
            f"{error}. Its arguments are listed in timm's documentation; ours adds 'pad_crop' and "
            "'pad_mode'."
        ),
        TypeError,
    ):
        if pad_crop is None:
            return _with_safe_posterize(create_transform(**config))
        training = "'pad_crop' is an augmentation: use it in a transform that has is_training=True."
        ensure(config.get("is_training"), training)
        shaping = [key for key in _SHAPE_OF_CROP if config.get(key) is not None]
        unused = ", ".join(map(repr, shaping))
        ensure(
            not unused,
            f"The transform has {unused}, which shape timm's random resized crop, but 'pad_crop' "
            f"replaces that crop. Leave out 'pad_crop', or {unused}.",
        )
        pad_mode = config.pop("pad_mode", "reflect")
        one_of(("reflect", "constant"), pad_mode=pad_mode)
        _, secondary, final = create_transform(**config, separate=True)
    size = config.get("input_size", 224)
    primary = [
        tv_transforms.Resize(size),  # else the crop would show only a scrap of a larger image
        tv_transforms.RandomCrop(size, padding=pad_crop, padding_mode=pad_mode),
        tv_transforms.RandomHorizontalFlip(config.get("hflip", 0.5)),
    ]
    if config.get("vflip"):  # a flip that never happens would still draw a random number
        primary.append(tv_transforms.RandomVerticalFlip(config["vflip"]))
    steps = [*primary, *secondary.transforms, *final.transforms]
    return _with_safe_posterize(tv_transforms.Compose(steps))


_SHAPE_OF_CROP = ("scale", "ratio", "train_crop_mode")


def imagenet_classes() -> list[str]:
    """Return ImageNet's 1,000 class names in the order of the labels, as timm has them; of two
    classes of the same name (crane, maillot) the second has its WordNet id behind the name."""
    info = ImageNetInfo()
    pairs = list(zip(info.label_descriptions(), info.label_names()))
    first = dict(reversed(pairs))
    return [name if first[name] == number else f"{name} ({number})" for name, number in pairs]


def check_root(root: StrPath) -> None:
    """Raise an error if the folder of an :class:`ImageFolderDataset` does not exist, and say which
    folders and files are expected in it."""
    root = Path(root).expanduser()
    if not root.is_dir():
        raise HypvisionError(
            f"The data folder '{root}' does not exist. Expected there: one folder a class with its "
            f"images, e.g. '{root}/cat/0001.jpg'. {_or_train(root)}{where_data_come_from(root)}"
        )


def _or_train(root: Path) -> str:
    """Return advice if the class folders lie in the folder above, without train and val."""
    above = root.parent
    parts = root.name in ("train", "val") and above.is_dir()
    if not parts or len(class_names(above, Usage(above))) < 2:
        return ""
    return (
        f"Class folders that are not divided into train and val, as in '{above}', train without a "
        f"config: hypvision train {above}. "
    )


def _posterize(image: Image.Image, bits_to_keep: int, **_: Any) -> Image.Image:
    return auto_augment.posterize(image, max(1, bits_to_keep))


def _with_safe_posterize(transform: tv_transforms.Compose) -> tv_transforms.Compose:
    """Make the transform's posterize steps keep at least one bit of each colour: timm's strongest
    RandAugment keeps none, which Pillow 13 refuses."""
    for step in transform.transforms:
        policies = [getattr(step, "ops", []), *getattr(step, "policy", [])]
        for operation in (op for policy in policies for op in policy):
            if getattr(operation, "aug_fn", None) is auto_augment.posterize:
                operation.aug_fn = _posterize
    return transform


class _ImageDataset(Dataset):
    """Base class of data sets of image files; subclasses set ``paths``, ``labels``, ``metainfo``
    and ``usage``."""

    paths: list[str]
    labels: np.ndarray
    metainfo: Plain
    usage: Usage
    numbered = False  # whether the classes have numbers instead of names
    white = WHITE  # the value of white in images of 16 bits

    def __init__(self, transform: Plain | Callable):
        self.transform = build_transform(transform)

    def read(self, index: int) -> Image.Image:
        """Return image number ``index`` as RGB."""
        try:
            return self._decode(index)
        except HypvisionError as error:
            raise HypvisionError(
                f"{error} hypvision check, with the same arguments, lists every such file."
            ) from error

    def _decode(self, index: int) -> Image.Image:
        return open_image(self.paths[index], white=self.white)

    def name(self, index: int) -> str:
        """Return the name of image ``index`` for reports: its path, or its number in a larger
        file."""
        return self.paths[index]

    def use_classes(self, names: Sequence[str]) -> None:
        """Renumber the labels by another list of class names, which must contain those of this data
        set."""
        labels = numbered(names)
        order = np.array([labels[name] for name in self.metainfo["classes"]], dtype=np.int64)
        self.labels = order[self.labels]
        self.metainfo["classes"] = tuple(names)

    def fill(
        self,
        samples: Sequence[tuple[str, int]],
        classes: Sequence[str],
        indices: Sequence[int] | None = None,
        white: int | str | None = None,
        kind: str = "files",
    ) -> None:
        """Set the images to ``samples`` (path and label), or to those at the ``indices`` alone;
        ``kind`` is the word for them in ``usage``."""
        if indices is not None:
            samples = [samples[number] for number in chosen(indices, len(samples))]
        self.paths = [path for path, _ in samples]
        self.labels = np.array([label for _, label in samples], dtype=np.int64)
        self.metainfo = dict(classes=tuple(classes))
        self.usage.notes += similar_names(classes)
        self.usage.use(kind, len(samples))
        self.white = find_white(self.paths, white, self.usage)

    def count_classes(self) -> None:
        """Count in ``usage`` the classes of which there are images; ``labels`` are class numbers
        (N,), or 1 and 0 for each class (N, C)."""
        several = self.labels.ndim == 2
        shown = np.flatnonzero(self.labels.any(axis=0)) if several else np.unique(self.labels)
        self.usage.use("classes", len(shown))
        for label in sorted({*range(len(self.metainfo["classes"]))}.difference(shown.tolist())):
            self.usage.leave_out("classes", "without images", self.metainfo["classes"][label])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Plain:
        return dict(
            inputs=self.transform(self.read(index)), label=int(self.labels[index]), index=index
        )


def chosen(indices: Sequence[int], count: int) -> np.ndarray:
    """Return the numbers ``(N,)`` of the images to keep of ``count``.

    Raises:
        HypvisionError: ``indices`` is no list of such numbers.
    """
    numbers = np.asarray(indices)
    fits = numbers.ndim == 1 and numbers.dtype.kind in "iu" and len(numbers) > 0
    ensure(
        fits and numbers.min() >= 0 and numbers.max() < count,
        f"indices must be a list of numbers of images, from 0 to {count - 1}, got "
        f"{reprlib.repr(indices)}. Images are sorted by class: list(range(0, {count}, 10)) takes "
        "every tenth.",
    )
    return numbers


@DATASETS.register_module()
class ImageFolderDataset(_ImageDataset):
    """Data set of images at ``root/CLASS/*.jpg``, or of images that a list names.

    Args:
        root: folder with one sub-folder a class; with ``ann_file``, the folder from which its paths
            start.
        transform: arguments of :func:`build_transform`.
        ann_file: text file with a line ``path label`` for each image, where the label is a number
            from 0. Images that are missing or listed twice, and classes without images, are counted
            in ``usage``.
        classes: class names in the order of the labels. None: the sub-folders, sorted. A path
            stands for the sub-folders of that folder, e.g. of the training images, some of which
            ``root`` may lack; ``"imagenet"`` stands for ImageNet's 1,000 classes as timm names
            them.
        folders: the class that each sub-folder shows, e.g. ``{"Red-Bell-Pepper": "bell pepper"}``,
            if folders and classes have different names; other sub-folders are left out. Not
            together with ``ann_file``, whose lines have the labels.
        indices: numbers, in the sorted order, of the only images to keep, e.g. to try a config on a
            few.
        channels: 1 (grey), 3 (RGB) or 4 (such as red, green, blue, infrared). The transform's
            ``mean`` and ``std`` need a value for each channel, and augmentations of colours work
            for RGB alone.
        cache: keep all decoded images in memory; useful for small images (CIFAR), where decoding
            costs more than all else.
        sort: the order of the sub-folders: ``"name"``, as in timm and torchvision (0, 1, 10, 2), or
            ``"natural"`` (0, 1, 2, 10).
        white: the value of white in images of 16 bits, e.g. 4095 if they hold 12 bits; ``"auto"``:
            found from the largest value (:func:`~hypvision.data.usage.find_white`).
    """

    def __init__(
        self,
        root: str,
        transform: Plain | Callable,
        ann_file: str | None = None,
        classes: NameList | None = None,
        indices: Sequence[int] | None = None,
        cache: bool = False,
        channels: int = 3,
        sort: str = "name",
        folders: Mapping[str, str] | None = None,
        white: int | str | None = None,
    ):
        super().__init__(transform)
        one_of(("name", "natural"), sort=sort)
        ensure(
            folders is None or ann_file is None,
            "The data set has 'folders' and 'ann_file', but the classes of images follow from one "
            "of the two: the folders that they lie in, or the labels of the list. Leave out the "
            "other.",
        )
        self.channels = channels
        self.sort = sort
        check_normalisation(transform, channels)
        self.root = Path(root).expanduser()
        check_root(self.root)
        self.usage = Usage(self.root if ann_file is None else ann_file)
        names = self._named(classes)
        if folders is not None:
            samples, found = self._scan_named(folders, names)
        elif ann_file is None:
            # If the classes are those of another folder, this one may lack some of them.
            partial = isinstance(classes, StrPath) and classes != "imagenet"
            samples, found = self._scan_folders(names, partial)
        else:
            samples, found = self._scan_list(Path(ann_file), names)
            self.numbered = names is None
        self.fill(samples, found, indices, white)
        if ann_file is not None:
            self.count_classes()
        self._cache = [self._decode(i) for i in range(len(self.paths))] if cache else None

    def _named(self, classes: NameList | None) -> list[str] | None:
        """Return the class names that ``classes`` stands for; None if it is None."""
        if classes is None:
            return None
        if classes == "imagenet":
            return imagenet_classes()
        names = list(map(str, classes)) if not isinstance(classes, StrPath) else None
        if names is None:
            check_root(str(classes))
            names = self._sorted(class_names(Path(str(classes)).expanduser(), Usage(str(classes))))
        remedy = "Give every class a name of its own."
        check_classes(enumerate(names), "'classes' of the data set", remedy)
        return names

    def _sorted(self, names: list[str]) -> list[str]:
        in_order = sorted(names, key=natural)
        if self.sort == "natural":
            return in_order
        if names != in_order and all(map(str.isdecimal, names)):
            label = next(i for i, name in enumerate(names) if name != in_order[i])
            self.usage.notes.append(
                "The class folders are numbers in the order of text, as timm sorts them: label "
                f"{label} is the folder '{names[label]}'. With sort='natural' in the data sets of "
                f"the config it is '{in_order[label]}'."
            )
        return names

    def _scan_folders(
        self, classes: Sequence[str] | None, partial: bool
    ) -> tuple[list[tuple[str, int]], list[str]]:
        found = class_names(self.root, self.usage, None if partial else classes, classes or ())
        wanted = self._sorted(found) if classes is None else list(classes)
        # Without ``partial`` all that was found is wanted.
        unknown = sorted(set(found) - set(wanted))
        missing = [] if partial else sorted(set(wanted) - set(found))
        lacks = f"no folder for the classes {some(missing, 5)}" if missing else "no sub-folders"
        refuse(
            (
                unknown,
                f"The data folder '{self.root}' has folders that are none of the {len(wanted)} "
                f"classes: {some(unknown, 5)}. Give as 'classes' the folder of the images that the "
                "model is trained on.",
            ),
            (
                missing or not found,
                f"The data folder '{self.root}' has {lacks}. Expected: one folder a class with its "
                f"images, e.g. '{self.root}/cat/0001.jpg'. Found: "
                f"{some(sorted(os.listdir(self.root)), 5)}.",
            ),
        )
        if classes is None:
            check_depth(self.root, wanted)
        images = class_images(self.root, sorted(found), self.usage)
        labels = numbered(wanted)
        return [(path, labels[name]) for name, paths in images.items() for path in paths], wanted

    def _scan_named(
        self, folders: Mapping[str, str], names: Sequence[str] | None
    ) -> tuple[list[tuple[str, int]], list[str]]:
        names = list(dict.fromkeys(folders.values())) if names is None else list(names)
        labels = numbered(names)
        unknown = [name for name in folders.values() if name not in labels]
        if unknown:
            raise HypvisionError(
                f"'folders' of the data set names the class '{unknown[0]}', which is none of the "
                f"{len(names)} classes.{did_you_mean(unknown[0], names)}"
            )
        found, own = self._scan_folders(list(folders), partial=False)
        return [(path, labels[folders[own[number]]]) for path, number in found], names

    def _scan_list(
        self, path: Path, classes: Sequence[str] | None
    ) -> tuple[list[tuple[str, int]], list[str]]:
        ensure(
            path.is_file(),
            f"{why_no_file(path, 'list')} Expected: a text file with a line 'path label' for each "
            f"image, the path relative to '{self.root}'. Correct 'ann_file' in the config, or "
            "leave it out to use folders.",
        )
        most = MAX_CLASSES if classes is None else len(classes)
        first: dict[str, tuple[int, int]] = {}  # from an image's path to its first line and label
        for number, line in enumerate(read_lines(path, "the list of images", blank=True), start=1):
            if not line:
                continue
            name, _, text = line.rpartition(" ")
            label = whole_number(text)
            if not name or label is None or label >= most:
                raise HypvisionError(
                    f"'{path}', line {number}: '{line}' is not 'path label' with a whole "
                    f"number from 0 to {most - 1} as label. Correct it."
                )
            place = str(self.root / on_disk(name))
            before, other = first.setdefault(place, (number, label))
            ensure(
                other == label,
                f"'{path}' gives '{name}' the label {other} in line {before} and {label} in line "
                f"{number}. An image has one label: remove one of the two lines.",
            )
            if before != number:
                lines = f"{name}, lines {before} and {number}"
                self.usage.leave_out("files", "listed twice", lines)
        ensure(first, f"The list '{path}' names no images. Expected: a line 'path label' for each.")
        inside(first, self.root)
        numbers = range(max(label for _, label in first.values()) + 1)
        return self._on_disk(path, first), list(map(str, numbers) if classes is None else classes)

    def _on_disk(self, path: Path, listed: Mapping[str, tuple[int, int]]) -> list[tuple[str, int]]:
        """Return path and label of the listed images that exist."""
        found: list[tuple[str, int]] = []
        there = Listing()
        for place, (number, label) in listed.items():
            image = there.find(place) or (place if os.path.exists(place) else None)
            if image:
                found.append((image, label))
            else:
                self.usage.leave_out("files", "missing on disk", f"{place}, line {number}")
        ensure(
            found,
            f"None of the {len(listed)} images of the list '{path}' exists; the first is "
            f"'{next(iter(listed))}'. The paths start from 'root' of the data set: correct them, "
            "or 'root'.",
        )
        return found

    def _decode(self, index: int) -> Image.Image:
        return open_channels(self.paths[index], self.channels, self.white)

    def read(self, index: int) -> Image.Image:
        return super().read(index) if self._cache is None else self._cache[index].copy()


@DATASETS.register_module()
class CIFARDataset(_ImageDataset):
    """Data set of CIFAR-10 or CIFAR-100 in the official Python layout, checked against the official
    MD5 sums.

    Args:
        root: folder that holds ``cifar-10-batches-py`` or ``cifar-100-python``.
        transform: arguments of :func:`build_transform`.
        train: whether to take the 50,000 training images; False: the 10,000 test images.
        name: ``"cifar10"`` or ``"cifar100"``.
        indices: numbers of the only images to keep.
    """

    def __init__(
        self,
        root: str,
        transform: Plain | Callable,
        train: bool = True,
        name: str = "cifar10",
        indices: Sequence[int] | None = None,
    ):
        super().__init__(transform)
        one_of(CIFAR_LAYOUT, name=name)
        reader, url = CIFAR_LAYOUT[name]
        self.place = Path(root).expanduser() / reader.base_folder
        try:
            data = reader(str(Path(root).expanduser()), train=train, download=False)
        except RuntimeError as error:
            state = (
                "is not complete or not the official one"
                if self.place.is_dir()
                else "does not exist"
            )
            raise HypvisionError(
                f"The data folder '{self.place}' {state}. Download {url} and unpack it in '{root}' "
                "(see docs/data.md). Images in class folders are read with ImageFolderDataset "
                "instead."
            ) from error
        count = len(data)
        self._numbers = np.arange(count) if indices is None else chosen(indices, count)
        self.images = data.data[self._numbers]
        self.labels = np.array(data.targets, dtype=np.int64)[self._numbers]
        self.metainfo = dict(classes=tuple(data.classes))
        self.usage = Usage(self.place)
        self.usage.use("images", len(self.labels))

    def read(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])

    def name(self, index: int) -> str:
        return f"{self.place}#{self._numbers[index]}"
