"""timm's models, with hypvision's reader of files and its downloader of published weights.

:func:`create_model` replaces :func:`timm.create_model` in every call of this package. timm itself
would read files by ``torch.load``, and download with a client that has no deadline and ignores
``HYPVISION_OFFLINE``; here timm gets the weights as tensors instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hypvision.checkpoints.match import filtered
from hypvision.checkpoints.read import network_weights, read, read_file
from hypvision.checkpoints.sources import fetch, fetch_from_hub, hub_switch, is_address, offline
from hypvision.io import HypvisionError, Plain, StrPath, Values, depths

from .packaged import hint, installed_weights


def create_model(
    name: str,
    pretrained: bool = False,
    checkpoint_path: StrPath | None = None,
    pretrained_cfg_overlay: Values | None = None,
    **arguments: Any,
) -> nn.Module:
    """Return the network that :func:`timm.create_model` creates.

    ``checkpoint_path``, and ``file`` and ``url`` of the overlay, may be any name that a checkpoint
    can have (see :func:`hypvision.checkpoints.sources.fetch`). Errors of timm are passed on.
    """
    import timm

    depths(**{name: arguments[name] for name in ("depth", "depths", "layers") if name in arguments})
    overlay = dict(pretrained_cfg_overlay or {})
    if pretrained:
        overlay = _published(name, arguments.get("pretrained_cfg"), read_overlay(overlay))
    if checkpoint_path is not None and Path(checkpoint_path).suffix in (".npz", ".npy"):
        arguments["checkpoint_path"] = checkpoint_path  # timm reads the file, without running code
        checkpoint_path = None
    # Without weights, and without a config on the hub, timm does not use the network.
    remote = pretrained or ":" in name
    with hub_switch() if remote else nullcontext():
        model = timm.create_model(
            name, pretrained, pretrained_cfg_overlay=overlay or None, **arguments
        )
    if checkpoint_path is not None:
        weights = network_weights(read(checkpoint_path))
        model.load_state_dict(filtered(model, weights, start=True))
    return forget_weights(model)


def read_overlay(overlay: Values | None) -> Plain:
    """Return timm's overlay together with the weights themselves, read from the file, or from the
    address with a checksum, that the overlay names."""
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
    """Return the model after removing the weights that :func:`read_overlay` has put into its
    ``pretrained_cfg``."""
    for module in model.modules():
        config = getattr(module, "pretrained_cfg", None)
        if isinstance(config, dict):
            config.pop("state_dict", None)
    return model


def _unwrapped(checkpoint: Plain) -> Plain:
    """Return the state dict inside of a file's content, found as timm finds it."""
    from timm.models import clean_state_dict

    wrappers = ("state_dict_ema", "model_ema", "state_dict", "model")
    inside = next(
        (checkpoint[key] for key in wrappers if isinstance(checkpoint.get(key), Mapping)),
        checkpoint,
    )
    return clean_state_dict(inside)


def _published(name: str, config: Any, overlay: Plain) -> Plain:
    """Return the overlay together with the published weights that timm would otherwise download."""
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


def _names_weights(overlay: Plain) -> bool:
    """Return whether an overlay itself says where the weights are."""
    keys = ("state_dict", "file", "url", "hf_hub_id", "custom_load")
    return any(overlay.get(key) for key in keys)


def _on_hub(repository: str | None, file: str | None) -> Plain | None:
    """Return the content of the first file of a hub's repository that timm would take; None if
    there is none, or if a certain version of the repository is asked for."""
    if not repository or "@" in repository:
        return None
    if file:
        names = [f"{file.rpartition('.')[0]}.safetensors", file]
    else:
        names = ["model.safetensors", "pytorch_model.bin"]
    found = (fetch_from_hub(repository, each) for each in dict.fromkeys(names))
    return next((read_file(path) for path in found if path is not None), None)


def _here(url: object) -> bool:
    """Return whether timm can take the weights of a config's address without the network: it has no
    address, one of the zoo's, or one that was fetched before."""
    address = str(url or "")
    file = Path(torch.hub.get_dir(), "checkpoints", address.rpartition("/")[2])
    return not address or is_address(address) or file.is_file()
