"""What the layers share: time coordinates and radial factors of space-only features, in float32 also under autocast.

Inside a network Lorentz points travel as their space parts: maps ``(B, C, H, W)`` and tokens ``(..., n)``. Time is
computed where a formula needs it, so Euclidean kernels do the work.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function

from hypvision.geometry.lorentz import max_distance
from hypvision.geometry.numerics import asinhc_sqrt, backward_of, exact, plain, sinhc_sqrt, squash_factor

__all__ = ["radial_map", "radial_rescale", "rescale_factor", "space_square", "space_time"]


class _SpaceSquare(Function):
    """``|x|^2`` along a dimension; backward writes one map."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, dim):
        return (x * x).sum(dim, keepdim=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x * (2 * grad), None


def space_square(space: Tensor, dim: int = -1) -> Tensor:
    """Squared norm of space parts along ``dim``, which is kept; at least float32."""
    if space.dtype in (torch.float16, torch.bfloat16):
        space = space.float()
    if not space.requires_grad or plain(space):
        return (space * space).sum(dim, keepdim=True)
    return _SpaceSquare.apply(space, dim)


def space_time(space: Tensor, c: float | Tensor, dim: int = -1) -> Tensor:
    """Time coordinates of space parts along ``dim``, which is kept; at least float32."""
    return torch.sqrt(space_square(space, dim) + 1 / c)


def _radial(x: Tensor, dim: int, axis: bool, factor: Callable, *parameters) -> Tensor:
    """:class:`_RadialMap` in plain operations."""
    square = (x * x).sum(dim, keepdim=True)
    if not axis:
        return x * factor(square, *parameters)
    scale, shift = factor(square, x.narrow(dim, -1, 1), *parameters)
    first, last = (x * scale).split([x.shape[dim] - 1, 1], dim)
    return torch.cat([first, last + shift], dim)


class _RadialMap(Function):
    """``x f(|x|^2)`` with one map written each way; ``f`` runs on a small graph of its own.

    With ``axis`` the function gets the last coordinate as well, and gives what is added to it.
    """

    @staticmethod
    def forward(ctx, x, dim, axis, factor, *parameters):
        out = torch.mul(x, x)
        square = out.sum(dim, keepdim=True)
        given = [square, *([x.narrow(dim, -1, 1)] if axis else []), *parameters]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in given]
            found = factor(*leaves)
        ctx.save_for_backward(x, *parameters)
        ctx.dim, ctx.axis, ctx.factor = dim, axis, factor
        ctx.leaves, ctx.found = leaves, found if axis else (found,)
        torch.mul(x, ctx.found[0].detach(), out=out)
        if axis:
            out.narrow(dim, -1, 1).add_(found[1].detach())
        return out

    @staticmethod
    def backward(ctx, grad):
        (x, *parameters), dim, axis = ctx.saved_tensors, ctx.dim, ctx.axis
        if torch.is_grad_enabled():
            needed = [ctx.needs_input_grad[0], *ctx.needs_input_grad[4:]]
            found = backward_of(
                lambda x, *given: _radial(x, dim, axis, ctx.factor, *given), [x, *parameters], needed, grad
            )
            return found[0], None, None, None, *found[1:]
        buffer = torch.mul(grad, x)
        grads = [buffer.sum(dim, keepdim=True), *([grad.narrow(dim, -1, 1)] if axis else [])]
        square, *rest = torch.autograd.grad(ctx.found, ctx.leaves, grads, retain_graph=True, materialize_grads=True)
        torch.mul(grad, ctx.found[0].detach(), out=buffer)
        buffer.addcmul_(x, square.mul_(2))
        if axis:
            buffer.narrow(dim, -1, 1).add_(rest.pop(0))
        return buffer, None, None, None, *rest


def radial_map(x: Tensor, factor: Callable, *parameters: Tensor | float, dim: int = -1, axis: bool = False) -> Tensor:
    """Vectors ``x`` along ``dim``, each times ``factor(|x|^2, *parameters)``.

    Args:
        x: maps or tokens; computed in float32 if of half precision.
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
        if plain(x):
            return _radial(x, dim, axis, factor, *parameters).to(dtype)
        tensors = [p for p in parameters if isinstance(p, Tensor)]

        def bound(*given: Tensor):
            queue = iter(given[1 + axis :])
            return factor(*given[: 1 + axis], *(next(queue) if isinstance(p, Tensor) else p for p in parameters))

        return _RadialMap.apply(x, dim, axis, bound, *tensors).to(dtype)


def detached(c: float | Tensor) -> float | Tensor:
    """A curvature without gradient."""
    return c.detach() if isinstance(c, Tensor) else c


def rescale_limit(c: float | Tensor, limit: float | Tensor | None) -> float | Tensor:
    """The limit of the maximum-distance rescaling: the one given, else that of float32."""
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
