"""AdamW whose decay of the rows of ``W`` may be negative, which makes the rows grow to unit norm,
and its learning-rate schedule.

The decay decides how many features share the hidden units: with ``gamma > 0`` rows shrink and only
frequent features survive, with ``gamma < 0`` every row is drawn to the norm 1
(``W_i <- W_i - lr |gamma| (1 - 1/|W_i|) W_i``) and all are represented. Source: arXiv 2505.10465,
Eq. 2 and Appendix B.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_BETAS = (0.9, 0.999)
_EPS = 1e-8
_FLOOR = 0.05  # factor of the learning rate at the last step


def learning_rate_factor(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the peak learning rate at ``step``, counted from 0: a linear warm-up to
    1, unless the training is not longer than it, and then a cosine down to ``_FLOOR``."""
    if warmup >= steps:
        warmup = 0
    if step + 1 < warmup:
        return (step + 1) / warmup
    share = (step + 1 - warmup) / (steps - warmup)
    return _FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * share)) / 2


class AdamW:
    """The optimiser AdamW for ``G`` models in one tensor, each with its own decay.

    Args:
        parameters: the models' parameters ``(G, M, n)``, see
            :func:`hypvision.scaling.model.joined`; changed in place.
        decay: the decay ``gamma`` of each model, ``(G,)``; negative for growth to unit norm.

    Attributes:
        first, second: the first and second moments of the gradient, ``(G, M, n)``.
        steps: number of steps that have been made.
    """

    def __init__(self, parameters: Tensor, decay: Tensor):
        self.parameters = parameters
        self.decay = decay.to(parameters).view(-1, 1, 1)
        self.grows = bool((decay < 0).any())
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)
        self.steps = 0

    def step(self, gradient: Tensor, weight_rate: Tensor, bias_rate: Tensor) -> None:
        """Make one step: the decay of ``W``, then Adam's update. ``gradient`` ``(G, M, n)`` is that
        at the parameters before the decay, and is overwritten; the learning rates of ``W`` and of
        ``b`` are ``(G,)``."""
        self.steps += 1
        weight = self.parameters[:, :-1]
        amount = weight_rate.view(-1, 1, 1) * self.decay
        if self.grows:
            norms = torch.linalg.vector_norm(weight, dim=1, keepdim=True) + _EPS
            weight *= torch.where(self.decay < 0, 1 + amount * (1 - 1 / norms), 1 - amount)
        else:
            weight *= 1 - amount

        self.first.lerp_(gradient, 1 - _BETAS[0])
        self.second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        root = (
            torch.sqrt(self.second, out=gradient)
            .div_(math.sqrt(1 - _BETAS[1] ** self.steps))
            .add_(_EPS)
        )
        update = torch.div(self.first, root, out=root).div_(1 - _BETAS[0] ** self.steps)
        update[:, :-1] *= weight_rate.view(-1, 1, 1)
        update[:, -1] *= bias_rate.view(-1, 1)
        self.parameters -= update
