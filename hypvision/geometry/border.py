"""The border of the geometry: what all its public functions do with their arguments and results.

Arguments are checked, float32 points are computed in float64, and on a CPU tensors of many rows are
computed block by block. In float64 the plain formulas are as exact as float32 points can be up to
``sqrt(c) * radius = 16``, and no product of finite float32 numbers overflows. See
``docs/numerics.md``.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

from hypvision.io import Plain, Values

from .numerics import exact, narrow, widen
from .rows import in_blocks

P = ParamSpec("P")
R = TypeVar("R")
# the largest gradient that one call gives a learned curvature: the gradients of all calls are added
# up, and their sum must not overflow
STEEPEST = 1e18
_NOWHERE = torch.device("meta")
_NOTHING: Values = {}
HALF = (torch.float16, torch.bfloat16)
_PAIRS = dict.fromkeys(("dist", "sqdist"), " For all pairs of points call cdist.")


def stable(
    *points: str,
    fits: tuple[str, ...] = (),
    space: tuple[str, ...] = (),
    timeless: tuple[str, ...] = (),
    sets: tuple[str, ...] = (),
    wide: bool = True,
    rows: bool = True,
    small: bool = False,
    brought: Mapping[str, Callable[[Tensor, float | Tensor, torch.dtype], Tensor]] = _NOTHING,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that makes a function of tensors exact in float32 and safe in half
    precision and under autocast, and that checks the function's arguments.

    The function gets float64 tensors, and its results are rounded once, to the widest dtype among
    the tensors named in ``points``; numbers that this dtype does not hold become its largest, and
    so do gradients. Autocast is off inside. On a device without float64 the function gets float32
    tensors.

    No check reads the values of a tensor, because the host would wait for the device. So a
    curvature given as a tensor is not checked: if it is not positive, results are NaN. Manifold
    objects with ``check=True`` check it.

    Args:
        points: names of the arguments that hold vectors; they must be floating point and end in the
            same dimension.
        fits: names of further arguments that must end in the same dimension as the points.
        space: names of arguments whose last dimension must be one less, because they have no
            time.
        timeless: names of arguments that hold points or tangent vectors, with their time, of which
            the function gets the space part ``(..., n)`` alone.
        sets: names of arguments that hold sets of points, and need at least two dimensions.
        wide: whether to compute in float64; a function of matrix products, with False, gets the
            dtype of the points and widens by itself what needs it.
        rows: whether each result depends on one row of every argument alone, so that long
            arguments can be computed block by block; False for functions of sets and of matrix
            products.
        small: whether results of finite float32 arguments always fit into float32 and need no
            limit.
        brought: by the argument's name, a function that brings points inside the model's
            domain. It gets the argument, the curvature, and the dtype that the argument had (at
            least float32).

    Raises:
        TypeError: one of the named arguments is not a floating point tensor, or another
            argument is an integer tensor.
        ValueError: the last dimensions do not fit, the others do not broadcast, or a curvature is
            a number that is not positive.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)
        label = function.__name__.lstrip("_")
        ranks = {name: 1 + (name in sets) for name in points}
        fewer = {name: int(name in space) for name in (*fits, *space)}
        curvatures = [name for name in ("c", "c_old", "c_new") if name in names]
        by_rows = rows and wide and not sets
        side_by_side = sets if sets else (*ranks, *fewer) if by_rows else ()
        call: Callable[..., Any] = function

        def computed(out: torch.dtype, /, **given: Any) -> Any:
            """Return what the function returns, computed in float64 (or in the dtype ``out``, but
            at least float32, if it is not wide) and rounded to ``out``."""
            dtypes = {name: given[name].dtype for name in brought if name in given}
            twice = "y" in given and given["y"] is given.get("x")
            for name, value in given.items():
                if isinstance(value, Tensor) and not (twice and name == "y"):
                    part = value[..., 1:] if name in timeless else value
                    given[name] = _entering(part, wide, out, name in curvatures)
            if twice:  # keep one tensor for both, because functions test ``y is x``
                given["y"] = given["x"]
            for name, dtype in dtypes.items():
                own = torch.promote_types(dtype, torch.float32)
                given[name] = brought[name](given[name], given["c"], own)
            return _leaving(call(**given), out, small)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args), **kwargs)
            if len(given) < len(args) + len(kwargs):
                # This call raises Python's own error about too many arguments, or an argument given
                # twice.
                return call(*args, **kwargs)
            dtype, device = _check_vectors(label, ranks, fewer, given)
            _check_others(label, curvatures, given)
            if dtype is None:
                return call(**given)
            together = {name: given[name] for name in side_by_side if name in given}
            check_shapes(label, together, 2 if sets else 1)
            dtype = given.get("dtype") or dtype
            inside = functools.partial(computed, dtype)
            with exact(device):
                if not by_rows:
                    return inside(**given)
                vectors = {name: given.pop(name) for name in (*ranks, *fewer) if name in given}
                return in_blocks(inside, vectors, given)

        return wrapper

    return decorate


def _check_others(function: str, curvatures: Sequence[str], given: Plain) -> None:
    """Check the curvatures, and that no tensor holds integers."""
    for name, value in given.items():
        if name in curvatures:
            _check_curvature(function, name, value)
        elif isinstance(value, Tensor) and not value.is_floating_point():
            _refuse(function, name, value)


def _entering(value: Tensor, wide: bool, dtype: torch.dtype, curvature: bool) -> Tensor:
    """Return an argument in the dtype in which the function computes."""
    if curvature and (wide or dtype == torch.float64):
        return widen(value, STEEPEST)
    if wide:
        return widen(value)
    return value.float() if value.dtype in HALF else value


def _leaving(out: Any, dtype: torch.dtype, small: bool) -> Any:
    """Return the function's results in ``dtype``, as the caller gets them."""
    if isinstance(out, (tuple, list)):
        return type(out)(narrow(part, dtype) for part in out)
    return out.to(dtype) if small and dtype == torch.float32 else narrow(out, dtype)


