"""The product of several manifolds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._typing import Curvature
from .border import check_factor, one_each
from .manifold import Manifold, size_of, whose
from .manifolds import Hyperbolic
from .numerics import safe_sqrt, stretched

# Methods whose results are lengths, of which squares are added up, and methods whose results are
# added up themselves; all other methods return coordinates.
_LENGTHS = ("dist", "dist0", "cdist")
_SUMS = ("inner", "sqdist", "wrapped_normal_log_prob")


def _check_pair(factor: Any) -> None:
    """Raise an error if a factor is not a pair of a manifold and a dimension, or is itself a
    product."""
    pair = isinstance(factor, (tuple, list)) and len(factor) == 2
    if not pair or not isinstance(factor[0], Manifold):
        found = whose(factor[0]) if pair else repr(factor)
        raise TypeError(
            "Product takes pairs of a manifold and its dimension, such as "
            f"(hypvision.geometry.Lorentz(1.0), 3), got {found}."
        )
    if isinstance(factor[0], Product):
        raise ValueError("A factor of a Product cannot be a Product: give its factors instead.")


class Product(Manifold):
    """The product of manifolds. A point is the points of the factors side by side,
    ``(..., sum of their coordinates)``; squared lengths and distances, inner products and log
    densities are the sums of the factors' values.

    Args:
        factors: pairs of a manifold and the dimension ``n_i`` of its space (the points of a Lorentz
            factor have ``n_i + 1`` coordinates).

    Raises:
        TypeError: an argument is not a pair of a manifold and a dimension.
        ValueError: there are no factors.
    """

    name = "Product"
    manifolds: Sequence[Manifold]

    def __init__(self, *factors: tuple[Manifold, int], check: bool = False):
        super().__init__(check=check)
        if not factors:
            raise ValueError("Product needs at least one pair of a manifold and its dimension.")
        for factor in factors:
            _check_pair(factor)
        self.manifolds = nn.ModuleList(manifold for manifold, _ in factors)  # type: ignore[assignment]
        self.dims = [int(n) for _, n in factors]
        self.sizes = [n + manifold.extra for manifold, n in factors]

    @property
    def c(self) -> tuple[Curvature, ...]:  # type: ignore[override]
        """The curvatures of the factors, in their order."""
        return tuple(manifold.c for manifold in self.manifolds)

    def clamp_(self) -> None:
        for manifold in self.manifolds:
            manifold.clamp_()

    def extra_repr(self) -> str:
        return f"dims={tuple(self.dims)}"

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the coordinates of ``x`` in each factor."""
        if x.shape[-1] != sum(self.sizes):
            raise ValueError(
                f"Points of this product have {sum(self.sizes)} coordinates, got {x.shape[-1]}."
            )
        return torch.split(x, self.sizes, -1)

    def _each(self, name: str, **arguments: Any) -> list[Tensor]:
        """Return the result of the method ``name`` for each factor, called with the factor's parts
        of the arguments."""
        self._check_arguments(arguments)
        parts = [dict(arguments) for _ in self.dims]
        for argument, value in arguments.items():
            if argument == "std":
                pieces = self._stds(value)
            elif argument == "u" and name in ("expmap0", "from_tangent0", "transp0"):
                pieces = self._tangent0(value)
            elif argument in ("x", "y", "mean", "u", "v"):
                pieces = self.split(value)
            else:
                continue
            for part, piece in zip(parts, pieces):
                part[argument] = piece
        return [getattr(manifold, name)(**part) for manifold, part in zip(self.manifolds, parts)]

    def _call(self, name: str, **arguments: Any) -> Tensor:
        found = self._each(name, **arguments)
        if name in _LENGTHS:
            return safe_sqrt(torch.stack([d * d for d in found]).sum(0))
        return torch.stack(found).sum(0) if name in _SUMS else torch.cat(found, -1)

    def by_factor(self, name: str, **arguments: Any) -> Tensor:
        """Return the numbers ``(..., k)`` that the k factors' method ``name``, such as ``"cdist"``,
        returns; equal hyperbolic factors are computed in one pass."""
        first = self.manifolds[0]
        equal = len({(type(m), n) for m, n in zip(self.manifolds, self.dims)}) == 1
        if not equal or not isinstance(first, Hyperbolic):
            return torch.stack(self._each(name, **arguments), -1)
        self._check_arguments(arguments)
        points = [argument for argument in arguments if argument in ("x", "y")]
        for argument in points:
            parts = self.split(arguments[argument])
            arguments[argument] = torch.stack(parts)
        stacked = arguments[points[0]]
        c = torch.stack([c if isinstance(c, Tensor) else stacked.new_tensor(c) for c in self.c])
        c = c.reshape(-1, *[1] * (stacked.dim() - 1))
        numbers: Tensor = getattr(first._functions, name)(**arguments, c=c)
        return numbers.movedim(0, -1)

    def half_aperture(self, x: Tensor, min_radius: float = 0.1) -> Tensor:
        """Return the half-apertures ``(..., k)`` of the entailment cones at ``x`` in the factors,
        in radians."""
        return self.by_factor("half_aperture", x=x, min_radius=min_radius)

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the exterior angles ``(..., k)`` at ``x`` in the factors, in radians; see
        :meth:`~hypvision.geometry.Lorentz.exterior_angle`."""
        return self.by_factor("exterior_angle", x=x, y=y)

    def _tangent0(self, u: Tensor) -> tuple[Tensor, ...]:
        if u.shape[-1] != sum(self.dims):
            dims = " + ".join(map(str, self.dims))
            raise ValueError(
                f"Tangent vectors at the origin of this product have {dims} = {sum(self.dims)} "
                f"coordinates, got {u.shape[-1]}. That is also the last size of random(): "
                f"random(..., {sum(self.dims)})."
            )
        return torch.split(u, self.dims, -1)

    def _stds(self, std: Tensor | float) -> Sequence[Tensor | float]:
        if not isinstance(std, Tensor) or std.dim() == 0 or std.shape[-1] == 1:
            return [std] * len(self.dims)
        one_each("wrapped_normal", "std", std, sum(self.dims), "dimensions")
        return torch.split(std, self.dims, -1)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        return safe_sqrt(self.inner(x, u, u, keepdim=keepdim))

    def projx(self, x: Tensor) -> Tensor:
        """Return the points whose factors are the factors of ``x``, each by its ``projx``."""
        return torch.cat([m.projx(part) for m, part in zip(self.manifolds, self.split(x))], -1)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the point that the factors' retractions reach from ``x`` along ``u``."""
        return self._call("retr", x=x, u=u)

    def from_tangent0(self, u: Tensor) -> Tensor:
        """Return the points whose factors lie at the distances ``|u_i|`` from the origin; ``u`` is
        ``(..., sum of dims)``."""
        return self._call("from_tangent0", u=u)

    def to_tangent0(self, x: Tensor) -> Tensor:
        """Return the vectors ``(..., sum of dims)`` from which :meth:`from_tangent0` makes
        ``x``."""
        return self._call("to_tangent0", x=x)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        check_factor(t, "geodesic_unit: t")
        return self.expmap(x, stretched(u, self.norm(x, u, keepdim=True), t))

    def origin(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> Tensor:
        """Return the origin, repeated to the shape ``size``, which ends in the dimension of the
        space; without a size, one point."""
        size = size_of(size) if size else ()
        if size and size[-1] != sum(self.dims):
            raise ValueError(
                f"This product has the dimension {sum(self.dims)}, got a size that ends in "
                f"{size[-1]}."
            )
        parts = zip(self.manifolds, self.dims)
        return torch.cat(
            [m.origin(*size[:-1], n, dtype=dtype, device=device) for m, n in parts], -1
        )

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        for manifold, part in zip(self.manifolds, self.split(x)):
            manifold.check_point(part, name, tolerance)
