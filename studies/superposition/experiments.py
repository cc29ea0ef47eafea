"""The paper's experiments, by the figures of its repository, and a small one that shows both
regimes in a minute.

Figures 3 to 7 are read from one grid of small models (17 exponents of the frequencies, 10 decays, 6
widths, and a scan of the density of active features): run into one folder, they share their points.
Figure 1 has models of its own, figure 2 is a drawing, figure 8 is about language models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hypvision.io.checks import between
from hypvision.io.errors import HypvisionError, did_you_mean
from hypvision.scaling.sweep import Point, Settings, grid

# 10 ... 100
WIDTHS = tuple(math.floor(math.exp(math.log(10) + k / 5 * math.log(10)) + 1e-9) for k in range(6))
DECAYS = tuple(round(-1 + 2 * k / 9, 4) for k in range(10))
ALPHAS = tuple(k / 8 for k in range(17))
DENSITIES = tuple(k / 8 for k in range(9))
LARGE_FEATURES = 10240
_LARGE_WIDTHS = tuple(2**k for k in range(3, 11))
_LARGE_DECAYS = (-1.0, 0.1)

_SMALL = Settings()
_LARGE = Settings(n=LARGE_FEATURES, warmup=1000, rates="large", loss_scale=100.0)
_LARGE_ON_CPU = replace(_LARGE, n=2048)
# samples per feature and step are the paper's
_TINY = Settings(n=200, batch=512, steps=4000, warmup=400)
_MORE = "different: "  # prefix of settings that exceed the paper's
_TINY_WIDTHS = (5, 8, 12, 18, 27, 40)


class Experiment(NamedTuple):
    """A figure: what its points share, which they are, what it shows, and the widths it has if no
    others are chosen.

    ``scan`` is the one width that a map or a scan of it is made at.
    """

    settings: Settings
    points: list[Point]
    shows: str
    widths: tuple[int, ...]
    scan: int = 0


def _large(widths: Sequence[int]) -> list[Point]:
    kinds = (("exponential1", 0.0), ("power", 1.2), ("linear", 0.0))
    return [
        Point(name, alpha, 0.0, g, m)
        for name, alpha in kinds
        for g in _LARGE_DECAYS
        for m in widths
    ]


EXPERIMENTS = {
    "quick": "both regimes, in small: loss against width with growth and with decay",
    "fig1": "loss against width for three kinds of frequencies, in both regimes",
    "fig3": "the share of represented features by decay, width and exponent of the frequencies",
    "fig4": "how well the loss is a power of the width, and its exponent, by decay and exponent of "
    "the frequencies",
    "fig5": "weak superposition: the loss is that of the features that are not represented",
    "fig6": "strong superposition: norms, overlaps and exponents",
    "fig7": "the density of active features",
    "fig8": "language models: overlaps of their heads, and the fit of their losses",
}


def experiment(
    name: str, gpu: bool = False, tiny: bool = False, widths: Sequence[int] = ()
) -> Experiment:
    """A figure by its name.

    Args:
        name: one of :data:`EXPERIMENTS` but ``fig8``, which trains nothing.
        gpu: whether there is one; without, ``fig1`` has smaller models.
        tiny: figures 3 to 7 with the models of ``quick``, a fiftieth of the work; marked as
            shortened.
        widths: instead of the figure's. A map or a scan at one width takes the nearest to its own.
    """
    if name in ("fig2", "fig8"):
        models = "about language models; see: hypvision scaling heads and hypvision scaling fit"
        raise HypvisionError(
            f"'{name}' trains no models: it is {'a drawing' if name == 'fig2' else models}."
        )
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS, 1)
        raise HypvisionError(
            f"There is no figure '{name}'.{hint} There are: {', '.join(EXPERIMENTS)}."
        )
    if name == "fig1":
        if tiny:
            raise HypvisionError(
                "fig1 has no --tiny version. Choose some of its points with --widths and --decays."
            )
        own = tuple(m for m in _LARGE_WIDTHS if gpu or m <= 128)
        points = _large(sorted(set(widths)) if widths else own)
        return Experiment(_LARGE if gpu else _LARGE_ON_CPU, points, EXPERIMENTS[name], own)
    tiny = tiny or name == "quick"
    settings, own, singles = (_TINY, _TINY_WIDTHS, (18, 27)) if tiny else (_SMALL, WIDTHS, (39, 63))
    if name == "quick":
        own = own[1:]
    taken = sorted(set(widths)) if widths else own
    middle, large = (min(taken, key=lambda m: abs(math.log(m / single))) for single in singles)
    points = grid(ALPHAS, DECAYS, taken)
    if name == "quick":
        points = grid([1.0], [DECAYS[0], DECAYS[6]], taken)
    elif name == "fig3":
        points = list(dict.fromkeys(grid([1.0], DECAYS, taken) + grid(ALPHAS, DECAYS, [middle])))
    elif name == "fig6":
        points = [point for point in points if point.decay < 0]
    elif name == "fig7":
        scan = grid([1.0], DECAYS, [large], DENSITIES)
        lines = grid([1.0], [DECAYS[2]], taken, DENSITIES)
        points = list(dict.fromkeys(scan + lines))
    return Experiment(settings, points, EXPERIMENTS[name], own, middle if name == "fig3" else large)


def narrowed(
    chosen: Experiment,
    alphas: Sequence[float] = (),
    decays: Sequence[float] = (),
    densities: Sequence[float] = (),
    replicates: int = 1,
    steps: int | None = None,
    batch: int | None = None,
    features: int | None = None,
    seed: int = 0,
    independent: bool = False,
) -> Experiment:
    """A part of a figure's points, several replicates of them, or with another training; marked if
    not the paper's.

    Args:
        chosen: the figure.
        alphas, decays, densities: only points with these values, if any are given; each may be off
            by 0.005.
        replicates: how many models a point.
        steps, batch: instead of the figure's; the warm-up shrinks with the steps, for large rates
            it is 5 % of them.
        features: ``n`` instead of the figure's.
        seed: of all first weights and batches.
        independent: batches of its own for every point.
    """
    points = chosen.points
    for name, wanted in (("alpha", alphas), ("decay", decays), ("density", densities)):
        if wanted:
            there = sorted({getattr(point, name) for point in points})
            for value in wanted:
                if not any(abs(value - known) <= 0.005 for known in there):
                    known = ", ".join(f"{known:g}" for known in there)
                    raise HypvisionError(
                        f"No point of this figure has {name} {value:g}. There are: {known}."
                    )
            points = [
                p for p in points if any(abs(getattr(p, name) - value) <= 0.005 for value in wanted)
            ]
    points = [replace(point, replicate=r) for r in range(replicates) for point in points]
    settings = chosen.settings
    given = dict(steps=steps, batch=batch, n=features)
    changed: dict[str, Any] = {
        k: v for k, v in given.items() if v not in (None, getattr(settings, k))
    }
    number = changed.get("steps")
    if number:
        small = round(settings.warmup * min(1.0, number / settings.steps))
        settings = replace(
            settings, warmup=small if settings.rates == "small" else int(0.05 * number)
        )
    settings = replace(settings, **changed, seed=seed, independent=independent)
    widths = sorted({point.m for point in points})
    between(1, settings.n, integer=True, **{f"the width {m}": m for m in widths})
    settings = replace(
        settings, shortened=_differences(settings, widths, cut=set(widths) == set(chosen.widths))
    )
    return chosen._replace(settings=settings, points=points)


def _differences(settings: Settings, widths: Sequence[int], cut: bool) -> str:
    """How a training differs from the paper's, in words. Some of the paper's widths are no
    difference, unless the wide ones have been ``cut``."""
    paper, its_widths = (_LARGE, _LARGE_WIDTHS) if settings.rates == "large" else (_SMALL, WIDTHS)
    less: list[str] = []
    more: list[str] = []
    for name in ("n", "batch", "steps"):
        value = getattr(settings, name)
        its = getattr(paper, name)
        if value != its:
            (less if value < its else more).append(f"{name} {value} (paper: {its})")
    ends = " to ".join(map(str, sorted({widths[0], widths[-1]}))) if widths else ""
    if not set(widths) <= set(its_widths):
        kind = less if widths[-1] < its_widths[-1] else more
        kind.append(f"m {ends} (paper: {its_widths[0]} to {its_widths[-1]})")
    elif widths and cut and widths[-1] < its_widths[-1]:
        less.append(f"m up to {widths[-1]} (paper: {its_widths[-1]})")
    return ", ".join([*less, *([f"{_MORE}{', '.join(more)}"] if more else [])])


def marked(shortened: str) -> str:
    """``Settings.shortened`` as text for tables; a training that is only longer than in the paper
    is not called shortened."""
    return shortened if not shortened or shortened.startswith(_MORE) else f"shortened: {shortened}"
