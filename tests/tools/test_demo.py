"""`make demo`: its floors, and how it ends when a part of it does."""

import importlib.util
import re
import subprocess
import sys
import threading
import time
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
pytest.importorskip("open_clip")
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
    for name, place in dict(
        ROOT=tmp_path, DATA=tmp_path / "data", FINISHED=tmp_path / "finished.json"
    ).items():
        monkeypatch.setattr(module, name, place)
    return module


def test_floors(demo):
    demo.make_scenes(train=2, val=8)
    photos, segmentation, detection, open_vocabulary = demo.PARTS
    assert demo.floor(photos) == pytest.approx(1 / 20)  # balanced classes
    truth = np.stack(
        [np.array(Image.open(path)) for path in (demo.DATA / "masks/val/masks").iterdir()]
    )
    assert truth.max() > 0
    assert demo.floor(segmentation) == pytest.approx(
        (truth == 0).mean() / len(np.unique(truth))
    )  # all is photo
    assert 0 <= demo.floor(detection) < 0.3
    truth = np.stack([np.array(Image.open(path)) for path in demo.word_maps()])
    assert len(truth) == 8 and truth.max() > 4  # finer classes than the groups
    assert demo.floor(open_vocabulary) == pytest.approx((truth == 0).mean() / len(np.unique(truth)))


def test_the_report_holds_the_table_and_the_pictures(demo, tmp_path):
    Image.new("RGB", (4, 3), "red").save(tmp_path / "red.png")
    picture = demo.Picture(tmp_path / "red.png", "Red & blue", "a <picture>")
    page = demo.write_report([(demo.PARTS[0], 0.75, 0.05, 12.3)], [picture])
    text = page.read_text()
    assert (
        page == tmp_path / "report.html" and "<td>photos</td>" in text and "Red &amp; blue" in text
    )
    assert re.findall(r'"number">(.*?)<', text) == ["0.750", "0.050", "12"]
    assert "a &lt;picture&gt;" in text
    found = re.findall(r'src="data:image/png;base64,(.*?)"', text)
    assert [b64decode(one) for one in found] == [(tmp_path / "red.png").read_bytes()]


def test_the_report_says_what_the_frozen_features_reach(demo):
    assert "Nothing tells" in demo.about_probe()
    (demo.ROOT / "photos").mkdir(parents=True, exist_ok=True)
    content = dict(message_hub=dict(runtime_info=dict(baseline=dict(top1=80.625))))
    torch.save(content, demo.ROOT / "photos/last.pth")
    assert "with which their training begins: 0.806" in demo.about_probe()
    page = demo.write_report([(demo.PARTS[0], 0.75, 0.05, 12.3)], []).read_text()
    assert ">0.806<" in page


def test_what_is_painted_on_the_larger_image(demo):
    labels = np.zeros((96, 96), int)
    labels[:48] = 2
    shown = np.array(
        demo.painted(Image.new("RGB", (96, 96), (200, 200, 200)), labels, ["photo", "face", "food"])
    )
    assert shown.shape[1] == demo.CELL < shown.shape[0]  # with a legend
    assert (shown[150:280, :] == 200).all() and (shown[10:130, :] != 200).any(-1).all()


def test_rows_of_a_sheet_have_titles(demo):
    tiles = [Image.new("RGB", (288, 300), "red")] * 8
    plain, titled = (
        np.array(Image.open(demo.sheet(tiles, "rows", titles)))
        for titles in (("",), ("truth", "found"))
    )
    assert titled.shape[0] > plain.shape[0] and (titled[:28] < 100).any()
    red = (titled[:, 150] == (255, 0, 0)).all(-1)
    assert (np.diff(red.astype(int)) == 1).sum() == 2
    assert (titled[red.argmax() + 320 : red.argmax() + 350] < 100).any()


