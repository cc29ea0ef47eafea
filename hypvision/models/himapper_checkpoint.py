"""Checkpoints of Hi-Mappers: translation between official names and ours, and the model to which a
checkpoint belongs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import timm
import torch
from timm.models.swin_transformer import SwinTransformerBlock, get_relative_position_index
from torch import Tensor, nn

from hypvision.checkpoints.match import filtered, translated, unknown_name
from hypvision.checkpoints.read import network_weights
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import HypvisionError, Plain, Values

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
"""For each backbone with a name of its own in timm's registry, the tag of the weights it starts
from: the paper's seven backbones, and that of the weights in the zoo."""

# the names of a backbone's positions, whose shape follows the size of the images
_POSITIONS = re.compile(r"trunk\.(.*\.)?(pos_embed|relative_position_bias_table)")
# Pairs of an official name and ours, see translated(). In official files the names of the backbone
# have no prefix.
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


def is_official_himapper(state_dict: Weights) -> bool:
    """Return whether the names of a state dict are those of the official Hi-Mapper code."""
    return "last_l.node_mean" in state_dict


def himapper_from_official(state_dict: Weights) -> StateDict:
    """Return the state dict of :class:`hypvision.models.HiMapper` (``preset="official"``) for an
    official one.

    Names of the backbone in old versions of timm are changed to today's: Swin's down-sampling and
    its head. Swin's constant buffers are left out.
    """
    out: StateDict = {}
    trunk: StateDict = {}
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


def _from_old_swin(weights: Weights) -> StateDict:
    out: StateDict = {}
    for name, value in weights.items():
        downsample = re.fullmatch(r"layers\.(\d)\.(downsample\..+)", name)
        if downsample:
            out[f"layers.{int(downsample[1]) + 1}.{downsample[2]}"] = value
        elif not name.endswith(("relative_position_index", "attn_mask")):
            out[re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)] = value
        elif not _is_of_swin(value):
            raise HypvisionError(
                f"The checkpoint's '{name}' is not the one that timm computes for a Swin with "
                "square windows. Take an intact copy."
            )
    return out


def _is_of_swin(value: Tensor) -> bool:
    """Return whether a buffer of old Swins (relative positions in a window, or the mask of shifted
    windows) has the values that timm computes."""
    side = math.isqrt(value.shape[-1])
    if value.dim() == 2:
        return torch.equal(value.cpu(), get_relative_position_index(side, side))
    grid = math.isqrt(len(value)) * side
    block = SwinTransformerBlock(
        1, (grid, grid), num_heads=1, window_size=side, shift_size=side // 2
    )
    mask = block.get_attn_mask()
    return mask is not None and torch.equal(value.float().cpu(), mask)


def himapper_to_official(state_dict: Weights) -> StateDict:
    """Return the official state dict for one of ours, the inverse of
    :func:`himapper_from_official`; the backbone has the names of today's timm.

    Raises:
        HypvisionError: a name is not one of Hi-Mapper's, or has no official counterpart (the scale
            of the lift ``"exp0"``, the encoder of dense maps).
    """
    out: StateDict = {}
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


# the names of the classifier's weight in timm's backbones
_HEADS = ("head.weight", "head.fc.weight", "fc.weight", "classifier.weight")
# Pairs of backbones whose weights have the same shapes but which compute different results: those
# from TensorFlow pad asymmetrically and have another eps.
_SAME_SHAPES = {"efficientnet_b4": "tf_efficientnet_b4"}


def himapper_variant(state_dict: Weights, backbone: str | None = None) -> tuple[str, Plain]:
    """Return the timm model to which a state dict of :class:`hypvision.models.HiMapper` belongs.

    Args:
        state_dict: the state dict of the model.
        backbone: timm's name of the backbone, if the shapes do not determine it.

    Returns:
        The name of the model, and the arguments of ``timm.create_model``: ``preset``, and where
        they differ from the default ``num_classes``, ``leaves``, ``levels`` and ``backbone``.

    Raises:
        HypvisionError: a part is missing; the backbone is not one of the paper's, is not the given
            ``backbone``, or could be either of two.
    """
    mean = state_dict.get("mapper.tree.mean")
    layers = set(re.findall(r"^mapper\.encoder\.layers\.\d+", "\n".join(state_dict), re.M))
    given = {name[6:]: v.shape for name, v in state_dict.items() if name.startswith("trunk.")}
    if mean is None or not layers or not given:
        raise HypvisionError(
            "The file holds only a part of a Hi-Mapper: its tree, its encoder or its backbone is "
            "missing. Give a checkpoint of the whole model."
        )
    arguments: Plain = {} if "mapper.lift.scale" in state_dict else {"preset": "official"}
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
    """Return the name of the backbone whose weights have these names and shapes; only ``backbone``
    is tried if it is given."""
    if backbone is not None:
        if not timm.is_model(backbone):
            raise HypvisionError(
                f"timm has no backbone '{backbone}'. timm.list_models() lists all that it has."
            )
        if given == _shapes(backbone, classes):
            return backbone
        raise HypvisionError(
            f"The backbone in the file is not {backbone}: names or shapes differ. Give the one "
            "that the checkpoint was trained with."
        )
    distilled = [f"deit_{size}_distilled_patch16_224" for size in ("tiny", "small", "base")]
    for name in (*BACKBONES, *distilled):
        if given != _shapes(name, classes):
            continue
        other = _SAME_SHAPES.get(name)
        if other is None:
            return name
        raise HypvisionError(
            f"The weights of {name} and {other} have the same shapes, but the networks compute "
            "different results. Say which one the checkpoint was trained with: "
            f"--backbone {name} or --backbone {other}."
        )
    raise HypvisionError(
        "The backbone in the file is none of those that Hi-Mapper was published with "
        f"({', '.join(BACKBONES)}); its weights begin with {', '.join(list(given)[:3])}. Create "
        "timm.create_model('himapper', backbone=NAME) and load them there."
    )


