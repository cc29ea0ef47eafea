"""The wrapped normal distribution on the hyperboloid: samples and log densities."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._typing import Curvature
from ..border import one_each, positive, stable
from ..numerics import log_sinhc_sqrt, square_norm
from .isometries import boost, unboost
from .points import expmap0, logmap0


def _check_std(function: str, std: Tensor | float, n: int) -> None:
    positive(function, "std", std)
    if isinstance(std, Tensor) and std.dim() and std.shape[-1] != 1:
        one_each(function, "std", std, n, "dimensions")


@stable("mean", rows=False)
def wrapped_normal(
    mean: Tensor,
    std: Tensor | float,
    c: Curvature,
    size: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return samples ``(*size, ..., n + 1)`` of the wrapped normal distribution around ``mean``
    (Nagano et al., 2019).

    A normal vector at the origin with the standard deviations ``std`` (a number, or ``(..., n)``)
    is transported to ``mean`` ``(..., n + 1)`` and mapped there by the exponential map. Samples are
    differentiable with respect to ``mean`` and ``std``.

    Raises:
        ValueError: ``std`` is a number that is not positive, or a tensor without one value for each
            dimension.
    """
    _check_std("wrapped_normal", std, mean.shape[-1] - 1)
    shape = (*size, *mean.shape[:-1], mean.shape[-1] - 1)
    noise = torch.randn(shape, dtype=mean.dtype, device=mean.device, generator=generator)
    return boost(mean, expmap0(noise * std, c), c)


@stable("x", "mean")
def wrapped_normal_log_prob(x: Tensor, mean: Tensor, std: Tensor | float, c: Curvature) -> Tensor:
    """Return the log density ``(...)`` of :func:`wrapped_normal` at ``x``, for the Riemannian
    volume."""
    _check_std("wrapped_normal_log_prob", std, mean.shape[-1] - 1)
    v = logmap0(unboost(mean, x, c), c)
    volume = (v.shape[-1] - 1) * log_sinhc_sqrt(c * square_norm(v)).squeeze(-1)
    return gauss_log_prob(v, std) - volume


def gauss_log_prob(v: Tensor, std: Tensor | float) -> Tensor:
    """Return the log density ``(...)`` of the normal distribution around 0 at ``v``
    ``(..., n)``."""
    std = torch.as_tensor(std, dtype=v.dtype, device=v.device)
    log_std = torch.log(std).expand_as(v).sum(-1)
    constant = 0.5 * v.shape[-1] * math.log(2 * math.pi)
    return -0.5 * square_norm(v / std).squeeze(-1) - log_std - constant
