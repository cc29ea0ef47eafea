"""Flat space, in the form of a manifold."""

from __future__ import annotations

import torch
from torch import Tensor

from . import lorentz
from .border import check_factor, one_each
from .lorentz.means import normalised
from .lorentz.normal import _check_std, gauss_log_prob
from .manifold import Manifold, check_numbers
from .numerics import angle, dot, heading, length, widen


class Euclidean(Manifold):
    """Flat space with points ``(..., n)``: lets code written for a manifold run without one."""

    name = "Euclidean"

    def __init__(self, check: bool = False):
        super().__init__(check=check)

    @property
    def c(self) -> float:
        """0: flat."""
        return 0.0

    def extra_repr(self) -> str:
        return ""

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Euclidean distance ``(...)``."""
        return self.dist0(x - y, keepdim=keepdim)

    def dist0(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """Euclidean norm ``(...)``."""
        out: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim)
        return out

    def cdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Pairwise distances ``(..., N, M)``, in float64 and then rounded: to 1e-8 of the size of
        the coordinates."""
        # torch.cdist takes a matrix product from 25 rows on, which float32 cannot afford for near
        # points
        return torch.cdist(widen(x), widen(y)).to(torch.promote_types(x.dtype, y.dtype))

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """``x + u``."""
        return x + u

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """``y - x``."""
        return y - x

    def expmap0(self, u: Tensor) -> Tensor:
        """``u``."""
        return u

    def logmap0(self, x: Tensor) -> Tensor:
        """``x``."""
        return x

    projx = logmap0

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """``v``."""
        return v

    egrad2rgrad = transp0back = proju

    def transp0(self, x: Tensor, u: Tensor) -> Tensor:
        """``u``."""
        return u

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """``v``."""
        return v

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """``u . v``, shape ``(...)``; ``u . u`` if ``v`` is None."""
        return (u * (u if v is None else v)).sum(-1, keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """``|u|``, shape ``(...)``."""
        return self.dist0(u, keepdim=keepdim)

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """``x + t (y - x)``."""
        check_factor(t, "geodesic: t")
        return x + t * (y - x)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        """``x + t u / |u|``."""
        check_factor(t, "geodesic_unit: t")
        return x + t * torch.nn.functional.normalize(
            u, dim=-1, eps=torch.finfo(u.dtype).tiny ** 0.5
        )

    def boost(self, x: Tensor, y: Tensor) -> Tensor:
        """``x + y``."""
        return x + y

    def unboost(self, x: Tensor, y: Tensor) -> Tensor:
        """``y - x``: ``y`` as seen from ``x``."""
        return y - x

    def scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """``r x``."""
        check_factor(r, "scalar_mul: r")
        return r * x

    def matvec(self, matrix: Tensor, x: Tensor) -> Tensor:
        """``M x``; ``matrix`` ``(m, n)``, ``x`` ``(..., n)``."""
        return torch.matmul(x, matrix.transpose(-1, -2))

    mobius_matvec = matvec

    def rotate(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``R x``; ``x`` ``(..., n)``, ``matrix`` ``(m, n)``."""
        return self.matvec(matrix, x)

    def sqdist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """``|x - y|^2``, shape ``(...)``."""
        return self.inner(x, x - y, keepdim=keepdim)

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weighted mean ``(..., n)`` of ``x`` ``(..., N, n)``; the origin if all weights are 0."""
        if weights is None:
            return x.mean(-2)
        one_each("centroid", "weights", weights, x.shape[-2])
        if self.check:
            check_numbers(weights)
        weights = normalised(weights)
        return (weights.unsqueeze(-1) * x).sum(-2)

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None, steps: int = 30) -> Tensor:
        """The centroid; ``steps`` is not needed."""
        return self.centroid(x, weights)

    def weighted_centroids(self, weights: Tensor, x: Tensor) -> Tensor:
        """Weighted means ``(..., M, n)`` of ``x`` ``(..., N, n)``; ``weights`` ``(..., M, N)``."""
        one_each("weighted_centroids", "weights", weights, x.shape[-2])
        return torch.matmul(normalised(weights), x)

    def dist2plane(self, x: Tensor, z: Tensor, a: Tensor | float, signed: bool = True) -> Tensor:
        """Distance ``(...)`` from the hyperplane at the offset ``a`` along the normal ``z``, as on
        the hyperboloid."""
        out = (x * torch.nn.functional.normalize(z, dim=-1)).sum(-1) - a
        return out if signed else out.abs()

    def hyperplane_logits(self, x: Tensor, z: Tensor, a: Tensor) -> Tensor:
        """Signed distances ``(..., K)`` from hyperplanes times the lengths of their normals ``z``
        ``(K, n)``."""
        one_each("hyperplane_logits", "a", a, z.shape[0], "hyperplanes")
        length: Tensor = torch.linalg.vector_norm(z, dim=-1)
        return torch.matmul(x, z.t()) - a * length

    def busemann(self, x: Tensor, p: Tensor) -> Tensor:
        """``-x . p``, shape ``(...)``: the limit of the curved ones."""
        return -(x * p).sum(-1)

    def horosphere_dist(self, x: Tensor, p: Tensor, tau: float | Tensor) -> Tensor:
        """Distance ``(...)`` from the hyperplane ``-x . p = tau``."""
        return (self.busemann(x, p) - tau).abs()

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle ``(...)`` between ``x`` and ``y - x``, in radians; 0 where one of them is 0."""
        ray, size = heading(x)
        delta = y - x
        along = dot(ray, delta)
        return angle(length(delta - along * ray) * (size > 0), along)

    def rescale(self, x: Tensor, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
        """Maximum-distance rescaling of the radii if there is a ``limit``: flat space has none of
        its own."""
        return x if limit is None else lorentz.rescale_tangent(x, limit, slope)

    def concat(self, points: list[Tensor]) -> Tensor:
        """Coordinates side by side."""
        return torch.cat(points, -1)

    def split(self, x: Tensor, sizes: list[int]) -> list[Tensor]:
        """Slices of the coordinates."""
        return list(x.split(sizes, -1))

    def wrapped_normal(
        self,
        mean: Tensor,
        std: Tensor | float,
        size: tuple[int, ...] = (),
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples ``(*size, ..., n)`` of the normal distribution around ``mean`` ``(..., n)``."""
        _check_std("wrapped_normal", std, mean.shape[-1])
        noise = torch.randn(
            *size, *mean.shape, dtype=mean.dtype, device=mean.device, generator=generator
        )
        return mean + noise * std

    def wrapped_normal_log_prob(self, x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
        """Log density ``(...)`` of :meth:`wrapped_normal`."""
        _check_std("wrapped_normal_log_prob", std, mean.shape[-1])
        return gauss_log_prob(x - mean, std)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        if not torch.isfinite(x).all():
            raise ValueError(f"{name} has coordinates that are not finite.")