def test_intersection_over_union(demo):
    truth, answer = [np.array([[0, 0, 1, 1]])], [np.array([[0, 1, 1, 1]])]
    assert demo.mean_iou(truth, answer, [0, 1]) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert demo.mean_iou(truth, answer, [1]) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_open_vocabulary_before_and_after(demo):
    """A few steps by the engine: the functions that users have find what its metric does."""
    name, folder = "configs/demo/open_vocabulary.py", demo.ROOT / "open_vocabulary"
    assert (demo.PARTS[-1].name, demo.PARTS[-1].metric) == ("open_vocabulary", "mIoU")
    demo.make_scenes(train=8, val=40)
    data = {"data_root": f"{demo.DATA}/words"}
    options = data | {
        "train_cfg.max_iters": 12,
        "param_scheduler": [],
        "default_hooks.checkpoint.interval": 12,
    }
    engine.train(load_config(name, options), folder)
    (folder / "iter_12.pth").rename(folder / "last.pth")
    metrics = engine.test(load_config(name, data), folder / "last.pth", folder / "test")
    picture = demo.before_and_after(shown=4)
    found = re.search(
        r"water transport: mIoU ([\d.]+); the CLIP before tuning: ([\d.]+)\.$", picture.text
    )
    assert float(found[1]) == pytest.approx(metrics["mIoU_novel"] / 100, abs=2e-3)
    assert found[1] != found[2]  # the steps have changed something
    sheet = np.array(Image.open(picture.path))
    assert sheet.shape[1] > 4 * demo.CELL and len(np.unique(sheet.reshape(-1, 3), axis=0)) > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["photos", "emoji_segmentation", "emoji_detection"])
def test_a_part_and_its_pictures(demo, name):
    """Two steps of each training on its own data, and what is drawn of it."""
    demo.make_scenes(train=8, val=5)
    config = f"configs/demo/{name}.py"
    options = {
        "emoji_segmentation": {"data_root": f"{demo.DATA}/masks"},
        "emoji_detection": {"data_root": f"{demo.DATA}/coco/"},
    }
    length = {
        "emoji_segmentation": {"train_cfg.max_iters": 2, "default_hooks.checkpoint.interval": 2}
    }
    short = {"train_cfg.max_epochs": 1, "default_hooks.checkpoint.interval": 1}
    settings = load_config(
        config, options.get(name, {}) | length.get(name, short) | {"param_scheduler": []}
    )
    if name == "photos":
        settings.train_dataloader.batch_size = 160
    engine.train(settings, demo.ROOT / name)
    next((demo.ROOT / name).glob("*_[12].pth")).rename(demo.ROOT / name / "last.pth")
    metrics = engine.test(
        load_config(config, options.get(name)),
        demo.ROOT / name / "last.pth",
        demo.ROOT / name / "test",
    )
    part = next(part for part in demo.PARTS if part.name == name)
    assert np.isfinite(metrics[part.metric])
    draw = {
        "photos": demo.photos,
        "emoji_segmentation": demo.segmentations,
        "emoji_detection": demo.detections,
    }[name]
    pictures = [draw(), *(demo.tree() if name == "photos" else [])]
    assert len({picture.path for picture in pictures}) == (3 if name == "photos" else 1)
    for picture in pictures:
        assert min(Image.open(picture.path).size) > 150
        assert picture.title
        assert picture.text.endswith(".")


@pytest.mark.slow
def test_a_search_and_a_tree_of_words(demo):
    for picture in (demo.search(), demo.words()):
        assert min(Image.open(picture.path).size) > 150 and picture.text.endswith(".")
    assert (demo.ROOT / "words.html").is_file()


@pytest.mark.slow
def test_clusters_of_a_photo(demo):
    found = demo.clusters()
    assert [picture.path.name for picture in found] == [
        "watermelon-07_clusters.png",
        "watermelon-07_regions.png",
    ]
    assert all(picture.path.is_file() for picture in found)


def test_calls(demo):
    assert demo.call([sys.executable, "-c", "print(1)"], answer=True) == "1\n"
    with pytest.raises(subprocess.CalledProcessError):
        demo.call([sys.executable, "-c", "raise SystemExit(2)"])
    with pytest.raises(KeyboardInterrupt):  # what the tools end with after Ctrl-C
        demo.call([sys.executable, "-c", "raise SystemExit(130)"])
    with pytest.raises(KeyboardInterrupt):  # the thread in the background begins no other part
        demo.call([sys.executable, "-c", f"open({str(demo.ROOT / 'begun')!r}, 'w')"])
    assert not (demo.ROOT / "begun").exists()


