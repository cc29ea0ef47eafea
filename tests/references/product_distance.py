"""Pairwise distances of the hyperboloid by one inner product: the form of geoopt's ``cdist``."""

from __future__ import annotations

import torch
from torch import Tensor


def cdist(x: Tensor, y: Tensor, k: float = 1.0) -> Tensor:
    """``sqrt(k) arcosh(-<x, y> / k)`` of points ``(N, n + 1)`` and ``(M, n + 1)`` with
    ``<x, x> = -k``, ``(N, M)``.

    The logarithm is taken in float64, its root floored at 1e-15, as the library takes every arcosh.
    """
    left = torch.cat([-x[..., :1], x[..., 1:]], -1)
    z = -(left @ y.transpose(-1, -2)).double() / k
    return (k**0.5 * torch.log(z + torch.sqrt((z * z - 1).clamp(min=1e-15)))).to(x.dtype)
