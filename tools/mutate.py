#!/usr/bin/env python
"""Which changes of the code do the tests not notice?
``python tools/mutate.py hypvision/losses tests/losses``.

Samples small changes of the code of a folder (mutants: ``<`` for ``<=``, ``-`` for ``+``, another
constant, a condition that always holds) and runs for each the quick tests that pass by the changed
lines, quickest first, until one fails. A mutant that no test fails has survived: a test is missing,
or the code makes no difference.

A first, clean run tells which test runs which lines. Mutants live in the memory of forked
processes, no file changes: the tests are collected once, and a fork exchanges the code of
functions; what runs on import is imported again. Work in a checkout that nobody edits. Results are
appended to a file of JSON lines; the same command goes on where it was stopped. Needs Linux or
macOS.
"""

import argparse
import ast
import contextlib
import gc
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
from types import CodeType, FunctionType, SimpleNamespace

import pytest

PAIRS = {
    ast.Add: ast.Sub, ast.Mult: ast.Div, ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot, ast.And: ast.Or, "amin": "amax", "any": "all", "cosh": "sinh", "cos": "sin",
    "log": "log1p", "exp": "expm1", "max": "min", "maximum": "minimum",
}  # fmt: skip
OTHER = PAIRS | {b: a for a, b in PAIRS.items()}
# What changes no result: what people read, and which of two equal ways is taken, where, in blocks
# of what size.
UNSEEN_FUNCTIONS = ("__repr__", "__str__", "extra_repr", "describe")
UNSEEN_WORDS = ("TYPE_CHECKING", "is_compiling()", "device.type", "BLOCK", "ROWS", "SMALL", "_POOL")


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
    """The nodes below one whose change may be noticed, with the lines of which a test has to run
    one."""
    hints = (getattr(node, "annotation", None), getattr(node, "returns", None))
    for child in ast.iter_child_nodes(node):
        near = lines
        function = isinstance(child, ast.FunctionDef)
        body = getattr(child, "body", None)
        unseen = (
            isinstance(child, (ast.Raise, ast.JoinedStr))
            or function
            and child.name in UNSEEN_FUNCTIONS
        )
        if isinstance(child, ast.stmt):
            head = ast.unparse(
                child.test if isinstance(child, ast.If) else ast.Pass() if body else child
            )
            unseen = unseen or any(word in head for word in UNSEEN_WORDS)
            if function:
                near = range(body[0].lineno, child.end_lineno + 1)  # for default values
            elif inside:
                near = range(
                    child.lineno,
                    1 + (max(child.lineno, body[0].lineno - 1) if body else child.end_lineno),
                )
        if not unseen and child not in hints:
            yield child, near
            yield from sites(child, near, inside or function)


def mutants(package: Path) -> Iterator[tuple[str, tuple, str, range]]:
    """What is changed, how (see :func:`mutated`), and the file and lines that a test has to run."""
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        file = str(path.resolve())
        for node, lines in sites(tree, range(10**9)):
            for field, value in changes(node):
                old = ast.unparse(getattr(node, "test", node))
                kept = getattr(node, field)
                setattr(node, field, value)
                new = ast.unparse(getattr(node, "test", node))
                setattr(node, field, kept)
                name = f"{path}:{node.lineno}:{node.col_offset} {old} -> {new}"
                yield name, (tree, node, field, value), file, lines


def mutated(file: str, tree: ast.Module, node: ast.AST, field: str, value: object) -> CodeType:
    """The code of a file with a change."""
    kept = getattr(node, field)
    setattr(node, field, value)
    try:
        return compile(ast.fix_missing_locations(tree), file, "exec")
    finally:
        setattr(node, field, kept)


