#!/usr/bin/env python
"""Which changes of the code do the tests not notice? ``python tools/mutate.py hypvision/losses tests/losses``.

Samples small changes of the code of a folder (mutants: ``<`` for ``<=``, ``-`` for ``+``, another constant, a condition
that always holds) and runs for each the quick tests that pass by the changed lines, quickest first, until one fails. A
mutant that no test fails has survived: a test is missing, or the code makes no difference.

A first, clean run tells which test runs which lines. Mutants live in the memory of forked processes; no file changes,
but files are read again for each: work in a checkout that nobody edits. Results are appended to a file of JSON lines;
the same command goes on where it was stopped. Needs Linux or macOS.
"""

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from time import process_time
from types import SimpleNamespace

import pytest

PAIRS = {
    ast.Add: ast.Sub, ast.Mult: ast.Div, ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.Is: ast.IsNot,
    ast.And: ast.Or, "amin": "amax", "any": "all", "cosh": "sinh", "cos": "sin", "log": "log1p", "exp": "expm1",
    "max": "min", "maximum": "minimum",
}  # fmt: skip
OTHER = PAIRS | {b: a for a, b in PAIRS.items()}
# What changes no result: what people read, and which of two equal ways is taken, where, in blocks of what size.
UNSEEN_FUNCTIONS = ("__repr__", "__str__", "extra_repr", "describe")
UNSEEN_WORDS = ("TYPE_CHECKING", "is_compiling()", "device.type", "_BLOCK", "_ROWS", "_POOL")


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Fields of a node of a syntax tree with what may stand there instead."""
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            yield "op", OTHER[type(op)]()
        case ast.Compare(ops=[op, *others]) if type(op) in OTHER:
            yield "ops", [OTHER[type(op)](), *others]
        case ast.UnaryOp(op=ast.USub()):
            yield "op", ast.UAdd()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.Constant(value=bool(value)):
            yield "value", not value
        case ast.Constant(value=int(value) | float(value)):
            yield "value", value + 1 if isinstance(value, int) else 2 * value or 1.0
        case ast.If() | ast.IfExp():
            yield from (("test", ast.Constant(value)) for value in (True, False))
        case ast.Expr(value=ast.Call()):
            yield "value", ast.Constant(None)
        case ast.Name(id=name) if name in OTHER:
            yield "id", OTHER[name]
        case ast.Attribute(attr=name) if name in OTHER:
            yield "attr", OTHER[name]


def sites(node: ast.AST, lines: range, inside: bool = False) -> Iterator[tuple[ast.AST, range]]:
    """The nodes below one whose change may be noticed, with the lines of which a test has to run one."""
    hints = (getattr(node, "annotation", None), getattr(node, "returns", None))
    for child in ast.iter_child_nodes(node):
        near, function, body = lines, isinstance(child, ast.FunctionDef), getattr(child, "body", None)
        unseen = isinstance(child, (ast.Raise, ast.JoinedStr)) or function and child.name in UNSEEN_FUNCTIONS
        if isinstance(child, ast.stmt):
            head = ast.unparse(child.test if isinstance(child, ast.If) else ast.Pass() if body else child)
            unseen = unseen or any(word in head for word in UNSEEN_WORDS)
            if function:
                near = range(body[0].lineno, child.end_lineno + 1)  # for default values
            elif inside:
                near = range(child.lineno, 1 + (max(child.lineno, body[0].lineno - 1) if body else child.end_lineno))
        if not unseen and child not in hints:
            yield child, near
            yield from sites(child, near, inside or function)


def mutants(room: Path) -> Iterator[tuple[str, tuple, str, range]]:
    """What is changed, how (see :func:`exchange`), and the file and lines that a test has to run."""
    for path in sorted(room.rglob("*.py")):
        tree, file = ast.parse(path.read_text()), str(path.resolve())
        for node, lines in sites(tree, range(10**9)):
            for field, value in changes(node):
                old, kept = ast.unparse(getattr(node, "test", node)), getattr(node, field)
                setattr(node, field, value)
                new = ast.unparse(getattr(node, "test", node))
                setattr(node, field, kept)
                name = f"{path}:{node.lineno}:{node.col_offset} {old} -> {new}"
                yield name, (tree, node, field, value), file, lines


def exchange(file: str, tree: ast.Module, node: ast.AST, field: str, value: object) -> None:
    """Let later imports of a file find the mutant."""
    setattr(node, field, value)
    code, plain = compile(ast.fix_missing_locations(tree), file, "exec"), SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: code if self.path == file else plain(self, name)


def forked(work: Callable[[], int], seconds: float) -> int:
    """The exit code of work in a process of its own that may compute for some seconds."""
    if not (pid := os.fork()):
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(work())
        os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_tests(paths: list[str], **hooks: Callable) -> int:
    words = ["-xqm", "not slow", "-pno:cacheprovider", "-pno:xdist", "--timeout=300", "--hypothesis-profile=ci", *paths]
    return pytest.main(words, [SimpleNamespace(**hooks)])


def clean_run(room: Path, paths: list[str], report: Path) -> int:
    """Writes the seconds and the lines of each test, and the modules that the tests import from elsewhere."""
    tests, folder, here = {}, str(room.resolve()), os.getcwd()

    @pytest.hookimpl(wrapper=True)
    def watch(item: pytest.Item) -> Iterator[None]:
        lines: dict[str, set[int]] = {}

        def local(frame, *_):
            lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
            return local

        begin = process_time()
        sys.settrace(lambda frame, *_: local if frame.f_code.co_filename.startswith(folder) else None)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            tests[item.nodeid] = process_time() - begin, {file: sorted(found) for file, found in lines.items()}

    code = run_tests(paths, pytest_runtest_protocol=watch)
    files = {name: getattr(module, "__file__", None) or here for name, module in sys.modules.items()}
    foreign = [name for name, file in files.items() if "site-packages" in file or not file.startswith(here)]
    report.write_text(json.dumps([tests, foreign]))
    return code


def try_mutant(tests: dict[str, float], file: str, change: tuple) -> int:
    """The exit code of pytest for a mutant; tests with their seconds."""
    order = {name: number for number, name in enumerate(sorted(tests, key=tests.get))}

    def choose(items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])

    def work() -> int:
        exchange(file, *change)
        return run_tests(sorted({name.partition("::")[0] for name in order}), pytest_collection_modifyitems=choose)

    return forked(work, 30 + 3 * sum(tests.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", type=Path, help="folder of the code, seen from the root of the repository")
    parser.add_argument("tests", nargs="+", help="folders and files of its tests")
    parser.add_argument("--count", type=int, default=200, help="size of the sample (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    parser.add_argument("--again", action="store_true", help="run anew what was not killed")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="file of the results (%(default)s)")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork
    sys.path.insert(0, os.getcwd())

    pool = list(mutants(args.room))
    sample = random.Random(args.seed).sample(pool, min(args.count, len(pool)))
    rows = map(json.loads, args.out.read_text().splitlines()) if args.out.exists() else ()
    found = {row["mutant"]: row["found"] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        if code := forked(lambda: clean_run(args.room, args.tests, report), 3600):
            sys.exit(f"The tests of the code as it is end with {code}.")
        tests, foreign = json.loads(report.read_text())
    for name in foreign:  # once for all
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for name, change, file, lines in sample:
        if name in found and not (args.again and found[name] != "killed"):
            continue
        near = {test: cost for test, (cost, ran) in tests.items() if any(line in lines for line in ran.get(file, ()))}
        code = try_mutant(near, file, change) if near else 0
        found[name] = "killed" if code else "survived" if near else "never run"
        with args.out.open("a") as log:
            print(json.dumps(dict(mutant=name, found=found[name], code=code, tests=len(near))), file=log)
        if not code:
            print(found[name], name, flush=True)
    print(dict(Counter(found[name] for name, *_ in sample)), "of", len(pool))


if __name__ == "__main__":
    main()
