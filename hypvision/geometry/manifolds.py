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

import functools
import inspect
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from . import lorentz, maps, poincare
from .numerics import positive, widen

__all__ = ["CurvatureParameter", "Lorentz", "Manifold", "PoincareBall"]


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


def _adopted(module: nn.Module, name: str, child: nn.Module | None) -> None:
    """PyTorch calls this for every module that another one takes."""
    if isinstance(child, Manifold):
        child.held = True


# when the first curvature is learned, and not before: others should not pay for it
_watch_modules = functools.cache(lambda: nn.modules.module.register_module_module_registration_hook(_adopted))

_POINTS = {"x", "y", "mean", "p"}


def check_numbers(arguments: dict) -> None:
    """What functions do not look at, for the host would wait for the device: weights and standard deviations."""
    weights, std = arguments.get("weights"), arguments.get("std")
    if isinstance(weights, Tensor) and weights.numel():
        if not bool((weights >= 0).all()):
            raise ValueError("weights must not be negative, nor not a number.")
        if not bool((weights > 0).any(-1).all()):
            raise ValueError("weights must not all be 0: no point would count.")
    if isinstance(std, Tensor) and not bool((std > 0).all()):
        raise ValueError("std must be positive.")


def whose(value: object) -> str:
    """The class of an argument that is no manifold of this package, for messages: others have the same names."""
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package in ("builtins", "hypvision") else f"{kind.__name__} of {package}"


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
            check_numbers(kwargs)
        return function(**kwargs, c=self.c)

    parameters = [signature.parameters[name] for name in names]
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(parameters=[me, *parameters])
    return method


class Manifold(nn.Module):
    """A space with a curvature.

    Args:
        c: curvature, ``c > 0``; the sectional curvature is ``-c``.
        learnable: whether ``c`` is learned. It is stored as ``log_c``, a parameter without dimensions, in float32 (in
            float64 if that is torch's default) also after the model is cast to half precision. Give it its own
            learning rate and no weight decay (:func:`hypvision.optim.param_groups` does).
        bounds: ``c`` stays between these multiples of its initial value.
        check: check that arguments lie on the manifold; for debugging, it synchronises with the device.

    Raises:
        ValueError: ``c`` is not positive, or the bounds do not enclose 1.
    """

    # coordinates of a point beyond the dimension of the space
    extra = 0
    # whether a module holds the manifold, so that state dicts have its learned curvature
    held = False

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
            _watch_modules()
            dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
            self.log_c = CurvatureParameter(torch.tensor(math.log(c), dtype=dtype), self.log_bounds)

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
        kept = self.log_c.detach() if self.learnable else None
        super()._apply(fn, recurse)
        if self.learnable:
            self._restore(kept)
        return self

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        if self.learnable:
            self._restore(self.log_c.detach())

    def _restore(self, log_c: Tensor) -> None:
        """Undo what PyTorch may have done to the parameter: taken its class, or rounded it to half precision."""
        if type(self.log_c) is nn.Parameter:
            self.log_c.__class__, self.log_c.log_bounds = CurvatureParameter, self.log_bounds
        if self.log_c.dtype in (torch.float16, torch.bfloat16):
            self.log_c.data = log_c.to(self.log_c.device, torch.float32)
            if self.log_c.grad is not None:
                self.log_c.grad = self.log_c.grad.float()

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
        eps: distance that points keep from the boundary, as a fraction of the radius: 1e-5 in float32 and 1e-10 in
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
