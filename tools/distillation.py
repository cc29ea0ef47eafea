"""Knowledge distillation: a classifier learns what a larger network that is trained already says of its images.

After Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015), and Beyer et al., "Knowledge
distillation: A good teacher is patient and consistent" (CVPR 2022): teacher and student see the same crop, and labels
are not used. Importing this registers ``DistilledClassifier``.
"""

from __future__ import annotations

from typing import Any

import timm
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from hypvision.errors import HypvisionError
from hypvision.tasks.classification import ImageClassifier


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """A classifier whose loss is the divergence from the teacher's probabilities.

    Args:
        teacher: a timm model with its weights; it has the same classes, and no part of it goes into a checkpoint.
        temperature: divides the logits of both; the loss is multiplied by its square, as Hinton et al. do.
        mean, std: of the student's images, which are given to the teacher in its own size with its own.
        kwargs: those of :class:`~hypvision.tasks.classification.ImageClassifier`.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        teacher: str,
        temperature: float = 2.0,
        mean: tuple[float, ...] = (0.485, 0.456, 0.406),
        std: tuple[float, ...] = (0.229, 0.224, 0.225),
        **kwargs: Any,
    ):
        super().__init__(backbone, **kwargs)
        network = timm.create_model(teacher, pretrained=True).eval().requires_grad_(False)
        if network.num_classes != self.num_classes:
            raise HypvisionError(
                f"The teacher '{teacher}' has {network.num_classes} classes and the student {self.num_classes}. "
                "Choose a teacher of the same classes."
            )
        cfg = network.pretrained_cfg
        self._teacher, self._size = [network], cfg["input_size"][-2:]  # in a list: it is no part of this module
        scale = torch.tensor(std) / torch.tensor(cfg["std"])
        shift = (torch.tensor(mean) - torch.tensor(cfg["mean"])) / torch.tensor(cfg["std"])
        self._scale, self._shift = (x[:, None, None] for x in (scale, shift))
        self.temperature = temperature

    def forward(
        self, inputs: Tensor, label: Tensor | None = None, index: Tensor | None = None, mode: str = "tensor"
    ) -> Any:
        """As that of the base class but for the loss."""
        if mode != "loss":
            return super().forward(inputs, label, index, mode)
        return dict(loss=self.distillation_loss(self.backbone(inputs), self.teach(inputs)))

    @torch.no_grad()
    def teach(self, inputs: Tensor) -> Tensor:
        """The teacher's logits ``(B, C)`` of the student's images ``(B, 3, H, W)``."""
        network = self._teacher[0].to(inputs.device)
        images = F.interpolate(inputs, self._size, mode="bicubic", align_corners=False, antialias=True)
        return network(images * self._scale.to(images) + self._shift.to(images)).float()

    def distillation_loss(self, logits: Tensor, taught: Tensor) -> Tensor:
        """Kullback-Leibler divergence of the student's probabilities from the teacher's, mean over the batch."""
        student, teacher = ((x.float() / self.temperature).log_softmax(-1) for x in (logits, taught))
        return F.kl_div(student, teacher, reduction="batchmean", log_target=True) * self.temperature**2
