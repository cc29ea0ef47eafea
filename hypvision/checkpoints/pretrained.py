"""Lets ``timm.create_model("NAME.TAG", pretrained=True)`` load weights of the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypvision.checkpoints.index import builtin_index
from hypvision.checkpoints.records import Index, Record
from hypvision.checkpoints.sources import resolve
from hypvision.io.errors import HypvisionError
from hypvision.io.types import Plain, Values


def timm_cfg(record: Record) -> Plain:
    """timm's pretrained cfg of a record, without the place of the weights."""
    given = record.input
    classes = tuple(record.classes)
    return dict(
        tag=record.tag, num_classes=len(classes), label_names=classes, input_size=tuple(given.size),
        mean=tuple(given.mean), std=tuple(given.std), crop_pct=given.crop_pct,
        interpolation=given.interpolation, crop_mode=given.crop_mode or "center",
        license=record.licence.lower(), description=record.description,
    )  # fmt: skip


def record_overlay(record: Record, path: Path) -> Plain:
    """timm's overlay that loads a record from its verified file."""
    # No url or hub id, because timm would prefer the hub to the file.
    return {**timm_cfg(record), "file": str(path), "url": None, "hf_hub_id": None, "source": None}


def pretrained_overlay(variant: str, pretrained_cfg: Any, overlay: Values | None = None) -> Plain:
    """The arguments with which timm loads ``VARIANT.TAG`` from the zoo; the models' entry points
    call this.

    Args:
        variant: timm's name of the model.
        pretrained_cfg: as :func:`timm.create_model` hands it on: a tag, a config, or None.
        overlay: the caller's own overlay.

    Returns:
        The overlay with the verified file in it; unchanged where the caller says where the weights
        are.
    """
    overlay = dict(overlay or {})
    cfg = {"tag": pretrained_cfg}
    if isinstance(pretrained_cfg, Mapping):
        cfg = dict(pretrained_cfg)
    elif not isinstance(pretrained_cfg, str | None):
        cfg = vars(pretrained_cfg)
    own = {key: place for key, place in cfg.items() if not str(place).startswith("zoo:")}
    for key in ("state_dict", "file", "url", "hf_hub_id"):
        if own.get(key) or overlay.get(key):
            return overlay
    index = builtin_index()
    name = f"{variant}.{cfg.get('tag')}"
    record = index.records.get(name)
    if record is None:
        asked = name.removesuffix(".None")
        raise HypvisionError(f"The zoo has no weights for '{asked}'. {_hint(index, variant)}")
    return {**record_overlay(record, resolve(record, index)), **overlay}


def _hint(index: Index, variant: str) -> str:
    """What to do where a model has no weights of a name."""
    there = [each.name for each in index.select(task="classification") if each.model == variant]
    if there:
        return f"There are: {', '.join(there)}."
    return f"Train it (hypvision train) and load the file: hypvision.load(FILE, model='{variant}')."
