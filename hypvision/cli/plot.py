"""``hypvision plot``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser
from hypvision.errors import HypvisionError


def add_plot_arguments(parser: Parser) -> None:
    text = "work dir of a training (work_dirs/CONFIG), one of the time-stamped folders in it, or a scalars.json"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=text)
    text = (
        "quantities of the logs to draw, e.g. 'loss*' lr top1 (default: loss, rate and the metrics of the validation)"
    )
    parser.add_argument("--keys", nargs="+", default=[], metavar="NAME", help=text)
    text = "the figure: .png, .svg or .pdf (default: curves.png); beside it a .csv with every value of the logs"
    parser.add_output("--save", default="curves.png", metavar="FILE", help=text)


def run_plot(args: Namespace) -> None:
    """``plot`` from parsed arguments; prints the names of the files written."""
    from hypvision.files import check_output
    from hypvision.viz.curves import choose, draw_curves, read_runs, write_curves

    figure, table = Path(args.save), Path(args.save).with_suffix(".csv")
    if figure.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise HypvisionError(f"--save takes a file that ends in .png, .svg or .pdf, got '{args.save}'.")
    check_output(table)
    curves = read_runs(args.runs)
    draw_curves(choose(curves, args.keys), figure)
    write_curves(curves, table)
    print(figure, table, sep="\n")
