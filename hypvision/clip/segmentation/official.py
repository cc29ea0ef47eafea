"""Conversion of checkpoints between the official HyperCLIP and CAT-Seg codes (detectron2) and our
segmenter.

CAT-Seg's files keep q, k and v apart and contain no adapters. In its ViT-L files, HyperCLIP's code
never used the adapters of image blocks 11 to 22 (it stops at 12): here they become the identity,
which gives the same model.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from hypvision.checkpoints.match import translated
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.clip.models import MEAN, STD
from hypvision.io import HypvisionError, Plain

from .catseg import window_mask

_PREDICTOR = "sem_seg_head.predictor."
_ADAPTER = ".hyperclip."  # part of our names of HyperCLIP's adapters; below the official name
_OFFICIAL_ADAPTER = re.compile(r"\.hyperbolic_attn\.adapter_attn_([qkv])\.weights$")
_VISION = "clip.visual.transformer.resblocks."
_PIXELS = {"clip_pixel_mean": MEAN, "clip_pixel_std": STD}  # normalisation of RGB from 0 to 255
_NAMES = [  # pairs (our name, official name)
    ("clip.{rest}", _PREDICTOR + "clip_model.{rest}"),
    ("head.{rest}", _PREDICTOR + "transformer.{rest}"),
    ("upsample{n}.{rest}", "upsample{n}.{rest}"),
]


def is_official_hyperclip(state_dict: Weights) -> bool:
    """Return whether the names in a state dict are those of the official HyperCLIP code."""
    return any(
        name.startswith(_PREDICTOR) and _OFFICIAL_ADAPTER.search(name) for name in state_dict
    )


def is_official_catseg(state_dict: Weights) -> bool:
    """Return whether the names in a state dict are those of CAT-Seg."""
    clip = any(name.startswith(f"{_PREDICTOR}clip_model.") for name in state_dict)
    return clip and not is_official_hyperclip(state_dict)


def segmenter_from_official(state_dict: Weights) -> StateDict:
    """Return the state dict of :class:`hypvision.clip.OpenVocabSegmenter` for an official one of
    either code."""
    out: StateDict = {}
    split: dict[str, StateDict] = {}
    for name, value in state_dict.items():
        short = name.removeprefix(_PREDICTOR)
        projection = re.fullmatch(r"clip_model\.(.+\.attn)\.([qkv])_proj_weight", short)
        if projection and short != name:
            layer, letter = projection.groups()
            split.setdefault(f"clip.{layer}.in_proj_weight", {})[letter] = value
        elif not _is_computed(name, value):
            renamed = translated(name, _NAMES, back=True)
            if renamed is None:
                raise _unknown(name)
            # Weights in OpenAI's files are float16, which the official code converts to float32.
            wide = renamed.startswith("clip.") and value.is_floating_point()
            out[renamed] = value.float() if wide else value
    out |= {name: _packed(name, projections) for name, projections in split.items()}
    return _with_unused_adapters(
        {_OFFICIAL_ADAPTER.sub(rf"{_ADAPTER}\1", name): value for name, value in out.items()}
    )


def _packed(name: str, projections: Weights) -> Tensor:
    """Return the packed projection for separate ones of queries, keys and values."""
    if set(projections) != set("qkv"):
        given = ", ".join(sorted(projections))
        raise HypvisionError(
            f"The checkpoint has only {given} of the projection '{name}'. Take an intact copy."
        )
    return torch.cat([projections[letter] for letter in "qkv"]).float()


def _is_computed(name: str, value: Tensor) -> bool:
    """Return whether our model computes an entry itself; another value than ours is an error."""
    if name in _PIXELS:
        _check_constant(name, value.flatten(), torch.tensor(_PIXELS[name]))
        return True
    if name in ("pixel_mean", "pixel_std"):
        return True  # the official code stores them, but normalises by the two entries of _PIXELS
    if name.startswith(_PREDICTOR) and name.endswith("attn_mask"):  # computed from the grid's size
        _check_constant(name, value, _shift_mask(value.device))
        return True
    return False


def _with_unused_adapters(weights: StateDict) -> StateDict:
    """Return weights whose adapters between the eleventh and the last image block, which the
    official code does not use, are the identity."""
    blocks = {
        name: int(name[len(_VISION) :].partition(".")[0])
        for name in weights
        if name.startswith(_VISION)
    }
    for name, number in blocks.items():
        if _ADAPTER in name and 11 <= number < max(blocks.values()):
            eye = torch.eye(weights[name].shape[-1])
            weights[name] = eye.expand_as(weights[name]).clone()
    return weights


def _shift_mask(device: torch.device) -> Tensor:
    """Return the attention mask of shifted windows of 12 patches in a grid of 24 x 24."""
    mask = window_mask((24, 24), (24, 24), 12, 6, device)
    assert mask is not None, "shifted windows have a mask"
    return mask


def _check_constant(name: str, value: Tensor, expected: Tensor) -> None:
    """Raise an error if an entry that our model computes itself has another value."""
    if value.shape != expected.shape or not torch.allclose(value.float(), expected, rtol=1e-4):
        raise HypvisionError(
            f"The checkpoint's '{name}' is not that of HyperCLIP and CAT-Seg "
            f"({expected.flatten().tolist()[:3]}, ...), which alone is implemented here. Take a "
            "file of the official code."
        )


def segmenter_names(weights: Weights) -> StateDict:
    """Return official weights by our segmenter's names; others stay as they are."""
    official = is_official_catseg(weights) or is_official_hyperclip(weights)
    return segmenter_from_official(weights) if official else dict(weights)


