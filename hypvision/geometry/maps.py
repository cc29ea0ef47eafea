"""Isometries between the Lorentz model, the Poincare ball and the Klein ball.

Points ``(..., n + 1)`` on the hyperboloid, ``(..., n)`` in the balls of radius ``1 / sqrt(c)``; the curvature last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import lorentz, poincare
from ._typing import Curvature
from .lorentz.frame import _scaled
from .numerics import stable
from .poincare import _inside

lorentz_to_poincare, poincare_to_lorentz = poincare.from_lorentz, poincare.to_lorentz


@stable("x")
def lorentz_to_klein(x: Tensor, c: Curvature) -> Tensor:
    """Klein coordinates ``s / (sqrt(c) t)``."""
    space, q = _scaled(x[..., 1:], c)
    return space / (torch.sqrt(1 + q) * c**0.5)


@stable("x")
def klein_to_lorentz(x: Tensor, c: Curvature) -> Tensor:
    """Points of the hyperboloid: ``s = x / sqrt(1 - c |x|^2)``."""
    x, gap, _ = _inside(x, c)
    return lorentz.from_space(x * (1 / torch.sqrt(gap)).to(x.dtype), c)


@stable("x")
def poincare_to_klein(x: Tensor, c: Curvature) -> Tensor:
    """Klein coordinates ``2 x / (1 + c |x|^2)``."""
    x, _, q = _inside(x, c)
    return x * (2 / (1 + q)).to(x.dtype)


@stable("x")
def klein_to_poincare(x: Tensor, c: Curvature) -> Tensor:
    """Points of the Poincare ball: ``x / (1 + sqrt(1 - c |x|^2))``."""
    x, gap, _ = _inside(x, c)
    return x * (1 / (1 + torch.sqrt(gap))).to(x.dtype)
