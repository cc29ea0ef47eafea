"""How much there is to read: lines, tokens, branches and guards of the package, room by room.

    make lines                          # rooms of hypvision
    python tools/count_code.py tests    # another folder

A token is a name, number, text or operator; comments, docstrings and layout do not count. The
complexity of a function is one more than its branches: ``if``, loops, ``except``, cases,
comprehensions, and each further operand of ``and`` and ``or``. A guard is an ``if`` that only
raises an error. Packed lines assign several things at once or use a walrus.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDEST = 100  # characters
COMPLEX = 10
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
    ast.Assert,
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Module, ast.ClassDef)


@dataclass
class Size:
    """The counts of a file, or of several."""

    lines: int = 0
    code: int = 0
    tokens: int = 0
    guards: int = 0
    wide: int = 0
    walrus: int = 0
    packed: int = 0
    functions: int = 0
    complex: int = 0
    most: int = 0

    def add(self, other: Size) -> None:
        """Count another file, too."""
        for field in fields(self):
            mine = getattr(self, field.name)
            theirs = getattr(other, field.name)
            setattr(self, field.name, max(mine, theirs) if field.name == "most" else mine + theirs)


def docstrings(tree: ast.Module) -> set[tuple[int, int]]:
    """Where the docstrings of a file begin: line and column."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, _SCOPES) or not node.body:
            continue
        first = node.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if is_text and isinstance(first.value.value, str):
            found.add((first.lineno, first.col_offset))
    return found


def words(text: str, left_out: set[tuple[int, int]]) -> list[tokenize.TokenInfo]:
    """The tokens of a file that count."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token for token in tokens if token.type not in _LAYOUT and token.start not in left_out]


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of the functions in it."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, _FUNCTIONS):
            continue
        yield child
        yield from own_nodes(child)


def complexity(function: ast.AST) -> int:
    """One more than the branches of a function."""
    nodes = list(own_nodes(function))
    branches = sum(isinstance(node, _BRANCHES) for node in nodes)
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + branches + operands


def is_guard(node: ast.AST) -> bool:
    """Whether the node is an ``if`` that ends in an error and has no other branch."""
    return isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise)


def is_packed(node: ast.AST) -> bool:
    """Whether the node assigns several written-out values at once, but for a swap."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    targets = node.targets[0]
    if not isinstance(targets, ast.Tuple):
        return False
    old = {ast.unparse(value) for value in node.value.elts}
    return old != {ast.unparse(target) for target in targets.elts}


def measure(text: str) -> Size:
    """The counts of a file's text."""
    tree = ast.parse(text)
    tokens = words(text, docstrings(tree))
    nodes = list(ast.walk(tree))
    guarded: set[int] = set()
    for node in nodes:
        if is_guard(node):
            guarded.update(range(node.lineno, node.end_lineno + 1))
    code: set[int] = set()
    for token in tokens:
        code.update(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    levels = [complexity(node) for node in nodes if isinstance(node, _FUNCTIONS)]
    return Size(
        lines=len(lines),
        code=len(code),
        tokens=len(tokens),
        guards=len(guarded & code),
        wide=sum(len(line) > WIDEST for line in lines),
        walrus=sum(isinstance(node, ast.NamedExpr) for node in nodes),
        packed=sum(is_packed(node) for node in nodes),
        functions=len(levels),
        complex=sum(level > COMPLEX for level in levels),
        most=max(levels, default=0),
    )


def rooms(folder: Path) -> dict[str, Size]:
    """The counts of each package below a folder; its own files are a room, too."""
    found: dict[str, Size] = defaultdict(Size)
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        found[parts[0] if len(parts) > 1 else "."].add(measure(path.read_text()))
    return dict(found)


def row(name: str, size: Size) -> str:
    """A line of the table."""
    code = max(size.code, 1)
    cells = [
        f"{size.lines:,}",
        f"{size.code:,}",
        f"{size.tokens:,}",
        f"{size.tokens / code:.1f}",
        f"{100 * size.guards / code:.1f} %",
        f"{100 * size.wide / max(size.lines, 1):.1f} %",
        str(size.walrus),
        str(size.packed),
        str(size.functions),
        str(size.complex),
        str(size.most),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def table(sizes: dict[str, Size]) -> str:
    """The rooms and their sum as a table in Markdown."""
    names = [
        "room",
        "lines",
        "code lines",
        "tokens",
        "a line",
        "guards",
        f"over {WIDEST} characters",
        "walrus",
        "packed",
        "functions",
        f"complexity over {COMPLEX}",
        "most",
    ]
    together = Size()
    for size in sizes.values():
        together.add(size)
    head = [f"| {' | '.join(names)} |", f"|---|{'--:|' * (len(names) - 1)}"]
    body = [row(name, size) for name, size in sizes.items()]
    return "\n".join([*head, *body, row("together", together)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT / "hypvision", help="default: the package"
    )
    print(table(rooms(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
