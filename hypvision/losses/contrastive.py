"""The losses of CLIP, MERU, HyCoCLIP and PHyCLIP on pairs of images and texts.

Papers: "Hyperbolic Image-Text Representations", Desai et al. (ICML 2023); "Compositional Entailment
Learning for Hyperbolic Vision-Language Models", Pal et al. (ICLR 2025); "l1-Product of Hyperbolic
Factors Unifies Hierarchy and Compositionality in Vision-Language Representation Learning",
Yoshikawa, Matsubara (ICLR 2026).

Logits are a scale times the cosine on CLIP's sphere, and minus a scale times the distance on the
hyperboloid (:mod:`hypvision.clip.spaces`). For a batch that is spread over processes gather the
points first: :func:`gathered`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from hypvision.io.errors import ArgumentError


def gathered(x: Tensor) -> Tensor:
    """``x`` (B, ...) of all processes (P * B, ...), in the order of their ranks, with gradients to
    each; ``x`` itself without processes."""
    if (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    ):
        return x
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(x.contiguous()))


def gathered_rows(x: Tensor, places: Tensor, size: int, every: Tensor) -> Tensor:
    """Rows ``(M, d)`` of all processes, each of which may have another number of them.

    Args:
        x: the rows of this process.
        places: where they lie among ``size`` places, as many in each process.
        every: where those of all processes lie, one process after the other.
    """
    padded = x.new_zeros(size, x.shape[-1])
    return gathered(padded.index_copy(0, places, x))[every]


def soft_cross_entropy(logits: Tensor, true: Tensor, dim: int = 1) -> Tensor:
    """Mean cross-entropy of the rows of ``logits`` (N, M), or of its columns with ``dim`` 0; 0 of
    no rows, which a process may have.

    A target is shared evenly among what ``true`` (N, M), 0 or 1, marks in a row.
    """
    shares = true / true.sum(dim, keepdim=True)
    return -(logits.log_softmax(dim) * shares).sum() / max(1, logits.shape[1 - dim])


def contrastive_loss(logits: Tensor, true: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The losses of images and of texts in CLIP's symmetric loss, before their mean.

    Args:
        logits: images x texts (N, M).
        true: (N, M), 1 where a text is true of an image; default: the diagonal.

    Raises:
        ValueError: without ``true`` there are more images than texts, or fewer.
    """
    if true is None and logits.shape[0] != logits.shape[1]:
        raise ArgumentError(
            f"contrastive_loss: {logits.shape[0]} images and {logits.shape[1]} texts are not "
            "pairs. Give as many of both, or say with true which belong together."
        )
    true = torch.eye(len(logits), device=logits.device) if true is None else true
    # columns as they lie in memory: a transposed table of 2,048 columns takes twice as long
    return soft_cross_entropy(logits, true), soft_cross_entropy(logits, true, dim=0)


def entailment(
    general: Tensor,
    specific: Tensor,
    manifold: Any,
    factor: float = 1.0,
    min_radius: float = 0.1,
) -> Tensor:
    """How far points ``(..., d)`` are outside of the cones of more general ones, in radians
    ``(...)``, or ``(..., k)`` on a product of k manifolds.

    Args:
        general, specific: points.
        manifold: a :class:`~hypvision.geometry.Lorentz`, or a
            :class:`~hypvision.geometry.Product` of several.
        factor: of the half-aperture.
        min_radius: of :func:`hypvision.geometry.lorentz.half_aperture`.
    """
    angle = manifold.exterior_angle(general, specific)
    return torch.relu(angle - factor * manifold.half_aperture(general, min_radius))


def compositional_entailment(
    image: Tensor,
    text: Tensor,
    box_image: Tensor,
    box_text: Tensor,
    manifold: Any,
    between: float = 0.7,
    within: float = 1.2,
    min_radius: float = 0.1,
) -> dict[str, Tensor]:
    """HyCoCLIP's four entailments of points (B, d): a text entails its image, and a box what it was
    cut from. On a product of hyperboloids they are PHyCLIP's.

    Where a box has the words of the whole image, the points of the two texts coincide: here their
    angle is 0 and costs nothing, in the official code it is pi/2 and costs pi/2 less the aperture,
    which draws the text towards the root.

    Args:
        image, text: of whole images and their captions.
        box_image, box_text: of one box of each, and of its words.
        manifold, min_radius: see :func:`entailment`.
        between, within: factors of the aperture, between the modalities and within one.

    Returns:
        Means by name, to be weighted by 0.2 * 0.5 in the paper's loss.
    """
    general = torch.stack([text, box_text, box_image, box_text])
    specific = torch.stack([image, box_image, image, text])
    angles = manifold.exterior_angle(general, specific)
    apertures = manifold.half_aperture(general, min_radius)
    factors = dict(text_image=between, box_text_image=between, image_box=within, text_box=within)
    return {
        name: torch.relu(angle - factor * aperture).mean()
        for (name, factor), angle, aperture in zip(factors.items(), angles, apertures)
    }
