"""Official checkpoints to hypvision's state dicts, and back.

A converter is a pair of functions of state dicts (names to tensors), ``NAME_from_official`` and ``NAME_to_official``,
and ``NAME_variant``, which tells the model that converted weights belong to. :func:`convert_file` applies them to a
file; ``hypvision convert --from NAME IN OUT`` is its command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hypvision.clip.segmentation.official import (
    catseg_to_official,
    hyperclip_to_official,
    is_official_catseg,
    is_official_hyperclip,
    segmenter_from_official,
    segmenter_variant,
)
from hypvision.errors import HypvisionError
from hypvision.files import check_output, protecting, replacing
from hypvision.zoo.hyperboliccv import (
    hyperboliccv_from_official,
    hyperboliccv_to_official,
    hyperboliccv_variant,
    is_official_hyperboliccv,
)
from hypvision.zoo.trained import network_weights, read_checkpoint

__all__ = [
    "CONVERTERS",
    "Conversion",
    "Converter",
    "convert_file",
    "hcformer_arguments",
    "hcformer_from_official",
    "hcformer_to_official",
    "hcformer_variant",
    "himapper_from_official",
    "himapper_to_official",
    "himapper_variant",
    "is_official_hcformer",
    "is_official_himapper",
]

# Official name -> ours, inside a block. Values: (our name, True where a 1x1 convolution becomes a linear map).
_HCFORMER_BLOCK = {
    "norm1.weight": ("norm1.weight", False),
    "norm1.bias": ("norm1.bias", False),
    "token_mixer.f.weight": ("mixer.feature.weight", True),
    "token_mixer.f.bias": ("mixer.feature.bias", False),
    "token_mixer.v.weight": ("mixer.value.weight", True),
    "token_mixer.v.bias": ("mixer.value.bias", False),
    "token_mixer.proj.weight": ("mixer.proj.weight", True),
    "token_mixer.proj.bias": ("mixer.proj.bias", False),
    "token_mixer.sim_alpha": ("mixer.alpha", False),
    "token_mixer.sim_alpha2": ("mixer.window_alpha", False),
    "token_mixer.relative_position_bias": ("mixer.bias", False),
    "token_mixer.relative_position_bias2": ("mixer.window_bias", False),
    "norm2.weight": ("norm2.weight", False),
    "norm2.bias": ("norm2.bias", False),
    "mlp.fc1.weight": ("mlp.fc1.weight", False),
    "mlp.fc1.bias": ("mlp.fc1.bias", False),
    "mlp.fc2.weight": ("mlp.fc2.weight", False),
    "mlp.fc2.bias": ("mlp.fc2.bias", False),
    "layer_scale_1": ("layer_scale1", False),
    "layer_scale_2": ("layer_scale2", False),
}
_HCFORMER_BLOCK_BACK = {ours: (official, conv) for official, (ours, conv) in _HCFORMER_BLOCK.items()}


def is_official_hcformer(state_dict: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of the official HCFormer code."""
    return "patch_embed.proj.weight" in state_dict and any(".token_mixer." in name for name in state_dict)


