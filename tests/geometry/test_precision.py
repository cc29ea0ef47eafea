"""Round-off of the geometry against mpmath: values and gradients, from the origin to the radius 16,
both dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.cases import each
from references import geometry_cases as cases
from references.geometry_cases import CURVATURES, DIMENSIONS, OPERATIONS, grid, measure, noise

# Up to this radius float32 results are right to CLOSE; beyond, rounding the arguments moves results
# by more than that.
NEAR, CLOSE = 8.0, 1e-6
# how many times that movement an error may be
FACTOR = 3.0
# Relative error of float64 results, in units of 1e-16 cosh(radius)^2: of all operations, and of
# those with more; and values that lose the digits of cosh(radius) only, beside what rounding the
# arguments does to them.
SMALL, GROWTH = 1e-16, 50.0
LINEAR = {
    ("lorentz", name)
    for name in [
        "dist",
        "sqdist",
        "logmap",
        "expmap",
        "transp",
        "transp0back",
        "norm",
        "boost",
        "unboost",
        "centroid",
    ]
}
STEEPER = {
    ("lorentz", "transp"): 1e7,  # gradients of near points
    ("lorentz", "centroid"): 1e5,  # likewise
    ("poincare", "midpoint"): 1e5,  # likewise
}
# on one ray the angle has a kink
KINKS = ("ray", "antipodal", "axis")


def allowed(
    model: str, name: str, kind: str, radius: float, c: float, n: int, dtype: torch.dtype, rng
) -> float:
    """The largest error of a value."""
    if dtype == torch.float64:
        if (model, name) in LINEAR:
            rounding = noise(model, name, kind, radius, c, n, dtype, rng)
            return GROWTH * SMALL * math.cosh(radius) + FACTOR * rounding
        steep = STEEPER.get((model, name), GROWTH) * SMALL * math.cosh(radius) ** 2
        # a logarithm near 1 has the error of its argument
        return steep + (GROWTH * SMALL / min(radius, 1.0) if name == "busemann" else 0.0)
    return (
        CLOSE
        if radius <= NEAR
        else CLOSE + FACTOR * noise(model, name, kind, radius, c, n, dtype, rng)
    )


def allowed_gradient(model: str, name: str, radius: float, dtype: torch.dtype) -> float:
    growth = SMALL * STEEPER.get((model, name), GROWTH) * math.cosh(radius) ** 2
    return (1e-5 if dtype == torch.float32 else 0.0) + growth


def check(
    model: str,
    name: str,
    dtype: torch.dtype,
    places: list[tuple[float, int]],
    every: bool = False,
    seed: int = 0,
) -> None:
    """Measure an operation at every radius, for one curvature and dimension in turn, or for all of
    them.

    Among thousands of random vectors some are nearly perpendicular to what their product is taken
    with, and the derivative in that direction is ill-conditioned: where all are tried, the bounds
    are wider.
    """
    wrong = []
    for turn, (kind, radius) in enumerate(grid(model, name, dtype)):
        for c, n in places if every else [places[turn % len(places)]]:

            def draws(turn=turn, n=n, c=c):
                return np.random.default_rng([seed, turn, n, round(100 * c)])

            gradient = not (name == "exterior_angle" and kind in KINKS)
            found = measure(model, name, kind, radius, c, n, dtype, draws(), gradient)
            most = CLOSE
            if dtype == torch.float64 or not found.value <= CLOSE:
                most = allowed(model, name, kind, radius, c, n, dtype, draws()) * (
                    5 if every else 1
                )
            steepest = allowed_gradient(model, name, radius, dtype) * (50 if every else 1)
            # not "greater than": an error may be NaN
            if not (found.value <= most and found.gradient <= steepest):
                wrong.append(
                    f"{kind}, radius {radius}, c {c}, n {n}: {found} where {most, steepest} is "
                    "allowed"
                )
    assert not wrong, "\n".join(wrong)


EVERY = [(model, name) for model, names in OPERATIONS.items() for name in names]
DTYPES = [torch.float32, torch.float64]


@pytest.mark.quick("float32")
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@each("model, name", EVERY)
def test_values_and_gradients(model, name, dtype):
    # 7 has no factor in common with the number of radii or pairs: all of them meet all of these
    check(
        model,
        name,
        dtype,
        [(1.0, 3), (0.1, 16), (10.0, 2), (0.01, 64), (0.3, 5), (3.0, 32), (0.1, 128)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@pytest.mark.parametrize(("model", "name"), EVERY, ids=[f"{model}-{name}" for model, name in EVERY])
def test_values_and_gradients_everywhere(model, name, dtype, seed):
    check(model, name, dtype, [(c, n) for c in CURVATURES for n in DIMENSIONS], True, seed)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@each("model, name", EVERY)
def test_wrong_results_are_found(model, name, dtype, monkeypatch):
    """The bounds of every operation, the wider ones too, refuse a value that is off by 0.1 %, and
    such gradients."""
    operation = OPERATIONS[model][name]
    monkeypatch.setitem(cases.RADII, model, (1.0,))
    check(model, name, dtype, [(1.0, 3)], True)

    def off(*args):
        return operation.function(*args) * 1.001

    def steep(*args):
        out = operation.function(*args)
        return out + (out - out.detach()) * 0.05

    for wrong in (off, steep):
        monkeypatch.setitem(OPERATIONS[model], name, operation._replace(function=wrong))
        with pytest.raises(AssertionError, match="is allowed"):
            check(model, name, dtype, [(1.0, 3)], True)
