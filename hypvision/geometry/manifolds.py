"""Manifold objects: the functions of this package bound to a curvature, fixed or learned.

Methods have geoopt's names. A manifold is a module: if it is assigned to a layer, its learned
curvature is one of the layer's parameters.

    >>> ball = PoincareBall(c=0.1)
    >>> lorentz = Lorentz(c=1.0, learnable=True)      # lorentz.log_c is a parameter
    >>> x = lorentz.expmap0(torch.randn(8, 16))
    >>> lorentz.cdist(x, x).shape
    torch.Size([8, 8])
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from . import lorentz, maps, poincare
from ._typing import Curvature
from .manifold import Manifold, size_of
from .numerics import widen


class Hyperbolic(Manifold):
    """The base class of the models of hyperbolic space. Each method calls the function of its name
    in the model's module with the manifold's curvature; arguments and details are explained
    there."""

    _functions: ClassVar[ModuleType]
    # the function's name by the method's name, where the two differ
    _names: ClassVar[dict[str, str]] = {}

    def _call(self, name: str, **arguments: Any) -> Tensor:
        self._check_arguments(arguments)
        out: Tensor = getattr(self._functions, self._names.get(name, name))(**arguments, c=self.c)
        return out

    def matvec(self, matrix: Tensor, x: Tensor) -> Tensor:
        """Return the Moebius product of the ``matrix`` ``(m, n)`` and ``x``."""
        return self._call("matvec", matrix=matrix, x=x)

    mobius_matvec = matvec

    def rotate(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Return the points whose (space) coordinates are multiplied by ``matrix`` ``(m, n)``,
        which is an isometry if its columns are orthonormal."""
        return self._call("rotate", x=x, matrix=matrix)

    def busemann(self, x: Tensor, p: Tensor) -> Tensor:
        """Return the Busemann function ``(...)`` of ``x`` for the ideal points ``p``, unit vectors
        ``(..., n)``."""
        return self._call("busemann", x=x, p=p)

    def horosphere_dist(self, x: Tensor, p: Tensor, tau: float | Tensor) -> Tensor:
        """Return the distance ``(...)`` of ``x`` from the horosphere around ``p`` on which
        :meth:`busemann` is ``tau``."""
        return self._call("horosphere_dist", x=x, p=p, tau=tau)

    def half_aperture(self, x: Tensor, min_radius: float = 0.1) -> Tensor:
        """Return the half-aperture ``(...)`` of the entailment cone at ``x``, in radians."""
        return self._call("half_aperture", x=x, min_radius=min_radius)

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the angle ``(...)`` at ``x`` between the ray from the origin and the geodesic to
        ``y``, in radians."""
        return self._call("exterior_angle", x=x, y=y)

    def entailment_loss(
        self, x: Tensor, y: Tensor, min_radius: float = 0.1, aperture_scale: float = 1.0
    ) -> Tensor:
        """Return ``max(0, exterior angle - aperture_scale * half-aperture)`` ``(...)``, in radians:
        0 where ``x`` entails ``y``."""
        return self._call(
            "entailment_loss", x=x, y=y, min_radius=min_radius, aperture_scale=aperture_scale
        )

    def max_distance(self, largest: float = 2000.0) -> Curvature:
        """Return the default limit of :meth:`rescale`, a radius; see
        :func:`hypvision.geometry.lorentz.max_distance`."""
        return lorentz.max_distance(self.c, largest)


def _chosen(c: float | None, by_k: float | None) -> float:
    """Return the curvature ``c``, or the one that geoopt's ``k`` means; 1 if both are None."""
    if c is not None and by_k is not None:
        raise ValueError(
            f"c and k were both given, c={c} and a k that means c={by_k}. Give one of the two."
        )
    return by_k if by_k is not None else 1.0 if c is None else c


