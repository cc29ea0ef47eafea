"""Intervals against SciPy, and how often they are wrong."""

import math

import numpy as np
import pytest
from scipy import stats
from superposition.estimates import Estimate, difference, every, mean


def test_three_verdicts_by_hand():
    four = Estimate(1.0, 0.1, 4)  # 1 ± 0.278
    assert four.within(0.7, 1.3) is True
    assert four.within(least=0.7) is True
    assert four.within(most=1.3) is True
    assert four.within(0.75, 1.25) is None and four.within(least=0.99) is None
    assert four.within(least=1.3) is False and four.within(most=0.7) is False
    assert four.within(most=0.72) is False
    assert four.within(most=0.72, among=10) is None  # one of ten may be off
    for says_nothing in (
        Estimate(1.0, math.inf), Estimate(1.0, math.nan, 3), Estimate(math.nan, 0.1, 3),
        Estimate(1.0, 0.1, 0), mean([1.0]),
    ):  # fmt: skip
        assert says_nothing.within(-1e9, 1e9) is None
    assert Estimate(0.0, 0.0).within(least=0) is False  # at the bound is not beyond it
    assert every([True, True]) is True
    assert every([True, None]) is None
    assert every([None, False]) is False


def test_means_and_differences():
    values = [1.0, 2.0, 4.0]
    found = mean(values)
    assert found == pytest.approx((7 / 3, stats.sem(values), 2))
    assert found.margin() == pytest.approx(
        7 / 3 - stats.t.interval(0.95, 2, 7 / 3, stats.sem(values))[0], rel=1e-3
    )
    exact = mean(
        [Estimate(1.0, 0.3, 4), Estimate(1.0, 0.4, 4)]
    )  # no scatter: the values' own errors
    assert exact[:2] == pytest.approx((1.0, 0.25))
    assert exact.freedom == 7  # Welch: 0.25^2 / (0.09^2 + 0.16^2) * 4 = 7.4
    assert mean([Estimate(1.0, 1e-9, 4), Estimate(3.0, 1e-9, 4)]).error == pytest.approx(
        1.0
    )  # scatter says less
    assert difference(Estimate(2.0, 0.3, 4), Estimate(1.0, 0.4, 4)) == pytest.approx((1.0, 0.5, 7))
    assert Estimate(1.5, 0.3, 4).off(1.0) == pytest.approx((0.4, 0.3, 4))
    assert Estimate(1.1, 0.3, 4).off(1.0).value == 0


def test_a_statement_false_at_its_bound_is_confirmed_in_one_of_forty_cases():
    draws = np.random.default_rng(0).standard_normal((4000, 5))
    held = sum(mean(draw.tolist()).within(least=0) is True for draw in draws)
    assert 0.018 < held / 4000 < 0.032
