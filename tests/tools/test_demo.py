"""`make demo`: its floors, and how it ends when a part of it does."""

import importlib.util
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
pytest.importorskip("open_clip")
from hypvision.data.export import export
from hypvision.engine import run as engine
from hypvision.engine.config import load_config

TOOL = Path(__file__).parents[2] / "tools" / "demo.py"


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """The tool as a module, working in a folder of its own."""
    specification = importlib.util.spec_from_file_location("demo_tool", TOOL)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.chdir(TOOL.parents[1])
    for name, place in dict(ROOT=tmp_path, DATA=tmp_path / "data", FINISHED=tmp_path / "finished.json").items():
        monkeypatch.setattr(module, name, place)
    return module


def test_floors(demo):
    export(demo.DATA / "imagefolder", "imagefolder", 16, 32, 32)
    export(demo.DATA / "ade", "ade", 2, 8, 48, level="kind")
    export(demo.DATA / "coco", "coco", 2, 8, 48, level="kind")
    classification, segmentation, detection, open_vocabulary = demo.PARTS
    assert demo.floor(classification) == pytest.approx(1 / 16)  # balanced classes
    truth = [np.array(Image.open(path)) for path in (demo.DATA / "ade/annotations/validation").iterdir()]
    answer, truth = np.ones((8, 48, 48), int), np.stack(truth)  # ground everywhere
    ious = [((answer == c) & (truth == c)).sum() / ((answer == c) | (truth == c)).sum() for c in np.unique(truth)]
    assert demo.floor(segmentation) == pytest.approx(np.mean(ious))
    assert 0 <= demo.floor(detection) < 0.3
    ground = [(scene.instances == 0).mean() for scene in demo.open_vocabulary_scenes()]
    assert demo.floor(open_vocabulary) == pytest.approx(np.mean(ground) / 17)  # 0 for the 16 shapes


def test_sheets_show_some_of_the_painted_images(demo):
    shown = demo.ROOT / "classification" / "shown"
    shown.mkdir(parents=True)
    for i in range(20):
        Image.new("RGB", (40, 60), (10 * i, 0, 0)).save(shown / f"{i:02d}.png")
    path = demo.sheet(demo.PARTS[0])
    assert path == demo.ROOT / "images" / "classification.png" and Image.open(path).size == (
        990,
        498,
    )  # two rows of four


def test_intersection_over_union(demo):
    truth, answer = [np.array([[0, 0, 1, 1]])], [np.array([[0, 1, 1, 1]])]
    assert demo.mean_iou(truth, answer, [0, 1]) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert demo.mean_iou(truth, answer, [1]) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_open_vocabulary_before_and_after(demo):
    """Two steps by the engine: the functions that users have find what its metric does."""
    name, folder = "configs/demo/open_vocabulary.py", demo.ROOT / "open_vocabulary"
    assert (demo.PARTS[-1].name, demo.PARTS[-1].metric) == ("open_vocabulary", "mIoU")
    options = {"train_cfg.max_iters": 2, "param_scheduler": [], "default_hooks.checkpoint.interval": 2}
    engine.train(load_config(name, options), folder)
    (folder / "iter_2.pth").rename(folder / "last.pth")
    metrics = engine.test(load_config(name), folder / "last.pth", folder / "test")
    path, line = demo.before_and_after()
    found = re.search(r"ring: mIoU ([\d.]+); the CLIP before tuning: ([\d.]+)", line)
    assert float(found[1]) == pytest.approx(metrics["mIoU_novel"] / 100, abs=2e-3)
    assert found[1] != found[2]  # two steps have changed something
    sheet = np.array(Image.open(path))
    assert sheet.shape[1] == 4 * 306 + 6 and len(np.unique(sheet.reshape(-1, 3), axis=0)) > 50


def test_calls(demo):
    assert demo.call([sys.executable, "-c", "print(1)"], answer=True) == "1\n"
    with pytest.raises(KeyboardInterrupt):  # what the tools end with after Ctrl-C
        demo.call([sys.executable, "-c", "raise SystemExit(130)"])
    with pytest.raises(subprocess.CalledProcessError):
        demo.call([sys.executable, "-c", "raise SystemExit(2)"])


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "goes on from the last checkpoint"),
        (subprocess.CalledProcessError(2, ["tools/train.py", "x.py"]), 2, "stopped in: tools/train.py x.py"),
    ],
)
def test_ends(demo, monkeypatch, capsys, error, status, message):
    monkeypatch.setattr(demo, "export", lambda *_, **__: None)

    def run(part, quiet=False):
        if quiet:
            return 0.5, 1.0
        raise error

    monkeypatch.setattr(demo, "run", run)
    assert demo.main() == status
    assert message in capsys.readouterr().err and not demo.FINISHED.exists()


def test_a_failure_beside_the_classifier_is_told_before_the_detector_begins(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "export", lambda *_, **__: None)
    begun, failed = [], threading.Event()

    def run(part, quiet=False):
        begun.append(part.name)
        if quiet:
            try:
                return demo.call([sys.executable, "-c", "print('no CLIP'); raise SystemExit(3)"], demo.ROOT / "log")
            finally:
                failed.set()
        failed.wait(60)
        time.sleep(0.2)  # until the thread has handed over its error
        return 0.5, 1.0

    monkeypatch.setattr(demo, "run", run)
    assert demo.main() == 3 and sorted(begun) == ["classification", "open_vocabulary"]
    assert "no CLIP\nThe demo stopped in" in capsys.readouterr().err


def test_a_failure_in_front_interrupts_what_runs_beside_it(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "export", lambda *_, **__: None)

    def run(part, quiet=False):
        if quiet:
            demo.call([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"], demo.ROOT / "log")
        while not (demo.ROOT / "log").exists() or not (demo.ROOT / "log").read_text():
            time.sleep(0.05)
        raise subprocess.CalledProcessError(2, ["tools/train.py", "x.py"])

    monkeypatch.setattr(demo, "run", run)
    begin = time.monotonic()
    assert demo.main() == 2 and time.monotonic() - begin < 60
    assert "stopped in: tools/train.py x.py" in capsys.readouterr().err and not demo.RUNNING


def test_a_finished_demo_starts_anew_and_an_interrupted_one_goes_on(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "export", lambda *_, **__: None)
    monkeypatch.setattr(demo, "sheet", lambda part: demo.ROOT / f"{part.name}.png")
    monkeypatch.setattr(demo, "clusters", list)
    monkeypatch.setattr(demo, "detections", lambda: demo.ROOT / "detection.png")
    monkeypatch.setattr(demo, "before_and_after", lambda: (demo.ROOT / "after.png", "rings: better"))
    monkeypatch.setattr(demo, "floor", lambda part: 0.1)
    monkeypatch.setattr(demo, "run", lambda part, quiet=False: (0.75, 12.0))
    checkpoint = demo.ROOT / "classification" / "epoch_1.pth"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    assert demo.main() == 0 and checkpoint.exists() and demo.FINISHED.exists()
    table = capsys.readouterr().out
    assert table.count("0.750") == 4 and str(demo.ROOT / "detection.png") in table
    assert "rings: better" in table and str(demo.ROOT / "after.png") in table
    assert demo.main() == 0 and not checkpoint.exists()
