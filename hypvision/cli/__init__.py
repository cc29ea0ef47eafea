"""The ``hypvision`` command: ``hypvision train CONFIG``, ``hypvision test CONFIG WEIGHTS``, ...

A command is a row of :data:`COMMANDS`. Its module has ``add_NAME_arguments(parser)`` and ``run_NAME(args)``, and is a
thin one: it reads arguments and calls the room where the work is done. At its top it imports nothing that needs
PyTorch, so that help costs nothing; :mod:`hypvision_cli`, the console script, sees to the package itself.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypvision.cli.arguments import Parser
from hypvision.errors import HypvisionError, guard, how_to_install
from hypvision.files import protecting
from hypvision.version import __version__

__all__ = ["COMMANDS", "Command", "main", "parser_of"]


class Command(NamedTuple):
    """A command: the module in this package, what it does in one line, and whether it can do so without PyTorch."""

    module: str
    help: str
    light: bool = False


COMMANDS = {
    "train": Command("train", "train a classifier, segmenter, detector or language model"),
    "test": Command("train", "measure a checkpoint on test data"),
    "configs": Command("configs", "list the configs that ship", light=True),
    "exec": Command("configs", "run another project's script with our models registered"),
    "predict": Command("predict", "run any model on images, folders and videos"),
    "explain": Command("explain", "draw what a model clusters, or its tree of parts, in an image"),
    "fewshot": Command("fewshot", "few-shot recognition with CLIP: run the benchmark, print its tables"),
    "segment": Command("segment", "segment images by any class names"),
    "radius": Command("radius", "hyperbolic radii of CLIP embeddings, before and after tuning"),
    "chains": Command("chains", "measure how a CLIP orders texts from general to specific"),
    "make-chains": Command("chains", "write chains of texts from shapes, emoji or captions"),
    "embed": Command("embeddings", "embeddings of images, in a file"),
    "search": Command("embeddings", "find the nearest images in a folder"),
    "hierarchy": Command("embeddings", "draw the hierarchy that a metric learner found"),
    "prepare": Command("data", "write label maps of the open-vocabulary test sets"),
    "make-data": Command("data", "write the procedural data set to disk"),
    "models": Command("zoo", "list the trained weights of the zoo"),
    "download": Command("zoo", "fetch and verify weights of the zoo"),
    "verify": Command("zoo", "check the weights on this machine against the index"),
    "cache": Command("zoo", "list or clean the downloaded weights"),
    "card": Command("zoo", "print the model card of weights"),
    "push": Command("zoo", "make a release of weights: a folder or a hub repository"),
    "export": Command("export", "write a model for ONNX or torch.export"),
    "convert": Command("convert", "convert an official checkpoint to hypvision's names, or back"),
    "lm-save": Command("language", "write a trained language model as a folder for transformers"),
    "lm-generate": Command("language", "continue texts with a language model"),
    "lm-eval": Command("language", "run tasks of the lm-evaluation-harness on a language model"),
    "publish": Command("publish", "measure a trained checkpoint and put it into a model zoo"),
    "scaling": Command("scaling", "the toy model of superposition and its scaling laws"),
}


def parser_of(name: str) -> Parser:
    """The parser of a command."""
    command = COMMANDS[name]
    parser = Parser(prog=f"hypvision {name}", description=f"{command.help[0].upper()}{command.help[1:]}.")
    _part(name, "add", "_arguments")(parser)
    return parser


def main(argv: Sequence[str] | None = None, load: Callable[[], None] | None = None) -> int:
    """Entry point.

    Args:
        argv: the command and its arguments; default: those of the process.
        load: called before a command runs that needs PyTorch; see :mod:`hypvision_cli`.

    Returns:
        The exit status: 2 after a user error, 130 after an interruption.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    return guard(_run, argv, load)


# What libraries note on their own code, deprecated parts above all, is nothing that who runs a command can act on.
_LIBRARIES = ("mmengine", "mmcv", "mmdet", "mmseg")
_NOTES = ("pkg_resources is deprecated", "torch.meshgrid: in an upcoming release")


def _leave_out_notes() -> None:
    for name in _LIBRARIES:
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
    for text in _NOTES:
        warnings.filterwarnings("ignore", text)


def _run(argv: list[str], load: Callable[[], None] | None) -> None:
    if not argv or argv[0] not in COMMANDS:
        _main_parser().parse_args(argv)  # help, the version, or an error
        raise HypvisionError("No command is given. Run: hypvision --help")
    name = argv[0]
    parser = parser_of(name)
    args = parser.parse_args(argv[1:])
    with protecting(*parser.inputs(args)), warnings.catch_warnings():
        if "verbose" not in args:  # train and test have them in their log
            _leave_out_notes()
        parser.check_outputs(args)
        try:
            if load is not None and not COMMANDS[name].light:
                load()
            _part(name, "run")(args)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "hypvision":
                raise
            raise HypvisionError(
                f"'hypvision {name}' needs the package '{error.name}', which is not installed. {how_to_install('all')}"
            ) from error


def _part(name: str, prefix: str, suffix: str = "") -> Callable:
    module = importlib.import_module(f"hypvision.cli.{COMMANDS[name].module}")
    return getattr(module, f"{prefix}_{name.replace('-', '_')}{suffix}")


def _main_parser() -> Parser:
    width = max(map(len, COMMANDS))
    parser = Parser(
        prog="hypvision",
        description="Hyperbolic vision models: train, test, explain.",
        epilog="commands:\n" + "\n".join(f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hypvision {__version__}")
    parser.add_argument(
        "command", choices=list(COMMANDS), metavar="COMMAND", help="hypvision COMMAND --help tells more"
    )
    return parser
