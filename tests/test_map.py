"""The map in CONTRIBUTING.md is the tree, and its order is the one that the linter holds."""

import ast
import configparser
import re

from helpers.engine import ROOT
from helpers.syntax import syntax_tree

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = [
    row.split("|")[1]
    for row in TEXT.split("## Conventions")[0].splitlines()
    if row.startswith("| `")
]


def named(row: str) -> list[str]:
    """The paths of a row; later paths may omit the folder of the first: ``hypvision/nn`,
    `optim``."""
    names = re.findall(r"`([\w./]+)`", row)
    package = "hypvision/" if names[0].startswith("hypvision/") else ""
    return [name if "/" in name or not package else f"{package}{name}" for name in names]


def test_the_table_of_packages_matches_the_tree():
    on_map = {name.rstrip("/") for row in ROWS for name in named(row)}
    assert [name for name in sorted(on_map) if not (ROOT / name).exists()] == []
    packages = {
        f"hypvision/{path.name}"
        for path in (ROOT / "hypvision").iterdir()
        if (path / "__init__.py").is_file()
    }
    files = {f"hypvision/{path.name}" for path in (ROOT / "hypvision").glob("*.py")}
    assert packages | files - {"hypvision/__init__.py", "hypvision/version.py"} <= on_map
    folders = {"configs", "docs", "model_zoo", "requirements", "studies", "tests", "tools"}
    assert folders <= on_map


def test_rows_stand_in_the_order_of_the_layers():
    linter = configparser.ConfigParser()
    linter.read(ROOT / ".importlinter")
    layers = [
        line.split(" | ")
        for line in linter["importlinter:contract:layers"]["layers"].split("\n")
        if line
    ]
    height = {package: number for number, layer in enumerate(reversed(layers)) for package in layer}
    heights = [
        max(height[name.removeprefix("hypvision/").removesuffix(".py")] for name in names)
        for names in (
            [name for name in named(row) if name.startswith("hypvision/")] for row in ROWS
        )
        if names
    ]
    assert len(heights) > 12 and heights == sorted(heights)


def test_the_folders_of_tests_are_the_packages():
    packages = {
        path.name for path in (ROOT / "hypvision").iterdir() if (path / "__init__.py").is_file()
    }
    others = {"contract", "goldens", "helpers", "hostile", "references", "studies", "tools"}
    tests = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("*.py"))
    }
    assert tests - others <= packages


def test_no_package_names_an_upper_one():
    """Modules named in strings, which the linter cannot see, stand in ``hypvision/__init__.py``,
    above all packages."""
    linter = configparser.ConfigParser()
    linter.read(ROOT / ".importlinter")
    layers = [
        line.split(" | ")
        for line in linter["importlinter:contract:layers"]["layers"].split("\n")
        if line
    ]
    height = {package: number for number, layer in enumerate(reversed(layers)) for package in layer}
    upward = []
    for path in sorted((ROOT / "hypvision").rglob("*.py")):
        place = path.relative_to(ROOT / "hypvision")
        if place.as_posix() in ("__init__.py", "version.py"):
            continue
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(syntax_tree(text)) if re.search(r"[\"']hypvision\.", text) else ():
            named = isinstance(node, ast.Constant) and re.fullmatch(
                r"hypvision\.(\w+)[\w.:]*", str(node.value)
            )
            if named and height.get(named[1], 0) > height[place.parts[0].removesuffix(".py")]:
                upward.append((place.as_posix(), node.value))
    # names of former modules, and a command that is run as a process
    assert {path for path, _ in upward} <= {"engine/config.py", "tasks/publishing.py"}, upward
