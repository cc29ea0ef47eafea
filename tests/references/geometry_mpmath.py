"""The operations of both models from their definitions, in mpmath: values and gradients to every
digit of a double.

Nothing here is shared with the package: distances are an arcosh, angles an arccos, transports the
formulas of the textbooks. With 180 digits their cancellations do no harm.

Every operation depends on its vectors only through their inner products, and returns a number or a
combination of them. So a :class:`Vector` is a list of coefficients and the Gram matrix. The vectors
themselves, of whatever dimension, are only read when that matrix is filled, exactly, with integers;
and the gradient takes one evaluation more for each of its few entries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import mpmath
import numpy as np
from mpmath import mpf

DIGITS = 180
# of the difference quotients, whose error it is but for the size of second derivatives; 100 digits
# are left for cancellation
STEP = mpf(10) ** -80


class Vector:
    """A combination of the given vectors."""

    def __init__(self, gram, coefficients):
        self.gram, self.coefficients = gram, coefficients

    def __add__(self, other):
        return Vector(self.gram, [a + b for a, b in zip(self.coefficients, other.coefficients)])

    def __sub__(self, other):
        return self + other * -1

    def __mul__(self, number):
        return Vector(self.gram, [a * number for a in self.coefficients])

    def __neg__(self):
        return self * -1

    def __truediv__(self, number):
        return self * (1 / number)

    def dot(self, other):
        total = mpf(0)
        for i, a in enumerate(self.coefficients):
            if a:
                for j, b in enumerate(other.coefficients):
                    if b:
                        total += a * b * self.gram[i][j]
        return total

    def norm(self):
        return mpmath.sqrt(max(self.dot(self), mpf(0)))


class Event(NamedTuple):
    """Time and space: a point of the hyperboloid or a tangent vector."""

    time: mpf
    space: Vector

    def plus(self, other, factor=1):
        return Event(self.time + factor * other.time, self.space + other.space * factor)

    def times(self, factor):
        return Event(self.time * factor, self.space * factor)

    def inner(self, other):
        return self.space.dot(other.space) - self.time * other.time


# --------------------------------------------------------------------------------------------------
# Lorentz. Points and tangent vectors are given by their space parts, as the package reads them.


def lift(x: Vector, c) -> Event:
    return Event(mpmath.sqrt(x.dot(x) + 1 / c), x)


def origin(like: Vector, c) -> Event:
    return Event(1 / mpmath.sqrt(c), like * mpf(0))


def tangent(x: Event, v: Vector) -> Event:
    return Event(x.space.dot(v) / x.time, v)


def _distance(x: Event, y: Event, c):
    return mpmath.acosh(max(-c * x.inner(y), mpf(1))) / mpmath.sqrt(c)


def _exp(x: Event, v: Event, c) -> Event:
    z = mpmath.sqrt(c * max(v.inner(v), mpf(0)))
    return x.times(mpmath.cosh(z)).plus(v, mpmath.sinh(z) / z if z else 1)


def _log(x: Event, y: Event, c) -> Event:
    z = mpmath.sqrt(c) * _distance(x, y, c)
    return y.plus(x, c * x.inner(y)).times(z / mpmath.sinh(z) if z else 1)


def _transport(x: Event, y: Event, v: Event, c) -> Event:
    """By the logarithms at both ends."""
    there, back = _log(x, y, c), _log(y, x, c)
    square = there.inner(there)
    return v.plus(there.plus(back), -there.inner(v) / square) if square else v


def lorentz_dist(c, x, y):
    return _distance(lift(x, c), lift(y, c), c)


def lorentz_sqdist(c, x, y):
    return -2 / c - 2 * lift(x, c).inner(lift(y, c))


def lorentz_dist0(c, x):
    return _distance(origin(x, c), lift(x, c), c)


def lorentz_expmap0(c, u):
    return _exp(origin(u, c), Event(mpf(0), u), c)


def lorentz_logmap0(c, x):
    return _log(origin(x, c), lift(x, c), c).space


def lorentz_expmap(c, x, v):
    x = lift(x, c)
    return _exp(x, tangent(x, v), c)


def lorentz_logmap(c, x, y):
    return _log(lift(x, c), lift(y, c), c)


def lorentz_transp(c, x, y, v):
    x, y = lift(x, c), lift(y, c)
    return _transport(x, y, tangent(x, v), c)


def lorentz_transp0(c, x, u):
    return _transport(origin(x, c), lift(x, c), Event(mpf(0), u), c)


def lorentz_transp0back(c, x, v):
    x = lift(x, c)
    return _transport(x, origin(v, c), tangent(x, v), c).space


def lorentz_norm(c, x, v):
    v = tangent(lift(x, c), v)
    return mpmath.sqrt(v.inner(v))


def lorentz_boost(c, x, y):
    x, start = lift(x, c), origin(x, c)
    return _exp(x, _transport(start, x, _log(start, lift(y, c), c), c), c)


def lorentz_unboost(c, x, y):
    x, start = lift(x, c), origin(x, c)
    return _exp(start, _transport(x, start, _log(x, lift(y, c), c), c), c)


def lorentz_scalar_mul(c, x, r):
    return lorentz_expmap0(c, lorentz_logmap0(c, x) * r)


def lorentz_centroid(c, *points):
    """With the weights 1, 2, 3, ..."""
    total = lift(points[0], c)
    for i, point in enumerate(points[1:]):
        total = total.plus(lift(point, c), i + 2)
    return total.times(1 / mpmath.sqrt(-c * total.inner(total)))


def lorentz_dist2plane(c, x, z, a):
    root, x = mpmath.sqrt(c), lift(x, c)
    return (
        mpmath.asinh(
            root
            * (mpmath.cosh(root * a) * x.space.dot(z) / z.norm() - mpmath.sinh(root * a) * x.time)
        )
        / root
    )


def lorentz_busemann(c, x, p):
    x, p = lift(x, c), p / p.norm()  # a rounded direction stands for the exact one
    return mpmath.log(mpmath.sqrt(c) * (x.time - x.space.dot(p))) / mpmath.sqrt(c)


def lorentz_half_aperture(c, x, k=0.1):
    return mpmath.asin(min(mpf(1), 2 * mpf(k) / (mpmath.sqrt(c) * x.norm())))


def lorentz_exterior_angle(c, x, y):
    """The rest to pi of the angle at ``x`` in the triangle of the origin, ``x`` and ``y``."""
    x, y = lift(x, c), lift(y, c)
    ahead, back = _log(x, y, c), _log(x, origin(x.space, c), c)
    cosine = ahead.inner(back) / mpmath.sqrt(ahead.inner(ahead) * back.inner(back))
    return mpmath.pi - mpmath.acos(max(min(cosine, mpf(1)), mpf(-1)))


def lorentz_to_poincare(c, x):
    return x / (1 + mpmath.sqrt(c) * lift(x, c).time)


def lorentz_to_klein(c, x):
    return x / (mpmath.sqrt(c) * lift(x, c).time)


# --------------------------------------------------------------------------------------------------
# The ball


def _gap(c, x):
    return 1 - c * x.dot(x)


def poincare_mobius_add(c, x, y):
    xy, x2, y2 = c * x.dot(y), c * x.dot(x), c * y.dot(y)
    return (x * (1 + 2 * xy + y2) + y * (1 - x2)) / (1 + 2 * xy + x2 * y2)


def poincare_mobius_sub(c, x, y):
    return poincare_mobius_add(c, -x, y)


def poincare_dist(c, x, y):
    apart = x - y
    return mpmath.acosh(1 + 2 * c * apart.dot(apart) / (_gap(c, x) * _gap(c, y))) / mpmath.sqrt(c)


def poincare_dist0(c, x):
    return 2 * mpmath.atanh(mpmath.sqrt(c) * x.norm()) / mpmath.sqrt(c)


def poincare_expmap0(c, u):
    z = mpmath.sqrt(c) * u.norm()
    return u * (mpmath.tanh(z) / z if z else 1)


def poincare_logmap0(c, x):
    z = mpmath.sqrt(c) * x.norm()
    return x * (mpmath.atanh(z) / z if z else 1)


def poincare_expmap(c, x, v):
    return poincare_mobius_add(c, x, poincare_expmap0(c, v / _gap(c, x)))


def poincare_logmap(c, x, y):
    return poincare_logmap0(c, poincare_mobius_add(c, -x, y)) * _gap(c, x)


def poincare_gyration(c, u, v, w):
    small = w * (mpf(10) ** -3 / (mpmath.sqrt(c) * w.norm()))  # a point; the gyration is linear
    left, inside = (
        poincare_mobius_add(c, u, v),
        poincare_mobius_add(c, u, poincare_mobius_add(c, v, small)),
    )
    return poincare_mobius_add(c, -left, inside) * (mpmath.sqrt(c) * w.norm() * 1000)


def poincare_transp(c, x, y, v):
    return poincare_gyration(c, y, -x, v) * (_gap(c, y) / _gap(c, x))


def poincare_transp0(c, x, u):
    return u * _gap(c, x)


def poincare_transp0back(c, x, v):
    return v / _gap(c, x)


def poincare_scalar_mul(c, x, r):
    return poincare_expmap0(c, poincare_logmap0(c, x) * r)


def poincare_to_lorentz(c, x):
    gap = _gap(c, x)
    return Event((2 - gap) / (mpmath.sqrt(c) * gap), x * (2 / gap))


def poincare_to_klein(c, x):
    return x * (2 / (2 - _gap(c, x)))


def klein_to_poincare(c, x):
    return x / (1 + mpmath.sqrt(_gap(c, x)))


def klein_to_lorentz(c, x):
    return lift(x / mpmath.sqrt(_gap(c, x)), c)


def poincare_midpoint(c, *points):
    """The gyromidpoint with the weights 1, 2, 3, ..."""
    bottom, total = mpf(0), points[0] * mpf(0)
    for i, x in enumerate(points):
        factor = 2 / _gap(c, x)
        bottom += (i + 1) * (factor - 1)
        total = total + x * ((i + 1) * factor)
    return poincare_scalar_mul(c, total / bottom, mpf("0.5"))


def poincare_dist2plane(c, x, p, a):
    """Ganea et al., eq. 25."""
    root, w = mpmath.sqrt(c), poincare_mobius_add(c, -p, x)
    return mpmath.asinh(2 * root * w.dot(a) / (_gap(c, w) * a.norm())) / root


def poincare_ganea_logit(c, x, p, a):
    return poincare_dist2plane(c, x, p, a) * 2 * a.norm()


def poincare_hyperplane_logit(c, x, v, r):
    """Shimizu et al., eq. 6."""
    root, factor, length = mpmath.sqrt(c), 2 / _gap(c, x), v.norm()
    inside = factor * root * x.dot(v) / length * mpmath.cosh(2 * root * r) - (
        factor - 1
    ) * mpmath.sinh(2 * root * r)
    return 2 * length / root * mpmath.asinh(inside)


def poincare_busemann(c, x, p):
    apart = p / p.norm() - x * mpmath.sqrt(c)
    return mpmath.log(apart.dot(apart) / _gap(c, x)) / mpmath.sqrt(c)


def poincare_half_aperture(c, x, k=0.1):
    """Ganea et al., eq. 24."""
    return mpmath.asin(min(mpf(1), mpf(k) * _gap(c, x) / (mpmath.sqrt(c) * x.norm())))


def poincare_exterior_angle(c, x, y):
    """The direction of ``-x + y`` against that of ``x``: the ball's angles are Euclidean."""
    w = poincare_mobius_add(c, -x, y)
    return mpmath.acos(max(min(w.dot(x) / (w.norm() * x.norm()), mpf(1)), mpf(-1)))


