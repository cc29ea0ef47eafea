"""Classes of boxes and masks from CLIP's dense embeddings: pooling, similarity to texts, fusion
with trained scores.

The fusion is that of F-VLM (Kuo et al., ICLR 2023): the trained head is better on classes that it
was trained on, CLIP on all others.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import roi_align

from hypvision.io.errors import HypvisionError


def pool_boxes(features: Tensor, rois: Tensor, scale: float) -> Tensor:
    """Mean embedding (K, E), float32, of boxes (K, 5): image number, left, top, right, bottom in
    pixels of the image; by RoIAlign of one bin on dense embeddings (B, E, h, w) with ``scale``
    patches for a pixel."""
    return roi_align(features.float(), rois.float(), 1, scale, -1, True).flatten(1)


def pool_masks(features: Tensor, masks: Tensor) -> Tensor:
    """Mean embedding (B, Q, E), float32, of masks (B, Q, H, W) with weights of pixels from 0 to 1
    at any resolution, on dense embeddings (B, E, h, w); zeros where a mask is empty."""
    # Average the mask over each patch: a mask smaller than a patch gets a weight below 1.
    weight = F.adaptive_avg_pool2d(masks.float(), (features.shape[-2], features.shape[-1])).flatten(
        2
    )
    total = weight.sum(-1, keepdim=True)
    return torch.bmm(weight, features.float().flatten(2).transpose(1, 2)) / total.clamp(min=1e-6)


def region_logits(embeddings: Tensor, text: Tensor, temperature: float | Tensor) -> Tensor:
    """Cosines (..., T), float32, of regions (..., E) and classes times a temperature; the P prompts
    of each class in the texts (T, P, E) are averaged."""
    mean = F.normalize(text.float().mean(1), dim=-1)
    return temperature * (F.normalize(embeddings.float(), dim=-1) @ mean.T)


class TextClassifier(nn.Module):
    """Regions against texts by cosines with a learned temperature, and against a learned embedding
    of "nothing"."""

    def __init__(self, embedding_size: int, temperature: float = 50.0):
        super().__init__()
        self.nothing = nn.Parameter(torch.randn(embedding_size) / embedding_size**0.5)
        self.log_temperature = nn.Parameter(torch.tensor(float(temperature)).log())

    def forward(self, embeddings: Tensor, text: Tensor) -> Tensor:
        """Logits (..., T + 1) of embeddings (..., E) and texts (T, P, E); the last is that of
        nothing."""
        mean = F.normalize(text.float().mean(1), dim=-1)
        every = torch.cat([mean, F.normalize(self.nothing.float(), dim=0)[None]])
        return region_logits(embeddings, every[:, None], self.log_temperature.exp())


def fuse_scores(trained: Tensor, clip: Tensor, seen: Tensor, alpha: float, beta: float) -> Tensor:
    """Geometric mean of two probabilities (..., T) with an exponent for classes seen in training
    (bool (T,)) and one for the others: ``trained^(1 - a) * clip^a`` with ``a = alpha`` where
    ``seen``, else ``beta``."""
    if not (0 <= alpha <= 1 and 0 <= beta <= 1):
        raise HypvisionError(
            f"alpha={alpha} and beta={beta} are weights of CLIP's scores: give numbers from 0 to 1."
        )
    exponent = torch.where(seen, alpha, beta).to(trained.dtype)
    return trained ** (1 - exponent) * clip**exponent
