#!/usr/bin/env python
"""The figures of "Superposition Yields Robust Neural Scaling" (arXiv 2505.10465), and what they say
of its claims.

    python studies/superposition_study.py quick --out quick
    python studies/superposition_study.py fig4 --tiny --out tiny
    python studies/superposition_study.py fig4 fig5 fig6 --jobs 16 --out full
    python studies/superposition_study.py fig8 --losses losses.csv --out lm
    python studies/superposition_study.py fig4 fig5 --rows full/fig4.csv --out drawn

Figures 3 to 7 of one folder share their points. A run that was cut goes on with the same command.
``fig8`` reads what ``hypvision scaling heads`` has written into the folder.
"""

from __future__ import annotations

import csv
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from superposition.claims import claims_of, claims_of_language_models, fitted
from superposition.experiments import Experiment, experiment, marked, narrowed
from superposition.figures import draw, draw_language_models
from superposition.published import HEAD_OVERLAPS

from hypvision.cli.arguments import Parser, number, whole
from hypvision.cli.scaling import (
    add_training_arguments,
    file_names,
    read_heads,
    sweep_device,
    train_points,
    write_fit,
    write_results,
)
from hypvision.io.errors import HypvisionError, guard, require
from hypvision.io.files import write_table
from hypvision.scaling.fits import JointFit
from hypvision.scaling.language_models import loss_fit, read_losses
from hypvision.scaling.sweep import Point, open_results, weights_of


def parser_of_study() -> Parser:
    """The parser of the command."""
    parser = Parser(prog="python studies/superposition_study.py", description="The paper's figures")
    parser.add("figures FIGURE...", "quick, fig1, fig3 to fig8")
    text = "folder of results, which a second run takes up"
    parser.add("--out DIR", text, default="scaling", output="folder")
    for name, text in (
        ("alphas", "exponents alpha: feature i is active with a frequency like i^-alpha"),
        ("decays", "weight decays gamma; a negative one makes weights grow"),
        ("densities", "densities: mean numbers of active features in a sample, from 0 to 1"),
    ):
        parser.add(f"--{name} X...", f"only these {text}", number)
    text = "these widths m instead of the figure's; figures and tables note others than the paper's"
    parser.add("--widths M...", text, whole(1, 2**16))
    for name, least, text in (
        ("features", 2, "features n"),
        ("steps", 1, "steps of a training"),
        ("batch", 1, "samples of a step"),
    ):
        text = f"{text} instead of the figure's; figures and tables say so"
        parser.add(f"--{name} N", text, whole(least, 2**24))
    text = (
        "draw figures 3 to 7 from smaller models, those of `quick`: a fiftieth of the work; "
        "figures and tables say so"
    )
    parser.add("--tiny", text)
    text = "draw the rows of a table FIGURE.csv, without training and without panels of weights"
    parser.add("--rows CSV", text)
    text = "fig1, fig8: losses of language models, as for hypvision scaling fit"
    parser.add("--losses CSV", text)
    add_training_arguments(parser)
    return parser


def run(words: Sequence[str]) -> None:
    """Train, draw and judge the figures of a command line, after all of it has been checked."""
    parser = parser_of_study()
    args = parser.parse_args(words)
    parser.check_outputs(args)
    if args.rows:
        rows = [row for row in kept_rows(args.rows) if is_wanted(row["decay"], args.decays)]
        for name in args.figures:
            print(*draw(name, rows, args.out))
        return
    chosen = {name: choose(args, name) for name in args.figures if name != "fig8"}
    for name, other in chosen.items():
        first = next(iter(chosen))
        if replace(other.settings, shortened="") != replace(chosen[first].settings, shortened=""):
            raise HypvisionError(
                f"{first} and {name} are of different grids. Run each with its own --out."
            )
    for name in args.figures:
        if name == "fig8":
            language_models(args)
        else:
            figure(args, name, chosen[name])


