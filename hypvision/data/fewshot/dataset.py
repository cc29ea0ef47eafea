"""The data set of one part of a few-shot benchmark, for the engine: images as uint8, labels and
class names."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import DATASETS
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from hypvision.data.preprocessing import Preprocessing, default_preprocessing
from hypvision.data.usage import Usage
from hypvision.io import HypvisionError, Plain, StrPath, ensure, one_of
from hypvision.io.images import open_image

from .layouts import LAYOUTS, layout_of, load_split
from .pickles import read_pickled_shots
from .splits import (
    PARTS,
    Item,
    Split,
    check_places,
    check_split,
    class_folders,
    class_names,
    draw_shots,
    take_subset,
)


def augmentation(
    view: Preprocessing, scale: tuple[float, float] = (0.08, 1.0), flip: float = 0.5
) -> transforms.Compose:
    """Return the benchmark's training transform: a random resized crop and a horizontal flip, with
    the size and interpolation of ``view``; its result is uint8 (3, height, width)."""
    mode = InterpolationMode(view.interpolation)
    crop = transforms.RandomResizedCrop(view.size, scale=tuple(scale), interpolation=mode)
    return transforms.Compose(
        [crop, transforms.RandomHorizontalFlip(flip), transforms.PILToTensor()]
    )


def load_cell(
    root: StrPath,
    name: str,
    shots: int | None,
    seed: int,
    subset: str = "all",
    pickles: str | None = None,
    repeat: bool = False,
    whole: Split | None = None,
) -> Split:
    """Return the images of one cell of the benchmark's tables: of a data set
    (:func:`.layouts.load_split`), with ``shots`` images of each class (None: all;
    :func:`.shots.draw_shots`), and of a subset of the classes (:func:`.shots.take_subset`).

    Shots are drawn from all classes before these are divided into base and new, so both halves use
    the same shots. With ``pickles`` the official files of shots (``shot_K-seed_S.pkl``) are read
    instead, from this folder in the data set's own, or from a path in which ``{dataset}`` stands
    for the data set's name. ``whole``: all images of the data set, if the caller has read them.
    """
    split = load_split(name, root) if whole is None else whole
    layout = layout_of(name, root)
    if shots is not None and pickles is not None:
        folder = Path(root).expanduser() / layout.folder
        images = folder / layout.images
        named = Path(pickles.replace("{dataset}", name)).expanduser()
        given = named if "{dataset}" in pickles else folder / named
        file = given / f"shot_{shots}-seed_{seed}.pkl"
        found = read_pickled_shots(file, images.name, images)
        check_places(found.values(), images)
        split = Split(found["train"], found.get("val", split.val), split.test)
        if layout.split:  # ImageNet has no split file whose labels and names could differ
            check_split(
                split,
                f"The shots '{file}', compared with the test images,",
                "Use the shots of this data set.",
            )
    elif shots is not None:
        split = draw_shots(split, shots, seed, layout.val_is_drawn, repeat)
    return take_subset(split, subset)


def intact(items: Sequence[Item]) -> list[Item]:
    """Return the items whose image can be read, and warn of each of the others."""
    found = []
    for item in items:
        try:
            open_image(item.path)
            found.append(item)
        except HypvisionError as error:
            warnings.warn(f"Left out: {error}", stacklevel=3)
    return found


def _usage_of(name: str, root: str, part: str, whole: int, drawn: int, used: int) -> Usage:
    folder = Path(root).expanduser() / layout_of(name, root).folder
    usage = Usage(folder / part if (folder / part).is_dir() else folder)
    usage.use("files", used)
    usage.leave_out("files", "cannot be read", "see the warnings", drawn - used)
    # With replacement more images may be drawn than there are.
    others = max(whole - drawn, 0)
    usage.leave_out("files", f"of '{part}', not drawn or of other classes", "", others)
    if name not in LAYOUTS and (folder / part).is_dir():
        class_folders(folder / part, usage=usage)
    return usage


@DATASETS.register_module()
class FewShotDataset(Dataset):
    """Data set of one part of a few-shot benchmark; a sample is ``dict(inputs=uint8 (3, size,
    size), label=int, index=int)``.

    Images are resized as the model expects, once
    :func:`hypvision.data.preprocessing.set_preprocessing` has been called; before that as OpenAI's
    CLIP expects: the shorter side is resized (bicubic) and the centre is cut out.

    Args:
        root, name, shots, seed, subset, pickles, repeat: see :func:`load_cell`; test images are
            never drawn.
        part: ``"train"``, ``"val"`` or ``"test"``.
        size: height and width of the images in pixels; None: those that the model expects.
        scale, flip: settings of the training transform, see :func:`augmentation`.
        skip_broken: leave out images that cannot be read, with a warning that names each; to find
            them, all images are read once.
    """

    def __init__(
        self,
        root: str,
        name: str,
        part: str = "train",
        shots: int | None = 16,
        seed: int = 1,
        subset: str = "all",
        size: int | None = None,
        scale: tuple[float, float] = (0.08, 1.0),
        flip: float = 0.5,
        skip_broken: bool = False,
        pickles: str | None = None,
        repeat: bool = False,
    ):
        one_of(PARTS, part=part)
        whole = load_split(name, root)
        split = load_cell(root, name, shots, seed, subset, pickles, repeat, whole)
        self.cell: Plain = dict(root=root, name=name, seed=seed, subset=subset)
        self._draw: Plain = dict(shots=shots, pickles=pickles)
        self.skip_broken = skip_broken
        self.items = intact(split.part(part)) if skip_broken else split.part(part)
        self.usage = _usage_of(
            name, root, part, len(whole.part(part)), len(split.part(part)), len(self.items)
        )
        ensure(self.items, f"The data set '{name}' has no images for '{part}' ({subset} classes).")
        self.size = size
        self.scale = (scale[0], scale[1])
        self.flip = flip
        self.augment = part == "train"
        self.view = default_preprocessing(size)
        self.features: torch.Tensor | None = None
        self.labels = [item.label for item in self.items]
        self.root = root
        layout = layout_of(name, root)
        self.metainfo: Plain = dict(
            classes=tuple(class_names(split.train)),
            template=layout.template,
            templates=layout.templates,
            name=name,
        )

    @property
    def paths(self) -> list[str]:
        """Paths of the images, in the order of the samples."""
        return [item.path for item in self.items]

    @property
    def description(self) -> str:
        """Text that names the transform and its settings, to tell stored features of images
        apart."""
        return f"{self.view} {self.scale} {self.flip}" if self.augment else f"{self.view}"

    @property
    def transform(self) -> Callable[[Image.Image], torch.Tensor]:
        """The function that turns an RGB image into a sample's ``inputs``."""
        return augmentation(self.view, self.scale, self.flip) if self.augment else self.view

    def viewed(self, augment: bool) -> FewShotDataset:
        """Return a copy of this data set, augmented or not, whose samples are pixels instead of
        features."""
        other = copy.copy(self)
        other.augment = augment
        other.features = None
        return other

    def whole_part(self, part: str) -> FewShotDataset | None:
        """Return a data set of all ``"val"`` or ``"test"`` images of the same classes; None if
        there are none."""
        return self._part(part, shots=None)

    def drawn_val(self) -> FewShotDataset | None:
        """Return a data set of the validation images that were drawn with the training images, up
        to 4 of each class; None if there are none, or if they are the test images."""
        if not layout_of(self.cell["name"], self.root).val_is_drawn:
            return None
        return self._part("val", **self._draw)

    def _part(self, part: str, **draw: Any) -> FewShotDataset | None:
        if not load_cell(**draw, **self.cell).part(part):
            return None
        other = FewShotDataset(
            part=part, size=self.size, skip_broken=self.skip_broken, **draw, **self.cell
        )
        other.view = self.view
        return other

    def use_features(self, features: torch.Tensor) -> None:
        """Make samples carry features in place of images: ``features`` (V, N, d) has V views of
        each of the N images, of which a sample has a random one."""
        self.features = features

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Plain:
        item = self.items[index]
        if self.features is not None:
            view = int(torch.randint(len(self.features), ()))
            return dict(
                inputs=self.features[view, index], label=torch.tensor(item.label), index=index
            )
        try:
            image = open_image(item.path)
        except HypvisionError as error:
            raise HypvisionError(f"{error} With --skip-broken such images are left out.") from error
        return dict(inputs=self.transform(image), label=torch.tensor(item.label), index=index)
