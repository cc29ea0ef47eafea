"""Points of the hyperboloid, and the maps to and from the tangent space at the origin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._typing import Curvature
from ..numerics import (
    _FEW,
    Function,
    _asinh_root_values,
    asinh_sqrt,
    asinhc_sqrt,
    backward_of,
    needs_grad,
    plain,
    saturate_gradient,
    sinhc_sqrt,
    stable,
)
from .frame import _CAP, _LIMIT, _bound, _capped, _lift, _root, _times


@stable()
def origin(
    n: int, c: Curvature, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """The origin ``(1 / sqrt(c), 0, ..., 0)`` of the ``n``-dimensional model, shape ``(n + 1,)``."""
    out = torch.zeros(n + 1, dtype=dtype, device=device)
    out[0] = 1 / _root(c)
    return out


@stable("space")
def time_from_space(space: Tensor, c: Curvature) -> Tensor:
    """Time coordinate ``(..., 1)`` of the points with the given space parts ``(..., n)``."""
    _, q = _bound(space, c, torch.finfo(space.dtype).max)
    return torch.sqrt(q + 1) / _root(c)


@stable("space")
def from_space(space: Tensor, c: Curvature) -> Tensor:
    """Points ``(..., n + 1)`` on the hyperboloid with the given space parts ``(..., n)``."""
    return _from_space(space, c)


def _from_space(space: Tensor, c: Curvature) -> Tensor:
    factor, q = _bound(space, c, _LIMIT[space.dtype])
    return _lift(torch.sqrt(1 + q) / _root(c), factor, space)


@stable("x")
def projx(x: Tensor, c: Curvature) -> Tensor:
    """The point ``(..., n + 1)`` of the hyperboloid with the space part of ``x``: time is computed anew."""
    return _from_space(x[..., 1:], c)


@stable("x", "y")
def minkowski_inner(x: Tensor, y: Tensor) -> Tensor:
    """``-x_0 y_0 + <x_s, y_s>`` of any vectors ``(..., n + 1)``, shape ``(..., 1)``."""
    largest = torch.finfo(x.dtype).max / x.shape[-1]
    product = (x * y).clamp(-largest, largest)
    return product[..., 1:].sum(-1, keepdim=True) - product[..., :1]


@stable("u")
def expmap0(u: Tensor, c: Curvature) -> Tensor:
    r"""Exponential map at the origin.

    .. math:: \exp_0(u) = \left(\cosh(\sqrt c |u|)/\sqrt c,\ \frac{\sinh(\sqrt c |u|)}{\sqrt c |u|} u\right)

    Args:
        u: space part of tangent vectors at the origin, ``(..., n)``; their time part is 0.
        c: curvature, ``c > 0``.

    Returns:
        Points ``(..., n + 1)``. The gradient at 0 is the identity on the space part.
    """
    return _expmap0(u, c)


def _expmap0(u: Tensor, c: Curvature) -> Tensor:
    factor, q = _bound(u, c, _CAP[u.dtype] ** 2)
    stretch = sinhc_sqrt(q)
    return _lift(torch.sqrt(1 + q * stretch * stretch) / _root(c), factor * stretch, u)


@stable("x")
def logmap0(x: Tensor, c: Curvature) -> Tensor:
    """Logarithm at the origin: space part ``(..., n)`` of the tangent vector that leads to ``x`` ``(..., n + 1)``."""
    space, q = _capped(x[..., 1:], c)
    return space * saturate_gradient(asinhc_sqrt(q))


@stable("x")
def dist0(x: Tensor, c: Curvature) -> Tensor:
    """Hyperbolic radius ``(...)``: the distance of points ``(..., n + 1)`` from the origin; gradient 0 there."""
    if x.device.type == "cpu" and x.numel() > _FEW and not plain(x) and not (isinstance(c, Tensor) and c.dim()):
        length: Tensor = torch.linalg.vector_norm(x.detach()[..., 1:], dim=-1, keepdim=True)
        q = _times(length * length, c.detach() if isinstance(c, Tensor) else c)
        if q.amax().item() <= _LIMIT[x.dtype]:
            out: Tensor = _Dist0.apply(x, c, length, q) if needs_grad(x, c) else _radii(length, q, c)
            return out.squeeze(-1)
    return _dist0(x, c).squeeze(-1)


def _dist0(x: Tensor, c: Curvature) -> Tensor:
    _, q = _bound(x[..., 1:], c, _LIMIT[x.dtype])
    return _times(asinh_sqrt(q), 1 / _root(c))


def _radii(length: Tensor, q: Tensor, c: Curvature) -> Tensor:
    """Distances from the origin of points with these lengths; ``q = c length^2``."""
    root = _root(c)
    return _times(_asinh_root_values(q, _times(length, root)), 1 / root)


class _Dist0(Function):
    """The gradient is written once, and not once more around the time coordinate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, c: Curvature, length: Tensor, q: Tensor) -> Tensor:
        out = _radii(length, q, c)
        ctx.c = None if isinstance(c, Tensor) else c
        ctx.save_for_backward(x, length, q, out, *([c] if isinstance(c, Tensor) else []))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, length, q, out, *c = ctx.saved_tensors
        c = c[0] if c else ctx.c
        if torch.is_grad_enabled():
            return *backward_of(_dist0, [x, c], ctx.needs_input_grad[:2], grad), None, None
        root, by_c = (q + 1).sqrt_(), None
        if ctx.needs_input_grad[1]:
            by_c = ((length / root - out) * grad).sum() / (2 * c)
        slope = torch.div(grad, root.mul_(length), out=root)
        if not length.amin().item() > 0:  # the gradient at the origin is 0
            slope.masked_fill_(length == 0, 0)
        gx = torch.empty_like(x)
        torch.mul(x[..., 1:], slope, out=gx[..., 1:])
        gx[..., 0] = 0
        return gx, by_c, None, None
