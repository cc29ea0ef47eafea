"""Exponents: straight lines through logarithms, and one joint fit of the losses of language models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hypvision.errors import HypvisionError
from hypvision.scaling.estimates import Estimate


class PowerLaw(NamedTuple):
    """``y = factor x^-exponent``, with the standard error of the exponent and the squared correlation."""

    exponent: float
    error: float
    r2: float
    factor: float
    points: int

    @property
    def estimate(self) -> Estimate:
        """The exponent with its error, which two points do not have."""
        return Estimate(self.exponent, self.error, self.points - 2)


def slope(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Slope of the least-squares line through two points or more with different ``x``; two have no error."""
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (x, y))
    da, db = a - a.mean(), b - b.mean()
    found = (da @ db / (da @ da)).item()
    rest = ((db - found * da) ** 2).sum().item()
    error = math.sqrt(rest / (len(x) - 2) / (da @ da).item()) if len(x) > 2 else math.nan
    return Estimate(found, error, len(x) - 2)


def power_law(x: Sequence[float], y: Sequence[float]) -> PowerLaw:
    """Ordinary least squares of ``ln y`` on ``ln x``."""
    if len(x) != len(y) or len(set(x)) < 2:
        raise HypvisionError(
            f"A power law needs a y for each x, and at least two different x; got {len(x)} x and {len(y)} y."
        )
    if not all(math.isfinite(value) and value > 0 for value in (*x, *y)):
        raise HypvisionError("A power law needs positive, finite numbers; there are others, or NaN, among the points.")
    a, b = ([math.log(value) for value in values] for values in (x, y))
    line = slope(a, b)
    r2 = statistics.correlation(a, b) ** 2 if len(set(b)) > 1 else math.nan
    factor = math.exp(statistics.fmean(b) - line.value * statistics.fmean(a))
    return PowerLaw(-line.value, line.error, r2, factor, len(x))


class JointFit(NamedTuple):
    """``L = factor / m^exponent + offset`` with one offset a group; see :func:`joint_fit`.

    Attributes:
        error: of the exponent, by the paper's formula, which takes the offsets for known.
        free_error: of the exponent, from the covariance of all unknowns, as SciPy's ``curve_fit`` has it.
    """

    exponent: float
    error: float
    factor: float
    offsets: dict[str, float]
    mse: float
    points: int
    free_error: float = 0.0

    @property
    def estimate(self) -> Estimate:
        """The exponent with the larger of its errors."""
        return Estimate(self.exponent, max(self.error, self.free_error), self.points - len(self.offsets) - 2)


