"""Flat space with the methods of a manifold."""

from __future__ import annotations

import torch
from torch import Tensor

from . import lorentz
from .border import check_factor, check_shapes, one_each, some_points
from .lorentz.means import normalised
from .lorentz.normal import _check_std, gauss_log_prob
from .manifold import Manifold, check_numbers
from .numerics import along_and_across, angle, transformed, widen


class Euclidean(Manifold):
    """Flat space with points ``(..., n)``, so that code written for a manifold also runs without
    curvature. Tangent vectors are ``(..., n)``, too."""

    name = "Euclidean"

    def __init__(self, check: bool = False):
        super().__init__(check=check)

    @property
    def c(self) -> float:
        """The curvature of flat space, 0."""
        return 0.0

    def extra_repr(self) -> str:
        return ""

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the Euclidean distance ``(...)`` between ``x`` and ``y``."""
        check_shapes("dist", dict(x=x, y=y), 0)
        return self.dist0(x - y, keepdim=keepdim)

    def dist0(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the Euclidean norm ``(...)`` of ``x``."""
        out: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim)
        return out

    def cdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Return all distances ``(..., N, M)`` between ``x`` ``(..., N, n)`` and ``y``
        ``(..., M, n)``, computed in float64 and then rounded; their error is 1e-8 of the size of
        the coordinates."""
        check_shapes("cdist", dict(x=x, y=y), 2)
        dtype = torch.promote_types(x.dtype, y.dtype)
        x = widen(x)
        y = widen(y)
        # torch.cdist has no forward derivative, and torch.func.jacrev of it is wrong.
        if transformed():
            return self.dist0(x[..., :, None, :] - y[..., None, :, :]).to(dtype)
        # From 25 rows on torch.cdist computes by a matrix product, which in float32 is too inexact
        # for near points.
        return torch.cdist(x, y).to(dtype)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Return ``x + u``."""
        check_shapes("expmap", dict(x=x, u=u), 0)
        return x + u

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``y - x``."""
        check_shapes("logmap", dict(x=x, y=y), 0)
        return y - x

    def expmap0(self, u: Tensor) -> Tensor:
        """Return ``u`` unchanged."""
        return u

    def logmap0(self, x: Tensor) -> Tensor:
        """Return ``x`` unchanged."""
        return x

    projx = logmap0

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """Return ``v`` unchanged."""
        return v

    egrad2rgrad = transp0back = proju

    def transp0(self, x: Tensor, u: Tensor) -> Tensor:
        """Return ``u`` unchanged."""
        return u

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Return ``v`` unchanged."""
        return v

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """Return ``u . v``, shape ``(...)``, or ``u . u`` if ``v`` is None."""
        if v is not None:
            check_shapes("inner", dict(u=u, v=v), 0)
        return (u * (u if v is None else v)).sum(-1, keepdim=keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return ``|u|``, shape ``(...)``."""
        return self.dist0(u, keepdim=keepdim)

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return ``x + t (y - x)``; ``t`` is a number or ``(..., 1)``."""
        check_factor(t, "geodesic: t")
        check_shapes("geodesic", dict(x=x, y=y), 0)
        return x + t * (y - x)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        """Return ``x + t u / |u|``; ``t`` is a number or ``(..., 1)``."""
        check_factor(t, "geodesic_unit: t")
        check_shapes("geodesic_unit", dict(x=x, u=u), 0)
        return x + t * torch.nn.functional.normalize(
            u, dim=-1, eps=torch.finfo(u.dtype).tiny ** 0.5
        )

    def boost(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``x + y``."""
        check_shapes("boost", dict(x=x, y=y), 0)
        return x + y

    def unboost(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``y - x``: ``y`` as seen from ``x``."""
        check_shapes("unboost", dict(x=x, y=y), 0)
        return y - x

    def scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """Return ``r x``; ``r`` is a number or ``(..., 1)``."""
        check_factor(r, "scalar_mul: r")
        return r * x

    def matvec(self, matrix: Tensor, x: Tensor) -> Tensor:
        """Return ``M x`` ``(..., m)`` for the ``matrix`` ``M`` ``(m, n)`` and ``x``
        ``(..., n)``."""
        return torch.matmul(x, matrix.transpose(-1, -2))

    mobius_matvec = matvec

    def rotate(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Return ``R x`` ``(..., m)`` for the ``matrix`` ``R`` ``(m, n)`` and ``x``
        ``(..., n)``."""
        return self.matvec(matrix, x)

    def sqdist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return ``|x - y|^2``, shape ``(...)``."""
        check_shapes("sqdist", dict(x=x, y=y), 0)
        return self.inner(x, x - y, keepdim=keepdim)

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean ``(..., n)`` of ``x`` ``(..., N, n)`` with the weights ``(..., N)``;
        None: equal weights. The origin if all weights are 0."""
        some_points("centroid", x)
        if weights is None:
            return x.mean(-2)
        one_each("centroid", "weights", weights, x.shape[-2])
        if self.check:
            check_numbers(weights)
        weights = normalised(weights)
        return (weights.unsqueeze(-1) * x).sum(-2)

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None, steps: int = 30) -> Tensor:
        """Return :meth:`centroid`, which is the Frechet mean of flat space; ``steps`` is not
        used."""
        return self.centroid(x, weights)

    def weighted_centroids(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return M means ``(..., M, n)`` of ``x`` ``(..., N, n)`` with the weights
        ``(..., M, N)``."""
        some_points("weighted_centroids", x)
        one_each("weighted_centroids", "weights", weights, x.shape[-2])
        return torch.matmul(normalised(weights), x)

    def dist2plane(self, x: Tensor, z: Tensor, a: Tensor | float, signed: bool = True) -> Tensor:
        """Return the distance ``(...)`` of ``x`` from the hyperplane that is ``a`` away from the
        origin along its normal ``z``; with ``signed`` positive on the side that ``z`` points to."""
        out = (x * torch.nn.functional.normalize(z, dim=-1)).sum(-1) - a
        return out if signed else out.abs()

    def hyperplane_logits(self, x: Tensor, z: Tensor, a: Tensor) -> Tensor:
        """Return the signed distances ``(..., K)`` of ``x`` from hyperplanes, each times the length
        of its normal; normals ``z`` ``(K, n)``, offsets ``a`` ``(K,)``."""
        one_each("hyperplane_logits", "a", a, z.shape[0], "hyperplanes")
        length: Tensor = torch.linalg.vector_norm(z, dim=-1)
        return torch.matmul(x, z.t()) - a * length

    def busemann(self, x: Tensor, p: Tensor) -> Tensor:
        """Return ``-x . p``, shape ``(...)``, to which the Busemann functions of hyperbolic space
        tend as their curvature goes to 0."""
        check_shapes("busemann", dict(x=x, p=p), 0)
        return -(x * p).sum(-1)

    def horosphere_dist(self, x: Tensor, p: Tensor, tau: float | Tensor) -> Tensor:
        """Return the distance ``(...)`` of ``x`` from the hyperplane ``-x . p = tau``."""
        return (self.busemann(x, p) - tau).abs()

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the angle ``(...)`` between ``x`` and ``y - x``, in radians; 0 where one of them
        is 0."""
        check_shapes("exterior_angle", dict(x=x, y=y), 0)
        size, along, across = along_and_across(x, y - x)
        return angle(across * (size > 0), along)

    def rescale(self, x: Tensor, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
        """Return ``x`` with its radii squashed below ``limit`` (see :meth:`Manifold.rescale`), or
        unchanged if ``limit`` is None, because flat space has no limit of its own."""
        return x if limit is None else lorentz.rescale_tangent(x, limit, slope)

    def concat(self, points: list[Tensor]) -> Tensor:
        """Return the points ``(..., sum n_i)`` whose coordinates are those of ``points`` side by
        side."""
        return torch.cat(points, -1)

    def split(self, x: Tensor, sizes: list[int]) -> list[Tensor]:
        """Return slices of the coordinates of ``x``, ``(..., size)`` for each of the ``sizes``."""
        return list(x.split(sizes, -1))

    def wrapped_normal(
        self,
        mean: Tensor,
        std: Tensor | float,
        size: tuple[int, ...] = (),
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return samples ``(*size, ..., n)`` of the normal distribution around ``mean``
        ``(..., n)``; ``std`` is a number or ``(..., n)``."""
        _check_std("wrapped_normal", std, mean.shape[-1])
        noise = torch.randn(
            *size, *mean.shape, dtype=mean.dtype, device=mean.device, generator=generator
        )
        return mean + noise * std

    def wrapped_normal_log_prob(self, x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
        _check_std("wrapped_normal_log_prob", std, mean.shape[-1])
        return gauss_log_prob(x - mean, std)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        if not torch.isfinite(x).all():
            raise ValueError(f"{name} has coordinates that are not finite.")
