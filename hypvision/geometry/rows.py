"""Functions of rows, block by block: their temporaries stay in the cache.

On a CPU the system provides new memory page by page, and a formula on whole tensors spends most of
its time on that. On other devices, and for compilers, which fuse the temporaries away, there is one
block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .numerics import Function, backward_of, needs_grad

# In coordinates. For twice as many, malloc returns the float64 temporaries (2 MiB each) to the
# system at every call.
BLOCK = 2**17


def blocks(rows: int, columns: int, device: torch.device, size: int = BLOCK) -> list[slice]:
    """Slices of the rows of a tensor; one slice on a GPU."""
    step = max(64, size // max(columns, 1)) if device.type == "cpu" else rows
    return [slice(i, i + step) for i in range(0, rows, step)] if rows > step else [slice(None)]


def in_blocks(
    function: Callable[..., Tensor], rows: dict[str, Tensor], shared: dict[str, Any]
) -> Tensor:
    """``function(**rows, **shared)``, block by block where that is faster.

    The backward recomputes each block, so that only the arguments are stored.

    Args:
        function: of tensors ``(..., k)``, whose result has a row, or a number, for each of theirs.
        rows: these tensors by name.
        shared: further arguments by name, the same for all rows; one with dimensions, such as a
            curvature for each row, forbids blocks.
    """
    if not _worth_it(list(rows.values()), list(shared.values())):
        return function(**rows, **shared)
    numbers = {name: value for name, value in shared.items() if not isinstance(value, Tensor)}
    tensors = {
        **rows,
        **{name: value for name, value in shared.items() if isinstance(value, Tensor)},
    }

    def call(*values: Tensor) -> Tensor:
        return function(**dict(zip(tensors, values)), **numbers)

    if needs_grad(*tensors.values()):
        out: Tensor = _InBlocks.apply(call, len(rows), *tensors.values())
        return out
    return _one(_each_block(lambda *values: [call(*values)], list(tensors.values()), len(rows)))


def _one(results: list[Tensor | None]) -> Tensor:
    [out] = results
    assert out is not None
    return out


def _worth_it(rows: list[Tensor], shared: list[Any]) -> bool:
    first = rows[0]
    # Asked first: a comparison of a free size would bind an exported program to small batches.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if first.device.type != "cpu" or first.numel() <= BLOCK:
        return False
    if any(isinstance(value, Tensor) and value.dim() for value in shared):
        return False
    return all(value.shape[:-1] == first.shape[:-1] for value in rows)


def _each_block(
    function: Callable[..., Sequence[Tensor | None]], tensors: list[Tensor], count: int
) -> list[Tensor | None]:
    """Results of a function of ``count`` tensors of rows, and further ones, block by block.

    Results without dimensions are added up, None stays None.
    """
    lead = tensors[0].shape[:-1]
    flat = [rows.reshape(-1, rows.shape[-1]) for rows in tensors[:count]]
    found: list[Tensor | None] = []
    for part in blocks(len(flat[0]), flat[0].shape[1], flat[0].device):
        results = function(*(rows[part] for rows in flat), *tensors[count:])
        found = found or [_room(result, len(flat[0])) for result in results]
        for whole, result in zip(found, results):
            _put(whole, part, result)
    return [
        whole.reshape(*lead, *whole.shape[1:]) if whole is not None and whole.dim() else whole
        for whole in found
    ]


def _put(whole: Tensor | None, part: slice, result: Tensor | None) -> None:
    """Write the result of a block of rows, or add a number that all rows share."""
    if whole is None or result is None:
        return
    if result.dim():
        whole[part] = result
    else:
        whole += result


def _room(result: Tensor | None, rows: int) -> Tensor | None:
    """An empty tensor for the results of all rows, or a zero to which results are added."""
    if result is None:
        return None
    return result.new_empty(rows, *result.shape[1:]) if result.dim() else torch.zeros_like(result)


class _InBlocks(Function):
    """``function(*tensors)``, of which the first ``count`` are rows."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], count: int, *tensors: Tensor) -> Tensor:
        ctx.function = function
        ctx.count = count
        ctx.save_for_backward(*tensors)
        return _one(_each_block(lambda *values: [function(*values)], list(tensors), count))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = list(ctx.saved_tensors)
        needed = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *backward_of(ctx.function, tensors, needed, grad)

        def back(*values: Tensor) -> list[Tensor | None]:
            *given, of_block = values
            leaves = [value.detach().requires_grad_(need) for value, need in zip(given, needed)]
            with torch.enable_grad():
                out = ctx.function(*leaves)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            found = iter(torch.autograd.grad(out, wanted, of_block.reshape(out.shape)))
            return [next(found) if need else None for need in needed]

        # the gradient of the result is one more tensor of rows
        rows = tensors[: ctx.count]
        rest = tensors[ctx.count :]
        columns = grad if grad.shape[:-1] == rows[0].shape[:-1] else grad.unsqueeze(-1)

        def reordered(*values: Tensor) -> list[Tensor | None]:
            return back(*values[: ctx.count], *values[ctx.count + 1 :], values[ctx.count])

        return None, None, *_each_block(reordered, [*rows, columns, *rest], ctx.count + 1)
