"""The cross entropy of a large vocabulary, without a tensor of all logits.

Rows are taken in blocks, on a CPU those with a label alone; the gradient is made in the forward,
from the same logits in place, so that the largest matrix product is computed three times per step
instead of four.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hypvision.geometry.numerics import Function, exact, plain

from . import rows
from .layers import RowLinear, apply_linear, compute_dtype

BLOCK = 256


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx, hidden, weight, target, dtype, block, differentiate):
        without = target == -100
        target = target.masked_fill(without, 0)
        w = weight.to(dtype)
        total = hidden.new_zeros((), dtype=torch.promote_types(dtype, torch.float32))
        to_hidden, to_weight = (differentiate and need for need in ctx.needs_input_grad[:2])
        by_hidden = torch.empty_like(hidden) if to_hidden else None
        wide = torch.promote_types(weight.dtype, torch.float32)
        by_weight = torch.zeros_like(weight, dtype=wide) if to_weight else None
        for begin in range(0, hidden.shape[0], block):
            skipped = without[begin : begin + block, None]
            part = hidden[begin : begin + block].to(dtype).masked_fill(skipped, 0.0)
            label = target[begin : begin + block, None]
            logits = rows.upcast(part @ w.T)
            highest = logits.amax(-1, keepdim=True)
            chosen = logits.gather(1, label) - highest
            p = logits.sub_(highest).exp_()
            mass = p.sum(-1, keepdim=True)
            total += (mass.log() - chosen).masked_fill(skipped, 0.0).sum()
            if not differentiate:
                continue
            # Do not divide by the count here: gradients of tokens that do not occur would underflow
            # in float16.
            p.div_(mass)
            p.scatter_add_(1, label, p.new_full(label.shape, -1.0))
            p = p.to(dtype)
            if by_hidden is not None:
                by_hidden[begin : begin + block] = (p @ w).masked_fill(skipped, 0.0)
            if by_weight is not None:
                _add_product_(by_weight, p.T, part)
        ctx.save_for_backward(by_hidden, by_weight)
        ctx.dtype = weight.dtype
        ctx.count = (~without).sum().clamp(min=1)
        return total / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        by_hidden, by_weight = ctx.saved_tensors
        grad = grad / ctx.count
        return (
            None if by_hidden is None else by_hidden * grad.to(by_hidden.dtype),
            None if by_weight is None else by_weight.mul_(grad).to(ctx.dtype),
            None,
            None,
            None,
            None,
        )


def _add_product_(total: Tensor, x: Tensor, y: Tensor) -> None:
    if x.dtype == total.dtype:
        total.addmm_(x, y)
    else:
        total += x @ y


def token_losses(head: nn.Module, hidden: Tensor, target: Tensor, block: int = BLOCK) -> Tensor:
    """Mean cross entropy of the labelled positions of ``hidden`` ``(B, L, width)``, ``block`` rows
    at a time, through a head, the linear map to the vocabulary or an adapter in its place;
    ``target`` ``(B, L)`` is -100 for none."""
    flat = hidden.flatten(0, -2)
    target = target.flatten()
    if plain(hidden) or not isinstance(head, RowLinear):
        total = F.cross_entropy(rows.upcast(apply_linear(head, flat)), target, reduction="sum")
        return total / (target != -100).sum().clamp(min=1)
    if target.device.type == "cpu":  # a GPU computes all rows: their number would make it wait
        kept = (target != -100).nonzero().flatten()
        flat = flat.index_select(0, kept) if kept.numel() < target.numel() else flat
        target = target[kept]
    dtype = compute_dtype(hidden, head.weight)
    with exact(hidden.device):
        # needs_input_grad is true for parameters even under no_grad()
        return _CrossEntropy.apply(flat, head.weight, target, dtype, block, torch.is_grad_enabled())
