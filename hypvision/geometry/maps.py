"""Isometries between the Lorentz model, the Poincare ball and the Klein ball.

Points have shape ``(..., n + 1)`` on the hyperboloid and ``(..., n)`` in the balls, whose radius is
``1 / sqrt(c)``; the curvature ``c`` is the last argument of every function.
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


@stable("x", small=True)
def lorentz_to_klein(x: Tensor, c: Curvature) -> Tensor:
    """Return the Klein coordinates ``s / (sqrt(c) t)`` ``(..., n)`` of ``x``, which has the space
    part ``s`` and the time ``t``."""
    space = x[..., 1:]
    return space * torch.rsqrt(1 + c * square_norm(space))


@_ball("x")
def klein_to_lorentz(x: Tensor, c: Curvature) -> Tensor:
    """Return the points ``(..., n + 1)`` of the hyperboloid with the space part
    ``x / sqrt(1 - c |x|^2)``."""
    return lorentz.from_space(x * torch.rsqrt(_gap(x, c)), c)


@_ball("x", small=True)
def poincare_to_klein(x: Tensor, c: Curvature) -> Tensor:
    """Return the Klein coordinates ``2 x / (1 + c |x|^2)`` ``(..., n)`` of points of the Poincare
    ball."""
    return x * (2 / (1 + c * square_norm(x)))


@_ball("x", small=True)
def klein_to_poincare(x: Tensor, c: Curvature) -> Tensor:
    """Return the points ``x / (1 + sqrt(1 - c |x|^2))`` ``(..., n)`` of the Poincare ball for Klein
    coordinates."""
    return x / (1 + torch.sqrt(_gap(x, c)))
