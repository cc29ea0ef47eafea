"""``hypvision scaling``: the toy model of superposition, its figures, and the same measures on language models."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_device_argument, device_of, number, whole
from hypvision.cli.submit import Cell, add_submit_arguments, run_cells, submit_options
from hypvision.errors import HypvisionError

__all__ = ["ACTIONS", "add_scaling_arguments", "run_scaling"]

ACTIONS = ("run",)


def add_scaling_arguments(parser: Parser) -> None:
    """The arguments of ``scaling``."""
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help="run: train and draw a figure of the paper")
    text = "run: quick, fig1, or fig3 to fig7"
    parser.add_argument("subjects", nargs="+", metavar="WHAT", help=text)
    parser.add_output("--out", what="folder", default="scaling", metavar="DIR", help="folder of results, which a second "
                      "run takes up (default: scaling)")  # fmt: skip
    for name, kind, text in (
        ("alphas", number, "exponents of the frequencies"),
        ("decays", number, "decays gamma; below 0 they are growth"),
        ("densities", number, "densities of active features, from 0 to 1"),
        ("widths", whole(1), "widths m"),
    ):
        parser.add_argument(f"--{name}", nargs="+", type=kind, metavar="X", help=f"only these {text} of the figure")
    parser.add_argument("--replicates", type=whole(1, 1000), default=1, metavar="N", help="models a point (default: 1)")
    text = "instead of the figure's; the results are marked"
    parser.add_argument("--steps", type=whole(1), metavar="N", help=f"steps of a training {text}")
    parser.add_argument("--batch", type=whole(1, 2**20), metavar="N", help=f"samples of a step {text}")
    text = "figures 3 to 7 with the models of quick, a fiftieth of the work; the results are marked"
    parser.add_argument("--tiny", action="store_true", help=text)
    parser.add_argument("--independent", action="store_true", help="batches of its own for every point")
    add_device_argument(parser)
    add_submit_arguments(parser)


def run_scaling(args: Namespace) -> None:
    """``scaling`` from parsed arguments."""
    for name in args.subjects:
        _run_figure(args, name)


def _run_figure(args: Namespace, name: str) -> None:
    from hypvision.scaling.experiments import experiment, groups, narrowed
    from hypvision.scaling.sweep import finished, open_results, read_rows, train, write_table

    device = device_of(args)
    gpu = device != "cpu"
    chosen = narrowed(
        experiment(name, gpu, args.tiny), args.alphas, args.decays, args.densities, args.widths, args.replicates, args.steps,
        args.batch, args.independent,
    )  # fmt: skip
    if not chosen.points:
        raise HypvisionError(f"No point of {name} has all of these values. Leave out one of the options.")
    folder = open_results(args.out, chosen.settings)
    cells = groups(chosen.points, gpu)
    outcome = run_cells(
        [Cell(key, train, (str(folder), points, chosen.settings, device)) for key, points in cells.items()],
        finished=lambda key: finished(folder, cells[key]),
        folder=folder / "jobs",
        **submit_options(args),
    )
    outcome.check()
    rows = read_rows(folder, chosen.points)
    write_table(Path(folder, f"{name}.csv"), rows)
    print(f"{name}: {len(rows)} points in {folder / name}.csv")
