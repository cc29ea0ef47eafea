"""Products of manifolds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .manifolds import Manifold, whose
from .numerics import one_each, safe_sqrt

__all__ = ["Product"]


class Product(Manifold):
    """The product of manifolds: points are the factors' points side by side, ``(..., sum of their coordinates)``.

    Args:
        factors: pairs of a manifold and the dimension ``n_i`` of the space (a Lorentz factor takes ``n_i + 1``
            coordinates).

    Raises:
        TypeError: an argument is no such pair.
        ValueError: there are no factors.
    """

    name = "Product"

    def __init__(self, *factors: tuple[Manifold, int], check: bool = False):
        super().__init__(check=check)
        if not factors:
            raise ValueError("Product needs at least one pair of a manifold and its dimension.")
        for pair in factors:
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], Manifold)):
                found = whose(pair[0]) if isinstance(pair, (tuple, list)) and len(pair) == 2 else repr(pair)
                raise TypeError(
                    "Product takes pairs of a manifold and its dimension, such as "
                    f"(hypvision.geometry.Lorentz(1.0), 3), got {found}."
                )
        if any(isinstance(manifold, Product) for manifold, _ in factors):
            raise ValueError("A factor of a Product cannot be a Product: give its factors instead.")
        self.manifolds = nn.ModuleList(manifold for manifold, _ in factors)
        self.dims = tuple(int(n) for _, n in factors)
        self.sizes = [n + manifold.extra for manifold, n in factors]

    @property
    def c(self) -> tuple:
        """The curvatures of the factors."""
        return tuple(manifold.c for manifold in self.manifolds)

    def clamp_(self) -> None:
        for manifold in self.manifolds:
            manifold.clamp_()

    def extra_repr(self) -> str:
        return f"dims={self.dims}"

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The factors' coordinates."""
        if x.shape[-1] != sum(self.sizes):
            raise ValueError(f"Points of this product have {sum(self.sizes)} coordinates, got {x.shape[-1]}.")
        return x.split(self.sizes, -1)

    def _each(self, method: str, *args: Tensor) -> list[Tensor]:
        if self.check:
            self.check_point(args[0])
        parts = zip(*(self.split(a) for a in args))
        return [getattr(manifold, method)(*part) for manifold, part in zip(self.manifolds, parts)]

    def _tangent0(self, u: Tensor) -> tuple[Tensor, ...]:
        if u.shape[-1] != sum(self.dims):
            raise ValueError(f"Tangent vectors at the origin have {sum(self.dims)} coordinates, got {u.shape[-1]}.")
        return u.split(self.dims, -1)

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Distance ``(...)``: the root of the sum of the squared distances."""
        squares = torch.stack([d * d for d in self._each("dist", x, y)]).sum(0)
        return safe_sqrt(squares)

    def dist0(self, x: Tensor) -> Tensor:
        """Distance ``(...)`` from the origin."""
        return safe_sqrt(torch.stack([d * d for d in self._each("dist0", x)]).sum(0))

    def cdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Pairwise distances ``(..., N, M)``."""
        return safe_sqrt(torch.stack([d * d for d in self._each("cdist", x, y)]).sum(0))

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Inner product ``(...)``: the sum of the factors'."""
        return torch.stack(self._each("inner", x, u, v)).sum(0)

    def norm(self, x: Tensor, u: Tensor) -> Tensor:
        """Length ``(...)``."""
        return safe_sqrt(self.inner(x, u, u))

    def _joined(method: str, count: int) -> Callable:
        def apply(self, *args: Tensor) -> Tensor:
            return torch.cat(self._each(method, *args), -1)

        apply.__name__, apply.__doc__ = method, f"``{method}`` of every factor, ``{count}`` arguments."
        return apply

    expmap, logmap = _joined("expmap", 2), _joined("logmap", 2)
    proju, egrad2rgrad = _joined("proju", 2), _joined("egrad2rgrad", 2)
    projx, transp, retr = _joined("projx", 1), _joined("transp", 3), _joined("retr", 2)
    mobius_add, mobius_sub = _joined("mobius_add", 2), _joined("mobius_sub", 2)
    boost, unboost = mobius_add, mobius_sub
    del _joined

    def expmap0(self, u: Tensor) -> Tensor:
        """``expmap0`` of every factor; ``u`` ``(..., sum of dims)``."""
        return torch.cat([m.expmap0(part) for m, part in zip(self.manifolds, self._tangent0(u))], -1)

    def from_tangent0(self, u: Tensor) -> Tensor:
        """Points whose factors lie at the distances ``|u_i|`` from the origin."""
        return torch.cat([m.from_tangent0(part) for m, part in zip(self.manifolds, self._tangent0(u))], -1)

    def to_tangent0(self, x: Tensor) -> Tensor:
        """Inverse of :meth:`from_tangent0`."""
        return torch.cat(self._each("to_tangent0", x), -1)

    def logmap0(self, x: Tensor) -> Tensor:
        """``logmap0`` of every factor, ``(..., sum of dims)``."""
        return torch.cat(self._each("logmap0", x), -1)

    def transp0(self, x: Tensor, u: Tensor) -> Tensor:
        """Transport from the origin of every factor."""
        parts = zip(self.manifolds, self.split(x), self._tangent0(u))
        return torch.cat([m.transp0(x, u) for m, x, u in parts], -1)

    def transp0back(self, x: Tensor, v: Tensor) -> Tensor:
        """Transport to the origin of every factor."""
        return torch.cat(self._each("transp0back", x, v), -1)

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point at the fraction ``t`` of the way from ``x`` to ``y``."""
        return self.expmap(x, self.logmap(x, y) * t)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        """The point at distance ``t`` from ``x`` in the direction of ``u``."""
        length = self.norm(x, u).unsqueeze(-1)
        return self.expmap(x, u * (t / torch.where(length > 0, length, torch.ones_like(length))))

    def sqdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum ``(...)`` of the factors' squared Lorentz (or Euclidean) distances."""
        return torch.stack(self._each("sqdist", x, y)).sum(0)

    def mobius_scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """Points at ``r`` times the radius in every factor; ``r`` a number or ``(..., 1)``."""
        return torch.cat([m.mobius_scalar_mul(r, part) for m, part in zip(self.manifolds, self.split(x))], -1)

    scalar_mul = mobius_scalar_mul

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Centroid of every factor."""
        return torch.cat([m.centroid(part, weights) for m, part in zip(self.manifolds, self.split(x))], -1)

    midpoint = centroid

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None, steps: int = 30) -> Tensor:
        """Frechet mean of every factor: together they minimise the sum of squared distances of the product."""
        parts = zip(self.manifolds, self.split(x))
        return torch.cat([m.frechet_mean(part, weights, steps) for m, part in parts], -1)

    def weighted_centroids(self, weights: Tensor, x: Tensor) -> Tensor:
        """Centroids ``(..., M, d)`` of every factor; ``weights`` ``(..., M, N)``, ``x`` ``(..., N, d)``."""
        return torch.cat([m.weighted_centroids(weights, part) for m, part in zip(self.manifolds, self.split(x))], -1)

    def rescale(self, x: Tensor, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
        """Maximum-distance rescaling of every factor."""
        return torch.cat([m.rescale(part, limit, slope) for m, part in zip(self.manifolds, self.split(x))], -1)

    def _stds(self, std: Tensor | float) -> list[Tensor | float]:
        if not isinstance(std, Tensor) or std.dim() == 0 or std.shape[-1] == 1:
            return [std] * len(self.dims)
        one_each("wrapped_normal", "std", std, sum(self.dims), "dimensions")
        return list(std.split(self.dims, -1))

    def wrapped_normal(
        self,
        mean: Tensor,
        std: Tensor | float,
        size: tuple[int, ...] = (),
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples ``(*size, ..., d)``, independent in the factors; ``std`` a number or ``(..., sum of dims)``."""
        parts = zip(self.manifolds, self.split(mean), self._stds(std))
        return torch.cat([m.wrapped_normal(part, s, size, generator) for m, part, s in parts], -1)

    def wrapped_normal_log_prob(self, x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
        """Log density ``(...)`` of :meth:`wrapped_normal`: the sum of the factors'."""
        parts = zip(self.manifolds, self.split(x), self.split(mean), self._stds(std))
        return torch.stack([m.wrapped_normal_log_prob(*part) for m, *part in parts]).sum(0)

    def origin(self, n: int | None = None, dtype: torch.dtype | None = None, device=None) -> Tensor:
        """The origin; ``n``, which other manifolds need, may be left out."""
        if n not in (None, sum(self.dims)):
            raise ValueError(f"This product has the dimension {sum(self.dims)}, got n = {n}.")
        return torch.cat([m.origin(n, dtype=dtype, device=device) for m, n in zip(self.manifolds, self.dims)])

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        for manifold, part in zip(self.manifolds, self.split(x)):
            manifold.check_point(part, name, tolerance)
