"""``hypvision export``: write a trained model for other runtimes."""

from __future__ import annotations

import re
from argparse import Namespace
from functools import partial
from pathlib import Path

from hypvision.io import HypvisionError, ensure, refuse_weights
from hypvision.io.files import check_output

from .arguments import Parser, add_clip_argument, add_model_args, clip_of, whole

# Copied from hypvision.zoo.export, because importing it imports PyTorch.
FORMATS = ("onnx", "torchexport")
PARTS = ("whole", "features")
TOWERS = ("image", "text", "both")


def add_export_arguments(parser: Parser) -> None:
    text = (
        "name that `hypvision zoo list` lists, or a release, ADDRESS#NAME; with --model the "
        "checkpoint of a training"
    )
    subject = parser.add_mutually_exclusive_group(required=True)
    parser.add("name NAME", text, nargs="?", group=subject)
    add_clip_argument(
        parser,
        "instead of NAME: a tower of this CLIP (--part), which computes embeddings",
        group=subject,
    )
    parser.add("--format", "format to write", choices=FORMATS, required=True)
    text = (
        "model of the checkpoint: a classifier's timm name, e.g. himapper_deit_tiny_patch16_224, "
        "or the config of the training of a classifier, segmenter, detector or metric learner"
    )
    not_clip = partial(parser.add, without=["--clip"])
    not_clip("--model MODEL|CONFIG", text)
    add_model_args(parser, without=["--clip"])
    not_clip(
        "--size N",
        "side of the images (default: that of the config's test data; img_size or the model's)",
        whole(1, 8192),
    )
    parser.add(
        "--save FILE",
        "file to write (default: NAME with the suffix of the format); for --part both a new folder",
        output="file",
    )
    parser.add(
        "--part",
        "features: what comes before the head (a classifier's pooled features, the maps of a "
        "segmenter's or detector's backbone and neck, a CLIP's image embeddings); image or text: "
        "the tower of --clip; both: a folder with the two and rank.py, which ranks classes and "
        "walks from an image to the root without PyTorch; default: whole",
        choices=(*PARTS, *TOWERS),
    )
    parser.add("--half", "compute with 16 bits, which halves the file; images and outputs keep 32")
    not_clip("--fixed-size", "take only images of the training's size (the batch size stays free)")


def run_export(args: Namespace) -> None:
    """Run ``export``: write the model for other runtimes, and compare its outputs with
    PyTorch's."""
    from hypvision.checkpoints.sources import find
    from hypvision.inference.predictors import means_config
    from hypvision.inference.progress import stages
    from hypvision.io.records import parse_arguments
    from hypvision.zoo.export import export_model

    if args.clip is not None:
        return _export_tower(args)
    if args.part in TOWERS:
        raise HypvisionError(
            f"--part {args.part} is for a CLIP: name it with --clip NAME[:WEIGHTS]."
        )
    if args.model is None:
        refuse_weights(
            args.name,
            "Give timm's name of the network, or the config of the training, as --model, too.",
        )
    name = find(args.name)[1].name if args.model is None else Path(args.name).stem
    part = args.part or "whole"
    out = _output(args, name, part)
    kind = {"onnx": "ONNX", "torchexport": "torch.export"}[args.format]
    print(f"Exporting {name} to {kind} ...", flush=True)
    config = args.model is not None and means_config(args.model)
    arguments = parse_arguments(args.model_args)
    if config and arguments:
        raise HypvisionError(
            "A config contains the arguments of its model: leave out --model-args."
        )
    with stages() as tell:
        tell(f"Loading {name}")
        options = dict(
            dynamic_size=not args.fixed_size, part=part, size=args.size, tell=tell, half=args.half
        )
        if config:
            from hypvision.tasks.exporting import export_trained

            report = export_trained(args.model, args.name, args.format, out, **options)
        else:
            report = export_model(
                args.name, args.format, out, model=args.model, arguments=arguments, **options
            )
    _tell(out, report)


def _export_tower(args: Namespace) -> None:
    """Export one tower of ``--clip``, or both."""
    from hypvision.inference.progress import stages
    from hypvision.zoo.export import export_network
    from hypvision.zoo.export_clip import clip_tower

    ensure(
        args.part in TOWERS,
        "A CLIP is two networks whose outputs are compared: choose --part image, text or both.",
    )
    name = re.sub(r"[^\w.-]+", "_", args.clip)
    if args.part == "both":
        ensure(
            args.format == "onnx",
            "--part both is for runtimes without PyTorch: add --format onnx.",
        )
        return _export_both(args, Path(args.save or name))
    out = _output(args, name, args.part)
    with stages() as tell:
        tell(f"Loading {args.clip}")
        network, shape, about = clip_tower(clip_of(args.clip), args.part)
        report = export_network(
            network, shape, args.format, out, False, "points", tell, about, args.half
        )
    _tell(out, report)


def _export_both(args: Namespace, folder: Path) -> None:
    """Export both towers of ``--clip``, with the script that ranks their points."""
    from hypvision.inference.progress import stages
    from hypvision.zoo.export_ranking import export_ranking

    with stages() as tell:
        tell(f"Loading {args.clip}")
        reports = export_ranking(clip_of(args.clip), folder, tell, args.half)
    for part, report in reports.items():
        _tell(folder / f"{part}.onnx", report)
    print(f"{folder / 'rank.py'} ranks classes and walks without PyTorch: CLIP(FOLDER).")


def _output(args: Namespace, name: str, part: str) -> Path:
    """Return the path in ``--save``, or one made of the name, the part and the suffix of the
    format."""
    from hypvision.zoo.export import SUFFIXES

    middle = "" if part == "whole" else f".{part}"
    return check_output(args.save or f"{name}{middle}{SUFFIXES[args.format]}")


def _tell(out: Path, report: object) -> None:
    from hypvision.zoo.cards import size_text

    print(f"Wrote {out} ({size_text(out.stat().st_size)}).")
    print(report)
