"""Parameters that hold points of a manifold."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .manifolds import Manifold
from .product import Product

__all__ = ["ManifoldParameter", "named_manifold_parameters"]


class ManifoldParameter(nn.Parameter):
    """A parameter whose last dimension holds points of a manifold, for the optimisers of :mod:`hypvision.optim`.

    It computes like any tensor. The manifold travels with copies and pickles; state dicts hold plain tensors. Wrappers
    that replace parameters by their own (FSDP, ``to_empty``) lose the class: a layer that names its manifold parameters
    in ``manifold_parameters`` is found nevertheless, by :func:`named_manifold_parameters`.

    Args:
        data: points ``(..., d)``.
        manifold: their manifold.
        requires_grad: whether they are trained.

    Raises:
        TypeError: ``manifold`` is none, or ``data`` is no tensor of floating point numbers.
        ValueError: ``data`` does not end in the coordinates of a point.
    """

    def __new__(cls, data: Tensor, manifold: Manifold, requires_grad: bool = True):
        if not isinstance(manifold, Manifold):
            raise TypeError(
                f"manifold must be a manifold object such as Lorentz(1.0), got {type(manifold).__name__}. For "
                "parameters that are no points take torch.nn.Parameter."
            )
        if not isinstance(data, Tensor) or not data.is_floating_point():
            found = data.dtype if isinstance(data, Tensor) else type(data).__name__
            raise TypeError(f"data must be a tensor of floating point numbers, got {found}.")
        least = sum(manifold.sizes) if isinstance(manifold, Product) else 1 + manifold.extra
        if data.dim() == 0 or data.shape[-1] < least or isinstance(manifold, Product) and data.shape[-1] != least:
            raise ValueError(
                f"data must end in the {'' if isinstance(manifold, Product) else 'at least '}{least} coordinates of a "
                f"point of {manifold}, got the shape {tuple(data.shape)}."
            )
        out = torch.Tensor._make_subclass(cls, data, requires_grad)
        out.manifold = manifold
        return out

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            data = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = type(self)(data, copy.deepcopy(self.manifold, memo), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return _rebuild, (self.data, self.manifold, self.requires_grad)

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"ManifoldParameter on {self.manifold} containing:\n{self.data!r}"


def _rebuild(data: Tensor, manifold: Manifold, requires_grad: bool) -> ManifoldParameter:
    return ManifoldParameter(data, manifold, requires_grad)


def named_manifold_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Manifold]]:
    """Name, parameter and manifold of every parameter that holds points, each once.

    A parameter holds points if it is a :class:`ManifoldParameter`, or if its layer lists it in ``manifold_parameters``
    and has a ``manifold``.
    """
    seen = set()
    for prefix, module in model.named_modules():
        listed = getattr(module, "manifold_parameters", ())
        for name, parameter in module._parameters.items():
            if parameter is None or parameter in seen:
                continue
            manifold = getattr(parameter, "manifold", None)
            if manifold is None and name in listed:
                manifold = module.manifold
            if isinstance(manifold, Manifold):
                seen.add(parameter)
                yield f"{prefix}.{name}" if prefix else name, parameter, manifold
