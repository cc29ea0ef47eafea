"""LoRA of the library peft, merged into the weights that it was trained on.

A LoRA (Hu et al., 2022) adds ``s B A`` to a matrix, ``s = lora_alpha / r`` (with ``use_rslora``
``lora_alpha / sqrt(r)``, Kalajdzievski 2023).
peft writes a folder: ``adapter_config.json`` has ``lora_alpha``, and ``adapter_model.safetensors``
(or ``.bin``) ``A``, ``B`` and the weights that were trained whole: ``modules_to_save``, biases.

>>> merge_lora(model, "runs/lora")                       # any model, in place
>>> create_clip("ViT-B-16", "openai", lora="runs/lora")  # also one trained on transformers' CLIP
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hypvision.checkpoints.read import network_weights, read_file
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.checkpoints.wrappers import common_prefix
from hypvision.io.errors import HypvisionError
from hypvision.io.records import read_record
from hypvision.io.types import StrPath

CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_MODULE = re.compile(
    r"(?:base_model\.model\.)?(.+)\.lora_(A|B|embedding_A|embedding_B)(?:\.(?:default\.)?weight)?"
)


class _Config(NamedTuple):
    """What of ``adapter_config.json`` counts for the weights."""

    peft_type: str
    r: int
    lora_alpha: float
    fan_in_fan_out: bool = False
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}

    def scale(self, module: str, rank: int) -> float:
        """``s`` of a module, which a pattern may name by the end of its name."""
        own = (
            value
            for pattern, value in self.alpha_pattern.items()
            if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module)
        )
        alpha = next(own, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def merge_lora(model: nn.Module, folder: StrPath) -> nn.Module:
    """Put a LoRA into the weights of the model that it was trained on, in place.

    Raises:
        HypvisionError: see :func:`merged`.
    """
    weights = merged(model.state_dict(), folder)
    model.load_state_dict(weights)
    return model


def merged(weights: Weights, folder: StrPath) -> StateDict:
    """A state dict with a LoRA in its weights.

    Args:
        weights: of the model that the LoRA was trained on, by the names that it had there.
        folder: of peft.

    Raises:
        HypvisionError: the folder is not complete; it is another method of peft (DoRA, IA3, ...);
            or a weight of it has no place in ``weights``.
    """
    folder = Path(folder).expanduser()
    config = _read_config(folder)
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        raise HypvisionError(f"The LoRA '{folder}' has no {' or '.join(_FILES)}. Copy it again.")
    given = network_weights(read_file(path), part=None)
    pairs: dict[str, StateDict] = {}
    whole: StateDict = {}
    for name, value in given.items():
        match = _MODULE.fullmatch(name)
        if match:
            pairs.setdefault(_base(match[1]), {})[match[2]] = value
        else:
            whole[_base(name.removeprefix("base_model.model."))] = value
    targets = {module: f"{module}.weight" for module in pairs}
    prefix = common_prefix(weights, [*targets.values(), *whole])
    found = dict(weights)
    for name, value in whole.items():
        found[_known(name[len(prefix) :], weights, value.shape, folder)] = value
    for module, parts in pairs.items():
        change = _change(parts, config, module, folder)
        name = module[len(prefix) :]
        # attention of PyTorch keeps its three matrices as one parameter
        packed = f"{name}.in_proj_weight"
        name = packed if packed in weights else f"{name}.weight"
        _known(name, weights, change.shape, folder)
        found[name] = (weights[name].float() + change).to(weights[name].dtype)
    return found


def _read_config(folder: Path) -> _Config:
    advice = "Save the adapter again by save_pretrained() of peft."
    config: _Config = read_record(_Config, folder / CONFIG, advice, extra=True)
    if config.peft_type != "LORA" or config.use_dora:
        kind = "DoRA" if config.use_dora else config.peft_type
        raise HypvisionError(
            f"The adapter '{folder}' is a {kind}, and only LoRA is merged here. Merge it by peft: "
            "merge_and_unload(), and save that model."
        )
    return config


def _base(name: str) -> str:
    """The name of a module or weight in the model without peft's modules around it."""
    name = name.replace(".base_layer", "")
    return re.sub(r"\.modules_to_save(?:\.default)?", "", name)


def _change(parts: Weights, config: _Config, module: str, folder: Path) -> Tensor:
    """``s B A`` of a module, in the shape of its weight."""
    is_table = "embedding_A" in parts
    a, b = (parts.get(f"embedding_{side}" if is_table else side) for side in "AB")
    if a is None or b is None or a.shape[0] != b.shape[1]:
        raise HypvisionError(f"The LoRA '{folder}' lacks a part of '{module}'. Copy it again.")
    a = a.float()
    b = b.float()
    change = config.scale(module, len(a)) * (b.flatten(1) @ a.flatten(1))
    if a.dim() == 4:  # of a convolution: (rank, in, height, width) and (out, rank, 1, 1)
        return change.reshape(len(b), *a.shape[1:])
    return change.T if is_table or config.fan_in_fan_out else change


def _known(name: str, weights: Weights, shape: torch.Size, folder: Path) -> str:
    """The name of a weight, which the model must have in this shape."""
    if name not in weights or weights[name].shape != shape:
        there = tuple(weights[name].shape) if name in weights else "no such weight"
        raise HypvisionError(
            f"The LoRA '{folder}' does not fit the model: it changes '{name}' of the shape "
            f"{tuple(shape)}, where the model has {there}. Give the model that it was trained on."
        )
    return name
