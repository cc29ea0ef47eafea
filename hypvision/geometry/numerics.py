"""Changes of dtype, sums and functions of numbers that the geometry's formulas need."""

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
from torch.autograd import forward_ad
from torch.nn.functional import hardtanh

from . import exportable

# the types of devices that do not compute in float64
SINGLE_ONLY = frozenset({"mps"})


def is_autocast(device: torch.device) -> bool:
    """Return whether autocast is on for a device; it never is on the meta device."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast is off for a device."""
    return torch.autocast(device.type, enabled=False) if is_autocast(device) else nullcontext()


class Function(torch.autograd.Function):
    """A function differentiated by hand: its backward always runs without autocast.

    PyTorch runs a backward under the autocast setting at the call of ``backward()``, not under that
    of the forward: with autocast on, matrix products would meet operands of other dtypes than
    expected.
    """

    if TYPE_CHECKING:  # because PyTorch's ``apply`` has no type annotations

        @classmethod
        def apply(cls, *args: Any) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "backward" in vars(cls):
            cls.backward = staticmethod(without_autocast(cls.backward))  # type: ignore[method-assign]


def without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function ``backward(ctx, *grads)`` of an autograd function, wrapped to run without
    autocast."""

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        if not torch._C._is_any_autocast_enabled():
            return backward(ctx, *grads)
        with exact(next(grad.device for grad in grads if grad is not None)):
            return backward(ctx, *grads)

    return wrapper


def transformed() -> bool:
    """Return whether a transform of ``torch.func`` or a forward derivative is being computed."""
    functorch: bool = torch._C._are_functorch_transforms_active()
    return functorch or forward_ad._current_level >= 0


def plain(x: Tensor) -> bool:
    """Return whether to compute in plain operations instead of a hand-written function: while
    compiling, under ``torch.func``, within forward derivatives, and for ``x`` on the meta
    device."""
    return torch.compiler.is_compiling() or x.is_meta or transformed()


def readable(x: Tensor) -> bool:
    """Return whether the values of a tensor may decide what is computed: not on a GPU or in a
    compiled graph, which would wait for them or cannot know them."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


@functools.cache
def uses_triton(device: torch.device) -> bool:
    """Return whether Triton kernels compute on a device: a GPU from Volta on, if Triton can be
    imported.

    They are off unless the environment variable ``HYPVISION_TRITON`` is 1, because no GPU has run
    them yet.
    """
    if (
        device.type != "cuda"
        or not torch.cuda.is_available()
        or os.environ.get("HYPVISION_TRITON") != "1"
    ):
        return False
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (7, 0)


def needs_grad(*arguments: object) -> bool:
    """Return whether a gradient of one of the arguments will be needed; if not, the plain forward
    saves the call of a hand-written function."""
    return torch.is_grad_enabled() and any(
        isinstance(a, Tensor) and a.requires_grad for a in arguments
    )


