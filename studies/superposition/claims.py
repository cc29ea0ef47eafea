"""The paper's claims about each figure, compared with the results of a sweep."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from hypvision.scaling.fits import Exponent, JointFit, PowerLaw, exponents, power_law, slope
from hypvision.scaling.measures import random_overlaps
from superposition import published
from superposition.estimates import Estimate, difference, every, mean
from superposition.experiments import LARGE_FEATURES, WIDTHS

Row = dict[str, Any]
ABOUT_ONE = (0.75, 1.25)
"""The bounds of an exponent that is about 1."""


class Claim(NamedTuple):
    """A claim of the paper, its number, ours, and whether ours confirms it (True), refutes it
    (False) or leaves it open (None).

    Each claim says that numbers lie within bounds, and is judged by their confidence intervals, see
    :mod:`superposition.estimates`. ± is a standard error.
    """

    statement: str
    paper: str
    ours: str
    confirmed: bool | None

    def __str__(self) -> str:
        verdict = {True: "confirmed", False: "refuted", None: "open"}[self.confirmed]
        return f"{verdict}: {self.statement} (paper: {self.paper}; here: {self.ours})"


def estimate(fit: PowerLaw | Exponent | JointFit) -> Estimate:
    """An exponent with its error: of several, the one whose confidence interval is wider."""
    if isinstance(fit, PowerLaw):
        return Estimate(fit.exponent, fit.error, fit.points - 2)
    if isinstance(fit, JointFit):
        error = max(fit.error, fit.free_error)
        return Estimate(fit.exponent, error, fit.points - len(fit.offsets) - 2)
    errors = [Estimate(fit.mean, fit.error_fit, min(line.points for line in fit.fits) - 2)]
    if fit.error_seeds is not None:
        errors.append(Estimate(fit.mean, fit.error_seeds, len(fit.fits) - 1))
    return max(errors, key=Estimate.margin)


def fitted(rows: Sequence[Row]) -> dict[tuple[str, float, float, float], Exponent]:
    """The exponents of :func:`hypvision.scaling.fits.exponents`, of large models (with all of the
    paper's features) without the small widths that the paper's fits leave out."""
    return exponents(
        [row for row in rows if row["n"] != LARGE_FEATURES or row["m"] >= _least_width(row)]
    )


def _least_width(row: Row) -> int:
    """Where the paper's fits of Figure 1 begin."""
    if row["distribution"] == "power":
        return 32 if row["decay"] < 0 else 64
    return 32 if row["distribution"] == "linear" and row["decay"] < 0 else 0


def claims_of(figure: str, rows: Sequence[Row], scan: int = 63) -> list[Claim]:
    """The claims of a figure that the points can judge; ``scan`` is the width of the densities of
    fig7."""
    claims = _fig7(rows, scan) if figure == "fig7" else CLAIMS[figure](rows)
    return [claim for claim in claims if claim is not None]


def _show(value: Exponent) -> str:
    return f"{value.mean:.2f} ± {value.error:.2f}"


def _steeper(one: Exponent, other: Exponent, among: int = 1) -> bool | None:
    return difference(estimate(one), estimate(other)).within(least=0, among=among)


def _more(one: float, other: float) -> float:
    """The share of the first in the sum of two: above 1/2 if it is the larger, in any units."""
    return one / (one + other)


def _near(
    statement: str, values: str, pairs: Sequence[tuple[Estimate | float, float]], most: float
) -> Claim | None:
    """The claim that ours are the paper's: the mean absolute difference is below ``most``."""
    if not pairs:
        return None
    found = mean(
        [
            ours.off(paper) if isinstance(ours, Estimate) else abs(ours - paper)
            for ours, paper in pairs
        ]
    )
    apart = statistics.fmean(
        abs((ours.value if isinstance(ours, Estimate) else ours) - paper) for ours, paper in pairs
    )
    shown = f"mean absolute difference {apart:.3f} ± {found.error:.3f}"
    return Claim(statement, f"{len(pairs)} {values}", shown, found.within(most=most))


def _quick(rows: Sequence[Row]) -> list[Claim | None]:
    found = {key[3]: value for key, value in fitted(rows).items()}
    strong, weak = (next((found[d] for d in found if sign * d > 0), None) for sign in (-1, 1))
    half = {sign: [row["phi_half"] for row in rows if sign * row["decay"] > 0] for sign in (-1, 1)}
    if not half[-1] or not half[1]:
        return []
    widths = [row["m"] for row in rows if row["decay"] > 0]
    grown = mean(half[-1])
    cut = mean(half[1])
    growing = Estimate(*slope(widths, half[1])).within(least=0) if len(set(widths)) > 1 else None
    return [
        Claim(
            "growth represents all features, decay a share that grows with the width",
            "phi_1/2 = 1, and about m/n or somewhat more",
            f"phi_1/2 = {min(half[-1]):.2f} or more, and {min(half[1]):.2f} to {max(half[1]):.2f}",
            every((grown.within(least=0.95), cut.within(most=0.6), growing)),
        ),
        Claim(
            "the loss falls faster with the width in strong superposition",
            "about 1 and more, against less",
            f"{_show(strong)} against {_show(weak)}"
            if strong and weak
            else "fewer than three widths",
            _steeper(strong, weak) if strong and weak else None,
        ),
    ]


def _fig1(rows: Sequence[Row]) -> list[Claim | None]:
    found = fitted(rows)
    claims: list[Claim | None] = []
    for (name, alpha, density, decay), value in found.items():
        paper = published.LARGE_EXPONENTS.get((name, decay))
        if decay < 0:
            statement = f"strong superposition, {name} frequencies: the exponent is about 1"
            confirmed = estimate(value).within(*ABOUT_ONE)
            claims.append(Claim(statement, f"{paper:.2f}", _show(value), confirmed))
        else:
            strong = found.get((name, alpha, density, -1.0))
            steeper = None if strong is None else _steeper(strong, value)
            of = "no power law" if paper is None else f"{paper:.2f}"
            claims.append(
                Claim(
                    f"weak superposition, {name} frequencies: it falls slower",
                    of,
                    _show(value),
                    steeper,
                )
            )
    return claims


def _fig3(rows: Sequence[Row]) -> list[Claim | None]:
    rows = [row for row in rows if row["alpha"] == 1]
    grown = [row["phi_half"] for row in rows if row["decay"] < -0.5]
    cut = [row["phi_half"] / (row["m"] / row["n"]) for row in rows if row["decay"] > 0.5]
    its = [value * 1000 / m for (m, decay), value in published.REPRESENTED.items() if decay > 0.5]
    pairs = [
        (row["phi_half"], published.REPRESENTED[row["m"], row["decay"]])
        for row in rows
        if row["n"] == 1000 and (row["m"], row["decay"]) in published.REPRESENTED
    ]
    return [
        Claim("growth of 0.556 or more represents all features", "phi_1/2 >= 0.99",
        f">= {min(grown):.3f}",
              mean(grown).within(least=0.98)) if grown else None,
        Claim("decay of 0.556 or more leaves about m features",
        f"phi_1/2 = {min(its):.1f} to {max(its):.1f} m/n",
              f"{min(cut):.1f} to {max(cut):.1f} m/n", mean(cut).within(0.5, 3)) if cut else None,
        _near("phi_1/2 at alpha = 1 by decay and width", "values of Figure 3", pairs, most=0.1),
    ]  # fmt: skip


def _fig4(rows: Sequence[Row]) -> list[Claim | None]:
    found = {(key[1], key[3]): value for key, value in fitted(rows).items() if key[2] == 0}
    same = all(row["n"] == 1000 for row in rows)
    pairs = [
        (estimate(v), published.EXPONENTS[key])
        for key, v in found.items()
        if same and key in published.EXPONENTS
    ]
    flat = [value for (alpha, decay), value in found.items() if decay < -0.5 and alpha <= 1]
    r2 = [value.r2 for (_, decay), value in found.items() if decay < -0.5]
    both = [
        (found[alpha, -decay], v)
        for (alpha, decay), v in found.items()
        if decay > 0 and (alpha, -decay) in found
    ]
    steeper = [_steeper(growth, decay, len(both)) for growth, decay in both]
    return [
        Claim("strong superposition (decay < -0.5), alpha <= 1: the exponent is about 1",
        "0.83 to 1.24",
              f"{min(v.mean for v in flat):.2f} to {max(v.mean for v in flat):.2f}",
              mean([estimate(v).off(1) for v in flat]).within(most=0.35)) if flat else None,
        Claim("strong superposition: the loss is a power of the width",
        "R2 = 0.963 to 0.986 in Figure 1",
              f"R2 = {min(r2):.3f} to {max(r2):.3f}", mean(r2).within(least=0.9)) if r2 else None,
        Claim("growth gives a steeper law than as much decay", "at every alpha",
              f"at {steeper.count(True)} of {len(steeper)} settings",
              every(steeper)) if steeper else None,
        _near("exponents by alpha and decay", "values of Figure 4", pairs, most=0.2),
    ]  # fmt: skip


def clean_exponents(rows: Sequence[Row]) -> dict[tuple[float, float], Exponent]:
    """The exponents at the nine settings, as (alpha, decay), that are the paper's cleanest weak
    superposition.

    The paper picks the settings with the least ambiguity. That is 1 wherever one of the first ``m``
    features is missing, so it cannot choose here; its choice is taken.
    """
    found = {(key[1], key[3]): value for key, value in fitted(rows).items() if key[2] == 0}
    return {key: found[key] for key in published.WEAK_EXPONENTS if key in found}


def _fig5(rows: Sequence[Row]) -> list[Claim | None]:
    weak = [row for row in rows if row["decay"] > 0]
    lost, ranked = (
        [(row["loss"], row[name]) for row in weak if (row.get(name) or 0) > 0]
        for name in ("lost_loss", "unlearned_loss")
    )
    misses = [(estimate(value), alpha - 1) for (alpha, _), value in clean_exponents(rows).items()]
    ours = [value.value - theory for value, theory in misses]
    theirs = [value - (alpha - 1) for (alpha, _), value in published.WEAK_EXPONENTS.items()]
    return [
        Claim("weak superposition: the loss is that of the features whose norm is below 1/2",
        "ratio about 1",
              _median_ratio(lost), mean([abs(a / b - 1) for a,
              b in lost]).within(most=0.25)) if lost else None,
        Claim("it is more than that of the features beyond rank n phi_1/2: some frequent ones are "
              "lost",
              "ratio 1.7 and 1.9 by its numbers at alpha 1, m 63, decay 0.556 and 1",
              _median_ratio(ranked), mean([_more(a, b) for a,
              b in ranked]).within(least=0.5)) if ranked else None,
        Claim("weak superposition at the paper's cleanest settings: the exponent is alpha - 1",
              f"off by {min(theirs):+.2f} to {max(theirs):+.2f} in {len(theirs)}",
              f"off by {min(ours):+.2f} to {max(ours):+.2f} in {len(ours)}",
              mean([value.off(theory) for value, theory in misses]).within(most=max(map(abs,
              theirs))))
        if misses else None,
    ]  # fmt: skip


def _median_ratio(pairs: Sequence[tuple[float, float]]) -> str:
    return f"median ratio {statistics.median(a / b for a, b in pairs):.2f}"


def _fig6(rows: Sequence[Row]) -> list[Claim | None]:
    strong = [row for row in rows if row["decay"] < -0.3 and row["strong_rows"] > row["m"]]
    products = [row["overlap_mean"] * row["m"] for row in strong]
    # In one dimension all overlaps are 1.
    narrow = [
        (row["overlap_variance"], random_overlaps(row["m"])[1]) for row in strong if row["m"] > 1
    ]
    pairs = [
        (row["phi_one"], published.NORM_ABOVE_ONE[row["alpha"], row["m"]])
        for row in rows
        if row["n"] == 1000
        and row["decay"] == -1
        and (row["alpha"], row["m"]) in published.NORM_ABOVE_ONE
    ]
    most = [row["phi_one"] * row["n"] / row["m"] for row in rows if row["decay"] == -1]
    its = [value * 1000 / m for (_, m), value in published.NORM_ABOVE_ONE.items()]
    # Figure 6 shows these three decays.
    steep = [
        (estimate(value), 2 * (alpha - 1))
        for (_, alpha, density, decay), value in fitted(rows).items()
        if alpha >= 1.75 and density == 0 and -0.8 < decay < -0.3
    ]
    ours = [value.value - theory for value, theory in steep]
    theirs = [
        value - 2 * (alpha - 1)
        for (alpha, decay), value in published.EXPONENTS.items()
        if alpha >= 1.75 and -0.8 < decay < -0.3
    ]
    return [
        Claim("mean squared overlaps of strongly represented rows are about 1/m", "1/m",
              f"{min(products):.2f} to {max(products):.2f} times 1/m, median "
              f"{statistics.median(products):.2f}",
              mean([abs(value - 1) for value in products]).within(most=0.2)) if products else None,
        Claim("they vary less than those of random vectors: the rows are spread out",
        "ratio below 1",
              _median_ratio(narrow), mean([_more(a, b) for a,
              b in narrow]).within(most=0.5)) if narrow else None,
        _near("rows of norm above 1 at decay -1", "values of Figure 6", pairs, most=0.1),
        Claim("more rows than m are of norm above 1 at decay -1",
        f"phi_1 = {min(its):.0f} to {max(its):.0f} m/n",
              f"{min(most):.1f} to {max(most):.1f} m/n", mean([_more(x,
              1) for x in most]).within(least=0.5))
        if most else None,
        Claim("strong superposition, skewed frequencies (alpha >= 1.75): the exponent is about "
              "2(alpha - 1)",
              f"off by {min(theirs):+.2f} to {max(theirs):+.2f}",
              f"off by {min(ours):+.2f} to {max(ours):+.2f}",
              mean([value.off(theory) for value,
              theory in steep]).within(most=0.35)) if steep else None,
    ]  # fmt: skip


def _fig7(rows: Sequence[Row], width: int) -> list[Claim | None]:
    rows = [row for row in rows if row["alpha"] == 1]
    known = {
        (density, -0.5556, m): value
        for density, line in published.LINES.items()
        for m, value in zip(WIDTHS, line)
    } | {
        (density, decay, 63): value for (density, decay), value in published.DENSITY_LOSSES.items()
    }
    ratios = [
        (row["loss"] / known[row["density"], row["decay"], row["m"]], 1.0)
        for row in rows
        if row["n"] == 1000 and (row["density"], row["decay"], row["m"]) in known
    ]
    rows = [row for row in rows if row["decay"] == -0.5556]
    lines = {key[2]: value for key, value in fitted(rows).items()}
    ends = (
        [estimate(pick(lines.values(), key=lambda value: value.mean)) for pick in (max, min)]
        if lines
        else []
    )
    points = [(row["active"], row["loss"]) for row in rows if row["m"] == width]
    scan: dict[float, list[float]] = {}
    for active, loss in points:
        scan.setdefault(active, []).append(loss)
    losses = [statistics.mean(scan[active]) for active in sorted(scan)]
    paper = [published.DENSITY_LOSSES[k / 8, -0.5556] for k in (0, 8)]
    rising = sum(a < b for a, b in zip(losses, losses[1:]))
    return [
        Claim("the loss grows with the density of active features",
        f"m = 63: {paper[0]:.2f} to {paper[1]:.2f}",
              f"m = {width}: {losses[0]:.2f} to {losses[-1]:.2f}, {rising} of {len(losses) - 1} "
              "steps up",
              Estimate(*slope(*zip(*points))).within(least=0)) if len(losses) > 1 else None,
        Claim("the exponent does not depend on the density", "1.12, 1.12, 1.1",
              ", ".join(_show(value) for _, value in sorted(lines.items())),
              difference(*ends).within(most=0.3)) if len(lines) > 1 else None,
        _near("losses by density, decay and width, as ratios", "values of Figure 7", ratios,
        most=0.25),
    ]  # fmt: skip


CLAIMS: dict[str, Callable[[Sequence[Row]], list[Claim | None]]] = {
    "quick": _quick, "fig1": _fig1, "fig3": _fig3, "fig4": _fig4, "fig5": _fig5, "fig6": _fig6,
}  # fmt: skip


def claims_of_language_models(
    heads: Sequence[Mapping[str, str]], fit: JointFit | None
) -> list[Claim]:
    """The claims of figure 8, of measured heads (rows with ``m``, ``overlap_mean`` and
    ``norm_min``) and of the fit of losses, as far as there are any."""
    claims = []
    if heads:
        norms = [float(row["norm_min"]) for row in heads]
        least = math.nan if any(map(math.isnan, norms)) else min(norms)
        # the least norm of all rows, not of a sample, so without error
        counted = Estimate(least, 0.0)
        claims.append(
            Claim("no row of a head is zero: strong superposition", "least norm > 0",
            f"{least:.3g}",
                  counted.within(least=0))
        )  # fmt: skip
        paper = power_law(*zip(*itertools.chain(*published.HEAD_OVERLAPS.values())))
        overlaps = [(float(row["m"]), float(row["overlap_mean"])) for row in heads]
        # two widths determine no error
        ours = power_law(*zip(*overlaps)) if len({m for m, _ in overlaps}) > 2 else None
        claims.append(
            Claim(
                "mean squared overlaps of the rows of heads fall as 1/m, or faster",
                f"exponent {estimate(paper)} of the points read off the figure",
                "fewer than three widths" if ours is None else str(estimate(ours)),
                None if ours is None else estimate(ours).within(least=ABOUT_ONE[0]),
            )
        )
    if fit is not None:
        exponent, error, _ = published.LOSS_FIT
        claims.append(
            Claim(
                "the losses of language models fall as a power of the width of about 1",
                f"{exponent:.2f} ± {error:.2f}",
                str(estimate(fit)),
                estimate(fit).within(*ABOUT_ONE),
            )
        )
    return claims
