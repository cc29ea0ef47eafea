"""Prepare the two towers of a CLIP for export, with the lift of hyperbolic models inside."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.clip.models import CLIPBundle
from hypvision.clip.spaces import (
    ExteriorAngles,
    Hyperboloid,
    HyperboloidProduct,
    Modality,
    Space,
    Sphere,
    space_of,
)
from hypvision.clip.towers import class_token_features, encode_text
from hypvision.data.preprocessing import preprocessing_of
from hypvision.io import Plain, one_of

TOWERS = ("image", "text")
# For each word of open_clip for a way of cropping, the word of timm.
_CROP_MODES = {"shortest": None, "longest": "border", "squash": "squash"}


class _Lift(nn.Module):
    """The embedding of features into a space, with the present values of its curvatures and
    scales."""

    def __init__(self, space: Any, modality: Modality):
        super().__init__()
        self.modality = modality
        self.space: Callable[..., Space] = Sphere
        numbers: Plain = {}
        if isinstance(space, HyperboloidProduct):
            self.space = partial(HyperboloidProduct, dim=space.dim)
        elif isinstance(space, Hyperboloid):
            self.space = Hyperboloid
        if not isinstance(space, Sphere):
            numbers = dict(c=space.c, factor=space.scales.get(modality, 1.0))
        for name, value in numbers.items():
            self.register_buffer(name, torch.as_tensor(value).detach().clone())

    def forward(self, features: Tensor) -> Tensor:
        numbers: Any = dict(self.named_buffers())
        if not numbers:
            return self.space().embed(features, self.modality)
        scales = {self.modality: numbers["factor"]}
        return self.space(c=numbers["c"], scales=scales).embed(features, self.modality)


class ImageTower(nn.Module):
    """The image tower: points ``(B, d)`` for normalised images ``(B, 3, H, W)``."""

    def __init__(self, model: Any):
        super().__init__()
        self.visual = model.visual
        self.lift = _Lift(space_of(model), "image")

    def forward(self, x: Tensor) -> Tensor:
        return self.lift(class_token_features(self.visual, x))


class TextTower(nn.Module):
    """The text tower: points ``(B, d)`` for tokens ``(B, L)``, int64, padded to the context
    length."""

    def __init__(self, model: Any):
        super().__init__()
        self.lift = _Lift(space_of(model), "text")
        visual = model.visual
        model.visual = None
        try:
            self.model = copy.deepcopy(model)
        finally:
            model.visual = visual
        self.words = len(getattr(model, "text", model).token_embedding.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.lift(encode_text(self.model, x, cut=False))

    def example(self, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        """Return tokens of made-up texts of several lengths; the end of a text is the largest
        token."""
        tokens = torch.randint(1, self.words - 1, tuple(shape), generator=generator)
        ends = torch.randint(1, shape[1], (shape[0], 1), generator=generator)
        place = torch.arange(shape[1])
        return torch.where(place < ends, tokens, torch.where(place == ends, self.words - 1, 0))


def geometry_of(space: Space) -> Plain:
    """Return the description of a space that an exported file holds: its geometry and
    curvatures."""
    if isinstance(space, Hyperboloid):
        geometry = "angles" if isinstance(space, ExteriorAngles) else "lorentz"
        return dict(geometry=geometry, c=float(torch.as_tensor(space.c).detach()))
    if isinstance(space, HyperboloidProduct):
        return dict(geometry="product", c=space.c.detach().tolist(), dim=space.dim)
    return dict(geometry="sphere")


def clip_tower(
    clip: CLIPBundle, part: str
) -> tuple[ImageTower | TextTower, tuple[int, ...], Plain]:
    """Return a tower, the shape of one of its inputs, and the description that the exported file
    holds.

    Args:
        clip: the CLIP, on the CPU.
        part: the tower, one of :data:`TOWERS`.
    """
    one_of(TOWERS, part=part)
    about = geometry_of(clip.space)
    model = clip.model
    if part == "text":
        about |= dict(templates=list(clip.templates)) if clip.templates else {}
        return TextTower(model).eval(), tuple(clip.tokenizer(["a"]).shape[1:]), about
    view = preprocessing_of(model)
    mean, std = ([round(value / 255, 8) for value in values] for values in (clip.mean, clip.std))
    about |= dict(mean=mean, std=std, crop_pct=1.0, interpolation=view.interpolation)
    about["crop_mode"] = _CROP_MODES[view.resize_mode]
    return ImageTower(model).eval(), (3, *view.size), about
