"""Dtypes, sums and functions of numbers that the geometry's formulas need."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

# kinds of devices without float64
SINGLE_ONLY = frozenset({"mps"})


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is on; the meta device does not know it at all."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Context without autocast."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


class Function(torch.autograd.Function):
    """A function differentiated by hand: its backward always runs without autocast.

    PyTorch runs a backward under the autocast setting at the call of ``backward()``, not under that
    of the forward: products would meet operands of another dtype than they were written for.
    """

    if TYPE_CHECKING:  # PyTorch's version has no type annotations

        @classmethod
        def apply(cls, *args: Any) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "backward" in vars(cls):
            cls.backward = staticmethod(without_autocast(cls.backward))  # type: ignore[method-assign]


def without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The backward ``backward(ctx, *grads)`` of a function, run without autocast."""

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return backward(ctx, *grads)
        with exact(next(grad.device for grad in grads if grad is not None)):
            return backward(ctx, *grads)

    return wrapper


def plain(x: Tensor) -> bool:
    """Whether to compute in plain operations: for compilers, ``torch.func``, without data."""
    return torch.compiler.is_compiling() or x.is_meta or torch._C._are_functorch_transforms_active()


@functools.cache
def uses_triton(device: torch.device) -> bool:
    """Whether Triton kernels compute on a device: a GPU from Volta on, where Triton imports.

    The environment variable ``HYPVISION_TRITON=1`` turns them on: no GPU has run them yet.
    """
    if (
        device.type != "cuda"
        or not torch.cuda.is_available()
        or os.environ.get("HYPVISION_TRITON") != "1"
    ):
        return False
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (7, 0)


def needs_grad(*arguments: object) -> bool:
    """Whether gradients will be needed: without, a hand-written backward only costs a call."""
    return torch.is_grad_enabled() and any(
        isinstance(a, Tensor) and a.requires_grad for a in arguments
    )


