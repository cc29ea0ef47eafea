"""Official checkpoints of MERU and HyCoCLIP: their places, their names of weights and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from hypvision.checkpoints.match import translated, unknown_name
from hypvision.checkpoints.read import read_file
from hypvision.io.errors import HypvisionError

PUBLISHED = {
    f"{family}-vit-{size}-16": {
        tag: place.format(family, size)
        for tag, (place, families, sizes) in {
            "redcaps": (
                "https://dl.fbaipublicfiles.com/meru/{}_vit_{}.pth",
                ("clip", "meru"),
                "sbl",
            ),
            "grit": ("hf-hub:avik-pal/hycoclip#{}_vit_{}.pth", ("clip", "meru", "hycoclip"), "sb"),
        }.items()
        if family in families and size in sizes
    }
    for family in ("clip", "meru", "hycoclip")
    for size in ("sbl" if family != "hycoclip" else "sb")
}
"""Model -> tag -> where the official weights are; no sums of them are published."""

SCALARS = ("curv", "visual_alpha", "textual_alpha")
"""What a hyperbolic model learns beside its towers: logarithms of the curvature and of the factors
of the features."""

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
]


def is_official(weights: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of the official code of MERU and HyCoCLIP."""
    return "textual.token_embed.weight" in weights


def from_official(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of :class:`HyperbolicCLIP` from an official one.

    Raises:
        HypvisionError: an entry is not one of MERU's or HyCoCLIP's, or has a value that their
            models cannot have.
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
        if ours is None and name not in ("logit_scale", "root", *SCALARS, *PIXELS):
            raise HypvisionError(_not_ours(name))
        found[ours or name] = value.T.contiguous() if name == "textual_proj.weight" else value
    check_scalars(found, "sphere" if found.keys().isdisjoint(SCALARS) else "lorentz")
    return found


def _not_ours(name: str) -> str:
    """The error message for an entry of another model."""
    kin = {
        "PHyCLIP": ("curvs.", "visual_concept_alphas.", "textual_concept_alphas."),
        "UNCHA": (
            "global_logit_scale",
            "local_logit_scale",
            "global_local_logit_scale",
            "textual.min_radius_head.",
        ),
    }
    for model, starts in kin.items():
        if name.startswith(starts):
            return (
                f"The checkpoint has an entry '{name}', so it is of {model}, which is not one of "
                "MERU and HyCoCLIP."
            )
    return unknown_name(name, "MERU or HyCoCLIP")


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
    weights: Mapping[str, Tensor], geometry: str, source: Any = None, whole: bool = True
) -> None:
    """Raise an error if the weights, under our names, belong to another geometry than the model's,
    or have a scalar or a normalisation outside of its interval; ``whole``: they are those of a
    whole model, so that no scalar may be missing."""
    place = "The checkpoint" if source is None else f"'{source}'"
    _check_pixels(weights, place)
    there = [name for name in SCALARS if name in weights]
    _check_geometry(weights, geometry, place, whole)
    for name in there:
        if weights[name].numel() != 1 or not math.isfinite(float(weights[name])):
            raise HypvisionError(
                f"{place}: '{name}' is not one finite number. Take an intact copy."
            )
    if "curv" in there:
        _check_curvature(math.exp(float(weights["curv"])), place)


def _check_geometry(weights: Mapping[str, Tensor], geometry: str, place: str, whole: bool) -> None:
    """Raise an error if the scalars are not those of the geometry; ``whole``: all must be there."""
    there = [name for name in SCALARS if name in weights]
    if geometry == "sphere" and there:
        raise HypvisionError(
            f"{place} has '{there[0]}', so its model is hyperbolic (MERU or HyCoCLIP), not the "
            "CLIP baseline. Name the model 'meru-...' or 'hycoclip-...', or give create_clip "
            "geometry='lorentz' if its training did."
        )
    if geometry == "lorentz" and whole and not there:
        raise HypvisionError(
            f"{place} has no curvature ('curv'), so its model is the CLIP baseline. Name the model "
            "'clip-vit-...'."
        )
    missing = [name for name in SCALARS if name not in weights]
    if geometry == "lorentz" and whole and missing:
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


def _check_curvature(c: float, place: str) -> None:
    """Raise an error for a curvature that the official trainings cannot have left."""
    # They clamp it before a step, so that one step may move it out of bounds before it is saved.
    if not CURVATURES[0] * 0.95 <= c <= CURVATURES[1] * 1.05:
        raise HypvisionError(
            f"{place} has the curvature {c:.4g}; MERU's and HyCoCLIP's trainings keep it between "
            f"{CURVATURES[0]} and {CURVATURES[1]:.0f}. The entry 'curv' must be the logarithm of "
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
    family = "meru" if "curv" in weights else "clip"
    sizes = {384: "s", 768: "b", 1024: "l"}
    if width not in sizes:
        raise HypvisionError(
            f"The ViT has the width {width}; those of MERU and HyCoCLIP have {list(sizes)}."
        )
    return f"{family}-vit-{sizes[width]}-16", {}
