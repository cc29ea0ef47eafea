"""Checkpoints of HCFormers: translation between official names and ours, and the model to which a
checkpoint belongs."""

from __future__ import annotations

import math
import re

import timm
import torch
import torch.nn.functional as F
from torch import nn

from hypvision.checkpoints.match import translated, unknown_name
from hypvision.checkpoints.read import network_weights
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.io import HypvisionError, Plain, Values, more_than
from hypvision.nn import ClusterMixer

# The name of a block's weight in the official code, and its name here.
_BLOCK = {
    "norm1.{rest}": "norm1.{rest}",
    "token_mixer.f.{rest}": "mixer.feature.{rest}",
    "token_mixer.v.{rest}": "mixer.value.{rest}",
    "token_mixer.proj.{rest}": "mixer.proj.{rest}",
    "token_mixer.sim_alpha": "mixer.alpha",
    "token_mixer.sim_alpha2": "mixer.window_alpha",
    "token_mixer.relative_position_bias": "mixer.bias",
    "token_mixer.relative_position_bias2": "mixer.window_bias",
    "norm2.{rest}": "norm2.{rest}",
    "mlp.fc1.{rest}": "mlp.fc1.{rest}",
    "mlp.fc2.{rest}": "mlp.fc2.{rest}",
    "layer_scale_1": "layer_scale1",
    "layer_scale_2": "layer_scale2",
}
# Pairs of an official name and ours, see translated(). The official code counts stages and
# down-sampling layers together.
_NAMES = [(f"{name}.{{rest}}", f"{name}.{{rest}}") for name in ("norm", "head")]
_NAMES.append(("patch_embed.proj.{rest}", "stem.{rest}"))
for _stage in range(4):
    _NAMES += [
        (f"network.{2 * _stage}.{{n}}.{official}", f"stages.{_stage}.blocks.{{n}}.{ours}")
        for official, ours in _BLOCK.items()
    ]
    _NAMES.append(
        (f"network.{2 * _stage - 1}.proj.{{rest}}", f"stages.{_stage}.downsample.{{rest}}")
    )
    _NAMES.append((f"norm{2 * _stage}.{{rest}}", f"feature_norms.{_stage}.{{rest}}"))
# A 1x1 convolution of the official mixer is a linear map of ours.
_CONVOLUTION = re.compile(r"\.mixer\.(feature|value|proj)\.weight$")


def is_official_hcformer(state_dict: Weights) -> bool:
    """Return whether the names of a state dict are those of the official HCFormer code."""
    return "patch_embed.proj.weight" in state_dict and any(
        ".token_mixer." in name for name in state_dict
    )


def hcformer_from_official(state_dict: Weights) -> StateDict:
    """Return the state dict of :class:`hypvision.models.HCFormer` for an official one, also one of
    the dense mode."""
    out: StateDict = {}
    for name, value in state_dict.items():
        if name.endswith(".token_mixer.manifold.k"):
            continue  # the value 1 / curvature, which hcformer_arguments reads
        ours = translated(name, _NAMES)
        if ours is None:
            raise HypvisionError(unknown_name(name, "HCFormer"))
        if ours.endswith(("mixer.alpha", "mixer.window_alpha")):
            value = value.reshape(1)
        out[ours] = value.flatten(1) if _CONVOLUTION.search(ours) else value
    return out


