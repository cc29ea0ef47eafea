"""Classification with Hi-Mapper: its auxiliary losses, its frozen parts, and the log of both."""

from __future__ import annotations

from typing import Any

from mmengine.registry import MODELS
from torch import Tensor

from hypvision.io import HypvisionError, Plain
from hypvision.models.himapper import HiMapper

from .classification import ImageClassifier, freeze_parameters


@MODELS.register_module()
class HierarchyClassifier(ImageClassifier):
    """A :class:`~hypvision.models.HiMapper` with the loss of the classes and the losses of its
    hierarchy.

    The parts of the loss are logged with their weights, as ``loss_cls``, ``loss_contrastive``,
    ``loss_kl`` and ``loss_distillation``, together with the ``curvature``.

    Args:
        backbone: arguments of :func:`timm.create_model` for a Hi-Mapper.
        freeze: see :meth:`~hypvision.models.HiMapper.freeze`.
        **kwargs: see :class:`~hypvision.tasks.ImageClassifier`; ``checkpoint`` may hold the bare
            backbone or a whole Hi-Mapper. The second head of a distilled DeiT learns from the
            teacher in ``distillation``.
    """

    def __init__(self, backbone: Plain, freeze: str = "none", **kwargs: Any):
        super().__init__(backbone, **kwargs)
        if not isinstance(self.backbone, HiMapper):
            raise HypvisionError(
                "HierarchyClassifier trains Hi-Mappers, but model.backbone.model_name is "
                f"'{backbone['model_name']}'. Name one that begins with 'himapper', or set "
                "model.type to ImageClassifier."
            )
        self.backbone.freeze(freeze)
        # Freeze them a second time, because freeze() sets requires_grad of all parameters.
        freeze_parameters(self.backbone, kwargs.get("frozen", ()))
        if self.distillation and self.backbone.distilled:
            self.backbone.set_distilled_training()

    def losses(self, inputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        out = self.backbone.forward_with_hierarchy(inputs)
        both = out["logits"] if isinstance(out["logits"], tuple) else (out["logits"], out["logits"])
        classes = self.class_loss(both[0], target)
        of_classes = (
            self.taught_loss(inputs, both[1], classes)
            if self.distillation
            else dict(loss_cls=classes)
        )
        losses = {f"loss_{name}": value for name, value in out["losses"].items()}
        return dict(**of_classes, **losses, curvature=out["curvature"].detach())
