"""The ``hypvision`` command: ``hypvision train CONFIG``, ``hypvision test CONFIG WEIGHTS``, ...

A sub-command is a row of :data:`COMMANDS`; its module is imported only when it is called.
"""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import NamedTuple

from hypvision.errors import HypvisionError, guard
from hypvision.version import __version__

__all__ = ["COMMANDS", "Command", "main"]


class Command(NamedTuple):
    """Where a sub-command lives: ``add_arguments(parser)`` and ``run(args)`` of a module, under these names."""

    module: str
    help: str
    add_arguments: str = "add_arguments"
    run: str = "run"


COMMANDS = {
    "train": Command(
        "hypvision.engine.run", "train a classifier, segmenter or detector", "add_train_arguments", "run_train"
    ),
    "test": Command("hypvision.engine.run", "measure a checkpoint on test data", "add_test_arguments", "run_test"),
    "explain": Command("hypvision.cli.explain", "draw what a model clusters, or its tree of parts, in a picture"),
    "segment": Command("hypvision.clip.segmentation.segment", "segment pictures by any class names"),
    "radius": Command("hypvision.clip.radius", "hyperbolic radii of CLIP embeddings, before and after tuning"),
    "prepare": Command("hypvision.data.prepare", "write label maps of the open-vocabulary test sets"),
    "make-data": Command("hypvision.data.export", "write the procedural data set to disk"),
    "models": Command("hypvision.cli.zoo", "list the trained weights of the zoo", "add_models_arguments", "run_models"),
    "download": Command(
        "hypvision.cli.zoo", "fetch and verify weights of the zoo", "add_download_arguments", "run_download"
    ),
    "verify": Command(
        "hypvision.cli.zoo",
        "check the weights on this machine against the index",
        "add_verify_arguments",
        "run_verify",
    ),
    "cache": Command("hypvision.cli.zoo", "list or clean the downloaded weights", "add_cache_arguments", "run_cache"),
    "card": Command("hypvision.cli.zoo", "print the model card of weights", "add_card_arguments", "run_card"),
    "push": Command(
        "hypvision.cli.zoo",
        "make a release of weights: a folder or a hub repository",
        "add_push_arguments",
        "run_push",
    ),
    "export": Command(
        "hypvision.cli.zoo",
        "write a model for ONNX, torch.export or TorchScript",
        "add_export_arguments",
        "run_export",
    ),
    "embed": Command(
        "hypvision.cli.embeddings", "embeddings of pictures, in a file", "add_embed_arguments", "run_embed"
    ),
    "search": Command(
        "hypvision.cli.embeddings", "find the nearest pictures in a folder", "add_search_arguments", "run_search"
    ),
    "hierarchy": Command(
        "hypvision.cli.embeddings",
        "draw the hierarchy that a metric learner found",
        "add_hierarchy_arguments",
        "run_hierarchy",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status (2 after a user error, 130 after an interruption)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] in COMMANDS:
        return guard(_run, argv[0], argv[1:])
    width = max(map(len, COMMANDS))
    parser = ArgumentParser(
        prog="hypvision",
        description="Hyperbolic vision models: train, test, explain.",
        epilog="commands:\n" + "\n".join(f"  {name:{width}}  {command.help}" for name, command in COMMANDS.items()),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hypvision {__version__}")
    parser.add_argument(
        "command", choices=list(COMMANDS), metavar="COMMAND", help="hypvision COMMAND --help tells more"
    )
    parser.parse_args(argv)  # ends here: no known command was given
    return 2


def _run(name: str, argv: list[str]) -> None:
    command = COMMANDS[name]
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "hypvision":
            raise
        raise HypvisionError(
            f"'hypvision {name}' needs the package '{error.name}', which is not installed. Run: "
            "pip install 'hypvision[all]'"
        ) from error
    parser = ArgumentParser(prog=f"hypvision {name}", description=command.help.capitalize() + ".")
    getattr(module, command.add_arguments)(parser)
    getattr(module, command.run)(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
