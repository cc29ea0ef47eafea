"""A sum of all that the features of a CLIP depend on, by which files of kept features are named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, tuple, type(None))


def bytes_of(value: Tensor) -> bytes:
    """The numbers of a tensor."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def fingerprint(model: nn.Module, counts: Callable[[str], bool], *about: Any) -> Any:
    """A hash (of hashlib) of a part of a model, to which more can be added.

    Equal weights do not make equal features: the activation, the way of pooling, the mask of a text, numbers of heads
    and constants of norms are attributes of modules and buffers that no state dict has.

    Args:
        model: an open_clip model.
        counts: whether the module or tensor of this name belongs to the part; the name of the model itself is empty.
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
