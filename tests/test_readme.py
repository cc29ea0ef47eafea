"""README: its recipes run as they stand, in a folder with what a clone has; it is short, and its
pictures load fast."""

import re
import shlex
from glob import glob

import pytest
from helpers.engine import ROOT

from hypvision.cli import main

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPES = re.split(
    r"^\*\*\d\. ", TEXT.partition("## Recipes")[2].partition("\n## ")[0], flags=re.M
)[1:]
SLOW = ("hypvision train", "hypvision export", "metric search", "hypvision disk")


def blocks(text, language):
    """What stands between the fences of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """An empty folder, but for what recipes read."""
    for name in ("tools", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYPVISION_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(
            r, marks=pytest.mark.slow if any(name in r for name in SLOW) else [], id=r.split("*")[0]
        )
        for r in RECIPES
    ],
)
def test_a_recipe_runs(recipe, clone, capsys):
    for code in blocks(recipe, "python"):
        exec(compile(code, "README.md", "exec"), {})
    for code in blocks(recipe, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            name, *given = shlex.split(line, comments=True)
            words = [path for word in given for path in sorted(glob(word)) or [word]]
            assert name == "hypvision"
            assert main(words) == 0, capsys.readouterr().err
    written = {path.relative_to(clone).parts[0] for path in clone.rglob("*") if path.is_file()} - {
        "tools",
        "configs",
    }
    assert written or "```sh" not in recipe
    assert written <= {"out", "work_dirs"}


def test_there_are_seven_and_each_has_code():
    assert len(RECIPES) == 7
    assert all(blocks(recipe, "(?:sh|python)") for recipe in RECIPES)


def test_it_is_read_in_a_few_minutes():
    assert len(TEXT.splitlines()) <= 200


def test_its_code_fits_into_the_page():
    code = re.findall(r"^```\w+\n(.*?)^```", TEXT, flags=re.M | re.S)
    assert [line for block in code for line in block.splitlines() if len(line) > 90] == []


def test_its_pictures_load_fast():
    pictures = re.findall(r'<img src="([^"]+)" alt="[^"]+"', TEXT)
    assert len(pictures) == 7
    assert sum((ROOT / picture).stat().st_size for picture in pictures) < 2_000_000