def kept_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a table FIGURE.csv; empty cells are None."""

    def value(name: str, text: str) -> Any:
        if name in ("distribution", "shortened"):
            return text
        if text in ("", "True", "False"):
            return {"": None, "True": True, "False": False}[text]
        return int(text) if name in ("m", "n", "replicate") else float(text)

    with Path(path).open(newline="") as file:
        return [
            {name: value(name, text) for name, text in row.items()} for row in csv.DictReader(file)
        ]


def is_wanted(decay: float, decays: Sequence[float] | None) -> bool:
    """Whether a decay is one of those of ``--decays``, which may be rounded."""
    return not decays or any(abs(decay - wanted) < 5e-3 for wanted in decays)


def choose(args: Namespace, name: str) -> Experiment:
    """The trainings of a figure, checked before they start, because they take hours."""
    require("matplotlib", "viz")
    chosen = narrowed(
        experiment(name, sweep_device(args) != "cpu", args.tiny, args.widths),
        args.alphas,
        args.decays,
        args.densities,
        args.replicates,
        args.steps,
        args.batch,
        args.features,
        args.seed,
        args.independent,
    )
    if not chosen.points:
        raise HypvisionError(
            f"No point of {name} has all of these values. Leave out one of the options."
        )
    if name == "fig1":
        losses_of(args)
    # raises an error if the folder has results of another grid
    open_results(args.out, chosen.settings)
    return chosen


def figure(args: Namespace, name: str, chosen: Experiment) -> None:
    """Train the points of a figure, write and draw them, and print the claims."""
    losses, fit = losses_of(args) if name == "fig1" else ([], None)
    settings = chosen.settings
    rows, outcome = train_points(args, chosen.points, settings)
    # Another figure may have trained the point with other widths, so mark rows by the settings of
    # this figure.
    rows = [row | {"shortened": settings.shortened} for row in rows]
    if not rows:
        outcome.check()
        return
    write_results(args.out, name, rows, fitted(rows))

    def weights(row: dict[str, Any]):
        point = Point(**{field: row[field] for field in asdict(chosen.points[0])})
        try:
            return weights_of(args.out, point, settings)[0]
        except HypvisionError as error:  # a panel without data does not stop the other panels
            print(f"{name}: a panel is empty. {error}", file=sys.stderr)

    figures = draw(name, rows, args.out, weights, losses=losses, fit=fit, scan=chosen.scan)
    print(
        f"{name}: {chosen.shows}. {len(rows)} of {len(chosen.points)} points; "
        f"{file_names(args.out, name, figures)}"
    )
    if settings.shortened:
        print(marked(settings.shortened))
    claims = [*claims_of(name, rows, chosen.scan), *claims_of_language_models([], fit)]
    for claim in claims:
        print(claim)
    if not claims:
        print("open: these points tell nothing of the claims (an exponent takes three widths)")
    outcome.check()


def language_models(args: Namespace) -> None:
    """Figure 8, of the heads in the folder and the losses that are given."""
    path = Path(args.out, "heads.csv")
    heads = read_heads(path)
    losses, fit = losses_of(args)
    figures = draw_language_models(heads, losses, fit, args.out)
    names = ("model", "m", "overlap_mean", "norm_min")
    table: list[dict[str, Any]] = [
        {"source": "measured"} | {name: row[name] for name in names} for row in heads
    ]
    table += [
        {"source": "paper", "model": family, "m": m, "overlap_mean": overlap}
        for family, points in HEAD_OVERLAPS.items()
        for m, overlap in points
    ]
    write_table(Path(args.out, "fig8.csv"), table)
    print(
        f"fig8: {len(heads)} heads, {len(losses)} losses; {file_names(args.out, 'fig8', figures)}"
    )
    if not heads:
        print(f"The overlaps are the paper's: '{path}' is not there. See: hypvision scaling heads")
    for claim in claims_of_language_models(heads, fit):
        print(claim)
    if fit is not None:
        write_fit(args.losses, args.out)


def losses_of(args: Namespace) -> tuple[list[dict[str, Any]], JointFit | None]:
    """The losses of language models and their fit; without, an empty list and None."""
    losses = read_losses(args.losses) if args.losses else []
    return losses, loss_fit(losses) if losses else None


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return guard(run, sys.argv[1:] if words is None else words)


if __name__ == "__main__":
    sys.exit(main())
