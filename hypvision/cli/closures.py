"""``hypvision metric closure``: a hierarchy of names as points of the hyperbolic plane, or of more dimensions."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, number, whole


def add_metric_closure_arguments(parser: Parser) -> None:
    text = "pairs of a name and one of its ancestors: csv with the header id1,id2[,weight], or two columns and a tab"
    parser.add_argument("closure", metavar="FILE", help=text)
    text = "the file has parents alone: take the ancestors of ancestors, too"
    parser.add_argument("--transitive", action="store_true", help=text)
    parser.add_argument("--dim", type=whole(1), default=2, metavar="N", help="dimensions (default: 2)")
    parser.add_argument("--steps", type=whole(1), default=1000, metavar="N", help="steps of training (default: 1000)")
    parser.add_argument("--rate", type=number, default=0.1, metavar="X", help="learning rate (default: 0.1)")
    text = "what distances are divided by in the loss (default: 1 in two dimensions, 1/3 in more; few names: 1/3)"
    parser.add_argument("--temperature", type=number, metavar="X", help=text)
    parser.add_argument("--batch", type=whole(1), default=2048, metavar="N", help="names in a step (default: 2048)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of the start (default: 0)")
    text = (
        "folder of disk.png (with the root in the centre), points.csv (in the Poincare ball, not centred) and "
        "closure.json (default: closure)"
    )
    parser.add_output("--out", what="folder", default="closure", metavar="DIR", help=text)


def run_metric_closure(args: Namespace) -> None:
    """``metric closure`` from parsed arguments; see :func:`hypvision.tasks.closures.draw_closure`."""
    from hypvision.data.closures import read_closure
    from hypvision.tasks.closures import draw_closure

    closure = read_closure(args.closure, args.transitive)
    names = ("dim", "steps", "rate", "temperature", "batch", "seed")
    options = {name: getattr(args, name) for name in names}
    print(json.dumps(draw_closure(closure, args.out, Path(args.closure).stem.replace("_", " "), **options)))
    print(f"Drawn in {args.out}")
