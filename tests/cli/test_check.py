"""``hypvision check``: what is used and left out, all faults at once, and pictures, for the data of
every task."""

import json
import shutil
from pathlib import Path

import pytest
from helpers.cases import each
from PIL import Image

pytest.importorskip("mmengine")
from helpers.engine import make_images, tiny, write_config
from helpers.shapes.export import export

from hypvision.cli import main

LAYOUTS = dict(segmentation="ade", detection="coco")


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("originals")
    found = {
        task: export(root / task, layout, 4, 2, 64, level="kind")
        for task, layout in LAYOUTS.items()
    }
    return {**found, "classification": make_images(root / "classification", per_class=2)}


@pytest.fixture
def case(originals, tmp_path, monkeypatch):
    """A function that copies the data of a task, to be spoilt, and writes a config for it."""
    monkeypatch.chdir(tmp_path)

    def make(task):
        data = Path(shutil.copytree(originals[task], tmp_path / task))
        config = tmp_path / f"{task}.py"
        return data, write_config(config, data) if task == "classification" else tiny(
            task, data, config
        )

    return make


def check(capsys, *words):
    try:
        status = main(["check", *map(str, words)])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("task", ["classification", *LAYOUTS])
def test_right_data(case, capsys, tmp_path, task):
    data, config = case(task)
    status, said, _ = check(capsys, config, "--all", "--workers", 0)
    assert status == 0 and "samples were read; no faults." in said, said
    assert "train  " in said and "val  " in said and "test: its data are those of val" in said
    pictures = sorted(Path("work_dirs", task, "check").iterdir())
    expected = dict(classification=10, segmentation=6, detection=6)[task]
    assert len(pictures) == expected and {path.name.split("_")[0] for path in pictures} == {
        "train",
        "val",
    }
    for path in pictures:
        with Image.open(path) as image:
            assert (
                len(image.convert("RGB").resize((32, 32)).getcolors(32 * 32)) > 10
            )  # something is drawn


@pytest.mark.parametrize("workers", [0, 2])
def test_all_faults_at_once(case, capsys, tmp_path, workers):
    data, config = case("classification")
    for name in ("train/red/0.png", "train/blue/1.png", "val/green/0.png"):
        (data / name).write_bytes(b"no image")
    (data / "train/red/notes.txt").write_text("x")
    (data / "train/.ipynb_checkpoints").mkdir()
    status, said, _ = check(
        capsys, config, "--all", "--workers", workers, "--out", tmp_path / "seen"
    )
    assert status == 1 and "All 12 samples were read; " in said
    for name in ("red/0.png", "blue/1.png", "green/0.png"):
        (line,) = [line for line in said.splitlines() if name in line and "sample" in line]
        assert "cannot be read" in line and "Replace it" in line
    assert "suffix .txt: red/notes.txt" in said and "hidden: .ipynb_checkpoints" in said
    status, said, _ = check(capsys, config, "--cfg-options", "train_dataloader.dataset.cache=True")
    assert "Files were counted, not read" in said


def test_names_and_missing_parts(case, capsys):
    data, config = case("classification")
    (data / "val/red").rename(data / "val/Red")
    status, said, _ = check(capsys, config)
    assert status == 1
    assert "fault: val: The class names differ" in said
    assert "'Red' is called 'red' there" in said
    shutil.rmtree(data / "val")
    status, said, _ = check(capsys, config)
    assert status == 1 and "val' does not exist" in said and "train  files" in said
    shutil.move(data / "train", data / "deep/train")
    (data / "deep").rename(data / "train")
    status, said, _ = check(capsys, config)
    assert status == 1 and f"Give '{data / 'train/train'}' as root" in said


def test_the_order_of_numbered_folders_is_logged_once(tmp_path, capsys, monkeypatch):
    """By the check and on the console of a training, which both hide the warnings of libraries."""
    monkeypatch.chdir(tmp_path)
    config = write_config(
        tmp_path / "a.py", make_images(tmp_path / "data", 2, classes=("1", "2", "10"))
    )
    status, said, _ = check(capsys, config)
    hint = (
        "label 1 is the folder '10'. With sort='natural' in the data sets of the config it is '2'."
    )
    assert status == 0 and said.count(hint) == 1 and "note: The class folders are numbers" in said
    assert main(["train", str(config), "--work-dir", "run"]) == 0
    assert capsys.readouterr().err.count(hint) == 1
    both = [f"{part}_dataloader.dataset.sort=natural" for part in ("train", "val", "test")]
    status, said, _ = check(capsys, config, "--cfg-options", *both)
    assert status == 0 and "natural" not in said


@pytest.mark.parametrize("task", LAYOUTS)
def test_faults_of_other_tasks(case, capsys, task):
    data, config = case(task)
    images = sorted(
        (data / dict(segmentation="images/training", detection="train2017")[task]).iterdir()
    )
    images[1].write_bytes(b"no image")
    images[2].write_bytes(b"")
    status, said, _ = check(capsys, config, "--all", "--workers", 0)
    assert status == 1 and all(f"{path.name}' cannot be read" in said for path in images[1:3]), said


def test_the_pictures_do_not_go_among_the_data(case, capsys):
    data, config = case("classification")
    status, _, said = check(capsys, config, "--out", data / "train/red")
    assert status == 2 and "holds data" in said


def test_boxes_are_drawn_where_the_file_says(case, capsys, tmp_path):
    data, config = case("detection")
    path = data / "annotations/instances_train2017.json"
    content = json.loads(path.read_text())
    first = content["images"][0]
    box = dict(
        content["annotations"][0], bbox=[10, 20, 30, 40], segmentation=[[10, 20, 12, 20, 10, 22]]
    )
    content["annotations"] = [
        {**box, "image_id": image["id"], "id": image["id"]} for image in content["images"]
    ]
    path.write_text(json.dumps(content))
    Image.new("RGB", (64, 64)).save(data / "train2017" / first["file_name"])
    check(capsys, config, "--out", tmp_path / "seen")
    with Image.open(tmp_path / "seen/train_0.png") as image:
        columns = [
            sum(sum(image.getpixel((x, y))) > 60 for y in range(image.height)) for x in range(64)
        ]
    assert (
        columns[10] > 30 and max(columns[39:41]) > 30 and max(columns[12:38]) < 30
    )  # the box is 40 pixels high


@each("command", ["check", "browse", "train"])
def test_a_loader_without_data(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "a.py", tmp_path)
    (tmp_path / "b.py").write_text(
        '_base_ = ["a.py"]\ntrain_dataloader = dict(_delete_=True, batch_size=2)\n'
    )
    try:
        status = main([command, "b.py"])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr()
    assert status == (1 if command == "check" else 2)
    assert "train_dataloader names no data. Give it a dataset" in said.out + said.err