def hcformer_from_official(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of :class:`hypvision.models.HCFormer` from an official one (classification or dense).

    Raises:
        HypvisionError: a name is not one of the official code's.
    """
    out: dict[str, Tensor] = {}
    for name, value in state_dict.items():
        if name.startswith("patch_embed.proj."):
            out["stem." + name.rpartition(".")[2]] = value
        elif match := re.fullmatch(r"network\.(\d)\.proj\.(weight|bias)", name):
            out[f"stages.{(int(match[1]) + 1) // 2}.downsample.{match[2]}"] = value
        elif match := re.fullmatch(r"network\.(\d)\.(\d+)\.(.+)", name):
            if match[3] == "token_mixer.manifold.k":
                continue  # geoopt's copy of 1 / curvature: an argument of ours, see hcformer_arguments
            if match[3] not in _HCFORMER_BLOCK:
                raise HypvisionError(_unknown(name, "HCFormer"))
            ours, conv = _HCFORMER_BLOCK[match[3]]
            if ours in ("mixer.alpha", "mixer.window_alpha"):
                value = value.reshape(1)
            out[f"stages.{int(match[1]) // 2}.blocks.{match[2]}.{ours}"] = value.flatten(1) if conv else value
        elif match := re.fullmatch(r"norm([0246])\.(weight|bias)", name):
            out[f"feature_norms.{int(match[1]) // 2}.{match[2]}"] = value
        elif re.fullmatch(r"(norm|head)\.(weight|bias)", name):
            out[name] = value
        else:
            raise HypvisionError(_unknown(name, "HCFormer"))
    return out


def hcformer_arguments(state_dict: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of our model that only the official names tell: ``curvature``, where it is not 1.

    The official code keeps ``k = 1 / curvature`` in a buffer of each mixer with a window level.

    Raises:
        HypvisionError: the mixers have different curvatures, or one that no hyperboloid has.
    """
    found = {
        name: value.double().flatten().tolist()
        for name, value in state_dict.items()
        if name.endswith(".token_mixer.manifold.k")
    }
    values = sorted({value for each in found.values() for value in each})
    if not values:
        return {}
    if len(values) > 1 or not 0 < values[0] < math.inf:
        raise HypvisionError(
            f"The checkpoint has the values {', '.join(f'{value:g}' for value in values)} of manifold.k. Expected one "
            "positive value, the same in all mixers: our HCFormer has one curvature, 1 / k."
        )
    curvature = float(f"{1 / values[0]:.6g}")  # k went through float32: no digits that it does not have
    return {} if curvature == 1 else {"curvature": curvature}


def hcformer_to_official(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`hcformer_from_official`, without geoopt's ``manifold.k`` buffers.

    Raises:
        HypvisionError: a name is not one of HCFormer's (the optional mixer norm has no official counterpart).
    """
    out: dict[str, Tensor] = {}
    for name, value in state_dict.items():
        name = name.removeprefix("model.")
        if name.startswith("stem."):
            out["patch_embed.proj." + name[5:]] = value
        elif match := re.fullmatch(r"stages\.(\d)\.downsample\.(weight|bias)", name):
            out[f"network.{2 * int(match[1]) - 1}.proj.{match[2]}"] = value
        elif (match := re.fullmatch(r"stages\.(\d)\.blocks\.(\d+)\.(.+)", name)) and match[3] in _HCFORMER_BLOCK_BACK:
            official, conv = _HCFORMER_BLOCK_BACK[match[3]]
            out[f"network.{2 * int(match[1])}.{match[2]}.{official}"] = value[..., None, None] if conv else value
        elif match := re.fullmatch(r"feature_norms\.(\d)\.(weight|bias)", name):
            out[f"norm{2 * int(match[1])}.{match[2]}"] = value
        elif re.fullmatch(r"(norm|head)\.(weight|bias)", name):
            out[name] = value
        else:
            raise HypvisionError(_unknown(name, "hypvision HCFormer"))
    return out


def _unknown(name: str, family: str) -> str:
    return (
        f"The checkpoint has an entry '{name}', which no {family} checkpoint has. "
        "Check that the file belongs to this family and holds model weights only."
    )


def hcformer_variant(state_dict: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """The timm model that a state dict of :class:`hypvision.models.HCFormer` belongs to.

    Returns:
        Name of the model, and the arguments of ``timm.create_model`` by which it differs from the default:
        ``num_classes``, ``in_chans``, ``img_size`` and, for weights of the dense mode, ``features_only``.

    Raises:
        HypvisionError: the shapes are those of no variant.
    """
    import timm

    import hypvision.models  # noqa: F401 - registers them in timm

    stem, biases = state_dict.get("stem.weight"), state_dict.get("stages.0.blocks.0.mixer.bias")
    if stem is None or biases is None:
        raise HypvisionError(
            "The file holds only a part of an HCFormer: the weights of its stem or of its first stage are missing. "
            "Give a checkpoint of the whole model."
        )
    arguments: dict[str, Any] = {}
    if stem.shape[1] != 3:
        arguments["in_chans"] = stem.shape[1]
    img_size = biases.shape[-1] * stem.shape[-1]
    if img_size != 224:
        arguments["img_size"] = img_size
    head = state_dict.get("head.weight")
    dense = "feature_norms.0.weight" in state_dict
    if not dense and (head is None or head.shape[0] != 1000):
        arguments["num_classes"] = 0 if head is None else head.shape[0]
    for name in timm.list_models("hcformer_*"):
        own = timm.create_model(name, device="meta", feature_norms=dense, **arguments).state_dict()
        if dense:  # no classifier comes with it
            own = {key: value for key, value in own.items() if not key.startswith(("norm.", "head."))}
        given = {key: value.shape for key, value in state_dict.items()}
        if given == {key: value.shape for key, value in own.items()}:
            return name, {"features_only": True, **arguments} if dense else arguments
    blocks = [len({key.split(".")[3] for key in state_dict if key.startswith(f"stages.{i}.blocks.")}) for i in range(4)]
    raise HypvisionError(
        f"The shapes in the file are those of no known HCFormer: it has {blocks} blocks a stage and {stem.shape[0]} "
        f"channels in the first. Known are {', '.join(timm.list_models('hcformer_*'))}."
    )


# Official prefix -> ours; names of the backbone stand without a prefix there.
_HIMAPPER_PARTS = {
    "last_l.node_mean": "mapper.tree.mean",
    "last_l.node_log_sigma": "mapper.tree.log_variance",
    "last_l.Llinear.weight": "mapper.lift.weight",
    "last_l.Llinear.lorentz.k": "mapper.lift.manifold.log_c",
    "last_l.Etransformer.decoder.0.": "mapper.decomposer.layer.",
    "last_l.Etransformer.": "mapper.decomposer.",
    "mix_l.decoder.": "mapper.encoder.layers.",
    "mix_l.": "mapper.encoder.",
}
_HIMAPPER_MLP = (("mlp.0.", "fc1."), ("mlp.3.", "fc2."))


def is_official_himapper(state_dict: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of the official Hi-Mapper code."""
    return "last_l.node_mean" in state_dict


def himapper_from_official(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State dict of :class:`hypvision.models.HiMapper` (``preset="official"``) from an official one.

    Backbones of old timm are brought to the names of today: Swin's down-sampling, its head and its constant buffers.
    """
    out: dict[str, Tensor] = {}
    old_swin = "layers.0.downsample.reduction.weight" in state_dict
    for name, value in state_dict.items():
        if name == "last_l.Llinear.bias":
            continue  # there in some checkpoints, used in none
        part = next((part for part in _HIMAPPER_PARTS if name.startswith(part)), None)
        if part is not None:
            rest = name[len(part) :]
            for official, ours in _HIMAPPER_MLP:
                rest = rest.replace(official, ours)
            out[_HIMAPPER_PARTS[part] + rest] = value
        elif name.startswith(("last_l.", "mix_l.")):
            raise HypvisionError(_unknown(name, "Hi-Mapper"))
        elif old_swin and name.endswith(("relative_position_index", "attn_mask")):
            continue
        elif old_swin and (match := re.fullmatch(r"layers\.(\d)\.downsample\.(.+)", name)):
            out[f"trunk.layers.{int(match[1]) + 1}.downsample.{match[2]}"] = value
        elif old_swin and name in ("head.weight", "head.bias"):
            out["trunk.head.fc." + name[5:]] = value
        else:
            out["trunk." + name] = value
    return out


def himapper_to_official(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`himapper_from_official`, with the backbone's names of today's timm.

    Raises:
        HypvisionError: a name is not one of Hi-Mapper's, or has no official counterpart (the scale of the lift
            ``"exp0"``, the encoder of dense maps).
    """
    out: dict[str, Tensor] = {}
    for name, value in state_dict.items():
        if name.startswith("trunk."):
            out[name.removeprefix("trunk.")] = value
            continue
        if name == "mapper.lift.scale":
            raise HypvisionError(
                "The checkpoint has a scale of the lift, which the official code does not know: it was trained with "
                "lift='exp0'. Only models with preset='official' convert back."
            )
        back = {ours: official for official, ours in _HIMAPPER_PARTS.items()}
        part = next((part for part in sorted(back, key=len, reverse=True) if name.startswith(part)), None)
        if part is None:
            raise HypvisionError(_unknown(name, "hypvision Hi-Mapper"))
        rest = name[len(part) :]
        for official, ours in _HIMAPPER_MLP:
            rest = rest.replace(ours, official)
        out[back[part] + rest] = value
    return out


def himapper_variant(state_dict: Mapping[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """The timm model that a state dict of :class:`hypvision.models.HiMapper` belongs to.

    Returns:
        Name of the model, and the arguments of ``timm.create_model``: ``preset``, and where they differ from the
        default ``num_classes``, ``leaves``, ``levels`` and ``backbone``.

    Raises:
        HypvisionError: a part is missing, or the backbone is none of the paper's.
    """
    import timm

    from hypvision.models.himapper import BACKBONES

    mean = state_dict.get("mapper.tree.mean")
    layers = {name.split(".")[3] for name in state_dict if name.startswith("mapper.encoder.layers.")}
    if mean is None or not layers or not any(name.startswith("trunk.") for name in state_dict):
        raise HypvisionError(
            "The file holds only a part of a Hi-Mapper: its tree, its encoder or its backbone is missing. Give a "
            "checkpoint of the whole model."
        )
    arguments: dict[str, Any] = {} if "mapper.lift.scale" in state_dict else {"preset": "official"}
    if (len(mean), len(layers)) != (32, 4):
        arguments.update(leaves=len(mean), levels=len(layers))
    given = {name.removeprefix("trunk."): v.shape for name, v in state_dict.items() if name.startswith("trunk.")}
    heads = [shape[0] for name, shape in given.items() if name in ("head.weight", "head.fc.weight", "fc.weight",
                                                                  "classifier.weight")]  # fmt: skip
    classes = heads[0] if heads else 0
    if classes != 1000:
        arguments["num_classes"] = classes
    distilled = [f"deit_{size}_distilled_patch16_224" for size in ("tiny", "small", "base")]
    for backbone in (*BACKBONES, *distilled):
        own = timm.create_model(backbone, device="meta", num_classes=classes).state_dict()
        if given == {name: value.shape for name, value in own.items()}:
            if backbone in BACKBONES:
                return f"himapper_{backbone}", arguments
            return "himapper", {"backbone": backbone, **arguments}
    raise HypvisionError(
        f"The backbone in the file is none of those that Hi-Mapper was published with ({', '.join(BACKBONES)}); its "
        f"weights begin with {', '.join(list(given)[:3])}. Create "
        "timm.create_model('himapper', backbone=NAME) and load them there."
    )


class Converter(NamedTuple):
    """The functions of one family of models."""

    title: str
    is_official: Callable[[Mapping[str, Tensor]], bool]
    from_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    to_official: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    variant: Callable[[Mapping[str, Tensor]], tuple[str, dict[str, Any]]]
    # Further arguments of our model, which only the official state dict tells.
    arguments: Callable[[Mapping[str, Tensor]], dict[str, Any]] = lambda state_dict: {}


# Name on the command line -> its functions.
CONVERTERS = {
    "hcformer": Converter(
        "HCFormer",
        is_official_hcformer,
        hcformer_from_official,
        hcformer_to_official,
        hcformer_variant,
        hcformer_arguments,
    ),
    "himapper": Converter(
        "Hi-Mapper", is_official_himapper, himapper_from_official, himapper_to_official, himapper_variant
    ),
    "hyperboliccv": Converter(
        "HyperbolicCV ResNet",
        is_official_hyperboliccv,
        hyperboliccv_from_official,
        hyperboliccv_to_official,
        hyperboliccv_variant,
    ),
    "hyperclip": Converter(
        "HyperCLIP segmenter", is_official_hyperclip, segmenter_from_official, hyperclip_to_official, segmenter_variant
    ),
    "catseg": Converter(
        "CAT-Seg segmenter", is_official_catseg, segmenter_from_official, catseg_to_official, segmenter_variant
    ),
}


class Conversion(NamedTuple):
    """What :func:`convert_file` wrote: the file, the timm model it is for and the arguments to create that with."""

    path: Path
    model: str
    arguments: dict[str, Any]

    def usage(self) -> str:
        """The expression (for a segmenter: the command) that uses weights of hypvision's names."""
        if self.model.startswith(("hyperclip-", "catseg-")):
            return f"hypvision test configs/hyperclip/{self.model}_4xb1-80k_coco-stuff164k.py {self.path}"
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f'timm.create_model("{self.model}"{arguments}, checkpoint_path="{self.path}")'

    def note(self) -> str:
        """What the user has to know beside that, because no checkpoint says it; empty where there is nothing."""
        if not self.model.startswith("hecnn_"):
            return ""
        return (
            "The radius at which a hybrid clips its features is not in the checkpoint. As published it is "
            "clip=1.0 (the default) for CIFAR, clip=4.0 for Tiny-ImageNet: add that to the arguments."
        )


def convert_file(family: str, source: str | Path, target: str | Path, to_official: bool = False) -> Conversion:
    """Convert a checkpoint file from the official names to hypvision's, or back.

    Args:
        family: a key of :data:`CONVERTERS`.
        source: ``.safetensors``, or ``.pth`` (``.pt``, ...) as PyTorch writes it; the weights may be inside
            ``state_dict`` or ``model``, beside the rest that a training saves. Nothing in it is run.
        target: ``.safetensors``, ``.pth`` or ``.pt``. It is written under another name and moved into place, so that
            an interruption leaves no half of a file.
        to_official: convert from hypvision's names to the official ones.

    Returns:
        What was written, and which model it is.

    Raises:
        HypvisionError: no such family or file, an unreadable one, one of another model, or a target that cannot be
            written.
    """
    if family not in CONVERTERS:
        raise HypvisionError(f"There is no converter '{family}'. Known: {', '.join(CONVERTERS)}.")
    converter, source, target = CONVERTERS[family], Path(source).expanduser(), Path(target).expanduser()
    if target.suffix not in (".safetensors", ".pth", ".pt"):
        raise HypvisionError(f"The output '{target}' must end in .safetensors or .pth.")
    with protecting(source):
        check_output(target)
    weights = _read(source)
    official = converter.is_official(weights)
    if official == to_official:
        expected = f"hypvision {converter.title}" if to_official else f"official {converter.title}"
        hint = ""
        if official:
            hint = " It has official names already."
        elif any(".mixer." in name or name.startswith("mapper.") for name in weights):
            hint = " It has hypvision's names already: nothing is to be done, or --to-official was meant."
        raise HypvisionError(
            f"'{source}' is not a checkpoint of an {expected}: it has entries such as "
            f"{', '.join(list(weights)[:3]) or 'none'}.{hint}"
        )
    converted = converter.to_official(weights) if to_official else converter.from_official(weights)
    model, arguments = converter.variant(converter.from_official(converted) if to_official else converted)
    if not to_official:
        arguments = {**arguments, **converter.arguments(weights)}
    _write({name: value.contiguous() for name, value in converted.items()}, target)
    return Conversion(target, model, arguments)


def _read(path: Path) -> dict[str, Tensor]:
    """The weights in a file, see :mod:`hypvision.zoo.trained`."""
    return network_weights(read_checkpoint(path))


def _write(weights: dict[str, Tensor], path: Path) -> None:
    with replacing(path) as temporary:
        if path.suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file(weights, temporary, metadata={"format": "pt"})
        else:
            torch.save(weights, temporary)
