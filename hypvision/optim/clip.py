"""Gradient clipping by the Riemannian norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .base import factors, foreign_manifold_of, manifold_of, number, whole

__all__ = ["clip_grad_norm_", "get_total_norm"]


def _vectors(parameter: Tensor) -> list[Tensor]:
    """The gradient as tangent vectors in frames, whose Euclidean norm is the Riemannian one."""
    grad, manifold = parameter.grad, manifold_of(parameter)
    foreign = foreign_manifold_of(parameter)
    if foreign is not None:
        # a copy: geoopt changes its argument
        vector = foreign.egrad2rgrad(parameter, grad.clone())
        return [foreign.inner(parameter, vector, keepdim=True).clamp(min=0).sqrt()]
    if manifold is None:
        return [grad.coalesce().values() if grad.is_sparse else grad]
    x, width = whole(parameter.detach()), parameter.shape[-1]
    x = x.reshape(-1, width)
    if grad.is_sparse:
        grad = grad.coalesce()
        x, grad = x[grad.indices()[0]], grad.values()
    grad = whole(grad).reshape(-1, width)
    found = []
    for part in factors(manifold, width):
        c = number(part.manifold.c, x.dtype)
        found.append(part.kernel.gradient(x[:, part.points], grad[:, part.points], c)[0])
    return found


@torch.no_grad()
def get_total_norm(parameters: Iterable[Tensor] | Tensor, norm_type: float = 2.0) -> Tensor:
    """Norm of all gradients together, in which those of points count by their Riemannian norms.

    Args:
        parameters: parameters; those without a gradient are left out.
        norm_type: exponent over the entries of Euclidean gradients, and over the norms of tangent vectors.

    Returns:
        A tensor without dimensions.

    Raises:
        ValueError: ``norm_type`` is not positive.
    """
    if not norm_type > 0:
        raise ValueError(f"norm_type must be positive (2, 1, math.inf, ...), got {norm_type}.")
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    norms = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        for vectors in _vectors(parameter):
            if manifold_of(parameter) is not None:
                vectors = torch.linalg.vector_norm(vectors, dim=-1)
            norms.append(torch.linalg.vector_norm(vectors, norm_type))
    if not norms:
        return torch.tensor(0.0)
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; points count by their Riemannian norms.

    The Euclidean norm of a gradient with respect to points near the ball's boundary, or far out on the hyperboloid,
    says nothing about the length of the step that it makes: that is the Riemannian norm. The counterpart of
    :func:`torch.nn.utils.clip_grad_norm_`.

    Args:
        parameters: parameters; those without a gradient are left out.
        max_norm: largest norm.
        norm_type: see :func:`get_total_norm`.
        error_if_nonfinite: raise instead of scaling by a norm that is not finite.
        foreach: accepted for torch's sake.

    Returns:
        The norm before.

    Raises:
        ValueError: ``max_norm`` is negative, or ``norm_type`` is not positive.
        RuntimeError: the norm is not finite and ``error_if_nonfinite`` is set.
    """
    if not max_norm >= 0:
        raise ValueError(f"max_norm must be a number of at least 0, got {max_norm}: a negative one turns gradients.")
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm(parameters, norm_type)
    if error_if_nonfinite and not torch.isfinite(total):
        raise RuntimeError(f"The norm of the gradients is {total.item()}, so they cannot be clipped.")
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor.to(parameter.grad.device, parameter.grad.dtype))
    return total
