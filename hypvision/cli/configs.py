"""``hypvision configs [PATTERN]`` lists the shipped configs; ``hypvision exec SCRIPT`` runs another
project's script with hypvision's models and optimisers in timm's registries."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from argparse import REMAINDER, Namespace
from pathlib import Path

from hypvision.io import HypvisionError, did_you_mean, ensure, explaining
from hypvision.io.files import why_no_file
from hypvision.io.shipped import config_folder, shipped_configs

from .arguments import Parser


def add_configs_arguments(parser: Parser) -> None:
    parser.add(
        "pattern PATTERN",
        "part of the config's name or folder, or a pattern such as '*_cifar10'",
        nargs="?",
    )


def run_configs(args: Namespace) -> None:
    """Run ``configs``: print the names that ``hypvision train`` takes, and the folder of the
    files."""

    found = shipped_configs(args.pattern)
    if not found:
        names = [f"{path.parent.name}/{name}" for name, path in shipped_configs().items()]
        words = dict.fromkeys(word for name in names for word in re.split("[/_-]", name))
        hint = did_you_mean(args.pattern, [*words, *names], cutoff=0.7)
        raise HypvisionError(
            f"No config matches '{args.pattern}'.{hint} hypvision configs lists all."
        )
    folder = None
    for name, path in sorted(found.items(), key=lambda item: (item[1].parent.name, item[0])):
        if path.parent.name != folder:
            folder = path.parent.name
            print(f"{folder}/")
        print(f"  {name}")
    plural = "s" * (len(found) != 1)
    print(f"{len(found)} config{plural} in {config_folder()}. Use: hypvision train NAME")


def add_exec_arguments(parser: Parser) -> None:
    parser.add("script SCRIPT", "Python file, e.g. timm's train.py")
    parser.add("arguments ARGUMENTS", "arguments of the script", nargs=REMAINDER)


def run_exec(args: Namespace) -> None:
    """Run ``exec``: run the script as ``python SCRIPT`` would, after ``import hypvision``."""

    path = Path(args.script).expanduser()
    ensure(path.is_file(), f"{why_no_file(args.script, 'script')} Give the path of a Python file.")
    # ValueError: the bytes are not text
    with explaining(
        lambda error: f"'{args.script}' is not a Python file: {error}.", SyntaxError, ValueError
    ):
        ast.parse(path.read_bytes())
    before = sys.argv, sys.path
    sys.argv = [str(path), *args.arguments]
    sys.path = [str(path.resolve().parent), *sys.path]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sys.path = before
