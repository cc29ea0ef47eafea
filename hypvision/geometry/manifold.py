"""The base class of manifold objects: a curvature, fixed or learned, and the methods that all
manifolds have."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hypvision.io import Plain

from ._typing import Curvature
from .border import positive
from .numerics import held


class CurvatureParameter(nn.Parameter):
    """The logarithm of a learned curvature, with bounds; optimisers update it after all other
    parameters and without weight decay."""

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
    """Note that a module has registered a manifold; PyTorch calls this hook whenever a module is
    assigned to another one."""
    if isinstance(child, Manifold):
        child.registered = True


# The hook is registered when the first learned curvature is made, because it slows down the
# construction of every module.
_watch_modules = functools.cache(
    lambda: nn.modules.module.register_module_module_registration_hook(_adopted)
)


def check_numbers(weights: object = None, std: object = None) -> None:
    """Raise ValueError for negative weights, weights that are all 0, and standard deviations that
    are not positive. Only manifolds with ``check=True`` call this, because reading values makes the
    host wait for the device."""
    if isinstance(weights, Tensor) and weights.numel():
        if not bool((weights >= 0).all()):
            raise ValueError("weights must be numbers of at least 0.")
        if not bool((weights > 0).any(-1).all()):
            raise ValueError("weights must not all be 0: no point would count.")
    if isinstance(std, Tensor) and not bool((std > 0).all()):
        raise ValueError("std must be positive.")


def whose(value: object) -> str:
    """Return the name of the class of a value that is not a manifold of this package, for error
    messages; with its package's name, because other packages have classes of the same names."""
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return (
        kind.__name__ if package in ("builtins", "hypvision") else f"{kind.__name__} of {package}"
    )


def kept(values: Tensor, keepdim: bool) -> Tensor:
    """Return numbers ``(...)`` as ``(..., 1)`` if ``keepdim`` is true, else unchanged."""
    return values.unsqueeze(-1) if keepdim else values


def size_of(size: Sequence[Any]) -> tuple[int, ...]:
    """Return the size that is given as numbers or, as geoopt takes it, as one tuple.

    Raises:
        ValueError: there is no number.
    """
    given = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    if not given:
        raise ValueError("The size must end in the dimension of the space, as 8, 3 does, got none.")
    return tuple(given)


