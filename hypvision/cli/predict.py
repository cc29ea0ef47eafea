"""``hypvision predict SOURCE... --model NAME``: any model of any task on images, folders, lists and
videos.

Writes ``predictions.json`` (in COCO's form), ``predictions.csv``, ``NAME_overlay.png`` (``.mp4``
for a video) and, for segmentations, ``NAME_labels.png``; see :mod:`hypvision.inference.results`.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypvision.io import HypvisionError, Plain, one_line, without_secrets
from hypvision.io.files import protecting
from hypvision.version import __version__

from .arguments import (
    Parser,
    add_cfg_options,
    add_clip_argument,
    add_device_argument,
    add_model_args,
    add_sources_arguments,
    device_of,
    number,
    whole,
)

if TYPE_CHECKING:
    from hypvision.inference.predictors import Request

# Copied from hypvision.inference.results, because importing it imports PyTorch.
WRITES = ("json", "csv", "overlay", "labels")


def add_predict_arguments(parser: Parser) -> None:
    add_sources_arguments(parser, more=", an address (https://...), or - (the standard input)")
    model = parser.add_mutually_exclusive_group(required=True)
    parser.add(
        "--model NAME|CONFIG",
        "a timm model, a name of `hypvision zoo list`, a release (hf-hub:USER/REPO), or the config "
        "of a training",
        group=model,
    )
    add_clip_argument(parser, "a CLIP instead, which compares images with --classes", group=model)
    of_model = ["--model"]
    parser.add(
        "--weights FILE",
        "checkpoint of the training; without it a timm model has its published weights",
        needs=of_model,
    )
    add_model_args(parser, needs=of_model)
    parser.add(
        "--classes LIST",
        'what an open-vocabulary model looks for: "cat, dog, grass", a .txt or .json file, or the '
        "name of a list",
    )
    parser.add(
        "--things LIST",
        "the classes that a panoptic model counts as objects (default: all)",
        needs=["--classes"],
        without=["--clip"],
    )
    parser.add(
        "--score X",
        "leave out boxes and labels with lower scores (default: 0.3 for boxes, 0.5 for labels)",
        number,
    )
    parser.add(
        "--max-boxes N",
        "largest number of boxes of an image; the best ones are kept (default: as many as the "
        "model gives)",
        whole(1),
    )
    parser.add(
        "--white N",
        "value of white in images of 16 bits: 4095 for 12 bits, or auto: by the largest value of "
        "all images (default: 65535, with a warning if that makes them black)",
        _white,
    )
    add_cfg_options(
        parser,
        "changes of the config of --model, e.g. model.test_cfg.nms.iou_threshold=0.6",
        needs=of_model,
    )
    parser.add(
        "--write KIND...",
        f"what to write: {', '.join(WRITES)} (default: all)",
        default=list(WRITES),
        choices=WRITES,
    )
    parser.add("--batch N", "number of images at a time, for classifiers", whole(1), 8)
    add_device_argument(parser)
    parser.add("--out DIR", "folder of the results", default="predicted", output="folder")


def _white(text: str) -> int | str:
    return text if text == "auto" else whole(1, 65535)(text)


def run_predict(args: Namespace) -> None:
    """Run ``predict``: print which files were written, and how fast."""
    from hypvision.inference.sources import fetched

    with fetched(args.images) as (files, called):
        _predict(args, files, called)


def _predict(args: Namespace, files: list[str], called: dict[Path, str]) -> None:
    from hypvision.inference.knowledge import doubts, warnings_of
    from hypvision.inference.predictors import load_predictor
    from hypvision.inference.progress import progress
    from hypvision.inference.results import Boxes, Classes, Writer
    from hypvision.inference.running import results
    from hypvision.inference.sources import check_every, find_sources
    from hypvision.io.images import leaving_out, require_all

    request = _request(args)
    sources = replace(find_sources(files, args.every, args.white), called=called)
    check_every(args.every, sources)
    with _blaming(args.cfg_options):
        predictor = load_predictor(request)
    known = predictor.known
    model = without_secrets(str(args.clip or args.model))
    print(f"{model} {known}")
    weights = args.weights and without_secrets(args.weights)
    info = dict(model=model, weights=weights, source=known.source, hypvision=__version__)
    begin = time.perf_counter()
    failed: list[str] = []
    doubted: list[tuple[str, tuple[str, ...]]] = []
    told: list[str] = []
    kinds = set()
    apart = len({file.name for file in sources.files}) == len(sources.files)
    with (
        _blaming(args.cfg_options),
        protecting(*sources.files),
        Writer(args.out, args.write, info, args.every) as writer,
    ):
        for frame, image, result in progress(
            results(predictor, sources, args.batch, failed), len(sources), "image"
        ):
            with leaving_out(frame.file, failed):
                writer.add(frame, image, result)
                name = _printed(frame.file, apart)
                if isinstance(result, Classes) and len(doubted) < _TOLD:
                    told.append(f"{name}: {result}")
                kinds.add(type(result))
                doubted.append((name, doubts(result, image.size, known)))
        if not doubted:
            require_all(failed, 0)
    print(*told, sep="\n", end="\n" * bool(told))
    count = len(doubted)
    seconds = time.perf_counter() - begin
    print(
        f"{count} image{'s' * (count != 1)} in {seconds:.1f} s ({count / seconds:.1f} a second): "
        f"{len(writer.written)} file{'s' * (len(writer.written) != 1)} in {args.out}"
    )
    sentences = warnings_of(doubted, known)
    if args.max_boxes is not None and Boxes not in kinds:
        sentences.insert(0, f"--max-boxes has no effect: {model} gives no boxes.")
    _warn(sentences)
    _note_no_limit(model, known.familiar, kinds)
    _say_written(list(writer.written), args.out)
    require_all(failed, count)


def _printed(file: str, apart: bool) -> str:
    """Return an image's name in the printed lines: without its folder where all names differ."""
    return Path(file).name if apart else file


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        print(f"warning: {sentence}", file=sys.stderr)


