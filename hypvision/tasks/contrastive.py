"""CLIP's contrastive training on images with a caption each, under mmengine's Runner: from scratch, fully, in part, or
with any adapter.

>>> model = dict(type="CLIPContrast", clip=dict(name="ViT-B-16", pretrained="openai"), adapter=dict(type="hyperclip"))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.registry import METRICS, MODELS
from torch import Tensor, nn

import hypvision.data.shape_captions  # noqa: F401 - registers the data
from hypvision.checks import one_of
from hypvision.clip.open_vocabulary import OpenVocabularyCLIP
from hypvision.clip.towers import encode_image, encode_text
from hypvision.data.shapes import TAXONOMY
from hypvision.engine.extensions import PREDICTORS
from hypvision.engine.metrics import Metric
from hypvision.errors import HypvisionError
from hypvision.inference.predictors import Predictor, Request, zero_shot
from hypvision.tasks.classification import per_image


@MODELS.register_module()
class CLIPContrast(OpenVocabularyCLIP, BaseModel):
    """CLIP's symmetric contrastive loss (Radford et al., ICML 2021); images with the same caption are not told apart.

    Where samples say which concepts an image shows and which of them its caption names, a caption is true of every
    image that shows that concept, and the targets are shared evenly among all that are true (multi-positive InfoNCE,
    as in UniCL, Yang et al., CVPR 2022).

    Args:
        clip: arguments of :func:`hypvision.clip.models.create_clip`.
        adapter: a config of :func:`hypvision.clip.adapters.inject`: ``dict(type="hyperclip", block=32)``; None: none.
        tune: what trains, see :data:`hypvision.clip.open_vocabulary.TUNING`; default: the adapter, without one
            everything.
        classes: names that test images are compared with, in the order of their labels; anything that
            :func:`hypvision.clip.classes.load_classes` takes. None: the drawn shapes.
        templates: of the sentences that class names are put into, see
            :meth:`~hypvision.clip.open_vocabulary.OpenVocabularyCLIP.build_clip`.
        blank_words: begin the table of words with zeros. Those that no caption has stay so, and are left out of a
            published file. For a training from scratch.
        data_preprocessor, init_cfg: of mmengine.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        clip: dict[str, Any],
        adapter: dict[str, Any] | None = None,
        tune: str | None = None,
        classes: str | Path | Sequence[str] | None = None,
        templates: str | Sequence[str] = "catseg",
        blank_words: bool = False,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        tune = tune or ("full" if adapter is None else "adapter")
        classes = TAXONOMY.classes["shape"] if classes is None else classes
        self.build_clip(clip, adapter, tune, classes, templates, dense=False)
        if blank_words:
            clip_text: Any = getattr(self.clip, "text", self.clip)
            nn.init.zeros_(clip_text.token_embedding.weight)

    def forward(
        self,
        inputs: Tensor,
        caption: list[str],
        label: Tensor | None = None,
        concepts: Tensor | None = None,
        level: Tensor | None = None,
        mode: str = "tensor",
    ) -> Any:
        """mmengine's modes; ``inputs`` uint8 (B, 3, H, W), ``concepts`` int64 (B, K), the numbers of the K concepts
        that an image shows, ``level`` (B,), which of them its caption names.

        Returns:
            ``"tensor"``: unit embeddings (B, E); ``"loss"``: the two halves of the loss; ``"predict"``: for each image
            a dict with ``scores`` over the classes and ``label``.
        """
        one_of(("tensor", "loss", "predict"), mode=mode)
        images = encode_image(self.clip, (inputs.float() - self.mean) / self.std, normalize=True)
        if mode == "tensor":
            return images
        if mode == "predict":
            text = F.normalize(self.encode_classes().float().mean(1), dim=-1)
            scores = (images.float() @ text.T).cpu()
            return per_image(label, None, scores=scores)
        sentences = sorted(set(caption))
        number = torch.tensor([sentences.index(text) for text in caption], device=images.device)
        text = encode_text(self.clip, self.tokenizer(sentences).to(self.mean.device), normalize=True)
        logit_scale: Any = self.clip.logit_scale
        scale = logit_scale.exp().clamp(max=100)
        with torch.autocast(images.device.type, enabled=False):  # in bfloat16 a logit of 50 is good to 0.25
            logits = scale.float() * images.float() @ text.float().T  # (B, sentences)
        true = torch.zeros_like(logits).scatter_(1, number[:, None], 1.0)
        if concepts is not None and level is not None:
            # (B, B): image i shows what caption j names.
            named = concepts[:, level] == concepts.gather(1, level[:, None]).T
            true = (named.float() @ true).clamp(max=1)
        of_image = -(logits.log_softmax(1) * true / true.sum(1, keepdim=True)).sum(1).mean()
        of_text = -(logits.log_softmax(0) * true / true.sum(0)).sum(0).mean()
        return dict(loss_image=of_image / 2, loss_text=of_text / 2)


@METRICS.register_module()
class ZeroShotAccuracy(Metric):
    """Share of single objects, in percent, whose most similar prompt is that of their shape; NaN without images."""

    default_prefix = ""

    def process(self, data_batch: Any, data_samples: list[dict[str, Any]]) -> None:
        """Keep whether each image was named rightly."""
        for sample in data_samples:
            if sample["label"] < 0:
                raise HypvisionError("ZeroShotAccuracy needs single objects: set scenes=False in its data set.")
        scores = torch.stack([sample["scores"] for sample in data_samples])
        if self.check(scores, "A similarity", data_samples):
            best = scores.argmax(1).tolist()
            self.results += [found == sample["label"] for found, sample in zip(best, data_samples)]

    def compute_metrics(self, results: list[bool]) -> dict[str, float]:
        """The mean."""
        return dict(top1=100.0 * sum(results) / len(results) if results else math.nan)


def _predictor(model: CLIPContrast, config: Any, request: Request) -> Predictor:
    return zero_shot(model, request)


PREDICTORS["CLIPContrast"] = _predictor
