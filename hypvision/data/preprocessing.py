"""The image transform of a CLIP: the size, resizing and interpolation that its weights were trained
with.

open_clip stores this for each set of weights; 57 of its 196 are not "shorter side, bicubic".
:func:`preprocessing_of` reads it from a model, :func:`set_preprocessing` sets it for a data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import functional as F

from hypvision.io.checks import one_of


@dataclass(frozen=True)
class Preprocessing:
    """A test transform without the normalisation, as open_clip has it.

    Attributes:
        size: (height, width) in pixels; one number for a square.
        interpolation: ``"bicubic"`` or ``"bilinear"``.
        resize_mode: ``"shortest"``: the image covers the size, and its centre is cut out;
            ``"longest"``: it fits into the size, and the rest is filled; ``"squash"``: its shape
            becomes that of the size.
        fill_color: colour of the filled part, from 0 to 255.
    """

    size: tuple[int, int] = (224, 224)
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    def __post_init__(self) -> None:
        size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        object.__setattr__(self, "size", size * 2 if len(size) == 1 else size)
        # "random" is for training crops; other images are resized bicubically
        if self.interpolation == "random":
            object.__setattr__(self, "interpolation", "bicubic")
        one_of(("bicubic", "bilinear"), interpolation=self.interpolation)
        one_of(("shortest", "longest", "squash"), resize_mode=self.resize_mode)

    def __call__(self, image: Image.Image) -> Tensor:
        """uint8 (3, height, width) of an RGB image."""
        mode = F.InterpolationMode(self.interpolation)
        (height, width) = self.size
        if self.resize_mode == "squash":
            image = F.resize(image, [height, width], mode)
        elif self.resize_mode == "shortest" and height == width:
            image = F.resize(image, [height], mode)
        else:
            choose = min if self.resize_mode == "shortest" else max
            ratio = choose(image.height / height, image.width / width)
            image = F.resize(
                image, [max(1, round(side / ratio)) for side in (image.height, image.width)], mode
            )
            across = max(0, width - image.width)
            down = max(0, height - image.height)
            image = F.pad(
                image,
                [across // 2, down // 2, (across + 1) // 2, (down + 1) // 2],
                fill=self.fill_color,
            )
        return F.pil_to_tensor(F.center_crop(image, [height, width]))


def preprocessing_of(model: nn.Module) -> Preprocessing:
    """The transform that an open_clip model's weights were trained with; by default OpenAI's."""
    visual = getattr(model, "visual", None)
    about = {"size": getattr(visual, "image_size", None), **getattr(visual, "preprocess_cfg", {})}
    return Preprocessing(
        **{
            field.name: about[field.name]
            for field in fields(Preprocessing)
            if about.get(field.name) is not None
        }
    )


def set_preprocessing(dataset: Any, model: nn.Module) -> None:
    """Set the ``view`` of a data set, if it has one, to that of a model; a ``size`` given to the
    data set stays."""
    if hasattr(dataset, "view"):
        found = preprocessing_of(model)
        dataset.view = found if dataset.size is None else replace(found, size=dataset.size)


def default_preprocessing(size: int | Sequence[int] | None) -> Preprocessing:
    """The default view of a data set, until a model sets its own."""
    if size is None:
        return Preprocessing()
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return Preprocessing((height, width))
