"""Manifold objects: the functions of this package bound to a curvature, fixed or learned.

Method names follow geoopt. A manifold is a module: assign it to a layer, and its curvature, if learned, is one of the
layer's parameters.

    >>> ball = PoincareBall(c=0.1)
    >>> lorentz = Lorentz(c=1.0, learnable=True)      # lorentz.log_c is a parameter
    >>> x = lorentz.expmap0(torch.randn(8, 16))
    >>> lorentz.cdist(x, x).shape
    torch.Size([8, 8])
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from . import lorentz, poincare

__all__ = [
    "CurvatureParameter",
    "Euclidean",
    "Lorentz",
    "Manifold",
    "ManifoldParameter",
    "PoincareBall",
    "Product",
    "named_manifold_parameters",
]


class CurvatureParameter(nn.Parameter):
    """The logarithm of a learned curvature, and its bounds: what optimisers update last and give no weight decay."""

    def __new__(cls, data: Tensor, log_bounds: tuple[float, float], requires_grad: bool = True):
        out = torch.Tensor._make_subclass(cls, data, requires_grad)
        out.log_bounds = log_bounds
        return out

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.data.clone(), self.log_bounds, self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return CurvatureParameter, (self.data, self.log_bounds, self.requires_grad)


_POINTS = {"x", "y", "mean", "p"}


def _bind(function: Callable, points: set[str] = _POINTS) -> Callable:
    """A method that calls ``function`` with the manifold's curvature."""
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name != "c"]
    checked = [name for name in names if name in points]

    @functools.wraps(function)
    def method(self, *args, **kwargs):
        if len(args) > len(names):
            raise TypeError(f"{function.__name__} takes at most {len(names)} arguments ({', '.join(names)}).")
        kwargs.update(zip(names, args))
        if self.check:
            for name in checked:
                value = kwargs.get(name)
                if isinstance(value, Tensor) and value.is_floating_point():  # the function refuses others
                    self.check_point(value, name)
        return function(**kwargs, c=self.c)

    parameters = [signature.parameters[name] for name in names]
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(parameters=[me, *parameters])
    return method


