"""Weights out of checkpoint files of any origin: official code, timm's or mmengine's trainings, plain state dicts.

:func:`load_trained` makes a timm model with the weights that ``hypvision train`` wrote; it is what
``hypvision.load(FILE, model=NAME)`` calls. No code in a file is run.
"""

from __future__ import annotations

import ast
import importlib
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.checkpoints.storage import unpack
from hypvision.errors import HypvisionError, did_you_mean, how_to_install

__all__ = ["load_trained", "network_weights", "parse_arguments", "read_checkpoint"]

_BACKBONE = r"backbone\.(?:timm_model\.)?(?:model\.)?(.+)"


def read_checkpoint(path: str | Path) -> Mapping[str, Any]:
    """What a checkpoint file holds, without running code in it.

    Beside tensors and plain values it may hold the ``args`` that timm's and many papers' trainings save
    (:class:`argparse.Namespace`) and, where mmengine is installed, the log history of its trainings.

    Args:
        path: ``.safetensors``, or ``.pth`` (``.pt``, ...) as PyTorch writes it.

    Raises:
        HypvisionError: no such file, a damaged one, one that would run code, or one that holds no dict.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise HypvisionError(f"There is no checkpoint '{path}'. Check the path.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return unpack(load_file(path))
        with torch.serialization.safe_globals([Namespace]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError as error:
        raise HypvisionError(f"The checkpoint '{path}' cannot be read: {error.strerror}.") from error
    except Exception as error:  # the readers raise whatever the bytes make them stumble over
        # The loader of whole trainings needs mmengine, and is asked only where the quick way was not enough.
        if isinstance(error, UnpicklingError) and "GLOBAL" in str(error):
            try:
                from hypvision.engine.checkpoint import load_checkpoint_file
            except (HypvisionError, ModuleNotFoundError):
                pass
            else:
                return load_checkpoint_file(path)
        raise _unreadable(path, error) from error
    if not isinstance(found, Mapping):
        raise HypvisionError(f"The checkpoint '{path}' holds a {type(found).__name__}, not a dict of weights.")
    return found


def _unreadable(path: Path, error: Exception) -> HypvisionError:
    """The paragraph for a file that cannot be read; PyTorch's own text advises to switch the safety off."""
    culprit = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, UnpicklingError) else None
    if culprit is None:
        return HypvisionError(
            f"The checkpoint '{path}' is damaged, or no checkpoint at all. Download or copy it again."
        )
    if culprit[1].startswith("mmengine."):
        return HypvisionError(
            f"The checkpoint '{path}' holds the log of a training beside its weights, which mmengine can read. "
            f"{how_to_install('mm')}"
        )
    return HypvisionError(
        f"The checkpoint '{path}' was refused: it contains '{culprit[1].rstrip('.')}', which is neither a weight nor a "
        "plain value, and loading it could run code from the file. If you trust its source, save the weights alone: "
        "torch.save(model.state_dict(), new_path)."
    )


def network_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a network in a checkpoint: out of ``state_dict`` or ``model``, without ``DataParallel``'s prefix.

    In a checkpoint of ``hypvision train`` the network is the backbone of a classifier, segmenter or detector: then only
    its weights are returned, without the prefix.
    """
    for wrapper in ("state_dict", "model"):
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
    found = {
        str(name).removeprefix("module."): value for name, value in checkpoint.items() if isinstance(value, Tensor)
    }
    inside = {match[1]: value for name, value in found.items() if (match := re.fullmatch(_BACKBONE, name))}
    return inside or found


def load_trained(path: str | Path, model: str, arguments: Mapping[str, Any] | None = None) -> nn.Module:
    """A timm model with the weights in a checkpoint file.

    Args:
        path: checkpoint of ``hypvision train`` (the network of a classifier), of timm's training, or a state dict.
        model: name in :func:`timm.list_models`.
        arguments: of :func:`timm.create_model`, as ``model.backbone`` of the training's config has them;
            ``num_classes`` is by default that of the file.

    Raises:
        HypvisionError: the file cannot be read, there is no such model, or the weights are of another one.
    """
    import timm

    import hypvision.models  # noqa: F401 - registers them in timm

    arguments = dict(arguments or {})
    if not timm.is_model(model):
        hint = did_you_mean(model, timm.list_models())
        raise HypvisionError(f"There is no model '{model}'.{hint} timm.list_models() lists all.")
    weights = network_weights(read_checkpoint(path))
    named = arguments.get("backbone", model)  # the head of a Hi-Mapper is that of its backbone
    config = timm.get_pretrained_cfg(named) if isinstance(named, str) else None
    head = getattr(config, "classifier", None) or "head"
    for name in (f"{head}.weight", f"trunk.{head}.weight"):
        if name in weights:
            arguments.setdefault("num_classes", len(weights[name]))
    try:
        network = timm.create_model(model, **arguments)
    except (TypeError, ValueError) as error:
        raise HypvisionError(f"The model '{model}' does not accept {arguments}: {error}.") from error
    convert = getattr(importlib.import_module(type(network).__module__), "checkpoint_filter_fn", None)
    if convert is not None:  # official names, position biases of another size
        weights = convert(weights, network)
    own = network.state_dict()
    missing = [name for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    shapes = [
        f"{name} ({'x'.join(map(str, weights[name].shape))} instead of {'x'.join(map(str, value.shape))})"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    parts = ((missing, "missing in the file"), (unknown, "unknown to the model"), (shapes, "of another shape"))
    if any(names for names, _ in parts):
        text = "; ".join(
            f"{len(names)} {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            for names, what in parts
            if names
        )
        raise HypvisionError(
            f"The checkpoint '{path}' does not fit the model '{model}' ({text}). Give the model that it was trained "
            "with and its arguments, as in model.backbone of the config of the training."
        )
    network.load_state_dict(weights)
    return network


def parse_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """The arguments of a model as a command line gives them: ``["a=3", "b=(1, 2)", "c=text"]`` as a dict.

    Values are Python literals, or else text.

    Raises:
        HypvisionError: no ``KEY=VALUE``.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise HypvisionError(f"--model-args takes KEY=VALUE, e.g. patch_size=2; got '{pair}'.")
        arguments[key] = value
        with suppress(ValueError, SyntaxError):
            arguments[key] = ast.literal_eval(value)
    return arguments
