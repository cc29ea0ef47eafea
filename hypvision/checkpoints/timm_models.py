"""timm's models by our doors: files come by our reader, published weights by our downloader.

:func:`create_model` is :func:`timm.create_model` for every call of this package. What timm alone would read by
``torch.load``, or fetch by a client that knows neither deadlines nor ``HYPVISION_OFFLINE``, it gets as tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hypvision.checkpoints.match import filtered
from hypvision.checkpoints.read import network_weights, read, read_file
from hypvision.checkpoints.sources import fetch, fetch_from_hub, hub_switch, is_address, offline
from hypvision.errors import HypvisionError

__all__ = ["create_model", "forget_weights", "read_overlay"]


def create_model(
    name: str,
    pretrained: bool = False,
    checkpoint_path: str | Path | None = None,
    pretrained_cfg_overlay: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> nn.Module:
    """:func:`timm.create_model`.

    Args:
        name: as there.
        pretrained: as there.
        checkpoint_path, and ``file`` and ``url`` of pretrained_cfg_overlay: every name that a checkpoint can have, see
            :func:`hypvision.checkpoints.sources.fetch`.
        pretrained_cfg_overlay, arguments: as there.

    Raises:
        HypvisionError: weights that cannot be fetched or read; whatever timm raises stays as it is.
    """
    import timm

    if pretrained:
        pretrained_cfg_overlay = _published(name, arguments.get("pretrained_cfg"), read_overlay(pretrained_cfg_overlay))
    numpy = Path(checkpoint_path or "").suffix in (".npz", ".npy")  # which timm reads, without running code
    own = checkpoint_path is not None and not numpy
    if not own and checkpoint_path is not None:
        arguments["checkpoint_path"] = checkpoint_path
    with hub_switch():
        model = timm.create_model(name, pretrained, pretrained_cfg_overlay=pretrained_cfg_overlay or None, **arguments)
    if own:
        model.load_state_dict(filtered(model, network_weights(read(checkpoint_path))))
    return forget_weights(model)


def read_overlay(overlay: Mapping[str, Any] | None) -> dict[str, Any]:
    """timm's overlay with the weights themselves beside the file, or the address with a sum, that it names.

    Raises:
        HypvisionError: they cannot be fetched or read.
    """
    overlay = dict(overlay or {})
    source = overlay.get("file") or overlay.get("url")
    if overlay.get("state_dict") or overlay.get("custom_load") or not source:
        return overlay
    if overlay.get("file") or is_address(source) or "#sha256=" in str(source):
        overlay["file"] = str(fetch(source))
        overlay["state_dict"] = _unwrapped(read_file(overlay["file"]))
        # timm would prefer a source to the weights at hand.
        overlay.setdefault("source", None)
    return overlay


def forget_weights(model: nn.Module) -> nn.Module:
    """The model, whose ``pretrained_cfg`` no longer holds the weights that it was given by :func:`read_overlay`."""
    for module in model.modules():
        if isinstance(config := getattr(module, "pretrained_cfg", None), dict):
            config.pop("state_dict", None)
    return model


def _unwrapped(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """As timm unwraps what it reads from a file."""
    from timm.models import clean_state_dict

    wrappers = ("state_dict_ema", "model_ema", "state_dict", "model")
    inside = next((checkpoint[key] for key in wrappers if isinstance(checkpoint.get(key), Mapping)), checkpoint)
    return clean_state_dict(inside)


def _published(name: str, config: Any, overlay: dict[str, Any]) -> dict[str, Any]:
    """The overlay with the weights that timm would fetch, where it would.

    Raises:
        HypvisionError: they cannot be fetched, or are not on this machine and the network is switched off.
    """
    import timm

    if config is not None or any(overlay.get(key) for key in ("state_dict", "file", "url", "hf_hub_id", "custom_load")):
        return overlay
    about = timm.get_pretrained_cfg(name) if timm.is_model(name.partition(".")[0]) else None
    if about is None or about.state_dict or about.file or about.custom_load:
        return overlay
    repository, file = about.hf_hub_id, about.hf_hub_filename
    if repository and "@" not in repository:
        stem = (file or "pytorch_model.bin").rpartition(".")[0]
        names = [f"{stem}.safetensors", file] if file else ["model.safetensors", "pytorch_model.bin"]
        found = (fetch_from_hub(repository, each) for each in dict.fromkeys(names))
        path = next((path for path in found if path is not None), None)
        if path is not None:
            return {**overlay, "state_dict": read_file(path)}
    if offline() and (repository or not _here(about.url)):
        raise HypvisionError(
            f"The pretrained weights of '{name}' are not on this machine, and HYPVISION_OFFLINE or HF_HUB_OFFLINE is "
            "set. Unset it, or give a file."
        )
    return overlay


def _here(url: str | None) -> bool:
    """Whether timm needs no network for an address of its configs: it has none, the zoo's, or one fetched before."""
    return not url or is_address(url) or Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2]).is_file()
