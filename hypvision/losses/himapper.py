"""Losses of HiMapper's tree of visual parts: a contrastive loss between parents and children, and a
prior for the Gaussians of its nodes.

Paper: "Improving Visual Recognition with Hyperbolical Visual Hierarchy Mapping", Kwon et al. (CVPR
2024). The paper's formula and the released code use the distance itself as the logit, which drives
children away from their parents; ``logit`` chooses between the distance and its negative, which
does what the paper's text describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hypvision.geometry import Euclidean, Lorentz
from hypvision.geometry.numerics import exact
from hypvision.io import ArgumentError, more_than, one_of

LOGITS = ("neg_distance", "distance", "inner")


def tree_contrastive_loss(
    points: Sequence[Tensor],
    manifold: Lorentz | Euclidean,
    logit: str = "neg_distance",
    temperature: float = 1.0,
) -> Tensor:
    r"""Return the contrastive loss of each node's parent against the other nodes of the node's
    level, summed over pairs of neighbouring levels.

    With children :math:`h_i`, their parents :math:`p_{i // 2}` and the similarity :math:`s`, a pair
    of levels contributes the mean over the batch and over :math:`i` of

    .. math:: -s(h_i, p_{i // 2})
              + \log\Big(e^{s(h_i, p_{i // 2})} + \sum_{j \ne i} e^{s(h_i, h_j)}\Big).

    The loss is computed in float32, and is finite with finite gradients even if points coincide.

    Args:
        points: the levels of the tree from the finest to the coarsest, ``(B, n_l, D)`` with ``n_l =
            2 n_{l+1}``; points of ``manifold``.
        manifold: the space in which the points lie.
        logit: the similarity ``s``: ``"neg_distance"`` (minus the geodesic distance),
            ``"distance"`` (the distance, as in the released code) or ``"inner"`` (the inner
            product, on the hyperboloid Minkowski's).
        temperature: number by which the similarity is divided.

    Returns:
        The loss, a scalar; 0 for a single level.
    """
    one_of(LOGITS, logit=logit)
    more_than(0, temperature=temperature)
    sizes = [level.shape[-2] for level in points]
    for children, parents in pairwise(sizes):
        if children != 2 * parents:
            raise ArgumentError(
                f"A level must have half of the nodes of the finer one, got {children}, {parents}."
            )
    count = sum(sizes[:-1])
    with exact(points[0].device):
        nodes = torch.cat(list(points), -2)
        similar = _similarities(nodes, manifold, logit)[..., :count, :] / temperature
        if not count:
            return similar.sum()
        level = torch.cat(
            [torch.full((size,), i, device=nodes.device) for i, size in enumerate(sizes)]
        )
        every = torch.arange(len(level), device=nodes.device)
        child = every[:count, None]
        parent = sizes[0] + child // 2
        compared = (level[:count, None] == level) & (every != child) | (every == parent)
        above = similar.gather(-1, parent.expand(*similar.shape[:-1], 1)).squeeze(-1)
        terms = torch.logsumexp(similar.masked_fill(~compared, -torch.inf), -1) - above
        return (terms.reshape(-1, count).mean(0) / compared.sum(-1)).sum()


def _similarities(nodes: Tensor, manifold: Lorentz | Euclidean, logit: str) -> Tensor:
    """Return the similarities ``(B, n, n)`` of the nodes ``(B, n, D)`` of a tree, in float32 or
    float64."""
    dtype = torch.promote_types(nodes.dtype, torch.float32)
    if logit != "inner":
        distances = manifold.cdist(nodes, nodes).to(dtype)
        return distances if logit == "distance" else -distances
    nodes = nodes.to(dtype)
    mirrored = (
        torch.cat([-nodes[..., :1], nodes[..., 1:]], -1) if isinstance(manifold, Lorentz) else nodes
    )
    return torch.matmul(nodes, mirrored.transpose(-1, -2))


def gaussian_prior_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    r"""Return the Kullback-Leibler divergence of diagonal Gaussians from the standard normal
    distribution, as the mean over all entries.

    .. math:: -\tfrac12\,\mathrm{mean}(1 + s - \mu^2 - e^s)

    Args:
        mean, log_variance: :math:`\mu` and :math:`s` of the Gaussians, of equal shape.

    Returns:
        A scalar >= 0, computed in float32.
    """
    mean, log_variance = (
        t.to(torch.promote_types(t.dtype, torch.float32)) for t in (mean, log_variance)
    )
    return 0.5 * (torch.expm1(log_variance) - log_variance + mean * mean).mean()
