"""Gradient clipping by the Riemannian norm of gradients at points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hypvision.io import ArgumentError

from .base import constant, factors, foreign_manifold_of, held, local_part, manifold_of


def _entries(parameter: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the entries of a Euclidean gradient, or the Riemannian norms of a gradient at points;
    of a sharded one those on this rank."""
    manifold = manifold_of(parameter)
    foreign = foreign_manifold_of(parameter)
    if foreign is not None:
        # The gradient is copied, because geoopt changes its argument.
        vector = foreign.egrad2rgrad(parameter, grad.clone())
        return [held(foreign.inner(parameter, vector, keepdim=True).clamp(min=0).sqrt())]
    if manifold is None:
        return [grad.coalesce().values() if grad.is_sparse else held(grad)]
    width = parameter.shape[-1]
    x = local_part(parameter.detach()).reshape(-1, width)
    if grad.is_sparse:
        grad = grad.coalesce()
        x = x[grad.indices()[0]]
        grad = grad.values()
    grad = local_part(grad).reshape(-1, width)
    found = []
    for part in factors(manifold, width):
        c = constant(part.manifold.c, x.dtype)
        vectors, _ = part.kernel.gradient(x[:, part.points], grad[:, part.points], c)
        found.append(torch.linalg.vector_norm(vectors, dim=-1))
    return found


def _norm(entries: Tensor, norm_type: float) -> Tensor:
    """Return the norm of a tensor, 0 of one without entries, of which torch computes no infinite
    norm."""
    if entries.numel() == 0:
        return entries.new_zeros(())
    norm: Tensor = torch.linalg.vector_norm(entries, norm_type)
    return norm


def _summed(grad: Any) -> Tensor:
    """Return a gradient, or the sum of a DTensor whose ranks hold terms of it."""
    partial = any(placement.is_partial() for placement in getattr(grad, "placements", ()))
    out: Tensor = grad.full_tensor() if partial else grad
    return out


def _cuts(grad: Any) -> tuple[Any, ...]:
    """Return how a gradient is cut: the mesh of its ranks, and for each dimension of the mesh
    whether ranks along it hold different parts; empty for a plain tensor."""
    if not hasattr(grad, "placements"):
        return ()
    return (grad.device_mesh, *(placement.is_shard() for placement in grad.placements))


def _over_ranks(norms: Tensor, mesh: Any = None, *cut: bool) -> Tensor:
    """Return the norms of all parts of gradients, one after the other, from those of this rank's
    parts ``(N,)``; ranks that hold the same part count once."""
    if mesh is None:
        return norms
    # Importing this takes time, and only processes that shard a model have done it already.
    from torch.distributed.tensor import DTensor, Replicate, Shard

    places = [Shard(0) if is_cut else Replicate() for is_cut in cut]
    out: Tensor = DTensor.from_local(norms, mesh, places, run_check=False).full_tensor()
    return out


@torch.no_grad()
def get_total_norm(parameters: Iterable[Tensor] | Tensor, norm_type: float = 2.0) -> Tensor:
    """Return the norm of all gradients together, a scalar tensor; gradients at points count by
    their Riemannian norms.

    The norm of sharded gradients (DTensors) is that over all their ranks, which must all call this
    function; plain tensors beside them are the same on every rank and count once.

    Args:
        parameters: parameters; those without a gradient are left out.
        norm_type: exponent over the entries of Euclidean gradients, and over the norms of tangent
            vectors.
    """
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise ArgumentError(f"norm_type must be positive (2, 1, math.inf, ...), got {norm_type}.")
    # The norms of gradients that are cut alike are exchanged between ranks together.
    found: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
        if parameter.grad is not None:
            grad = _summed(parameter.grad)
            norms = [_norm(part, norm_type) for part in _entries(parameter, grad)]
            found.setdefault(_cuts(grad), []).extend(norms)
    if not found:
        return torch.tensor(0.0)
    device = next(iter(found.values()))[0].device
    vectors = [
        _over_ranks(torch.stack([norm.to(device) for norm in norms]), *cuts).to(device)
        for cuts, norms in found.items()
    ]
    out: Tensor = torch.linalg.vector_norm(torch.cat(vectors), norm_type)
    return out


@torch.no_grad()
def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; gradients at points count by
    their Riemannian norms.

    The Euclidean norm of a gradient at points near the ball's boundary, or far out on the
    hyperboloid, does not tell the length of its step; the Riemannian norm does. This function takes
    the place of :func:`torch.nn.utils.clip_grad_norm_`.

    Args:
        parameters: parameters; those without a gradient are left out.
        max_norm: the largest norm allowed.
        norm_type: see :func:`get_total_norm`.
        error_if_nonfinite: whether to raise RuntimeError instead of scaling by a norm that is not
            finite.
        foreach: ignored; accepted for compatibility with torch.

    Returns:
        The norm before scaling, a scalar tensor.
    """
    if math.isnan(max_norm) or max_norm < 0:
        raise ArgumentError(
            f"max_norm must be a number of at least 0, got {max_norm}: a negative one would "
            "reverse the gradients."
        )
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(parameters, norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(
            f"The norm of the gradients is {total.item()}, so they cannot be clipped."
        )
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            grad = held(parameter.grad)
            grad.mul_(factor.to(grad.device, grad.dtype))
    return total