# --------------------------------------------------------------------------------------------------
# Evaluation


def _integers(values: Sequence[float]) -> tuple[list[int], int]:
    """Integers and the power of 2 that they share: exactly the given numbers."""
    fractions, exponents = np.frexp(np.asarray(values, dtype=np.float64))
    whole = (fractions * 2.0**53).astype(np.int64)
    present = exponents[whole != 0]
    lowest = int(present.min()) if present.size else 0
    shifts = np.where(whole != 0, exponents - lowest, 0)
    return [int(a) << int(s) for a, s in zip(whole, shifts)], lowest - 53


def _product(a: tuple[list[int], int], b: tuple[list[int], int]) -> mpf:
    """The exact inner product of two such vectors."""
    return mpmath.ldexp(mpf(sum(map(operator.mul, a[0], b[0]))), a[1] + b[1])


def _double(number: int, exponent: int) -> float:
    """``number * 2^exponent``, rounded once."""
    return float(number << exponent) if exponent >= 0 else number / (1 << -exponent)


def _combine(coefficients, rows) -> np.ndarray:
    """The combination of exact rows, every entry rounded once."""
    top = max((mpmath.frexp(a)[1] for a in coefficients if a), default=0)
    shift = 500 - top
    whole = [int(mpmath.nint(mpmath.ldexp(a, shift))) for a in coefficients]
    lowest = min(exponent for _, exponent in rows)
    columns = zip(
        *([a * (v << (e - lowest)) for v in row] for a, (row, e) in zip(whole, rows) if a)
    )
    out = np.array([_double(sum(column), lowest - shift) for column in columns])
    return out if out.size else np.zeros(len(rows[0][0]))


