"""Functions of features that are space parts: time coordinates, radial factors, centroids; in
float32 also under autocast.

Inside a network Lorentz points are stored as their space parts: maps ``(B, C, H, W)`` and tokens
``(..., n)``. The time is computed only where a formula needs it, so that Euclidean kernels can be
used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.geometry.lorentz import max_distance
from hypvision.geometry.numerics import (
    SINGLE_ONLY,
    Function,
    backward_of,
    clamped,
    exact,
    needs_grad,
    plain,
    uses_triton,
)
from hypvision.geometry.numerics import add_scaled as add_scaled  # layers take these from here
from hypvision.geometry.numerics import divided as divided
from hypvision.geometry.numerics import precise as precise

T = TypeVar("T")
# By dtype, the squared length below which quotients of functions of the length take their value at
# 0, without a gradient.
NEAR = {torch.float64: 1e-16, torch.float32: 1e-7}


class Attached(Function):
    """Return ``x`` unchanged and put ``parameters`` into its graph, with the gradient 0."""

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


def space_square(space: Tensor, dim: int = -1) -> Tensor:
    """Return the squared norms of space parts along ``dim``, which is kept; at least float32."""
    space = precise(space)
    return (space * space).sum(dim, keepdim=True)


def space_time(space: Tensor, c: float | Tensor, dim: int = -1, negative: bool = False) -> Tensor:
    """Return the time coordinates of space parts along ``dim``, which is kept; at least float32.
    With ``negative`` the times of ``space[0]`` are negated."""
    return timed(space, c, dim, negative)[1]


def timed(
    space: Tensor, c: float | Tensor, dim: int = -1, negative: bool = False
) -> tuple[Tensor, Tensor]:
    """Return space parts, at least float32, and their times (:func:`space_time`). What reads both
    should read these space parts: the gradients of the two are joined in one operation."""
    space = precise(space)
    if plain(space):
        time = torch.sqrt(space_square(space, dim) + 1 / c)
        return space, torch.cat([-time[:1], time[1:]]) if negative else time
    radius = torch.rsqrt(torch.as_tensor(c, dtype=space.dtype))
    out: tuple[Tensor, Tensor] = _Timed.apply(space, radius, dim, negative)
    return out


class _Timed(Function):
    """Compute :func:`timed` for a ``radius`` of curvature ``()``, in two operations in each
    direction."""

    @staticmethod
    def forward(
        ctx: Any, space: Tensor, radius: Tensor, dim: int, negative: bool
    ) -> tuple[Tensor, Tensor]:
        time = torch.hypot(torch.linalg.vector_norm(space, dim=dim, keepdim=True), radius)
        if negative:
            time[:1].neg_()
        ctx.save_for_backward(space, radius, time)
        ctx.set_materialize_grads(False)
        return space.view_as(space), time

    @staticmethod
    def backward(
        ctx: Any, by_space: Tensor | None, by_time: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        space, radius, time = ctx.saved_tensors
        if by_time is None:
            return by_space, None, None, None
        ratio = by_time / time
        by_radius = None
        if ctx.needs_input_grad[1]:
            by_radius = (ratio * radius).sum_to_size(radius.shape)
        if by_space is None:
            return ratio * space, by_radius, None, None
        # laid out as the space parts are, which saves a copy
        out = None if torch.is_grad_enabled() else torch.empty_like(space)
        return torch.addcmul(by_space, space, ratio, out=out), by_radius, None, None


def with_time(space: Tensor, c: float | Tensor, spare: int = 0, negative: bool = False) -> Tensor:
    """Return the points ``(..., n + 1)`` with the space parts ``space`` ``(..., n)``, followed by
    ``spare`` columns of zeros; at least float32. With ``negative`` the times of ``space[0]`` are
    negated."""
    space, time = timed(space, c, negative=negative)
    columns = [time, space]
    if spare:
        columns.append(space.new_zeros(*space.shape[:-1], spare))
    return torch.cat(columns, -1)


def minkowski_square(points: Tensor, slot: int = 0) -> Tensor:
    """Return ``t^2 - |s|^2`` ``(..., 1)`` of vectors ``(..., n)`` whose time comes first, or at the
    position ``slot``, behind which all numbers are 0.

    It is computed as a product, whose first factor is exact for far points; the squares would be
    rounded by more than their difference.
    """
    time = points.narrow(-1, slot, 1)
    space = points[..., :slot] if slot else points[..., 1:]
    length = torch.linalg.vector_norm(space, dim=-1, keepdim=True)
    square: Tensor = (time - length) * (time + length)
    return square


def to_centroids(means: Tensor, c: float | Tensor) -> Tensor:
    """Return the centroids of points from the means of the points' coordinates, both
    ``(..., n + 1)`` with time.

    The error is that of rounding the means, in float32 about ``1e-7 t^2`` of the result for points
    of the time ``t`` that lie within one unit, where :func:`hypvision.geometry.lorentz.centroid`
    computes in float64.
    """
    # For distant points rounding may bring the square below 1, its least value for a mean of
    # points, and below 0.
    return sized(means, c, least=1.0)


def sized(
    points: Tensor,
    c: float | Tensor,
    least: float,
    size: Tensor | float | None = None,
    slot: int = 0,
    square: Tensor | None = None,
) -> Tensor:
    r"""Return the multiples of vectors ``(..., n)`` that are points:
    :math:`x / \sqrt{c (t^2 - |s|^2)}`.

    Args:
        points: the vectors.
        c: curvature.
        least: the smallest value of ``c (t^2 - |s|^2)``; where it is smaller it counts as this
            number and has no gradient. Below 1 the absolute value is meant, as published for sums
            with negative weights; 1 is for means, which fall below it by round-off alone.
        size: if given, a number or a tensor ``()`` by which the results are multiplied.
        slot: the position of the time.
        square: ``t^2 - |s|^2`` ``(..., 1)``, if the caller knows more digits of it.
    """
    if square is None:
        with torch.no_grad():
            square = minkowski_square(points, slot)
    function = _sized if plain(points) else _Sized.apply
    out: Tensor = function(points, c, size, square.detach(), slot, least)
    return out


def _sized(
    points: Tensor,
    c: float | Tensor,
    size: Tensor | float | None,
    square: Tensor,
    slot: int,
    least: float,
) -> Tensor:
    own = minkowski_square(points, slot)
    return points * _factor(own - own.detach() + square, c, size, least)[1]


class _Sized(Function):
    """Compute :func:`_sized` with a hand-written backward of half as many operations."""

    @staticmethod
    def forward(
        ctx: Any,
        points: Tensor,
        c: float | Tensor,
        size: Tensor | float | None,
        square: Tensor,
        slot: int,
        least: float,
    ) -> Tensor:
        norm, factor = _factor(square, c, size, least)
        ctx.save_for_backward(points, square, norm, factor)
        ctx.c = c
        ctx.size = size
        ctx.slot = slot
        ctx.least = least
        return points * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        points, square, norm, factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            given = [points, ctx.c, ctx.size, square, ctx.slot, ctx.least]
            return tuple(backward_of(_sized, given, ctx.needs_input_grad, grad))
        by_points = grad * factor
        along = (by_points * points).sum(-1, keepdim=True)
        pull = torch.ops.aten.threshold_backward(along / square, norm, ctx.least)
        by_points.addcmul_(points, pull)
        time = slice(ctx.slot, ctx.slot + 1)
        by_points[..., time].addcmul_(points[..., time], pull, value=-2)
        by_c = (pull * square).sum() / (-2 * ctx.c) if ctx.needs_input_grad[1] else None
        by_size = along.sum() / ctx.size if ctx.needs_input_grad[2] else None
        return by_points, by_c, by_size, None, None, None


def _factor(
    square: Tensor, c: float | Tensor, size: Tensor | float | None, least: float
) -> tuple[Tensor, Tensor]:
    """Return ``c (t^2 - |s|^2)`` or its absolute value, and the factor by which :func:`sized`
    multiplies a vector."""
    flat = isinstance(c, float) and c == 1  # saves a kernel
    norm = square if flat else square * c
    if least < 1:
        norm = norm.abs()
    factor = torch.rsqrt(F.threshold(norm, least, least))
    return norm, factor if size is None else factor * size


def averaged(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    c: float | Tensor,
    least: float,
    size: Tensor | float | None = None,
) -> Tensor:
    """Return the space parts of :func:`sized` of ``x + weight * y`` for points that are given by
    their space parts ``x`` and ``y`` ``(..., n)``; at least float32. The weight is one number, or
    several ``(..., 1)``."""
    x = precise(x)
    function = _averaged if plain(x) else _Averaged.apply
    out: Tensor = function(x, precise(y), weight, c, least, size)
    return out


def _averaged(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    c: float | Tensor,
    least: float,
    size: Tensor | float | None,
) -> Tensor:
    first, second = with_time(torch.stack([x, y]), c).unbind()
    return sized(first + weight * second, c, least, size)[..., 1:]


class _Averaged(Function):
    """Compute :func:`_averaged` in half as many operations in each direction."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        c: float | Tensor,
        least: float,
        size: Tensor | float | None,
    ) -> Tensor:
        dtype = torch.promote_types(x.dtype, y.dtype)
        points = x.new_empty(2, *x.shape[:-1], x.shape[-1] + 1, dtype=dtype)
        space = points[..., 1:]
        torch.stack([x, y], out=space)
        length = torch.linalg.vector_norm(space, dim=-1, keepdim=True)
        radius = torch.rsqrt(torch.as_tensor(c, dtype=dtype))
        torch.hypot(length, radius, out=points[..., :1])
        mean = torch.addcmul(points[0], weight, points[1])
        time = mean[..., :1]
        length = torch.linalg.vector_norm(mean[..., 1:], dim=-1, keepdim=True)
        inner = (length - time) * (length + time)
        norm, factor = _factor(inner if least < 1 else -inner, c, size, least)
        ctx.save_for_backward(x, y, weight, points, mean, inner, norm, factor)
        ctx.c = c
        ctx.least = least
        ctx.size = size
        return mean[..., 1:] * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, points, mean, inner, norm, factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            given = [x, y, weight, ctx.c, ctx.least, ctx.size]
            return tuple(backward_of(_averaged, given, ctx.needs_input_grad, grad))
        by_mean = torch.empty_like(mean)
        by_space = torch.mul(grad, factor, out=by_mean[..., 1:])
        along = (by_space * mean[..., 1:]).sum(-1, keepdim=True)
        push = torch.ops.aten.threshold_backward(along / inner, norm, ctx.least)
        by_space.addcmul_(mean[..., 1:], push, value=-1)
        torch.mul(mean[..., :1], push, out=by_mean[..., :1])
        ratio = by_mean[..., :1] / points[..., :1]
        by_x, by_y = torch.addcmul(by_space, points[..., 1:], ratio).unbind()
        by_y.mul_(weight)
        by_weight = None
        if ctx.needs_input_grad[2]:
            by_weight = (by_mean * points[1]).sum_to_size(weight.shape)
        by_c = None
        if ctx.needs_input_grad[3]:
            by_times = (ratio[0] + weight * ratio[1]).sum() / ctx.c
            by_c = ((push * inner).sum() + by_times) / (-2 * ctx.c)
        by_size = along.sum() / ctx.size if ctx.needs_input_grad[5] else None
        return by_x, by_y, by_weight, by_c, None, by_size