def hyperclip_to_official(state_dict: Weights) -> StateDict:
    """Return the state dict in HyperCLIP's layout, the inverse of :func:`segmenter_from_official`,
    with the attention masks that its files contain."""
    out: StateDict = {}
    for name, value in state_dict.items():
        name = re.sub(r"\.hyperclip\.([qkv])$", r".hyperbolic_attn.adapter_attn_\1.weights", name)
        official = translated(name, _NAMES)
        if official is None:
            raise _unknown(name)
        out[official] = value
        match = re.fullmatch(r"head\.(layers\.\d+\.swin_block\.block_2)\.norm1\.weight", name)
        if match:
            out[f"{_PREDICTOR}transformer.{match[1]}.attn_mask"] = _shift_mask(value.device)
    return out


def catseg_to_official(state_dict: Weights) -> StateDict:
    """Return the state dict in CAT-Seg's layout, which is HyperCLIP's with q, k and v apart.
    Adapters must be merged before."""
    if any(_ADAPTER in name for name in state_dict):
        raise HypvisionError(
            "The checkpoint contains HyperCLIP's adapters, which CAT-Seg does not have. Load it, "
            "call adapters.merge(model.clip), and save it again."
        )
    out: StateDict = {}
    for name, value in hyperclip_to_official(state_dict).items():
        if name.endswith(".attn.in_proj_weight"):
            stem = name.removesuffix("in_proj_weight")
            out.update(
                {f"{stem}{letter}_proj_weight": part for letter, part in zip("qkv", value.chunk(3))}
            )
        else:
            out[name] = value
    return out


def segmenter_variant(state_dict: Weights) -> tuple[str, Plain]:
    """Return the config of a converted checkpoint, without further arguments: ``hyperclip-vitb16``,
    ``hyperclip-vitl14-336``, ``catseg-...``, or a name with width and patch for another size."""
    conv = state_dict.get("clip.visual.conv1.weight")
    if conv is None or not any(name.startswith("head.") for name in state_dict):
        raise HypvisionError(
            "The file holds only a part of a segmenter: CLIP's image tower or the head is missing. "
            "Take a file of the whole segmenter."
        )
    family = "hyperclip" if any(_ADAPTER in name for name in state_dict) else "catseg"
    known = {(768, 16): "vitb16", (1024, 14): "vitl14-336"}
    size = (conv.shape[0], conv.shape[-1])
    return f"{family}-{known.get(size, f'width{size[0]}-patch{size[1]}')}", {}


def _unknown(name: str) -> HypvisionError:
    return HypvisionError(
        f"The checkpoint has an entry '{name}', which no HyperCLIP or CAT-Seg checkpoint has. "
        "Check that the file holds the weights of the whole segmenter and nothing else."
    )
