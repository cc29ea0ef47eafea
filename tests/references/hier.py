"""HIER's loss as it was published, step by step: what tests and benchmarks compare the fast form
with.

Kim, Jeong and Kwak, CVPR 2023. Distances come from Moebius additions of all pairs, ``(N, N, dim)``;
the lowest common ancestors of all triplets from dense ``(T, P)`` tensors. Triplets and Gumbel noise
are given, so that results compare.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "reference_distances",
    "reference_hier_loss",
    "reference_to_ball",
    "reference_triplet_loss",
]


class _RiemannianGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y: Tensor, c: float) -> Tensor:
        ctx.save_for_backward(y)
        ctx.c = c
        return y.clone()

    @staticmethod
    def backward(ctx, grad: Tensor):
        (y,) = ctx.saved_tensors
        return grad * (1 - ctx.c * (y * y).sum(-1, keepdim=True)) ** 2 / 4, None


def reference_to_ball(x: Tensor, c: float = 0.1, clip: float = 2.3) -> Tensor:
    """Feature clipping, exponential map at the origin, projection."""
    root = c**0.5
    length = x.norm(dim=-1, keepdim=True) + 1e-5
    x = x * torch.minimum(torch.ones_like(length), clip / length)
    norm = x.norm(dim=-1, keepdim=True).clamp(min=1e-5)
    y = torch.tanh((root * norm).clamp(max=15)) * x / (root * norm)
    norm = y.norm(dim=-1, keepdim=True).clamp(min=1e-5)
    limit = (1 - 1e-3) / root
    return _RiemannianGradient.apply(torch.where(norm > limit, y / norm * limit, y), c)


def reference_distances(points: Tensor, c: float = 0.1) -> Tensor:
    """Distances ``(N, N)`` of points of the ball from Moebius sums ``(-x) + y``."""
    x, y = -points[:, None], points[None]
    xy, xx, yy = ((a * b).sum(-1, keepdim=True) for a, b in ((x, y), (x, x), (y, y)))
    sums = ((1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y) / (
        1 + 2 * c * xy + c * c * xx * yy + 1e-5
    )
    return 2 / c**0.5 * torch.atanh((c**0.5 * sums.norm(dim=-1)).clamp(max=1 - 1e-5))


def reference_triplet_loss(
    dist: Tensor,
    triplets: Tensor,
    gumbel: Tensor,
    temperature: float = 0.1,
    margin: float = 0.1,
    exp: bool = False,
) -> Tensor:
    """Mean loss of triplets, with straight-through Gumbel softmax; ``exp``: of exp(-max d), as the
    papers write it."""

    def choose(largest: Tensor, noise: Tensor) -> Tensor:
        logits = (-largest).exp() if exp else -largest / temperature
        soft = torch.softmax(logits + noise, dim=-1)
        hard = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
        return hard - soft.detach() + soft

    i, j, k = (dist[rows] for rows in triplets.T)
    largest = torch.maximum(i, j)
    pair = choose(largest, gumbel[0])
    triple = choose(torch.maximum(largest, k), gumbel[1])

    def away(d: Tensor, choice: Tensor) -> Tensor:
        return (d * choice).sum(-1)

    loss = torch.relu(away(i, pair) - away(i, triple) + margin)
    loss = loss + torch.relu(away(j, pair) - away(j, triple) + margin)
    loss = loss + torch.relu(away(k, triple) - away(k, pair) + margin)
    return (loss * (pair.argmax(-1) != triple.argmax(-1))).mean()


def reference_hier_loss(
    features: Tensor,
    proxies: Tensor,
    triplets: tuple[Tensor, Tensor],
    gumbel: tuple[Tensor, Tensor],
    c: float = 0.1,
    clip: float = 2.3,
    exp: bool = False,
) -> Tensor:
    """The loss of features ``(B, dim)`` and proxy vectors ``(P, dim)``, before they enter the
    ball."""
    nodes = torch.cat([reference_to_ball(features, c, clip), reference_to_ball(proxies, c, clip)])
    dist = reference_distances(nodes, c)
    count = len(features)
    parts = (dist[:count, count:], dist[count:, count:])
    return sum(
        reference_triplet_loss(d, rows, noise, exp=exp)
        for d, rows, noise in zip(parts, triplets, gumbel)
    )
