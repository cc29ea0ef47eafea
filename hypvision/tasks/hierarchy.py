"""Classification with Hi-Mapper: auxiliary losses, distillation, frozen parts, and everything logged by name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from hypvision.checks import between, more_than, one_of
from hypvision.errors import HypvisionError
from hypvision.models.himapper import HiMapper
from hypvision.tasks.classification import ImageClassifier, create_backbone, freeze_parameters


def distillation_loss(logits: Tensor, teacher: Tensor, loss: str = "hard", temperature: float = 1.0) -> Tensor:
    """The distillation loss of a classifier's and its teacher's logits ``(B, K)``, in float32, as in DeiT (Touvron
    et al., ICML 2021): ``"hard"``, cross-entropy with the class that the teacher prefers, or ``"soft"``, the
    Kullback-Leibler divergence from the teacher's distribution, both of logits divided by the temperature, times the
    square of the temperature."""
    logits, teacher = logits.float(), teacher.float()
    if loss == "hard":
        return F.cross_entropy(logits, teacher.argmax(-1))
    student, wanted = (torch.log_softmax(x / temperature, -1) for x in (logits, teacher))
    return F.kl_div(student, wanted, log_target=True, reduction="batchmean") * temperature**2


@MODELS.register_module()
class HierarchyClassifier(ImageClassifier):
    """A :class:`~hypvision.models.HiMapper` with the loss of the classes and those of its hierarchy.

    The loss is logged in its parts: ``loss_cls``, ``loss_contrastive``, ``loss_kl`` and ``loss_distillation``, with
    their weights, and the ``curvature`` beside them.

    Args:
        backbone: arguments of :func:`timm.create_model` of a Hi-Mapper.
        freeze: see :meth:`~hypvision.models.HiMapper.freeze`.
        distillation: ``dict(teacher=dict(model_name=..., ...), loss="hard", alpha=0.5, temperature=1.0)``: ``alpha`` is
            the teacher's share of the loss of the classes. A distilled DeiT learns it with its second head. The teacher
            is not stored in checkpoints.
        **kwargs: see :class:`~hypvision.tasks.ImageClassifier`; ``checkpoint`` holds the bare backbone or a whole
            Hi-Mapper.
    """

    def __init__(
        self, backbone: dict[str, Any], freeze: str = "none", distillation: dict[str, Any] | None = None, **kwargs: Any
    ):
        super().__init__(backbone, **kwargs)
        if not isinstance(self.backbone, HiMapper):
            raise HypvisionError(
                f"HierarchyClassifier trains Hi-Mappers, but model.backbone.model_name is '{backbone['model_name']}'. "
                "Name one that begins with 'himapper', or set model.type to ImageClassifier."
            )
        self.backbone.freeze(freeze)
        freeze_parameters(self.backbone, kwargs.get("frozen", ()))  # again: freeze() sets requires_grad of them all
        self.distillation: dict[str, Any] = {}
        if distillation is not None:
            self._set_teacher(**distillation)

    def _set_teacher(
        self, teacher: dict[str, Any], loss: str = "hard", alpha: float = 0.5, temperature: float = 1.0
    ) -> None:
        one_of(("hard", "soft"), **{"model.distillation.loss": loss})
        more_than(0, alpha=alpha, temperature=temperature)
        between(0, 1, alpha=alpha)
        network = create_backbone(**teacher).eval().requires_grad_(False)
        if network.num_classes != self.num_classes:
            raise HypvisionError(
                f"The teacher predicts {network.num_classes} classes, the model {self.num_classes}. Set "
                "model.distillation.teacher.num_classes, and give it weights of that task."
            )
        # A list keeps the teacher out of the parameters and checkpoints of this module.
        self._teacher = [network]
        self.distillation = dict(loss=loss, alpha=alpha, temperature=temperature)
        if self.backbone.distilled:
            self.backbone.set_distilled_training()

    def forward(
        self, inputs: Tensor, label: Tensor | None = None, index: Tensor | None = None, mode: str = "tensor"
    ) -> Any:
        """The modes of :class:`~hypvision.tasks.ImageClassifier`; ``"loss"`` returns the parts of the loss by name."""
        if mode != "loss":
            return super().forward(inputs, label, index, mode)
        inputs, target = self.mix(inputs, label)
        out = self.backbone.forward_with_hierarchy(inputs)
        both = out["logits"] if isinstance(out["logits"], tuple) else (out["logits"], out["logits"])
        classes = self.class_loss(both[0], target)
        losses = {f"loss_{name}": value for name, value in out["losses"].items()}
        if self.distillation:
            share, teacher = self.distillation["alpha"], self._teacher[0].to(inputs.device)
            with torch.no_grad():
                wanted = teacher(inputs)
            kind, temperature = self.distillation["loss"], self.distillation["temperature"]
            losses["loss_distillation"] = share * distillation_loss(both[1], wanted, kind, temperature)
            classes = (1 - share) * classes
        return dict(loss_cls=classes, **losses, curvature=out["curvature"].detach())
