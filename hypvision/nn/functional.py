"""Time coordinates and radial factors of space-only features, in float32 also under autocast.

Inside a network Lorentz points are stored as space parts: maps ``(B, C, H, W)`` and tokens
``(..., n)``. Time is computed only where a formula needs it, so Euclidean kernels can be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.geometry.lorentz import max_distance
from hypvision.geometry.numerics import SINGLE_ONLY, Function, exact, needs_grad, plain, uses_triton

T = TypeVar("T")
# Squares of lengths below which quotients of functions of the length count as at 0, without a
# gradient
NEAR = {torch.float64: 1e-16, torch.float32: 1e-7}


class Attached(Function):
    """Identity on ``x`` that puts ``parameters`` into its graph, with gradient 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *parameters: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.shapes = [parameter.shape for parameter in inputs[1:]]
        ctx.like = [parameter.new_empty(0) for parameter in inputs[1:2]]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        sizes = [shape.numel() for shape in ctx.shapes]
        zeros = [like.new_zeros(sum(sizes)).split(sizes) for like in ctx.like]
        return grad, *(
            part.view(shape) for parts in zeros for part, shape in zip(parts, ctx.shapes)
        )


def precise(x: Tensor) -> Tensor:
    """Convert half precision to float32; leave other dtypes."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def space_square(space: Tensor, dim: int = -1) -> Tensor:
    """Squared norm of space parts along ``dim``, which is kept; at least float32."""
    space = precise(space)
    return (space * space).sum(dim, keepdim=True)


def space_time(space: Tensor, c: float | Tensor, dim: int = -1) -> Tensor:
    """Time coordinates of space parts along ``dim``, which is kept; at least float32.

    As the length of the space part with the radius of curvature, a column of its own: the gradient
    of a length takes fewer operations than that of a root of a sum of squares.
    """
    space = precise(space)
    size = list(space.shape)
    size[dim] = 1
    if isinstance(c, Tensor):
        radius = torch.rsqrt(c).to(space.dtype).expand(size)
    else:
        radius = space.new_full(size, c**-0.5)
    out: Tensor = torch.linalg.vector_norm(torch.cat([radius, space], dim), dim=dim, keepdim=True)
    return out


def with_time(space: Tensor, c: float | Tensor, spare: int = 0) -> Tensor:
    """Points ``(..., n + 1)`` with these space parts ``(..., n)``, and ``spare`` columns of zeros
    after them; at least float32."""
    space = precise(space)
    columns = [space_time(space, c), space]
    if spare:
        columns.append(space.new_zeros(*space.shape[:-1], spare))
    return torch.cat(columns, -1)


def signature(n: int, like: Tensor) -> Tensor:
    """The signs ``(1, -1, -1, ...)`` ``(n,)`` of time and space parts in ``t^2 - |s|^2``."""
    signs = like.new_ones(n)
    signs[1:].neg_()
    return signs


def minkowski_square(points: Tensor) -> Tensor:
    """``t^2 - |s|^2`` ``(..., 1)`` of ``(..., n)``, time first.

    As a product, which loses half as many digits for far points as the difference.
    """
    time, space = points.split([1, points.shape[-1] - 1], dim=-1)  # its gradient is one cat
    length = torch.linalg.vector_norm(space, dim=-1, keepdim=True)
    square: Tensor = (time - length) * (time + length)
    return square


def to_centroids(means: Tensor, c: float | Tensor) -> Tensor:
    """The centroids, points, that belong to means of points, both ``(..., n + 1)`` with time."""
    square = minkowski_square(means) * c
    # for distant points the square cancels, but a mean of points has at least 1
    return means * torch.rsqrt(F.threshold(square, 1.0, 1.0))


def on_gpu(x: Tensor) -> bool:
    """Whether Triton computes with a tensor: on a GPU, not for compilers or subclasses."""
    return x.is_cuda and type(x) is Tensor and not plain(x) and uses_triton(x.device)


def of_kernels(
    c: Tensor, slope: float | None, limit: float | None
) -> tuple[Tensor, dict[str, float]]:
    """The radius that a rescaling approaches, in units of that of curvature, and constants of
    Triton kernels."""
    start = 0.0 if slope is None else math.atanh(0.99) / slope
    most = c if slope is None else rescale_limit(c, limit) * torch.sqrt(c)
    return most, dict(START=start, LEAST=NEAR[c.dtype])


def radial_numbers(
    function: Callable[..., T], values: list[Tensor | float], device: torch.device
) -> T:
    """``function(*values)``, in float64 where it is differentiated.

    Gradients of parameters are sums over all vectors that may cancel, in float32 down to round-off.
    """
    with exact(device):
        if needs_grad(*values) and device.type not in SINGLE_ONLY:
            values = [
                value.to(torch.float64) if isinstance(value, Tensor) else value for value in values
            ]
        return function(*values)


def radial_map(
    x: Tensor, factor: Callable[..., Tensor], *parameters: Tensor | float, dim: int = -1
) -> Tensor:
    """Vectors ``x`` along ``dim``, each times ``factor(|x|^2, *parameters)``; at least float32
    inside."""
    wide = precise(x)
    return (
        wide
        * radial_numbers(factor, [space_square(wide, dim), *parameters], x.device).to(wide.dtype)
    ).to(x.dtype)


def axial_map(
    x: Tensor,
    numbers: Callable[..., tuple[Tensor, Tensor]],
    *parameters: Tensor | float,
    dim: int = -1,
) -> Tensor:
    """Vectors ``x`` along ``dim``, each times a factor, with a number added to the last coordinate.

    ``numbers(|x|^2, last coordinates, *parameters)`` gives them.
    """
    wide = precise(x)
    values = numbers(space_square(wide, dim), wide.narrow(dim, -1, 1), *parameters)
    scale, shift = (value.to(wide.dtype) for value in values)
    out = wide * scale
    out.narrow(dim, -1, 1).add_(shift)
    return out.to(x.dtype)


def rescale_limit(c: float | Tensor, limit: float | Tensor | None) -> float | Tensor:
    """The limit of the maximum-distance rescaling; default: the curvature's, without a gradient."""
    if limit is not None:
        return limit
    return max_distance(c.detach() if isinstance(c, Tensor) else c)


def rescaled(
    radius: Tensor, c: float | Tensor, slope: float, limit: float | Tensor | None
) -> Tensor:
    """Radii after the maximum-distance rescaling, both in units of the radius of curvature."""
    most = rescale_limit(c, limit) * c**0.5
    return most * torch.tanh(radius * (math.atanh(0.99) / slope / most))


def rescale_factor(
    square: Tensor, c: float | Tensor, slope: float, limit: float | Tensor | None = None
) -> Tensor:
    """Factor of space parts of these squared norms in the maximum-distance rescaling."""
    # nearer to the origin the factor is that of 0, to round-off
    sinh = torch.sqrt((square * c).clamp(min=NEAR[square.dtype]))
    return torch.sinh(rescaled(torch.asinh(sinh), c, slope, limit)) / sinh


def radial_rescale(
    space: Tensor, c: float | Tensor, slope: float | None, limit: float | Tensor | None, dim: int
) -> Tensor:
    """Maximum-distance rescaling (:func:`hypvision.geometry.lorentz.rescale`) of space parts; none
    without a slope."""
    if slope is None:
        return space
    return radial_map(space, lambda square, c: rescale_factor(square, c, slope, limit), c, dim=dim)
