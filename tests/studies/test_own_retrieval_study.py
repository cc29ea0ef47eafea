"""The study of metric learning on few photos: its splits, its choice and its tables."""

import json
import runpy
from pathlib import Path

import pytest

pytest.importorskip("mmengine")
from PIL import Image

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "studies/own_retrieval_study.py"))


def test_the_page_has_the_tables_of_the_results(tool):
    rows = list(json.loads((ROOT / "docs/studies/own-retrieval.json").read_text()).values())
    page = (ROOT / "docs/studies/photos.md").read_text()
    for line in tool["tables"](rows).splitlines():
        assert line in page, line


def row(rate, frozen, trained, name="grocery", shots="8"):
    parts = {
        part: {"recall@1": value, "map@r": value}
        for part, value in (("frozen", frozen), ("trained", trained))
    }
    return dict(set=name, shots=shots, rate=rate, seed=0, **parts)


def test_the_rate_is_chosen_by_the_gain_on_the_sets_of_the_choice(tool):
    rows = [row(3e-5, 50.0, 52.0), row(1e-4, 50.0, 55.0), row(3e-4, 50.0, 51.0)]
    rows.append(row(3e-4, 10.0, 90.0, name="emoji"))
    rows.append(row(3e-4, 10.0, 90.0, shots="4"))
    assert tool["best_rate"](rows) == 1e-4
    text = tool["tables"](rows)
    assert "| 0.0001 | 1 | +5.0 | +5.0 |" in text
    assert "| emoji | 8 | 0.0003 | 1 | 10.0, 10.0 | 90.0, 90.0 | +80.0 |" in text


def test_training_and_test_share_no_class(tool, tmp_path):
    def files(part):
        found = {}
        for name in "abcde":
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            found[name] = [folder / f"{number}.png" for number in range(20)]
            for path in found[name]:
                Image.new("RGB", (2, 2)).save(path)
        return found

    data = tool["chosen"](files("train"), files("test"), 32)
    assert tool["link"](data, "4", 0, tmp_path / "out") == 3
    classes = {
        part: {path.name for path in (tmp_path / "out" / part).iterdir()}
        for part in ("train", "test")
    }
    assert not classes["train"] & classes["test"]
    assert classes["train"] | classes["test"] == set("abcde")
    assert len(list((tmp_path / "out/train").rglob("*.png"))) == 12