def bodies(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Names and lines of the functions of a file, with their code."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield (inner.co_name, inner.co_firstlineno), inner
            yield from bodies(inner)


def exchanges(file: str, code: CodeType) -> dict[FunctionType, CodeType]:
    """The functions of a file that is imported already which differ in a mutant, with their bodies
    there."""
    new = dict(bodies(code))
    found = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == file:
            old = function.__code__
            body = new.get((old.co_name, old.co_firstlineno), old)
            if body != old:
                found[function] = body
    return found


def replace_file(file: str, code: CodeType) -> None:
    """Let later imports of a file find the mutant."""
    plain = SourceFileLoader.get_code
    SourceFileLoader.get_code = lambda self, name: code if self.path == file else plain(self, name)


def limit(seconds: float) -> None:
    """This process may compute for some seconds, and prints nothing."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def forked(work: Callable[[], int], seconds: float) -> int:
    """The exit code of work in a process of its own that may compute for some seconds."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            limit(seconds)
            os._exit(work())
        os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_tests(paths: list[str], plugin: object) -> int:
    words = [
        "-xqm",
        "not slow",
        "-pno:cacheprovider",
        "-pno:xdist",
        "--timeout=300",
        "--hypothesis-profile=ci",
        *paths,
    ]
    return pytest.main(words, [plugin])


def clean_run(package: Path, paths: list[str], report: Path) -> int:
    """Writes the seconds and the lines of each test, and the modules that the tests import from
    elsewhere."""
    tests = {}
    folder = str(package.resolve())
    here = os.getcwd()

    @pytest.hookimpl(wrapper=True)
    def watch(item: pytest.Item) -> Iterator[None]:
        lines: dict[str, set[int]] = {}

        def local(frame, *_):
            lines.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
            return local

        begin = process_time()
        sys.settrace(
            lambda frame, *_: local if frame.f_code.co_filename.startswith(folder) else None
        )
        try:
            return (yield)
        finally:
            sys.settrace(None)
            tests[item.nodeid] = (
                process_time() - begin,
                {file: sorted(found) for file, found in lines.items()},
            )

    code = run_tests(paths, SimpleNamespace(pytest_runtest_protocol=watch))
    files = {
        name: getattr(module, "__file__", None) or here for name, module in sys.modules.items()
    }
    foreign = [
        name for name, file in files.items() if "site-packages" in file or not file.startswith(here)
    ]
    report.write_text(json.dumps([tests, foreign]))
    return code


class Trials:
    """Mutants of a package, the tests that run their lines, and the output file."""

    def __init__(self, sample: list[tuple], tests: dict, out: Path):
        self.sample = sample
        self.tests = tests
        self.out = out
        self.tried = set(self.found())

    def found(self) -> dict[str, str]:
        """What came of each mutant that was tried."""
        rows = map(json.loads, self.out.read_text().splitlines()) if self.out.exists() else ()
        return {row["mutant"]: row["found"] for row in rows}

    def untried(self) -> Iterator[tuple[str, str, CodeType, dict[str, float]]]:
        """Name, file and code of a mutant, and the tests that run its lines with their seconds."""
        for name, change, file, lines in self.sample:
            if name not in self.tried:
                near = {
                    test: cost
                    for test, (cost, ran) in self.tests.items()
                    if any(line in lines for line in ran.get(file, ()))
                }
                yield name, file, mutated(file, *change), near

    def note(self, name: str, code: int, near: dict[str, float]) -> None:
        """Append what came of a mutant: the exit code of pytest."""
        self.tried.add(name)
        found = "killed" if code else "survived" if near else "never run"
        with self.out.open("a") as log:
            print(json.dumps(dict(mutant=name, found=found, code=code, tests=len(near))), file=log)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        """Tests are collected: a fork of this process for each mutant within functions, which goes
        on as pytest."""
        items = {item.nodeid: item for item in session.items}
        session.items = []
        for name, file, code, near in self.untried():
            if near and not (changed := exchanges(file, code)):
                continue  # what runs on import
            if near and not (pid := os.fork()):
                limit(allowed(near))
                for function, body in changed.items():
                    function.__code__ = body
                session.items = [
                    items[test] for test in sorted(near, key=near.get) if test in items
                ]
                break
            self.note(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if near else 0, near)
        return (yield)

    def import_and_try(self) -> None:
        """A fork for each mutant that was not tried, which imports it."""
        for name, file, code, near in self.untried():

            def choose(items: list[pytest.Item], near=near) -> None:
                items[:] = sorted(
                    (item for item in items if item.nodeid in near),
                    key=lambda item: near[item.nodeid],
                )

            def work(file=file, code=code, near=near, choose=choose) -> int:
                replace_file(file, code)
                paths = sorted({test.partition("::")[0] for test in near})
                return run_tests(paths, SimpleNamespace(pytest_collection_modifyitems=choose))

            self.note(name, forked(work, allowed(near)) if near else 0, near)


def allowed(tests: dict[str, float]) -> float:
    """Seconds that tests may take together: a mutant may not come to an end."""
    return 30 + 3 * sum(tests.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "package", type=Path, help="folder of the code, seen from the root of the repository"
    )
    parser.add_argument("tests", nargs="+", help="folders and files of its tests")
    parser.add_argument("--count", type=int, default=200, help="size of the sample (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    parser.add_argument("--again", action="store_true", help="run anew what was not killed")
    parser.add_argument(
        "--out", type=Path, default=Path("mutants.jsonl"), help="file of the results (%(default)s)"
    )
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork

    if args.again and args.out.exists():
        rows = [
            row
            for row in args.out.read_text().splitlines(keepends=True)
            if json.loads(row)["found"] == "killed"
        ]
        kept = args.out.with_suffix(".tmp")
        kept.write_text("".join(rows))
        kept.replace(args.out)
    pool = list(mutants(args.package))
    sample = random.Random(args.seed).sample(pool, min(args.count, len(pool)))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        code = forked(lambda: clean_run(args.package, args.tests, report), 3600)
        if code:
            sys.exit(f"The tests of the code as it is end with {code}.")
        tests, foreign = json.loads(report.read_text())
    for name in foreign:  # once for all
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    forked(lambda: run_tests(args.tests, Trials(sample, tests, args.out)), resource.RLIM_INFINITY)
    trials = Trials(sample, tests, args.out)
    trials.import_and_try()
    found = trials.found()
    for name, *_ in sample:
        if found[name] != "killed":
            print(found[name], name)
    print(dict(Counter(found[name] for name, *_ in sample)), "of", len(pool))


if __name__ == "__main__":
    main()
