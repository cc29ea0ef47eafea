"""Preparation of configs of mmdet and mmseg with hypvision's backbone, before a model is built."""

from __future__ import annotations

import importlib
import logging

from mmengine.config import Config

from hypvision.engine.extensions import PREPARATIONS
from hypvision.io import HypvisionError

from .ops import INSTALL, has_compiled_mmcv, missing_operators

_logger = logging.getLogger(__name__)


def _is_ours(backbone: dict | None) -> bool:
    return str((backbone or {}).get("type")).rpartition(".")[2] == "TimmBackbone"


def leave_out_foreign_weights(config: Config) -> None:
    """Remove ``model.pretrained``, by which mmseg's configs name the weights of their original
    backbone, because a TimmBackbone would take the name for ``pretrained=True``."""
    weights = config.model.get("pretrained")
    if isinstance(weights, str) and _is_ours(config.model.get("backbone")):
        config.model.pretrained = None
        _logger.warning(
            "model.pretrained='%s' belongs to another backbone than the TimmBackbone '%s', so it "
            "is left out. For its weights set model.backbone.pretrained=True or init_cfg.", weights,
            config.model.backbone.get("model_name"),
        )  # fmt: skip


def leave_out_unseen_levels(config: Config) -> None:
    """Tell a TimmBackbone which of its levels the neck does not use (FPN's ``start_level``, set for
    RetinaNet and FCOS). A norm of such a level gets no gradient, which several processes cannot
    train."""
    backbone = config.model.get("backbone")
    neck = config.model.get("neck")
    necks = neck if isinstance(neck, (list, tuple)) else [neck or {}]
    start = necks[0].get("start_level") or 0
    if start > 0 and _is_ours(backbone):
        backbone.setdefault(
            "unused", tuple(sorted(backbone.get("out_indices", (0, 1, 2, 3))))[:start]
        )


def refuse_missing_operators(config: Config) -> None:
    """Raise an error for a missing operator before the model is built, and not within a step."""
    if has_compiled_mmcv():
        return
    for key, type_name, operator in missing_operators(config.model):
        raise HypvisionError(
            f"{key} of the config is '{type_name}', which needs mmcv's operator {operator}: it is "
            "not among those that run without a compiler (docs/everywhere.md). Take another part, "
            f"or install a compiled mmcv: {INSTALL}."
        )


def _prepare(config: Config, *modules: str) -> None:
    """Import hypvision's ``modules``, which replace parts of the library, check the operators of a
    config's model, and remove weights and levels that it cannot use."""
    for module in modules:
        importlib.import_module(f"hypvision.openmmlab.{module}")
    refuse_missing_operators(config)
    leave_out_foreign_weights(config)
    leave_out_unseen_levels(config)


PREPARATIONS.update(
    mmdet=lambda config: _prepare(config, "datasets.detection"),
    mmseg=lambda config: _prepare(config, "datasets.segmentation", "label_maps"),
)
