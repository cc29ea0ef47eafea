"""`make demo`: its floors, and how it ends when a part of it does."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
from hypvision.data.export import export

TOOL = Path(__file__).parents[1] / "tools" / "demo.py"


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
    classification, segmentation, detection = demo.PARTS
    assert demo.floor(classification) == pytest.approx(1 / 16)  # balanced classes
    truth = [np.array(Image.open(path)) for path in (demo.DATA / "ade/annotations/validation").iterdir()]
    answer, truth = np.ones((8, 48, 48), int), np.stack(truth)  # ground everywhere
    ious = [((answer == c) & (truth == c)).sum() / ((answer == c) | (truth == c)).sum() for c in np.unique(truth)]
    assert demo.floor(segmentation) == pytest.approx(np.mean(ious))
    assert 0 <= demo.floor(detection) < 0.3


def test_sheets_show_some_of_the_painted_pictures(demo):
    shown = demo.ROOT / "classification" / "shown"
    shown.mkdir(parents=True)
    for i in range(20):
        Image.new("RGB", (40, 60), (10 * i, 0, 0)).save(shown / f"{i:02d}.png")
    path = demo.sheet(demo.PARTS[0])
    assert path == demo.ROOT / "pictures" / "classification.png" and Image.open(path).size == (
        990,
        498,
    )  # two rows of four


def test_calls(demo):
    assert demo.call([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE) == "1\n"
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

    def run(part):
        raise error

    monkeypatch.setattr(demo, "run", run)
    assert demo.main() == status
    assert message in capsys.readouterr().err and not demo.FINISHED.exists()


def test_a_finished_demo_starts_anew_and_an_interrupted_one_goes_on(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "export", lambda *_, **__: None)
    monkeypatch.setattr(demo, "sheet", lambda part: demo.ROOT / f"{part.name}.png")
    monkeypatch.setattr(demo, "clusters", list)
    monkeypatch.setattr(demo, "floor", lambda part: 0.1)
    monkeypatch.setattr(demo, "run", lambda part: (0.75, 12.0))
    checkpoint = demo.ROOT / "classification" / "epoch_1.pth"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    assert demo.main() == 0 and checkpoint.exists() and demo.FINISHED.exists()
    table = capsys.readouterr().out
    assert table.count("0.750") == 3 and str(demo.ROOT / "detection.png") in table
    assert demo.main() == 0 and not checkpoint.exists()
