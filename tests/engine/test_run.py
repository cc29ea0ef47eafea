"""From a config to metrics, and what the commands say to a user who made a mistake."""

import errno
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmengine")
from helpers.engine import ROOT, fails, make_images, write_config

from hypvision.cli import main
from hypvision.engine import reports
from hypvision.engine.checks import check_data, explain
from hypvision.engine.config import Run, load_config, parse_options, prepare
from hypvision.engine.precision import has_fast_bfloat16
from hypvision.io.errors import HypvisionError


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A config and the checkpoint that ``tools/train.py`` made from it."""
    folder = tmp_path_factory.mktemp("trained")
    config = write_config(folder / "trained.py", data, epochs=2)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    command = [sys.executable, "tools/train.py", config, "--work-dir", folder / "run", "--amp"]
    command += ["--cfg-options", "train_dataloader.batch_size=6"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "validate 3/3" in done.stderr and "epoch     top1" in done.stderr  # lines for people
    (log,) = (folder / "run").glob("*/*.log")  # and all of mmengine's in the file
    assert all(word in log.read_text() for word in ("eta:", "loss:", "top1:"))
    return config, folder / "run" / "epoch_2.pth"


@pytest.mark.slow
def test_train_then_test(trained, tmp_path, capsys):
    config, checkpoint = trained
    assert any(checkpoint.parent.glob("best_top1_epoch_*.pth"))
    arguments = (
        f"--save {tmp_path / 'predictions.json'} --show-dir {tmp_path / 'painted'} --tta".split()
    )
    capsys.readouterr()
    assert (
        main([*f"test {config} {checkpoint} --work-dir {tmp_path}".split(), *map(str, arguments)])
        == 0
    )
    metrics = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    report = json.loads((tmp_path / "predictions.json").read_text())
    assert metrics["top1"] == pytest.approx(report["metrics"]["top1"], abs=1e-3)
    assert len(report["predictions"]) == 24
    assert len(list((tmp_path / "painted").glob("*.png"))) == 24


@each(
    "key, value, expected",
    [
        ("train_dataloader", 3, "a dict"),
        ("visualizer", 4, "a dict"),
        ("custom_hooks", [3], "a list of dicts"),
        ("test_evaluator", "Accuracy", "a dict or a list of dicts"),
        ("load_from", 3, "a string"),
    ],
)
def test_options_that_change_the_form_of_a_config(key, value, expected):
    with pytest.raises(
        HypvisionError,
        match=re.escape(f"has {key} = {value!r}, but {expected} is expected for this key"),
    ):
        load_config(ROOT / "configs/hcformer/hcformer-nano_cifar10.py", {key: value})


def test_data_root_moves_every_data_set():
    config = load_config(
        ROOT / "configs/hcformer/hcformer-nano_cifar10.py", dict(data_root="/elsewhere/")
    )
    assert config.train_dataloader.dataset.root == "/elsewhere/train"
    assert config.test_dataloader.dataset.root == "/elsewhere/test"


def test_data_root_moves_evaluators_and_they_are_looked_at(tmp_path):
    config = load_config(
        ROOT / "configs/hcformer/mask-rcnn_hcformer-nano_8xb2-1x_coco.py",
        dict(data_root=f"{tmp_path}/"),
    )
    truth = "annotations/instances_val2017.json"
    assert config.val_evaluator.ann_file == f"{tmp_path}/{truth}"
    for folder in ("train2017", "val2017"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0.jpg").touch()
    (tmp_path / "annotations").mkdir()
    for split in ("train", "val"):
        (tmp_path / f"annotations/instances_{split}2017.json").touch()
    check_data(config, ("train", "val"))
    config.val_evaluator.ann_file = "data/elsewhere.json"
    with pytest.raises(
        HypvisionError,
        match=rf"reads 'data/elsewhere.json'.*The val data have '{tmp_path}/{truth}'",
    ):
        check_data(config, ("val",))


def test_prepare_fits_the_config_to_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = prepare(load_config(ROOT / "configs/hcformer/hcformer-nano_4xb256-310e_in1k.py"))
    kind = "BFloat16OptimWrapper" if has_fast_bfloat16() else "OptimWrapper"
    assert config.optim_wrapper.type == kind and config.env_cfg.dist_cfg.backend == "gloo"
    assert config.work_dir == "work_dirs/hcformer-nano_4xb256-310e_in1k"
    assert not config.train_dataloader.persistent_workers
    assert config.val_dataloader.persistent_workers
    again = prepare(config.copy())
    assert sorted(hook.type for hook in again.custom_hooks) == sorted(
        hook.type for hook in config.custom_hooks
    )


def test_options():
    assert parse_options([]) == {}
    options = parse_options(["a.b=3", "c=[1,2]", "d=x=y", "e=False"])
    assert options == {"a.b": 3, "c": [1, 2], "d": "x=y", "e": False}
    options = parse_options(["words=a photo of a", "list=[a b, 2, (c, d e)]", "pair=1, 2", "f= 4"])
    assert options == {
        "words": "a photo of a",
        "list": ["a b", 2, ("c", "d e")],
        "pair": [1, 2],
        "f": 4,
    }
    options = parse_options(["template={}", "words=a dict (of words), of {dict}"])
    assert options["template"] == "{}" and "dict(of words)" in str(options["words"])


@each("value", ["[dict(type='X')]", "dict(type='X',gamma=2)", "{type: X}", "[1, {'a': 2, 'b': 3}]"])
def test_a_dict_is_no_value_of_an_option(value):
    with pytest.raises(HypvisionError, match=r"has a dict, but .* KEY\.0\.NAME=VALUE"):
        parse_options(["param_scheduler=" + value])


def segmentation_or_detection(metric: str, hook: str, **more) -> Run:
    pytest.importorskip("hypvision.openmmlab")
    dataset = dict(type="RepeatDataset", dataset=dict(type="ADE20KDataset", pipeline=["plain"]))
    return Run(
        dict(
            model=dict(type="EncoderDecoder"), test_dataloader=dict(dataset=dataset),
            test_evaluator=[dict(type="Other"), dict(type=metric)],
            visualizer=dict(type="Visualizer"), custom_hooks=[],
            default_hooks=dict(visualization=dict(type=hook)), **more,
        )
    )  # fmt: skip


def test_options_of_test_reach_the_parts_of_segmentation_and_detection(tmp_path):
    config = segmentation_or_detection(
        "mmseg.IoUMetric", "SegVisualizationHook", default_scope="mmseg"
    )
    with pytest.raises(HypvisionError, match="Use --out DIR"):
        reports.write_predictions(config, tmp_path / "maps.json")
    reports.add_report(config, tmp_path / "report", "x.pth")
    assert config.test_evaluator[1].output_dir == str(tmp_path / "report/label_maps")
    assert config.test_evaluator[2].type == "SegmentationReport"
    assert config.custom_hooks[-1].type == "ReportHook"
    reports.show(config, tmp_path / "painted")
    assert config.custom_hooks[-1] == dict(
        type="ResultPainterHook", out_dir=str(tmp_path / "painted")
    )
    with pytest.raises(
        HypvisionError, match="tta_model"
    ):  # the config tells neither mmseg nor mmdet
        reports.use_tta(segmentation_or_detection("mmseg.IoUMetric", "SegVisualizationHook"))

    config = segmentation_or_detection(
        "CocoMetric", "mmdet.DetVisualizationHook", tta_model=dict(type="DetTTAModel"),
        tta_pipeline=["augmented"], default_scope="mmdet",
    )  # fmt: skip
    reports.write_predictions(config, tmp_path / "boxes.json")
    assert config.test_evaluator[1].outfile_prefix == str(tmp_path / "boxes")
    reports.use_tta(config)
    assert config.model.type == "DetTTAModel" and config.model.module.type == "EncoderDecoder"
    assert config.test_dataloader.dataset.dataset.pipeline == ["augmented"]
    with pytest.raises(HypvisionError, match="which has Other, PascalMetric"):
        reports.write_predictions(segmentation_or_detection("PascalMetric", ""), tmp_path)


# User errors
# --------------------------------------------------------------------------------------------------


def test_bad_configs(capsys, tmp_path, data):
    said = fails(capsys, "train", ROOT / "configs/hcformer/none.py")
    assert "none.py" in said
    (tmp_path / "broken.py").write_text("model = dict(\n")
    assert "not valid Python" in fails(capsys, "train", tmp_path / "broken.py")
    (tmp_path / "orphan.py").write_text("_base_ = ['gone.py']\n")
    assert "_base_" in fails(capsys, "train", tmp_path / "orphan.py")
    assert "no 'model'" in fails(capsys, "train", ROOT / "configs/_base_/default_runtime.py")
    config = write_config(tmp_path / "good.py", data)
    assert "KEY=VALUE" in fails(capsys, "train", config, "--cfg-options", "lr")
    assert "none.pth" in fails(
        capsys, "train", config, "--work-dir", tmp_path, "--resume", tmp_path / "none.pth"
    )


def test_missing_data(capsys, tmp_path, data):
    config = write_config(tmp_path / "moved.py", data)
    run = tmp_path / "run"
    said = fails(
        capsys,
        *f"train {config} --work-dir {run} --cfg-options data_root={tmp_path / 'nowhere'}".split(),
    )
    assert "nowhere/train' does not exist" in said and "docs/data.md" in said
    assert not run.exists()  # told before anything was begun


@pytest.mark.parametrize("workers", [0, 1])
def test_corrupt_image(capsys, tmp_path, workers):
    data = make_images(tmp_path / "data", per_class=2)
    (data / "train" / "red" / "1.png").write_bytes(b"no image")
    config = write_config(tmp_path / f"corrupt{workers}.py", data, workers=workers)
    said = fails(capsys, "train", config, "--work-dir", tmp_path / "run")
    assert "red/1.png' cannot be read" in said


def test_label_out_of_range(capsys, tmp_path, data):
    config = write_config(tmp_path / "few.py", data)
    said = fails(
        capsys,
        *(
            f"train {config} --work-dir {tmp_path} --cfg-options model.backbone.num_classes=2"
        ).split(),
    )
    assert "has 3 classes, but the model predicts 2" in said and "'red'" in said


def test_errors_from_below():
    full = OSError(errno.ENOSPC, "No space left on device", "epoch_3.pth")
    assert "disk is full at 'epoch_3.pth'" in explain(full)
    worker = HypvisionError("Caught HypvisionError in DataLoader worker process 0.\nOriginal "
                            "Traceback:\n  File x\nhypvision.errors.HypvisionError: The image "
                            "'a.png' cannot be read.\n")  # fmt: skip
    assert explain(worker) == "The image 'a.png' cannot be read."
    assert "label 200" in explain(IndexError("Target 200 is out of bounds."))
    assert "measures 'segm'" in explain(KeyError("segm is not in results"))
    assert "'a.jpg' cannot be read" in explain(AssertionError("failed to load image: a.jpg"))
    assert explain(ValueError("a bug")) is None and explain(KeyError("a bug")) is None


def test_check_data_looks_into_wrappers(tmp_path):
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "1.jpg").touch()
    inner = dict(
        type="ADE20KDataset",
        data_root=str(tmp_path),
        data_prefix=dict(img_path="img", seg_map_path="ann"),
    )
    config = dict(train_dataloader=dict(dataset=dict(type="ConcatDataset", datasets=[inner])))
    with pytest.raises(
        HypvisionError, match=r"ann' of the train data \(ADE20KDataset\) does not exist.*label maps"
    ):
        check_data(config)
    (tmp_path / "ann").mkdir()
    with pytest.raises(
        HypvisionError, match=r"folder '.*ann' of the train data \(ADE20KDataset\) is empty"
    ):
        check_data(config)
    (tmp_path / "ann" / "1.png").touch()
    check_data(config)
    inner["data_root"] = str(tmp_path / "gone")
    with pytest.raises(HypvisionError, match="gone'"):
        check_data(config)
