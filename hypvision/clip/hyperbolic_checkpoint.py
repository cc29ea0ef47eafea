"""Official checkpoints of MERU, HyCoCLIP, UNCHA and PHyCLIP: their places, their names of weights
and ours."""

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
from hypvision.io.errors import HypvisionError

PUBLISHED: dict[str, dict[str, str]] = {}
"""Model -> tag -> where the official weights are; no sums of them are published. There are none of
PHyCLIP."""

for _tag, _place, _families, _sizes in (
    ("redcaps", "https://dl.fbaipublicfiles.com/meru/{}_vit_{}.pth", ("clip", "meru"), "sbl"),
    ("grit", "hf-hub:avik-pal/hycoclip#{}_vit_{}.pth", ("clip", "meru", "hycoclip"), "sb"),
    ("grit", "hf-hub:hayeonkim/uncha#{}_vit_{}.pth", ("uncha",), "sb"),
):
    for _family, _size in itertools.product(_families, _sizes):
        _tags = PUBLISHED.setdefault(f"{_family}-vit-{_size}-16", {})
        _tags[_tag] = _place.format(_family, _size)

SCALARS = ("curv", "visual_alpha", "textual_alpha")
"""What MERU and HyCoCLIP learn beside their towers: logarithms of the curvature and of the factors
of the features. PHyCLIP's files have them unused."""

BOX_SCALES = ("global_logit_scale", "local_logit_scale", "global_local_logit_scale")
"""Logarithms of UNCHA's three scales of logits: of whole images and texts, of boxes, and of boxes
and wholes. Its files have ``logit_scale`` unused."""

FACTORS = ("curvs", "visual_concept_alphas", "textual_concept_alphas")
"""PHyCLIP's lists of the factors' curvatures and scales, logarithms as well."""


class Family(NamedTuple):
    """What the loader knows of models that have weights of the same names: how they are called, and
    the beginnings of the names that only they have; ``needed`` are the single numbers of each."""

    title: str
    marks: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


FAMILIES = {
    "phyclip": Family("PHyCLIP", FACTORS, SCALARS),
    "uncha": Family("UNCHA", (*BOX_SCALES, "min_radius_head."), (*SCALARS, *BOX_SCALES)),
    "meru": Family("MERU or HyCoCLIP", SCALARS, SCALARS),
    "clip": Family("the CLIP baseline"),
}
"""Those with more entries come first: a PHyCLIP has MERU's as well."""

PIXELS = ("pixel_mean", "pixel_std")
"""The mean and the deviation, (3, 1, 1), that normalise RGB from 0 to 1. HyCoCLIP's official files
have (0.229, 0.224, 0.225) in both, because its class hands its arguments to MERU's by position; its
models were trained with that."""

CURVATURES = (0.1, 10.0)
"""Interval of the curvature in the official trainings."""

# (official name, ours); see translated()
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


_KEPT = ("logit_scale", "root", *SCALARS, *PIXELS, *BOX_SCALES, *FACTORS)  # the same in both


def is_official(weights: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of the official code of MERU and HyCoCLIP."""
    return "textual.token_embed.weight" in weights


def family_of(weights: Iterable[str]) -> str:
    """The key in :data:`FAMILIES` of a state dict, by our names."""
    names = [*weights]
    return next(
        family
        for family, about in FAMILIES.items()
        if not about.marks or any(name.startswith(about.marks) for name in names)
    )


def family_of_config(config: Mapping[str, Any]) -> str:
    """The key in :data:`FAMILIES` of the arguments of a CLIP model."""
    if config.get("box_scales"):
        return "uncha"
    return {"product": "phyclip", "lorentz": "meru"}.get(config.get("geometry", ""), "clip")


def from_official(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of :class:`HyperbolicCLIP` from an official one.

    Raises:
        HypvisionError: an entry is of none of the models, or has a value that they cannot have.
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


def to_official(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`from_official`."""
    found = {}
    for name, value in weights.items():
        value = value.T.contiguous() if name == "text_projection" else value
        found[translated(name, _NAMES, back=True) or name] = value
    size = len(found["textual.posit_embed"])
    found["textual.attn_mask"] = _causal(size)
    # MERU's, if the weights lack them
    for name, values in zip(PIXELS, (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)):
        found.setdefault(name, torch.tensor(values).reshape(3, 1, 1))
    return found


def check_scalars(
    weights: Mapping[str, Tensor], family: str, source: Any = None, whole: bool = True
) -> None:
    """Raise an error if the weights, under our names, are of another family than the model, or have
    a scalar or a normalisation outside of its interval; ``whole``: they are those of a whole model,
    so that no scalar may be missing."""
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


def _check_family(weights: Mapping[str, Tensor], family: str, place: str, whole: bool) -> None:
    """Raise an error for scalars of another family; ``whole``: all must be there."""
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


def _check_pixels(weights: Mapping[str, Tensor], place: str) -> None:
    """Raise an error for a mean or a deviation of pixels that is none."""
    for name in PIXELS:
        value = weights.get(name, torch.ones(3, 1, 1))
        finite = value.shape == (3, 1, 1) and bool(value.isfinite().all())
        if not finite or (name == PIXELS[1] and (value <= 0).any()):
            raise HypvisionError(
                f"{place}: '{name}' is {value.flatten().tolist()[:3]}; expected three finite "
                "numbers (3, 1, 1), of a deviation above 0. Take an intact copy."
            )


def _check_curvature(name: str, c: float, place: str) -> None:
    """Raise an error for a curvature that the official trainings cannot have left."""
    # They clamp it before a step, so that one step may move it out of bounds before it is saved.
    if not CURVATURES[0] * 0.95 <= c <= CURVATURES[1] * 1.05:
        raise HypvisionError(
            f"{place} has the curvature {c:.4g}; the trainings of its kind keep it between "
            f"{CURVATURES[0]} and {CURVATURES[1]:.0f}. The entry '{name}' must be the logarithm of "
            "the curvature. Take an intact copy."
        )


def read_official(path: Path) -> dict[str, Any]:
    """The content of an official file, with its root of traversals among the weights, as in our
    files."""
    content = read_file(path)
    model = content.get("model")
    root = content.get("root")
    return (
        {**content, "model": {**model, "root": root}}
        if isinstance(model, Mapping) and root is not None
        else content
    )


def as_official(weights: Mapping[str, Tensor], epoch: int) -> dict[str, Any]:
    """The layout of the official code's files: the weights as ``model``, and the root beside it."""
    model = {name: value for name, value in weights.items() if name != "root"}
    return {"model": model, **({"root": weights["root"]} if "root" in weights else {})}


def root_of(content: Mapping[str, Any], width: int, source: Any) -> Tensor | None:
    """The root of traversals in the file of a CLIP baseline, ``(width,)`` of unit length; None if
    it has none."""
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


def variant(weights: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """The CLIP model of a state dict by our names. The weights of HyCoCLIP and MERU cannot be told
    apart: the two differ only in their training."""
    width = len(weights["visual.trunk.norm.weight"])
    family = family_of(weights)
    sizes = {384: "s", 768: "b", 1024: "l"}
    if width not in sizes:
        raise HypvisionError(
            f"The ViT has the width {width}; those of MERU and HyCoCLIP have {list(sizes)}."
        )
    factors = sum(name.startswith("curvs.") for name in weights)
    return f"{family}-vit-{sizes[width]}-16", {"factors": factors} if factors not in (0, 64) else {}
