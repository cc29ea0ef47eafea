"""The image transform of a CLIP: the size, resizing and interpolation with which its weights were
trained.

open_clip stores these settings with each set of weights; for 57 of its 196 they differ from
"shorter side, bicubic". :func:`preprocessing_of` reads them from a model, :func:`set_preprocessing`
passes them to a data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import functional as F

from hypvision.io import one_of
from hypvision.io.images import is_rgb, to_rgb


@dataclass(frozen=True)
class Preprocessing:
    """The transform of test images, as open_clip has it, without the normalisation of colours.

    Attributes:
        size: (height, width) in pixels; one number stands for a square.
        interpolation: ``"bicubic"`` or ``"bilinear"``.
        resize_mode: ``"shortest"``: the image is scaled to cover the size, and its centre is cut
            out; ``"longest"``: it is scaled to fit into the size, and the rest is filled;
            ``"squash"``: its height and width are scaled to the size, each by its own factor.
        fill_color: grey value of the filled part, from 0 to 255.
    """

    size: tuple[int, int] = (224, 224)
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    fill_color: int = 0

    def __post_init__(self) -> None:
        size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        object.__setattr__(self, "size", size * 2 if len(size) == 1 else size)
        # "random" interpolation is for training crops; open_clip resizes test images bicubically
        if self.interpolation == "random":
            object.__setattr__(self, "interpolation", "bicubic")
        one_of(("bicubic", "bilinear"), interpolation=self.interpolation)
        one_of(("shortest", "longest", "squash"), resize_mode=self.resize_mode)

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the transformed image, RGB, uint8 (3, height, width). An image of any mode is
        taken as it is shown (:func:`hypvision.io.images.to_rgb`): the way up, on white, and 16 bits
        scaled to 8."""
        image = image if is_rgb(image) else to_rgb(image)
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
    """Return the transform with which an open_clip model's weights were trained; if the model does
    not say, that of OpenAI's CLIP."""
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
    """Set a data set's ``view``, if it has one, to the transform of ``model``; a ``size`` that was
    given to the data set is kept."""
    if hasattr(dataset, "view"):
        found = preprocessing_of(model)
        dataset.view = found if dataset.size is None else replace(found, size=dataset.size)


def default_preprocessing(size: int | Sequence[int] | None) -> Preprocessing:
    """Return the view that a data set has until it is set to a model's: that of OpenAI's CLIP, with
    the given ``size`` or 224."""
    if size is None:
        return Preprocessing()
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return Preprocessing((height, width))
