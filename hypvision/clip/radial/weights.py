"""Files of tuned text towers, whole or as the difference from the original CLIP.

>>> save_tower(tuned, "radial.safetensors", base=base)         # only the difference from base
>>> merge_tower(fresh_model, "radial.safetensors")             # then plain open_clip weights
>>> merge_tower(fresh_model, "work_dirs/radial/iter_9000.pth") # a training's checkpoint, too
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import torch
from torch import Tensor, nn

from hypvision.checkpoints.match import check_finite, compare
from hypvision.checkpoints.read import network_weights, read_file
from hypvision.checkpoints.storage import read_header, write_weights
from hypvision.checkpoints.types import StateDict, Weights
from hypvision.clip.features import bytes_of
from hypvision.io import HypvisionError, Plain, StrPath, refuse

_TRAINING = re.compile(r"clip\.(.+)")
_ROOT = "radial_root"


def tower_weights(model: nn.Module, images: bool = False) -> StateDict:
    """Return the entries of the text tower in the state dict of an open_clip model, and with
    ``images`` those of the image tower, too."""
    left_out = ("logit_",) if images else ("logit_", "visual.")
    weights = model.state_dict()
    return {name: value for name, value in weights.items() if not name.startswith(left_out)}


def content_hash(weights: StateDict) -> str:
    """Return the SHA-256 of the names and values of weights, in hex."""
    total = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(bytes_of(value))
    return total.hexdigest()


def save_tower(
    model: nn.Module,
    path: StrPath,
    base: nn.Module | None = None,
    root: Tensor | None = None,
    storage: str = "float32",
    images: bool = False,
) -> Path:
    """Write the text tower of a tuned model to a file, and with ``images`` the image tower, too.
    The file is complete when it appears at ``path``, which is returned.

    Args:
        path: the file, which ends with ``.safetensors``.
        base: the model from which it was tuned; only the difference is written. None: write the
            whole tower.
        root: a learned root ``(d,)``, which is written too.
        storage: see :mod:`hypvision.checkpoints.storage`; differences are small numbers, for which
            ``"bfloat16"`` is enough and halves the file.
    """
    path = Path(path).expanduser()
    if path.suffix != ".safetensors":
        raise HypvisionError(
            f"A tuned text tower is written as .safetensors, got '{path}'. Give a path with this "
            "ending."
        )
    weights = tower_weights(model, images)
    about = Plain(kind="tower")
    if base is not None:
        before = tower_weights(base, images)
        if {k: v.shape for k, v in before.items()} != {k: v.shape for k, v in weights.items()}:
            raise HypvisionError(
                "The base model has another architecture than the tuned one. Give the model that "
                "it was tuned from."
            )
        about = dict(kind="delta", base=content_hash(before), images=images)
        weights = {
            name: value.detach().float() - before[name].float()
            for name, value in weights.items()
            if value.is_floating_point() and not torch.equal(value, before[name])
        }
    if root is not None:
        weights[_ROOT] = root
    stored = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    write_weights(stored, path, storage, dict(radial=about))
    return path


@torch.no_grad()
def merge_tower(model: nn.Module, path: StrPath, strict: bool = True) -> Tensor | None:
    """Load a tuned text tower, from a file of :func:`save_tower` or a checkpoint of a training,
    into its base model in place, which then has plain weights; return the learned root ``(d,)``, or
    None. With ``strict``, a file with the difference from another base model is an error."""
    path = Path(path).expanduser()
    content = read_file(path)
    about = (read_header(path) if path.suffix == ".safetensors" else {}).get("radial", {})
    saved = content.get("state_dict", content)
    root = saved.get(_ROOT, saved.get("root"))
    weights = _of_towers(network_weights(content, _TRAINING))
    images = any(name.startswith("visual.") for name in weights)
    own = tower_weights(model, about.get("images", images))
    found = compare(own, weights)
    delta = about.get("kind") == "delta"
    refuse(
        (
            found.mismatched or found.unexpected or (found.missing and not delta),
            f"The text tower '{path}' does not fit {type(model).__name__}: {found.describe()}. "
            "Give the CLIP that it was tuned from.",
        ),
        (
            delta and strict and about.get("base") != content_hash(own),
            f"'{path}' holds differences to another CLIP than this one. Give the model and the "
            "weights that it was tuned from (strict=False merges them into any).",
        ),
    )
    check_finite(weights, path, allow=False)
    for name, value in weights.items():
        start = own[name].float() if delta else 0
        own[name].copy_(start + value.to(own[name].device))
    return root


def _of_towers(weights: Weights) -> StateDict:
    """Return the weights of towers: all but the root and the scale of the logits."""
    others = (_ROOT, "root", "logit_")
    return {name: value for name, value in weights.items() if not name.startswith(others)}
