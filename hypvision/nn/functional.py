"""What the layers share: time coordinates and radial factors of space-only features, in float32 also under autocast.

Inside a network Lorentz points travel as their space parts: maps ``(B, C, H, W)`` and tokens ``(..., n)``. Time is
computed where a formula needs it, so Euclidean kernels do the work.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hypvision.geometry.lorentz import max_distance
from hypvision.geometry.numerics import asinhc_sqrt, exact, needs_grad, sinhc_sqrt, squash_factor, widen

__all__ = ["radial_map", "radial_rescale", "rescale_factor", "space_square", "space_time"]


def space_square(space: Tensor, dim: int = -1) -> Tensor:
    """Squared norm of space parts along ``dim``, which is kept; at least float32."""
    if space.dtype in (torch.float16, torch.bfloat16):
        space = space.float()
    return (space * space).sum(dim, keepdim=True)


def space_time(space: Tensor, c: float | Tensor, dim: int = -1) -> Tensor:
    """Time coordinates of space parts along ``dim``, which is kept; at least float32."""
    return torch.sqrt(space_square(space, dim) + 1 / c)


def radial_map(x: Tensor, factor: Callable, *parameters: Tensor | float, dim: int = -1, axis: bool = False) -> Tensor:
    """Vectors ``x`` along ``dim``, each times ``factor(|x|^2, *parameters)``.

    Args:
        x: maps or tokens; computed in float32 if of half precision. Factors that are differentiated are float64:
            the gradients of the parameters are what those of all vectors leave of each other, which in float32 may be
            no more than round-off.
        factor: function of squared norms and parameters, both as tensors (or numbers where the parameter is one).
        parameters: what else the factor depends on.
        dim: dimension of the vectors.
        axis: the factor is called with the last coordinates, too, behind the squared norms, and returns a pair: factor,
            and what is added to the last coordinate.
    """
    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    with exact(x.device):
        given = [(x * x).sum(dim, keepdim=True), *([x.narrow(dim, -1, 1)] if axis else []), *parameters]
        if needs_grad(*(value for value in given if isinstance(value, Tensor))):
            given = [widen(value) for value in given]
        found = factor(*given)
        if not axis:
            return (x * found.to(x.dtype)).to(dtype)
        scale, shift = (value.to(x.dtype) for value in found)
        first, last = (x * scale).split([x.shape[dim] - 1, 1], dim)
        return torch.cat([first, last + shift], dim).to(dtype)


def detached(c: float | Tensor) -> float | Tensor:
    """A curvature without gradient."""
    return c.detach() if isinstance(c, Tensor) else c


def rescale_limit(c: float | Tensor, limit: float | Tensor | None) -> float | Tensor:
    """The limit of the maximum-distance rescaling: the one given, else that of the curvature."""
    # as published, the limit follows the curvature without a gradient
    return max_distance(detached(c)) if limit is None else limit


def rescale_factor(square: Tensor, c: float | Tensor, slope: float, limit: float | Tensor | None = None) -> Tensor:
    """Factor of space parts with these squared norms in the maximum-distance rescaling of points."""
    limit = rescale_limit(c, limit)
    q = square * c
    shrink = asinhc_sqrt(q)  # radius / |space|
    inner = shrink * squash_factor(q * shrink * shrink / c, limit, slope)
    return inner * sinhc_sqrt(q * inner * inner)


def radial_rescale(space: Tensor, c: float | Tensor, slope: float, limit: float | Tensor | None, dim: int) -> Tensor:
    """Maximum-distance rescaling of points given by their space parts along ``dim``.

    See :func:`hypvision.geometry.lorentz.rescale`.
    """
    return radial_map(space, lambda square, c: rescale_factor(square, c, slope, limit), c, dim=dim)