def on_gpu(x: Tensor) -> bool:
    """Return whether Triton kernels compute with a tensor: on a GPU, but not for compilers or
    subclasses of tensors."""
    return x.is_cuda and type(x) is Tensor and not plain(x) and uses_triton(x.device)


def of_kernels(
    c: Tensor, slope: float | None, limit: float | None
) -> tuple[Tensor, dict[str, float]]:
    """Return the radius that a rescaling approaches, in units of the radius of curvature, and
    constants of Triton kernels by name."""
    start = 0.0 if slope is None else math.atanh(0.99) / slope
    most = c if slope is None else rescale_limit(c, limit) * torch.sqrt(c)
    return most, dict(START=start, LEAST=NEAR[c.dtype])


def radial_numbers(
    function: Callable[..., T], values: list[Tensor | float], device: torch.device
) -> T:
    """Return ``function(*values)``, computed in float64 if it is differentiated.

    Gradients of parameters are sums over all vectors in which terms may cancel, in float32 down to
    round-off.
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
    """Return the vectors ``x`` along ``dim``, each multiplied by ``factor(|x|^2, *parameters)``,
    which is computed in at least float32."""
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
    """Return the vectors ``x`` along ``dim``, each multiplied by a factor, with a number added to
    its last coordinate.

    ``numbers(|x|^2, last coordinates, *parameters)`` returns the factors and the added numbers.
    """
    wide = precise(x)
    values = numbers(space_square(wide, dim), wide.narrow(dim, -1, 1), *parameters)
    scale, shift = (value.to(wide.dtype) for value in values)
    out = wide * scale
    out.narrow(dim, -1, 1).add_(shift)
    return out.to(x.dtype)


def rescale_limit(c: float | Tensor, limit: float | Tensor | None) -> float | Tensor:
    """Return the ``limit`` of the maximum-distance rescaling; if it is None, the default for the
    curvature, without a gradient."""
    if limit is not None:
        return limit
    return max_distance(c.detach() if isinstance(c, Tensor) else c)


def rescaled(
    radius: Tensor, c: float | Tensor, slope: float, limit: float | Tensor | None
) -> Tensor:
    """Return radii after the maximum-distance rescaling; radii before and after are in units of the
    radius of curvature."""
    most = rescale_limit(c, limit) * c**0.5
    return most * torch.tanh(radius * (math.atanh(0.99) / slope / most))


def rescale_factor(
    square: Tensor, c: float | Tensor, slope: float, limit: float | Tensor | None = None
) -> Tensor:
    """Return the factor by which the maximum-distance rescaling multiplies space parts of the
    squared norms ``square``."""
    # Nearer to the origin than NEAR the factor is its value at the origin, up to round-off.
    sinh = torch.sqrt(clamped(square * c, NEAR[square.dtype]))
    return torch.sinh(rescaled(torch.asinh(sinh), c, slope, limit)) / sinh


def radial_rescale(
    space: Tensor, c: float | Tensor, slope: float | None, limit: float | Tensor | None, dim: int
) -> Tensor:
    """Return the space parts after the maximum-distance rescaling
    (:func:`hypvision.geometry.lorentz.rescale`); unchanged without a slope."""
    if slope is None:
        return space
    return radial_map(space, lambda square, c: rescale_factor(square, c, slope, limit), c, dim=dim)