def _check_vectors(
    function: str, ranks: dict[str, int], fewer: dict[str, int], given: Plain
) -> tuple[torch.dtype | None, torch.device]:
    """Check the arguments that hold vectors, and return their widest dtype (None without vectors)
    and the device of the first one.

    Args:
        function: the function's name, for error messages.
        ranks: the least number of dimensions of each vector argument, by its name.
        fewer: by the name of each other argument, by how much its last dimension is shorter.
        given: all arguments by name. Missing ones are left to the call, which raises Python's
            error.
    """
    vectors = {name: given[name] for name in ranks if given.get(name) is not None}
    if not vectors:
        return None, _NOWHERE
    first, x = next(iter(vectors.items()))
    for argument in (*vectors, *fewer):
        value = given.get(argument)
        rank = ranks.get(argument, 1)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < rank:
            _refuse(function, argument, value, rank)
        size = x.shape[-1] - fewer.get(argument, 0)
        if value.shape[-1] != size:
            raise ValueError(
                f"{function}: the last dimension of {argument} must be {size} to fit {first}, "
                f"which ends in {x.shape[-1]}; got {value.shape[-1]}."
            )
    dtypes = (value.dtype for value in vectors.values())
    return functools.reduce(torch.promote_types, dtypes), x.device


def check_shapes(function: str, arguments: Mapping[str, Tensor], last: int = 1) -> None:
    """Check that the dimensions of tensors, but their ``last`` ones, broadcast. While a program is
    traced they are not compared, since that would bind free sizes.

    Raises:
        ValueError: they do not.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return
    shapes = [value.shape[: value.dim() - last] for value in arguments.values()]
    if all(shape == shapes[0] for shape in shapes):
        return
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        found = ", ".join(f"{name} {tuple(value.shape)}" for name, value in arguments.items())
        without = {0: "", 1: " but the last one", 2: " but the last two"}[last]
        raise ValueError(
            f"{function}: the shapes {found} do not fit: all dimensions{without} must be equal, or "
            f"1.{_PAIRS.get(function, '')}"
        ) from None


def some_points(function: str, x: Tensor) -> None:
    """Check that the sets of points ``x`` ``(..., N, d)`` are not empty.

    Raises:
        ValueError: N is 0.
    """
    if x.shape[-2] == 0:
        raise ValueError(
            f"{function}: x has the shape {tuple(x.shape)}, no points, which have no mean. Give at "
            "least one."
        )


def _check_curvature(function: str, argument: str, c: object) -> None:
    """Raise an error for a number that is not positive, or an integer tensor, as the curvature; the
    values of a tensor are not read."""
    if isinstance(c, (int, float)) and not 0 < c < math.inf:
        raise ValueError(
            f"{function}: the curvature {argument} must be positive (the sectional curvature is "
            f"-{argument}), got {c}."
        )
    if isinstance(c, Tensor) and not c.is_floating_point():
        _refuse(function, argument, c)


def _refuse(function: str, argument: str, value: object, rank: int = 1) -> NoReturn:
    """Raise the error for an argument ``value`` that must be a floating point tensor of at least
    ``rank`` dimensions and is not."""
    if isinstance(value, Tensor) and value.is_floating_point():
        if rank == 1:
            raise ValueError(
                f"{function}: {argument} must be a vector or a tensor of vectors, got a single "
                "number."
            )
        raise ValueError(
            f"{function}: {argument} must have at least two dimensions, (..., N, coordinates), "
            f"got the shape {tuple(value.shape)}."
        )
    found = value.dtype if isinstance(value, Tensor) else type(value).__name__
    raise TypeError(
        f"{function}: {argument} must be a tensor of floating point numbers, got {found}."
    )


def one_each(function: str, argument: str, value: Tensor, count: int, what: str = "points") -> None:
    """Check that the argument ``value`` is a floating point tensor whose last dimension is
    ``count``, one number for each of the points (or of what ``what`` says).

    Raises:
        TypeError: the argument is not such a tensor.
        ValueError: its last dimension is not ``count``.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        _refuse(function, argument, value)
    if value.dim() == 0 or value.shape[-1] != count:
        found = value.shape[-1] if value.dim() else "a single number"
        raise ValueError(
            f"{function}: the last dimension of {argument} must be {count}, the number of {what}; "
            f"got {found}."
        )


