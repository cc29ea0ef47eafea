"""mmdet's Mask R-CNN with the losses of its backbone."""

from mmdet.models import MaskRCNN
from mmdet.registry import MODELS

from hypvision.openmmlab.backbone_losses import BackboneLosses

__all__ = ["BackboneLossMaskRCNN"]


@MODELS.register_module()
class BackboneLossMaskRCNN(BackboneLosses, MaskRCNN):
    """:class:`mmdet.models.MaskRCNN` that adds what its backbone tells by ``pop_losses()``."""
