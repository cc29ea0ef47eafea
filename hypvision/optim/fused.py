"""A step of points on the hyperboloid as one kernel of a GPU, in Triton.

:class:`.kernels.LorentzKernel` and the optimisers' ``_points`` define what the kernel computes, and
tests compare it with them. The formulas are the same, but in float64 without their guards against
overflow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hypvision.geometry.numerics import uses_triton

from .kernels import Kernel, LorentzKernel

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton comes with PyTorch for GPUs alone
    triton = None

# the largest numbers of coordinates of a point, and of all points of one program
WIDEST = 4096
TILE = 1024


def fits(kernel: Kernel, rate: object, *tensors: Tensor | None) -> bool:
    """Return whether the Triton kernel computes a step of these rows at a learning rate; tensors on
    the meta device count as on a GPU."""
    given = [tensor for tensor in tensors if tensor is not None]
    device = given[0].device
    if not isinstance(kernel, LorentzKernel) or not isinstance(rate, float):
        return False
    if device.type != "meta" and not uses_triton(device):
        return False
    plain = all(tensor.dtype == torch.float32 and tensor.stride(-1) == 1 for tensor in given)
    return plain and given[0].shape[1] <= WIDEST


@torch.library.custom_op("hypvision::lorentz_step_", mutates_args=("x", "m", "v", "most"))
def lorentz_step_(
    x: Tensor, grad: Tensor, c: Tensor, m: Tensor | None, v: Tensor | None, most: Tensor | None,
    rate: float, keep: float, fresh: float, fresh_square: float, eps: float, decay: float,
    share: float,
) -> None:  # fmt: skip
    """Make one step of the points ``x`` in place: decay them by ``share``; update ``m`` to
    ``keep m + fresh G`` with the gradient ``G`` of loss and ``decay``, and move ``v`` by the share
    ``fresh_square`` towards the square of its length; move ``x`` along
    ``-rate m / (sqrt(v) + eps)``, or without ``v`` along ``-rate m``; and transport ``m`` to the
    new points."""
    rows, width = x.shape
    block = triton.next_power_of_2(width - 1)
    tile = max(1, TILE // block)
    strides = [0 if tensor is None else tensor.stride(0) for tensor in (x, grad, m, v, most)]
    numbers = (rate, keep, fresh, fresh_square, eps, decay, share)
    with torch.cuda.device_of(x):  # Triton launches on the present GPU, wherever tensors are
        _step[(triton.cdiv(rows, tile),)](
            x, grad, m, v, most, c, *strides, *numbers, rows, width - 1, tile, block
        )


@lorentz_step_.register_fake
def _(*arguments: object) -> None:
    pass


def step_(x: Tensor, grad: Tensor, c: float | Tensor, *options: Any) -> None:
    """Call :func:`lorentz_step_` with a curvature that is a number or a tensor."""
    c = c if isinstance(c, Tensor) else x.new_full((), c)
    lorentz_step_(x, grad, c, *options)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _step(  # type: ignore[no-untyped-def]
        x, grad, m, v, most, c, x_row, grad_row, m_row, v_row, most_row, rate, keep, fresh,
        fresh_square, eps, decay, share, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        column = tl.arange(0, BLOCK)[None, :]
        there = row < rows
        inside = there & (column < n)
        curvature = tl.load(c).to(tl.float64)
        radius = 1 / tl.sqrt(curvature)
        space = tl.load(x + row * x_row + 1 + column, inside, 0.0).to(tl.float64)
        time = tl.sqrt(tl.sum(space * space, 1, keep_dims=True) + radius * radius)
        # weight decay: the centroid with the origin
        rest = 1 - share
        space *= rest / tl.sqrt(rest * rest + share * share + 2 * share * rest * time / radius)
        time = tl.sqrt(tl.sum(space * space, 1, keep_dims=True) + radius * radius)
        reach = time + radius
        # the Riemannian gradient in the frame
        outer = tl.load(grad + row * grad_row, there, 0.0).to(tl.float64)
        g = tl.load(grad + row * grad_row + 1 + column, inside, 0.0).to(tl.float64)
        g += space * (
            (outer + tl.sum(space * g, 1, keep_dims=True) / reach + 2 * decay * time) / radius
        )
        length = tl.sqrt(tl.sum(g * g, 1, keep_dims=True))
        g *= tl.minimum(1e15 / tl.maximum(length, 1e-30), 1.0)
        length = tl.minimum(length, 1e15)
        d = g
        if m is not None:
            d = keep * tl.load(m + row * m_row + column, inside, 0.0) + fresh * g
        norm = tl.maximum(tl.sqrt(tl.sum(d * d, 1, keep_dims=True)), 1e-30)
        angle = norm * rate / radius
        if v is not None:
            square = tl.load(v + row * v_row, there, 0.0).to(tl.float64)
            square += fresh_square * (length * length - square)
            tl.store(v + row * v_row, square, there)
            if most is not None:
                square = tl.maximum(square, tl.load(most + row * most_row, there, 0.0))
                tl.store(most + row * most_row, square, there)
            angle /= tl.sqrt(square) + eps
        # the exponential map, and the transport of m
        angle = tl.minimum(angle, 40.0)
        cosh = (tl.exp(angle) + tl.exp(-angle)) / 2
        sinh = tl.where(
            angle < 0.01, angle + angle * angle * angle / 6, (tl.exp(angle) - tl.exp(-angle)) / 2
        )
        ahead = cosh - sinh * tl.sum(space * d, 1, keep_dims=True) / (norm * reach)
        space = ahead * space - (radius * sinh / norm) * d
        time = tl.sqrt(tl.sum(space * space, 1, keep_dims=True) + radius * radius)
        if m is not None:
            kept = reach / (time + radius * cosh)
            turn = norm * sinh / (1 + cosh) * (1 + kept) / (time + radius)
            tl.store(m + row * m_row + column, kept * d - turn * space, inside)
        cap = tl.minimum(1.1769e17 * radius / time, 1.0)  # cosh(40)
        tl.store(x + row * x_row, time * cap, there)
        tl.store(x + row * x_row + 1 + column, space * cap, inside)
