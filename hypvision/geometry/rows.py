"""Functions of rows, block by block: their temporaries stay in the cache.

On a CPU the system provides new memory page by page, and a formula on whole tensors spends most of its time on that. On
other devices, and for compilers, which fuse the temporaries away, there is one block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._typing import Curvature
from .numerics import Function, backward_of, plain

# In coordinates. For twice as many, malloc returns the float64 temporaries (2 MiB each) to the system at every call.
BLOCK = 2**17


def blocks(rows: int, columns: int, device: torch.device, size: int = BLOCK) -> list[slice]:
    """Slices of the rows of a tensor; one slice on a GPU."""
    step = max(64, size // max(columns, 1)) if device.type == "cpu" else rows
    return [slice(i, i + step) for i in range(0, rows, step)] if rows > step else [slice(None)]


def in_blocks(
    function: Callable[..., tuple[Tensor | None, ...]], rows: Sequence[Tensor], *rest: object
) -> tuple[Any, ...]:
    """``function(*rows, *rest)`` block by block; in a single call where blocks are not faster, or where the rows
    broadcast.

    Args:
        function: takes tensors ``(..., k)`` and gives a tuple of results ``(..., m)``; those without dimensions are
            added up, and None stays None.
        rows: tensors ``(..., k)``.
        rest: further arguments; a tensor with dimensions, such as one curvature per row, forbids blocks.

    Returns:
        The results.
    """
    lead = rows[0].shape[:-1]
    if (
        torch.compiler.is_compiling()
        or rows[0].device.type != "cpu"
        or rows[0].numel() <= BLOCK
        or any(r.shape[:-1] != lead for r in rows)
        or any(isinstance(r, Tensor) and r.dim() for r in rest)
    ):
        return function(*rows, *rest)
    flat = [r.reshape(-1, r.shape[-1]) for r in rows]
    found: list[Tensor | None] = []
    for part in blocks(len(flat[0]), flat[0].shape[1], rows[0].device, BLOCK):
        results = function(*(r[part] for r in flat), *rest)
        if not found:
            found = [r if r is None or not r.dim() else r.new_empty(len(flat[0]), *r.shape[1:]) for r in results]
        else:
            found = [f if f is None or r is None or r.dim() else f + r for f, r in zip(found, results)]
        for whole, r in zip(found, results):
            if whole is not None and r is not None and r.dim():
                whole[part] = r
    return tuple(f if f is None or not f.dim() else f.reshape(*lead, *f.shape[1:]) for f in found)


def blocked(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of rows and a curvature, ``function(*rows, c)``, that works block by block where that is faster.

    The backward recomputes each block, so that only the rows are stored.
    """

    @functools.wraps(function)
    def wrapper(*args: Any) -> Tensor:
        *rows, c = args
        first = rows[0]
        if (
            first.numel() <= BLOCK
            or first.device.type != "cpu"
            or isinstance(c, Tensor)
            and c.dim()
            or any(r.shape[:-1] != first.shape[:-1] for r in rows)
            or plain(first)
        ):
            return function(*rows, c)
        out: Tensor = _Blocked.apply(function, c, *rows)
        return out

    return wrapper


class _Blocked(Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], c: Curvature, *rows: Tensor) -> Tensor:
        ctx.function, ctx.c = function, None if isinstance(c, Tensor) else c
        ctx.save_for_backward(*rows, *([c] if isinstance(c, Tensor) else []))
        out: Tensor = in_blocks(lambda *part: (function(*part, c),), rows)[0]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = list(ctx.saved_tensors)
        c = rows.pop() if ctx.c is None else ctx.c
        needed = [*ctx.needs_input_grad[2:], ctx.needs_input_grad[1]]
        if torch.is_grad_enabled():
            *found, by_c = backward_of(ctx.function, [*rows, c], needed, grad)
            return None, by_c, *found

        def back(*part: Tensor) -> tuple[Tensor | None, ...]:
            leaves = [p.detach().requires_grad_(need) for p, need in zip(part[:-1], needed)]
            curvature = c.detach().requires_grad_() if needed[-1] else c
            wanted = [leaf for leaf, need in zip([*leaves, curvature], needed) if need]
            with torch.enable_grad():
                found = iter(torch.autograd.grad(ctx.function(*leaves, curvature), wanted, part[-1]))
            return tuple(next(found) if need else None for need in needed)

        *found, by_c = in_blocks(back, (*rows, grad))
        return None, by_c, *found
