"""Manifold objects: the functions of this package bound to a curvature, fixed or learned.

Method names follow geoopt. A manifold is a module: assign it to a layer, and its curvature, if
learned, is one of the layer's parameters.

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
from .manifold import Manifold
from .numerics import widen


class Hyperbolic(Manifold):
    """A model of hyperbolic space: its methods are a module's functions without their curvature.

    A method's arguments and its details are those of the function of its name.
    """

    _functions: ClassVar[ModuleType]
    # method -> name of the function, where the two differ
    _names: ClassVar[dict[str, str]] = {}

    def _call(self, name: str, **arguments: Any) -> Tensor:
        self._check_arguments(arguments)
        out: Tensor = getattr(self._functions, self._names.get(name, name))(**arguments, c=self.c)
        return out

    def matvec(self, matrix: Tensor, x: Tensor) -> Tensor:
        """Moebius matrix-vector product; ``matrix`` ``(m, n)``."""
        return self._call("matvec", matrix=matrix, x=x)

    mobius_matvec = matvec

    def rotate(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Points whose coordinates are multiplied by ``matrix`` ``(m, n)``, an isometry if that is
        a rotation."""
        return self._call("rotate", x=x, matrix=matrix)

    def busemann(self, x: Tensor, p: Tensor) -> Tensor:
        """Busemann function ``(...)`` of the ideal points ``p``, unit vectors ``(..., n)``."""
        return self._call("busemann", x=x, p=p)

    def horosphere_dist(self, x: Tensor, p: Tensor, tau: float | Tensor) -> Tensor:
        """Distance ``(...)`` from the horosphere around ``p`` where :meth:`busemann` is ``tau``."""
        return self._call("horosphere_dist", x=x, p=p, tau=tau)

    def half_aperture(self, x: Tensor, min_radius: float = 0.1) -> Tensor:
        """Half-aperture ``(...)`` of the entailment cone at ``x``, in radians."""
        return self._call("half_aperture", x=x, min_radius=min_radius)

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle ``(...)`` at ``x`` between the ray from the origin and the geodesic to ``y``, in
        radians."""
        return self._call("exterior_angle", x=x, y=y)

    def entailment_loss(
        self, x: Tensor, y: Tensor, min_radius: float = 0.1, aperture_scale: float = 1.0
    ) -> Tensor:
        """``max(0, exterior angle - aperture_scale * half-aperture)``, ``(...)``."""
        return self._call(
            "entailment_loss", x=x, y=y, min_radius=min_radius, aperture_scale=aperture_scale
        )

    def max_distance(self, largest: float = 2000.0) -> Curvature:
        """Default limit of :meth:`rescale` in float32."""
        return lorentz.max_distance(self.c, largest)


def _chosen(c: float | None, by_k: float | None) -> float:
    """The curvature ``c``, or that of geoopt's ``k``; 1 by default."""
    if c is not None and by_k is not None:
        raise ValueError(
            f"c and k were both given, c={c} and a k that means c={by_k}: give one of the two."
        )
    return by_k if by_k is not None else 1.0 if c is None else c


