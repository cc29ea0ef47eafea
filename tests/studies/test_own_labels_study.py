"""The study of several labels an image: its tables of a run, and the page of its results."""

import json
import runpy
from pathlib import Path

import pytest

pytest.importorskip("mmengine")
from PIL import Image

from hypvision.data.multi_label import read_table

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "studies")
        return runpy.run_path(str(ROOT / "studies/own_labels_study.py"))


def test_the_page_has_the_table_of_the_results(tool):
    rows = json.loads((ROOT / "docs/studies/own-labels.json").read_text()).values()
    page = (ROOT / "docs/studies/photos.md").read_text()
    table, _, verdict = tool["table"](rows).rpartition("\n\n")
    for line in table.splitlines():
        assert line in page, line
    assert verdict in " ".join(page.split())


def test_labels_that_the_training_lacks_do_not_count(tool, tmp_path, monkeypatch):
    photo = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(photo)
    one = tool["Labelled"]
    train = [one(photo, ("cat",))] * 80
    tested = [one(photo, ("cat", "owl"))] * 3
    tool["write"](tool["Data"](train, tested), 10, 0, tmp_path / "out")
    for part, count in (("train", 10), ("val", 64), ("test", 3)):
        table = read_table(tmp_path / f"out/{part}.csv")
        assert table.names == ["cat"] and len(table.rows) == count
        assert all((tmp_path / "out" / image).is_file() for image in table.rows)


def test_scenes_have_the_classes_that_they_show(tool, tmp_path):
    for part in ("train", "val", "test"):
        for kind, mode in (("img", "RGB"), ("ann", "L")):
            (tmp_path / "camvid" / kind / part).mkdir(parents=True)
            ending = "jpg" if kind == "img" else "png"
            picture = Image.new(mode, (20, 20), 0)
            if kind == "ann":
                picture.paste(8, (0, 0, 10, 10))  # a car
                picture.paste(3, (10, 10, 20, 20))  # road, which nearly all show
            picture.save(tmp_path / "camvid" / kind / part / f"a.{ending}")
    data = tool["SETS"]["CamVid scenes"](tmp_path)
    assert [one.names for one in data.train] == [("car",), ("car",)]
    assert [one.names for one in data.test] == [("car",)]


def test_gains_are_told_run_by_run(tool):
    def row(images, seed, trained):
        about = dict(set="CamVid scenes", images=images, seed=seed, classes=8)
        return dict(about, probe=50.0, trained=trained)

    text = tool["table"]([row(32, 0, 53.0), row(32, 1, 51.0), row(64, 0, 49.0)])
    assert "| CamVid scenes | 32 | 8 | 2 | 50.0 ± 0.0 | 52.0 ± 1.4 | +2.0 |" in text
    assert "Of 3 runs 2 are above the probe; the mean gain is 1.0 points, the least -1.0." in text
