"""``hypvision train FOLDER``: what is found in a folder, and the config that comes of it."""

import json
import re
import shlex
import shutil

import pytest

pytest.importorskip("mmengine")
from helpers.cases import each
from helpers.engine import make_images
from mmengine.registry import DATASETS

from hypvision.cli import main
from hypvision.engine.config import load_config
from hypvision.io.errors import HypvisionError
from hypvision.tasks.own_folder import (
    Choices,
    config_of,
    config_of_weights,
    described,
    folder_config,
    save_config,
)

OTHER = [
    "--cfg-options", "model.backbone.model_name=resnet10t", "model.checkpoint=None",
    "model.frozen=()",
]  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"), per_class=5, classes=("blue", "red"))


def as_table(root, images, header, ending):
    """The images of the classes as ``root/train/N.png``, and their table ``root/train.csv``."""
    (root / "train").mkdir(parents=True)
    lines = [header]
    for label in ("blue", "red"):
        for number in range(5):
            name = f"{label[0]}{number}"
            shutil.copy(images / "train" / label / f"{number}.png", root / f"train/{name}.png")
            lines.append(f"{name}{ending},{label}")
    (root / "train.csv").write_text("\n".join(lines))
    return root


@each("below", ["", "train"])
def test_label_maps_are_no_classes(below, images, tmp_path):
    for name in ("images", "masks"):
        shutil.copytree(images / "train/red", tmp_path / "data" / below / name)
    with pytest.raises(HypvisionError, match=r"'images' and 'masks'.*own_label_maps\.py"):
        folder_config(tmp_path / "data")
    shutil.copytree(images / "train/red", tmp_path / "data" / below / "red")  # three classes
    assert below or folder_config(tmp_path / "data").model.backbone.num_classes == 3


