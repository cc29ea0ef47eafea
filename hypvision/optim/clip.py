"""Gradient clipping by the Riemannian norm of gradients at points."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from hypvision.io import ArgumentError

from .base import constant, factors, foreign_manifold_of, local_part, manifold_of


def _entries(parameter: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the entries of a Euclidean gradient, or the Riemannian norms of a gradient at
    points."""
    manifold = manifold_of(parameter)
    foreign = foreign_manifold_of(parameter)
    if foreign is not None:
        # The gradient is copied, because geoopt changes its argument.
        vector = foreign.egrad2rgrad(parameter, grad.clone())
        return [foreign.inner(parameter, vector, keepdim=True).clamp(min=0).sqrt()]
    if manifold is None:
        return [grad.coalesce().values() if grad.is_sparse else grad]
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


@torch.no_grad()
def get_total_norm(parameters: Iterable[Tensor] | Tensor, norm_type: float = 2.0) -> Tensor:
    """Return the norm of all gradients together, a scalar tensor; gradients at points count by
    their Riemannian norms.

    Args:
        parameters: parameters; those without a gradient are left out.
        norm_type: exponent over the entries of Euclidean gradients, and over the norms of tangent
            vectors.
    """
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise ArgumentError(f"norm_type must be positive (2, 1, math.inf, ...), got {norm_type}.")
    norms: list[Tensor] = []
    for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
        if parameter.grad is not None:
            norms += [
                torch.linalg.vector_norm(part, norm_type)
                for part in _entries(parameter, parameter.grad)
            ]
    if not norms:
        return torch.tensor(0.0)
    out: Tensor = torch.linalg.vector_norm(
        torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type
    )
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
            parameter.grad.mul_(factor.to(parameter.grad.device, parameter.grad.dtype))
    return total