class Lorentz(Hyperbolic):
    """The hyperboloid with points ``(..., n + 1)``, time first; tangent vectors at the origin are
    ``(..., n)``.

    The methods are the functions of :mod:`hypvision.geometry.lorentz` without their curvature. For
    the arguments see :class:`Manifold`; ``c`` is 1 by default, and ``k``, instead of ``c``, is
    geoopt's: ``1 / c``.
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
        """Points with the space parts of ``x``, which may have left the hyperboloid."""
        return lorentz.projx(x, self.c)

    def from_space(self, space: Tensor) -> Tensor:
        """Points with these space parts ``(..., n)``."""
        return lorentz.from_space(space, self.c)

    def time_from_space(self, space: Tensor) -> Tensor:
        """Time coordinate ``(..., 1)`` of the points with these space parts ``(..., n)``."""
        return lorentz.time_from_space(space, self.c)

    def concat(self, points: list[Tensor]) -> Tensor:
        """Points whose space parts are those of ``points`` side by side."""
        return lorentz.concat(points, self.c)

    def split(self, x: Tensor, sizes: list[int]) -> list[Tensor]:
        """Points whose space parts are slices of that of ``x``, of these ``sizes``."""
        self._check(x=x)
        return lorentz.split(x, sizes, self.c)

    def dist2plane(self, x: Tensor, z: Tensor, a: Tensor | float, signed: bool = True) -> Tensor:
        """Distance ``(...)`` from the hyperplane at the offset ``a`` along its normal ``z``
        ``(..., n)``."""
        return self._call("dist2plane", x=x, z=z, a=a, signed=signed)

    def hyperplane_logits(self, x: Tensor, z: Tensor, a: Tensor) -> Tensor:
        """Signed distances ``(..., K)`` from hyperplanes times the lengths of their normals ``z``
        ``(K, n)``."""
        return self._call("hyperplane_logits", x=x, z=z, a=a)

    def to_poincare(self, x: Tensor) -> Tensor:
        """Coordinates ``(..., n)`` in the Poincare ball."""
        self._check(x=x)
        return maps.lorentz_to_poincare(x, self.c)

    def from_poincare(self, x: Tensor) -> Tensor:
        """Points of the hyperboloid for points ``(..., n)`` of the Poincare ball."""
        return maps.poincare_to_lorentz(x, self.c)

    def to_klein(self, x: Tensor) -> Tensor:
        """Coordinates ``(..., n)`` in the Klein ball."""
        self._check(x=x)
        return maps.lorentz_to_klein(x, self.c)

    def from_klein(self, x: Tensor) -> Tensor:
        """Points of the hyperboloid for points ``(..., n)`` of the Klein ball."""
        return maps.klein_to_lorentz(x, self.c)

    def change_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Points of curvature ``c_new`` with the same tangent vector at the origin."""
        self._check(x=x)
        return lorentz.change_curvature(x, self.c, c_new)

    def scale_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Points of curvature ``c_new`` whose distances are ``sqrt(c / c_new)`` times as large."""
        self._check(x=x)
        return lorentz.scale_curvature(x, self.c, c_new)

    def origin(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> Tensor:
        """The origin ``(..., n + 1)``; ``size``, such as ``(n,)`` or ``(8, n)``, ends in the
        dimension of the space."""
        return lorentz.from_space(torch.zeros(size, dtype=dtype, device=device), self.c)

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

    The methods are the functions of :mod:`hypvision.geometry.poincare` without their curvature;
    results of maps into the ball are projected.

    Args:
        eps: distance that points keep from the boundary, as a fraction of the radius: 1e-5 in
            float32 and 1e-10 in float64 if None, a largest radius of 12.2 and 23.7; geoopt's is
            4e-3 (6.2) in float32.
        exact: whether :meth:`retr` is the exponential map instead of ``project(x + u)``.
        k: the sectional curvature ``-c``, as geoopt's stereographic model takes it, instead of
            ``c``.

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
    # methods that project their results onto the manifold
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

    def _call(self, name: str, **arguments: Any) -> Tensor:
        out = super()._call(name, **arguments)
        return self.projx(out) if name in self._maps else out

    def projx(self, x: Tensor) -> Tensor:
        """Points with ``sqrt(c) |x|`` cut at ``1 - eps``."""
        return poincare.project(x, self.c, self.eps)

    def expmap0(self, u: Tensor) -> Tensor:
        """Exponential map at the origin, projected."""
        eps = (1e-10 if u.dtype == torch.float64 else 1e-5) if self.eps is None else self.eps
        return poincare.expmap0(u, self.c, eps)

    def from_tangent0(self, u: Tensor) -> Tensor:
        """Points at the distance ``|u|`` from the origin in the direction of ``u`` ``(..., n)``."""
        return self.expmap0(u / 2)

    def to_tangent0(self, x: Tensor) -> Tensor:
        """Inverse of :meth:`from_tangent0`."""
        return 2 * self.logmap0(x)

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """``v``: every vector is tangent."""
        return v

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """``project(x + u)``, or the exponential map if the manifold is ``exact``."""
        self._check(x=x)
        return self.expmap(x, u) if self.exact else self.projx(x + u)

    def conformal_factor(self, x: Tensor) -> Tensor:
        """``2 / (1 - c |x|^2)``, shape ``(..., 1)``."""
        return self._call("conformal_factor", x=x)

    def lambda_x(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """:meth:`conformal_factor` as geoopt gives it, shape ``(...)``."""
        factor = self.conformal_factor(x)
        return factor if keepdim else factor.squeeze(-1)

    @property
    def k(self) -> Curvature:
        """The sectional curvature ``-c``, as geoopt names it."""
        return -self.c

    def gyration(self, u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """The rotation ``gyr[u, v]`` of ``w``."""
        self._check(u=u, v=v)
        return poincare.gyration(u, v, w, self.c)

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        """Distance ``(...)`` from the hyperplane through the point ``p`` with the normal ``a``."""
        self._check(p=p)
        return self._call("dist2plane", x=x, p=p, a=a, signed=signed)

    def ganea_logits(self, x: Tensor, p: Tensor, a: Tensor) -> Tensor:
        """Logits ``(..., K)`` of hyperplanes through points ``p``, normals ``a``, ``(K, n)``."""
        self._check(p=p)
        return self._call("ganea_logits", x=x, p=p, a=a)

    def hyperplane_logits(self, x: Tensor, v: Tensor, r: Tensor, g: Tensor | None = None) -> Tensor:
        """Logits ``(..., K)`` of HNN++: normals ``v`` ``(K, n)``, offsets ``r``, factors ``g``."""
        return self._call("hyperplane_logits", x=x, v=v, r=r, g=g)

    def beta_concat(self, points: list[Tensor]) -> Tensor:
        """Beta-concatenation of HNN++, projected."""
        return self.projx(poincare.beta_concat(points, self.c))

    def beta_split(self, x: Tensor, sizes: list[int]) -> list[Tensor]:
        """Beta-split of HNN++ into points of these dimensions, projected."""
        self._check(x=x)
        return [self.projx(part) for part in poincare.beta_split(x, sizes, self.c)]

    def to_lorentz(self, x: Tensor) -> Tensor:
        """Coordinates ``(..., n + 1)`` on the hyperboloid."""
        return self._call("to_lorentz", x=x)

    def from_lorentz(self, x: Tensor) -> Tensor:
        """Points of the ball for points ``(..., n + 1)`` of the hyperboloid, projected."""
        return self.projx(poincare.from_lorentz(x, self.c))

    def to_klein(self, x: Tensor) -> Tensor:
        """Coordinates in the Klein ball."""
        self._check(x=x)
        return maps.poincare_to_klein(x, self.c)

    def from_klein(self, x: Tensor) -> Tensor:
        """Points of the Poincare ball for points of the Klein ball, projected."""
        return self.projx(maps.klein_to_poincare(x, self.c))

    def change_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Points of curvature ``c_new`` with the same tangent vector at the origin, projected."""
        self._check(x=x)
        return poincare.project(poincare.change_curvature(x, self.c, c_new), c_new, self.eps)

    def scale_curvature(self, x: Tensor, c_new: Curvature) -> Tensor:
        """Points of curvature ``c_new`` whose distances are ``sqrt(c / c_new)`` times as large,
        projected there."""
        self._check(x=x)
        return poincare.project(poincare.scale_curvature(x, self.c, c_new), c_new, self.eps)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        radius = (widen(x).norm(dim=-1) * self._value() ** 0.5).max().item() if x.numel() else 0.0
        if not radius < 1 + (tolerance or 0.0):
            raise ValueError(
                f"{name} is not in the ball of curvature c = {self._value():g}: sqrt(c) |{name}| "
                f"is {radius:.6g}, and must be below 1. Points come from expmap0 or projx."
            )
