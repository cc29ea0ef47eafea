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

from . import lorentz, maps, poincare
from .numerics import one_each, positive, safe_sqrt, square_norm, widen

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
        if not isinstance(data, Tensor) or not data.is_floating_point() or data.dim():
            raise TypeError(
                "data, the logarithm of a curvature, must be a tensor of floating point without dimensions, got "
                f"{f'{data.dtype} of shape {tuple(data.shape)}' if isinstance(data, Tensor) else type(data).__name__}."
            )
        if not log_bounds[0] <= log_bounds[1]:
            raise ValueError(f"log_bounds must be a lower and an upper bound of log c, got {log_bounds}.")
        out = torch.Tensor._make_subclass(cls, data, requires_grad)
        out.log_bounds = log_bounds
        return out

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.data.clone(), self.log_bounds, self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return CurvatureParameter, (self.data, self.log_bounds, self.requires_grad)

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"CurvatureParameter containing the log of a curvature:\n{self.data!r}"


_POINTS = {"x", "y", "mean", "p"}


def _check_numbers(arguments: dict) -> None:
    """What functions do not look at, for the host would wait for the device: weights and standard deviations."""
    weights, std = arguments.get("weights"), arguments.get("std")
    if isinstance(weights, Tensor) and weights.numel():
        if not bool((weights >= 0).all()):
            raise ValueError("weights must not be negative, nor not a number.")
        if not bool((weights > 0).any(-1).all()):
            raise ValueError("weights must not all be 0: no point would count.")
    if isinstance(std, Tensor) and not bool((std > 0).all()):
        raise ValueError("std must be positive.")


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
            _check_numbers(kwargs)
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

        ``size`` ends in the dimension of the space; ``std`` must not be negative.
        """
        positive("random", "std", std, zero=True)
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
    # maps between the models
    to_poincare, from_poincare = _bind(maps.lorentz_to_poincare), _bind(maps.poincare_to_lorentz, set())
    to_klein, from_klein = _bind(maps.lorentz_to_klein), _bind(maps.klein_to_lorentz, set())
    # the names that the ball has for the same
    mobius_add, mobius_sub = boost, unboost  # noqa: F821
    mobius_scalar_mul, mobius_matvec = scalar_mul, matvec  # noqa: F821
    midpoint = centroid  # noqa: F821

    def change_curvature(self, x: Tensor, c_new: float | Tensor) -> Tensor:
        """Points of curvature ``c_new`` with the same tangent vector at the origin."""
        if self.check:
            self.check_point(x)
        return lorentz.change_curvature(x, self.c, c_new)

    def scale_curvature(self, x: Tensor, c_new: float | Tensor) -> Tensor:
        """Points of curvature ``c_new`` whose distances are ``sqrt(c / c_new)`` times as large."""
        if self.check:
            self.check_point(x)
        return lorentz.scale_curvature(x, self.c, c_new)

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
        time = lorentz.time_from_space(widen(x[..., 1:]), self._value())
        error = ((widen(x[..., :1]) - time) / time).abs().max().item() if x.numel() else 0.0
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
        "half_aperture", "horosphere_dist", "hyperplane_logits", "inner", "logmap", "logmap0", "norm", "sqdist",
        "to_lorentz", "transp", "transp0", "transp0back", "wrapped_normal_log_prob",
    ):  # fmt: skip
        locals()[_name] = _bind(getattr(poincare, _name), _POINTS - {"p"})
    del _name
    # p is a point here, and an ideal one above
    dist2plane, ganea_logits = _bind(poincare.dist2plane), _bind(poincare.ganea_logits)
    gyration = _bind(poincare.gyration, {"u", "v"})
    max_distance = _bind(lorentz.max_distance)
    to_klein = _bind(maps.poincare_to_klein)

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
        "midpoint", "mobius_add", "mobius_matvec", "mobius_scalar_mul", "mobius_sub", "rescale", "rotate",
        "weighted_centroids", "wrapped_normal",
    ):  # fmt: skip
        locals()[_name] = _projected(getattr(poincare, _name))
    # their arguments are points of other models
    from_lorentz, from_klein = _projected(poincare.from_lorentz, set()), _projected(maps.klein_to_poincare, set())
    del _name, _projected
    # the names that the hyperboloid has for the same
    centroid = midpoint  # noqa: F821
    boost, unboost = mobius_add, mobius_sub  # noqa: F821
    scalar_mul, matvec = mobius_scalar_mul, mobius_matvec  # noqa: F821

    def change_curvature(self, x: Tensor, c_new: float | Tensor) -> Tensor:
        """Points of curvature ``c_new`` with the same tangent vector at the origin, projected there."""
        if self.check:
            self.check_point(x)
        return poincare.project(poincare.change_curvature(x, self.c, c_new), c_new, self.eps)

    def scale_curvature(self, x: Tensor, c_new: float | Tensor) -> Tensor:
        """Points of curvature ``c_new`` whose distances are ``sqrt(c / c_new)`` times as large, projected there."""
        if self.check:
            self.check_point(x)
        return poincare.project(poincare.scale_curvature(x, self.c, c_new), c_new, self.eps)

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
        radius = (self._value() ** 0.5 * widen(x).norm(dim=-1)).max().item() if x.numel() else 0.0
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

    from_tangent0 = expmap0

    def logmap0(self, x: Tensor) -> Tensor:
        """``x``."""
        return x

    to_tangent0 = projx = logmap0

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

    def mobius_sub(self, x: Tensor, y: Tensor) -> Tensor:
        """``y - x``: ``y`` as seen from ``x``."""
        return y - x

    boost, unboost = mobius_add, mobius_sub

    def mobius_scalar_mul(self, r: float | Tensor, x: Tensor) -> Tensor:
        """``r x``."""
        return r * x

    def mobius_matvec(self, matrix: Tensor, x: Tensor) -> Tensor:
        """``M x``; ``matrix`` ``(m, n)``, ``x`` ``(..., n)``."""
        return torch.matmul(x, matrix.transpose(-1, -2))

    scalar_mul, matvec = mobius_scalar_mul, mobius_matvec

    def rotate(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``R x``; ``x`` ``(..., n)``, ``matrix`` ``(m, n)``."""
        return self.matvec(matrix, x)

    def sqdist(self, x: Tensor, y: Tensor) -> Tensor:
        """``|x - y|^2``, shape ``(...)``."""
        return square_norm(x - y).squeeze(-1)

    def centroid(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weighted mean ``(..., n)`` of ``x`` ``(..., N, n)``; the origin where all weights are 0."""
        if weights is None:
            return x.mean(-2)
        one_each("centroid", "weights", weights, x.shape[-2])
        if self.check:
            _check_numbers({"weights": weights})
        weights, _ = lorentz._normalised(weights, -1)
        return (weights.unsqueeze(-1) * x).sum(-2)

    midpoint = centroid

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None, steps: int = 30) -> Tensor:
        """The centroid; ``steps`` is not needed."""
        return self.centroid(x, weights)

    def weighted_centroids(self, weights: Tensor, x: Tensor) -> Tensor:
        """Weighted means ``(..., M, n)`` of ``x`` ``(..., N, n)``; ``weights`` ``(..., M, N)``."""
        one_each("weighted_centroids", "weights", weights, x.shape[-2])
        return torch.matmul(lorentz._normalised(weights, -1)[0], x)

    def dist2plane(self, x: Tensor, z: Tensor, a: Tensor | float, signed: bool = True) -> Tensor:
        """Distance ``(...)`` from the hyperplane at the offset ``a`` along the normal ``z``, as on the hyperboloid."""
        out = (x * torch.nn.functional.normalize(z, dim=-1)).sum(-1) - a
        return out if signed else out.abs()

    def hyperplane_logits(self, x: Tensor, z: Tensor, a: Tensor) -> Tensor:
        """Signed distances ``(..., K)`` from hyperplanes times the lengths of their normals ``z`` ``(K, n)``."""
        one_each("hyperplane_logits", "a", a, z.shape[0], "hyperplanes")
        return torch.matmul(x, z.t()) - a * torch.linalg.vector_norm(z, dim=-1)

    def busemann(self, x: Tensor, p: Tensor) -> Tensor:
        """``-x . p``, shape ``(...)``: the limit of the curved ones."""
        return -(x * p).sum(-1)

    def horosphere_dist(self, x: Tensor, p: Tensor, tau: float | Tensor) -> Tensor:
        """Distance ``(...)`` from the hyperplane ``-x . p = tau``."""
        return (self.busemann(x, p) - tau).abs()

    def exterior_angle(self, x: Tensor, y: Tensor) -> Tensor:
        """Angle ``(...)`` between ``x`` and ``y - x``, in radians; 0 where one of them is 0."""
        away = square_norm(x) > 0
        delta = y - x
        side = safe_sqrt(square_norm(lorentz._perpendicular(delta, x, away))) * safe_sqrt(square_norm(x))
        along = (delta * x).sum(-1, keepdim=True)
        same = (side == 0) & (along == 0)
        return torch.atan2(side, torch.where(same, torch.ones_like(along), along)).squeeze(-1)

    def rescale(self, x: Tensor, limit: float | Tensor | None = None, slope: float = 2.0) -> Tensor:
        """Maximum-distance rescaling of the radii if there is a ``limit``: flat space has none of its own."""
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
        lorentz._check_std("wrapped_normal", std, mean.shape[-1])
        noise = torch.randn(*size, *mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
        return mean + noise * std

    def wrapped_normal_log_prob(self, x: Tensor, mean: Tensor, std: Tensor | float) -> Tensor:
        """Log density ``(...)`` of :meth:`wrapped_normal`."""
        lorentz._check_std("wrapped_normal_log_prob", std, mean.shape[-1])
        std = torch.as_tensor(std, dtype=x.dtype, device=x.device)
        scaled = (x - mean) / std
        log_std = torch.log(std).expand_as(scaled).sum(-1)
        return -0.5 * square_norm(scaled).squeeze(-1) - log_std - 0.5 * x.shape[-1] * math.log(2 * math.pi)

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
                raise TypeError(f"Product takes pairs of a manifold and its dimension, got {pair!r}.")
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


class ManifoldParameter(nn.Parameter):
    """A parameter whose last dimension holds points of a manifold, for the optimisers of :mod:`hypvision.optim`.

    It computes like any tensor. The manifold travels with copies and pickles; state dicts hold plain tensors. Wrappers
    that replace parameters by their own (FSDP, ``to_empty``) lose the class: a layer that names its manifold parameters
    in ``manifold_parameters`` is found nevertheless, by :func:`named_manifold_parameters`.

    Args:
        data: points ``(..., d)``.
        manifold: their manifold.
        requires_grad: whether they are trained.

    Raises:
        TypeError: ``manifold`` is none, or ``data`` is no tensor of floating point numbers.
        ValueError: ``data`` does not end in the coordinates of a point.
    """

    def __new__(cls, data: Tensor, manifold: Manifold, requires_grad: bool = True):
        if not isinstance(manifold, Manifold):
            raise TypeError(
                f"manifold must be a manifold object such as Lorentz(1.0), got {type(manifold).__name__}. For "
                "parameters that are no points take torch.nn.Parameter."
            )
        if not isinstance(data, Tensor) or not data.is_floating_point():
            found = data.dtype if isinstance(data, Tensor) else type(data).__name__
            raise TypeError(f"data must be a tensor of floating point numbers, got {found}.")
        least = sum(manifold.sizes) if isinstance(manifold, Product) else 1 + manifold.extra
        if data.dim() == 0 or data.shape[-1] < least or isinstance(manifold, Product) and data.shape[-1] != least:
            raise ValueError(
                f"data must end in the {'' if isinstance(manifold, Product) else 'at least '}{least} coordinates of a "
                f"point of {manifold}, got the shape {tuple(data.shape)}."
            )
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