@each("options", [[], OTHER])
@each("method", ["probe", "finetune"])
def test_the_command_that_is_told_runs(method, options, images, tmp_path, monkeypatch, capsys):
    """In a folder with a space, and with options that change the network."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(images, "my photos", dirs_exist_ok=True)
    shutil.rmtree("work_dirs", ignore_errors=True)  # that of the case before
    length = ["--epochs", "1"] if method == "finetune" else ["--method", "probe"]
    small = ["--image-size", "32", "--batch-size", "4"]
    assert main(["train", "my photos", *length, *small, *options]) == 0
    said = capsys.readouterr().err
    [command] = re.findall(r"^use +hypvision (.*)$", said, flags=re.M)
    words = ["my photos" if word == "IMAGES" else word for word in shlex.split(command)]
    assert main(words) == 0


@each(
    "names",
    ["train val", "train valid", "training validation", "train test", "Training Testing",
     "TRAIN Val", "Train dev"],
)  # fmt: skip
def test_parts_by_their_names(names, images, tmp_path):
    train, val = names.split()
    root = tmp_path / names
    shutil.copytree(images / "train", root / train)
    shutil.copytree(images / "val", root / val)
    config = folder_config(root)
    roots = [config.dataset(part).root for part in ("train", "val", "test")]
    assert roots == [f"{root}/{train}", f"{root}/{val}", f"{root}/{val}"]
    assert config.model.backbone.num_classes == 2
    said = described(config)
    assert said.startswith(f"found: class folders, '{root}/{train}', 2 classes ('blue', 'red');")
    assert said.endswith(f"; validation and test: '{root}/{val}'")


@each("kind", ["folders", "tables", "a column"])
def test_the_test_is_measured_on_its_own_images(kind, images, tmp_path):
    """Not on those of the validation, on which the decay of the probe was chosen."""
    root = tmp_path / kind
    if kind == "folders":
        for part, own in (("train", "train"), ("val", "val"), ("test", "Test")):
            shutil.copytree(images / ("val" if part == "test" else part), root / own)
        told = [f"'{root}/val'", f"'{root}/Test'"]
    else:
        as_table(root, images, "id,label", "")
        table = root / "train.csv"
        for part in ("val", "test") if kind == "tables" else ():
            shutil.copy(table, root / f"{part}.csv")
        told = [f"'{root}/val.csv'", f"'{root}/test.csv'"]
    if kind == "a column":
        parts = ["Split", "train", "Valid", "test", *["train"] * 7]
        rows = zip(table.read_text().splitlines(), parts)
        table.write_text("\n".join(f"{row},{part}" for row, part in rows))
        told = [f"its rows of '{part}' (column 'Split')" for part in ("val", "test")]
    config = folder_config(root)
    assert described(config).endswith(f"; validation: {told[0]}; test: {told[1]}")
    data = [DATASETS.build(config.dataset(part)) for part in ("train", "val", "test")]
    wanted = {"folders": [10, 4, 4], "tables": [10, 10, 10], "a column": [8, 1, 1]}
    wanted["folders"] = [10, *[len(list((images / "val").rglob("*.png")))] * 2]
    assert list(map(len, data)) == wanted[kind]
    if kind == "a column":
        assert [path.rpartition("/")[2] for path in data[2].paths] == ["b2.png"]
        assert data[0].metainfo["classes"] == data[2].metainfo["classes"] == ("blue", "red")


def test_a_test_without_class_folders_is_passed_over(images, tmp_path):
    shutil.copytree(images / "train", tmp_path / "a/train")
    shutil.copytree(images / "train/red", tmp_path / "a/test")
    said = described(folder_config(tmp_path / "a"))
    assert said.endswith("; validation and test: every fifth image of a class")
    assert "/a/train', 2 classes" in said
    # Neither other folders nor the results of a training make a class of the test.
    shutil.copytree(images / "train/red", tmp_path / "a/sample")
    assert described(folder_config(tmp_path / "a")) == said
    shutil.copytree(images / "val", tmp_path / "a/val")
    said = described(folder_config(tmp_path / "a"))
    assert said.endswith("; validation and test: '" + str(tmp_path / "a/val'"))


def test_results_of_a_training_are_no_class(images, tmp_path):
    shutil.copytree(images / "train", tmp_path / "a/train")
    said = described(folder_config(tmp_path / "a"))
    shutil.copytree(images / "train/red", tmp_path / "a/work_dirs/a")
    assert described(folder_config(tmp_path / "a")) == said


def test_a_class_may_be_called_train(images, tmp_path):
    for name in ("train", "bus"):
        shutil.copytree(images / "train/red", tmp_path / "a" / name / "inner")
    assert "2 classes ('bus', 'train')" in described(folder_config(tmp_path / "a"))


@each(
    "head, cells, counts",
    [
        ("id,label,is_valid", "0 1 True 0 0 0 0 0 0 False", [8, 2, 2]),
        ("id,label,is_test", "0 1 1 0 0 0 0 0 0 0", None),  # no validation but the test
        ("id,label,is_test", "_ 1 _ 1 1 _ _ _ _ _", [7, 3, 3]),  # _: an empty cell
        ("id,label,is_valid", "no yes no no no no no no no no", [9, 1, 1]),
        ("id,label,subset", "train train val test train train train train train train", [8, 1, 1]),
        ("id,label,set", "train train train train train train train train train train", None),
        ("id,label,rotten", "0 1 1 0 0 0 0 0 0 0", None),  # no part, and no class either
    ],
)
def test_columns_that_divide_a_table(head, cells, counts, images, tmp_path):
    root = as_table(tmp_path / cells, images, "id,label", "")
    cells = ["" if cell == "_" else cell for cell in cells.split()]
    rows = zip((root / "train.csv").read_text().splitlines()[1:], cells)
    (root / "train.csv").write_text("\n".join([head, *(f"{row},{cell}" for row, cell in rows)]))
    config = folder_config(root)
    data = [DATASETS.build(config.dataset(part)) for part in ("train", "val", "test")]
    if counts is None:
        counts = [8, 2, 2]
    assert list(map(len, data)) == counts
    assert data[0].metainfo["classes"] == ("blue", "red")
    assert not {*data[0].paths} & ({*data[1].paths} | {*data[2].paths})


def test_a_test_without_labels_in_a_column_is_passed_over(images, tmp_path):
    root = as_table(tmp_path / "a", images, "id,label", "")
    lines = (root / "train.csv").read_text().splitlines()
    rows = [f"{line},train" for line in lines[1:-1]]
    (root / "train.csv").write_text("\n".join(["id,label,split", *rows, "r4,,test"]))
    said = described(folder_config(root))
    assert said.endswith("; validation and test: every fifth image of a class")
    (root / "train.csv").write_text("id,label,split\nb0,blue,fold 1\nr0,red,train\n")
    with pytest.raises(HypvisionError, match=r"line 2.*'split' has 'fold 1'.*train, val or test"):
        folder_config(root)
    for head, cells in (("split", ("tr", "te")), ("is_test", ("x", "y"))):
        (root / "train.csv").write_text(f"id,label,{head}\nb0,blue,{cells[0]}\nr0,red,{cells[1]}\n")
        with pytest.raises(HypvisionError, match=f"column '{head}' of the table.*name no part"):
            folder_config(root)
    (root / "train.csv").write_text("id,label,split\nb0,blue,val\nr0,red,test\n")
    with pytest.raises(HypvisionError, match="no image to 'train'"):
        folder_config(root)


def test_class_columns_are_listed(images, tmp_path):
    """So that a foreign one is seen; a column that divides the data is none."""
    root = as_table(tmp_path / "a", images, "id,label", "")
    (root / "train.csv").write_text(
        "id,blue,red,fresh,is_valid\nb0,1,0,1,0\nr0,0,1,0,1\nb1,1,0,0,0\nr1,0,1,1,1\n"
    )
    said = described(folder_config(root))
    assert "several labels an image" in said and "3 classes ('blue', 'red', 'fresh')" in said
    assert said.endswith("; validation and test: its rows of 'val' (column 'is_valid')")


def test_the_written_config_follows_its_data_root(images, tmp_path, monkeypatch):
    """As an option, in a config that builds on it, and where its line is edited."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(images, "blue")  # as a class is called
    as_table(tmp_path / "table/blue", images, "id,label", "")
    for source, below in (("blue", "/val"), ("table/blue", "")):
        path = save_config(config_of(source), str(tmp_path / "out" / source))
        text = path.read_text()
        assert text.count(f"'{source}'") == 1 + text.count(f"classes=['{source}'")
        edited = tmp_path / "edited.py"
        edited.write_text(text.replace(f"data_root = '{source}'", "data_root = 'moved'"))
        based = tmp_path / "based.py"
        based.write_text(f"_base_ = [{str(path)!r}]\ndata_root = 'moved'\n")
        assert load_config(path).dataset("val").root == source + below
        moved = [load_config(path, {"data_root": "moved"}), load_config(edited), load_config(based)]
        for config in moved:
            assert config.dataset("val").root == "moved" + below
            assert "moved" not in (config.dataset("val").get("classes") or ["blue"])
            if not below:
                assert config.dataset("val").classes == ["blue", "red"]
                assert config.dataset("train").ann_file == "moved/train.csv"


