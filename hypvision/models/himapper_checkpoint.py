"""Checkpoints of Hi-Mappers: between official names and ours, and the model that one belongs to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import timm
import torch
from timm.models.swin_transformer import SwinTransformerBlock, get_relative_position_index
from torch import Tensor, nn

from hypvision.checkpoints.match import translated, unknown_name
from hypvision.checkpoints.read import network_weights
from hypvision.io.errors import HypvisionError

from .base import head_names

BACKBONES = {
    "deit_tiny_patch16_224": "fb_in1k",
    "deit_small_patch16_224": "fb_in1k",
    "deit_base_patch16_224": "fb_in1k",
    "swin_tiny_patch4_window7_224": "ms_in1k",
    "swin_small_patch4_window7_224": "ms_in1k",
    "resnet50": "tv_in1k",
    "efficientnet_b4": "ra2_in1k",
    "tf_efficientnet_lite0": "in1k",
}
"""The backbones with names of their own in timm's registry, and the weights they start from: the
paper's seven, and that of the weights in the zoo."""

# (official name, ours), see translated(); in official files names of the backbone have no prefix
_NAMES = [
    ("last_l.node_mean", "mapper.tree.mean"),
    ("last_l.node_log_sigma", "mapper.tree.log_variance"),
    ("last_l.Llinear.weight", "mapper.lift.weight"),
    ("last_l.Llinear.lorentz.k", "mapper.lift.manifold.log_c"),
    *(
        (f"{official}mlp.{number}.{{rest}}", f"{ours}fc{layer}.{{rest}}")
        for official, ours in (
            ("last_l.Etransformer.decoder.0.", "mapper.decomposer.layer."),
            ("mix_l.decoder.{n}.", "mapper.encoder.layers.{n}."),
        )
        for number, layer in ((0, 1), (3, 2))
    ),
    ("last_l.Etransformer.decoder.0.{rest}", "mapper.decomposer.layer.{rest}"),
    ("last_l.Etransformer.{rest}", "mapper.decomposer.{rest}"),
    ("mix_l.decoder.{rest}", "mapper.encoder.layers.{rest}"),
    ("mix_l.{rest}", "mapper.encoder.{rest}"),
]


