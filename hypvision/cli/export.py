"""``hypvision export``: a trained model for other runtimes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from hypvision.cli.arguments import Parser, add_model_args, whole
from hypvision.errors import HypvisionError

# Those of hypvision.zoo.export, whose import brings PyTorch.
FORMATS = ("onnx", "torchexport")
PARTS = ("whole", "features")


def add_export_arguments(parser: Parser) -> None:
    """The arguments of ``export``."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="as `hypvision zoo list` lists it, or a release, ADDRESS#NAME; or, with --model, the checkpoint file of "
        "a training",
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument(
        "--model",
        metavar="MODEL|CONFIG",
        help="of the checkpoint file: timm's name of a classifier, e.g. himapper_deit_tiny_patch16_224, or the config "
        "of the training of a classifier, segmenter, detector or metric learner",
    )
    add_model_args(parser)
    text = "side of its images (default: that of the config's test data; img_size or the model's)"
    parser.add_argument("--size", type=whole(1, 8192), metavar="N", help=text)
    parser.add_output("--save", metavar="FILE", help="default: NAME and the suffix of the format, here")
    parser.add_argument(
        "--part",
        choices=PARTS,
        default="whole",
        help="features: what comes before the head (a classifier's pooled features, the maps of a segmenter's or "
        "detector's backbone and neck, a CLIP's image embeddings); default: whole",
    )
    text = "compute with 16 bits, which halves the file; images and outputs keep 32"
    parser.add_argument("--half", action="store_true", help=text)
    parser.add_argument(
        "--fixed-size", action="store_true", help="take images of the training's size only (the batch stays free)"
    )


def run_export(args: Namespace) -> None:
    """``export``: writes the model for other runtimes, after comparing what it computes with PyTorch."""
    import timm

    from hypvision.checkpoints.sources import find
    from hypvision.files import check_output
    from hypvision.inference.progress import stages
    from hypvision.shipped import is_config
    from hypvision.zoo.cards import size_text
    from hypvision.zoo.export import SUFFIXES, export_model
    from hypvision.zoo.loading import parse_arguments

    name = find(args.name)[1].name if args.model is None else Path(args.name).stem
    middle = "" if args.part == "whole" else f".{args.part}"
    out = check_output(args.save or f"{name}{middle}{SUFFIXES[args.format]}")
    kind = {"onnx": "ONNX", "torchexport": "torch.export"}[args.format]
    print(f"Exporting {name} to {kind} ...", flush=True)
    config = args.model is not None and not timm.is_model(args.model) and is_config(args.model)
    arguments = parse_arguments(args.model_args)
    if config and arguments:
        raise HypvisionError("A config says what its model is given: leave out --model-args, or change the config.")
    with stages() as tell:
        tell(f"Loading {name}")
        options = dict(dynamic_size=not args.fixed_size, part=args.part, size=args.size, tell=tell, half=args.half)
        if config:
            from hypvision.tasks.exporting import export_trained

            report = export_trained(args.model, args.name, args.format, out, **options)
        else:
            report = export_model(args.name, args.format, out, model=args.model, arguments=arguments, **options)
    print(f"Wrote {out} ({size_text(out.stat().st_size)}).")
    print(report)