def test_a_demo_that_goes_on_makes_no_data_again(demo):
    demo.make_scenes(train=2, val=2)
    file = next((demo.DATA / "masks/train/masks").iterdir())
    file.write_bytes(b"")
    demo.make_scenes(train=2, val=2)
    assert not file.read_bytes()
    demo.make_scenes(train=2, val=3)
    assert file.read_bytes()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "goes on from the last checkpoint"),
        (
            subprocess.CalledProcessError(2, ["tools/train.py", "x.py"]),
            2,
            "stopped in: tools/train.py x.py",
        ),
    ],
)
def test_ends(demo, monkeypatch, capsys, error, status, message):
    monkeypatch.setattr(demo, "make_scenes", lambda: None)

    def run(part, quiet=False):
        if quiet:
            return 0.5, 1.0
        raise error

    monkeypatch.setattr(demo, "run", run)
    assert demo.main() == status
    assert message in capsys.readouterr().err and not demo.FINISHED.exists()


def test_an_error_of_the_classifier_is_reported_before_the_detector_starts(
    demo, monkeypatch, capsys
):
    monkeypatch.setattr(demo, "make_scenes", lambda: None)
    begun, failed = [], threading.Event()

    def run(part, quiet=False):
        begun.append(part.name)
        if quiet:
            try:
                return demo.call(
                    [sys.executable, "-c", "print('no CLIP'); raise SystemExit(3)"],
                    demo.ROOT / "log",
                )
            finally:
                failed.set()
        failed.wait(60)
        time.sleep(0.2)  # until the thread has handed over its error
        return 0.5, 1.0

    monkeypatch.setattr(demo, "run", run)
    assert demo.main() == 3
    assert "emoji_detection" not in begun
    assert {"photos", "open_vocabulary"} <= {*begun}
    assert "no CLIP\nThe demo stopped in" in capsys.readouterr().err


def test_an_error_in_the_foreground_interrupts_the_background(demo, monkeypatch, capsys):
    monkeypatch.setattr(demo, "make_scenes", lambda: None)

    def run(part, quiet=False):
        if quiet:
            demo.call(
                [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"],
                demo.ROOT / "log",
            )
        while not (demo.ROOT / "log").exists() or not (demo.ROOT / "log").read_text():
            time.sleep(0.05)
        raise subprocess.CalledProcessError(2, ["tools/train.py", "x.py"])

    monkeypatch.setattr(demo, "run", run)
    begin = time.monotonic()
    assert demo.main() == 2 and time.monotonic() - begin < 60
    assert "stopped in: tools/train.py x.py" in capsys.readouterr().err and not demo.RUNNING


@pytest.mark.parametrize(("metric", "status"), [(0.75, 0), (0.1, 1), (float("nan"), 1)])
def test_the_end(demo, monkeypatch, capsys, metric, status):
    """A figure that is not above its floor is a failure. A finished demo starts anew, an
    interrupted one goes on."""
    monkeypatch.setattr(demo, "make_scenes", lambda: None)
    monkeypatch.setattr(demo, "draw_all", list)
    monkeypatch.setattr(demo, "floor", lambda part: 0.1)
    monkeypatch.setattr(
        demo,
        "run",
        lambda part, quiet=False: (metric if part.name == "emoji_detection" else 0.75, 12.0),
    )
    checkpoint = demo.ROOT / "photos" / "epoch_1.pth"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    assert demo.main() == status and checkpoint.exists() and demo.FINISHED.exists()
    said = capsys.readouterr()
    assert said.out.count("0.750") == (4 if status == 0 else 3)
    assert (
        said.out.splitlines()[-1]
        == f"Results and pictures: {(demo.ROOT / 'report.html').resolve()}"
    )
    assert said.err == ("Not above the floor: emoji_detection\n" if status else "")
    assert demo.main() == status and not checkpoint.exists()