class Manifold(nn.Module):
    """A space with a curvature.

    Args:
        c: curvature, ``c > 0``; the sectional curvature is ``-c``.
        learnable: whether ``c`` is learned. It is stored as ``log_c``, a float32 parameter without dimensions that
            stays float32 when the model is cast to half precision. Give it its own learning rate and no weight decay
            (:func:`hypvision.optim.param_groups` does).
        bounds: ``c`` stays between these multiples of its initial value.
        check: check that arguments lie on the manifold; for debugging, it synchronises with the device.

    Raises:
        ValueError: ``c`` is not positive, or the bounds do not enclose 1.
    """

    # coordinates of a point beyond the dimension of the space
    extra = 0

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
            raise ValueError(f"The curvature c must be positive (the sectional curvature is -c), got {c}.")
        if not 0 < bounds[0] <= 1 <= bounds[1]:
            raise ValueError(f"bounds must enclose 1, as multiples of the initial curvature, got {bounds}.")
        self.check = check
        self.learnable = learnable
        self.initial_c = c
        self.log_bounds = (math.log(c) + math.log(bounds[0]), math.log(c) + math.log(bounds[1]))
        if learnable:
            self.log_c = CurvatureParameter(torch.tensor(math.log(c), dtype=torch.float32), self.log_bounds)

    @property
    def c(self) -> float | Tensor:
        """The curvature: a number if it is fixed, else a tensor without dimensions that carries a gradient."""
        if not self.learnable:
            return self.initial_c
        low, high = self.log_bounds
        # Straight through: a value that an optimiser pushed out of bounds can come back.
        return torch.exp(self.log_c + (self.log_c.clamp(low, high) - self.log_c).detach())

    def _value(self) -> float:
        c = self.c
        return c.detach().item() if isinstance(c, Tensor) else c

    @torch.no_grad()
    def clamp_(self) -> None:
        """Bring a learned curvature back into its bounds; the optimisers of :mod:`hypvision.optim` do after a step."""
        if self.learnable:
            self.log_c.clamp_(*self.log_bounds)

    def _apply(self, fn, recurse: bool = True):
        super()._apply(fn, recurse)
        if self.learnable and self.log_c.dtype in (torch.float16, torch.bfloat16):
            self.log_c.data = self.log_c.data.float()
        return self

    def extra_repr(self) -> str:
        c = self._value()
        return f"c={c:g}" + (", learnable" if self.learnable else "")

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        """Raise ValueError, naming the argument, if ``x`` does not lie on the manifold."""
        raise NotImplementedError

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """Retraction of the tangent vector ``u`` at ``x``: the exponential map."""
        return self.expmap(x, u)

    def retr_transp(self, x: Tensor, u: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """The point that :meth:`retr` reaches, and tangent ``vectors`` at ``x`` transported to it."""
        y = self.retr(x, u)
        return (y, *(self.transp(x, y, v) for v in vectors))

    def expmap_transp(self, x: Tensor, u: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        """The point that the exponential map reaches, and tangent ``vectors`` at ``x`` transported to it."""
        y = self.expmap(x, u)
        return (y, *(self.transp(x, y, v) for v in vectors))

    def random(self, *size: int, std: float = 1.0, generator=None, dtype=None, device=None) -> Tensor:
        """Points from the wrapped normal distribution around the origin.

        ``size`` ends in the dimension of the space.
        """
        u = torch.randn(*size, generator=generator, dtype=dtype, device=device)
        return self.from_tangent0(u * std)


class Lorentz(Manifold):
    """The hyperboloid with points ``(..., n + 1)``, time first; tangent vectors at the origin are ``(..., n)``.

    The methods are the functions of :mod:`hypvision.geometry.lorentz` without their curvature. For the arguments see
    :class:`Manifold`.
    """

    name = "Lorentz"
    extra = 1

    for _name in (
        "boost", "busemann", "cdist", "centroid", "concat", "dist", "dist0", "dist2plane", "egrad2rgrad",
        "entailment_loss", "expmap", "expmap0", "exterior_angle", "frechet_mean", "from_space", "geodesic",
        "geodesic_unit", "half_aperture", "horosphere_dist", "hyperplane_logits", "inner", "logmap", "logmap0",
        "matvec",
        "max_distance", "norm", "proju", "rescale", "rotate", "scalar_mul", "split", "sqdist", "time_from_space",
        "transp", "transp0", "transp0back", "unboost", "weighted_centroids", "wrapped_normal",
        "wrapped_normal_log_prob",
    ):  # fmt: skip
        locals()[_name] = _bind(getattr(lorentz, _name), _POINTS - {"p"})
    del _name

    # these may be given points that have left the manifold
    projx = _bind(lorentz.projx, set())
    # the names that geoopt's ball has for the same
    mobius_add = boost  # noqa: F821
    midpoint = centroid  # noqa: F821

    def origin(self, n: int, dtype: torch.dtype | None = None, device=None) -> Tensor:
        """The origin ``(n + 1,)``."""
        out = torch.zeros(n + 1, dtype=dtype, device=device)
        return lorentz.from_space(out[1:], self.c)

    def from_tangent0(self, u: Tensor) -> Tensor:
        """Points at the distance ``|u|`` from the origin in the direction of ``u`` ``(..., n)``."""
        return self.expmap0(u)

    def to_tangent0(self, x: Tensor) -> Tensor:
        """Inverse of :meth:`from_tangent0`."""
        return self.logmap0(x)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        if tolerance is None:
            tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(x.dtype, 2e-2)
        time = lorentz.time_from_space(x[..., 1:].double(), self._value())
        error = ((x[..., :1].double() - time) / time).abs().max().item() if x.numel() else 0.0
        if not error <= tolerance:
            raise ValueError(
                f"{name} is not on the hyperboloid of curvature c = {self._value():g}: its time coordinate "
                f"(the first) is off by {error:.1e} of what its space part asks for. Points come from "
                f"expmap0, from_space or projx."
            )


class PoincareBall(Manifold):
    """The Poincare ball with points ``(..., n)``.

    The methods are the functions of :mod:`hypvision.geometry.poincare` without their curvature; results of maps into
    the ball are projected.

    Args:
        eps: distance that projected points keep from the rim, as a fraction of the radius: 1e-5 in float32 and 1e-10 in
            float64 if None, a largest radius of 12.2 and 23.7; geoopt's is 4e-3 (6.2) in float32.
        exact: whether :meth:`retr` is the exponential map instead of ``project(x + u)``.

    For the other arguments see :class:`Manifold`.
    """

    name = "PoincareBall"

    for _name in (
        "busemann", "cdist", "conformal_factor", "dist", "dist0", "egrad2rgrad", "entailment_loss", "exterior_angle",
        "half_aperture", "horosphere_dist", "hyperplane_logits", "inner", "logmap", "logmap0", "norm", "to_lorentz",
        "transp", "transp0", "transp0back", "wrapped_normal_log_prob",
    ):  # fmt: skip
        locals()[_name] = _bind(getattr(poincare, _name), _POINTS - {"p"})
    del _name
    # p is a point here, and an ideal one above
    dist2plane, ganea_logits = _bind(poincare.dist2plane), _bind(poincare.ganea_logits)
    gyration = _bind(poincare.gyration, {"u", "v"})

    def __init__(
        self,
        c: float = 1.0,
        learnable: bool = False,
        bounds: tuple[float, float] = (0.1, 10.0),
        check: bool = False,
        eps: float | None = None,
        exact: bool = False,
    ):
        super().__init__(c, learnable, bounds, check)
        if eps is not None and not 0 < eps < 1:
            raise ValueError(f"eps must lie between 0 and 1, got {eps}.")
        self.eps = eps
        self.exact = exact

    def _projected(function: Callable, points: set[str] = _POINTS) -> Callable:
        method = _bind(function, points)

        @functools.wraps(method)
        def projected(self, *args, **kwargs):
            out = method(self, *args, **kwargs)
            return [self.projx(x) for x in out] if isinstance(out, list) else self.projx(out)

        return projected

    for _name in (
        "beta_concat", "beta_split", "expmap", "frechet_mean", "geodesic", "geodesic_unit",
        "midpoint", "mobius_add", "mobius_matvec", "mobius_scalar_mul", "mobius_sub", "rescale", "wrapped_normal",
    ):  # fmt: skip
        locals()[_name] = _projected(getattr(poincare, _name))
    from_lorentz = _projected(poincare.from_lorentz, set())  # its argument lies on the hyperboloid
    del _name, _projected
    centroid = midpoint  # noqa: F821

    def projx(self, x: Tensor) -> Tensor:
        """Points with ``sqrt(c) |x|`` cut at ``1 - eps``."""
        return poincare.project(x, self.c, self.eps)

    def expmap0(self, u: Tensor) -> Tensor:
        """Exponential map at the origin, projected; see :func:`hypvision.geometry.poincare.expmap0`."""
        eps = (1e-10 if u.dtype == torch.float64 else 1e-5) if self.eps is None else self.eps
        return poincare.expmap0(u, self.c, eps)

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """``v``: every vector is tangent."""
        return v

    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        """``project(x + u)``, or the exponential map if the manifold is ``exact``."""
        if self.check:
            self.check_point(x)
        return self.expmap(x, u) if self.exact else self.projx(x + u)

    def origin(self, n: int, dtype: torch.dtype | None = None, device=None) -> Tensor:
        """The origin ``(n,)``."""
        return torch.zeros(n, dtype=dtype, device=device)

    def from_tangent0(self, u: Tensor) -> Tensor:
        """Points at the distance ``|u|`` from the origin in the direction of ``u`` ``(..., n)``."""
        return self.expmap0(u / 2)

    def to_tangent0(self, x: Tensor) -> Tensor:
        """Inverse of :meth:`from_tangent0`."""
        return 2 * self.logmap0(x)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        radius = (self._value() ** 0.5 * x.double().norm(dim=-1)).max().item() if x.numel() else 0.0
        if not radius < 1 + (tolerance or 0.0):
            raise ValueError(
                f"{name} is not in the ball of curvature c = {self._value():g}: sqrt(c) |{name}| is {radius:.6g}, "
                "and must be below 1. Points come from expmap0 or projx."
            )


class Euclidean(Manifold):
    """Flat space with points ``(..., n)``: lets code that is written for a manifold run without one."""

    name = "Euclidean"

    def __init__(self, check: bool = False):
        super().__init__(check=check)

    @property
    def c(self) -> float:
        """0: flat."""
        return 0.0

    def extra_repr(self) -> str:
        return ""

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Euclidean distance ``(...)``."""
        return torch.linalg.vector_norm(x - y, dim=-1)

    def dist0(self, x: Tensor) -> Tensor:
        """Euclidean norm ``(...)``."""
        return torch.linalg.vector_norm(x, dim=-1)

    def cdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Pairwise distances ``(..., N, M)``."""
        return torch.cdist(x, y)

    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        """``x + u``."""
        return x + u

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """``y - x``."""
        return y - x

    def expmap0(self, u: Tensor) -> Tensor:
        """``u``."""
        return u

    logmap0 = from_tangent0 = to_tangent0 = projx = expmap0

    def proju(self, x: Tensor, v: Tensor) -> Tensor:
        """``v``."""
        return v

    egrad2rgrad = transp0 = transp0back = proju

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """``v``."""
        return v

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """``u . v``, shape ``(...)``."""
        return (u * v).sum(-1)

    def norm(self, x: Tensor, u: Tensor) -> Tensor:
        """``|u|``, shape ``(...)``."""
        return torch.linalg.vector_norm(u, dim=-1)

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """``x + t (y - x)``."""
        return x + t * (y - x)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        """``x + t u / |u|``."""
        return x + t * torch.nn.functional.normalize(u, dim=-1)

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        """``x + y``."""
        return x + y

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weighted mean ``(..., n)`` of ``x`` ``(..., N, n)``."""
        if weights is None:
            return x.mean(-2)
        return (weights.unsqueeze(-1) * x).sum(-2) / weights.sum(-1, keepdim=True)

    frechet_mean = midpoint = centroid

    def origin(self, n: int, dtype: torch.dtype | None = None, device=None) -> Tensor:
        """The origin ``(n,)``."""
        return torch.zeros(n, dtype=dtype, device=device)

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        if not torch.isfinite(x).all():
            raise ValueError(f"{name} has coordinates that are not finite.")


class Product(Manifold):
    """The product of manifolds: points are the factors' points side by side, ``(..., sum of their coordinates)``.

    Args:
        factors: pairs of a manifold and the dimension ``n_i`` of the space (a Lorentz factor takes ``n_i + 1``
            coordinates).

    Raises:
        ValueError: there are no factors.
    """

    name = "Product"

    def __init__(self, *factors: tuple[Manifold, int], check: bool = False):
        super().__init__(check=check)
        if not factors:
            raise ValueError("Product needs at least one pair of a manifold and its dimension.")
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
        return lorentz.safe_sqrt(squares)

    def dist0(self, x: Tensor) -> Tensor:
        """Distance ``(...)`` from the origin."""
        return lorentz.safe_sqrt(torch.stack([d * d for d in self._each("dist0", x)]).sum(0))

    def cdist(self, x: Tensor, y: Tensor) -> Tensor:
        """Pairwise distances ``(..., N, M)``."""
        return lorentz.safe_sqrt(torch.stack([d * d for d in self._each("cdist", x, y)]).sum(0))

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Inner product ``(...)``: the sum of the factors'."""
        return torch.stack(self._each("inner", x, u, v)).sum(0)

    def norm(self, x: Tensor, u: Tensor) -> Tensor:
        """Length ``(...)``."""
        return lorentz.safe_sqrt(self.inner(x, u, u))

    def _joined(method: str, count: int) -> Callable:
        def apply(self, *args: Tensor) -> Tensor:
            return torch.cat(self._each(method, *args), -1)

        apply.__name__, apply.__doc__ = method, f"``{method}`` of every factor, ``{count}`` arguments."
        return apply

    expmap, logmap = _joined("expmap", 2), _joined("logmap", 2)
    proju, egrad2rgrad = _joined("proju", 2), _joined("egrad2rgrad", 2)
    projx, transp, retr, mobius_add = (
        _joined("projx", 1),
        _joined("transp", 3),
        _joined("retr", 2),
        _joined("mobius_add", 2),
    )
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

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Centroid of every factor."""
        return torch.cat([m.centroid(part, weights) for m, part in zip(self.manifolds, self.split(x))], -1)

    def origin(self, n: int | None = None, dtype: torch.dtype | None = None, device=None) -> Tensor:
        """The origin; ``n``, which other manifolds need, may be left out."""
        if n not in (None, sum(self.dims)):
            raise ValueError(f"This product has the dimension {sum(self.dims)}, got n = {n}.")
        return torch.cat([m.origin(n, dtype=dtype, device=device) for m, n in zip(self.manifolds, self.dims)])

    def check_point(self, x: Tensor, name: str = "x", tolerance: float | None = None) -> None:
        for manifold, part in zip(self.manifolds, self.split(x)):
            manifold.check_point(part, name, tolerance)


class ManifoldParameter(nn.Parameter):
    """A parameter whose last dimension holds points of a manifold, for the optimisers of :mod:`hypvision.optim`.

    It computes like any tensor. The manifold travels with copies and pickles; state dicts hold plain tensors. Wrappers
    that replace parameters by their own (FSDP, ``to_empty``) lose the class: a layer that names its manifold parameters
    in ``manifold_parameters`` is found nevertheless, by :func:`named_manifold_parameters`.

    Args:
        data: points ``(..., d)``.
        manifold: their manifold.
        requires_grad: whether they are trained.
    """

    def __new__(cls, data: Tensor, manifold: Manifold, requires_grad: bool = True):
        out = torch.Tensor._make_subclass(cls, data, requires_grad)
        out.manifold = manifold
        return out

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            data = self.data.clone(memory_format=torch.preserve_format)
            memo[id(self)] = type(self)(data, copy.deepcopy(self.manifold, memo), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return _rebuild, (self.data, self.manifold, self.requires_grad)

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"ManifoldParameter on {self.manifold} containing:\n{self.data!r}"


def _rebuild(data: Tensor, manifold: Manifold, requires_grad: bool) -> ManifoldParameter:
    return ManifoldParameter(data, manifold, requires_grad)


def named_manifold_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Manifold]]:
    """Name, parameter and manifold of every parameter that holds points, each once.

    A parameter holds points if it is a :class:`ManifoldParameter`, or if its layer lists it in ``manifold_parameters``
    and has a ``manifold``.
    """
    seen = set()
    for prefix, module in model.named_modules():
        listed = getattr(module, "manifold_parameters", ())
        for name, parameter in module._parameters.items():
            if parameter is None or parameter in seen:
                continue
            manifold = getattr(parameter, "manifold", None)
            if manifold is None and name in listed:
                manifold = module.manifold
            if isinstance(manifold, Manifold):
                seen.add(parameter)
                yield f"{prefix}.{name}" if prefix else name, parameter, manifold