class Manifold(nn.Module):
    """The base class of all manifolds: a space with a curvature, and its methods.

    Points ``x``, ``y`` and tangent vectors ``u``, ``v`` have shape ``(..., d)``, with ``d``
    coordinates in the last dimension; ``n`` is the dimension of the space. With ``keepdim`` methods
    that return numbers ``(...)`` return them as ``(..., 1)``. A subclass defines the methods, or
    :meth:`_call` for many of them at once; the methods at the end have geoopt's names and are made
    of the others (docs/geometry.md says where they differ from geoopt's).

    Args:
        c: curvature, ``c > 0``; the sectional curvature is ``-c``.
        learnable: whether ``c`` is learned. Its logarithm is then stored as ``log_c``, a
            parameter without dimensions, in float32 (in float64 if that is torch's default)
            even after the model is cast to half precision. It needs a learning rate of its own
            and no weight decay, as :func:`hypvision.optim.param_groups` gives it.
        check: whether methods check that their arguments lie on the manifold; meant for
            debugging, because each check synchronises with the device.

    Raises:
        ValueError: ``c`` is not positive, or the bounds do not enclose 1.
    """

    # the number of coordinates of a point minus the dimension of the space
    extra = 0
    # whether a module has registered the manifold, so that its state dict contains the learned
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
        if isinstance(c, Tensor) and c.requires_grad:
            raise ValueError(
                "c is a tensor with a gradient, which a manifold does not keep. For a learned "
                "curvature give its first value and learnable=True, or call the functions of "
                "hypvision.geometry with your tensor as c."
            )
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
        """The curvature: a number if it is fixed, else a tensor without dimensions, with a
        gradient."""
        if not self.learnable:
            return self.initial_c
        return torch.exp(held(self.log_c, *self.log_bounds))

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
        # half precision rounds log c by up to this much
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
        """Make ``self.log_c`` a CurvatureParameter of at least float32 again, of the value
        ``log_c``, if PyTorch has replaced its class or rounded it to half precision."""
        if type(self.log_c) is nn.Parameter:
            self.log_c.__class__ = CurvatureParameter
            self.log_c.log_bounds = self.log_bounds
        if self.log_c.dtype in (torch.float16, torch.bfloat16):
            self.log_c.data = log_c.to(self.log_c.device, torch.float32)
            if self.log_c.grad is not None:
                self.log_c.grad = self.log_c.grad.float()

    def extra_repr(self) -> str:
        # A learned curvature on the meta device has no value yet.
        c = self.initial_c if self.learnable and self.log_c.is_meta else self._value()
        return f"c={c:g}" + (", learnable" if self.learnable else "")

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        """Raise ValueError if ``x`` does not lie on the manifold up to ``tolerance``; the message
        calls it ``name``."""
        raise NotImplementedError

    def origin(
        self,
        *size: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> Tensor:
        """Return the origin, repeated to the shape ``size``, which ends in the dimension of the
        space."""
        return torch.zeros(size_of(size), dtype=dtype, device=device)

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the point that the retraction reaches from ``x`` along the tangent vector ``u``:
        here the exponential map."""
        return self.expmap(x, u)

    def retr_transp(self, x: Tensor, u: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """Return the point that :meth:`retr` reaches, and the tangent ``vectors`` at ``x``
        transported to it."""
        y = self.retr(x, u)
        return (y, *(self.transp(x, y, v) for v in vectors))

    def expmap_transp(self, x: Tensor, u: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """Return the point that :meth:`expmap` reaches, and the tangent ``vectors`` at ``x``
        transported to it."""
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
        """Return random points from the wrapped normal distribution around the origin with the
        standard deviation ``std``, which must not be negative; ``size`` ends in the dimension of
        the space."""
        positive("random", "std", std, zero=True)
        u = torch.randn(size_of(size), generator=generator, dtype=dtype, device=device)
        return self.from_tangent0(u * std)

    def _check(self, **points: object) -> None:
        """Raise ValueError, if ``check`` is true, for points that are not on the manifold.
        Arguments that are not tensors are left to the functions, which raise TypeError."""
        for name, value in points.items() if self.check else ():
            if isinstance(value, Tensor) and value.is_floating_point():
                self.check_point(value, name)

    def _check_arguments(self, arguments: Plain) -> None:
        """Check, if ``check`` is true, the points, weights and standard deviations among a method's
        arguments."""
        if self.check:
            self._check(**{point: arguments.get(point) for point in ("x", "y", "mean")})
            check_numbers(arguments.get("weights"), arguments.get("std"))

    def _call(self, name: str, **arguments: Any) -> Tensor:
        """Return the result of the method of this name for these arguments; a subclass overrides
        it."""
        raise TypeError(
            f"The manifold {whose(self)} does not define {name}. Define it with the arguments that "
            "hypvision.geometry.Lorentz has."
        )

    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the geodesic distance ``(...)`` between ``x`` and ``y``."""
        return kept(self._call("dist", x=x, y=y), keepdim)

    def dist0(self, x: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the geodesic distance ``(...)`` of ``x`` from the origin."""
        return kept(self._call("dist0", x=x), keepdim)

    def cdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Return all geodesic distances ``(..., N, M)`` between ``x`` ``(..., N, d)`` and ``y``
        ``(..., M, d)``."""
        return self._call("cdist", x=x, y=y)

    def sqdist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the squared Lorentz distance ``(...)`` between ``x`` and ``y``: the squared chord
        on the hyperboloid."""
        return kept(self._call("sqdist", x=x, y=y), keepdim)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the point that the geodesic from ``x`` with the velocity ``u`` reaches after unit
        time: the exponential map at ``x``."""
        return self._call("expmap", x=x, u=u)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the logarithm of ``y`` at ``x``: the tangent vector at ``x`` whose geodesic
        reaches ``y`` after unit time."""
        return self._call("logmap", x=x, y=y)

    def expmap0(self, u: Tensor) -> Tensor:
        """Return the exponential map at the origin of the tangent vectors ``u`` ``(..., n)``."""
        return self._call("expmap0", u=u)

    def logmap0(self, x: Tensor) -> Tensor:
        """Return the logarithm of ``x`` at the origin, ``(..., n)``: the inverse of
        :meth:`expmap0`."""
        return self._call("logmap0", x=x)

    def from_tangent0(self, u: Tensor) -> Tensor:
        """Return the points at the distance ``|u|`` from the origin in the direction of ``u``
        ``(..., n)``."""
        return self.expmap0(u)

    def to_tangent0(self, x: Tensor) -> Tensor:
        """Return the vectors ``u`` ``(..., n)`` from which :meth:`from_tangent0` makes ``x``."""
        return self.logmap0(x)

    def projx(self, x: Tensor) -> Tensor:
        """Return points on the manifold for vectors ``x`` that may have left it."""
        return self._call("projx", x=x)

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """Return the orthogonal projection of ``v`` to the tangent space at ``x``."""
        return self._call("proju", x=x, v=v)

    def egrad2rgrad(self, x: Tensor, v: Tensor) -> Tensor:
        """Return the Riemannian gradient at ``x`` for the Euclidean gradient ``v``."""
        return self._call("egrad2rgrad", x=x, v=v)

    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        """Return the inner product ``(...)`` of tangent vectors at ``x``; if ``v`` is None, of
        ``u`` with itself."""
        return kept(self._call("inner", x=x, u=u, v=u if v is None else v), keepdim)

    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the length ``(...)`` of the tangent vectors ``u`` at ``x``."""
        return kept(self._call("norm", x=x, u=u), keepdim)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Return the tangent vectors ``v`` at ``x`` after parallel transport to ``y``."""
        return self._call("transp", x=x, y=y, v=v)

    def transp0(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the tangent vectors ``u`` ``(..., n)`` at the origin after parallel transport to
        ``x``."""
        return self._call("transp0", x=x, u=u)

    def transp0back(self, x: Tensor, v: Tensor) -> Tensor:
        """Return the tangent vectors ``v`` at ``x`` after parallel transport to the origin,
        ``(..., n)``."""
        return self._call("transp0back", x=x, v=v)

    def boost(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the Moebius sum of ``x`` and ``y``: ``y`` moved as ``x`` moves the origin."""
        return self._call("boost", x=x, y=y)

    def unboost(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``y`` as seen from ``x``: the inverse of :meth:`boost` for the same ``x``."""
        return self._call("unboost", x=x, y=y)

    def scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """Return the points on the same rays from the origin at ``r`` times the radius; ``r`` is a
        number or ``(..., 1)``."""
        return self._call("scalar_mul", r=r, x=x)

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the point at the fraction ``t``, a number or ``(..., 1)``, of the way from ``x``
        to ``y``."""
        return self._call("geodesic", t=t, x=x, y=y)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        """Return the point at the distance ``t``, a number or ``(..., 1)``, from ``x`` in the
        direction of the tangent vector ``u``."""
        return self._call("geodesic_unit", t=t, x=x, u=u)

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the Lorentz centroid ``(..., d)`` of ``x`` ``(..., N, d)`` with the weights
        ``(..., N)``; None: equal weights."""
        return self._call("centroid", x=x, weights=weights)

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None, steps: int = 30) -> Tensor:
        """Return the Frechet mean ``(..., d)`` of ``x`` ``(..., N, d)`` with the weights
        ``(..., N)``, in at most ``steps`` Newton steps; None: equal weights."""
        return self._call("frechet_mean", x=x, weights=weights, steps=steps)

    def weighted_centroids(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return M centroids ``(..., M, d)`` of ``x`` ``(..., N, d)``, with the weights
        ``(..., M, N)``, by one matrix product."""
        return self._call("weighted_centroids", weights=weights, x=x)

    def rescale(self, x: Tensor, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
        """Return the points with their radii squashed below ``limit``, of which 99 % are reached at
        the radius ``slope * limit``: maximum-distance rescaling (Bdeir et al., NeurIPS 2025)."""
        return self._call("rescale", x=x, limit=limit, slope=slope)

    def wrapped_normal(
        self,
        mean: Tensor,
        std: Tensor | float,
        size: tuple[int, ...] = (),
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return samples ``(*size, ..., d)`` of the wrapped normal distribution around ``mean``;
        ``std`` is a number or ``(..., n)``."""
        return self._call("wrapped_normal", mean=mean, std=std, size=size, generator=generator)

    def wrapped_normal_log_prob(self, x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
        """Return the log density ``(...)`` of :meth:`wrapped_normal` at ``x``."""
        return self._call("wrapped_normal_log_prob", x=x, mean=mean, std=std)

    # Methods by geoopt's names, made of the methods above

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return :meth:`boost` of ``x`` and ``y``, by geoopt's name."""
        return self.boost(x, y)

    def mobius_sub(self, x: Tensor, y: Tensor) -> Tensor:
        """Return :meth:`unboost` of ``x`` and ``y``, by geoopt's name."""
        return self.unboost(x, y)

    def mobius_scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """Return :meth:`scalar_mul` of ``r`` and ``x``, by geoopt's name."""
        return self.scalar_mul(r, x)

    def midpoint(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return :meth:`centroid` of ``x``, by geoopt's name."""
        return self.centroid(x, weights)

    def component_inner(self, x: Tensor, u: Tensor, v: Tensor | None = None) -> Tensor:
        """Return the inner product ``(..., 1)`` of tangent vectors at ``x``, by which geoopt's Adam
        scales its steps."""
        return self.inner(x, u, v, keepdim=True)

    def dist2(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        """Return the squared geodesic distance ``(...)``; :meth:`sqdist` is the squared Lorentz
        distance."""
        return self.dist(x, y, keepdim=keepdim).square()

    def mobius_coadd(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the Moebius cosum of ``x`` and ``y``: twice their midpoint (Ungar, 2008); it
        commutes."""
        pair = torch.stack(torch.broadcast_tensors(x, y), -2)
        return self.scalar_mul(2.0, self.centroid(pair))

    def mobius_cosub(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the Moebius codifference: the cosum of ``x`` and the opposite of ``y``."""
        return self.mobius_coadd(x, self.scalar_mul(-1.0, y))

    def mobius_fn_apply(
        self, fn: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Return ``expmap0(fn(logmap0(x), ...))``: ``fn`` applied in the tangent space at the
        origin (Ganea et al., NeurIPS 2018)."""
        return self.expmap0(fn(self.logmap0(x), *args, **kwargs))

    def mobius_pointwise_mul(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the points whose tangent vectors at the origin are those of ``x`` times ``w``
        ``(..., n)``, coordinate by coordinate."""
        return self.mobius_fn_apply(lambda u: w * u, x)

    def weighted_midpoint(
        self,
        xs: Tensor,
        weights: Tensor | None = None,
        *,
        reducedim: Sequence[int] | None = None,
        lincomb: bool = False,
    ) -> Tensor:
        """Return the weighted midpoint of points over several dimensions at once.

        Args:
            xs: points ``(..., d)``.
            weights: weights of at least 0, of the shape of ``xs`` without its last dimension,
                or of one that broadcasts to it.
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
        count = math.prod(shape[dim] for dim in reduced)
        points = xs.permute(*order, xs.dim() - 1).reshape(*left, count, xs.shape[-1])
        weights = weights.permute(order).reshape(*left, count)
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
        """Return ``expmap0`` of normal vectors whose difference from ``mean`` has the root mean
        square length ``std``, as geoopt draws them; ``size`` ends in the dimension of the space."""
        noise = torch.randn(size_of(size), dtype=dtype, device=device)
        return self.expmap0(noise * std / noise.shape[-1] ** 0.5 + mean)

    def transp_follow_expmap(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return the tangent vector ``v`` at ``x`` after transport to ``expmap(x, u)``."""
        return self.transp(x, self.expmap(x, u), v)

    def transp_follow_retr(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Return the tangent vector ``v`` at ``x`` after transport to ``retr(x, u)``."""
        return self.transp(x, self.retr(x, u), v)

    def check_point_on_manifold(self, x: Tensor, *, atol: float | None = None) -> bool:
        """Return whether ``x`` lies on the manifold up to ``atol``, where :meth:`check_point`
        raises."""
        if not x.is_floating_point():
            raise TypeError(f"x must be a tensor of floating point numbers, got {x.dtype}.")
        try:
            self.check_point(x, tolerance=atol)
        except ValueError:
            return False
        return True

    def assert_check_point_on_manifold(self, x: Tensor, *, atol: float | None = None) -> None:
        """Raise ValueError if ``x`` does not lie on the manifold: :meth:`check_point` by geoopt's
        name."""
        self.check_point(x, tolerance=atol)

    def check_vector_on_tangent(self, x: Tensor, u: Tensor, *, atol: float = 1e-5) -> bool:
        """Return whether ``u`` is a tangent vector at ``x``: finite, and no further from its
        projection than ``atol`` times one plus its largest coordinate."""
        if not u.numel():
            return True
        far = (self.proju(x, u) - u).abs().amax() > atol * (1 + u.abs().amax())
        return bool(torch.isfinite(u).all()) and not bool(far)

    def assert_check_vector_on_tangent(self, x: Tensor, u: Tensor, *, atol: float = 1e-5) -> None:
        """Raise ValueError if ``x`` does not lie on the manifold or ``u`` is not a tangent vector
        at ``x``."""
        self.check_point(x)
        if not self.check_vector_on_tangent(x, u, atol=atol):
            raise ValueError(
                "u is not a tangent vector at x. Tangent vectors come from logmap, egrad2rgrad or "
                "proju."
            )
