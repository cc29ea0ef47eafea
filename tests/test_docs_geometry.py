"""The tutorial does what it says: its code runs and prints what stands there, its images and links
exist."""

import doctest
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "geometry.md").read_text(encoding="utf-8")


def test_code_blocks_run_and_print_what_the_page_shows():
    pytest.importorskip("mmengine")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8 and all(">>> " in block for block in blocks)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "docs/geometry.md", None, 0)
    report = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert result.attempted > 40
    assert result.failed == 0, "".join(report)


def test_links_and_pictures_are_there():
    targets = re.findall(r"\]\(([^)#]+)", PAGE)
    assert "images/geometry/tree.png" in targets
    for target in targets:
        assert (DOCS / target).is_file(), target
