"""The losses of UNCHA on wholes and several boxes of each.

Paper: "Uncertainty-guided Compositional Alignment with Part-to-Whole Semantic Representativeness in
    Hyperbolic Vision-Language Models", Kim, Jang, Kim, Chun (CVPR 2026), as their code computes
    them.

M boxes belong to B images with a text each; ``owner`` ``(M,)`` is the number of a box's image.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .contrastive import soft_cross_entropy

BETWEEN = 0.7
"""Factor of the aperture for an image in the cone of its text."""
WITHIN = 1.2
"""Factor of the aperture for a whole in the cone of its box."""


def uncertainty(x: Tensor) -> Tensor:
    """How little points ``(..., d + 1)`` of the hyperboloid say, ``(...)``:
    ``log(1 + exp(-|x_s|))`` of their space parts, ``log 2`` at the root and 0 far from it."""
    return F.softplus(-torch.linalg.vector_norm(x[..., 1:], dim=-1))


def box_to_whole_contrast(logits: Tensor, boxes: Tensor, true: Tensor | None = None) -> Tensor:
    """The mean cross-entropy of boxes against the wholes of all boxes.

    A whole with several boxes has a column for each of them, and only that of the query is right.

    Args:
        logits: ``(N, M)``, of N of M boxes and the whole of each of the M.
        boxes: points of the N boxes ``(N, d + 1)``. Logits of uncertain ones shrink, by
            ``exp(-u / 2)``, through which no gradient flows.
        true: ``(N, M)``, 1 at the box itself; default: the diagonal.
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
    """UNCHA's entailments of points of the hyperboloid, by name.

    Args:
        image, text: of whole images and their texts ``(B, d + 1)``.
        box_image, box_text: of boxes and their words ``(M, d + 1)``.
        owner: the whole of each box ``(M,)``.
        manifold: a :class:`~hypvision.geometry.Lorentz`.
        min_radius: of :func:`hypvision.geometry.lorentz.half_aperture`.

    Returns:
        Numbers whose sum, times 0.2, is that part of the paper's loss. The calibrations have the
        entropy of the boxes' uncertainties, which depends on M.
    """

    def residual(general: Tensor, specific: Tensor, factor: float) -> Tensor:
        """0 at an angle of 0 alone: inside of the cone, too, the angle shrinks."""
        angle: Tensor = manifold.exterior_angle(general, specific)
        aperture = manifold.half_aperture(general, min_radius)
        return torch.relu(angle - factor * aperture) + 0.1 * angle

    of_images = residual(box_image, image[owner], WITHIN)
    of_texts = residual(box_text, text[owner], WITHIN)
    return dict(
        text_image=0.5 * residual(text, image, BETWEEN).mean(),
        box_text_image=0.5 * residual(box_text, box_image, BETWEEN).mean(),
        image_box=0.25 * of_images.mean(),
        text_box=0.25 * of_texts.mean(),
        image_calibration=_calibration(of_images, uncertainty(box_image)),
        text_calibration=_calibration(of_texts, uncertainty(box_text)),
    )


def _calibration(residual: Tensor, u: Tensor) -> Tensor:
    """The loss of boxes' uncertainties ``u``, logarithms of a variance, by what is left of their
    entailment, ``(M,)`` both, without a gradient to the latter; their entropy is added, so that it
    falls, as in the official code."""
    calibrated = 0.5 * residual.detach() / (u.exp() + 1e-6) + 0.5 * u
    share = u.softmax(0)
    entropy = -(share * torch.log(share + 1e-8)).sum()
    return 10 * (calibrated.mean() + entropy)
