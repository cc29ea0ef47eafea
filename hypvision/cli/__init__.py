"""The ``hypvision`` command: ``hypvision train CONFIG``, ``hypvision test CONFIG WEIGHTS``, ...

A command is a row of :data:`COMMANDS`. Its module has ``add_NAME_arguments(parser)`` and
``run_NAME(args)``, and is thin: it reads arguments and calls the package that does the work. The
top of the module imports nothing that needs PyTorch, so that help is fast; the console script,
:mod:`hypvision_cli`, runs ``import hypvision`` itself.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from typing import NamedTuple, TextIO, cast

from hypvision.io import HypvisionError, explaining
from hypvision.io.errors import Escaped, guard, how_to_install
from hypvision.io.files import protecting
from hypvision.version import __version__

from .arguments import Parser

__all__ = ["COMMANDS", "GROUPS", "Command", "main", "parser_of"]


class Command(NamedTuple):
    """A command: what it does, in one line; its module in this package (default: the first word of
    its name); and whether it runs without PyTorch (``light``)."""

    help: str
    module: str | None = None
    light: bool = False


#: Groups of commands by name: the topic of each group, and two example calls without "hypvision".
GROUPS = {
    "": ("models and images", "train hcformer-nano-clusters-p2_25e_cifar10",
         "predict photos/ --model hcformer_nano.cifar10"),
    "zoo": ("trained weights", "zoo list", "zoo get hcformer_nano.cifar10"),
    "fewshot": ("few images a class", "fewshot base2new --method coop --root DATA",
    "fewshot table RESULTS"),
    "clip": ("images and texts", 'clip segment street.jpg --classes "car, road, sky"',
    "clip chains chains.csv"),
    "metric": ("embeddings and neighbours",
    "metric search photo.jpg --gallery FOLDER --model resnet50",
               "metric embed FOLDER --model resnet50"),
    "lm": ("language models", "lm save CONFIG CHECKPOINT model", 'lm generate model "It was a"'),
    "scaling": ("superposition", "scaling run", "scaling heads paper --out results"),
    "data": ("data sets", "data make OUT --emoji DIR --photos DIR",
             "data prepare voc20 SOURCE OUT"),
}  # fmt: skip

#: All commands by name, which is ``"GROUP NAME"`` for a command of a group.
COMMANDS = {
    "train": Command("train a classifier, segmenter, detector or language model"),
    "test": Command("measure a checkpoint on test data", "train"),
    "plot": Command("draw the curves of trainings: loss, rate and metrics", "train"),
    "predict": Command("run any model on images, folders and videos"),
    "explain": Command("draw what a model sees in an image: the class, clusters, parts"),
    "disk": Command("put words or photos into a Poincare disk: a page to walk through"),
    "app": Command("use the models in a browser: a page on this machine"),
    "export": Command("write a model for ONNX or torch.export"),
    "check": Command("look at the data of a config before a training"),
    "browse": Command(
        "draw what a config feeds its model: augmented, with labels, masks, boxes", "check"
    ),
    "summary": Command("count the parameters and work of a model by module, and measure its speed"),
    "configs": Command("list the configs that ship", light=True),
    "exec": Command("run another project's script with hypvision's models registered", "configs"),
    "zoo list": Command("list the trained weights of the zoo"),
    "zoo get": Command("fetch and verify weights of the zoo"),
    "zoo verify": Command("check the weights on this machine against the index"),
    "zoo clean": Command("remove downloaded weights, or list them"),
    "zoo card": Command("print the model card of weights"),
    "zoo push": Command("make a release of weights: a folder or a hub repository"),
    "zoo publish": Command("measure a trained checkpoint and put it into a model zoo"),
    "zoo familiar": Command("record in a classifier of a model zoo which images are familiar"),
    "zoo convert": Command("convert an official checkpoint to hypvision's names, or back"),
    "fewshot base2new": Command(
        "few-shot recognition with CLIP: half of the classes, then the rest"
    ),
    "fewshot shots": Command("few-shot recognition of all classes, from 1 to 16 images of each"),
    "fewshot cross": Command("few-shot training on ImageNet, tests on other data sets"),
    "fewshot dg": Command("few-shot training on ImageNet, tests on its variants"),
    "fewshot table": Command("print and write the tables of results"),
    "fewshot explain": Command("draw what the LatHAdapter of a finished cell has learned"),
    "clip evaluate": Command(
        "measure a CLIP on the data sets of papers: classes, retrieval, trees"
    ),
    "clip segment": Command("segment images by any class names"),
    "clip chains": Command("measure how a CLIP orders texts from general to specific"),
    "clip make-chains": Command("write chains of texts from emoji or captions"),
    "clip radius": Command("measure hyperbolic radii of a CLIP, before and after tuning"),
    "metric embed": Command("write embeddings of images or texts into a file"),
    "metric search": Command("find the nearest images in a folder"),
    "metric hierarchy": Command("draw the hierarchy that a metric learner found"),
    "metric closure": Command("embed a hierarchy of names, such as WordNet's mammals, and draw it"),
    "lm save": Command("write a trained language model as a folder for transformers"),
    "lm generate": Command("continue texts with a language model"),
    "lm eval": Command("run tasks of the lm-evaluation-harness on a language model"),
    "scaling run": Command("train the toy model of superposition over a grid, and draw its losses"),
    "scaling heads": Command("measure overlaps and norms of the output heads of language models"),
    "scaling tokens": Command("count the frequencies of tokens in texts"),
    "scaling fit": Command("fit one scaling law to the losses of language models"),
    "data make": Command("write scenes of emoji on photos to disk"),
    "data prepare": Command(
        "write a published data set as configs read it: label maps, class folders"
    ),
    "data convert": Command(
        "write annotations of YOLO, VOC, LabelMe, CreateML or tables of boxes as COCO's JSON"
    ),
    "data shard": Command("write images with captions, boxes or labels into shards (webdataset)"),
}


def parser_of(name: str) -> Parser:
    """Return the parser of a command."""
    text = COMMANDS[name].help
    parser = Parser(prog=f"hypvision {name}", description=f"{text[0].upper()}{text[1:]}.")
    _part(name, "add", "_arguments")(parser)
    return parser


def main(argv: Sequence[str] | None = None, load: Callable[[], None] | None = None) -> int:
    """Run a command, by default that of the process, and return the exit status
    (:func:`hypvision.io.errors.guard`).

    ``load`` is called before a command that needs PyTorch; see :mod:`hypvision_cli`. ``SystemExit``
    is raised after help, and with the status 1 after faults that ``hypvision check`` found.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    return guard(_run, argv, load)


