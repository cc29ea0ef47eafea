"""The page on scaling laws does what it says: its code runs, its commands are read, its links and pictures exist."""

import re
import shlex
from pathlib import Path

from hypvision.cli import parser_of

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "scaling.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_code_runs():
    assert len(blocks("python")) == 1
    exec(blocks("python")[0], {})


def test_commands_are_read():
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(lines) > 5
    for line in lines:
        program, name, *words = shlex.split(line, comments=True)
        assert program == "hypvision"
        parser_of(name).parse_args(words)


def test_links_and_pictures_are_there():
    targets = re.findall(r"\]\(([^)#]+)", PAGE)
    assert any(target.endswith(".png") for target in targets)
    for target in targets:
        assert (DOCS / target).is_file(), target
