"""The walk of a command through the package: what a reader must open to follow it.

    python tools/walk.py                    # train, predict, fewshot, clip segment, clip chains
    python tools/walk.py train --list       # its steps, one a line
    python tools/walk.py summary resnet10t --repeats 0   # any line of hypvision

A command of one or two words alone runs the first line that tests/helpers/commands.py has for it,
on its small inputs. A place is a module of the package whose functions the command calls; a room
is a package; a climb is a call from a room into one above it, by the layers of .importlinter, and
counts once for each pair of functions: a call itself, as of a function that was handed down, or one
that passes through a library, as of what mmengine builds by its name and then calls. Calls while a
module is imported do not count. ``train``
and ``fewshot`` are followed to their first training step, other commands to their end.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = f"{ROOT / 'hypvision'}{os.sep}"
COMMANDS = ("train", "predict", "fewshot base2new", "clip segment", "clip chains")
_FIRST_STEP = ("train_step", "mmengine")  # a function of this name, in a module of this package
# what Python runs as functions of their own within one
_WITHIN = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")


class _Arrived(BaseException):
    """The walk is over: a training has reached its first step."""


@dataclass
class Walk:
    """The functions of the package that a command calls, and who calls them.

    Attributes:
        functions: code of each function, in the order of the first call.
        calls: pairs of a function of the package and the next one of it on the stack, with whether
            nothing lies between the two.
    """

    functions: dict[CodeType, None] = field(default_factory=dict)
    calls: dict[tuple[CodeType, CodeType], bool] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """The modules, in the order of the walk."""
        return list(dict.fromkeys(map(module_of, self.functions)))

    @property
    def rooms(self) -> list[str]:
        """The packages, in the order of the walk."""
        return list(dict.fromkeys(map(room_of, self.functions)))

    def climbs(self, layers: dict[str, int], direct: bool) -> list[tuple[CodeType, CodeType]]:
        """The calls from a room into one above it, direct or through a library."""
        return [
            (caller, called)
            for (caller, called), is_direct in self.calls.items()
            if is_direct == direct
            and layers.get(room_of(called), 0) > layers.get(room_of(caller), 0)
        ]


def module_of(code: CodeType) -> str:
    """The module of a function, below the package: ``"engine/run"``."""
    return code.co_filename.removeprefix(PACKAGE).removesuffix(".py").removesuffix("/__init__")


def room_of(code: CodeType) -> str:
    """The first package of a function's module."""
    return module_of(code).partition("/")[0]


def read_layers(path: Path = ROOT / ".importlinter") -> dict[str, int]:
    """The height of each room; those that stand beside each other have the same."""
    lines = path.read_text().partition("layers =\n")[2].partition("\n\n")[0].splitlines()
    rows = [[name.strip() for name in line.split("|")] for line in lines]
    return {name: height for height, row in enumerate(reversed(rows)) for name in row}


def follow(work: Callable[[], Any], until_step: bool = False) -> Walk:
    """The walk of a call; ``until_step`` ends it at the first training step of mmengine."""
    walk = Walk()
    stack: list[CodeType | None] = []
    importing = 0

    def enter(frame: FrameType) -> None:
        nonlocal importing
        code = frame.f_code
        importing += code.co_name == "<module>"
        above = stack[-1] if stack else None
        if importing or not code.co_filename.startswith(PACKAGE):
            stack.append(None)
        elif code.co_name in _WITHIN:
            stack.append(above)
        else:
            stack.append(code)
            walk.functions.setdefault(code)
            callers = [caller for caller in stack[:-1] if caller is not None]
            if callers and callers[-1] is not code:
                pair = (callers[-1], code)
                walk.calls[pair] = walk.calls.get(pair, False) or above is not None
        name, package = _FIRST_STEP
        if until_step and code.co_name == name and f"{os.sep}{package}{os.sep}" in code.co_filename:
            raise _Arrived

    def leave(frame: FrameType) -> None:
        nonlocal importing
        importing -= frame.f_code.co_name == "<module>"
        if stack:
            stack.pop()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            enter(frame)
        elif event == "return":
            leave(frame)

    before = sys.getprofile()
    sys.setprofile(watch)
    with contextlib.suppress(_Arrived, SystemExit):
        try:
            work()
        finally:
            sys.setprofile(before)
    return walk


def walk_of(words: list[str]) -> Walk:
    """The walk of a line of the command; of a command alone that of the tests' first line."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from helpers import commands

    import hypvision_cli

    name = " ".join(words)
    until_step = words[0] in ("train", "fewshot")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if name in commands.LINES:
            # in a process of its own: what it imports is no part of the walk
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                pool.submit(commands.write_inputs, Path(folder)).result()
            commands.tiny(setattr)
            words = next(line for line in commands.lines() if " ".join(line).startswith(name))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return follow(lambda: hypvision_cli.main(words), until_step)


def line_of(name: str, walk: Walk, layers: dict[str, int]) -> str:
    """A line of the table."""
    climbs = [walk.climbs(layers, direct) for direct in (True, False)]
    counts = (walk.functions, walk.places, walk.rooms, *climbs)
    return f"| {name} | {' | '.join(str(len(part)) for part in counts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("words", nargs="*", help="a command, or its whole line; default: five")
    parser.add_argument("--list", action="store_true", help="each function, and each climb")
    args, more = parser.parse_known_args()
    layers = read_layers()
    lines = [[*args.words, *more]] if args.words else [name.split() for name in COMMANDS]
    print("| command | functions | places | rooms | climbs | through a library |")
    print("|---|--:|--:|--:|--:|--:|")
    for words in lines:
        walk = walk_of(words)
        print(line_of(" ".join(words[:2]), walk, layers))
        if args.list:
            print(*listing(walk, layers), sep="\n")


def listing(walk: Walk, layers: dict[str, int]) -> list[str]:
    """Each function, in the order of the walk, and each climb."""
    lines = [
        f"  {module_of(code)}:{code.co_firstlineno} {code.co_qualname}" for code in walk.functions
    ]
    for direct, kind in ((True, "climb"), (False, "climb through a library")):
        for caller, called in walk.climbs(layers, direct):
            lines.append(
                f"  {kind}: {module_of(caller)} -> {module_of(called)} {called.co_qualname}"
            )
    return lines


if __name__ == "__main__":
    main()