def _silence_libraries() -> None:
    """Ignore warnings of libraries about their own code, which users cannot change."""
    warnings.filterwarnings("ignore", module=r"(mmengine|mmcv|mmdet|mmseg)(\.|$)")
    for text in ("pkg_resources is deprecated", "torch.meshgrid: in an upcoming release"):
        warnings.filterwarnings("ignore", text)


def _show_warning(
    told: set[str],
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as a sentence, without the line of code that raised it, unless it was told
    before; the other arguments are those of :func:`warnings.showwarning`."""
    stream = file or sys.stderr
    if str(message) in told or stream is None:
        return
    told.add(str(message))
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=stream)
    else:
        stream.write(warnings.formatwarning(message, category, filename, lineno, line))


def _run(argv: list[str], load: Callable[[], None] | None) -> None:
    with explaining(
        lambda error: (
            "The working directory no longer exists. Change to another one, and run the command "
            "again."
        ),
        FileNotFoundError,
    ):
        os.getcwd()
    name = _command(argv)
    parser = parser_of(name)
    args = parser.parse_args(argv[len(name.split()) :])
    with protecting(*parser.inputs(args)), _plain_output(name, args):
        parser.check_outputs(args)
        try:
            if load is not None and not COMMANDS[name].light:
                load()
            _part(name, "run")(args)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "hypvision":
                raise
            raise HypvisionError(
                f"'hypvision {name}' needs the package '{error.name}', which is not installed. "
                f"{how_to_install('all')}"
            ) from error


@contextmanager
def _plain_output(name: str, args: Namespace) -> Iterator[None]:
    """Context in which warnings are printed as sentences, and printed text cannot move the cursor;
    ``train`` and ``test`` write such messages to their log instead."""
    with warnings.catch_warnings(), ExitStack() as streams:
        if "verbose" not in args:
            _silence_libraries()
            # Python calls it by position.
            warnings.showwarning = partial(_show_warning, set())
            if name != "exec" and sys.stdout is not None:
                streams.enter_context(redirect_stdout(cast(TextIO, Escaped(sys.stdout))))
        yield


def _part(name: str, prefix: str, suffix: str = "") -> Callable:
    module = importlib.import_module(f"hypvision.cli.{COMMANDS[name].module or name.split()[0]}")
    return getattr(module, f"{prefix}_{re.sub('[- ]', '_', name)}{suffix}")


def _command(argv: list[str]) -> str:
    """Return the command that ``argv`` begins with. Help, the version and errors end the process
    here."""
    first = argv[0] if argv else ""
    if first in COMMANDS:
        return first
    if first in GROUPS and first:
        parser = _parser(f"hypvision {first}", [first])
        parser.add_argument("command", choices=_words(first), metavar="COMMAND")
        return f"{first} {parser.parse_args(argv[1:2] or ['--help']).command}"
    grouped = [name for name in COMMANDS if name.split()[1:] == [first]]
    if grouped:
        raise HypvisionError(
            f"hypvision: there is no command '{first}'. Did you mean {' or '.join(grouped)}?"
        )
    raise SystemExit(_without_command(argv))


def _without_command(argv: list[str]) -> int:
    """Handle words that begin with no command: print help, the version or the completion script,
    and return the exit status."""
    parser = _parser("hypvision", GROUPS)
    parser.add_argument("--version", action="version", version=f"hypvision {__version__}")
    parser.add_argument(
        "--completion",
        choices=("bash", "zsh", "fish"),
        metavar="SHELL",
        help="print the script that completes commands and options in bash, zsh or fish",
    )
    known = [*_words(""), *filter(None, GROUPS)]
    parser.add_argument("command", choices=known, nargs="?", metavar="COMMAND")
    args = parser.parse_args(argv[:2])
    if args.completion is None:
        raise HypvisionError("No command is given. Run: hypvision --help")
    print(_completion(args.completion))
    return 0


def _words(group: str) -> list[str]:
    """Return the commands of a group, without its name; for the group "" those of one word."""
    return [name.split()[-1] for name in COMMANDS if name.split()[:-1] == group.split()]


def _parser(prog: str, groups: Iterable[str]) -> Parser:
    """Return a parser whose help lists the commands of the groups."""
    width = max(map(len, COMMANDS))
    lines = []
    for group in groups:
        title, *examples = GROUPS[group]
        lines.append(f"{title}:")
        own = [name for name in COMMANDS if name.split()[:-1] == group.split()]
        lines += [f"  {name:{width}}  {COMMANDS[name].help}" for name in own]
        lines += [f"    hypvision {example}" for example in examples] + [""]
    epilog = "\n".join([*lines, "hypvision COMMAND --help tells the options of a command."])
    return Parser(
        prog=prog,
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        usage=f"{prog} COMMAND ...",
    )


def _completion(shell: str) -> str:
    """Return a shell's script that completes commands and options."""
    import shtab

    parser = Parser(prog="hypvision")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    groups = {
        name: commands.add_parser(name, help=title).add_subparsers()
        for name, (title, *_) in GROUPS.items()
        if name
    }
    for name, command in COMMANDS.items():
        *group, word = name.split()
        place = groups[group[0]] if group else commands
        _part(name, "add", "_arguments")(place.add_parser(word, help=command.help))
    return shtab.complete(parser, shell)