def is_official_himapper(state_dict: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of the official Hi-Mapper code."""
    return "last_l.node_mean" in state_dict


def himapper_from_official(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of :class:`hypvision.models.HiMapper` (``preset="official"``) from an official
    one.

    Backbones of old timm are brought to the names of today: Swin's down-sampling, its head and its
    constant buffers.
    """
    out: dict[str, Tensor] = {}
    trunk: dict[str, Tensor] = {}
    for name, value in state_dict.items():
        ours = translated(name, _NAMES)
        if ours is not None:
            out[ours] = value
        elif not name.startswith(("last_l.", "mix_l.")):
            trunk[name] = value
        elif name != "last_l.Llinear.bias":  # some checkpoints have it; no code uses it
            raise HypvisionError(unknown_name(name, "Hi-Mapper"))
    if "layers.0.downsample.reduction.weight" in trunk:
        trunk = _from_old_swin(trunk)
    return out | {f"trunk.{name}": value for name, value in trunk.items()}


def _from_old_swin(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for name, value in weights.items():
        downsample = re.fullmatch(r"layers\.(\d)\.(downsample\..+)", name)
        if downsample:
            out[f"layers.{int(downsample[1]) + 1}.{downsample[2]}"] = value
        elif not name.endswith(("relative_position_index", "attn_mask")):
            out[re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)] = value
        elif not _is_of_swin(value):
            raise HypvisionError(
                f"The checkpoint's '{name}' is not that of a Swin with square windows, which "
                "timm computes. Take an intact copy."
            )
    return out


def _is_of_swin(value: Tensor) -> bool:
    """Whether a buffer of old Swins, the places in a window or the mask of shifted ones, is what
    timm computes."""
    side = math.isqrt(value.shape[-1])
    if value.dim() == 2:
        return torch.equal(value.cpu(), get_relative_position_index(side, side))
    grid = math.isqrt(len(value)) * side
    block = SwinTransformerBlock(
        1, (grid, grid), num_heads=1, window_size=side, shift_size=side // 2
    )
    mask = block.get_attn_mask()
    return mask is not None and torch.equal(value.float().cpu(), mask)


def himapper_to_official(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`himapper_from_official`, with the backbone's names of today's timm.

    Raises:
        HypvisionError: a name is not one of Hi-Mapper's, or has no official counterpart (the scale
            of the lift ``"exp0"``, the encoder of dense maps).
    """
    out: dict[str, Tensor] = {}
    for name, value in state_dict.items():
        if name.startswith("trunk."):
            out[name.removeprefix("trunk.")] = value
            continue
        if name == "mapper.lift.scale":
            raise HypvisionError(
                "The checkpoint has a scale of the lift, which the official code does not know: it "
                "was trained with lift='exp0'. Only models with preset='official' convert back."
            )
        official = translated(name, _NAMES, back=True)
        if official is None:
            raise HypvisionError(unknown_name(name, "hypvision Hi-Mapper"))
        out[official] = value
    return out


# The classifiers of timm's backbones.
_HEADS = ("head.weight", "head.fc.weight", "fc.weight", "classifier.weight")
# Backbones with the same shapes but other results: those from TensorFlow pad asymmetrically and
# have another eps.
_SAME_SHAPES = {"efficientnet_b4": "tf_efficientnet_b4"}


def himapper_variant(
    state_dict: Mapping[str, Tensor], backbone: str | None = None
) -> tuple[str, dict[str, Any]]:
    """The timm model that a state dict of :class:`hypvision.models.HiMapper` belongs to.

    Args:
        state_dict: that of the model.
        backbone: timm's name of the backbone, if the shapes do not determine it.

    Returns:
        Name of the model, and the arguments of ``timm.create_model``: ``preset``, and where they
        differ from the default ``num_classes``, ``leaves``, ``levels`` and ``backbone``.

    Raises:
        HypvisionError: a part is missing, the backbone is not one of the paper's, is another one
            than ``backbone``, or could be either of two.
    """
    mean = state_dict.get("mapper.tree.mean")
    layers = set(re.findall(r"^mapper\.encoder\.layers\.\d+", "\n".join(state_dict), re.M))
    given = {name[6:]: v.shape for name, v in state_dict.items() if name.startswith("trunk.")}
    if mean is None or not layers or not given:
        raise HypvisionError(
            "The file holds only a part of a Hi-Mapper: its tree, its encoder or its backbone is "
            "missing. Give a checkpoint of the whole model."
        )
    arguments: dict[str, Any] = {} if "mapper.lift.scale" in state_dict else {"preset": "official"}
    if (len(mean), len(layers)) != (32, 4):
        arguments.update(leaves=len(mean), levels=len(layers))
    classes = next((given[name][0] for name in _HEADS if name in given), 0)
    if classes != 1000:
        arguments["num_classes"] = classes
    name = _backbone_of(given, classes, backbone)
    if name in BACKBONES:
        return f"himapper_{name}", arguments
    return "himapper", {"backbone": name, **arguments}


def _backbone_of(given: Mapping[str, torch.Size], classes: int, backbone: str | None) -> str:
    """The backbone with weights of these names and shapes; only ``backbone`` if it is given."""
    if backbone is not None:
        if not timm.is_model(backbone):
            raise HypvisionError(f"timm has no backbone '{backbone}'.")
        if given == _shapes(backbone, classes):
            return backbone
        raise HypvisionError(f"The backbone in the file is not {backbone}: names or shapes differ.")
    distilled = [f"deit_{size}_distilled_patch16_224" for size in ("tiny", "small", "base")]
    for name in (*BACKBONES, *distilled):
        if given != _shapes(name, classes):
            continue
        other = _SAME_SHAPES.get(name)
        if other is None:
            return name
        raise HypvisionError(
            f"The weights of {name} and {other} have the same shapes and other results. Say which "
            f"one the checkpoint was trained with: --backbone {name} or --backbone {other}."
        )
    raise HypvisionError(
        "The backbone in the file is none of those that Hi-Mapper was published with "
        f"({', '.join(BACKBONES)}); its weights begin with {', '.join(list(given)[:3])}. Create "
        "timm.create_model('himapper', backbone=NAME) and load them there."
    )


def _shapes(name: str, classes: int) -> dict[str, torch.Size]:
    own = timm.create_model(name, device="meta", num_classes=classes).state_dict()
    return {key: value.shape for key, value in own.items()}


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """The weights in a checkpoint under the names of a :class:`~hypvision.models.HiMapper`.

    Accepts official checkpoints, those of ``hypvision train``, the zoo's small files, and weights
    of the backbone alone (the mapper and, for another number of classes, the head then keep their
    values).

    Raises:
        HypvisionError: the checkpoint is of another lift than the model's, which has other weights.
    """
    weights = network_weights(state_dict)
    own = model.state_dict()
    if is_official_himapper(weights):
        weights = himapper_from_official(weights)
    elif not weights.keys() <= own.keys() and not any(
        name.startswith(("trunk.", "mapper.")) for name in weights
    ):
        weights = _with_mapper(weights, model)
    _check_lift(weights, own)
    # weights that models without classifier lack
    weights = {
        **{name: v for name, v in own.items() if name.startswith("mapper.dense.")},
        **weights,
    }
    parts = ("mapper.", "mapper.dense.", "mapper.encoder.")
    absent = tuple(part for part in parts if not any(name.startswith(part) for name in own))
    return {name: value for name, value in weights.items() if not name.startswith(absent)}


def _with_mapper(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The weights of a backbone alone, with the model's own for all that they lack."""
    weights = {f"trunk.{name}": value for name, value in weights.items()}
    own = model.state_dict()
    heads = head_names(model)
    other = {n for n in heads if n in weights and weights[n].shape != own[n].shape}
    kept = {n: v for n, v in own.items() if not n.startswith("trunk.") or n in heads}
    # Older files lack the counters of batches.
    kept |= {n: v for n, v in own.items() if n.endswith(".num_batches_tracked")}
    return {**kept, **{n: v for n, v in weights.items() if n not in other}}


def _check_lift(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise an error if the weights are of another lift than the model's ``own``."""
    if not all("mapper.lift.weight" in part for part in (weights, own)):
        return
    given, expected = (
        "exp0" if "mapper.lift.scale" in part else "official" for part in (weights, own)
    )
    if given != expected:
        preset = "official" if given == "official" else "proper"
        raise HypvisionError(
            f"The checkpoint is of a Hi-Mapper with lift='{given}', the model has '{expected}'. "
            f"Create it with preset='{preset}', or with lift='{given}'."
        )
