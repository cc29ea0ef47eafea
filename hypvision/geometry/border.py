"""The border of the geometry: what all its public functions do with their arguments and results.

Arguments are checked, float32 points are computed in float64, and long rows on a CPU block by
block. Plain formulas in float64 are as exact as float32 points can be up to
``sqrt(c) * radius = 16``, and no product of finite float32 numbers overflows in them. See
``docs/numerics.md``.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

from .numerics import exact, narrow, widen
from .rows import in_blocks

P = ParamSpec("P")
R = TypeVar("R")
# largest gradient of a learned curvature: those of all calls are added up
STEEPEST = 1e18
_NOWHERE = torch.device("meta")
HALF = (torch.float16, torch.bfloat16)


def stable(
    *points: str,
    fits: tuple[str, ...] = (),
    space: tuple[str, ...] = (),
    sets: tuple[str, ...] = (),
    wide: bool = True,
    rows: bool = False,
    small: bool = False,
    brought: Mapping[str, Callable[[Tensor, float | Tensor, torch.dtype], Tensor]] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function of tensors exact in float32 and safe in half precision and under autocast;
    check its arguments.

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
        fits: names of further arguments that must end in that dimension.
        space: names of arguments that must end in one dimension less, without time.
        sets: names of arguments that hold sets of points, and need at least two dimensions.
        wide: compute in float64; a function of matrix products gets the dtype of the points, and
            widens what it must.
        rows: a result belongs to one row of each argument, so that long arguments can be computed
            block by block.
        small: results of finite float32 arguments are float32 numbers, and need no limit.
        brought: functions that bring these arguments into the model, from the argument inside, the
            curvature and the dtype that the argument had, of at least float32.

    Raises:
        TypeError: one of these arguments is not a floating point tensor, or another argument is an
            integer tensor.
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
                # raises Python's error: too many arguments, or one of them twice
                return call(*args, **kwargs)
            dtype, device = _check_vectors(label, ranks, fewer, given)
            for name, value in given.items():
                if name in curvatures:
                    _check_curvature(label, name, value)
                elif isinstance(value, Tensor) and not value.is_floating_point():
                    _refuse(label, name, value)
            if dtype is None:
                return call(**given)
            dtype = given.get("dtype") or dtype

            def inside(**given: Any) -> Any:
                return _inside(call, given, dtype, (wide, small), curvatures, brought or {})

            with exact(device):
                if not rows:
                    return inside(**given)
                vectors = {name: given.pop(name) for name in (*ranks, *fewer) if name in given}
                return in_blocks(inside, vectors, given)

        return wrapper

    return decorate


def _inside(
    call: Callable[..., Any],
    given: dict[str, Any],
    dtype: torch.dtype,
    kind: tuple[bool, bool],
    curvatures: Collection[str],
    brought: Mapping[str, Callable[..., Tensor]],
) -> Any:
    """The call in float64, or in ``dtype`` but at least float32; its results in ``dtype``."""
    wide, small = kind
    dtypes = {
        name: torch.promote_types(given[name].dtype, torch.float32)
        for name in brought
        if name in given
    }
    twice = "y" in given and given["y"] is given.get("x")
    for name, value in given.items():
        if isinstance(value, Tensor) and not (twice and name == "y"):
            given[name] = _entering(value, wide, dtype, name in curvatures)
    if twice:  # a set of points that is given twice stays one
        given["y"] = given["x"]
    for name, own in dtypes.items():
        given[name] = brought[name](given[name], given["c"], own)
    return _leaving(call(**given), dtype, small)


def _entering(value: Tensor, wide: bool, dtype: torch.dtype, curvature: bool) -> Tensor:
    """An argument as the call gets it."""
    if curvature and (wide or dtype == torch.float64):
        return widen(value, STEEPEST)
    if wide:
        return widen(value)
    return value.float() if value.dtype in HALF else value


def _leaving(out: Any, dtype: torch.dtype, small: bool) -> Any:
    """Results of the call as the caller gets them."""
    if isinstance(out, (tuple, list)):
        return type(out)(narrow(part, dtype) for part in out)
    return out.to(dtype) if small and dtype == torch.float32 else narrow(out, dtype)


def _check_vectors(
    function: str, ranks: dict[str, int], fewer: dict[str, int], given: dict[str, Any]
) -> tuple[torch.dtype | None, torch.device]:
    """Check vectors: their widest dtype, and the device of the first one.

    Args:
        function: name for the errors.
        ranks: least number of dimensions of the vectors, by their names.
        fewer: by how much other arguments are shorter than the vectors, by their names.
        given: the arguments by name. The call itself raises Python's error about missing ones.
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


def _check_curvature(function: str, argument: str, c: object) -> None:
    """Refuse a curvature that is no number or not positive; values of a tensor are not read."""
    if isinstance(c, (int, float)) and not 0 < c < math.inf:
        raise ValueError(
            f"{function}: the curvature {argument} must be positive (the sectional curvature is "
            f"-{argument}), got {c}."
        )
    if isinstance(c, Tensor) and not c.is_floating_point():
        _refuse(function, argument, c)


def _refuse(function: str, argument: str, value: object, rank: int = 1) -> NoReturn:
    """Raise the error for an argument that must be vectors and is not."""
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
            f"{function}: the last dimension of {argument} must be {count}, the number of {what}; "
            f"got {found}."
        )


def positive(function: str, argument: str, value: object, zero: bool = False) -> None:
    """Check that a number, but no tensor, is finite and positive, or 0 where that is allowed.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, (int, float)) and not (0 < value < math.inf or zero and value == 0):
        raise ValueError(
            f"{function}: {argument} must be {'0 or more' if zero else 'positive'}, got {value}."
        )


def check_factor(t: float | Tensor, name: str) -> None:
    """Check that ``t``, the argument ``name`` of a function, does not scale each coordinate alone.

    Raises:
        ValueError: it has dimensions of which the last is not 1.
    """
    if isinstance(t, Tensor) and t.dim() and t.shape[-1] != 1:
        raise ValueError(
            f"{name} must be a number, or end in a dimension of 1 that stands for the coordinates: "
            f"(..., 1). Got the shape {tuple(t.shape)}; unsqueeze(-1) adds that dimension."
        )


def same_list(function: str, points: Sequence[Tensor]) -> None:
    """Check that the argument ``points`` is a list of tensors of floating point numbers.

    Raises:
        TypeError: it is not.
        ValueError: it is empty.
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
