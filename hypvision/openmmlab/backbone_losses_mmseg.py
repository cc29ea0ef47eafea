"""mmseg's encoder-decoder with the losses of its backbone."""

from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS

from hypvision.openmmlab.backbone_losses import BackboneLosses

__all__ = ["BackboneLossSegmentor"]


@MODELS.register_module()
class BackboneLossSegmentor(BackboneLosses, EncoderDecoder):
    """:class:`mmseg.models.EncoderDecoder` that adds what its backbone tells by ``pop_losses()``."""
