"""Names that users of geoopt know, by the operations of this package: a mixin of the manifolds.

Where geoopt's method differs from the one of the same name here, docs/geometry.md says how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .manifolds import Manifold as _Base
else:
    _Base = object


class GeooptNames(_Base):
    """Further operations under geoopt's names; each is made of those that every manifold has."""

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Squared geodesic distance ``(...)``; :meth:`sqdist` is the squared Lorentz distance."""
        return self.dist(x, y, keepdim=keepdim).square()

    def mobius_coadd(self, x: Tensor, y: Tensor) -> Tensor:
        """Moebius coaddition: twice the midpoint of two points (Ungar, 2008); it commutes."""
        pair = torch.stack(torch.broadcast_tensors(x, y), -2)
        return self.scalar_mul(2.0, self.centroid(pair))

    def mobius_cosub(self, x: Tensor, y: Tensor) -> Tensor:
        """Moebius cosubtraction: the coaddition of ``x`` and the opposite of ``y``."""
        return self.mobius_coadd(x, self.scalar_mul(-1.0, y))

    def mobius_fn_apply(
        self, fn: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """``expmap0(fn(logmap0(x), ...))``: ``fn`` in the tangent space at the origin (Ganea et
        al., NeurIPS 2018)."""
        return self.expmap0(fn(self.logmap0(x), *args, **kwargs))

    def mobius_pointwise_mul(self, w: Tensor, x: Tensor) -> Tensor:
        """Coordinates of the tangent vector at the origin times ``w`` ``(..., n)``."""
        return self.mobius_fn_apply(lambda u: w * u, x)

    def weighted_midpoint(
        self,
        xs: Tensor,
        weights: Tensor | None = None,
        *,
        reducedim: Sequence[int] | None = None,
        lincomb: bool = False,
    ) -> Tensor:
        """Weighted midpoint over several dimensions at once.

        Args:
            xs: points ``(..., d)``.
            weights: not negative, of the shape of ``xs`` without its last dimension, or one that
                broadcasts to it.
            reducedim: the dimensions of ``xs`` that are averaged; None: all but the last.
            lincomb: whether the midpoint is then scaled by the sum of the weights.
        """
        shape = xs.shape[:-1]
        weights = xs.new_ones(()) if weights is None else weights
        weights = weights.broadcast_to(shape)
        reduced = range(len(shape)) if reducedim is None else [dim % xs.dim() for dim in reducedim]
        kept = [dim for dim in range(len(shape)) if dim not in reduced]
        order = [*kept, *reduced]
        left = [shape[dim] for dim in kept]
        points = xs.permute(*order, xs.dim() - 1).reshape(*left, -1, xs.shape[-1])
        weights = weights.permute(order).reshape(*left, -1)
        out = self.centroid(points, weights)
        return self.scalar_mul(weights.sum(-1, keepdim=True), out) if lincomb else out

    def random_normal(
        self,
        *size: int,
        mean: float | Tensor = 0.0,
        std: float | Tensor = 1.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> Tensor:
        """``expmap0`` of normal vectors with the length ``std`` on average, as geoopt draws them;
        ``size`` ends in the dimension of the space."""
        noise = torch.randn(*size, dtype=dtype, device=device)
        return self.expmap0(noise * std / size[-1] ** 0.5 + mean)

    def transp_follow_expmap(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """The tangent vector ``v`` at ``x`` after transport to ``expmap(x, u)``."""
        return self.transp(x, self.expmap(x, u), v)

    def transp_follow_retr(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """The tangent vector ``v`` at ``x`` after transport to ``retr(x, u)``."""
        return self.transp(x, self.retr(x, u), v)

    def check_point_on_manifold(self, x: Tensor, *, atol: float | None = None) -> bool:
        """Whether ``x`` lies on the manifold; :meth:`check_point` raises instead."""
        try:
            self.check_point(x, tolerance=atol)
        except ValueError:
            return False
        return True

    def assert_check_point_on_manifold(self, x: Tensor, *, atol: float | None = None) -> None:
        """:meth:`check_point`: ValueError if ``x`` does not lie on the manifold."""
        self.check_point(x, tolerance=atol)

    def check_vector_on_tangent(self, x: Tensor, u: Tensor, *, atol: float = 1e-5) -> bool:
        """Whether ``u`` is a tangent vector at ``x``: finite, and as close to its projection as
        ``atol`` times its longest coordinate."""
        far = (self.proju(x, u) - u).abs().amax() > atol * (1 + u.abs().amax())
        return bool(torch.isfinite(u).all()) and not bool(far)

    def assert_check_vector_on_tangent(self, x: Tensor, u: Tensor, *, atol: float = 1e-5) -> None:
        """ValueError if ``x`` does not lie on the manifold, or ``u`` is no tangent vector at it."""
        self.check_point(x)
        if not self.check_vector_on_tangent(x, u, atol=atol):
            raise ValueError(
                "u is not a tangent vector at x. Tangent vectors come from logmap, egrad2rgrad or "
                "proju."
            )
