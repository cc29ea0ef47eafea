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

import functools
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from . import lorentz, maps, poincare
from ._typing import Curvature
from .border import positive
from .geoopt_names import GeooptNames
from .numerics import widen


class CurvatureParameter(nn.Parameter):
    """The logarithm of a learned curvature, with bounds: updated last and without weight decay."""

    log_bounds: tuple[float, float]

    def __new__(
        cls, data: Tensor, log_bounds: tuple[float, float], requires_grad: bool = True
    ) -> CurvatureParameter:
        if not isinstance(data, Tensor) or not data.is_floating_point() or data.dim():
            got = type(data).__name__
            if isinstance(data, Tensor):
                got = f"{data.dtype} of shape {tuple(data.shape)}"
            raise TypeError(
                "data, the logarithm of a curvature, must be a tensor of floating point without "
                f"dimensions, got {got}."
            )
        if not log_bounds[0] <= log_bounds[1]:
            raise ValueError(
                f"log_bounds must be a lower and an upper bound of log c, got {log_bounds}."
            )
        out: CurvatureParameter = torch.Tensor._make_subclass(cls, data, requires_grad)
        out.log_bounds = log_bounds
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> CurvatureParameter:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.data.clone(), self.log_bounds, self.requires_grad)
        out: CurvatureParameter = memo[id(self)]
        return out

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return CurvatureParameter, (self.data, self.log_bounds, self.requires_grad)

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"CurvatureParameter containing the log of a curvature:\n{self.data!r}"


def _adopted(module: nn.Module, name: str, child: nn.Module | None) -> None:
    """PyTorch calls this for every module that another one takes."""
    if isinstance(child, Manifold):
        child.registered = True


# Registered at the first learned curvature only, because the hook slows down the construction of
# every module.
_watch_modules = functools.cache(
    lambda: nn.modules.module.register_module_module_registration_hook(_adopted)
)


def check_numbers(weights: object = None, std: object = None) -> None:
    """Check the values of weights and standard deviations. The functions do not check them, because
    the host would wait for the device."""
    if isinstance(weights, Tensor) and weights.numel():
        if not bool((weights >= 0).all()):
            raise ValueError("weights must be numbers of at least 0.")
        if not bool((weights > 0).any(-1).all()):
            raise ValueError("weights must not all be 0: no point would count.")
    if isinstance(std, Tensor) and not bool((std > 0).all()):
        raise ValueError("std must be positive.")


def whose(value: object) -> str:
    """The class of an argument that is not a manifold of this package, with its module: other
    packages use the same names."""
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return (
        kind.__name__ if package in ("builtins", "hypvision") else f"{kind.__name__} of {package}"
    )


