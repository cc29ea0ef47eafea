"""Every notebook of the site runs, offline, on what ships with the repository."""

from pathlib import Path

import pytest
from helpers.engine import ROOT

PAGES = sorted((ROOT / "docs/notebooks").glob("*.md"))


def test_there_are_five():
    assert len(PAGES) == 5
    assert all(
        "format_name: myst" in page.read_text(encoding="utf-8") for page in PAGES
    )  # Jupyter opens them


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_notebook_runs(page: Path, monkeypatch):
    client = pytest.importorskip("nbclient", reason="the extra 'docs' is not installed")
    read = pytest.importorskip("myst_nb.core.read", reason="the extra 'docs' is not installed")
    config = pytest.importorskip("myst_parser.config.main")
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    notebook = read.read_myst_markdown_notebook(
        page.read_text(encoding="utf-8"), config.MdParserConfig()
    )
    where = {"metadata": {"path": str(page.parent)}}
    client.NotebookClient(notebook, timeout=540, kernel_name="python3", resources=where).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) >= 5 and all(cell.execution_count for cell in cells)
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
