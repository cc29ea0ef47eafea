"""Every script of studies can be imported: what it takes from the package is there."""

import runpy
from pathlib import Path

import pytest
from helpers.cases import each

pytest.importorskip("mmengine")

STUDIES = Path(__file__).parents[2] / "studies"


@each("name", sorted(path.name for path in STUDIES.glob("*.py")))
def test_a_script_finds_what_it_imports(name, monkeypatch):
    monkeypatch.syspath_prepend(STUDIES)
    assert runpy.run_path(str(STUDIES / name))
