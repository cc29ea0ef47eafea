"""The table of hierarchies in docs/evidence.md is that of the runs in its result file."""

import json
from pathlib import Path

import closure_study as study

ROOT = Path(__file__).parents[1]


def test_the_table_is_recomputed_from_the_runs():
    results = json.loads((ROOT / "docs/studies/closures.json").read_text())
    assert study.tables(results) in (ROOT / "docs/evidence.md").read_text()
