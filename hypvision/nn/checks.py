"""Checks of the layers' arguments and inputs; none waits for a device or breaks a compiled
graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hypvision.geometry import Lorentz, Manifold, PoincareBall
from hypvision.geometry.manifold import whose
from hypvision.io import ArgumentError, Plain, at_least, more_than

_SPACES = {
    Lorentz: " The layer works on the hyperboloid.",
    PoincareBall: " The layer works on the ball.",
}


def _of(layer: nn.Module, values: Plain) -> Plain:
    return {f"{type(layer).__name__}: {name}": value for name, value in values.items()}


def check_manifold(layer: nn.Module, kind: type[Manifold], **manifolds: Any) -> None:
    """Raise TypeError if one of the arguments ``manifolds`` is not a manifold of the class
    ``kind``."""
    for name, manifold in manifolds.items():
        if not isinstance(manifold, kind):
            example = kind.__name__ if kind in _SPACES else "Lorentz"
            raise TypeError(
                f"{type(layer).__name__}: {name} must be a hypvision.geometry.{kind.__name__}, got "
                f"{whose(manifold)}.{_SPACES.get(kind, '')} Create one: {example}(c=1.0)."
            )


def check_eps(layer: nn.Module, eps: Any) -> None:
    """Raise TypeError if a norm that needs no manifold was given one as ``eps``, its second
    argument, and ArgumentError if ``eps`` is not a number of at least 0; None is allowed."""
    name = type(layer).__name__
    if isinstance(eps, Manifold):
        raise TypeError(
            f"{name} takes no manifold, got {whose(eps)}: it normalises space parts, whatever the "
            f"curvature. Write {name}(features), or {name}(features, eps=1e-5)."
        )
    if eps is not None:
        at_least(0, **_of(layer, dict(eps=eps)))


def check_sizes(layer: nn.Module, **sizes: Any) -> None:
    """Raise an error if one of the ``sizes`` is not an integer of at least 1."""
    at_least(1, integer=True, **_of(layer, sizes))


def check_positive(layer: nn.Module, **values: float | None) -> None:
    """Raise an error if one of the numbers ``values`` is not finite and above 0; None is
    allowed."""
    more_than(0, **{name: value for name, value in _of(layer, values).items() if value is not None})


def check_rescaling(
    layer: nn.Module, slope: float | None, limit: float | None, **others: float | None
) -> None:
    """Check ``slope``, ``limit`` and ``others`` as :func:`check_positive` does, and raise
    ArgumentError for a ``limit`` without the ``slope`` that switches the rescaling on."""
    check_positive(layer, slope=slope, limit=limit, **others)
    if limit is not None and slope is None:
        raise ArgumentError(
            f"{type(layer).__name__}: limit={limit:g} is the limit of the rescaling, which "
            "slope=None leaves out. Give a slope too, such as slope=2.0, or leave out limit."
        )


def check_features(
    layer: nn.Module,
    x: Tensor,
    width: int | None = None,
    dim: int = -1,
    rank: int | None = None,
    name: str = "x",
) -> None:
    """Raise TypeError if ``x`` (called ``name``) is not floating point, and ArgumentError if it
    does not have ``rank`` dimensions or not ``width`` features along ``dim``."""
    owner = type(layer).__name__
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            f"{owner}: {name} must be a tensor of floating point numbers, got "
            f"{getattr(x, 'dtype', type(x).__name__)}. Call .float()."
        )
    least = max(dim + 1, -dim)
    if rank is not None and x.dim() != rank:
        raise ArgumentError(
            f"{owner}: {name} must have {rank} dimensions, got shape {tuple(x.shape)}."
        )
    if x.dim() < least:
        raise ArgumentError(
            f"{owner}: {name} must have at least {least} dimension{'s' * (least > 1)}, got shape "
            f"{tuple(x.shape)}."
        )
    if width is not None and x.shape[dim] != width:
        hint = ""
        if x.shape[dim] == width + 1 and isinstance(getattr(layer, "manifold", None), Lorentz):
            hint = " Are these points with time? Lorentz layers take space parts: x[..., 1:]."
        raise ArgumentError(
            f"{owner}: {name} must have {width} features in dimension {dim}, got shape "
            f"{tuple(x.shape)}.{hint}"
        )


def integers(value: int | tuple[int, ...], rank: int, name: str, least: int) -> tuple[int, ...]:
    """Return one integer of at least ``least`` for each of the ``rank`` dimensions of a kernel,
    from a number or a sequence of them."""
    found = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(found) != rank:
        raise ArgumentError(f"{name} must be an integer or {rank} integers, got {value!r}.")
    at_least(least, integer=True, **{f"{name}[{i}]": number for i, number in enumerate(found)})
    return tuple(int(number) for number in found)
