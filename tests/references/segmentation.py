"""Hyperbolic segmentation written out in float64: Moebius addition, every family by itself."""

import torch


def exp0(u, c):
    size = u.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    radius = (c**0.5 * size).tanh().clamp(max=0.999)
    return u / size * radius / c**0.5


def add(x, y, c):
    inner = (x * y).sum(-1, keepdim=True)
    x2, y2 = x.square().sum(-1, keepdim=True), y.square().sum(-1, keepdim=True)
    top = (1 + 2 * c * inner + c * y2) * x + (1 - c * x2) * y
    return top / (1 + 2 * c * inner + c * c * x2 * y2)


def logits(u, p, a, c, longest=None):
    """Of tangent vectors ``(N, d)``, offsets and normals ``(M, d)``: ``(N, M)``; moved points are
    cut to ``longest`` times the radius, in the official code 0.999."""
    moved = add(-p[None], exp0(u, c)[:, None], c)
    if longest is not None:
        radius = c**0.5 * moved.norm(dim=-1, keepdim=True)
        moved = moved * (longest / radius).clamp(max=1.0)
    size = a.norm(dim=-1)
    side = 2 * c**0.5 * (moved * (a / size[:, None])).sum(-1)
    return 2 / c**0.5 * size * torch.asinh(side / (1 - c * moved.square().sum(-1)))


def joints(values, parents, leaves):
    """Log-probabilities ``(N, leaves)`` from logits ``(N, M)``."""
    columns = []
    for leaf in range(leaves):
        total, node = 0, leaf
        while node >= 0:
            family = [i for i, parent in enumerate(parents) if parent == parents[node]]
            total = total + values[:, node] - values[:, family].logsumexp(-1)
            node = parents[node]
        columns.append(total)
    return torch.stack(columns, -1)
