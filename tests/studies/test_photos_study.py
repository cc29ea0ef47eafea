"""The study of few photos: its splits, and the page's tables from the numbers in the repository."""

import json
import runpy
from pathlib import Path

import pytest

pytest.importorskip("mmengine")
from PIL import Image

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/studies/photos.md"


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "studies/photos_study.py"))


def test_the_page_has_the_tables_of_the_results(tool):
    rows = list(json.loads((ROOT / "docs/studies/photos.json").read_text()).values())
    page = PAGE.read_text()
    tables, _, verdicts = tool["tables"](rows).rpartition("\n\n")
    for line in tables.splitlines():
        assert line in page, line
    for sentence in verdicts.splitlines():
        assert sentence in " ".join(page.split())
    found = json.loads((ROOT / "docs/studies/photos-unlike.json").read_text())
    for line in tool["unlike_table"](found).splitlines():
        assert line in page, line
    case = json.loads((ROOT / "docs/studies/photos-case.json").read_text())
    for value in case.values():
        assert f" | {value:.1f} |" in page
    assert f"knew {case['probe']:.1f} %" in (ROOT / "docs/own-data.md").read_text()


def test_a_row_is_compared_with_the_probe_of_its_own_split(tool):
    def row(shots, setting, last, **more):
        known = dict(set="grocery", shots=shots, setting=setting, seed=0, last=last, best=last + 1)
        return known | dict(probe_validation=None) | more

    first, second, *_ = tool["SETTINGS"]
    up = dict(probe_validation=70.0, last_validation=70.0)
    down = dict(probe_validation=70.0, last_validation=69.0)
    rows = [
        row("4", "probe, 1e-4", 52.0, probe=50.0, **up),
        row("8", "probe, 1e-4", 58.0, probe=60.0, **down),
    ]
    rows.append(row("8", first, 20.0))
    text = tool["tables"](rows)
    assert f"| {first} | 1 | 60.0 | 20.0 | 21.0 | 20.0 | -40.0 |" in text and second not in text
    # with 8 images a class alone
    assert "| probe, 1e-4 | 1 | 60.0 | 58.0 | 59.0 | 60.0 | +0.0 |" in text
    assert "With the setting probe, 1e-4, 1 of 2 runs are above the probe and 0 below it" in text


def test_seeds_of_a_run_are_one_row(tool):
    """With mean and deviation; the choice is judged by the first."""
    about = dict(set="grocery", shots="8", setting="probe, 1e-4", probe_validation=50.0)
    about |= dict(last_validation=60.0, best=70.0, probe=60.0)
    rows = [dict(about, seed=seed, last=last) for seed, last in enumerate((62.0, 58.0, 63.0))]
    text = tool["tables"](rows)
    assert "| probe, 1e-4 | 1 | 60.0 | 62.0 | 70.0 | 62.0 | +2.0 |" in text
    row = "| grocery | 8 | probe, 1e-4 | 3 | 60.0 ± 0.0 | 61.0 ± 2.6 | 70.0 ± 0.0 | 61.0 |"
    assert row in text
    assert "2 of 3 runs are above the probe and 1 below it; the mean gain is 1.0" in text
    assert "Of 1 means over seeds 0 are below it, the least is +1.0." in text


def test_parts_of_a_run_share_no_image(tool, tmp_path):
    def files(part):
        found = {}
        for name in ("a", "b/c"):
            folder = tmp_path / part / name.replace("/", "-")
            folder.mkdir(parents=True)
            found[name] = [folder / f"{i}.png" for i in range(20)]
            for path in found[name]:
                Image.new("RGB", (2, 2)).save(path)
        return found

    data = tool["chosen"](files("train"), files("test"), 32)
    assert sorted(data.train) == ["a", "b/c"] and not data.others
    tool["link"](data, "4", 0, tmp_path / "out")
    parts = {
        part: {p.resolve() for p in (tmp_path / "out" / part).rglob("*.png")}
        for part in ("train", "val", "test")
    }
    assert [len(parts[part]) for part in parts] == [8, 16, 40]
    assert not parts["train"] & parts["val"] and not parts["val"] & parts["test"]
