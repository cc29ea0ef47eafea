"""``hypvision summary MODEL|CONFIG`` shows how large a model is, and how fast on this machine."""

from __future__ import annotations

from argparse import Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from hypvision.io import Plain, ensure, without_secrets
from hypvision.io.files import write_json, write_table

from .arguments import (
    Parser,
    add_clip_argument,
    add_device_argument,
    add_model_args,
    clip_of,
    device_of,
    whole,
)
from .export import TOWERS

if TYPE_CHECKING:
    from hypvision.inference.summary import Subject, Summary

COUNTED = (
    "Counted are convolutions, linear and recurrent layers, other products of matrices, and "
    "attention; a multiply-add\nis two floating-point operations. Activations are the numbers that "
    "convolutions and products of matrices give."
)

_EXAMPLES = """\
examples:
  hypvision summary resnet50 --depth 2 --save resnet50.csv
  hypvision summary baselines/faster-rcnn_tf-efficientnet-lite0-s16_2e_emoji --size 320"""


def add_summary_arguments(parser: Parser) -> None:
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    text = (
        "a model of timm or ours, trained weights of `hypvision zoo list`, a config, by its file "
        "or name, or a folder as for train, for which its recipe is measured"
    )
    subject = parser.add_mutually_exclusive_group(required=True)
    parser.add("model MODEL|CONFIG|FOLDER", text, nargs="?", group=subject)
    add_clip_argument(parser, "instead of MODEL: a tower of this CLIP", group=subject)
    parser.add("--part", "tower of the CLIP (default: image)", choices=TOWERS, needs=["--clip"])
    add_model_args(parser, without=["--clip"])
    parser.add(
        "--size N",
        "side of the images (default: that of the config's test data, or the model's own)",
        whole(1, 8192),
        without=["--clip"],
    )
    parser.add(
        "--depth N",
        "depth of the modules to show: 1, the parts of the model (default), 2, their parts, ...; "
        "0: only the whole model",
        whole(0, 100),
        1,
    )
    parser.add("--batch N", "number of images in each timed call", whole(1, 65536), 1)
    parser.add(
        "--repeats N",
        "number of timed calls, whose median is shown; 0: count only, without timing",
        whole(0, 10_000),
        5,
    )
    parser.add(
        "--save FILE",
        "file for the numbers in full: .csv, with a row for each module, or .json",
        output="file",
    )
    add_device_argument(parser)


def run_summary(args: Namespace) -> None:
    """Run ``summary``: print the size, the speed and a table of modules."""
    import torch

    from hypvision.inference.progress import stages
    from hypvision.inference.summary import subject_of_clip, summarise
    from hypvision.io.records import parse_arguments

    ensure(
        Path(args.save or "none.csv").suffix in (".csv", ".json"),
        f"--save takes a file that ends in .csv or .json, got '{args.save}'.",
    )
    device = device_of(args)
    arguments = parse_arguments(args.model_args)
    with stages() as tell:
        tell(f"Building {args.model or args.clip}")
        if args.clip is not None:
            subject = subject_of_clip(clip_of(args.clip), args.part or "image")
        else:
            subject = _subject(args, arguments)
        subject = subject._replace(
            network=subject.network.to(device), inputs=subject.inputs.to(device)
        )
        found = summarise(subject, args.depth, args.batch, args.repeats, tell)
    where = device if device != "cpu" else f"cpu, {torch.get_num_threads()} threads"
    shape = list(subject.inputs.shape[1:])
    name = (args.model or args.clip) + (f" ({subject.about})" if subject.about else "")
    print(_text(name, found, shape, subject.unit, where))
    if args.save:
        _save(args.save, found, dict(model=without_secrets(name), input=shape, device=where))


def _subject(args: Namespace, arguments: Plain) -> Subject:
    """Return the network of a model or config, or of the recipe of ``train`` for a folder."""
    import timm

    from hypvision.inference.summary import subject_of

    if not Path(args.model).is_dir() or timm.is_model(args.model):
        return subject_of(args.model, arguments, args.size)
    from hypvision.tasks.own_folder import config_of
    from hypvision.tasks.summary import subject_of_config

    ensure(not arguments, "The recipe of a folder has its arguments: leave out --model-args.")
    return subject_of_config(config_of(args.model), args.size)


def _save(path: str, found: Summary, about: Plain) -> None:
    """Write the rows of modules as .csv, or everything as .json."""
    rows = [row._asdict() for row in found.rows]
    if path.endswith(".csv"):
        return write_table(path, rows)
    speed = dict(batch=found.batch, seconds=found.seconds, per_second=found.rate)
    about |= dict(counted=COUNTED.replace("\n", " "), trained=found.trained)
    write_json(path, {**about, **speed, "modules": rows})


def _text(name: str, found: Summary, shape: list[int], unit: str, where: str) -> str:
    """Return a text of the whole model's size, its speed, and the table of its modules."""
    from hypvision.zoo.cards import table

    whole = found.rows[0]
    size = f"{shape[0]} tokens" if unit == "text" else " x ".join(map(str, shape))
    trained = f" ({_count(found.trained)} of them trained)"
    lines = [
        f"{name}: {_count(whole.parameters)} parameters"
        f"{trained if found.trained < whole.parameters else ''}; one {unit} of {size}: "
        f"{_count(whole.multiply_adds)} multiply-adds, {_count(whole.activations)} activations"
    ]
    if found.rate is not None:
        slow = found.batch / max(found.seconds)
        fast = found.batch / min(found.seconds)
        lines.append(
            f"speed: {found.rate:.4g} {unit}s a second (median of {len(found.seconds)} calls with "
            f"{found.batch} {unit}{'s' * (found.batch > 1)}, from {slow:.4g} to {fast:.4g}; "
            f"{where})"
        )
    rows = [
        {
            "module": row.module,
            "class": row.kind,
            "parameters": _count(row.parameters),
            "multiply-adds": _count(row.multiply_adds),
            "activations": _count(row.activations),
        }
        for row in found.rows[1:]
    ]
    lines += ["", table(rows)] if rows else []
    return "\n".join([*lines, "", COUNTED])


def _count(number: int) -> str:
    """Return a number with four digits for people to read: ``25.56 M``."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.4g} {letter}"
    return str(number)
