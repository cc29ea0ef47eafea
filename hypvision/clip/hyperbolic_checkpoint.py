"""Official checkpoints of MERU, HyCoCLIP, UNCHA, PHyCLIP and ATMG, which has MERU's form: their
addresses, and conversion between their names of weights and ours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from hypvision.checkpoints.match import translated, unknown_name
from hypvision.checkpoints.read import read_file
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import HypvisionError, Plain, Values

PUBLISHED: dict[str, dict[str, str]] = {}
"""Model -> tag -> address of the official weights, for which no checksums are published. PHyCLIP
has published no weights, and ATMG none at an address that holds."""

for _tag, _place, _families, _sizes in (
    ("redcaps", "https://dl.fbaipublicfiles.com/meru/{}_vit_{}.pth", ("clip", "meru"), "sbl"),
    ("grit", "hf-hub:avik-pal/hycoclip#{}_vit_{}.pth", ("clip", "meru", "hycoclip"), "sb"),
    ("grit", "hf-hub:hayeonkim/uncha#{}_vit_{}.pth", ("uncha",), "sb"),
):
    for _family, _size in itertools.product(_families, _sizes):
        _tags = PUBLISHED.setdefault(f"{_family}-vit-{_size}-16", {})
        _tags[_tag] = _place.format(_family, _size)

SCALARS = ("curv", "visual_alpha", "textual_alpha")
"""Names of MERU's and HyCoCLIP's scalars beside their towers: logarithms of the curvature and of
the scales of image and text features. PHyCLIP's files contain them, but its model does not use
them."""

BOX_SCALES = ("global_logit_scale", "local_logit_scale", "global_local_logit_scale")
"""Names of the logarithms of UNCHA's three logit scales: for whole images and texts, for boxes, and
for boxes with whole images. UNCHA's files contain ``logit_scale``, but its model does not use
it."""

FACTORS = ("curvs", "visual_concept_alphas", "textual_concept_alphas")
"""Names of PHyCLIP's lists of logarithms: the curvatures of its factors and the scales of their
image and text features."""


class Family(NamedTuple):
    """A family of models whose weights have the same names.

    Attributes:
        title: name of the family in messages.
        marks: beginnings of the names of weights that only this family has.
        needed: names of the scalars that every model of the family has.
    """

    title: str
    marks: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


FAMILIES = {
    "phyclip": Family("PHyCLIP", FACTORS, SCALARS),
    "uncha": Family("UNCHA", (*BOX_SCALES, "min_radius_head."), (*SCALARS, *BOX_SCALES)),
    "meru": Family("MERU or HyCoCLIP", SCALARS, SCALARS),
    "clip": Family("the CLIP baseline"),
}
"""The families, in the order in which a state dict is compared with them: a PHyCLIP also has MERU's
scalars, so it comes before MERU."""

PIXELS = ("pixel_mean", "pixel_std")
"""Names of the mean and the standard deviation, ``(3, 1, 1)``, that normalise RGB from 0 to 1.
HyCoCLIP's official files have (0.229, 0.224, 0.225) in both, because its class passes its arguments
to MERU's by position; its models were trained with these values."""

CURVATURES = (0.1, 10.0)
"""Interval to which the official trainings clamp the curvature."""

# Pairs (official name, our name) for translated().
_NAMES = [
    ("visual_proj.{rest}", "visual.head.proj.{rest}"),
    ("visual.{rest}", "visual.trunk.{rest}"),
    ("textual.token_embed.{rest}", "token_embedding.{rest}"),
    ("textual.posit_embed", "positional_embedding"),
    ("textual.resblocks.{rest}", "transformer.resblocks.{rest}"),
    ("textual.ln_final.{rest}", "ln_final.{rest}"),
    ("textual_proj.weight", "text_projection"),
    ("textual.min_radius_head.0.{rest}", "min_radius_head.{rest}"),
]


_KEPT = ("logit_scale", "root", *SCALARS, *PIXELS, *BOX_SCALES, *FACTORS)  # equal names in both


def is_official(weights: Weights) -> bool:
    """Return whether the names of weights are those of the official code of MERU and HyCoCLIP."""
    return "textual.token_embed.weight" in weights


def family_of(weights: Iterable[str]) -> str:
    """Return the key in :data:`FAMILIES` for the names of a state dict, which are our names."""
    names = [*weights]
    return next(
        family
        for family, about in FAMILIES.items()
        if not about.marks or any(name.startswith(about.marks) for name in names)
    )


def family_of_config(config: Values) -> str:
    """Return the key in :data:`FAMILIES` for the arguments of a CLIP model."""
    if config.get("box_scales"):
        return "uncha"
    return {"product": "phyclip", "lorentz": "meru"}.get(config.get("geometry", ""), "clip")


def from_official(weights: Weights) -> StateDict:
    """Return the state dict of :class:`~hypvision.clip.hyperbolic.HyperbolicCLIP` for an official
    one.

    Raises:
        HypvisionError: a weight belongs to none of the official models, or has an impossible value.
    """
    found = {}
    for name, value in weights.items():
        if name == "textual.attn_mask":
            if not torch.equal(value.bool(), _causal(len(value))):
                raise HypvisionError(
                    f"The checkpoint's '{name}' is not the causal mask of MERU's and HyCoCLIP's "
                    "texts. Take an intact copy."
                )
            continue
        ours = translated(name, _NAMES)
        if ours is None and name.partition(".")[0] not in _KEPT:
            raise HypvisionError(unknown_name(name, "MERU, HyCoCLIP, UNCHA or PHyCLIP"))
        found[ours or name] = value.T.contiguous() if name == "textual_proj.weight" else value
    check_scalars(found, family_of(found))
    return found


