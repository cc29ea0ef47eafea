"""Numbers with their errors, and the verdict on a statement at the confidence :data:`LEVEL`.

A statement says that a number lies within bounds. It is confirmed if the whole confidence interval
does, refuted if none of the interval does, and open otherwise. Data that would look the same if the
statement were false therefore never confirm it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from hypvision.io.errors import require

LEVEL = 0.95
"""Of the two-sided intervals; a statement that is false at its bound is confirmed in 2.5 % of all
cases."""


class Estimate(NamedTuple):
    """A number, its standard error and the degrees of freedom that this has; an infinite error
    gives no verdict."""

    value: float
    error: float
    freedom: float = math.inf

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"

    def margin(self, among: int = 1) -> float:
        """Half the width of the confidence interval; of so many together, all of which are to hold
        (Bonferroni)."""
        return (
            student(self.freedom, 1 - (1 - LEVEL) / among) * self.error
            if math.isfinite(self.error)
            else math.inf
        )

    def within(
        self, least: float = -math.inf, most: float = math.inf, among: int = 1
    ) -> bool | None:
        """Whether the number lies between the bounds, not at them: True, False, or None if the
        interval has both.
        ``among``: how many such statements are combined into one, which is refuted if any of them
        is."""
        margin = self.margin()
        wide = self.margin(among)
        if least < self.value - margin and self.value + margin < most:
            return True
        return False if self.value + wide <= least or self.value - wide >= most else None

    def off(self, target: float) -> Estimate:
        """The distance from a target, without what the error alone adds to it."""
        return self._replace(value=math.sqrt(max((self.value - target) ** 2 - self.error**2, 0.0)))


@cache
def student(freedom: float, level: float = LEVEL) -> float:
    """Half the width of the two-sided interval of Student's t, in standard errors; infinite below
    one degree."""
    if freedom < 1:
        return math.inf
    return float(require("scipy.stats", "viz").t.ppf((1 + level) / 2, freedom))


def difference(one: Estimate, other: Estimate) -> Estimate:
    """``one - other`` of independent estimates, with the degrees of freedom of Welch and
    Satterthwaite."""
    return Estimate(one.value - other.value, *_root_of_squares((one, other)))


def mean(values: Sequence[float | Estimate]) -> Estimate:
    """The mean, with the error of the scatter, or that which the errors of the values give,
    whichever has the wider confidence interval.

    A single number without an error gives no verdict.
    """
    numbers = [value.value if isinstance(value, Estimate) else value for value in values]
    count = len(numbers)
    center = statistics.fmean(numbers)
    errors = (
        [Estimate(center, statistics.stdev(numbers) / math.sqrt(count), count - 1)]
        if count > 1
        else []
    )
    estimates = [value for value in values if isinstance(value, Estimate)]
    if len(estimates) == count:
        error, freedom = _root_of_squares(estimates)
        errors.append(Estimate(center, error / count, freedom))
    return max(errors, key=Estimate.margin, default=Estimate(center, math.inf))


def _root_of_squares(values: Iterable[Estimate]) -> tuple[float, float]:
    squares = [(value.error**2, value.freedom) for value in values]
    total = sum(square for square, _ in squares)
    parts = (
        sum((square / total) ** 2 / max(freedom, 1e-9) for square, freedom in squares)
        if total > 0
        else 0.0
    )
    return math.sqrt(total), math.floor(1 / parts + 1e-9) if parts > 0 else math.inf


def every(verdicts: Iterable[bool | None]) -> bool | None:
    """The verdict on several statements together: refuted if one is, confirmed if all are."""
    found = list(verdicts)
    return False if False in found else None if None in found else True
