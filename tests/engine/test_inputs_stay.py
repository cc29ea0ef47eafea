"""What a run reads is never written by it: its config, that one's bases, the files that it names;
links stay links."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from helpers.engine import make_images, write_config
from PIL import Image

from hypvision.cli import main
from hypvision.engine.config import load_config
from hypvision.engine.reports import add_report, write_predictions
from hypvision.engine.run import test as measure
from hypvision.io.errors import HypvisionError
from hypvision.io.files import protecting


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
        assert (
            main(
                f"test {child} {weights} --work-dir {config.parent / 't'} --save {written}".split()
            )
            == 2
        )
        assert "an input of this command" in capsys.readouterr().err
        assert written.read_text() == before


def test_a_test_leaves_the_record_of_the_training(config, tmp_path, capsys):
    work = tmp_path / "work"
    options = ["--work-dir", str(work), "--cfg-options"]
    assert main(["train", str(config), *options, "randomness.seed=7"]) == 0
    record = (work / "config.py").read_text()
    assert "seed=7" in record
    assert (
        main(["test", str(config), str(work / "epoch_1.pth"), *options, "randomness.seed=8"]) == 0
    )
    [own] = set(work.glob("*.py")) - {work / "config.py"}
    assert (work / "config.py").read_text() == record and "seed=8" in own.read_text()


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
    for option, place in (
        ("--save", image),
        ("--save", data / "train/new.json"),
        ("--show-dir", data / "val/blue"),
    ):
        assert (
            main(
                f"test {config} {weights} --work-dir {config.parent / 't'} {option} {place}".split()
            )
            == 2
        )
        assert "which holds data" in capsys.readouterr().err
    assert image.read_bytes() == before and not (data / "train/new.json").exists()

    monkeypatch.chdir(data / "val")  # where everything lies below the data, but images
    with pytest.raises(HypvisionError, match="which holds data"):
        measure(config, weights, config.parent / "t", save="blue/0.png")
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
        ("IoUMetric", "maps/val", True), ("IoUMetric", "images", True),
        ("IoUMetric", "work/maps", False), ("IoUMetric", ".", root != ""),
        ("TopKAccuracy", "ann.json", True), ("TopKAccuracy", "work/a.json", False),
    ):  # fmt: skip
        part = dict(dataset, data_prefix=prefixes[out == "."])
        content = dict(
            model=dict(type="x"),
            test_dataloader=dict(dataset=part),
            test_evaluator=dict(type=metric),
        )
        (tmp_path / "config.json").write_text(json.dumps(content))
        found = load_config(tmp_path / "config.json")
        with (
            protecting(*found.inputs()),
            pytest.raises(HypvisionError) if refused else nullcontext(),
        ):
            add_report(found, Path(out), "x") if metric == "IoUMetric" else write_predictions(
                found, Path(out)
            )


def test_names_of_classes_lead_nowhere(tmp_path):
    """``--show-dir`` calls its images after the classes of the config."""
    from hypvision.tasks.classification import PredictionPainterHook

    data = [dict(index=i, scores=torch.tensor([0.0, 1.0]), label=i) for i in (0, 1)]
    dataset = MagicMock(metainfo=dict(classes=["a/../../../escaped", "yes/no"]))
    dataset.__len__.return_value, dataset.read.return_value = 2, Image.new("RGB", (8, 8))
    runner = SimpleNamespace(test_dataloader=SimpleNamespace(dataset=dataset))
    painter = PredictionPainterHook(str(tmp_path / "deep/er/shown"))
    painter.before_test(runner)
    painter.after_test_iter(runner, 0, outputs=data)
    names = sorted(path.name for path in tmp_path.rglob("*.png"))
    assert names == ["right_000001_yes-no.png", "wrong_000000_a-..-..-..-escaped.png"]
    assert all(path.parent == tmp_path / "deep/er/shown" for path in tmp_path.rglob("*.png"))


@pytest.mark.parametrize("kind", ["IoUMetric", "OpenVocabIoUMetric"])
@pytest.mark.parametrize("count", [3, 300])
def test_label_maps_are_files_of_their_own(tmp_path, kind, count):
    pytest.importorskip("mmseg")
    from mmseg.registry import METRICS

    import hypvision.openmmlab.open_vocabulary.segmentation  # noqa: F401
    from hypvision.openmmlab.label_maps import LabelMapNamesHook

    paths = [str(tmp_path / name) for name in ("x/a.jpg", "y/a.jpg", "b.jpg")]
    metric = METRICS.build(dict(type=kind, output_dir=str(tmp_path / "maps")))
    metric.dataset_meta = dict(classes=tuple(map(str, range(count))))
    dataset = MagicMock(get_data_info=lambda index: dict(img_path=paths[index]))
    dataset.__len__.return_value = 3
    runner = SimpleNamespace(
        test_dataloader=SimpleNamespace(dataset=dataset),
        test_evaluator=SimpleNamespace(metrics=[metric]),
    )
    LabelMapNamesHook().before_test(runner)
    labels = [torch.full((1, 2, 2), i if count == 3 else 290 + i) for i in range(3)]
    images = [dict(img_path=path, pred_sem_seg=dict(data=map_), gt_sem_seg=dict(data=map_),
    reduce_zero_label=i == 2)
                for i, (path, map_) in enumerate(zip(paths, labels))]  # fmt: skip
    metric.process({}, images)
    for name, expected in (("x_a", labels[0]), ("y_a", labels[1]), ("b", labels[2] + 1)):
        assert (np.array(Image.open(tmp_path / f"maps/{name}.png")) == expected[0].numpy()).all()

    (tmp_path / "victim").write_text("old")
    (tmp_path / "maps/x_a.png").unlink()
    (tmp_path / "maps/x_a.png").symlink_to(tmp_path / "victim")
    with pytest.raises(HypvisionError, match="leads out of|a link"):
        metric.process({}, images)
    assert (tmp_path / "victim").read_text() == "old"