def joint_fit(
    widths: Sequence[float], losses: Sequence[float], groups: Sequence[str], iterations: int = 500
) -> JointFit:
    """The fit of the losses of language models: one power of the width, and an offset for each family and data set.

    Least squares of ``ln A``, ``alpha`` and the offsets by Levenberg and Marquardt's damped steps. There are two
    standard errors. The paper's is that of the slope of ``ln(L - B)`` on ``ln m`` with three degrees of freedom taken,
    where points below their offset count as ``L - B = 1``. The other is that of the least squares themselves, with all
    unknowns free, ``sqrt((J^T J)^-1)`` times the deviation of the residuals.

    Args:
        widths, losses, groups: one of each a point.
        iterations: at most so many steps.
    """
    if not len(widths) == len(losses) == len(groups):
        raise HypvisionError(
            f"widths, losses and groups must have equal lengths, got {len(widths)}, {len(losses)} and {len(groups)}."
        )
    names = list(dict.fromkeys(groups))
    if len(losses) <= len(names) + 2:
        raise HypvisionError(
            f"The fit has {len(names) + 2} unknowns (an offset for each group, a factor, an exponent), so "
            f"{len(losses)} losses are too few. Give more."
        )
    if len(set(widths)) < 2 or not all(math.isfinite(value) and value > 0 for value in (*widths, *losses)):
        raise HypvisionError("The fit needs positive, finite widths and losses, and more than one width.")
    x = torch.tensor(widths, dtype=torch.float64).log()
    y = torch.tensor(losses, dtype=torch.float64)
    member = torch.tensor([[group == name for name in names] for group in groups], dtype=torch.float64)
    sizes = torch.tensor([[width == size for size in sorted(set(widths))] for width in widths], dtype=torch.float64)
    # Two widths in one group give one difference of losses; groups that share widths can be chained to give more.
    if int(torch.linalg.matrix_rank(torch.cat([sizes, member], dim=1))) - len(names) < 2:
        raise HypvisionError(
            "The widths determine no exponent: groups have too few different ones. Give losses of one family and data "
            "set at three widths or more."
        )
    alone = y - member @ ((member.T @ y) / member.sum(0))
    if alone.abs().max() <= 1e-9 * y.abs().max():
        raise HypvisionError("The losses of a group are all the same, so they have no exponent. Check the column.")
    unknown, rest, slopes, step = _least_squares(x - x.mean(), y, member, iterations)
    share = (rest @ rest / (alone @ alone)).item()
    # tail probability of the F distribution with 2 numerator degrees of freedom
    chance = share ** ((len(losses) - len(names) - 2) / 2)
    if not chance <= 0.05:
        raise HypvisionError(
            f"The losses follow no power of the width: the fit explains {1 - share:.0%} of their differences within "
            f"groups, and chance would explain as much in {chance:.0%} of all cases. Check the columns, or give more "
            "losses."
        )
    if step > 1e-6:
        raise HypvisionError(
            f"The fit did not converge in {iterations} steps: the exponent is {unknown[1].item():.3g} and still moves, "
            "as it does for losses that are linear in the logarithm of the width. Give losses at more widths."
        )
    factor, exponent = (unknown[0] + unknown[1] * x.mean()).exp(), unknown[1]
    above = y - member @ unknown[2:]
    logs = torch.where(above > 0, above.clamp_min(torch.finfo(torch.float64).tiny).log(), 0)
    misses = logs - (factor.log() - exponent * x)
    error = ((misses @ misses) / (x - x.mean()).square().sum() / max(1, len(losses) - 3)).sqrt()
    offsets = dict(zip(names, unknown[2:].tolist()))
    variance = (rest @ rest) / (len(losses) - len(names) - 2)
    free = (variance * torch.linalg.inv(slopes.T @ slopes)[1, 1]).sqrt()
    mse = (rest @ rest / len(losses)).item()
    return JointFit(exponent.item(), error.item(), factor.item(), offsets, mse, len(losses), free.item())


def _least_squares(x: Tensor, y: Tensor, member: Tensor, iterations: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Levenberg and Marquardt's fit of ``y = exp(u_0 - u_1 x) + member u_2...``, with ``x`` around 0, or ``u_0`` and
    ``u_1`` would be all but one unknown: the unknowns, the residuals, their Jacobian, and the size of the last step."""

    def evaluated(unknown: Tensor) -> tuple[Tensor, Tensor]:
        power = torch.exp(unknown[0] - unknown[1] * x)
        slopes = torch.cat([power[:, None], -(power * x)[:, None], member], dim=1)
        return power + member @ unknown[2:] - y, slopes

    least = torch.stack([y[column > 0].min() for column in member.T])
    spread = (y - member @ least).mean().clamp_min(1e-3)
    unknown = torch.cat([torch.stack([spread.log(), torch.ones_like(spread)]), least - spread / 2])
    rest, slopes = evaluated(unknown)
    damping, size = 1e-3, math.inf
    for _ in range(iterations):
        normal, right = slopes.T @ slopes, -slopes.T @ rest
        step = torch.linalg.solve(normal + damping * torch.diag(normal.diagonal().clamp_min(1e-12)), right)
        size = step.abs().max().item()
        tried, tried_slopes = evaluated(unknown + step)
        if tried @ tried <= rest @ rest:
            unknown, rest, slopes, damping = unknown + step, tried, tried_slopes, max(damping / 10, 1e-12)
            if size < 1e-12:
                break
        elif damping > 1e12:
            break
        else:
            damping *= 10
    return unknown, rest, slopes, size
