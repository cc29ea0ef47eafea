"""A hash of everything that the features of a CLIP depend on; it names the files of cached features."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, tuple, type(None))


def bytes_of(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def fingerprint(model: nn.Module, counts: Callable[[str], bool], *about: Any) -> Any:
    """A hashlib hash of a part of a model; the caller can update it further.

    Weights alone do not determine features: activation, pooling, text mask, numbers of heads and constants of norms are
    module attributes and buffers that are not in the state dict.

    Args:
        model: an open_clip model.
        counts: whether a module or tensor belongs to the part, by its name (empty for the model itself).
        about: what else the features depend on, such as the view of the images; added by its ``repr``.
    """
    digest = hashlib.sha256(repr(about).encode())
    for name, module in model.named_modules():
        if counts(name):
            plain = {key: value for key, value in vars(module).items() if isinstance(value, _PLAIN)}
            settings = sorted((key, value) for key, value in plain.items() if key[0] != "_" and key != "training")
            digest.update(f"{name} {type(module).__name__}({module.extra_repr()}) {settings}\n".encode())
    for name, value in {**dict(model.named_buffers()), **model.state_dict()}.items():
        if counts(name):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(bytes_of(value))
    return digest
