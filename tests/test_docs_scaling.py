"""The page on scaling laws does what it says: its code runs, its commands are read, its links and
images exist."""

import re
import shlex
from pathlib import Path

from superposition.claims import claims_of
from superposition_study import kept_rows, parser_of_study

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
        program, *words = shlex.split(line, comments=True)
        if program == "python":
            assert words[0] == "studies/superposition_study.py"
            parser_of_study().parse_args(words[1:])
        else:
            assert program == "hypvision"
            parser_of(" ".join(words[:2])).parse_args(words[2:])


def test_links_and_pictures_are_there():
    targets = re.findall(r"\]\(([^)#]+)", PAGE)
    assert any(target.endswith(".png") for target in targets)
    for target in targets:
        assert (DOCS / target).is_file(), target


def verdicts():
    """The table of claims that the committed rows give."""
    rows = kept_rows(DOCS.parent / "configs/scaling/results/fig4.csv")
    lines = ["| figure | claim | paper | here | verdict |", "|---|---|---|---|---|"]
    for figure in ("fig3", "fig4", "fig5", "fig6"):
        for claim in claims_of(figure, rows):
            verdict = str(claim).partition(":")[0]
            lines.append(
                f"| {figure} | {claim.statement} | {claim.paper} | {claim.ours} | {verdict} |"
            )
    return "\n".join(lines)


def test_verdicts_are_those_of_the_committed_rows():
    assert f"\n{verdicts()}\n" in PAGE
