"""Where the package replaces a part of another library, CONTRIBUTING.md says which check was
there."""

import ast
import re
from pathlib import Path

from helpers.syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[1]
SWITCHES = re.compile(r"torch\.serialization\.(clear|add)_safe_globals")


def first_name(node):
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def replaced(code):
    """What a module of the package assigns to: attributes of what it imports, and methods of
    objects of others."""
    nodes = list(ast.walk(syntax_tree(code)))
    imported, functions = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            ours = isinstance(node, ast.ImportFrom) and (node.module or "hypvision").startswith(
                "hypvision"
            )
            imported |= (
                set() if ours else {(name.asname or name.name).split(".")[0] for name in node.names}
            )
        elif isinstance(node, ast.FunctionDef):
            functions.add(node.name)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AugAssign):
            value = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "with_messages":
                value = value.args[0]
            method = isinstance(value, ast.Lambda) or (
                isinstance(value, ast.Name) and value.id in functions
            )
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                owner = first_name(target)
                others = owner in imported or (method and owner not in ("self", "cls"))
                if isinstance(target, ast.Attribute) and others:
                    found.add(ast.unparse(target))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            if name == "patch.object" and isinstance(node.args[1], ast.Constant):
                found.add(f"{ast.unparse(node.args[0])}.{node.args[1].value}")
            elif name == "patch.dict":
                found.add(ast.unparse(node.args[0]))
            elif SWITCHES.fullmatch(name):
                found.add(name)
    return found


def test_every_override_is_listed_with_its_check():
    section = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("## What we replace in other libraries")[2]
    )
    rows = re.findall(
        r"^\| `(.*?)` \| (.*?) \| .{5,} \|$", section.partition("\n## ")[0], re.MULTILINE
    )
    listed = {(file, name) for file, names in rows for name in re.findall(r"`(.*?)`", names)}
    package = ROOT / "hypvision"
    found = {
        (path.relative_to(package).as_posix(), name)
        for path in package.rglob("*.py")
        for name in replaced(path.read_text())
    }
    assert found == listed


def test_overrides_are_found():
    code = (
        "import a\nfrom b import C\ndef f(): pass\na.x = 1\nC.y = f\nz.m = lambda: 1\nz.n = "
        "1\npatch.object(a, 'q', 2)"
    )
    assert replaced(code) == {"a.x", "C.y", "z.m", "a.q"}
