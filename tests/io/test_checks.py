"""hypvision.io.checks: good values pass; of bad ones the message names the argument, what was
expected, and the value."""

import doctest
import math

import pytest
from helpers.cases import each

from hypvision.io import checks
from hypvision.io.errors import ArgumentError, HypvisionError


@each(
    "function, bounds, good, bad, expected",
    [
        (checks.one_of, (("mean", "sum"),), ("mean", "sum"), "max", "one of 'mean', 'sum'"),
        (checks.one_of, ((None, "init"),), (None, "init"), False, "one of None, 'init'"),
        (checks.at_least, (1,), (1, 1.5), 0.5, "a finite number of at least 1"),
        (checks.at_least, (1, True), (1, 7), 1.0, "an integer of at least 1"),
        (checks.at_least, (0.5,), (0.5,), 0.4999, "a finite number of at least 0.5"),
        (checks.more_than, (0,), (1e-300, 2), 0, "a finite number above 0"),
        (checks.between, (0, 1), (0, 0.5, 1), 1.5, "a finite number from 0 to 1"),
        (checks.between, (0, 3, True), (0, 3), -1, "an integer from 0 to 3"),
    ],
)
def test_good_values_pass_and_bad_ones_are_named(function, bounds, good, bad, expected):
    for value in good:
        function(*bounds, x=value)
    with pytest.raises(ArgumentError) as error:
        function(*bounds, fine=good[0], x=bad)
    assert str(error.value) == f"x must be {expected}, got {bad!r}."


@each("value", [math.nan, math.inf, "2", None, True, [1]])
@each("integer", [False, True])
def test_what_is_no_finite_number_is_refused(integer, value):
    with pytest.raises(
        ArgumentError, match="must be an integer" if integer else "must be a finite number"
    ):
        checks.at_least(0, integer, x=value)


def test_the_error_is_one_of_users_and_of_python():
    assert issubclass(ArgumentError, HypvisionError) and issubclass(ArgumentError, ValueError)


def test_the_most_similar_name_is_offered():
    with pytest.raises(ArgumentError, match="got 'lorenz'. Did you mean lorentz\\?"):
        checks.one_of(("euclidean", "lorentz"), geometry="lorenz")


def test_examples():
    assert doctest.testmod(checks) == (0, 5)