def hcformer_arguments(state_dict: Weights) -> Plain:
    """Return the arguments of our model that can be read from official weights alone:
    ``curvature``, if it is not 1.

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
            f"The checkpoint has the values {', '.join(f'{value:g}' for value in values)} of "
            "manifold.k. Expected one positive value, the same in all mixers: our HCFormer has one "
            "curvature, 1 / k."
        )
    curvature = float(f"{1 / values[0]:.6g}")  # k is float32, so only about 7 digits are right
    return {} if curvature == 1 else {"curvature": curvature}


# The options of our model that the official network lacks, by a pattern of the names of their
# weights.
_OWN_OPTIONS = {
    r"stem\.0\.(weight|bias)$": 'stem="conv"',
    r"stem\.0\.conv\.": 'stem="residual"',
    r"\.local\.": "local_conv=True",
    r"\.mixer\.locality$": "locality",
    r"\.mixer\.norm\.": "mixer_norm=True",
}


def hcformer_to_official(state_dict: Weights, curvature: float = 1.0) -> StateDict:
    """Return the official state dict for one of ours, the inverse of
    :func:`hcformer_from_official`, as the official code loads it strictly.

    Args:
        state_dict: the state dict of :class:`hypvision.models.HCFormer`.
        curvature: the curvature of the model, which its weights do not contain; official mixers
            with a window level keep ``k = 1 / curvature``.

    Raises:
        HypvisionError: a name is not one of HCFormer's, or belongs to an option without an official
            counterpart; or the curvature is not positive.
    """
    own = [
        option
        for part, option in _OWN_OPTIONS.items()
        if any(re.search(part, name) for name in state_dict)
    ]
    if own:
        raise HypvisionError(
            f"The weights are of an HCFormer with {', '.join(own)}, which the official code does "
            "not have: there is no official form of them. hypvision loads them as they are."
        )
    more_than(0, curvature=curvature)
    out: StateDict = {}
    for name, value in state_dict.items():
        official = translated(name.removeprefix("model."), _NAMES, back=True)
        if official is None:
            raise HypvisionError(unknown_name(name, "hypvision HCFormer"))
        out[official] = value[..., None, None] if _CONVOLUTION.search(name) else value
        if official.endswith(".sim_alpha2"):
            out[official.replace("sim_alpha2", "manifold.k")] = torch.tensor(
                1 / curvature, dtype=torch.float32
            )
    return out


def hcformer_variant(state_dict: Weights) -> tuple[str, Plain]:
    """Return the timm model to which a state dict of :class:`hypvision.models.HCFormer` belongs.

    Returns:
        The name of the model, and the arguments of ``timm.create_model`` in which it differs from
        the default: ``num_classes``, ``in_chans``, ``img_size`` and, for weights of the dense mode,
        ``features_only``.
    """
    stem = state_dict.get("stem.weight")
    biases = state_dict.get("stages.0.blocks.0.mixer.bias")
    if stem is None or biases is None:
        raise HypvisionError(
            "The file holds only a part of an HCFormer: the weights of its stem or of its first "
            "stage are missing. Give a checkpoint of the whole model."
        )
    head = state_dict.get("head.weight")
    dense = "feature_norms.0.weight" in state_dict
    found = dict(
        in_chans=stem.shape[1],
        img_size=biases.shape[-1] * stem.shape[-1],
        num_classes=0 if head is None else head.shape[0],
    )
    usual = dict(in_chans=3, img_size=224, num_classes=found["num_classes"] if dense else 1000)
    arguments: Plain = {key: value for key, value in found.items() if value != usual[key]}
    given = _shapes(state_dict, ())
    unused = ("norm.", "head.") if dense else ()  # dense models have no classifier
    for name in timm.list_models("hcformer_*"):
        own = timm.create_model(name, device="meta", feature_norms=dense, **arguments)
        if given == _shapes(own.state_dict(), unused):
            return name, {"features_only": True, **arguments} if dense else arguments
    raise HypvisionError(
        f"The shapes in the file are those of no known HCFormer: it has {_depths(state_dict)} "
        f"blocks per stage and {stem.shape[0]} channels in the first stage. Known are "
        f"{', '.join(timm.list_models('hcformer_*'))}."
    )


def _shapes(weights: Weights, unused: tuple[str, ...]) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in weights.items() if not key.startswith(unused)}


def _depths(weights: Weights) -> list[int]:
    """Return the number of blocks of each of the four stages."""
    found = re.findall(r"^stages\.(\d)\.blocks\.(\d+)\.", "\n".join(weights), re.MULTILINE)
    stages = [stage for stage, _ in set(found)]
    return [stages.count(str(stage)) for stage in range(4)]


def _check_curvature(curvature: float, model: nn.Module) -> None:
    for mixer in model.modules():
        if isinstance(mixer, ClusterMixer) and mixer.curvature != curvature:
            raise HypvisionError(
                f"The official checkpoint was trained with curvature {curvature:g}, but the model "
                f"has {mixer.curvature:g}. Create it with curvature={curvature:g}."
            )


def checkpoint_filter_fn(state_dict: Values, model: nn.Module) -> StateDict:
    """Return the weights in a checkpoint by the names of an :class:`~hypvision.models.HCFormer`.

    Accepts official checkpoints, those of ``hypvision train`` (where the network is ``backbone``),
    the zoo's small files, and position biases of another nominal size (resized bilinearly).

    Raises:
        HypvisionError: an official checkpoint has another curvature than the model.
    """
    weights = network_weights(state_dict)
    if is_official_hcformer(weights):
        _check_curvature(hcformer_arguments(weights).get("curvature", 1.0), model)
        weights = hcformer_from_official(weights)
    own = model.state_dict()
    for name in weights.keys() & own.keys():
        value = weights[name]
        size = own[name].shape[-2:]
        if name.endswith("mixer.bias") and value.shape[-2:] != size:
            resized = F.interpolate(value.float(), size, mode="bilinear", align_corners=True)
            weights[name] = resized.to(value.dtype)
    # Dense models have a norm for each stage; the one of the last stage corresponds to the norm
    # before the classifier.
    norms = sorted(name for name in weights if name.startswith("feature_norms."))
    if norms and "norm.weight" in own:
        for name in norms[-2:]:
            weights.setdefault(f"norm.{name[16:]}", weights[name])
    return weights
