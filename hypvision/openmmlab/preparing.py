"""What a config of mmdet or mmseg with our backbone gets before its model is built."""

from __future__ import annotations

from mmengine.config import Config

from hypvision.engine.extensions import PREPARATIONS

__all__ = ["leave_out_unseen_levels"]


def leave_out_unseen_levels(config: Config) -> None:
    """Tell a TimmBackbone which of its levels the neck does not look at (FPN's ``start_level``, as RetinaNet and FCOS
    have it): a norm that only such a level has gets no gradient, and several processes must not train it."""
    backbone, neck = config.model.get("backbone"), config.model.get("neck")
    necks = neck if isinstance(neck, (list, tuple)) else [neck or {}]
    start = necks[0].get("start_level") or 0
    if start > 0 and str((backbone or {}).get("type")).rpartition(".")[2] == "TimmBackbone":
        backbone.setdefault("unused", tuple(backbone.get("out_indices", (0, 1, 2, 3)))[:start])


PREPARATIONS.update(mmdet=leave_out_unseen_levels, mmseg=leave_out_unseen_levels)