def backward_of(
    function: Callable[..., Tensor], inputs: Sequence[object], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Gradients of ``function(*inputs)`` that can be differentiated again.

    A hand-written backward calls this function if it must itself be differentiable
    (``create_graph=True``). The second derivatives are then those of the plain operations, and an
    ordinary backward has no extra cost.
    """
    with torch.enable_grad(), exact(grad.device):
        # Views, because one input may be computed from another, whose gradient would then be
        # counted twice.
        inputs = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
        wanted = [x for x, need in zip(inputs, needed) if need and isinstance(x, Tensor)]
        found = iter(
            torch.autograd.grad(
                function(*inputs), wanted, grad, create_graph=True, allow_unused=True
            )
        )
    return [next(found) if need else None for need in needed]


# --------------------------------------------------------------------------------------------------
# Between float32 and float64


def has_float64(x: Tensor) -> bool:
    """Whether the device of ``x`` computes in float64 (MPS does not)."""
    return x.device.type not in SINGLE_ONLY


class _Convert(Function):
    """Another dtype; values and gradients beyond the limits, if there are any, are cut."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, most: float | None, steepest: float | None
    ) -> Tensor:
        ctx.dtype = x.dtype
        ctx.steepest = steepest
        return _cut_to(x, most, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _back(ctx, grad), None, None, None


class _ConvertForward(Function):
    """The same with what ``torch.func`` asks for, which compilers do not take; a context of its own
    is slow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, dtype: torch.dtype, most: float | None, steepest: float | None
    ) -> Tensor:
        return _cut(x, most).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.to, _, ctx.steepest = inputs
        ctx.dtype = x.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _back(ctx, grad), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return tangent.to(ctx.to)


def _cut(x: Tensor, most: float | None) -> Tensor:
    """Finite numbers beyond ``most`` become it, infinite ones NaN: 0 times them is added."""
    return x if most is None else torch.add(x.clamp(-most, most), x, alpha=0)


def _cut_to(x: Tensor, most: float | None, dtype: torch.dtype) -> Tensor:
    """:func:`_cut` in another dtype: the sum rounds as it is written, in one kernel less."""
    if most is None or torch.compiler.is_compiling():
        return _cut(x, most).to(dtype)
    return torch.add(x.clamp(-most, most), x, alpha=0, out=torch.empty_like(x, dtype=dtype))


def _back(ctx: Any, grad: Tensor) -> Tensor:
    grad = grad.to(ctx.dtype)  # what this dtype does not hold is infinite, and cut
    return grad if ctx.steepest is None else grad.clamp(-ctx.steepest, ctx.steepest)


def _convert(x: Tensor, dtype: torch.dtype, most: float | None, steepest: float | None) -> Tensor:
    transformed = torch._C._are_functorch_transforms_active()
    if not transformed and not needs_grad(x):
        return _cut_to(x, most, dtype)
    function = _ConvertForward if transformed and not torch.compiler.is_compiling() else _Convert
    out: Tensor = function.apply(x, dtype, most, steepest)
    return out


@overload
def widen(x: Tensor, steepest: float | None = None) -> Tensor: ...
@overload
def widen(x: float | Tensor, steepest: float | None = None) -> float | Tensor: ...
def widen(x: float | Tensor, steepest: float | None = None) -> float | Tensor:
    """``x`` in float64, or float32 on devices without it; a number unchanged.

    Args:
        x: a number, or a tensor.
        steepest: largest gradient that ``x`` gets if it is not float64; by default what its dtype
            holds.
    """
    if not isinstance(x, Tensor):
        return x
    dtype = torch.float64 if has_float64(x) else torch.float32
    if x.dtype == torch.float64 or x.dtype == dtype:
        return x
    most = torch.finfo(x.dtype).max
    return _convert(x, dtype, None, most if steepest is None else min(most, steepest))


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in a dtype of fewer digits: finite numbers that it does not hold become its largest."""
    return x if x.dtype == dtype else _convert(x, dtype, torch.finfo(dtype).max, None)


def bounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in a dtype, for products: numbers beyond 1e18 are cut, but for float64."""
    # a Function that changes no dtype loses its gradient in PyTorch's compiler
    if x.dtype == dtype:
        return x if dtype == torch.float64 else _cut(x, 1e18)
    return _convert(x, dtype, 1e18, None)


# --------------------------------------------------------------------------------------------------
# Sums over the last dimension


def square_norm(x: Tensor) -> Tensor:
    """Squared Euclidean norm ``(..., 1)`` of ``x`` ``(..., n)``."""
    return (x * x).sum(-1, keepdim=True)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean inner product ``(..., 1)`` of ``x`` and ``y`` ``(..., n)``, which broadcast."""
    return (x * y).sum(-1, keepdim=True)


def length(x: Tensor) -> Tensor:
    """Euclidean norm ``(..., 1)`` of ``x`` ``(..., n)``; gradient 0 where it is 0."""
    out: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return out


def heading(x: Tensor) -> tuple[Tensor, Tensor]:
    """Direction ``(..., n)`` and length ``(..., 1)`` of ``x``; 0 has none."""
    size = length(x)
    return x / size.clamp_min(tiny(size)), size


# --------------------------------------------------------------------------------------------------
# Functions of numbers


def angle(side: Tensor, along: Tensor) -> Tensor:
    """``atan2(side, along)`` of numbers ``(..., 1)``, without the last dimension; 0 with gradient 0
    where both are 0."""
    same = (side == 0) & (along == 0)
    return torch.atan2(side, along.masked_fill(same, 1.0)).squeeze(-1)


def tiny(x: Tensor) -> float:
    """A divisor in place of 0. Its square is a float64 number, and no length of float32 vectors is
    less than that."""
    return 1e-150 if x.dtype == torch.float64 else max(1e-18, torch.finfo(x.dtype).tiny)


def inverse(c: float | Tensor) -> float | Tensor:
    """``1 / c``, of a tensor in one operation."""
    return c.reciprocal() if isinstance(c, Tensor) else 1 / c


@overload
def square_root(c: Tensor) -> Tensor: ...
@overload
def square_root(c: float | Tensor) -> float | Tensor: ...
def square_root(c: float | Tensor) -> float | Tensor:
    """``sqrt(c)``; the gradient of ``c**0.5`` takes one operation more."""
    return torch.sqrt(c) if isinstance(c, Tensor) else c**0.5


def safe_sqrt(x: Tensor) -> Tensor:
    """``sqrt(max(x, 0))`` whose gradient is 0, not infinite, where ``x <= 0``."""
    none = x <= 0  # not x > 0, so that NaN stays NaN
    return torch.sqrt(x.masked_fill(none, 1.0)).masked_fill(none, 0.0)


def sinhc(z: Tensor) -> Tensor:
    """``sinh(z) / z``, with its limit 1 (and gradient 0) at 0. Overflows with sinh, at ``|z|``
    about 89 in float32."""
    return sinhc_sqrt(z * z)


def tanhc(z: Tensor) -> Tensor:
    """``tanh(z) / z``, with its limit 1 (and gradient 0) at 0."""
    return tanhc_sqrt(z * z)


def sinhc_sqrt(q: Tensor) -> Tensor:
    """``sinh(sqrt(q)) / sqrt(q)`` of ``q >= 0``, with gradient 0 at 0."""
    root = torch.sqrt(q.clamp_min(tiny(q)))
    return torch.sinh(root) / root


def asinhc_sqrt(q: Tensor) -> Tensor:
    """``asinh(sqrt(q)) / sqrt(q)`` of ``q >= 0``, with gradient 0 at 0."""
    root = torch.sqrt(q.clamp_min(tiny(q)))
    return torch.asinh(root) / root


def tanhc_sqrt(q: Tensor) -> Tensor:
    """``tanh(sqrt(q)) / sqrt(q)`` of ``q >= 0``, with gradient 0 at 0."""
    root = torch.sqrt(q.clamp_min(tiny(q)))
    return torch.tanh(root) / root


def squash_factor(square: Tensor, limit: float | Tensor, slope: float) -> Tensor:
    """``D tanh(atanh(0.99) r / (s D)) / r`` of ``r^2``, with ``D = limit`` and ``s = slope``.

    The factor of maximum-distance rescaling (Bdeir et al., NeurIPS 2025); ``limit`` is a number or
    a tensor.
    """
    start = math.atanh(0.99) / slope
    return start * tanhc_sqrt(square * (start / limit) ** 2)


def log_sinhc_sqrt(q: Tensor) -> Tensor:
    """``log(sinh(sqrt(q)) / sqrt(q))`` of ``q >= 0`` without overflow: smooth in ``q``."""
    small = q < 1
    root = torch.sqrt(torch.where(small, torch.ones_like(q), q))
    large = root + torch.log1p(-torch.exp(-2 * root)) - torch.log(2 * root)
    close = torch.where(small, q, torch.zeros_like(q))
    tail = 1 + close / 72 * (1 + close / 110 * (1 + close / 156 * (1 + close / 210)))
    return torch.where(
        small, torch.log1p(close / 6 * (1 + close / 20 * (1 + close / 42 * tail))), large
    )


def log_beta(n: int) -> float:
    """``log B(n / 2, 1 / 2)``, by which HNN++ weighs the radii of joined points of the ball."""
    return math.lgamma(n / 2) + math.lgamma(0.5) - math.lgamma((n + 1) / 2)


def clip_norm(x: Tensor, radius: float = 1.0) -> Tensor:
    """Scale vectors ``(..., d)`` longer than ``radius`` to that length; others pass unchanged.

    Feature clipping (Guo et al., "Clipped Hyperbolic Classifiers Are Super-Hyperbolic Classifiers",
    CVPR 2022).
    """
    return x * (radius / length(x).clamp_min(radius))
