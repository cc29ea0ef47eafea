"""Merge a LoRA of the library peft into the weights that it was trained on.

A LoRA (Hu et al., 2022) adds ``s B A`` to a matrix, with ``s = lora_alpha / r``, or with
``use_rslora`` ``s = lora_alpha / sqrt(r)`` (Kalajdzievski 2023). peft writes a folder:
``adapter_config.json`` has ``lora_alpha``, and ``adapter_model.safetensors`` (or ``.bin``) has
``A``, ``B`` and the weights that were trained in full: ``modules_to_save``, biases.

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

from hypvision.io import HypvisionError, StrPath
from hypvision.io.records import read_record

from .read import network_weights, read_file
from .types import StateDict, Weights
from .wrappers import common_prefix

CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_MODULE = re.compile(
    r"(?:base_model\.model\.)?(.+)\.lora_(A|B|embedding_A|embedding_B)(?:\.(?:default\.)?weight)?"
)


class _Config(NamedTuple):
    """The entries of ``adapter_config.json`` that matter for merging."""

    peft_type: str
    r: int
    lora_alpha: float
    fan_in_fan_out: bool = False
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}

    def scale(self, module: str, rank: int) -> float:
        """Return ``s`` for a module; a pattern in ``alpha_pattern`` matches the end of the module's
        name."""
        own = (
            value
            for pattern, value in self.alpha_pattern.items()
            if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module)
        )
        alpha = next(own, self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def merge_lora(model: nn.Module, folder: StrPath) -> nn.Module:
    """Merge a LoRA into the weights of the model that it was trained on, in place, and return the
    model.

    Raises:
        HypvisionError: as for :func:`merged`.
    """
    weights = merged(model.state_dict(), folder)
    model.load_state_dict(weights)
    return model


def merged(weights: Weights, folder: StrPath) -> StateDict:
    """Return a state dict with a LoRA merged into its weights.

    Args:
        weights: weights of the model that the LoRA was trained on, by their names in that model.
        folder: folder that peft has written.

    Raises:
        HypvisionError: a file is missing in the folder; the adapter is of another method (DoRA,
            IA3, ...); or one of its weights has no counterpart in ``weights``.
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
        # Attention of PyTorch keeps its three matrices as one parameter.
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
            f"The adapter '{folder}' is a {kind}, but only a LoRA can be merged here. Merge the "
            "adapter by peft: merge_and_unload(), and save the merged model."
        )
    return config


def _base(name: str) -> str:
    """Return the name of a module or weight in the original model, without the modules that peft
    puts around it."""
    name = name.replace(".base_layer", "")
    return re.sub(r"\.modules_to_save(?:\.default)?", "", name)


def _change(parts: Weights, config: _Config, module: str, folder: Path) -> Tensor:
    """Return ``s B A`` for a module, in the shape of its weight."""
    is_table = "embedding_A" in parts
    a, b = (parts.get(f"embedding_{side}" if is_table else side) for side in "AB")
    if a is None or b is None or a.shape[0] != b.shape[1]:
        raise HypvisionError(f"The LoRA '{folder}' lacks a part of '{module}'. Copy it again.")
    a = a.float()
    b = b.float()
    change = config.scale(module, len(a)) * (b.flatten(1) @ a.flatten(1))
    # For a convolution A is (rank, in, height, width) and B is (out, rank, 1, 1).
    if a.dim() == 4:
        return change.reshape(len(b), *a.shape[1:])
    return change.T if is_table or config.fan_in_fan_out else change


def _known(name: str, weights: Weights, shape: torch.Size, folder: Path) -> str:
    """Return the name of a weight, and raise an error unless the model has it in this shape."""
    if name not in weights or weights[name].shape != shape:
        there = tuple(weights[name].shape) if name in weights else "no such weight"
        raise HypvisionError(
            f"The LoRA '{folder}' does not fit the model: it changes '{name}' of the shape "
            f"{tuple(shape)}, where the model has {there}. Give the model that it was trained on."
        )
    return name