def _causal(size: int) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def to_official(weights: Weights) -> StateDict:
    """Return the official state dict for one by our names, the inverse of :func:`from_official`."""
    found = {}
    for name, value in weights.items():
        value = value.T.contiguous() if name == "text_projection" else value
        found[translated(name, _NAMES, back=True) or name] = value
    size = len(found["textual.posit_embed"])
    found["textual.attn_mask"] = _causal(size)
    # Weights without a normalisation get that of MERU.
    for name, values in zip(PIXELS, (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)):
        found.setdefault(name, torch.tensor(values).reshape(3, 1, 1))
    return found


def check_scalars(weights: Weights, family: str, source: Any = None, whole: bool = True) -> None:
    """Raise an error if weights, by our names, belong to another family than ``family``, or have a
    scalar or a normalisation outside its interval. With ``whole`` they must be a whole model's, so
    that no scalar may be missing; ``source`` is the file for messages."""
    place = "The checkpoint" if source is None else f"'{source}'"
    _check_pixels(weights, place)
    _check_family(weights, family, place, whole)
    for name, value in weights.items():
        if name.partition(".")[0] not in _KEPT[2:] or name in PIXELS:
            continue
        if value.numel() != 1 or not math.isfinite(float(value)):
            raise HypvisionError(
                f"{place}: '{name}' is not one finite number. Take an intact copy."
            )
        if name.startswith("curv"):
            _check_curvature(name, math.exp(float(value)), place)


def _check_family(weights: Weights, family: str, place: str, whole: bool) -> None:
    """Raise an error for scalars of another family, and with ``whole`` for missing scalars."""
    found = family_of(weights)
    about = FAMILIES[found]
    own = FAMILIES[family]
    if found != family and (whole or about.marks):
        mark = next((name for name in weights if name.startswith(about.marks)), None)
        why = f"has '{mark}'" if about.marks else f"has no '{own.marks[0]}'"
        name = {"clip": "clip-vit-...", "meru": "meru-...' or 'hycoclip-..."}.get(found, found)
        advice = "" if found == "clip" else ", or give create_clip the geometry of its training"
        raise HypvisionError(
            f"{place} {why}, so its model is {about.title}, not {own.title}. Name the model "
            f"'{name}'{advice}."
        )
    missing = [name for name in own.needed if whole and name not in weights]
    if missing:
        raise HypvisionError(
            f"{place} lacks {', '.join(missing)}. Take an intact copy of the checkpoint."
        )


def _check_pixels(weights: Weights, place: str) -> None:
    """Raise an error for an impossible mean or standard deviation of pixels."""
    for name in PIXELS:
        value = weights.get(name, torch.ones(3, 1, 1))
        finite = value.shape == (3, 1, 1) and bool(value.isfinite().all())
        if not finite or (name == PIXELS[1] and (value <= 0).any()):
            raise HypvisionError(
                f"{place}: '{name}' is {value.flatten().tolist()[:3]}; expected three finite "
                "numbers (3, 1, 1), above 0 for a deviation. Take an intact copy."
            )


def _check_curvature(name: str, c: float, place: str) -> None:
    """Raise an error for a curvature ``c`` that no official training can have saved."""
    # The trainings clamp c before each step, so the last step may move it slightly out of bounds.
    if not CURVATURES[0] * 0.95 <= c <= CURVATURES[1] * 1.05:
        raise HypvisionError(
            f"{place} has the curvature {c:.4g}; the trainings of its kind keep it between "
            f"{CURVATURES[0]} and {CURVATURES[1]:.0f}. The entry '{name}' must be the logarithm of "
            "the curvature. Take an intact copy."
        )


def read_official(path: Path) -> Plain:
    """Return the content of an official file; the root of traversals, which lies beside the
    weights, is moved among them, as in our files."""
    content = read_file(path)
    model = content.get("model")
    root = content.get("root")
    return (
        {**content, "model": {**model, "root": root}}
        if isinstance(model, Mapping) and root is not None
        else content
    )


def as_official(weights: Weights, epoch: int) -> Plain:
    """Return the content of a file in the official layout: weights as ``model``, ``root`` beside
    them."""
    model = {name: value for name, value in weights.items() if name != "root"}
    return {"model": model, **({"root": weights["root"]} if "root" in weights else {})}


def root_of(content: Values, width: int, source: Any) -> Tensor | None:
    """Return the root of traversals in the content of a CLIP baseline's file, ``(width,)`` and of
    unit length; None if there is none. ``source`` is the file for messages."""
    root = content.get("root")
    if root is None:
        return None
    length = float(torch.linalg.vector_norm(root.float())) if isinstance(root, Tensor) else 0.0
    if length == 0 or not math.isfinite(length) or root.shape != (width,):
        raise HypvisionError(
            f"The entry 'root' of '{source}' must be a vector of {width} numbers, not all 0. "
            "Download or copy the file again."
        )
    return root.float() / length


def variant(weights: Weights) -> tuple[str, Plain]:
    """Return the name of the CLIP model for a state dict by our names, and its arguments.
    HyCoCLIP's, ATMG's and MERU's weights cannot be told apart, as they differ only in training."""
    width = len(weights["visual.trunk.norm.weight"])
    family = family_of(weights)
    sizes = {384: "s", 768: "b", 1024: "l"}
    if width not in sizes:
        raise HypvisionError(
            f"The ViT has the width {width}; those of MERU and HyCoCLIP have {list(sizes)}. Take a "
            "checkpoint of one of their models."
        )
    factors = sum(name.startswith("curvs.") for name in weights)
    return f"{family}-vit-{sizes[width]}-16", {"factors": factors} if factors not in (0, 64) else {}
