"""Every option of every command that README, docs and configs show is one that the command has."""

import re
from pathlib import Path

from hypvision.cli import COMMANDS, parser_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").glob("*/README.md")]


def commands(text):
    """Pairs of a command's name and its options, of each ``hypvision ...`` in code."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for part in re.split(r"[`|;#]|&&", line):
            words = part.partition("hypvision ")[2].split()
            name = next((n for n in (" ".join(words[:2]), " ".join(words[:1])) if n in COMMANDS), None)
            if name:
                yield name, re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words))


def test_documented_options_exist():
    found = [(page, *command) for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]
    assert len(found) > 100
    known = {name: set(parser_of(name)._option_string_actions) for _, name, _ in found}
    wrong = [(page.name, name, o) for page, name, options in found for o in options if o not in known[name]]
    assert not wrong
