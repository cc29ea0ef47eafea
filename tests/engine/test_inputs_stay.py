"""What a run reads is never written by it: its config, that one's bases, the files that it names; links stay links."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.engine import make_images, write_config

from hypvision.cli import main
from hypvision.engine.config import files_of, load_config
from hypvision.engine.run import _write_predictions
from hypvision.engine.run import test as measure
from hypvision.errors import HypvisionError
from hypvision.files import protecting


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return write_config(folder / "config.py", make_images(tmp_path / "data"), epochs=1)


def test_a_config_in_its_own_work_dir_stays(config, capsys):
    text = config.read_text() + "# mine\n"
    config.write_text(text)
    assert main(["train", str(config), "--work-dir", str(config.parent)]) == 0
    assert config.read_text() == text
    dumped = [path for path in config.parent.glob("*.py") if path != config]
    assert len(dumped) == 1 and "train_dataloader" in dumped[0].read_text()

    base = config.parent / "base.json"
    base.write_text("{}")
    child = config.parent / "child.py"
    child.write_text("_base_ = ['config.py', 'base.json']\n")
    weights = str(config.parent / "epoch_1.pth")
    capsys.readouterr()
    for written in (base, config):
        before = written.read_text()
        assert main(["test", str(child), weights, "--work-dir", str(config.parent / "t"), "--out", str(written)]) == 2
        assert "an input of this command" in capsys.readouterr().err and written.read_text() == before


@pytest.mark.parametrize("name", ["last_checkpoint", "config.py"])
def test_links_in_a_work_dir_are_not_followed(config, tmp_path, capsys, name):
    precious = tmp_path / "precious"
    precious.write_text("old")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / name).symlink_to(precious)
    assert main(["train", str(config), "--work-dir", str(tmp_path / "work")]) == 2
    assert "link" in capsys.readouterr().err and precious.read_text() == "old"


def test_images_of_the_data_stay(config, monkeypatch, capsys):
    assert main(["train", str(config), "--work-dir", str(config.parent)]) == 0
    weights, data = str(config.parent / "epoch_1.pth"), config.parents[1] / "data"
    image = data / "val/blue/0.png"
    before = image.read_bytes()
    for option, place in (("--out", image), ("--out", data / "train/new.json"), ("--show-dir", data / "val/blue")):
        assert main(["test", str(config), weights, "--work-dir", str(config.parent / "t"), option, str(place)]) == 2
        assert "which holds data" in capsys.readouterr().err
    assert image.read_bytes() == before and not (data / "train/new.json").exists()

    monkeypatch.chdir(data / "val")  # where everything lies below the data, but images
    with pytest.raises(HypvisionError, match="which holds data"):
        measure(config, weights, config.parent / "t", out="blue/0.png")
    assert image.read_bytes() == before


@pytest.mark.parametrize("root", ["", ".", "{data}"])
def test_label_maps_and_annotations_of_the_data_stay(tmp_path, monkeypatch, root):
    pytest.importorskip("mmseg")
    import hypvision.openmmlab  # noqa: F401 - where predictions of its metrics go

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ann.json").write_text("{}")
    dataset = dict(type="x", data_root=root.format(data=tmp_path), ann_file="ann.json")
    prefixes = [dict(img_path="images", seg_map_path="maps"), {}]
    for metric, out, refused in (
        ("IoUMetric", "maps/val", True), ("IoUMetric", "images", True), ("IoUMetric", "work/maps", False),
        ("IoUMetric", ".", root != ""), ("TopKAccuracy", "ann.json", True), ("TopKAccuracy", "work/a.json", False),
    ):  # fmt: skip
        part = dict(dataset, data_prefix=prefixes[out == "."])
        content = dict(model=dict(type="x"), test_dataloader=dict(dataset=part), test_evaluator=dict(type=metric))
        (tmp_path / "config.json").write_text(json.dumps(content))
        found = load_config(tmp_path / "config.json")
        with protecting(*files_of(found)), pytest.raises(HypvisionError) if refused else nullcontext():
            _write_predictions(found, Path(out))
