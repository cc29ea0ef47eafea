"""Classify boxes and masks by CLIP's dense embeddings: pool them over a region, compare them with
texts, and fuse CLIP's scores with trained ones.

The fusion is that of F-VLM (Kuo et al., ICLR 2023): a trained head is better for classes that it
was trained on, CLIP for all others.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from hypvision.io import HypvisionError


def pool_boxes(features: Tensor, rois: Tensor, scale: float) -> Tensor:
    """Return the mean embeddings ``(K, E)``, float32, of K boxes ``rois`` ``(K, 5)``: image number,
    left, top, right, bottom, in pixels of the image. RoIAlign with a single bin averages the dense
    embeddings ``(B, E, h, w)``; ``scale`` is the number of patches a pixel."""
    return roi_align(features.float(), rois.float(), 1, scale, -1, True).flatten(1)


def pool_masks(features: Tensor, masks: Tensor) -> Tensor:
    """Return the mean embeddings ``(B, Q, E)``, float32, of masks ``(B, Q, H, W)``, which weight
    pixels by 0 to 1 at any resolution, over dense embeddings ``(B, E, h, w)``; zeros for an empty
    mask."""
    # Averaging the mask over each patch gives a patch that it covers in part a weight below 1.
    weight = F.adaptive_avg_pool2d(masks.float(), (features.shape[-2], features.shape[-1])).flatten(
        2
    )
    total = weight.sum(-1, keepdim=True)
    return torch.bmm(weight, features.float().flatten(2).transpose(1, 2)) / total.clamp(min=1e-6)


def region_logits(embeddings: Tensor, text: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the cosines ``(..., T)``, float32, of regions ``(..., E)`` and classes, times a
    temperature; the P prompts of each class in ``text`` ``(T, P, E)`` are averaged."""
    mean = F.normalize(text.float().mean(1), dim=-1)
    return temperature * (F.normalize(embeddings.float(), dim=-1) @ mean.T)


class TextClassifier(nn.Module):
    """A classifier of regions by their cosines with the texts of classes and with a learned
    embedding of "nothing", times a learned temperature."""

    def __init__(self, embedding_size: int, temperature: float = 50.0):
        super().__init__()
        self.nothing = nn.Parameter(torch.randn(embedding_size) / embedding_size**0.5)
        self.log_temperature = nn.Parameter(torch.tensor(float(temperature)).log())

    def forward(self, embeddings: Tensor, text: Tensor) -> Tensor:
        """Return logits ``(..., T + 1)`` of regions ``(..., E)`` for texts ``(T, P, E)``; the last
        is the logit of "nothing"."""
        mean = F.normalize(text.float().mean(1), dim=-1)
        every = torch.cat([mean, F.normalize(self.nothing.float(), dim=0)[None]])
        return region_logits(embeddings, every[:, None], self.log_temperature.exp())


def fuse_scores(trained: Tensor, clip: Tensor, seen: Tensor, alpha: float, beta: float) -> Tensor:
    """Return the weighted geometric mean ``trained^(1 - a) * clip^a`` of two probabilities ``(...,
    T)``, where ``a`` is ``alpha`` for classes seen in training (``seen``, bool ``(T,)``) and
    ``beta`` for the others."""
    if not (0 <= alpha <= 1 and 0 <= beta <= 1):
        raise HypvisionError(
            f"alpha={alpha} and beta={beta} are weights of CLIP's scores: give numbers from 0 to 1."
        )
    exponent = torch.where(seen, alpha, beta).to(trained.dtype)
    return trained ** (1 - exponent) * clip**exponent
