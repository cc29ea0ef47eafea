"""The example of each page of docs/methods runs as it stands, and each page has what the others
have."""

import re
from pathlib import Path

import pytest
from helpers.cases import each
from helpers.engine import ROOT

PAGES = sorted((ROOT / "docs/methods").glob("*.md"), key=lambda path: path.stem)
SLOW = ("hyperbolic-segmentation",)


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p.stem in SLOW else [], id=p.stem) for p in PAGES],
)
def test_the_example_runs(page: Path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    [block] = re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    exec(compile(block, str(page), "exec"), {})


@each("page", PAGES)
def test_a_page_says_all(page):
    text = page.read_text(encoding="utf-8")
    titles = ["The idea", "Use", "Configs", "Weights", "Results", "Limits", "Citation"]
    assert re.findall(r"^## (.+)$", text, flags=re.M) == titles
    [folder] = re.findall(r"^```{configs} (\S+)$", text, flags=re.M)
    assert (ROOT / "configs" / folder / "metafile.yml").is_file()
    idea = text.partition("## The idea\n")[2].partition("```{figure}")[0]
    assert len(re.findall(r"\.(?=\s)", idea)) == 5


def test_every_method_with_configs_has_a_page():
    folders = {path.parent.name for path in (ROOT / "configs").glob("*/metafile.yml")} - {
        "baselines",
        "demo",
    }
    found = [
        re.findall(r"^```{configs} (\S+)$", page.read_text(encoding="utf-8"), flags=re.M)[0]
        for page in PAGES
    ]
    assert sorted(found) == sorted(folders)
