"""Models with the weights of the zoo: :func:`load`, and what is behind ``timm.create_model(..., pretrained=True)``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.records import Index, Record
from hypvision.checkpoints.sources import find, resolve
from hypvision.errors import HypvisionError
from hypvision.zoo.trained import load_trained

__all__ = ["load", "pretrained_overlay"]

# Who builds the models of a task that are more than a timm model: "module:function" of (record, path, overrides).
# By name, as the commands are, so that the zoo imports nothing of mmengine.
_BUILDERS = {
    "segmentation": "hypvision.openmmlab.pretrained:build_model",
    "detection": "hypvision.openmmlab.pretrained:build_model",
    "zero-shot": "hypvision.clip.models:build_model",
}


def load(
    name: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    model: str | None = None,
    **overrides: Any,
) -> nn.Module:
    """A model with its trained weights, in eval mode.

    Args:
        name: ``hypvision models`` lists them, e.g. ``"hcformer_nano.cifar10"``; or a release, see
            :func:`hypvision.checkpoints.sources.find`: ``"hf-hub:USER/REPO"``, ``"file:///folder#NAME"``; or, with
            ``model``, the checkpoint file of a training.
        device: where to put it.
        dtype: cast it to this type; default float32.
        model: timm's name of the model whose weights ``name``, a file, holds; see
            :func:`hypvision.zoo.trained.load_trained`.
        **overrides: for a classifier, arguments of :func:`timm.create_model` that differ from the trained model's, such
            as ``num_classes=5`` (a new head), ``features_only=True`` or ``drop_path_rate=0.1``.

    Returns:
        A timm model, with ``pretrained_cfg`` (its normalisation, input size, class names); for segmentation and
        detection the mmseg or mmdet model, with ``dataset_meta``; for zero-shot an open_clip model with its
        ``tokenizer``.

    Raises:
        HypvisionError: no such weights, they cannot be fetched, or an override does not fit.
    """
    if model is not None:
        return load_trained(name, model, overrides).to(device=device, dtype=dtype).eval()
    if Path(name).is_file():
        raise HypvisionError(
            f"'{name}' is a file, which does not say what model it is of. Add it: hypvision.load('{name}', "
            "model='hcformer_nano', ...), with the arguments of model.backbone in the config of the training."
        )
    index, record = find(str(name))
    if record.task in _BUILDERS:
        module, _, function = _BUILDERS[record.task].partition(":")
        network = getattr(importlib.import_module(module), function)(record, resolve(record, index), overrides)
    else:
        network = _classifier(index, record, overrides)
    return network.to(device=device, dtype=dtype).eval()


def _classifier(index: Index, record: Record, overrides: Mapping[str, Any]) -> nn.Module:
    import timm

    import hypvision.models  # noqa: F401 - registers them in timm

    if not timm.is_model(record.model):
        raise HypvisionError(
            f"'{record.name}' needs the model '{record.model}', which this hypvision and timm do not have. Update them."
        )
    overlay = {**_overlay(record, resolve(record, index)), **overrides.get("pretrained_cfg_overlay", {})}
    arguments = {"num_classes": len(record.classes), **_native(record.arguments), **overrides}
    try:
        return timm.create_model(record.model, pretrained=True, **{**arguments, "pretrained_cfg_overlay": overlay})
    except (TypeError, ValueError) as error:
        raise HypvisionError(f"'{record.name}' does not accept {dict(overrides)}: {error}.") from error
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:400]
        raise HypvisionError(f"The weights '{record.name}' do not fit {dict(overrides)}: {reason}.") from error


def _native(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of YAML as the tuples that constructors take."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}


def timm_cfg(record: Record) -> dict[str, Any]:
    """timm's pretrained cfg of a record, without the place of the weights."""
    return dict(
        tag=record.tag,
        num_classes=len(record.classes),
        input_size=tuple(record.input["size"]),
        mean=tuple(record.input["mean"]),
        std=tuple(record.input["std"]),
        crop_pct=record.input["crop_pct"],
        interpolation=record.input["interpolation"],
        label_names=tuple(record.classes),
        license=record.licence.lower(),
        description=record.description,
    )


def _overlay(record: Record, path: Path) -> dict[str, Any]:
    # No url or hub id beside the file: timm would prefer the hub.
    return {**timm_cfg(record), "file": str(path), "url": None, "hf_hub_id": None, "source": None}


def pretrained_overlay(variant: str, pretrained_cfg: Any, overlay: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What timm needs to load ``VARIANT.TAG`` from the zoo; called by the models' entry points.

    Args:
        variant: timm's name of the model.
        pretrained_cfg: as :func:`timm.create_model` hands it on: a tag, a config, or None.
        overlay: the caller's own overlay.

    Returns:
        The overlay with the verified file in it; unchanged where the caller says where the weights are.

    Raises:
        HypvisionError: the zoo has no weights for this model and tag, or they cannot be fetched.
    """
    overlay = dict(overlay or {})
    if isinstance(pretrained_cfg, str) or pretrained_cfg is None:
        cfg: Mapping[str, Any] = {"tag": pretrained_cfg}
    else:
        cfg = pretrained_cfg if isinstance(pretrained_cfg, Mapping) else vars(pretrained_cfg)
    places = ("state_dict", "file", "url", "hf_hub_id")
    if any(overlay.get(key) for key in places):
        return overlay
    if any(cfg.get(key) and not str(cfg[key]).startswith("zoo:") for key in places):
        return overlay
    index = builtin_index()
    name = f"{variant}.{cfg.get('tag')}"
    if name not in index.records:
        own = [record.name for record in index if record.task == "classification" and record.model == variant]
        raise HypvisionError(
            f"The zoo has no weights for '{variant if pretrained_cfg is None else name}'. "
            + (
                f"There are: {', '.join(own)}."
                if own
                else f"Train it (hypvision train) and load the file: hypvision.load(FILE, model='{variant}')."
            )
        )
    return {**_overlay(index.records[name], resolve(index.records[name], index)), **overlay}
