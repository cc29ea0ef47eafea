"""What the layers share: time coordinates and radial factors of space-only features, in float32 also under autocast.

Inside a network Lorentz points travel as their space parts: maps ``(B, C, H, W)`` and tokens ``(..., n)``. Time is
computed where a formula needs it, so Euclidean kernels do the work.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hypvision.geometry.lorentz import max_distance
from hypvision.geometry.numerics import asinhc_sqrt, safe_sqrt, sinhc_sqrt, tanhc

__all__ = ["radial_rescale", "space_square", "space_time", "squash_factor"]


def space_square(space: Tensor, dim: int = -1) -> Tensor:
    """Squared norm of space parts along ``dim``, which is kept; at least float32."""
    if space.dtype in (torch.float16, torch.bfloat16):
        space = space.float()
    return (space * space).sum(dim, keepdim=True)


def space_time(space: Tensor, c: float | Tensor, dim: int = -1) -> Tensor:
    """Time coordinates of space parts along ``dim``, which is kept; at least float32."""
    return torch.sqrt(space_square(space, dim) + 1 / c)


def squash_factor(square: Tensor, limit: float | Tensor, slope: float) -> Tensor:
    """``D tanh(atanh(0.99) r / (s D)) / r`` of squared radii ``r^2``, with ``D = limit`` and ``s = slope``."""
    g = math.atanh(0.99) / slope / limit
    return limit * g * tanhc(safe_sqrt(square) * g)


def radial_rescale(space: Tensor, c: float | Tensor, slope: float, limit: float | Tensor | None, dim: int) -> Tensor:
    """Maximum-distance rescaling of points given by their space parts along ``dim``.

    See :func:`hypvision.geometry.lorentz.rescale`.
    """
    limit = max_distance(c) if limit is None else limit
    q = space_square(space, dim) * c
    shrink = asinhc_sqrt(q)  # radius / |space|
    inner = shrink * squash_factor(q * shrink * shrink / c, limit, slope)
    return space * (inner * sinhc_sqrt(q * inner * inner)).to(space.dtype)
