"""Losses that a backbone computes itself, added to those of a segmenter or detector.

A Hi-Mapper with ``dense="aux"`` or ``"fuse"`` has losses of its tree; a backbone returns such
losses from ``pop_losses()``.
"""

from __future__ import annotations

from typing import Any

from mmdet.models import MaskRCNN
from mmdet.registry import MODELS as DETECTORS
from mmengine.model import BaseModel
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS as SEGMENTORS
from torch import Tensor, nn

from hypvision.io import HypvisionError, Plain


def backbone_losses(backbone: nn.Module) -> dict[str, Tensor]:
    """Return the backbone's own losses of the last forward pass in training, under names
    ``loss_...``, which mmengine adds up."""
    pop_losses = next(
        (module.pop_losses for module in backbone.modules() if hasattr(module, "pop_losses")), None
    )
    if not callable(pop_losses):
        raise HypvisionError(
            f"The backbone {type(backbone).__name__} has no losses of its own. Take a Hi-Mapper "
            "with dense='aux' or 'fuse', or the usual model.type."
        )
    return {f"loss_{name}": value for name, value in pop_losses().items()}


class BackboneLosses(BaseModel):
    """A mix-in that adds the backbone's own losses to those of mmseg's segmenters or mmdet's
    detectors."""

    backbone: nn.Module

    def loss(self, *args: Any, **kwargs: Any) -> Plain:
        return {**super().loss(*args, **kwargs), **backbone_losses(self.backbone)}


@DETECTORS.register_module()
class BackboneLossMaskRCNN(BackboneLosses, MaskRCNN):
    """:class:`mmdet.models.MaskRCNN` with the losses from ``pop_losses()`` of its backbone
    added."""


@SEGMENTORS.register_module()
class BackboneLossSegmentor(BackboneLosses, EncoderDecoder):
    """:class:`mmseg.models.EncoderDecoder` with the losses from ``pop_losses()`` of its backbone
    added."""
