"""Isometries between the Lorentz model, the Poincare ball and the Klein ball.

Points ``(..., n + 1)`` on the hyperboloid, ``(..., n)`` in the balls of radius ``1 / sqrt(c)``; the
curvature last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import lorentz, poincare
from ._typing import Curvature
from .border import stable
from .numerics import square_norm
from .poincare import _ball, _gap

lorentz_to_poincare = poincare.from_lorentz
poincare_to_lorentz = poincare.to_lorentz


@stable("x", rows=True, small=True)
def lorentz_to_klein(x: Tensor, c: Curvature) -> Tensor:
    """Klein coordinates ``s / (sqrt(c) t)``."""
    space = x[..., 1:]
    return space * torch.rsqrt(1 + c * square_norm(space))


@_ball("x", rows=True)
def klein_to_lorentz(x: Tensor, c: Curvature) -> Tensor:
    """Points of the hyperboloid: ``s = x / sqrt(1 - c |x|^2)``."""
    return lorentz.from_space(x * torch.rsqrt(_gap(x, c)), c)


@_ball("x", rows=True, small=True)
def poincare_to_klein(x: Tensor, c: Curvature) -> Tensor:
    """Klein coordinates ``2 x / (1 + c |x|^2)``."""
    return x * (2 / (1 + c * square_norm(x)))


@_ball("x", rows=True, small=True)
def klein_to_poincare(x: Tensor, c: Curvature) -> Tensor:
    """Points of the Poincare ball: ``x / (1 + sqrt(1 - c |x|^2))``."""
    return x / (1 + torch.sqrt(_gap(x, c)))
