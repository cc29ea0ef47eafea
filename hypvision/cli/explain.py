"""``hypvision explain IMAGE --model NAME``: what a model groups together in images.

For a clustering backbone writes ``NAME_clusters.png`` (cluster maps of each stage, level and head) and
``NAME_regions.png`` (fine to coarse clusters, merged into regions) for each image; see :mod:`hypvision.viz.clusters`.
For a Hi-Mapper ``NAME_tree.png``, ``NAME_levels.png`` and ``NAME_disk.png``; see :mod:`hypvision.viz.hierarchy_tree`.
"""

from __future__ import annotations

from argparse import Namespace

from hypvision.cli.arguments import Parser, add_model_args, number, whole
from hypvision.cli.predict import add_sources_arguments
from hypvision.errors import HypvisionError


def add_explain_arguments(parser: Parser) -> None:
    """The arguments of ``explain``."""
    add_sources_arguments(parser, "IMAGE")
    parser.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="e.g. hcformer_nano, himapper_resnet50, or a name of `hypvision zoo list`, which has its weights",
    )
    text = "checkpoint, or zoo:NAME; random weights without, unless --model has its own"
    parser.add_argument("--weights", metavar="FILE", help=text)
    add_model_args(parser)
    parser.add_argument(
        "--size",
        type=whole(32, 8192),
        metavar="N",
        help="short side, a multiple of 32 (default: that of zoo:NAME, or else 224)",
    )
    text = "normalisation; default: the model's own"
    parser.add_argument("--mean", nargs="+", type=number, metavar="X", help=text)
    parser.add_argument("--std", nargs="+", type=number, metavar="X", help=text)
    parser.add_argument("--stage", type=int, metavar="N", help="only this stage, counted from 0 (default: all)")
    parser.add_argument("--block", type=int, metavar="N", help="block of each stage (default: the last)")
    parser.add_argument("--head", type=int, metavar="N", help="only this head (default: all; regions follow head 0)")
    parser.add_argument(
        "--level",
        choices=["patch", "window", "both"],
        default="both",
        help="Euclidean clusters of pixels, hyperbolic clusters of windows, or both (default)",
    )
    parser.add_argument("--regions", type=whole(0), default=8, metavar="K", help="regions to merge into; 0 for none")
    text = "folder of the results (default: explain)"
    parser.add_output("--out", what="folder", default="explain", metavar="DIR", help=text)


def run_explain(args: Namespace) -> None:
    """``explain`` from parsed arguments; prints the names of the files written."""
    from hypvision.files import below, protecting
    from hypvision.inference.progress import progress
    from hypvision.inference.sources import find_sources
    from hypvision.viz import explain
    from hypvision.viz.sheet import save_image
    from hypvision.zoo.backbones import build_model, model_and_weights, side_seen
    from hypvision.zoo.loading import parse_arguments

    for name in ("mean", "std"):
        value = getattr(args, name)
        if value is not None and (len(value) not in (1, 3) or (name == "std" and min(value) <= 0)):
            raise HypvisionError(f"--{name} takes three values, one a channel{', all > 0' if name == 'std' else ''}.")
    sources = find_sources(args.images, args.every)
    name, weights = model_and_weights(args.model, args.weights)
    model = build_model(name, weights, parse_arguments(args.model_args))
    size = args.size or side_seen(model, weights)
    if weights is None:
        print("No --weights given: the weights are random, and so is what they cluster.")
    with protecting(*sources.files):
        for frame in progress(sources, len(sources), "image"):
            image, name = frame.open(), frame.name if frame.number is None else f"{frame.name}_{frame.number:06d}"
            drawings = explain(
                model, image, size, args.regions, args.mean, args.std, args.stage, args.block, args.head, args.level
            )
            for kind, drawing in drawings.items():
                print(save_image(drawing, below(args.out, f"{name}_{kind}.png")))
