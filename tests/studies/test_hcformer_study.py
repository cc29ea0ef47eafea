"""The study of HCFormer on drawn images: its runs, what it keeps and does not compute again, its
table."""

import json
import runpy
from pathlib import Path

STUDIES = Path(__file__).parents[2] / "studies"


def test_the_table_in_the_readme_is_that_of_the_results():
    study = runpy.run_path(str(STUDIES / "hcformer_study.py"))
    folder = study["CONFIGS"] / "hcformer"
    results = json.loads((folder / "curves/study.json").read_text())
    page = (study["CONFIGS"].parent / "docs/studies/hcformer.md").read_text()
    assert study["table"](results, list(study["STUDY"]), 2).strip() in page


def test_other_options_go_into_another_folder():
    folder = runpy.run_path(str(STUDIES / "hcformer_study.py"))["_folder"]
    folders = [
        folder("center, seed 1", options, amp)
        for options in ({}, {"a.b": 1}, {"a.b": 2})
        for amp in (0, 1)
    ]
    assert folders[0] == "center-seed-1" and len(set(folders)) == 6
    assert folder("x", {"a": 1, "b": 2}, True) == folder("x", {"b": 2, "a": 1}, True)
