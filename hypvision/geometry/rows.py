"""Computation of functions of rows block by block, so that their temporaries stay in the cache.

On a CPU the system provides new memory page by page, and a formula on whole tensors spends most of
its time waiting for it. On other devices, and for compilers, which fuse the temporaries away, all
rows form one block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hypvision.io import Plain

from .numerics import Function, backward_of, transformed

# The number of coordinates in a block. For twice as many, malloc would return the float64
# temporaries (2 MiB each) to the system at every call.
BLOCK = 2**17


def blocks(rows: int, columns: int, device: torch.device, size: int = BLOCK) -> list[slice]:
    """Return slices that divide ``rows`` rows of ``columns`` numbers into blocks of about ``size``
    numbers; one slice of all rows on a GPU."""
    step = max(64, size // max(columns, 1)) if device.type == "cpu" else rows
    return [slice(i, i + step) for i in range(0, rows, step)] if rows > step else [slice(None)]


def in_blocks(function: Callable[..., Tensor], rows: dict[str, Tensor], shared: Plain) -> Tensor:
    """Return ``function(**rows, **shared)``, computed block by block where that is faster.

    The backward recomputes each block, so that only the arguments are stored.

    Args:
        function: a function of tensors ``(..., k)`` whose result has one row, or one number, for
            each of their rows.
        rows: the tensors ``(..., k)`` by their names.
        shared: further arguments by their names, the same for all rows; a tensor with dimensions,
            such as a curvature for each row, prevents blocks.
    """
    if not _worth_it(list(rows.values()), list(shared.values())):
        return function(**rows, **shared)
    numbers = {name: value for name, value in shared.items() if not isinstance(value, Tensor)}
    tensors = {name: value for name, value in shared.items() if isinstance(value, Tensor)}
    names = [*rows, *tensors]

    def call(*values: Tensor) -> Tensor:
        return function(**dict(zip(names, values)), **numbers)

    out: Tensor = _InBlocks.apply(call, len(rows), *rows.values(), *tensors.values())
    return out


def _worth_it(rows: list[Tensor], shared: list[Any]) -> bool:
    first = rows[0]
    # This is asked first, because a comparison of a free size would bind an exported program to
    # small batches.
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed():
        return False
    if first.device.type != "cpu" or first.numel() <= BLOCK:
        return False
    if any(isinstance(value, Tensor) and value.dim() for value in shared):
        return False
    return all(value.shape[:-1] == first.shape[:-1] for value in rows)


def _each_block(
    function: Callable[..., Sequence[Tensor | None]], rows: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the results of a function of tensors of rows, computed block by block: the blocks'
    rows one after the other, the sums of results without dimensions, and None for None."""
    lead = rows[0].shape[:-1]
    flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in rows]
    count = len(flat[0])
    columns = flat[-1].shape[1]  # the first may be the gradient of the result
    found: list[Tensor | None] = []
    for part in blocks(count, columns, flat[0].device):
        results = function(*(tensor[part] for tensor in flat))
        found = found or [_room(result, count) for result in results]
        for whole, result in zip(found, results):
            _put(whole, part, result)
    return [
        whole.reshape(*lead, *whole.shape[1:]) if whole is not None and whole.dim() else whole
        for whole in found
    ]


def _put(whole: Tensor | None, part: slice, result: Tensor | None) -> None:
    """Write the result of a block of rows into ``whole``, or add it if all rows share it."""
    if whole is None or result is None:
        return
    if result.dim():
        whole[part] = result
    else:
        whole += result


def _room(result: Tensor | None, rows: int) -> Tensor | None:
    """Return an empty tensor for the results of all rows, shaped after the ``result`` of a block; a
    zero, to which results are added, if it has no dimensions."""
    if result is None:
        return None
    return result.new_empty(rows, *result.shape[1:]) if result.dim() else torch.zeros_like(result)


class _InBlocks(Function):
    """Compute ``function(*tensors)`` block by block; the first ``count`` tensors are divided into
    rows."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], count: int, *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.count = count
        ctx.save_for_backward(*tensors)
        shared = tensors[count:]
        [out] = _each_block(lambda *parts: [function(*parts, *shared)], tensors[:count])
        assert out is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            found = backward_of(ctx.function, ctx.saved_tensors, needed, grad)
            return None, None, *found
        rows = ctx.saved_tensors[: ctx.count]
        shared = ctx.saved_tensors[ctx.count :]

        def back(of_block: Tensor, *parts: Tensor) -> list[Tensor | None]:
            given = zip([*parts, *shared], needed)
            leaves = [value.detach().requires_grad_(need) for value, need in given]
            with torch.enable_grad():
                out = ctx.function(*leaves)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            found = iter(torch.autograd.grad(out, wanted, of_block.reshape(out.shape)))
            return [next(found) if need else None for need in needed]

        # The gradient of the result is divided into blocks as one more tensor of rows.
        columns = grad if grad.shape[:-1] == rows[0].shape[:-1] else grad.unsqueeze(-1)
        return None, None, *_each_block(back, [columns, *rows])
