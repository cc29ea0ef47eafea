r"""PromptSRC: self-regulating prompts (Khattak, Wasim et al., ICCV 2023).

Independent prompts of both towers (:class:`.prompted.IVLP`) learn by

.. math:: L = CE + 25\,\overline{|\hat t - \hat t_0|} + 10\,\overline{|\hat v - \hat v_0|}
          + KL(q \,\|\, p),

where the frozen model gives the text features :math:`\hat t_0` (a mean over 60 templates), the
image features :math:`\hat v_0` and the softmax :math:`q` of its logits; :math:`p` is the softmax of
the prompted logits. The divergence is divided by the number of elements, as in the official code.
In the end the weights of all epochs are averaged, weighted by :func:`gaussian_weights`.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hypvision.clip.features import cached_texts
from hypvision.clip.memo import Memo
from hypvision.clip.models import CLIPBundle
from hypvision.data.classes import imagenet_templates
from hypvision.io import StrPath, at_least, more_than

from .hosts import HostOutput, mean_divergence, sentence_features
from .prompted import IVLP


class PromptSRC(IVLP, name="promptsrc"):
    """The host PromptSRC; in evaluation it is :class:`.prompted.IVLP`, which explains the other
    arguments.

    Args:
        templates: number of CLIP's templates whose mean gives the frozen class features (60);
            weights that name templates of their own use those.
        cache: folder for these features, in files named by a hash of sentences and weights; None:
            no cache on disk.
    """

    def __init__(
        self,
        clip: CLIPBundle,
        text: int = 4,
        vision: int = 4,
        depth: int | None = None,
        words: str = "a photo of a",
        emulate_half: bool = False,
        text_chunk: int | None = None,
        templates: int = 60,
        cache: StrPath | None = None,
        text_depth: int | None = None,
        vision_depth: int | None = None,
    ):
        super().__init__(
            clip, text, vision, depth, words, emulate_half, text_chunk, text_depth, vision_depth
        )
        self.templates = templates
        self.cache = cache
        self._frozen = Memo()

    def frozen_texts(self) -> Tensor:
        """Return unit class features ``(C, d)`` of the frozen model, cached until the classes
        change."""

        templates = self.own_templates or imagenet_templates(self.templates)

        def mean() -> Tensor:
            return F.normalize(sentence_features(self, templates).mean(0), dim=-1)

        def make() -> Tensor:
            sentences = [text.format(name) for text in templates for name in self.names]
            return cached_texts(self.cache, self, sentences, mean)

        return self._frozen.get([self.clip.get_parameter("logit_scale")], make, self.names)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> HostOutput:
        out = super().forward(images, labels)
        if self.training:
            image = F.normalize(self.frozen_features(images), dim=-1)
            text = self.frozen_texts()
            zero_shot = HostOutput(image, text, out.scale).logits()
            own = self.texts() if out.text is None else out.text
            # Section 3.2 gives the weights 25, 10 and 1.
            out.losses = dict(
                loss_text=25 * F.l1_loss(own, text),
                loss_image=10 * F.l1_loss(out.image, image),
                loss_logits=mean_divergence(out.logits(), zero_shot),
            )
        return out

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._frozen.clear()
        return super()._apply(*args, **kwargs)


# Averaging the weights of epochs
# --------------------------------------------------------------------------------------------------


def gaussian_weights(epochs: int, mean: float, std: float) -> list[float]:
    """Return weights of the epochs 1 to E, proportional to a normal density, with the sum 1."""
    more_than(0, std=std)
    at_least(1, integer=True, epochs=epochs)
    logs = [-((epoch - mean) ** 2) / (2 * std**2) for epoch in range(1, epochs + 1)]
    largest = max(logs)  # Without this, all densities may underflow.
    weights = [math.exp(value - largest) for value in logs]
    return [weight / sum(weights) for weight in weights]
