"""hypvision.checks: every check lets good values pass and names the bad one, what was expected, and its value."""

import doctest
import math

import pytest

from hypvision import checks
from hypvision.errors import ArgumentError, HypvisionError

GOOD = [
    (checks.one_of, (("a", "b"),), "a"),
    (checks.at_least, (1,), 1),
    (checks.above, (0,), 1e-9),
    (checks.between, (0, 1), 1),
]
BAD = [
    (checks.one_of, (("mean", "sum"),), "max", "x must be 'mean' or 'sum', got 'max'."),
    (checks.at_least, (1,), 0.5, "x must be a finite number >= 1, got 0.5."),
    (checks.at_least, (1, True), 1.5, "x must be a whole number >= 1, got 1.5."),
    (checks.above, (0,), 0, "x must be a finite number > 0, got 0."),
    (checks.between, (0, 1), 1.5, "x must be a finite number from 0 to 1, got 1.5."),
]


@pytest.mark.parametrize(("function", "bounds", "value"), GOOD)
def test_good_values_pass(function, bounds, value):
    function(*bounds, x=value)


@pytest.mark.parametrize(("function", "bounds", "value", "message"), BAD)
def test_bad_values_are_named(function, bounds, value, message):
    with pytest.raises(ArgumentError) as error:
        function(*bounds, x=value)
    assert str(error.value) == message
    assert isinstance(error.value, (HypvisionError, ValueError))


@pytest.mark.parametrize("function", [checks.at_least, checks.above])
@pytest.mark.parametrize("value", [math.nan, math.inf, "2", None, True])
def test_what_is_no_finite_number_is_refused(function, value):
    with pytest.raises(ArgumentError, match="must be a finite number"):
        function(0, x=value)


def test_a_similar_name_is_offered_among_many():
    with pytest.raises(ArgumentError, match="Did you mean 'poincare'|Did you mean poincare"):
        checks.one_of(("poincare", "lorentz", "klein", "sphere", "euclid"), model="poincaré")


def test_files_and_folders(tmp_path):
    (tmp_path / "a").write_text("")
    assert checks.file(tmp_path / "a", "labels", "Copy it.") == tmp_path / "a"
    assert checks.folder(tmp_path, "of images", "Make one.") == tmp_path
    with pytest.raises(ArgumentError, match=r"There is no file with labels at '.*b'\. Copy it\."):
        checks.file(tmp_path / "b", "labels", "Copy it.")
    with pytest.raises(ArgumentError, match=r"There is no folder of images at '.*a'\. Make one\."):
        checks.folder(tmp_path / "a", "of images", "Make one.")


def test_given_and_check():
    assert checks.given(0, "no") == 0
    checks.check(True, "no")
    for refuse in (lambda: checks.given(None, "no"), lambda: checks.check([], "no")):
        with pytest.raises(ArgumentError, match="^no$"):
            refuse()


def test_examples():
    assert doctest.testmod(checks).failed == 0