class Lorentz(Hyperbolic):
    """The hyperboloid with points ``(..., n + 1)``, time first; tangent vectors at the origin are
    ``(..., n)``.

    The methods are the functions of :mod:`hypvision.geometry.lorentz` with the manifold's
    curvature. For the arguments see :class:`Manifold`; ``c`` is 1 by default. Instead of ``c``
    geoopt's ``k = 1 / c`` may be given.
    """

    name = "Lorentz"
    extra = 1
    _functions: ClassVar[ModuleType] = lorentz

    def __init__(
        self,
        c: float | None = None,
        learnable: bool = False,
        bounds: tuple[float, float] = (0.1, 10.0),
        check: bool = False,
        *,
        k: float | None = None,
    ):
        if k is not None and not k > 0:
            raise ValueError(
                f"k, the square of the hyperboloid's radius, must be positive, got {k}."
            )
        super().__init__(_chosen(c, None if k is None else 1 / k), learnable, bounds, check)

    @property
    def k(self) -> Curvature:
        """The number ``1 / c``, the hyperboloid's squared radius: geoopt calls it the curvature."""
        return 1 / self.c

    def projx(self, x: Tensor) -> Tensor:
        """Return the points with the space parts of ``x``, which may have left the hyperboloid."""
        return lorentz.projx(x, self.c)

    def from_space(self, space: Tensor) -> Tensor:
        """Return the points ``(..., n + 1)`` with the space parts ``space`` ``(..., n)``."""
        return lorentz.from_space(space, self.c)

    def time_from_space(self, space: Tensor) -> Tensor:
        """Return the time coordinate ``(..., 1)`` of the points with the space parts ``space``
        ``(..., n)``."""
        return lorentz.time_from_space(space, self.c)

    def concat(self, points: list[Tensor]) -> Tensor:
        """Return the points whose space parts are those of ``points`` side by side."""
        return lorentz.concat(points, self.c)

    def split(self, x: Tensor, sizes: list[int]) -> list[Tensor]:
        """Return points whose space parts are slices of the space part of ``x``, of the given
        ``sizes``."""
        self._check(x=x)
        return lorentz.split(x, sizes, self.c)

    def dist2plane(self, x: Tensor, z: Tensor, a: Tensor | float, signed: bool = True) -> Tensor:
        """Return the distance ``(...)`` of ``x`` from the hyperplane at the offset ``a`` from the
        origin along its normal ``z`` ``(..., n)``."""
        return self._call("dist2plane", x=x, z=z, a=a, signed=signed)

    def hyperplane_logits(self, x: Tensor, z: Tensor, a: Tensor) -> Tensor:
        """Return the signed distances ``(..., K)`` of ``x`` from K hyperplanes, each times the
        length of its normal; normals ``z`` ``(K, n)``, offsets ``a`` ``(K,)``."""
        return self._call("hyperplane_logits", x=x, z=z, a=a)

    def exterior_angles(self, x: Tensor, y: Tensor) -> Tensor:
        """Return all exterior angles ``(..., N, M)`` at ``x`` ``(..., N, n + 1)`` towards ``y``
        ``(..., M, n + 1)``, in radians."""
        return self._call("exterior_angles", x=x, y=y)

    def to_poincare(self, x: Tensor) -> Tensor:
        """Return the coordinates ``(..., n)`` of ``x`` in the Poincare ball."""
        self._check(x=x)
        return maps.lorentz_to_poincare(x, self.c)

    def from_poincare(self, x: Tensor) -> Tensor:
        """Return the points ``(..., n + 1)`` of the hyperboloid for points ``x`` ``(..., n)`` of
        the Poincare ball."""
        return maps.poincare_to_lorentz(x, self.c)

    def to_klein(self, x: Tensor) -> Tensor:
        """Return the coordinates ``(..., n)`` of ``x`` in the Klein ball."""
        self._check(x=x)
        return maps.lorentz_to_klein(x, self.c)

    def from_klein(self, x: Tensor) -> Tensor:
        """Return the points ``(..., n + 1)`` of the hyperboloid for points ``x`` ``(..., n)`` of
        the Klein ball."""
        return maps.klein_to_lorentz(x, self.c)

    def change_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Return the points of curvature ``c_new`` with the same tangent vectors at the origin."""
        self._check(x=x)
        return lorentz.change_curvature(x, self.c, c_new)

    def scale_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Return points of curvature ``c_new`` whose distances are ``sqrt(c / c_new)`` times as
        large."""
        self._check(x=x)
        return lorentz.scale_curvature(x, self.c, c_new)

    def origin(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> Tensor:
        """Return the origin ``(..., n + 1)``; ``size``, such as ``(n,)`` or ``(8, n)``, ends in the
        dimension of the space."""
        return lorentz.from_space(torch.zeros(size_of(size), dtype=dtype, device=device), self.c)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        if tolerance is None:
            tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(x.dtype, 2e-2)
        time = lorentz.time_from_space(widen(x[..., 1:]), self._value())
        error = ((widen(x[..., :1]) - time) / time).abs().max().item() if x.numel() else 0.0
        if not error <= tolerance:
            raise ValueError(
                f"{name} is not on the hyperboloid of curvature c = {self._value():g}: its time "
                f"coordinate (the first) differs by {error:.1e} from what its space part requires. "
                "Points come from expmap0, from_space or projx."
            )


class PoincareBall(Hyperbolic):
    """The Poincare ball with points ``(..., n)``; ``c`` is 1 by default.

    The methods are the functions of :mod:`hypvision.geometry.poincare` with the manifold's
    curvature. Points that they return are projected: kept off the boundary of the ball by
    :meth:`projx`.

    Args:
        eps: the distance that points keep from the boundary, as a fraction of the radius. None:
            1e-5 in float32 and 1e-10 in float64, which makes the largest hyperbolic radius 12.2 and
            23.7 (for c = 1). geoopt's is 4e-3 (6.2) in float32.
        exact: whether :meth:`retr` is the exponential map instead of ``project(x + u)``.
        k: the sectional curvature ``-c`` as geoopt's stereographic model takes it, to be given
            instead of ``c``.

    For the other arguments see :class:`Manifold`.
    """

    name = "PoincareBall"
    _functions: ClassVar[ModuleType] = poincare
    _names: ClassVar[dict[str, str]] = {
        "boost": "mobius_add",
        "unboost": "mobius_sub",
        "scalar_mul": "mobius_scalar_mul",
        "matvec": "mobius_matvec",
        "centroid": "midpoint",
    }
    # the methods whose results are projected into the ball
    _maps = frozenset(
        {*_names, "expmap", "frechet_mean", "geodesic", "geodesic_unit", "rescale", "rotate"}
        | {"weighted_centroids", "wrapped_normal"}
    )

    def __init__(
        self,
        c: float | None = None,
        learnable: bool = False,
        bounds: tuple[float, float] = (0.1, 10.0),
        check: bool = False,
        eps: float | None = None,
        exact: bool = False,
        *,
        k: float | None = None,
    ):
        if k is not None and not k < 0:
            raise ValueError(
                f"k, the sectional curvature of the ball, must be negative, got {k}: positive ones "
                "are spheres, which do not exist here."
            )
        super().__init__(_chosen(c, None if k is None else -k), learnable, bounds, check)
        if eps is not None and not 0 < eps < 1:
            raise ValueError(f"eps must lie between 0 and 1, got {eps}.")
        self.eps = eps
        self.exact = exact

    def extra_repr(self) -> str:
        eps = "" if self.eps is None else f", eps={self.eps:g}"
        return super().extra_repr() + eps + (", exact=True" if self.exact else "")

    def _call(self, name: str, **arguments: Any) -> Tensor:
        out = super()._call(name, **arguments)
        return self.projx(out) if name in self._maps else out

    def projx(self, x: Tensor) -> Tensor:
        """Return the points with ``sqrt(c) |x|`` cut at ``1 - eps``."""
        return poincare.project(x, self.c, self.eps)

    def expmap0(self, u: Tensor) -> Tensor:
        """Return the exponential map of ``u`` ``(..., n)`` at the origin, projected."""
        eps = poincare._default_eps(u) if self.eps is None else self.eps
        return poincare.expmap0(u, self.c, eps)

    def from_tangent0(self, u: Tensor) -> Tensor:
        return self.expmap0(u / 2)

    def to_tangent0(self, x: Tensor) -> Tensor:
        return 2 * self.logmap0(x)

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """Return ``v`` unchanged, because in the ball every vector is tangent."""
        return v

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Return ``project(x + u)``, or the exponential map if the manifold is ``exact``."""
        self._check(x=x)
        return self.expmap(x, u) if self.exact else self.projx(x + u)

    def conformal_factor(self, x: Tensor) -> Tensor:
        """Return ``2 / (1 - c |x|^2)``, shape ``(..., 1)``."""
        return self._call("conformal_factor", x=x)

    def lambda_x(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return :meth:`conformal_factor` by geoopt's name and in its shape ``(...)``."""
        factor = self.conformal_factor(x)
        return factor if keepdim else factor.squeeze(-1)

    @property
    def k(self) -> Curvature:
        """The sectional curvature ``-c``, as geoopt names it."""
        return -self.c

    def gyration(self, u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """Return the vectors ``w`` rotated by the gyration ``gyr[u, v]`` of the points ``u`` and
        ``v``."""
        self._check(u=u, v=v)
        return poincare.gyration(u, v, w, self.c)

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        """Return the distance ``(...)`` of ``x`` from the hyperplane through the point ``p`` with
        the normal ``a``, both ``(..., n)``."""
        self._check(p=p)
        return self._call("dist2plane", x=x, p=p, a=a, signed=signed)

    def ganea_logits(self, x: Tensor, p: Tensor, a: Tensor) -> Tensor:
        """Return Ganea's logits ``(..., K)`` of ``x`` for hyperplanes through points ``p``
        ``(K, n)`` with normals ``a`` ``(K, n)``."""
        self._check(p=p)
        return self._call("ganea_logits", x=x, p=p, a=a)

    def hyperplane_logits(self, x: Tensor, v: Tensor, r: Tensor, g: Tensor | None = None) -> Tensor:
        """Return the logits ``(..., K)`` of HNN++; normals ``v`` ``(K, n)``, offsets ``r`` and
        factors ``g`` ``(K,)``."""
        return self._call("hyperplane_logits", x=x, v=v, r=r, g=g)

    def beta_concat(self, points: list[Tensor]) -> Tensor:
        """Return the beta-concatenation of ``points`` (HNN++), projected."""
        return self.projx(poincare.beta_concat(points, self.c))

    def beta_split(self, x: Tensor, sizes: list[int]) -> list[Tensor]:
        """Return the beta-split of ``x`` (HNN++) into points of the dimensions ``sizes``,
        projected."""
        self._check(x=x)
        return [self.projx(part) for part in poincare.beta_split(x, sizes, self.c)]

    def to_lorentz(self, x: Tensor) -> Tensor:
        """Return the points ``(..., n + 1)`` of the hyperboloid for ``x``."""
        return self._call("to_lorentz", x=x)

    def from_lorentz(self, x: Tensor) -> Tensor:
        """Return the points of the ball for points ``x`` ``(..., n + 1)`` of the hyperboloid,
        projected."""
        return self.projx(poincare.from_lorentz(x, self.c))

    def to_klein(self, x: Tensor) -> Tensor:
        """Return the coordinates ``(..., n)`` of ``x`` in the Klein ball."""
        self._check(x=x)
        return maps.poincare_to_klein(x, self.c)

    def from_klein(self, x: Tensor) -> Tensor:
        """Return the points of the Poincare ball for points ``x`` of the Klein ball, projected."""
        return self.projx(maps.klein_to_poincare(x, self.c))

    def change_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Return the points of curvature ``c_new`` with the same tangent vectors at the origin,
        projected."""
        self._check(x=x)
        return poincare.project(poincare.change_curvature(x, self.c, c_new), c_new, self.eps)

    def scale_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Return points of curvature ``c_new`` whose distances are ``sqrt(c / c_new)`` times as
        large, projected into the ball of that curvature."""
        self._check(x=x)
        return poincare.project(poincare.scale_curvature(x, self.c, c_new), c_new, self.eps)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        radius = (widen(x).norm(dim=-1) * self._value() ** 0.5).max().item() if x.numel() else 0.0
        if not radius < 1 + (tolerance or 0.0):
            raise ValueError(
                f"{name} is not in the ball of curvature c = {self._value():g}: sqrt(c) |{name}| "
                f"is {radius:.6g}, and must be below 1. Points come from expmap0 or projx."
            )
