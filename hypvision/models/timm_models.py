"""timm's models with our reader of files and our downloader of published weights.

:func:`create_model` is :func:`timm.create_model` for every call of this package. timm itself would
read files by ``torch.load`` and download with a client that has no deadline and ignores
``HYPVISION_OFFLINE``; here it gets the weights as tensors instead.
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
from hypvision.io.checks import depths
from hypvision.io.errors import HypvisionError
from hypvision.models.packaged import hint, installed_weights


def create_model(
    name: str,
    pretrained: bool = False,
    checkpoint_path: str | Path | None = None,
    pretrained_cfg_overlay: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> nn.Module:
    """:func:`timm.create_model`.

    ``checkpoint_path``, and ``file`` and ``url`` of the overlay, may be every name that a
    checkpoint can have (see :func:`hypvision.checkpoints.sources.fetch`). Errors of timm are not
    changed.
    """
    import timm

    depths(**{name: arguments[name] for name in ("depth", "depths", "layers") if name in arguments})
    overlay = dict(pretrained_cfg_overlay or {})
    if pretrained:
        overlay = _published(name, arguments.get("pretrained_cfg"), read_overlay(overlay))
    if checkpoint_path is not None and Path(checkpoint_path).suffix in (".npz", ".npy"):
        arguments["checkpoint_path"] = checkpoint_path  # timm reads the file, without running code
        checkpoint_path = None
    with hub_switch():
        model = timm.create_model(
            name, pretrained, pretrained_cfg_overlay=overlay or None, **arguments
        )
    if checkpoint_path is not None:
        model.load_state_dict(filtered(model, network_weights(read(checkpoint_path))))
    return forget_weights(model)


def read_overlay(overlay: Mapping[str, Any] | None) -> dict[str, Any]:
    """timm's overlay with the weights themselves beside the file, or the address with a sum, that
    it names."""
    overlay = dict(overlay or {})
    source = overlay.get("file") or overlay.get("url")
    if overlay.get("state_dict") or overlay.get("custom_load") or not source:
        return overlay
    if overlay.get("file") or is_address(source) or "#sha256=" in str(source):
        overlay["file"] = str(fetch(source))
        overlay["state_dict"] = _unwrapped(read_file(overlay["file"]))
        # Otherwise timm would download the weights from its own source.
        overlay.setdefault("source", None)
    return overlay


def forget_weights(model: nn.Module) -> nn.Module:
    """The model, whose ``pretrained_cfg`` no longer holds the weights that it was given by
    :func:`read_overlay`."""
    for module in model.modules():
        config = getattr(module, "pretrained_cfg", None)
        if isinstance(config, dict):
            config.pop("state_dict", None)
    return model


def _unwrapped(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Unwrap the content of a file as timm does."""
    from timm.models import clean_state_dict

    wrappers = ("state_dict_ema", "model_ema", "state_dict", "model")
    inside = next(
        (checkpoint[key] for key in wrappers if isinstance(checkpoint.get(key), Mapping)),
        checkpoint,
    )
    return clean_state_dict(inside)


def _published(name: str, config: Any, overlay: dict[str, Any]) -> dict[str, Any]:
    """The overlay with the weights that timm would otherwise download."""
    import timm

    if config is not None or not timm.is_model(name.partition(".")[0]):
        return overlay
    about = timm.get_pretrained_cfg(name)
    if about is None or any(
        (_names_weights(overlay), about.state_dict, about.file, about.custom_load)
    ):
        return overlay
    found = installed_weights(name)
    repository = about.hf_hub_id
    if found is None:
        found = _on_hub(repository, about.hf_hub_filename)
    if found is not None:
        return {**overlay, "state_dict": found}
    if offline() and (repository or not _here(about.url)):
        raise HypvisionError(
            f"The pretrained weights of '{name}' are not on this machine, and HYPVISION_OFFLINE or "
            f"HF_HUB_OFFLINE is set. Unset it, or give a file.{hint(name)}"
        )
    return overlay


def _names_weights(overlay: dict[str, Any]) -> bool:
    """Whether an overlay says itself where the weights are."""
    keys = ("state_dict", "file", "url", "hf_hub_id", "custom_load")
    return any(overlay.get(key) for key in keys)


def _on_hub(repository: str | None, file: str | None) -> dict[str, Any] | None:
    """What the first file of a repository holds that timm would take; None if there is none, or for
    a version of a repository."""
    if not repository or "@" in repository:
        return None
    if file:
        names = [f"{file.rpartition('.')[0]}.safetensors", file]
    else:
        names = ["model.safetensors", "pytorch_model.bin"]
    found = (fetch_from_hub(repository, each) for each in dict.fromkeys(names))
    return next((read_file(path) for path in found if path is not None), None)


def _here(url: object) -> bool:
    """Whether timm needs no network for an address of its configs: it has none, the zoo's, or one
    fetched before."""
    address = str(url or "")
    file = Path(torch.hub.get_dir(), "checkpoints", address.rpartition("/")[2])
    return not address or is_address(address) or file.is_file()
