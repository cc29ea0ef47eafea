"""The losses of UNCHA, for images with several boxes each.

Paper: "Uncertainty-guided Compositional Alignment with Part-to-Whole Semantic Representativeness in
    Hyperbolic Vision-Language Models", Kim, Jang, Kim, Chun (CVPR 2026), as their code computes
    them.

Here M boxes belong to B images, each with a text; ``owner`` ``(M,)`` is the index of each box's
image.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .contrastive import soft_cross_entropy

BETWEEN = 0.7
"""Factor of the aperture of a text's cone, in which the text's image should lie."""
WITHIN = 1.2
"""Factor of the aperture of a box's cone, in which the box's whole image (or text) should lie."""


def uncertainty(x: Tensor) -> Tensor:
    """Return the uncertainty ``(...)`` of points ``(..., d + 1)`` of the hyperboloid, ``log(1 +
    exp(-|x_s|))`` with their space parts ``x_s``: ``log 2`` at the root, and 0 far from it."""
    return F.softplus(-torch.linalg.vector_norm(x[..., 1:], dim=-1))


def box_to_whole_contrast(logits: Tensor, boxes: Tensor, true: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy with which each box identifies its own whole image among those
    of all boxes.

    A whole image with several boxes has a column for each box, and only the column of the box in
    question counts as right.

    Args:
        logits: similarities ``(N, M)`` of N of the M boxes with the whole image of each of the M
            boxes.
        boxes: points of the N boxes ``(N, d + 1)``. The logits of uncertain boxes are shrunk, by
            ``exp(-u / 2)`` with the uncertainty u, through which no gradient flows.
        true: ``(N, M)``, 1 in the column of the box itself; None: the diagonal.
    """
    weights = torch.exp(-uncertainty(boxes) / 2).detach()
    logits = weights[:, None].to(logits.dtype) * logits
    true = torch.eye(len(logits), device=logits.device) if true is None else true
    return soft_cross_entropy(logits, true)


def uncertain_entailment(
    image: Tensor,
    text: Tensor,
    box_image: Tensor,
    box_text: Tensor,
    owner: Tensor,
    manifold: Any,
    min_radius: float = 0.1,
) -> dict[str, Tensor]:
    """Return UNCHA's entailment losses of points of the hyperboloid, by name.

    Args:
        image, text: points of whole images and of their texts ``(B, d + 1)``.
        box_image, box_text: points of boxes and of their words ``(M, d + 1)``.
        owner: index of each box's image ``(M,)``.
        manifold: a :class:`~hypvision.geometry.Lorentz`.
        min_radius: see :func:`hypvision.geometry.lorentz.half_aperture`.

    Returns:
        Losses by name; 0.2 times their sum is the entailment part of the paper's loss. The
        calibration losses contain the entropy of the boxes' uncertainties, which depends on M.
        Without boxes, as may happen in one of several processes, losses of boxes are 0.
    """

    def residual(general: Tensor, specific: Tensor, factor: float) -> Tensor:
        """Return how far ``specific`` is outside of the cone, plus a tenth of its exterior angle,
        so that the angle shrinks inside the cone, too."""
        angle: Tensor = manifold.exterior_angle(general, specific)
        aperture = manifold.half_aperture(general, min_radius)
        return torch.relu(angle - factor * aperture) + 0.1 * angle

    of_images = residual(box_image, image[owner], WITHIN)
    of_texts = residual(box_text, text[owner], WITHIN)
    return dict(
        text_image=0.5 * residual(text, image, BETWEEN).mean(),
        box_text_image=0.5 * _mean(residual(box_text, box_image, BETWEEN)),
        image_box=0.25 * _mean(of_images),
        text_box=0.25 * _mean(of_texts),
        image_calibration=_calibration(of_images, uncertainty(box_image)),
        text_calibration=_calibration(of_texts, uncertainty(box_text)),
    )


def _calibration(residual: Tensor, u: Tensor) -> Tensor:
    """Return the loss that makes the uncertainties ``u`` ``(M,)`` of boxes, as logarithms of a
    variance, fit the boxes' entailment losses ``residual`` ``(M,)``, which get no gradient. The
    entropy of ``u`` is added, so that it falls, as in the official code."""
    calibrated = 0.5 * residual.detach() / (u.exp() + 1e-6) + 0.5 * u
    share = u.softmax(0)
    entropy = -(share * torch.log(share + 1e-8)).sum()
    return 10 * (_mean(calibrated) + entropy)


def _mean(x: Tensor) -> Tensor:
    """Return the mean of the losses of boxes ``(M,)``; 0 without boxes, where the mean is NaN."""
    return x.sum() / max(1, len(x))