class Result(NamedTuple):
    """What an operation gives, rounded to doubles: a float or an array, and the gradient for every
    vector."""

    value: float | np.ndarray
    gradients: list[np.ndarray]


def evaluate(
    operation: Callable,
    c: float,
    vectors: Sequence[Sequence[float]],
    numbers: Sequence[float] = (),
    cotangent: tuple[float, Sequence[float]] | None = None,
    gradient: bool = True,
) -> Result:
    """Value and gradient of one of the operations of this module.

    Args:
        operation: called with ``c``, the vectors, the numbers.
        c: curvature.
        vectors: floats, taken as exact.
        numbers: further arguments, without gradient.
        cotangent: for operations that give a vector, what the time (if any) and the space of the
            result are multiplied with before their sum is differentiated.
        gradient: whether to compute it.
    """
    with mpmath.workdps(DIGITS):
        numbers, c = [mpf(a) for a in numbers], mpf(c)
        rows = [_integers(v) for v in vectors]
        count = len(rows)
        gram = [[_product(p, q) for q in rows] for p in rows]
        basis = [Vector(gram, [mpf(i == j) for j in range(count)]) for i in range(count)]
        out = operation(c, *basis, *numbers)
        if isinstance(out, Event):
            value = np.concatenate([[float(out.time)], _combine(out.space.coefficients, rows)])
        else:
            value = _combine(out.coefficients, rows) if isinstance(out, Vector) else float(out)
        if not gradient:
            return Result(value, [])

        slopes = [[mpf(0)] * count for _ in rows]
        if isinstance(
            out, (Event, Vector)
        ):  # linear in the cotangent, and its coefficients are those of the result
            weight = _integers(cotangent[1])
            along = [_product(p, weight) for p in rows]
            shares = (out.space if isinstance(out, Event) else out).coefficients

        def scalar(out) -> mpf:
            if isinstance(out, Event):
                return out.time * mpf(cotangent[0]) + scalar(out.space)
            return (
                sum(map(operator.mul, out.coefficients, along)) if isinstance(out, Vector) else out
            )

        start = scalar(out)
        for i in range(count):
            for j in range(i + 1):
                kept, step = gram[i][j], mpmath.sqrt(gram[i][i] * gram[j][j]) * STEP
                gram[i][j] = gram[j][i] = kept + step
                slope = (scalar(operation(c, *basis, *numbers)) - start) / step
                gram[i][j] = gram[j][i] = kept
                slopes[i][j] = slopes[j][i] = slope * 2 if i == j else slope
        if isinstance(out, (Event, Vector)):
            rows.append(weight)
            slopes = [[*row, share] for row, share in zip(slopes, shares)]
        return Result(value, [_combine(row, rows) for row in slopes])
