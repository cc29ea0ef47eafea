"""Official checkpoints to hypvision's state dicts, and back.

A converter is a pair of functions of state dicts (names to tensors): ``NAME_from_official`` and ``NAME_to_official``.
``tools/convert_checkpoint.py --from NAME IN OUT`` is their command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from hypvision.errors import HypvisionError

__all__ = ["CONVERTERS", "hcformer_from_official", "hcformer_to_official", "is_official_hcformer"]

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
                continue  # geoopt's copy of 1 / curvature: an argument of ours
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


# Name on the command line -> (from official, to official).
CONVERTERS = {"hcformer": (hcformer_from_official, hcformer_to_official)}