def positive(function: str, argument: str, value: object, zero: bool = False) -> None:
    """Check that ``value``, if it is a number, is finite and positive, or 0 if ``zero`` allows
    that; tensors are not checked, because that would make the host wait for the device.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, (int, float)) and not (0 < value < math.inf or zero and value == 0):
        raise ValueError(
            f"{function}: {argument} must be {'0 or more' if zero else 'positive'}, got {value}."
        )


def check_factor(t: float | Tensor, name: str) -> None:
    """Check that the factor ``t`` (the argument ``name``) does not scale each coordinate by itself.

    Raises:
        ValueError: ``t`` has dimensions and the last one is not 1.
    """
    if isinstance(t, Tensor) and t.dim() and t.shape[-1] != 1:
        raise ValueError(
            f"{name} must be a number, or end in a dimension of 1 that stands for the coordinates: "
            f"(..., 1). Got the shape {tuple(t.shape)}; unsqueeze(-1) adds that dimension."
        )


def same_list(function: str, points: Sequence[Tensor]) -> None:
    """Check that the argument ``points`` is a list of tensors of floating point numbers.

    Raises:
        TypeError: ``points`` is not a list of such tensors.
        ValueError: ``points`` is empty.
    """
    if not isinstance(points, (list, tuple)):
        raise TypeError(
            f"{function}: points must be a list of tensors, got {type(points).__name__}."
        )
    if not points:
        raise ValueError(f"{function}: points must hold at least one tensor, got an empty list.")
    for i, value in enumerate(points):
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
            _refuse(function, f"points[{i}]", value)
