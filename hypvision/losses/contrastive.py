"""The losses of CLIP, MERU, HyCoCLIP and PHyCLIP on pairs of images and texts.

Papers: "Hyperbolic Image-Text Representations", Desai et al. (ICML 2023); "Compositional Entailment
Learning for Hyperbolic Vision-Language Models", Pal et al. (ICLR 2025); "l1-Product of Hyperbolic
Factors Unifies Hierarchy and Compositionality in Vision-Language Representation Learning",
Yoshikawa, Matsubara (ICLR 2026).

Logits are a scale times the cosine on CLIP's sphere, and minus a scale times the distance on the
hyperboloid (:mod:`hypvision.clip.spaces`). If a batch is spread over processes, :func:`gathered`
must bring its points together first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from hypvision.io import ArgumentError


def gathered(x: Tensor) -> Tensor:
    """Return ``x`` (B, ...) of all P processes, (P * B, ...), in the order of their ranks, with
    gradients to each process; ``x`` itself if there is one process. B must be the same in each."""
    if (
        not (distributed.is_available() and distributed.is_initialized())
        or distributed.get_world_size() == 1
    ):
        return x
    from torch.distributed.nn.functional import all_gather

    return torch.cat(all_gather(x.contiguous()))


def gathered_rows(x: Tensor, places: Tensor, size: int, every: Tensor) -> Tensor:
    """Return the rows of all processes, ``(M, d)``, where each process may have another number of
    rows.

    Args:
        x: the rows of this process.
        places: the positions of these rows among ``size`` positions; ``size`` is the same in each
            process.
        every: the positions of the rows of all processes, one process after the other.
    """
    padded = x.new_zeros(size, x.shape[-1])
    return gathered(padded.index_copy(0, places, x))[every]


def soft_cross_entropy(logits: Tensor, true: Tensor, dim: int = 1) -> Tensor:
    """Return the mean cross-entropy of the rows of ``logits`` (N, M), or of its columns with
    ``dim`` 0; 0 if there are no rows, as may happen in one of several processes.

    The target of a row is spread evenly over the entries that are 1 in ``true`` (N, M), which has 0
    or 1. A row without a 1, such as an image without a caption, adds 0 to the sum.
    """
    total = true.sum(dim, keepdim=True)
    shares = true / (total + (total == 0))
    return -(logits.log_softmax(dim) * shares).sum() / max(1, logits.shape[1 - dim])


def contrastive_loss(logits: Tensor, true: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the two parts of CLIP's symmetric loss, of which the loss is the mean: the
    cross-entropy of images against texts, and of texts against images.

    Args:
        logits: similarities of images and texts (N, M).
        true: (N, M), 1 where a text is true of an image, else 0; None: the diagonal.

    Raises:
        ValueError: ``true`` is None and the numbers of images and texts differ, or ``true`` has
            another shape than ``logits``.
    """
    if true is not None and true.shape != logits.shape:
        raise ArgumentError(
            f"contrastive_loss: 'true' has the shape {tuple(true.shape)}, the logits have "
            f"{tuple(logits.shape)}. Give a row for each image and a column for each text."
        )
    if true is None and logits.shape[0] != logits.shape[1]:
        raise ArgumentError(
            f"contrastive_loss: {logits.shape[0]} images and {logits.shape[1]} texts are not "
            "pairs. Give equally many, or say with 'true' which texts belong to which images."
        )
    true = torch.eye(len(logits), device=logits.device) if true is None else true
    # The softmax runs down the columns as they lie in memory: transposing a table of 2,048 columns
    # first would take twice as long.
    return soft_cross_entropy(logits, true), soft_cross_entropy(logits, true, dim=0)


def entailment(
    general: Tensor,
    specific: Tensor,
    manifold: Any,
    factor: float = 1.0,
    min_radius: float = 0.1,
) -> Tensor:
    """Return by how much points lie outside of the entailment cones of more general points, in
    radians ``(...)``, or ``(..., k)`` on a product of k manifolds; 0 inside.

    Args:
        general, specific: points ``(..., d)``; each general one is the apex of a cone.
        manifold: a :class:`~hypvision.geometry.Lorentz`, or a
            :class:`~hypvision.geometry.Product` of several.
        factor: factor by which the cone's half-aperture is multiplied.
        min_radius: see :func:`hypvision.geometry.lorentz.half_aperture`.
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
    """Return HyCoCLIP's four entailment losses of points (B, d): a text entails its image, and a
    box what it was cut from. On a product of hyperboloids they are PHyCLIP's losses.

    If a box has the same words as the whole image, the points of the two texts coincide. Here their
    exterior angle is then 0 and costs nothing; in the official code it is pi/2 and costs pi/2 less
    the aperture, which draws the text towards the root.

    Args:
        image, text: points of whole images and of their captions.
        box_image, box_text: points of one box of each image, and of the box's words.
        manifold, min_radius: see :func:`entailment`.
        between, within: factors of the aperture for pairs of an image and a text (``between``), and
            for pairs of two images or two texts (``within``).

    Returns:
        The mean of each entailment loss by its name; the paper weights their sum by 0.2 * 0.5.
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