@each("header, ending", [("id,label", ""), ("filename,class", ".png")])
def test_a_table(header, ending, images, tmp_path):
    root = as_table(tmp_path / header, images, header, ending)
    config = folder_config(root)
    train, val = (config[f"{part}_dataloader"].dataset for part in ("train", "val"))
    assert train.type == "ImageTableDataset" and train.classes == ["blue", "red"]
    assert not {*train.indices} & {*val.indices}
    assert {*train.indices} | {*val.indices} == {*range(10)}
    assert "a table" in described(config) and "2 classes" in described(config)


def test_kaggles_test_without_labels_is_passed_over(images, tmp_path):
    """Its images have the names of the training images, in another folder."""
    root = as_table(tmp_path / "mine", images, "id,label", "")
    shutil.copytree(root / "train", root / "test")
    (root / "test.csv").write_text("id\nb0\n")
    assert "every fifth image" in described(folder_config(root))
    shutil.copy(root / "train.csv", root / "test.csv")
    assert f"validation and test: '{root / 'test.csv'}'" in described(folder_config(root))


def test_a_test_takes_the_config_of_its_training(images, tmp_path):
    beside = save_config(config_of(images, Choices(image_size=64)), str(tmp_path))
    assert config_of_weights(images, tmp_path / "probe.pth") == beside
    shutil.copytree(images, tmp_path / "other")
    for folder, weights in ((tmp_path / "other", tmp_path), (images, tmp_path / "other")):
        config = config_of_weights(folder, weights / "probe.pth")
        assert config.test_dataloader.dataset.root == f"{folder}/val"
    assert config_of_weights("mine.py", tmp_path / "probe.pth") == "mine.py"
    # weights that are no name of a file: to say so is up to their reader
    for weights in ("", ".", "/"):
        assert config_of_weights("mine.py", weights) == "mine.py"


def test_choices(images):
    config = config_of(images, Choices(epochs=3, batch_size=4, lr=0.01, image_size=64))
    assert config.train_cfg.max_epochs == config.param_scheduler[1].end == 3
    for part in ("train", "val", "test"):
        loader = config[f"{part}_dataloader"]
        assert loader.batch_size == 4 and loader.dataset.transform.input_size == 64
    assert config.optim_wrapper.optimizer.lr == 0.01
    with pytest.raises(HypvisionError, match="--lr is for a folder"):
        config_of("mine.py", Choices(lr=0.1))
    assert config_of("mine.py", Choices(epochs=3)) == "mine.py"


