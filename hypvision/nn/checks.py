"""Checks that the layers share, of shapes, dtypes and types alone: none waits for a device or breaks a graph."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from torch import Tensor, nn

from hypvision.checks import at_least
from hypvision.geometry import Lorentz, Manifold, PoincareBall
from hypvision.geometry.manifolds import whose

__all__ = ["check_features", "check_manifold", "check_number", "check_sizes", "integers"]

_NAMES = {Lorentz: "the hyperboloid", PoincareBall: "the ball"}


def check_manifold(layer: nn.Module, manifold: Any, manifold_class: type[Manifold], name: str = "manifold") -> None:
    """Refuse what is not a manifold of this class.

    Raises:
        TypeError: it is not.
    """
    if isinstance(manifold, manifold_class):
        return
    why = f" The layer works on {_NAMES[manifold_class]}." if manifold_class in _NAMES else ""
    example = manifold_class.__name__ if manifold_class in _NAMES else "Lorentz"
    raise TypeError(
        f"{type(layer).__name__}: {name} must be a hypvision.geometry.{manifold_class.__name__}, got "
        f"{whose(manifold)}.{why} Create one: {example}(c=1.0)."
    )


def check_sizes(layer: nn.Module, **sizes: Any) -> None:
    """Refuse sizes of a layer that are not integers of at least 1, by ``ArgumentError``."""
    at_least(1, integer=True, **{f"{type(layer).__name__}: {name}": value for name, value in sizes.items()})


def check_number(layer: nn.Module, name: str, value: Any, least: float, strict: bool = False, below=math.inf) -> None:
    """Refuse what is no finite number from ``least`` on (above it, if ``strict``), and below ``below``.

    Raises:
        ValueError: it is not.
    """
    good = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not (value > least if strict else value >= least) or not value < below:
        start = "" if math.isinf(least) else f" {'above' if strict else 'of at least'} {least:g}"
        end = "" if math.isinf(below) else f" and below {below:g}"
        kind = "number" if start or end else "finite number"
        raise ValueError(f"{type(layer).__name__}: {name} must be a {kind}{start}{end}, got {value!r}.")


def check_features(
    layer: nn.Module, x: Tensor, width: int | None = None, dim: int = -1, rank: int | None = None, name: str = "x"
) -> None:
    """Refuse features that are no floating point tensor, or of another width or number of dimensions.

    Args:
        layer: the layer that asks.
        x: the features.
        width: size along ``dim``; None for any.
        dim: dimension of the vectors.
        rank: number of dimensions; None for any.
        name: of the argument.

    Raises:
        TypeError: the features are not a floating point tensor.
        ValueError: their shape does not fit.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        found = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"{type(layer).__name__}: {name} must be a tensor of floating point numbers, got {found}. Call .float()."
        )
    least = dim + 1 if dim >= 0 else -dim
    if (rank is not None and x.dim() != rank) or x.dim() < least:
        wanted = f"{rank} dimensions" if rank is not None else f"at least {least} dimension{'s' * (least > 1)}"
        raise ValueError(f"{type(layer).__name__}: {name} must have {wanted}, got shape {tuple(x.shape)}.")
    if width is not None and x.shape[dim] != width:
        hint = ""
        if x.shape[dim] == width + 1 and isinstance(getattr(layer, "manifold", None), Lorentz):
            hint = " Are these points with time? Lorentz layers take space parts: x[..., 1:]."
        raise ValueError(
            f"{type(layer).__name__}: {name} must have {width} features in dimension {dim}, got shape "
            f"{tuple(x.shape)}.{hint}"
        )


def integers(value: int | tuple[int, ...], rank: int, name: str, least: int) -> tuple[int, ...]:
    """One integer for every dimension of a kernel.

    Raises:
        ValueError: the value is neither an integer nor ``rank`` of them, or one is below ``least``.
    """
    out = (value,) * rank if isinstance(value, Integral) else value
    good = isinstance(out, (tuple, list)) and len(out) == rank
    if not good or not all(isinstance(n, Integral) and not isinstance(n, bool) and n >= least for n in out):
        raise ValueError(f"{name} must be an integer or {rank} integers of at least {least}, got {value!r}.")
    return tuple(int(n) for n in out)
