"""Losses of a tree of visual parts: contrast between parents and children, and a prior for its Gaussians.

Paper: "Improving Visual Recognition with Hyperbolical Visual Hierarchy Mapping", Kwon et al. (CVPR 2024). The paper and
the released code use the distance itself as the logit, which drives children away from their parents; ``logit`` chooses
between that and its negative, which does what the paper describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hypvision.checks import more_than, one_of
from hypvision.errors import ArgumentError
from hypvision.geometry import Euclidean, Lorentz
from hypvision.geometry.lorentz import minkowski_inner
from hypvision.geometry.numerics import exact

LOGITS = ("neg_distance", "distance", "inner")


def tree_contrastive_loss(
    points: Sequence[Tensor], manifold: Lorentz | Euclidean, logit: str = "neg_distance", temperature: float = 1.0
) -> Tensor:
    r"""Each node against its parent and the other nodes of its level, summed over pairs of neighbouring levels.

    With children :math:`h_i`, parents :math:`p_{i // 2}` and the similarity :math:`s`, a pair of levels contributes the
    mean over the batch and i of

    .. math:: -s(h_i, p_{i // 2}) + \log\Big(e^{s(h_i, p_{i // 2})} + \sum_{j \ne i} e^{s(h_i, h_j)}\Big).

    It is computed in float32, and finite with finite gradients where points coincide.

    Args:
        points: the levels from the finest to the coarsest, ``(B, n_l, D)`` with ``n_l = 2 n_{l+1}``; points of
            ``manifold``.
        manifold: where the points lie.
        logit: the similarity: ``"neg_distance"`` (minus the geodesic distance), ``"distance"`` (plus; the released
            code) or ``"inner"`` (the inner product, Minkowski's on the hyperboloid).
        temperature: divides the similarity.

    Returns:
        The loss, a scalar; 0 for a single level.
    """
    one_of(LOGITS, logit=logit)
    more_than(0, temperature=temperature)
    total = points[0].new_zeros((), dtype=torch.promote_types(points[0].dtype, torch.float32))
    for children, parents in pairwise(points):
        if children.shape[-2] != 2 * parents.shape[-2]:
            raise ArgumentError(
                f"A level must have half of the nodes of the finer one, got {children.shape[-2]}, {parents.shape[-2]}."
            )
        parents = parents.repeat_interleave(2, -2)  # (B, n, D): node j has the parent j // 2
        with exact(children.device):
            among, above = _similarities(children, parents, manifold, logit)
            own = torch.eye(among.shape[-1], dtype=torch.bool, device=among.device)
            logits = torch.where(own, above.unsqueeze(-1), among) / temperature
            total = total + (torch.logsumexp(logits, -1) - above / temperature).mean()
    return total


def _similarities(
    children: Tensor, parents: Tensor, manifold: Lorentz | Euclidean, logit: str
) -> tuple[Tensor, Tensor]:
    """Similarity of the children among each other ``(B, n, n)``, and to their parents ``(B, n)``."""
    if logit == "inner":
        x, y = (points.to(torch.promote_types(points.dtype, torch.float32)) for points in (children, parents))
        if isinstance(manifold, Lorentz):
            mirrored = torch.cat([-x[..., :1], x[..., 1:]], -1)
            return torch.matmul(x, mirrored.transpose(-1, -2)), minkowski_inner(x, y).reshape(x.shape[:-1])
        return torch.matmul(x, x.transpose(-1, -2)), (x * y).sum(-1)
    among, above = manifold.cdist(children, children), manifold.dist(children, parents)
    among, above = (d.to(torch.promote_types(d.dtype, torch.float32)) for d in (among, above))
    return (among, above) if logit == "distance" else (-among, -above)


def gaussian_prior_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence of diagonal Gaussians from the standard normal one, the mean over all entries.

    .. math:: -\tfrac12\,\mathrm{mean}(1 + s - \mu^2 - e^s)

    Args:
        mean, log_variance: :math:`\mu` and :math:`s`, of equal shape.

    Returns:
        A scalar >= 0, computed in float32.
    """
    mean, log_variance = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (mean, log_variance))
    return 0.5 * (torch.expm1(log_variance) - log_variance + mean * mean).mean()
