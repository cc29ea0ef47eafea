"""Let ``timm.create_model("NAME.TAG", pretrained=True)`` load weights of the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypvision.io import HypvisionError, Plain, Values

from .index import builtin_index
from .records import Index, Record
from .sources import resolve


def timm_cfg(record: Record) -> Plain:
    """Return timm's pretrained configuration of a record, without the place of the weights."""
    given = record.input
    classes = tuple(record.classes)
    return dict(
        tag=record.tag, num_classes=len(classes), label_names=classes, input_size=tuple(given.size),
        mean=tuple(given.mean), std=tuple(given.std), crop_pct=given.crop_pct,
        interpolation=given.interpolation, crop_mode=given.crop_mode or "center",
        license=record.licence.lower(), description=record.description,
    )  # fmt: skip


def record_overlay(record: Record, path: Path) -> Plain:
    """Return the overlay of timm's configuration with which it loads a record from its verified
    file."""
    # url and hub id are None, because timm would prefer them to the file.
    return {**timm_cfg(record), "file": str(path), "url": None, "hf_hub_id": None, "source": None}


def pretrained_overlay(variant: str, pretrained_cfg: Any, overlay: Values | None = None) -> Plain:
    """Return the overlay with which timm loads ``VARIANT.TAG`` from the zoo; the models' entry
    points call this function.

    Args:
        variant: timm's name of the model.
        pretrained_cfg: a tag, a config or None, as :func:`timm.create_model` passes it on.
        overlay: the caller's own overlay.

    Returns:
        The overlay with the verified file; the caller's overlay unchanged if the caller says where
            the weights are.
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
    """Return a sentence that says what to do if the zoo has no weights of a name for a model."""
    there = [each.name for each in index.select(task="classification") if each.model == variant]
    if there:
        return f"The zoo has {', '.join(there)}."
    return f"Train it (hypvision train) and load the file: hypvision.load(FILE, model='{variant}')."