class Manifold(nn.Module):
    """A space with a curvature.

    Args:
        c: curvature, ``c > 0``; the sectional curvature is ``-c``.
        learnable: whether ``c`` is learned. It is stored as ``log_c``, a parameter without
            dimensions, in float32 (in float64 if that is torch's default) also after the model is
            cast to half precision. Give it its own learning rate and no weight decay
            (:func:`hypvision.optim.param_groups` does).
        bounds: ``c`` stays between these multiples of its initial value.
        check: check that arguments lie on the manifold; for debugging, it synchronises with the
            device.

    Raises:
        ValueError: ``c`` is not positive, or the bounds do not enclose 1.
    """

    # coordinates of a point minus dimensions of the space
    extra = 0
    # Methods of every manifold of this package, declared without a body: another manifold may lack
    # some, and optimisers test which it has.
    dist: Callable[..., Tensor]
    dist0: Callable[..., Tensor]
    cdist: Callable[[Tensor, Tensor], Tensor]
    sqdist: Callable[..., Tensor]
    expmap: Callable[[Tensor, Tensor], Tensor]
    logmap: Callable[[Tensor, Tensor], Tensor]
    expmap0: Callable[[Tensor], Tensor]
    logmap0: Callable[[Tensor], Tensor]
    from_tangent0: Callable[[Tensor], Tensor]
    to_tangent0: Callable[[Tensor], Tensor]
    projx: Callable[[Tensor], Tensor]
    proju: Callable[[Tensor, Tensor], Tensor]
    egrad2rgrad: Callable[[Tensor, Tensor], Tensor]
    inner: Callable[..., Tensor]
    norm: Callable[..., Tensor]
    transp: Callable[[Tensor, Tensor, Tensor], Tensor]
    transp0: Callable[[Tensor, Tensor], Tensor]
    transp0back: Callable[[Tensor, Tensor], Tensor]
    boost: Callable[[Tensor, Tensor], Tensor]
    unboost: Callable[[Tensor, Tensor], Tensor]
    mobius_add: Callable[[Tensor, Tensor], Tensor]
    mobius_sub: Callable[[Tensor, Tensor], Tensor]
    scalar_mul: Callable[[float | Tensor, Tensor], Tensor]
    mobius_scalar_mul: Callable[[float | Tensor, Tensor], Tensor]
    geodesic: Callable[[float | Tensor, Tensor, Tensor], Tensor]
    geodesic_unit: Callable[[float | Tensor, Tensor, Tensor], Tensor]
    centroid: Callable[..., Tensor]
    midpoint: Callable[..., Tensor]
    frechet_mean: Callable[..., Tensor]
    weighted_centroids: Callable[[Tensor, Tensor], Tensor]
    rescale: Callable[..., Tensor]
    wrapped_normal: Callable[..., Tensor]
    wrapped_normal_log_prob: Callable[[Tensor, Tensor, Tensor | float], Tensor]
    # whether a module has registered the manifold, so that its state dict contains a learned
    # curvature
    registered = False
    log_c: CurvatureParameter

    def __init__(
        self,
        c: float = 1.0,
        learnable: bool = False,
        bounds: tuple[float, float] = (0.1, 10.0),
        check: bool = False,
    ):
        super().__init__()
        c = float(c)
        if not (c > 0 and math.isfinite(c)):
            raise ValueError(
                f"The curvature c must be positive (the sectional curvature is -c), got {c}."
            )
        if not 0 < bounds[0] <= 1 <= bounds[1]:
            raise ValueError(
                f"bounds must enclose 1, as multiples of the initial curvature, got {bounds}."
            )
        self.check = check
        self.learnable = learnable
        self.initial_c = c
        self.log_bounds = (math.log(c) + math.log(bounds[0]), math.log(c) + math.log(bounds[1]))
        if learnable:
            _watch_modules()
            dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
            self.log_c = CurvatureParameter(torch.tensor(math.log(c), dtype=dtype), self.log_bounds)

    @property
    def c(self) -> Curvature:
        """The curvature: a number if fixed, else a tensor without dimensions, with a gradient."""
        if not self.learnable:
            return self.initial_c
        low, high = self.log_bounds
        # The clamp passes the gradient unchanged: a value outside the bounds can be trained back.
        return torch.exp(self.log_c + (self.log_c.clamp(low, high) - self.log_c).detach())

    def _value(self) -> float:
        c = self.c
        return c.detach().item() if isinstance(c, Tensor) else c

    @torch.no_grad()
    def clamp_(self) -> None:
        """Clamp a learned curvature to its bounds, as our optimisers do after each step."""
        if self.learnable:
            self.log_c.clamp_(*self.log_bounds)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Manifold:
        if not self.learnable:
            out: Manifold = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            return out
        before = self.log_c.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._restore(before)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        if not self.learnable:
            return
        self._restore(self.log_c.detach())
        # of half precision
        log_c = self.log_c.detach()
        rounding = 1e-2
        low, high = self.log_bounds
        if (
            type(log_c) is Tensor
            and not log_c.is_meta
            and not low - rounding <= float(log_c) <= high + rounding
        ):
            warnings.warn(
                f"The curvature {log_c.exp().item():.4g} of these weights is out of the bounds of "
                f"this {self}: until a training brings it back, {self._value():.4g} counts. Make "
                "the manifold, or its model, with the curvature and bounds of the training.",
                stacklevel=2,
            )

    def _restore(self, log_c: Tensor) -> None:
        """Restore the parameter if PyTorch has replaced its class or rounded it to half."""
        if type(self.log_c) is nn.Parameter:
            self.log_c.__class__ = CurvatureParameter
            self.log_c.log_bounds = self.log_bounds
        if self.log_c.dtype in (torch.float16, torch.bfloat16):
            self.log_c.data = log_c.to(self.log_c.device, torch.float32)
            if self.log_c.grad is not None:
                self.log_c.grad = self.log_c.grad.float()

    def extra_repr(self) -> str:
        # on meta the curvature has no value yet
        c = self.initial_c if self.learnable and self.log_c.is_meta else self._value()
        return f"c={c:g}" + (", learnable" if self.learnable else "")

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        """Raise ValueError, naming the argument, if ``x`` does not lie on the manifold."""
        raise NotImplementedError

    def origin(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> Tensor:
        """The origin, of the shape ``size``, which ends in the dimension of the space."""
        return torch.zeros(size, dtype=dtype, device=device)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Retraction of the tangent vector ``u`` at ``x``: the exponential map."""
        return self.expmap(x, u)

    def retr_transp(self, x: Tensor, u: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """The point that :meth:`retr` reaches, and ``vectors`` at ``x`` transported to it."""
        y = self.retr(x, u)
        return (y, *(self.transp(x, y, v) for v in vectors))

    def expmap_transp(self, x: Tensor, u: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """The point of the exponential map, and tangent ``vectors`` at ``x`` transported to it."""
        y = self.expmap(x, u)
        return (y, *(self.transp(x, y, v) for v in vectors))

    def random(
        self,
        *size: int,
        std: float = 1.0,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> Tensor:
        """Points from the wrapped normal distribution around the origin.

        ``size`` ends in the dimension of the space; ``std`` must not be negative.
        """
        positive("random", "std", std, zero=True)
        u = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return self.from_tangent0(u * std)


def kept(values: Tensor, keepdim: bool) -> Tensor:
    """Numbers ``(...)`` as ``(..., 1)`` where the last dimension is kept."""
    return values.unsqueeze(-1) if keepdim else values


class Common(GeooptNames, Manifold):
    """The methods that have the same arguments on the hyperboloid, in the ball and on products.

    With ``keepdim`` numbers ``(...)`` keep the last dimension, ``(..., 1)``.
    """

    def _check(self, **points: object) -> None:
        """With ``check=True``: raise an error for points that are not on the manifold. Arguments
        that are not tensors are left to the functions, which raise a TypeError."""
        for name, value in points.items() if self.check else ():
            if isinstance(value, Tensor) and value.is_floating_point():
                self.check_point(value, name)

    def _check_arguments(self, arguments: dict[str, Any]) -> None:
        """With ``check=True``: a method's points, weights and standard deviations."""
        if self.check:
            self._check(**{point: arguments.get(point) for point in ("x", "y", "mean")})
            check_numbers(arguments.get("weights"), arguments.get("std"))

    def _call(self, name: str, **arguments: Any) -> Tensor:
        """The function of this name for this curvature."""
        raise NotImplementedError

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Geodesic distance ``(...)``."""
        return kept(self._call("dist", x=x, y=y), keepdim)

    def dist0(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """Distance ``(...)`` from the origin."""
        return kept(self._call("dist0", x=x), keepdim)

    def cdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Pairwise distances ``(..., N, M)``."""
        return self._call("cdist", x=x, y=y)

    def sqdist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Squared Lorentz distance ``(...)``: the squared chord on the hyperboloid."""
        return kept(self._call("sqdist", x=x, y=y), keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Exponential map at ``x``."""
        return self._call("expmap", x=x, u=u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Logarithm: the tangent vector at ``x`` whose geodesic reaches ``y`` after unit time."""
        return self._call("logmap", x=x, y=y)

    def expmap0(self, u: Tensor) -> Tensor:
        """Exponential map at the origin; ``u`` ``(..., n)``."""
        return self._call("expmap0", u=u)

    def logmap0(self, x: Tensor) -> Tensor:
        """Logarithm at the origin, ``(..., n)``."""
        return self._call("logmap0", x=x)

    def from_tangent0(self, u: Tensor) -> Tensor:
        """Points at the distance ``|u|`` from the origin in the direction of ``u`` ``(..., n)``."""
        return self.expmap0(u)

    def to_tangent0(self, x: Tensor) -> Tensor:
        """Inverse of :meth:`from_tangent0`."""
        return self.logmap0(x)

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """Orthogonal projection of ``v`` to the tangent space at ``x``."""
        return self._call("proju", x=x, v=v)

    def egrad2rgrad(self, x: Tensor, v: Tensor) -> Tensor:
        """Riemannian gradient from the Euclidean gradient ``v`` at ``x``."""
        return self._call("egrad2rgrad", x=x, v=v)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """Inner product ``(...)`` of tangent vectors at ``x``; ``v=None``: of ``u`` with itself."""
        return kept(self._call("inner", x=x, u=u, v=u if v is None else v), keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Length ``(...)`` of tangent vectors at ``x``."""
        return kept(self._call("norm", x=x, u=u), keepdim)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` from ``x`` to ``y``."""
        return self._call("transp", x=x, y=y, v=v)

    def transp0(self, x: Tensor, u: Tensor) -> Tensor:
        """Parallel transport of ``u`` ``(..., n)`` from the origin to ``x``."""
        return self._call("transp0", x=x, u=u)

    def transp0back(self, x: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` from ``x`` to the origin, ``(..., n)``."""
        return self._call("transp0back", x=x, v=v)

    def boost(self, x: Tensor, y: Tensor) -> Tensor:
        """Moebius addition of ``x`` and ``y``: ``y`` moved as ``x`` moves the origin."""
        return self._call("boost", x=x, y=y)

    def unboost(self, x: Tensor, y: Tensor) -> Tensor:
        """Inverse of :meth:`boost`: ``y`` as seen from ``x``."""
        return self._call("unboost", x=x, y=y)

    def scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """Points on the same rays at ``r`` times the radius; ``r`` a number or ``(..., 1)``."""
        return self._call("scalar_mul", r=r, x=x)

    mobius_add = boost
    mobius_sub = unboost
    mobius_scalar_mul = scalar_mul

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point at the fraction ``t`` of the way from ``x`` to ``y``; ``t`` a number or
        ``(..., 1)``."""
        return self._call("geodesic", t=t, x=x, y=y)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        """The point at the distance ``t``, a number or ``(..., 1)``, from ``x`` towards ``u``."""
        return self._call("geodesic_unit", t=t, x=x, u=u)

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weighted Lorentz centroid of ``x`` ``(..., N, d)``; ``weights`` ``(..., N)``."""
        return self._call("centroid", x=x, weights=weights)

    midpoint = centroid

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None, steps: int = 30) -> Tensor:
        """Weighted Frechet mean of ``x`` ``(..., N, d)``; ``weights`` ``(..., N)``."""
        return self._call("frechet_mean", x=x, weights=weights, steps=steps)

    def weighted_centroids(self, weights: Tensor, x: Tensor) -> Tensor:
        """Centroids ``(..., M, d)`` of ``x`` ``(..., N, d)`` by one matrix product; ``weights``
        ``(..., M, N)``."""
        return self._call("weighted_centroids", weights=weights, x=x)

    def rescale(self, x: Tensor, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
        """Maximum-distance rescaling of the radii."""
        return self._call("rescale", x=x, limit=limit, slope=slope)

    def wrapped_normal(
        self,
        mean: Tensor,
        std: Tensor | float,
        size: tuple[int, ...] = (),
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Samples ``(*size, ..., d)`` of the wrapped normal; ``std`` a number or ``(..., n)``."""
        return self._call("wrapped_normal", mean=mean, std=std, size=size, generator=generator)

    def wrapped_normal_log_prob(self, x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
        """Log density ``(...)`` of :meth:`wrapped_normal` at ``x``."""
        return self._call("wrapped_normal_log_prob", x=x, mean=mean, std=std)


class Hyperbolic(Common):
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
