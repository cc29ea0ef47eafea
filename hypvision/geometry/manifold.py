"""The base of manifold objects: a curvature, fixed or learned, and the methods that all have.

Method names follow geoopt. A manifold is a module: assign it to a layer, and its curvature, if
learned, is one of the layer's parameters.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ._typing import Curvature
from .border import positive


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


def kept(values: Tensor, keepdim: bool) -> Tensor:
    """Numbers ``(...)`` as ``(..., 1)`` where the last dimension is kept."""
    return values.unsqueeze(-1) if keepdim else values


class Manifold(nn.Module):
    """A space with a curvature, and the methods that all spaces have.

    With ``keepdim`` numbers ``(...)`` keep the last dimension, ``(..., 1)``. A subclass defines the
    methods, or :meth:`_call` for many at once; the last ones are geoopt's names for operations made
    of the others (docs/geometry.md says where they differ).

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
        """What the method of this name gives."""
        raise TypeError(
            f"The manifold {whose(self)} does not define {name}. Define it with the arguments that "
            "hypvision.geometry.Lorentz has."
        )

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

    def projx(self, x: Tensor) -> Tensor:
        """Points brought onto the manifold, which ``x`` may have left."""
        return self._call("projx", x=x)

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

    # Names of geoopt

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        """:meth:`boost`."""
        return self.boost(x, y)

    def mobius_sub(self, x: Tensor, y: Tensor) -> Tensor:
        """:meth:`unboost`."""
        return self.unboost(x, y)

    def mobius_scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """:meth:`scalar_mul`."""
        return self.scalar_mul(r, x)

    def midpoint(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """:meth:`centroid`."""
        return self.centroid(x, weights)

    def component_inner(self, x: Tensor, u: Tensor, v: Tensor | None = None) -> Tensor:
        """Inner product ``(..., 1)`` of tangent vectors at ``x``, by which Adam scales steps."""
        return self.inner(x, u, v, keepdim=True)

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