def _note_no_limit(model: str, limit: Any, kinds: set[type]) -> None:
    """Say that a classifier without a limit cannot tell pictures that are unlike its training's."""
    from hypvision.inference.results import Classes, PlacedClasses

    if kinds & {Classes, PlacedClasses} and limit is None:
        print(
            f"note: '{model}' has no limit for familiar pictures, so it names a class for every "
            "picture, also for one unlike its training's, without a warning.",
            file=sys.stderr,
        )


_TOLD = 10  # images whose classes are printed; those of all are in the files


def _say_written(written: list[Path], folder: str) -> None:
    for path in written[-6:]:
        print(f"  {path}")
    if len(written) > 6:
        print(f"  and {len(written) - 6} more in {folder}")


def _request(args: Namespace) -> Request:
    """Return the request for the model that the arguments name."""
    from hypvision.clip.names import clip_options
    from hypvision.clip.segmentation.segment import parse_classes
    from hypvision.inference.predictors import Request
    from hypvision.io.records import parse_arguments

    if args.score is not None and not 0 <= args.score <= 1:
        raise HypvisionError(f"--score must be a probability from 0 to 1, got {args.score:g}.")
    classes, things = (
        None if text is None else parse_classes(text) for text in (args.classes, args.things)
    )
    arguments = parse_arguments(args.model_args)
    options: Plain = {}
    if args.cfg_options:  # parse_options imports mmengine
        from hypvision.engine.config import parse_options

        options = parse_options(args.cfg_options)
    device = device_of(args)
    model = args.model if args.clip is None else clip_options(args.clip)
    return Request(
        model, args.weights, arguments, classes, things, args.score, device, args.max_boxes, options
    )


@contextmanager
def _blaming(options: list[str]) -> Iterator[None]:
    """Turn an error of a library about an unexpected value into an error about the options that
    changed its config."""
    try:
        yield
    except Exception as error:
        if not options or isinstance(error, HypvisionError | OSError):
            raise
        raise HypvisionError(
            f"The model does not work with --cfg-options {' '.join(options)}: "
            f"{type(error).__name__}, {one_line(error).rstrip('.')}. Correct the values, or leave "
            "them out."
        ) from error