def backward_of(
    function: Callable[..., Tensor], inputs: Sequence[object], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients of ``function(*inputs)`` for the gradient ``grad`` of its result, in a
    form that can be differentiated again; None where ``needed`` is false.

    A hand-written backward calls this function if it must itself be differentiable
    (``create_graph=True``). The second derivatives are then those of the plain operations, and an
    ordinary backward has no extra cost.
    """
    with torch.enable_grad(), exact(grad.device):
        # The inputs become views, because one input may be computed from another, whose gradient
        # would then be counted twice.
        inputs = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
        wanted = [x for x, need in zip(inputs, needed) if need and isinstance(x, Tensor)]
        found = iter(
            torch.autograd.grad(
                function(*inputs), wanted, grad, create_graph=True, allow_unused=True
            )
        )
    return [next(found) if need else None for need in needed]


# --------------------------------------------------------------------------------------------------
# Conversions between float32 and float64


def has_float64(x: Tensor) -> bool:
    """Return whether the device of ``x`` computes in float64 (MPS does not)."""
    return x.device.type not in SINGLE_ONLY


class _Convert(Function):
    """Convert a tensor to another dtype; values beyond ``most`` and gradients beyond ``steepest``
    are cut, if these limits are given."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, most: float | None, steepest: float | None
    ) -> Tensor:
        ctx.dtype = x.dtype
        ctx.steepest = steepest
        return _cut_to(x, most, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return limited(grad, ctx.steepest, ctx.dtype), None, None, None


class _ConvertForward(_Convert):
    """Convert as :class:`_Convert` does, in the form that ``torch.func`` asks for. Compilers do not
    take this form, and its separate ``setup_context`` is slow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # type: ignore[override]
        x: Tensor, dtype: torch.dtype, most: float | None, steepest: float | None
    ) -> Tensor:
        return _cut(x, most).to(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.to, _, ctx.steepest = inputs
        ctx.dtype = x.dtype

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return tangent.to(ctx.to)


def _cut(x: Tensor, most: float | None) -> Tensor:
    """Return ``x`` with finite numbers cut at ``most`` in size and infinite ones made NaN (0 times
    ``x`` is added)."""
    return x if most is None else torch.add(x.clamp(-most, most), x, alpha=0)


def _cut_to(x: Tensor, most: float | None, dtype: torch.dtype) -> Tensor:
    """Return :func:`_cut` of ``x`` in another dtype; the sum is rounded as it is written, which
    takes one kernel less."""
    if most is None or plain(x):  # within forward derivatives nothing can be written into
        return _cut(x, most).to(dtype)
    return torch.add(x.clamp(-most, most), x, alpha=0, out=torch.empty_like(x, dtype=dtype))


def limited(grad: Tensor, steepest: float | None, dtype: torch.dtype) -> Tensor:
    """Return a gradient in another dtype, with numbers beyond ``steepest``, infinite ones too, cut
    to that size."""
    if steepest is None:
        return grad.to(dtype)
    # A CPU would take memory for a copy; nothing that is traced or differentiated can be written.
    traced = plain(grad) or torch.is_grad_enabled() or type(grad) is not Tensor
    if grad.device.type != "cpu" and not traced:
        return limited_at_once(grad, steepest, dtype)
    # Numbers that the dtype does not hold become infinite first.
    return grad.to(dtype).clamp(-steepest, steepest)


def limited_at_once(grad: Tensor, steepest: float, dtype: torch.dtype) -> Tensor:
    """Compute :func:`limited` in one kernel."""
    low, high = bounds(steepest, grad.dtype, grad.device)
    return torch.clamp(grad, low, high, out=torch.empty_like(grad, dtype=dtype))


@functools.cache
def bounds(size: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ``-size`` and ``size`` on a device: with tensors as bounds ``torch.clamp`` rounds its
    result to the dtype of ``out``."""
    high = torch.full((), size, dtype=dtype, device=device)
    return -high, high


def _convert(x: Tensor, dtype: torch.dtype, most: float | None, steepest: float | None) -> Tensor:
    by_functorch = torch._C._are_functorch_transforms_active()
    if not by_functorch and not needs_grad(x):
        return _cut_to(x, most, dtype)
    function = _ConvertForward if by_functorch and not torch.compiler.is_compiling() else _Convert
    out: Tensor = function.apply(x, dtype, most, steepest)
    return out


@overload
def widen(x: Tensor, steepest: float | None = None) -> Tensor: ...
@overload
def widen(x: float | Tensor, steepest: float | None = None) -> float | Tensor: ...
def widen(x: float | Tensor, steepest: float | None = None) -> float | Tensor:
    """Return ``x`` in float64, or in float32 on devices without float64; a number unchanged.

    Args:
        x: a number, or a tensor.
        steepest: the largest gradient that ``x`` gets if it is not float64; by default the largest
            number of its dtype.
    """
    if not isinstance(x, Tensor):
        return x
    dtype = torch.float64 if has_float64(x) else torch.float32
    if x.dtype == torch.float64 or x.dtype == dtype:
        return x
    most = torch.finfo(x.dtype).max
    return _convert(x, dtype, None, most if steepest is None else min(most, steepest))


def precise(x: Tensor) -> Tensor:
    """Return ``x`` in float32 if it has half precision, else unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x`` in a dtype of fewer digits; finite numbers that it does not hold become its
    largest number."""
    return x if x.dtype == dtype else _convert(x, dtype, torch.finfo(dtype).max, None)


def bounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x`` in a dtype, ready for matrix products: numbers beyond 1e18 are cut, unless it
    already is float64."""
    # A Function that changes no dtype would lose its gradient in PyTorch's compiler.
    if x.dtype == dtype:
        return x if dtype == torch.float64 else _cut(x, 1e18)
    return _convert(x, dtype, 1e18, None)


class _Straight(Function):
    """Compute :func:`with_value` in no operation."""

    @staticmethod
    def forward(ctx: Any, form: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def with_value(form: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` with the gradient of ``form``, which differs from it by a constant or by
    digits; both have one shape and dtype. The result is not to be written into."""
    value = value.detach()
    if plain(form):
        return value + (form - form.detach())
    out: Tensor = _Straight.apply(form, value) if needs_grad(form) else value
    return out


def held(x: Tensor, low: float, high: float) -> Tensor:
    """Return ``x`` clamped to bounds. The gradient passes unchanged, so that a value outside can be
    trained back."""
    return with_value(x, x.clamp(low, high))


# --------------------------------------------------------------------------------------------------
# Sums and quotients


def add_scaled(x: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
    """Return ``x + branch * scale``; ``scale`` broadcasts and gets the dtype of ``branch``."""
    scale = scale.to(branch.dtype)
    if plain(branch) or not needs_grad(x, branch, scale):
        return x + branch * scale
    out: Tensor = _AddScaled.apply(x, branch, scale)
    return out


class _AddScaled(Function):
    """Compute :func:`add_scaled` in one operation; ``torch.addcmul`` takes two more in its
    backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(branch, scale)
        ctx.dtype = x.dtype
        return torch.addcmul(x, branch, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        branch, scale = ctx.saved_tensors
        of_branch = grad.to(branch.dtype)
        of_scale = None
        if ctx.needs_input_grad[2]:
            of_scale = (of_branch * branch).sum_to_size(scale.shape)
        return grad.to(ctx.dtype), of_branch * scale, of_scale


def divided(x: Tensor, number: float | Tensor) -> Tensor:
    """Return ``x / number``; a tensor broadcasts to the shape of ``x``."""
    if plain(x) or not needs_grad(number):
        return x / number
    out: Tensor = _Divided.apply(x, number)
    return out


class _Divided(Function):
    """Divide with a backward of four operations where PyTorch's has six."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: Tensor) -> Tensor:
        out = x / number
        ctx.save_for_backward(number, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        number, out = ctx.saved_tensors
        by_x = grad / number
        return by_x, -(by_x * out).sum_to_size(number.shape)


# --------------------------------------------------------------------------------------------------
# Sums over the last dimension


class _SquareNorm(Function):
    """The squared norm. Its backward is one product, where PyTorch adds up those of both
    factors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _norm(x).square()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        out: Tensor = x * (2 * grad)
        return out


class _Hypotenuse(Function):
    """``x`` and ``sqrt(|x|^2 + leg^2)``, or the norm if ``leg`` is None. The backward joins the
    gradients of both in one product, where PyTorch's of the norm divides and masks all
    coordinates."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leg: float | Tensor | None) -> tuple[Tensor, Tensor]:
        size = _norm(x)
        if leg is not None:
            size = torch.hypot(size, torch.as_tensor(leg, dtype=x.dtype))
        ctx.save_for_backward(x, size, leg if isinstance(leg, Tensor) else None)
        ctx.zero = leg is None
        ctx.set_materialize_grads(False)
        return x.view_as(x), size

    @staticmethod
    def backward(
        ctx: Any, by_x: Tensor | None, by_size: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        x, size, leg = ctx.saved_tensors
        if by_size is None:
            return by_x, None
        share = by_size / (size.clamp_min(tiny(size)) if ctx.zero else size)
        by_leg = None if leg is None else (share * leg).sum_to_size(leg.shape)
        # Legs of several curvatures have given one x several sizes.
        if share.shape[:-1] != x.shape[:-1]:
            by_each = (x * share).sum_to_size(x.shape)
            return by_each if by_x is None else by_x + by_each, by_leg
        return x * share if by_x is None else torch.addcmul(by_x, x, share), by_leg


def _norm(x: Tensor) -> Tensor:
    out: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return out


def square_norm(x: Tensor) -> Tensor:
    """Return the squared Euclidean norm ``(..., 1)`` of ``x`` ``(..., n)``."""
    if plain(x):
        return dot(x, x)
    out: Tensor = _SquareNorm.apply(x) if needs_grad(x) else _norm(x).square()
    return out


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return the Euclidean inner product ``(..., 1)`` of ``x`` and ``y`` ``(..., n)``, which
    broadcast."""
    return (x * y).sum(-1, keepdim=True)


def length(x: Tensor) -> Tensor:
    """Return the Euclidean norm ``(..., 1)`` of ``x`` ``(..., n)``; its gradient is 0 where it is
    0."""
    return hypotenuse(x, None)


def with_length(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``x`` and its :func:`length`, to be read as those of :func:`with_hypotenuse`."""
    return with_hypotenuse(x, None)


def hypotenuse(x: Tensor, leg: float | Tensor | None) -> Tensor:
    """Return ``sqrt(|x|^2 + leg^2)`` ``(..., 1)`` of ``x`` ``(..., n)``; ``leg`` is positive, or
    None."""
    return with_hypotenuse(x, leg)[1]


def with_hypotenuse(x: Tensor, leg: float | Tensor | None) -> tuple[Tensor, Tensor]:
    """Return ``x`` and :func:`hypotenuse`. What reads both should read this ``x``: the gradients of
    the two are joined in one operation."""
    if needs_grad(x, leg) and not plain(x):
        out: tuple[Tensor, Tensor] = _Hypotenuse.apply(x, leg)
        return out
    return x, _norm(x) if leg is None else torch.sqrt(square_norm(x) + leg * leg)


class _Heading(Function):
    """Compute :func:`heading` with a backward of half as many operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, least: float | None) -> tuple[Tensor, Tensor]:
        size = _norm(x)
        divisor = _divisor(size, least)
        ray = x / divisor
        ctx.save_for_backward(ray, size, divisor)
        ctx.least = least
        ctx.set_materialize_grads(False)
        return ray, size

    @staticmethod
    def backward(
        ctx: Any, by_ray: Tensor | None, by_size: Tensor | None
    ) -> tuple[Tensor | None, None]:
        ray, size, divisor = ctx.saved_tensors
        if by_ray is None:
            return None if by_size is None else by_size * ray, None
        if torch.is_grad_enabled():
            divisor = _divisor(size, ctx.least)
        along = dot(by_ray, ray)
        if ctx.least is not None:  # shorter vectors are not divided by their length
            along = torch.ops.aten.threshold_backward(along, size, ctx.least)
        across = by_ray / divisor
        if by_size is None:
            return torch.addcmul(across, ray, along / divisor, value=-1), None
        return torch.addcmul(across, ray, torch.addcdiv(by_size, along, divisor, value=-1)), None


def _divisor(size: Tensor, least: float | None) -> Tensor:
    return size.clamp_min(tiny(size) if least is None else least)


def heading(x: Tensor, least: float | None = None) -> tuple[Tensor, Tensor]:
    """Return the direction ``(..., n)`` and the length ``(..., 1)`` of ``x``; the direction of 0 is
    0. Vectors shorter than ``least`` are divided by this number instead of their length, which then
    is for values alone, not for gradients."""
    if plain(x) or not needs_grad(x):
        size = length(x)
        return x / _divisor(size, least), size
    out: tuple[Tensor, Tensor] = _Heading.apply(x, least)
    return out


def along_and_across(x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the length of ``x``, and of ``delta`` the part along ``x`` and the length across it,
    all ``(..., 1)``."""
    ray, size = heading(x)
    along = dot(ray, delta)
    return size, along, length(delta - along * ray)


def stretched(x: Tensor, size: Tensor, t: float | Tensor) -> Tensor:
    """Return ``x``, whose length is ``size`` ``(..., 1)``, with the length ``t`` instead; 0 where
    ``size`` is 0."""
    none = size == 0
    return x * (t / size.masked_fill(none, 1.0)).masked_fill(none, 0.0)


# --------------------------------------------------------------------------------------------------
# Functions of numbers


def angle(side: Tensor, along: Tensor) -> Tensor:
    """Return ``atan2(side, along)`` of numbers ``(..., 1)``, without the last dimension; 0 with
    gradient 0 where both are 0."""
    same = (side == 0) & (along == 0)
    return exportable.atan2(side, along.masked_fill(same, 1.0)).squeeze(-1)


def tiny(x: Tensor) -> float:
    """Return a divisor to take in place of 0. Its square is a float64 number, and no length of
    float32 vectors but 0 is less."""
    return 1e-150 if x.dtype == torch.float64 else max(1e-18, torch.finfo(x.dtype).tiny)


@overload
def square_root(c: Tensor) -> Tensor: ...
@overload
def square_root(c: float | Tensor) -> float | Tensor: ...
def square_root(c: float | Tensor) -> float | Tensor:
    """Return ``sqrt(c)``; for a tensor by ``torch.sqrt``, because the gradient of ``c**0.5`` takes
    one operation more."""
    return torch.sqrt(c) if isinstance(c, Tensor) else c**0.5


def radius_of(c: float | Tensor, x: Tensor, y: Tensor | None = None) -> float | Tensor:
    """Return the radius of curvature ``1 / sqrt(c)``; of a tensor one number ``(..., 1)`` for each
    row of ``x`` ``(..., n)``, so that the gradients of all its uses are summed over the rows once,
    unless ``y`` has other rows."""
    if not isinstance(c, Tensor):
        return float(c**-0.5)
    radius: Tensor = c**-0.5
    if y is not None and y.shape[:-1] != x.shape[:-1]:
        return radius
    return radius.expand(torch.broadcast_shapes(radius.shape, (*x.shape[:-1], 1)))


def clamped(x: Tensor, low: float = -math.inf, high: float = math.inf) -> Tensor:
    """Return ``x`` within bounds. At and beyond them its gradient is 0, which takes one kernel
    where that of ``torch.clamp`` takes three."""
    return hardtanh(x, low, high)


def safe_sqrt(x: Tensor) -> Tensor:
    """Return ``sqrt(max(x, 0))`` with a gradient of 0, not infinity, where ``x <= 0``."""
    none = x <= 0  # instead of ``x > 0``, so that NaN stays NaN
    return torch.sqrt(x.masked_fill(none, 1.0)).masked_fill(none, 0.0)


def sinhc(z: Tensor) -> Tensor:
    """Return ``sinh(z) / z``, with its limit 1 (and gradient 0) at 0. It overflows as sinh does, at
    ``|z|`` of about 89 in float32."""
    return sinhc_sqrt(z * z)


def tanhc(z: Tensor) -> Tensor:
    """Return ``tanh(z) / z``, with its limit 1 (and gradient 0) at 0."""
    return tanhc_sqrt(z * z)


def sinhc_sqrt(q: Tensor) -> Tensor:
    """Return ``sinh(sqrt(q)) / sqrt(q)`` of ``q >= 0``, with gradient 0 at 0."""
    return _of_root(exportable.sinh, q)


def asinhc_sqrt(q: Tensor) -> Tensor:
    """Return ``asinh(sqrt(q)) / sqrt(q)`` of ``q >= 0``, with gradient 0 at 0."""
    return _of_root(exportable.asinh, q)


def tanhc_sqrt(q: Tensor) -> Tensor:
    """Return ``tanh(sqrt(q)) / sqrt(q)`` of ``q >= 0``, with gradient 0 at 0."""
    return _of_root(torch.tanh, q)


def _of_root(function: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    root = torch.sqrt(clamped(q, tiny(q)))
    return function(root) / root


def squash_factor(square: Tensor, limit: float | Tensor, slope: float) -> Tensor:
    """Return ``D tanh(atanh(0.99) r / (s D)) / r`` of the squared radius ``square = r^2``, with
    ``D = limit`` (a number or a tensor) and ``s = slope``: the factor by which maximum-distance
    rescaling multiplies vectors (Bdeir et al., NeurIPS 2025)."""
    start = math.atanh(0.99) / slope
    return start * tanhc_sqrt(square * (start / limit) ** 2)


def log_sinhc_sqrt(q: Tensor) -> Tensor:
    """Return ``log(sinh(sqrt(q)) / sqrt(q))`` of ``q >= 0``, without overflow and smooth in
    ``q``."""
    small = q < 1
    root = torch.sqrt(torch.where(small, torch.ones_like(q), q))
    large = root + torch.log1p(-torch.exp(-2 * root)) - torch.log(2 * root)
    close = torch.where(small, q, torch.zeros_like(q))
    tail = 1 + close / 72 * (1 + close / 110 * (1 + close / 156 * (1 + close / 210)))
    return torch.where(
        small, torch.log1p(close / 6 * (1 + close / 20 * (1 + close / 42 * tail))), large
    )


def log_beta(n: int) -> float:
    """Return ``log B(n / 2, 1 / 2)``, by which HNN++ weighs the radii of concatenated points of the
    ball."""
    return math.lgamma(n / 2) + math.lgamma(0.5) - math.lgamma((n + 1) / 2)


def clip_norm(x: Tensor, radius: float = 1.0) -> Tensor:
    """Return vectors ``(..., d)``, those longer than ``radius`` scaled to that length, the others
    unchanged.

    This is feature clipping (Guo et al., "Clipped Hyperbolic Classifiers Are Super-Hyperbolic
    Classifiers", CVPR 2022).
    """
    return x * (radius / clamped(length(x), radius))
