"""Hyperbolic functions and the arctangent, which runtimes of exported programs lack in float64.

The geometry computes in float64, where onnxruntime has exponentials and logarithms, but none of
these. So a program that is exported computes them by formulas, whose relative error is below
3e-14; eager and compiled code calls PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def exporting() -> bool:
    """Return whether a program is being exported, by :func:`torch.export.export` or
    :func:`torch.onnx.export`."""
    # ``is_exporting`` is also true while compiling, hence the second question.
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()


def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of ``x``."""
    return sinh_formula(x) if _by_formula(x) else torch.sinh(x)


def cosh(x: Tensor) -> Tensor:
    """Return the hyperbolic cosine of ``x``."""
    return cosh_formula(x) if _by_formula(x) else torch.cosh(x)


def asinh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine of ``x``."""
    return asinh_formula(x) if _by_formula(x) else torch.asinh(x)


def acosh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic cosine of ``x``; NaN below 1."""
    return acosh_formula(x) if _by_formula(x) else torch.acosh(x)


def atanh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic tangent of ``x``; NaN beyond -1 and 1."""
    return atanh_formula(x) if _by_formula(x) else torch.atanh(x)


def atan2(side: Tensor, along: Tensor) -> Tensor:
    """Return the angle of the vectors ``(along, side)``, in radians from -pi to pi."""
    return atan2_formula(side, along) if _by_formula(side) else torch.atan2(side, along)


def _by_formula(x: Tensor) -> bool:
    return x.dtype == torch.float64 and exporting()


# --------------------------------------------------------------------------------------------------
# The formulas


def sinh_formula(x: Tensor) -> Tensor:
    """Return ``sinh(x)`` by exponentials, near 0 by its series."""
    return _series(x, (torch.exp(x) - torch.exp(-x)) / 2, 0.1, 1 / 6, 1 / 20, 1 / 42)


def cosh_formula(x: Tensor) -> Tensor:
    """Return ``cosh(x)`` by exponentials."""
    return (torch.exp(x) + torch.exp(-x)) / 2


def asinh_formula(x: Tensor) -> Tensor:
    """Return ``asinh(x)`` by a logarithm, near 0 by its series."""
    size = x.abs()
    direct = torch.sign(x) * torch.log(size + torch.sqrt(x * x + 1))
    return _series(x, direct, 0.02, -1 / 6, -9 / 20, -25 / 42)


def acosh_formula(x: Tensor) -> Tensor:
    """Return ``acosh(x)`` as the ``asinh`` of ``sqrt(x^2 - 1)``."""
    return asinh_formula(((x - 1) * (x + 1)).sqrt())


def atanh_formula(x: Tensor) -> Tensor:
    """Return ``atanh(x)`` by a logarithm, near 0 by its series."""
    return _series(x, torch.log((1 + x) / (1 - x)) / 2, 0.02, 1 / 3, 3 / 5, 5 / 7)


def atan2_formula(side: Tensor, along: Tensor) -> Tensor:
    """Return ``atan2(side, along)`` of finite numbers: that of float32, and one step of Newton's
    method in float64. Angles below 1e-30 are rounded to float32."""
    size = torch.maximum(side.abs(), along.abs())
    none = size == 0
    size = size.masked_fill(none, 1.0)
    up = side.abs() / size
    along = along / size
    # ONNX's arctangent of 0 above a negative number is -pi, PyTorch's is pi: it is never asked.
    near = torch.atan2(up.float().clamp_min(1e-30), along.float()).double()
    cos = torch.cos(near)
    sin = torch.sin(near)
    # The sine of the rest is about 1e-7, so its third power is below the last digit.
    rest = (up * cos - along * sin) / (along * cos + up * sin).masked_fill(none, 1.0)
    out = (near + rest).masked_fill(none, 0.0)
    return torch.where(side < 0, -out, out)


def _series(x: Tensor, direct: Tensor, below: float, *factors: float) -> Tensor:
    """Return ``x (1 + a q (1 + b q (...)))`` with ``q = x^2`` and the factors a, b, ... where
    ``|x|`` is smaller than ``below``, and ``direct`` elsewhere."""
    q = x * x
    out = torch.ones_like(x)
    for factor in reversed(factors):
        out = 1 + factor * q * out
    return torch.where(x.abs() < below, x * out, direct)


_aten = torch.ops.aten
# the operations that onnxruntime has in float32 only, and their formulas
FORMULAS: dict[torch._ops.OpOverload, Callable[..., Tensor]] = {
    _aten.sinh.default: sinh_formula,
    _aten.cosh.default: cosh_formula,
    _aten.asinh.default: asinh_formula,
    _aten.acosh.default: acosh_formula,
    _aten.atanh.default: atanh_formula,
    _aten.atan2.default: atan2_formula,
}