def _shapes(name: str, classes: int) -> dict[str, torch.Size]:
    own = timm.create_model(name, device="meta", num_classes=classes).state_dict()
    return {key: value.shape for key, value in own.items()}


def checkpoint_filter_fn(state_dict: Values, model: nn.Module) -> StateDict:
    """Return the weights in a checkpoint by the names of a :class:`~hypvision.models.HiMapper`.

    Accepts official checkpoints, those of ``hypvision train``, the zoo's small files, and weights
    of the backbone alone, which lack the mapper; see :func:`start_filter_fn`. Positions of images
    of another size are resampled as timm does for the backbone.

    Raises:
        HypvisionError: the checkpoint was made with another ``lift`` than the model's, which has
            other weights.
    """
    weights = network_weights(state_dict)
    own = model.state_dict()
    if is_official_himapper(weights):
        weights = himapper_from_official(weights)
    elif _is_backbone_alone(weights, own):
        weights = {f"trunk.{name}": value for name, value in weights.items()}
    _check_lift(weights, own)
    if any(name.startswith("mapper.") for name in weights):
        # A classifier's checkpoint lacks the encoder of dense maps, which changes nothing in a new
        # model, because its last layer is 0.
        dense = {name: value for name, value in own.items() if name.startswith("mapper.dense.")}
        weights = {**dense, **weights}
    weights = _resampled(weights, model)
    parts = ("mapper.", "mapper.dense.", "mapper.encoder.")
    absent = tuple(part for part in parts if not any(name.startswith(part) for name in own))
    return {name: value for name, value in weights.items() if not name.startswith(absent)}


def _resampled(weights: StateDict, model: nn.Module) -> StateDict:
    """Return the weights, those of the backbone after timm's own filter if one of its positions has
    another shape than the model's."""
    own = model.state_dict()
    other = [
        name
        for name in weights.keys() & own.keys()
        if _POSITIONS.match(name) and weights[name].shape != own[name].shape
    ]
    if not other:
        return weights
    trunk = {name[6:]: value for name, value in weights.items() if name.startswith("trunk.")}
    try:
        fitted = filtered(model.get_submodule("trunk"), trunk)
    except RuntimeError as error:
        raise HypvisionError(
            f"The positions of the backbone ({', '.join(other)}) do not fit to the images' size: "
            "only those of square images are resampled. Give img_size as the file was trained "
            f"with. timm: {error}"
        ) from error
    rest = {name: value for name, value in weights.items() if not name.startswith("trunk.")}
    return rest | {f"trunk.{name}": value for name, value in fitted.items()}


def start_filter_fn(state_dict: Values, model: nn.Module) -> StateDict:
    """Return the weights that a training starts from, as :func:`checkpoint_filter_fn` does, and for
    the backbone alone the model's own values of what the file lacks: the mapper and, for another
    number of classes, the head."""
    found = checkpoint_filter_fn(state_dict, model)
    own = model.state_dict()
    weights = network_weights(state_dict)
    if is_official_himapper(weights) or not _is_backbone_alone(weights, own):
        return found
    heads = head_names(model)
    other = {name for name in heads & found.keys() if found[name].shape != own[name].shape}
    # Older files lack the counters of batches.
    kept = {
        name: value
        for name, value in own.items()
        if not name.startswith("trunk.") or name in heads or name.endswith(".num_batches_tracked")
    }
    return {**kept, **{name: value for name, value in found.items() if name not in other}}


def _is_backbone_alone(weights: Weights, own: Weights) -> bool:
    """Return whether the names of a file are those of the backbone in the model's weights ``own``:
    most of them, or most of the backbone's own, whose last levels may have been taken away."""
    trunk = {name.removeprefix("trunk.") for name in own if name.startswith("trunk.")}
    if any(name.startswith(("trunk.", "mapper.")) for name in weights):
        return False
    return 2 * len(trunk & weights.keys()) > min(len(weights), len(trunk))


def _check_lift(weights: Weights, own: Weights) -> None:
    """Raise HypvisionError if the weights were made with another ``lift`` than the model's weights
    ``own``."""
    if not all("mapper.lift.weight" in part for part in (weights, own)):
        return
    given, expected = (
        "exp0" if "mapper.lift.scale" in part else "official" for part in (weights, own)
    )
    if given != expected:
        preset = "official" if given == "official" else "proper"
        raise HypvisionError(
            f"The checkpoint is of a Hi-Mapper with lift='{given}', but the model has "
            f"'{expected}'. Create it with preset='{preset}', or with lift='{given}'."
        )
