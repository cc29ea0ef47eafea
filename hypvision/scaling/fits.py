"""Fits of exponents: straight lines through logarithms, and a joint fit of language models'
losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hypvision.io import HypvisionError, require

Row = dict[str, Any]


class PowerLaw(NamedTuple):
    """The fit ``y = factor x^-exponent``, with the standard error of the exponent, the squared
    correlation of the logarithms and the number of points."""

    exponent: float
    error: float
    r2: float
    factor: float
    points: int


class Slope(NamedTuple):
    """The slope of a line, its standard error, and the degrees of freedom of this error."""

    value: float
    error: float
    freedom: int


def slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Return the slope of the least-squares line through at least two points with different ``x``;
    of two points the error is NaN."""
    a, b = (np.array(values, float) - statistics.fmean(values) for values in (x, y))
    found = float(a @ b / (a @ a))
    error = (
        math.sqrt(float(((b - found * a) ** 2).sum() / (a @ a)) / (len(x) - 2))
        if len(x) > 2
        else math.nan
    )
    return Slope(found, error, len(x) - 2)


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Fit a power law by ordinary least squares of ``ln y`` on ``ln x``."""
    if len(x) != len(y) or len(set(x)) < 2:
        raise HypvisionError(
            f"A power law needs a y for each of at least two different x; got {len(x)} and "
            f"{len(y)}."
        )
    if not all(math.isfinite(value) and value > 0 for value in (*x, *y)):
        raise HypvisionError(
            "A power law needs positive, finite numbers; some of the points have zero, a negative "
            "number, infinity or NaN."
        )
    a, b = ([math.log(value) for value in values] for values in (x, y))
    line = slope(a, b)
    r2 = statistics.correlation(a, b) ** 2 if len(set(b)) > 1 else math.nan
    factor = math.exp(statistics.fmean(b) - line.value * statistics.fmean(a))
    return PowerLaw(-line.value, line.error, r2, factor, len(x))


class Exponent(NamedTuple):
    """The exponent of the loss as a power of the width in one setting: the fit of each replicate,
    and the mean over the replicates.

    ``error_fit`` is the mean standard error of the slopes, which says how far the points are from a
    line. ``error_seeds`` is the standard error of the mean over replicates, None if there is only
    one.
    """

    fits: list[PowerLaw]
    mean: float
    error_fit: float
    error_seeds: float | None
    r2: float

    @property
    def error(self) -> float:
        """The larger of ``error_fit`` and ``error_seeds``."""
        return max(self.error_fit, self.error_seeds or 0.0)


Setting = tuple[str, float, float, float]


def exponents(rows: Sequence[Row]) -> dict[Setting, Exponent]:
    """Return fits of ``loss ~ m^-exponent`` to the rows of a sweep, by setting (distribution,
    alpha, density, decay); settings with fewer than three widths are left out."""
    found: dict[Setting, dict[int, list[tuple[int, float]]]] = {}
    for row in rows:
        key = (row["distribution"], row["alpha"], row["density"], row["decay"])
        found.setdefault(key, {}).setdefault(row["replicate"], []).append((row["m"], row["loss"]))
    result = {}
    for key, replicates in found.items():
        fits = [power_law(*zip(*points)) for points in replicates.values() if len(points) >= 3]
        if fits:
            result[key] = _over_replicates(fits)
    return result


def _over_replicates(fits: list[PowerLaw]) -> Exponent:
    values = [fit.exponent for fit in fits]
    seeds = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    error = statistics.mean(fit.error for fit in fits)
    r2 = statistics.mean(fit.r2 for fit in fits)
    return Exponent(fits, statistics.mean(values), error, seeds, r2)


class JointFit(NamedTuple):
    """The fit ``L = factor / m^exponent + offset`` with one offset for each group; see
    :func:`joint_fit`.

    Attributes:
        error: standard error of the exponent by the paper's formula, which takes the offsets as
            known.
        free_error: standard error of the exponent from the covariance of all unknowns, by SciPy's
            ``curve_fit``.
    """

    exponent: float
    error: float
    factor: float
    offsets: dict[str, float]
    mse: float
    points: int
    free_error: float = 0.0


def joint_fit(widths: Sequence[float], losses: Sequence[float], groups: Sequence[str]) -> JointFit:
    """Fit the losses of language models by one power of the width, with an offset for each group
    (family and data set).

    ``ln A``, ``alpha`` and the offsets ``B`` are found by least squares with SciPy's ``curve_fit``.
    There are two standard errors of the exponent. The paper's is that of the slope of ``ln(L - B)``
    on ``ln m``, with three degrees of freedom taken off, in which points below their offset count
    as ``L - B = 1``. The other is that of ``curve_fit``, with all unknowns free.
    """
    names = list(dict.fromkeys(groups))
    _check_losses(widths, losses, groups, len(names) + 2)
    x = np.log(np.array(widths, float))
    y = np.array(losses, float)
    middle = float(x.mean())
    x -= middle  # else factor and exponent would be strongly correlated
    member = np.array([[group == name for name in names] for group in groups], float)
    sizes = np.array([[width == size for size in sorted(set(widths))] for width in widths], float)
    # An exponent needs two differences of losses. Two widths in one group give one difference;
    # groups that share widths can be chained to give more.
    if np.linalg.matrix_rank(np.hstack([sizes, member])) - len(names) < 2:
        raise HypvisionError(
            "The widths determine no exponent: groups have too few different ones. Give losses of "
            "one family and data set at three widths or more."
        )
    alone = y - member @ (member.T @ y / member.sum(0))
    if abs(alone).max() <= 1e-9 * abs(y).max():
        raise HypvisionError(
            "The losses of a group are all the same, so they have no exponent. Check the column."
        )

    def model(_: Any, log_factor: float, exponent: float, *offsets: float) -> Any:
        return np.exp(log_factor - exponent * x) + member @ np.array(offsets)

    def slopes(_: Any, log_factor: float, exponent: float, *offsets: float) -> Any:
        power = np.exp(log_factor - exponent * x)
        return np.column_stack([power, -power * x, member])

    least = np.array([y[column > 0].min() for column in member.T])
    spread = max(float((y - member @ least).mean()), 1e-3)
    start = [math.log(spread), 1.0, *(least - spread / 2)]
    try:
        unknown, covariance = require("scipy.optimize", "viz").curve_fit(
            model, x, y, start, jac=slopes, maxfev=5000, xtol=1e-12, ftol=1e-12
        )
    except RuntimeError as error:
        raise HypvisionError(
            "The losses follow no power of the width: the fit did not converge, as of losses that "
            "rise, or are linear in the logarithm of the width. Check the columns, or give losses "
            "at more widths."
        ) from error
    rest = model(x, *unknown) - y
    share = float(rest @ rest / (alone @ alone))
    # the tail probability of the F distribution with 2 numerator degrees of freedom
    chance = share ** ((len(losses) - len(names) - 2) / 2)
    if not chance <= 0.05:
        raise HypvisionError(
            f"The losses follow no power of the width: the fit explains {1 - share:.0%} of their "
            f"differences within groups, and chance would explain as much in {chance:.0%} of all "
            "cases. Check the columns, or give more losses."
        )
    exponent = float(unknown[1])
    log_factor = float(unknown[0]) + exponent * middle
    above = y - member @ unknown[2:]
    logs = np.log(above, out=np.zeros_like(above), where=above > 0)
    by_paper = math.sqrt(
        ((logs - log_factor + exponent * (x + middle)) ** 2).sum()
        / (x @ x)
        / max(1, len(losses) - 3)
    )
    offsets = dict(zip(names, unknown[2:].tolist()))
    free = math.sqrt(covariance[1, 1])
    return JointFit(
        exponent, by_paper, math.exp(log_factor), offsets, float(rest @ rest) / len(y), len(y), free
    )


def _check_losses(
    widths: Sequence[float], losses: Sequence[float], groups: Sequence[str], unknowns: int
) -> None:
    """Raise an error for numbers to which ``unknowns`` unknowns cannot be fitted."""
    if not len(widths) == len(losses) == len(groups):
        raise HypvisionError("widths, losses and groups must have equal lengths.")
    if len(losses) <= unknowns:
        raise HypvisionError(
            f"{len(losses)} losses are too few for the fit's {unknowns} unknowns. Give more."
        )
    positive = all(math.isfinite(value) and value > 0 for value in (*widths, *losses))
    if len(set(widths)) < 2 or not positive:
        raise HypvisionError(
            "The fit needs positive, finite widths and losses, and more than one width."
        )
