"""The page on the models of 2026 names tests that exist: every file, and every expression in the
file that was named last."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/models-2026.md"
COMMAND = re.compile(r"`(\S+\.py)?(?: ?-k (\"[^\"]+\"|\w+))?`")


def named(text: str) -> list[tuple[str, str | None]]:
    """File and expression of each test in the last cells of the tables, in their order."""
    found = []
    file = ""
    for line in text.splitlines():
        if line.startswith("| "):
            for own, expression in COMMAND.findall(line.split(" | ")[-1]):
                file = own or file
                found.append((file, expression.strip('"') or None))
    return found


def selects(file: str, expression: str | None) -> bool:
    """Whether a file below tests/ has, for each word of an expression, a test of this name or a
    case that is called so."""
    path = ROOT / "tests" / file
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^def (test_\w+)", text, flags=re.M)
    cases = re.findall(r"\"([\w-]+)\"", text)
    words = re.split(r" or ", expression) if expression else ["test_"]
    return all(any(word in name for name in (*names, *cases)) for word in words)


def test_every_test_that_the_page_names_exists():
    tests = named(PAGE.read_text(encoding="utf-8"))
    assert len(tests) > 45
    assert [test for test in tests if not selects(*test)] == []


def test_a_test_that_does_not_exist_is_found():
    page = "| a | b | c | `losses/test_class_tree.py -k floors` |\n| d | e | f | `-k unseen` |"
    assert named(page) == [
        ("losses/test_class_tree.py", "floors"),
        ("losses/test_class_tree.py", "unseen"),
    ]
    assert selects("losses/test_class_tree.py", "floors")
    assert not selects("losses/test_class_tree.py", "floors or unseen")
    assert not selects("losses/test_trees.py", None)
