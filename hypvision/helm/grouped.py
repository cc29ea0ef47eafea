"""Linear maps of groups of rows, as one operation for compilers.

The gate decides at run time how many rows a group has. Compilers break their graphs there, unless a single operation
with a known output size uses the counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from hypvision.geometry.numerics import without_autocast


@torch.library.custom_op(
    "hypvision::grouped_linear",
    mutates_args=(),
    schema="(Tensor x, Tensor counts, Tensor[] weights, Tensor[] biases) -> Tensor",
)
def grouped_linear(x: Tensor, counts: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Rows ``(N, out)`` of rows ``(N, in)``, group after group, each through the map of its group: E weights ``(out,
    in)`` and as many biases ``(out,)``, or none. The counts ``(E,)`` of the groups are whole numbers with the sum N."""
    parts = x.split(counts.tolist())
    return torch.cat([F.linear(*mapped) for mapped in zip(parts, weights, *([biases] if biases else []))])


@grouped_linear.register_fake
def _(x: Tensor, counts: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    return x.new_empty(x.shape[0], weights[0].shape[0])


@torch.library.custom_op(
    "hypvision::grouped_linear_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor x, Tensor counts, Tensor[] weights) -> Tensor[]",
)
def _backward(grad: Tensor, x: Tensor, counts: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of x, of the weights, and of the biases."""
    sizes = counts.tolist()
    grads = grad.split(sizes)
    by_x = torch.cat([g @ w for g, w in zip(grads, weights)])
    return [by_x, *(g.T @ part for g, part in zip(grads, x.split(sizes))), *(g.sum(0) for g in grads)]


@_backward.register_fake
def _(grad: Tensor, x: Tensor, counts: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format),
        *(torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights),
        *(w.new_empty(w.shape[0]) for w in weights),
    ]


def _save(ctx, inputs, output) -> None:
    x, counts, weights, biases = inputs
    ctx.save_for_backward(x, counts, *weights)
    ctx.biased = bool(biases)


def _differentiate(ctx, grad: Tensor):
    x, counts, *weights = ctx.saved_tensors
    found = _backward(grad, x, counts, weights)
    count = len(weights)
    return found[0], None, found[1 : count + 1], found[count + 1 :] if ctx.biased else []


grouped_linear.register_autograd(without_autocast(_differentiate), setup_context=_save)
