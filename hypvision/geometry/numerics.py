r"""Scalar and row-wise functions that stay accurate, and keep finite gradients, where the textbook formulas do not.

All are differentiable twice and safe for ``torch.compile``, ``torch.export`` and ``torch.func``. Some have a
hand-written backward, which stores less and is faster on CPUs than the plain operations that compilers and
``torch.func`` get (:func:`plain`). All functions return NaN for NaN.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
HALF = (torch.float16, torch.bfloat16)


def exact(device: torch.device) -> AbstractContextManager[object]:
    """Context without autocast, which the meta device does not know at all."""
    on = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


class Function(torch.autograd.Function):
    """A function that is differentiated by hand: its backward runs without autocast, wherever it is called.

    PyTorch runs a backward under the autocast setting at the call of ``backward()``, not under that of the forward:
    products would meet operands of another dtype than they were written for.
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
    """Whether to compute in plain operations: for compilers, for ``torch.func`` transforms, without data."""
    return torch.compiler.is_compiling() or x.is_meta or torch._C._are_functorch_transforms_active()


def needs_grad(*arguments: object) -> bool:
    """Whether gradients will be needed: without them a hand-written backward only costs the overhead of a call."""
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)


def backward_of(
    function: Callable[..., Tensor], inputs: Sequence[object], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Gradients of ``function(*inputs)`` that can be differentiated again.

    A hand-written backward calls this function if it must itself be differentiable (``create_graph=True``). The second
    derivatives are then those of the plain operations, and an ordinary backward has no extra cost.
    """
    with torch.enable_grad(), exact(grad.device):
        # Views, because one input may be computed from another, whose gradient would then be counted twice.
        inputs = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
        wanted = [x for x, need in zip(inputs, needed) if need and isinstance(x, Tensor)]
        found = iter(torch.autograd.grad(function(*inputs), wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


# ---------------------------------------------------------------------------------------------------------------------
# Checks and precision of the public functions


def stable(
    *points: str, fits: tuple[str, ...] = (), space: tuple[str, ...] = (), sets: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function of tensors safe to call in half precision and under autocast, and check its arguments.

    Half tensors are computed in float32, float32 ones beside float64 in that, and the result is rounded once, to the
    widest dtype among the tensors named in ``points``; numbers that it does not hold become its largest. Autocast is
    off inside. A float32 curvature of float64 points is widened.

    No check reads the values of a tensor, because the host would wait for the device. So a curvature given as a tensor
    is not checked: if it is not positive, results are NaN. Manifold objects with ``check=True`` check it.

    Args:
        points: names of the arguments that hold vectors; they must be floating point and end in the same dimension.
        fits: names of further arguments that must end in that dimension.
        space: names of arguments that must end in one dimension less, without time.
        sets: names of arguments that hold sets of points, and need at least two dimensions.

    Raises:
        TypeError: one of these arguments is not a floating point tensor, or another argument is an integer tensor.
        ValueError: their last dimensions differ, or a curvature is a number that is not positive.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)
        label = function.__name__.lstrip("_")
        ranks = {name: 1 + (name in sets) for name in points}
        fewer = {name: int(name in space) for name in (*fits, *space)}
        curvatures = [name for name in ("c", "c_old", "c_new") if name in names]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args), **kwargs)
            call: Callable[..., Any] = function
            if len(given) < len(args) + len(kwargs):
                return call(*args, **kwargs)  # raises Python's error: too many arguments, or one of them twice
            dtype, device, mixed = _check_vectors(label, ranks, fewer, given)
            given |= {name: _curvature(label, name, given[name], dtype) for name in curvatures if name in given}
            if mixed and dtype == torch.float64:
                given |= {name: given[name].double() for name in points if name in given}
            if _any_half(label, given):
                given = {name: _single(value) for name, value in given.items()}
            elif device == "meta" or not torch.is_autocast_enabled(device):
                return call(**given)
            with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
                out: Any = call(**given)
            if dtype not in HALF:
                return out
            if isinstance(out, (tuple, list)):
                return type(out)(None if o is None else saturate(o, dtype).to(dtype) for o in out)
            return saturate(out, dtype).to(dtype)

        return wrapper

    return decorate


def _check_vectors(
    function: str, ranks: dict[str, int], fewer: dict[str, int], given: dict[str, Any]
) -> tuple[torch.dtype | None, str, bool]:
    """Check vectors: their widest dtype, the kind of the first one's device, and whether dtypes differ.

    Args:
        function: name for the errors.
        ranks: least number of dimensions of the vectors, by their names.
        fewer: by how much other arguments are shorter than the vectors, by their names.
        given: the arguments by name.
    """
    dtype, device, mixed, size, first = None, "meta", False, 0, ""
    for argument, rank in ranks.items():
        value = given.get(argument)
        if value is None:
            continue  # the call itself raises Python's error about missing or unknown arguments
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < rank:
            _refuse(function, argument, value, rank)
        if dtype is None:
            dtype, device, size, first = value.dtype, value.device.type, value.shape[-1], argument
            continue
        if value.shape[-1] != size:
            raise ValueError(
                f"{function}: {first} and {argument} must have the same last dimension, "
                f"got {size} and {value.shape[-1]}."
            )
        if value.dtype != dtype:
            dtype, mixed = torch.promote_types(dtype, value.dtype), True
    for argument, less in fewer.items():
        value = given.get(argument)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
            _refuse(function, argument, value)
        if value.shape[-1] != size - less:
            raise ValueError(
                f"{function}: the last dimension of {argument} must be {size - less} to fit {first}, "
                f"which ends in {size}; got {value.shape[-1]}."
            )
    return dtype, device, mixed


def _curvature(function: str, argument: str, c: Any, dtype: torch.dtype | None) -> Any:
    """The checked curvature; a learned one gathers the gradients of all rows, of the largest numbers too."""
    if isinstance(c, (int, float)):
        if not 0 < c < math.inf:
            raise ValueError(
                f"{function}: the curvature {argument} must be positive "
                f"(the sectional curvature is -{argument}), got {c}."
            )
    elif isinstance(c, Tensor) and (c.requires_grad or dtype == torch.float64 != c.dtype):
        c = saturate_gradient(c) if c.is_floating_point() else c
        if dtype == torch.float64:  # the parameter is float32, but its root and inverse need float64
            c = c.double()
    return c


def _any_half(function: str, given: dict[str, Any]) -> bool:
    """Whether a tensor is of half precision; raises an error for integer tensors."""
    half = False
    for argument, value in given.items():
        if isinstance(value, Tensor):
            if value.dtype in HALF:
                half = True
            elif not value.is_floating_point():
                _refuse(function, argument, value)
    return half


def _refuse(function: str, argument: str, value: object, rank: int = 1) -> NoReturn:
    """Raise the error for an argument that must be vectors and is not."""
    if isinstance(value, Tensor) and value.is_floating_point():
        if rank == 1:
            raise ValueError(f"{function}: {argument} must be a vector or a tensor of vectors, got a single number.")
        raise ValueError(
            f"{function}: {argument} must have at least two dimensions, (..., N, coordinates), "
            f"got the shape {tuple(value.shape)}."
        )
    found = value.dtype if isinstance(value, Tensor) else type(value).__name__
    raise TypeError(f"{function}: {argument} must be a tensor of floating point numbers, got {found}.")


def one_each(function: str, argument: str, value: Tensor, count: int, what: str = "points") -> None:
    """Check that an argument is a tensor of floating point numbers that ends in one number each.

    Raises:
        TypeError: the argument is not such a tensor.
        ValueError: its last dimension is not ``count``.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        _refuse(function, argument, value)
    if value.dim() == 0 or value.shape[-1] != count:
        found = value.shape[-1] if value.dim() else "a single number"
        raise ValueError(
            f"{function}: the last dimension of {argument} must be {count}, the number of {what}; got {found}."
        )


def positive(function: str, argument: str, value: object, zero: bool = False) -> None:
    """Check that an argument, if it is a number and no tensor, is finite and positive, or 0 where that is allowed.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, (int, float)) and not (0 < value < math.inf or zero and value == 0):
        raise ValueError(f"{function}: {argument} must be {'0 or more' if zero else 'positive'}, got {value}.")


def same_list(function: str, points: Sequence[Tensor]) -> None:
    """Check that the argument ``points`` of a function is a list of tensors of floating point numbers.

    Raises:
        TypeError: it is not.
        ValueError: it is empty.
    """
    if not isinstance(points, (list, tuple)):
        raise TypeError(f"{function}: points must be a list of tensors, got {type(points).__name__}.")
    if not points:
        raise ValueError(f"{function}: points must hold at least one tensor, got an empty list.")
    for i, value in enumerate(points):
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
            _refuse(function, f"points[{i}]", value)


def _single(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


# ---------------------------------------------------------------------------------------------------------------------
# Sums over the last dimension

# kinds of devices without float64
SINGLE_ONLY = frozenset({"mps"})


def has_float64(x: Tensor) -> bool:
    """Whether the device of ``x`` computes in float64 (MPS does not)."""
    return x.device.type not in SINGLE_ONLY


@overload
def widen(x: Tensor) -> Tensor: ...
@overload
def widen(x: float | Tensor) -> float | Tensor: ...
def widen(x: float | Tensor) -> float | Tensor:
    """``x`` in float64, a number unchanged; on devices without float64 ``x`` itself."""
    return x.double() if isinstance(x, Tensor) and has_float64(x) else x


# Up to this many coordinates the cost of calls dominates, and plain operations are as fast
_FEW = 2**14


class _SquareNorm(Function):
    """``|x|^2`` without the temporary of the squares."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return length.square_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor
        (x,) = ctx.saved_tensors
        return x * (2 * grad)


def square_norm(x: Tensor) -> Tensor:
    """Squared Euclidean norm ``(..., 1)`` of ``x`` ``(..., n)``."""
    if not needs_grad(x) and not plain(x):
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return length.square_()
    if plain(x) or x.numel() <= _FEW:
        return (x * x).sum(-1, keepdim=True)
    out: Tensor = _SquareNorm.apply(x)
    return out


class _WideSquareNorm(Function):
    """``|x|^2`` of float32 vectors, every product and sum in float64."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _WideSquareNorm.values(x)

    @staticmethod
    def values(x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.numel() <= 2**17:
            length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
            return length.square_()
        # Work on blocks of rows that fit into the cache: a float64 copy of the whole tensor would dominate the time.
        flat = x.reshape(-1, x.shape[-1])
        norm = torch.empty(flat.shape[0], dtype=torch.float64)
        rows = max(1, 2**17 // max(1, x.shape[-1]))
        for block, out in zip(flat.split(rows), norm.split(rows)):
            torch.linalg.vector_norm(block.double(), dim=-1, out=out)
        return norm.mul_(norm).reshape(*x.shape[:-1], 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor
        (x,) = ctx.saved_tensors
        # so that products with vectors of the ball (shorter than 1e4) are finite
        return x * (2 * grad).clamp(-1e34, 1e34).to(x.dtype)


def wide_square_norm(x: Tensor) -> Tensor:
    """Squared norm ``(..., 1)`` of ``x`` ``(..., n)`` as float64, exact for float32 vectors but for the last rounding.

    On devices without float64 (MPS) the dtype of ``x`` is all there is; :func:`gap_to_one` takes the one difference
    that needs more there.
    """
    if x.dtype == torch.float64 or not has_float64(x):
        return square_norm(x)
    if plain(x):
        precise = x.double()
        return (precise * precise).sum(-1, keepdim=True)
    return _WideSquareNorm.apply(x) if needs_grad(x) else _WideSquareNorm.values(x)


# Row sums with twice the digits of float32, for devices without float64: error-free transformations (Dekker 1971;
# Ogita, Rump and Oishi 2005). A compiler must not reassociate them; PyTorch's does not.


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum and its rounding error."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded product and its rounding error; factors beyond 1e34 (1e300 in float64) overflow."""
    product = a * b
    # split into halves of the digits, because products of halves are exact
    shift = 2.0**27 + 1 if a.dtype == torch.float64 else 2.0**12 + 1
    a_high, b_high = a * shift, b * shift
    a_high, b_high = a_high - (a_high - a), b_high - (b_high - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def compensated_square_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norm ``(..., 1)`` of ``x`` ``(..., n)`` as two numbers of its dtype, of twice the digits; no gradient.

    The first is the rounded squared norm, the second its rounding error. Coordinates must stay below the root of the
    largest number.
    """
    x = x.detach()
    total, lost = _two_product(x, x)
    rest = lost.sum(-1, keepdim=True)
    while total.shape[-1] > 1:
        half = total.shape[-1] // 2
        odd = total[..., 2 * half :]
        total, lost = _two_sum(total[..., :half], total[..., half : 2 * half])
        rest = rest + lost.sum(-1, keepdim=True)
        total = torch.cat([total, odd], -1)
    return _two_sum(total.sum(-1, keepdim=True), rest)


def gap_to_one(x: Tensor, c: float | Tensor) -> tuple[Tensor, Tensor]:
    """``1 - c |x|^2`` and ``c |x|^2``, ``(..., 1)``, for ``x`` ``(..., n)``: the difference is as exact as its inputs.

    For float32 both are float64 where the device has it. Elsewhere, and for float64, they are of the dtype of ``x``,
    from a compensated sum; squares of coordinates must not overflow there.
    """
    q = wide_square_norm(x) * widen(c)
    if x.dtype == torch.float32 and has_float64(x):
        return 1 - q, q
    with torch.no_grad():
        total, rest = compensated_square_norm(x)
        low = 0.0
        if isinstance(c, Tensor):
            high = c.detach().to(x.dtype)
        else:
            rounded = c
            if x.dtype != torch.float64:  # a Python number may have more digits than the dtype
                shifted = c * (2.0**29 + 1)
                rounded = shifted - (shifted - c)
                low = c - rounded
            high = torch.full_like(total, rounded)
        product, lost = _two_product(total, high)
        exact = (1 - product) - (lost + (total * low + rest * high))
        missing = exact - (1 - q.detach())
    return (1 - q) + missing, q


class _Dot(Function):
    """Row-wise inner product without the temporary of the products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return torch.einsum("...d,...d->...", x, y).unsqueeze(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        grad_x = (y * grad).sum_to_size(x.shape) if ctx.needs_input_grad[0] else None
        grad_y = (x * grad).sum_to_size(y.shape) if ctx.needs_input_grad[1] else None
        return grad_x, grad_y


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean inner product ``(..., 1)`` of ``x`` and ``y`` ``(..., n)``, which broadcast."""
    if plain(x) or x.numel() <= _FEW or not needs_grad(x, y):
        return (x * y).sum(-1, keepdim=True)
    out: Tensor = _Dot.apply(x, y)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Elementwise functions


def saturate(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers beyond those of a dtype, that of ``x`` by default, become its largest finite ones, with gradient 0."""
    largest = torch.finfo(dtype or x.dtype).max
    return x.clamp(-largest, largest)


class _SaturateGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, largest: float) -> Tensor:
        ctx.largest = largest
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.clamp(-ctx.largest, ctx.largest), None


class _SaturateGradientForward(Function):
    """The same with what ``torch.func`` asks for, which compilers do not take; a context of its own is slow."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, largest: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.largest = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.clamp(-ctx.largest, ctx.largest), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.view_as(tangent)


def saturate_gradient(x: Tensor, last: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """``x`` itself, with a gradient whose products do not overflow: numbers beyond 1e18 (1e150 in float64) are cut.

    Where no products follow, ``last``, the largest finite numbers are the limits, those of ``dtype`` if the gradient
    becomes one of that.
    """
    largest = torch.finfo(dtype or x.dtype).max if last else 1e150 if x.dtype == torch.float64 else 1e18
    if not (plain(x) or needs_grad(x)):
        return x
    forward = torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling()
    out: Tensor = (_SaturateGradientForward if forward else _SaturateGradient).apply(x, largest)
    return out


class _Scalar(Function):
    """A function of numbers by its values and its backward; second derivatives are those of the plain operations."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Callable[[Tensor], Tensor],
        back: Callable[[Tensor, Tensor, Tensor], Tensor],
        formula: Callable[[Tensor], Tensor],
    ) -> Tensor:
        out = values(x)
        ctx.back, ctx.formula = back, formula
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            return backward_of(ctx.formula, [x], [True], grad)[0], None, None, None
        return ctx.back(x, out, grad), None, None, None


def scalar(
    x: Tensor,
    values: Callable[[Tensor], Tensor],
    back: Callable[[Tensor, Tensor, Tensor], Tensor],
    formula: Callable[[Tensor], Tensor],
) -> Tensor:
    """``values(x)`` with the gradient ``back(x, values(x), grad)``; ``formula`` is the same in plain operations."""
    if plain(x):
        return formula(x)
    return _Scalar.apply(x, values, back, formula) if needs_grad(x) else values(x)


def root_slope(q: Tensor, out: Tensor, end: Tensor, series: Sequence[float], grad: float | Tensor = 1.0) -> Tensor:
    """Derivative of ``f(sqrt(q)) / sqrt(q)``, which is ``out``, from ``end = f'(sqrt(q))``, times ``grad``.

    Near 0 by its series.
    """
    near = series[-2] + q * series[-1]
    for coefficient in reversed(series[:-2]):
        near = coefficient + q * near
    away = (end - out).mul_(0.5)
    if isinstance(grad, Tensor):
        near, away = near * grad, away.mul_(grad)
    return torch.where(q < 3e-3, near, away.div_(q))


def _safe_sqrt(x: Tensor) -> Tensor:
    none = x <= 0  # not x > 0, so that NaN stays NaN
    root = torch.sqrt(torch.where(none, torch.ones_like(x), x))
    return torch.where(none, torch.zeros_like(x), root)


def _root_values(x: Tensor) -> Tensor:
    return x.clamp(min=0).sqrt_()


def _root_back(x: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    return (grad / (2 * out)).masked_fill_(out == 0, 0)


def safe_sqrt(x: Tensor) -> Tensor:
    """``sqrt(max(x, 0))`` whose gradient is 0, not infinite, where ``x <= 0``. Shape ``(...)`` to ``(...)``."""
    return scalar(x, _root_values, _root_back, _safe_sqrt)


def _asinh(z: Tensor) -> Tensor:
    size = torch.where(z < 0, -z, z)  # not abs, whose gradient at 0 is 0
    # sqrt(1 + z^2) without overflow, and without hypot, which ONNX does not have
    limit = torch.finfo(z.dtype).max ** 0.5 / 2
    small = size.clamp(max=limit)
    root = torch.where(size < limit, torch.sqrt(1 + small * small), size)
    large = torch.log1p(size + size * (size / (1 + root)))
    return torch.where(z < 0, -large, large)


def _asinh_values(z: Tensor) -> Tensor:
    size = z.abs()
    root = torch.hypot(size, torch.ones_like(size)).add_(1)
    return torch.addcmul(size, size, size / root).log1p_().copysign_(z)


def _asinh_back(z: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    return grad / torch.hypot(z, torch.ones_like(z))


def asinh(z: Tensor) -> Tensor:
    """Inverse hyperbolic sine, accurate to round-off everywhere.

    Uses ``log1p(|z| + z^2 / (1 + sqrt(1 + z^2)))``, several times faster on CPU than ``torch.asinh``.
    """
    return scalar(z, _asinh_values, _asinh_back, _asinh)


def _asinh_root_values(q: Tensor, root: Tensor | None = None) -> Tensor:
    root = torch.sqrt(q) if root is None else root
    return torch.addcdiv(root, q, (1 + q).sqrt_().add_(1)).log1p_()


def _asinh_root_back(q: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    return (grad / (torch.sqrt(q) * torch.sqrt(1 + q)).mul_(2)).masked_fill_(q == 0, 0)


def asinh_sqrt(q: Tensor) -> Tensor:
    """``asinh(sqrt(q))`` of ``q >= 0``, with gradient 0 where it is 0."""
    return scalar(q, _asinh_root_values, _asinh_root_back, lambda q: _asinh(_safe_sqrt(q)))


def _arcosh1p(h: Tensor) -> Tensor:
    h = torch.where(h <= 0, torch.zeros_like(h), h)
    return torch.log1p(h + safe_sqrt(h) * torch.sqrt(h + 2))


def _arcosh1p_values(h: Tensor) -> Tensor:
    if h.device.type != "cpu" or h.numel() <= 2**15 or not h.is_contiguous():
        return _arcosh1p_block(h)
    out = torch.empty_like(h)  # in blocks, so that temporaries stay in the cache
    for source, target in zip(h.view(-1).split(2**15), out.view(-1).split(2**15)):
        _arcosh1p_block(source, target)
    return out


def _arcosh1p_block(h: Tensor, out: Tensor | None = None) -> Tensor:
    h = h.clamp(min=0)
    if h.device.type == "cpu" and h.numel() and h.amax().item() < 1e18:
        return torch.log1p((h + 2).mul_(h).sqrt_().add_(h), out=out)
    # sqrt(h) sqrt(h + 2), because the product may overflow
    return torch.log1p((h + 2).sqrt_().mul_(h.sqrt()).add_(h), out=out)


def _arcosh1p_back(h: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    # 1 / sqrt(h (2 + h)) by two roots, because the product may overflow; infinite at 0, where the result is set to 0
    root = h.clamp(min=0).rsqrt_()
    slope = (h + 2).rsqrt_().mul_(root)
    return slope.masked_fill_(root == math.inf, 0).mul_(grad)


def arcosh1p(h: Tensor) -> Tensor:
    """``arcosh(1 + max(h, 0))``, as exact for small ``h`` as for large; where ``h <= 0`` the gradient is 0."""
    return scalar(h, _arcosh1p_values, _arcosh1p_back, _arcosh1p)


def distance_from_square(q: Tensor) -> Tensor:
    r"""``2 asinh(sqrt(max(q, 0)) / 2)``: the unit-curvature distance of points whose squared chord is ``q``.

    The squared chord of points of the hyperboloid is :math:`\langle x - y, x - y\rangle_L`; for points of the ball take
    :math:`4|x - y|^2 / ((1 - |x|^2)(1 - |y|^2))`. Where ``q <= 0`` the gradient is 0.
    """
    return arcosh1p(q / 2)


def sinhc(z: Tensor) -> Tensor:
    """``sinh(z) / z``, with its limit 1 (and gradient 0) at 0. Overflows with sinh, at ``|z|`` about 89 in float32."""
    small = z.abs() < 1e-2  # below 1e-2 the next term of the series, z^6 / 5040, is below float64 round-off
    away = torch.where(small, torch.ones_like(z), z)
    square = z * z
    series = 1 + square / 6 * (1 + square / 20)
    return torch.where(small, series, torch.sinh(away) / away)


def tanhc(z: Tensor) -> Tensor:
    """``tanh(z) / z``, with its limit 1 (and gradient 0) at 0."""
    small = z.abs() < 1e-2
    away = torch.where(small, torch.ones_like(z), z)
    square = torch.where(small, z * z, torch.zeros_like(z))
    series = 1 - square / 3 * (1 - square * 2 / 5 * (1 - square * 17 / 42))
    return torch.where(small, series, torch.tanh(away) / away)


def squash_factor(square: Tensor, limit: float | Tensor, slope: float) -> Tensor:
    """``D tanh(atanh(0.99) r / (s D)) / r`` of squared radii ``r^2``, with ``D = limit`` and ``s = slope``.

    The factor of maximum-distance rescaling (Bdeir et al., NeurIPS 2025); ``limit`` is a number or a tensor.
    """
    start = math.atanh(0.99) / slope
    return start * tanhc(safe_sqrt(square) * start / limit)


def _sinhc_sqrt(q: Tensor) -> Tensor:
    small = q < 1e-2
    root = torch.sqrt(torch.where(small, torch.ones_like(q), q))
    series = 1 + q / 6 * (1 + q / 20 * (1 + q / 42 * (1 + q / 72 * (1 + q / 110))))
    return torch.where(small, series, torch.sinh(root) / root)


def _sinhc_values(q: Tensor) -> Tensor:
    root = (q + torch.finfo(q.dtype).tiny).sqrt_()
    return torch.sinh(root).div_(root)


def _sinhc_back(q: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    cosh = torch.addcmul(torch.ones_like(q), q * out, out).sqrt_()
    return root_slope(q, out, cosh, (1 / 6, 1 / 60, 1 / 1680, 1 / 90720)).mul_(grad)


def sinhc_sqrt(q: Tensor) -> Tensor:
    """``sinh(sqrt(q)) / sqrt(q)`` of ``q >= 0``: smooth in ``q``, so that second derivatives at 0 are right."""
    return scalar(q, _sinhc_values, _sinhc_back, _sinhc_sqrt)


def _asinhc_series(q: Tensor) -> Tensor:
    tail = 1 - q * 81 / 110 * (1 - q * 121 / 156 * (1 - q * 169 / 210))
    return 1 - q / 6 * (1 - q * 9 / 20 * (1 - q * 25 / 42 * (1 - q * 49 / 72 * tail)))


def _asinhc_sqrt(q: Tensor) -> Tensor:
    small = q < 1e-2
    root = torch.sqrt(torch.where(small, torch.ones_like(q), q))
    return torch.where(small, _asinhc_series(torch.where(small, q, torch.zeros_like(q))), asinh(root) / root)


def _asinhc_values(q: Tensor) -> Tensor:
    q = q + torch.finfo(q.dtype).tiny
    root = torch.sqrt(q)
    return torch.addcdiv(root, q, (1 + q).sqrt_().add_(1)).log1p_().div_(root)


def _asinhc_back(q: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    # multiply by the gradient before dividing: for distant points the slope alone underflows
    return root_slope(q, out, (1 + q).rsqrt_(), (-1 / 6, 3 / 20, -15 / 112, 35 / 288), grad)


def asinhc_sqrt(q: Tensor) -> Tensor:
    """``asinh(sqrt(q)) / sqrt(q)`` of ``q >= 0``: smooth in ``q``, so that second derivatives at 0 are right."""
    return scalar(q, _asinhc_values, _asinhc_back, _asinhc_sqrt)


def log_sinhc_sqrt(q: Tensor) -> Tensor:
    """``log(sinh(sqrt(q)) / sqrt(q))`` of ``q >= 0`` without overflow: smooth in ``q``."""
    small = q < 1
    root = torch.sqrt(torch.where(small, torch.ones_like(q), q))
    large = root + torch.log1p(-torch.exp(-2 * root)) - torch.log(2 * root)
    close = torch.where(small, q, torch.zeros_like(q))
    tail = 1 + close / 72 * (1 + close / 110 * (1 + close / 156 * (1 + close / 210)))
    return torch.where(small, torch.log1p(close / 6 * (1 + close / 20 * (1 + close / 42 * tail))), large)


def log_beta(n: int) -> float:
    """``log B(n / 2, 1 / 2)``, by which the radii of joined points of the ball are weighed (HNN++)."""
    return math.lgamma(n / 2) + math.lgamma(0.5) - math.lgamma((n + 1) / 2)


def clip_norm(x: Tensor, radius: float = 1.0) -> Tensor:
    """Scale vectors ``(..., d)`` longer than ``radius`` back onto the sphere of that radius; others pass unchanged.

    Feature clipping (Guo et al., "Clipped Hyperbolic Classifiers Are Super-Hyperbolic Classifiers", CVPR 2022).
    """
    norm = safe_sqrt((x * x).sum(-1, keepdim=True))
    return x * (radius / norm.clamp(min=radius))