def test_a_folder_that_is_called_as_a_config(images, tmp_path, monkeypatch):
    shutil.copytree(images, tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "./photos"):
        assert "class folders" in described(config_of(name))
    assert config_of("demo/photos") == "demo/photos"
    (tmp_path / "photos").rename(tmp_path / "pictures")
    assert config_of("photos") == "photos"
    shutil.copytree(images, tmp_path / "demo" / "photos")
    with pytest.raises(HypvisionError, match="Write './demo/photos' for the folder"):
        config_of("demo/photos")
    work = tmp_path / "resnet10t_8e_cifar10"
    work.mkdir()
    (work / f"{work.name}.py").touch()
    with pytest.raises(HypvisionError, match="Write './resnet10t_8e_cifar10' for the folder"):
        config_of(work.name)


def test_the_commands_take_a_table(images, tmp_path, monkeypatch, capsys):
    root = as_table(tmp_path / "photos", images, "id,label", "")
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(root)]) == 0 and "no faults" in capsys.readouterr().out
    small = ["--image-size", "32", "--batch-size", "4"]
    assert main(["train", str(root), "--method", "probe", *small]) == 0
    said = capsys.readouterr()
    assert "found: a table" in said.out and "config: work_dirs/photos/config.py" in said.out
    own = "--model work_dirs/photos/config.py --weights work_dirs/photos/probe.pth"
    assert f"predict IMAGES {own}" in said.err
    photo = next(path for path in root.rglob("*.png"))
    assert main(["predict", str(photo), *own.split()]) == 0
    again = load_config("work_dirs/photos/config.py")
    assert again.train_dataloader.dataset.transform.input_size == 32
    assert (tmp_path / "work_dirs/photos/probe.pth").is_file()


def test_the_commands_take_a_table_with_several_labels(images, tmp_path, monkeypatch, capsys):
    root = as_table(tmp_path / "photos", images, "id,labels", "")
    table = root / "train.csv"
    table.write_text(table.read_text().replace(",red", ",red;warm"))
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(root)]) == 0 and "no faults" in capsys.readouterr().out
    small = ["--image-size", "32", "--batch-size", "4", "--epochs", "1"]
    assert main(["train", str(root), *small]) == 0
    said = capsys.readouterr()
    assert "found: a table with several labels an image" in said.out
    assert "3 classes ('blue', 'red', 'warm'); validation and test: every fifth image" in said.out
    assert re.search(r"^probe +mAP [\d.]+ on the held-out images", said.err, flags=re.M)
    assert re.search(r"^result +mAP: linear probe [\d.]+, fine-tuned", said.err, flags=re.M)
    [command] = re.findall(r"^use +hypvision (.*)$", said.err, flags=re.M)
    photo = str(next(root.rglob("r*.png")))
    words = [photo if word == "IMAGES" else word for word in shlex.split(command)]
    assert main([*words, "--score", "0", "--out", "out"]) == 0
    found = json.loads((tmp_path / "out/predictions.json").read_text())["annotations"]
    assert len(found) == 3


@pytest.mark.parametrize(
    "words, file",
    [
        ("--method probe", "probe.pth"),
        ("--epochs 1 --lr 1e-9", "epoch_1.pth"),
        ("--epochs 1 --lr 30 --cfg-options model.head_init=probe", "probe.pth"),
    ],
)
def test_the_last_lines_name_one_checkpoint(images, tmp_path, monkeypatch, capsys, words, file):
    """The one that is chosen: of a probe alone, a training that keeps the probe, and one that ruins
    it."""
    shutil.copytree(images, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    small = ["--image-size", "32", "--batch-size", "4", "--work-dir", "out"]
    assert main(["train", "mine", *small, *words.split()]) == 0
    said = capsys.readouterr().err
    result = re.search(r"take (\S+)", said)
    assert result is None if "--method" in words else result[1] == file
    told = re.findall(r"^weights (\S+)", said, re.MULTILINE)
    used = re.findall(r"^use .*--model (\S+) --weights (\S+)$", said, re.MULTILINE)
    assert told == [str(tmp_path / "out" / file)]
    assert [weights for _, weights in used] == [f"out/{file}"]
    photo = next(path for path in (tmp_path / "mine").rglob("*.png"))
    ((config, weights),) = used
    assert main(["predict", str(photo), "--model", config, "--weights", weights]) == 0


@pytest.mark.slow
def test_several_seeds_of_a_folder(images, tmp_path, monkeypatch, capsys):
    shutil.copytree(images, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    small = ["--image-size", "32", "--epochs", "1", "--batch-size", "4"]
    assert main(["train", "mine", *small, "--seeds", "2"]) == 0
    assert "2 seeds" in capsys.readouterr().out or (tmp_path / "work_dirs/mine/seeds.json").exists()
    assert len(list((tmp_path / "work_dirs/mine").glob("seed-*/epoch_1.pth"))) == 2
