"""``hypvision train FOLDER`` of images with boxes: COCO's and YOLO's layouts."""

import json
import shutil

import pytest

pytest.importorskip("mmdet")
from helpers.cases import each
from helpers.shapes.export import export
from mmdet.registry import DATASETS
from mmengine.registry import DefaultScope

from hypvision.cli import main
from hypvision.engine.config import import_extensions
from hypvision.io.errors import HypvisionError
from hypvision.tasks.own_folder import Choices, config_of, described


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """COCO's own layout, with masks: 6 and 3 images of 64 pixels."""
    return export(tmp_path_factory.mktemp("drawn") / "scenes", "coco", 6, 3, 64, level="kind")


def as_yolo(drawn, root, outlines=False):
    """The same as YOLO has it, in a folder that ``data.yaml`` names."""
    names = []
    for part in ("train", "val"):
        content = json.loads((drawn / f"annotations/instances_{part}2017.json").read_text())
        names = [item["name"] for item in content["categories"]]
        numbers = {item["id"]: number for number, item in enumerate(content["categories"])}
        shutil.copytree(drawn / f"{part}2017", root / part / "images")
        (root / part / "labels").mkdir()
        for image in content["images"]:
            lines = []
            for item in content["annotations"]:
                if item["image_id"] == image["id"]:
                    left, top, width, height = (side / 64 for side in item["bbox"])
                    shares = [left + width / 2, top + height / 2, width, height]
                    if outlines:
                        right, bottom = left + width, top + height
                        shares = [left, top, right, top, right, bottom, left, bottom]
                    lines.append(" ".join(map(str, [numbers[item["category_id"]], *shares])))
            name = image["file_name"].rpartition(".")[0]
            (root / part / f"labels/{name}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(
        f"train: ../train/images\nval: ../val/images\nnames: {json.dumps(names)}\n"
    )
    return root


def roboflow(drawn, root):
    """``train/_annotations.coco.json`` beside its images, with Roboflow's category above all."""
    for part, name in (("train", "train"), ("val", "valid")):
        shutil.copytree(drawn / f"{part}2017", root / name)
        content = json.loads((drawn / f"annotations/instances_{part}2017.json").read_text())
        for item in content["categories"]:
            item["supercategory"] = "things"
        content["categories"].insert(0, dict(id=0, name="things", supercategory="none"))
        for item in content["annotations"]:
            del item["segmentation"]
        (root / name / "_annotations.coco.json").write_text(json.dumps(content))
    return root


def one_file(drawn, root):
    """All images of one file, as CVAT exports them."""
    shutil.copytree(drawn / "train2017", root / "images")
    (root / "annotations").mkdir()
    file = drawn / "annotations/instances_train2017.json"
    shutil.copy(file, root / "annotations/instances_default.json")
    return root


def coco(drawn, root):
    return drawn


LAYOUTS = {"coco": coco, "roboflow": roboflow, "one": one_file, "yolo": as_yolo}
FOUND = {
    "coco": ("COCO with masks", "instances_val2017.json", 6, 3),
    "roboflow": ("COCO with boxes", "valid/_annotations.coco.json", 6, 3),
    "one": ("COCO with masks", "every fifth image", 4, 2),
    "yolo": ("YOLO with boxes", "its 'val'", 6, 3),
}


def datasets(config):
    import_extensions(config)
    with DefaultScope.overwrite_default_scope("mmdet"):
        return [DATASETS.build(config.dataset(part)) for part in ("train", "val", "test")]


@each("name", LAYOUTS)
def test_what_is_found(name, drawn, tmp_path):
    root = LAYOUTS[name](drawn, tmp_path / name)
    config = config_of(root)
    kind, held_out, *counts = FOUND[name]
    assert described(config).startswith(f"found: {kind}, '{root}") and held_out in described(config)
    train, val, test = datasets(config)
    assert [len(train), len(val), len(test)] == [*counts, counts[1]]
    # what check prints: the images of the part, not those of the file
    assert [data.usage.used["images"] for data in (train, val)] == counts
    assert "4 classes ('" in described(config) and "; validation and test: " in described(config)
    assert config.data_root == str(root)
    names = train.metainfo["classes"]
    assert config.model.roi_head.bbox_head.num_classes == len(names) == 4
    truth = json.loads((drawn / "annotations/instances_val2017.json").read_text())
    if name in ("coco", "roboflow", "yolo"):  # the same boxes and names, whatever the layout
        words = {item["id"]: item["name"] for item in truth["categories"]}
        wanted = sorted(
            (words[item["category_id"]], *item["bbox"]) for item in truth["annotations"]
        )
        found = []
        for number in range(len(val)):
            for item in val.get_data_info(number)["instances"]:
                left, top, right, bottom = item["bbox"]
                found.append((names[item["bbox_label"]], left, top, right - left, bottom - top))
        for one, other in zip(sorted(found), wanted, strict=True):
            assert one[0] == other[0] and one[1:] == pytest.approx(other[1:], abs=0.01)


def test_outlines_make_a_mask_rcnn(drawn, tmp_path):
    root = as_yolo(drawn, tmp_path / "mine", outlines=True)
    config = config_of(root / "data.yaml")
    assert "YOLO with masks" in described(config) and config.model.type == "MaskRCNN"
    assert "masks" not in described(config_of(as_yolo(drawn, tmp_path / "boxes")))
    item = datasets(config)[0][0]
    assert len(item["data_samples"].gt_instances.masks) > 0


@each("name", list(LAYOUTS))
def test_few_images_train_for_more_epochs(name, drawn, tmp_path):
    """300 steps: of 6 images, four at a time, or of the 4 that are not for validation."""
    config = config_of(LAYOUTS[name](drawn, tmp_path / name))
    epochs = 300 if name == "one" else 150
    assert config.train_cfg.max_epochs == config.param_scheduler[1].end == epochs
    warm_up, cosine = config.param_scheduler
    assert warm_up.end == cosine.begin == config.train_cfg.val_interval == epochs // 12
    assert config.default_hooks.checkpoint.interval == epochs // 12


@each("batch_size", [1, 8])
def test_a_chosen_batch_makes_as_many_steps(batch_size, drawn):
    config = config_of(drawn, Choices(batch_size=batch_size))
    steps = -(-6 // batch_size)
    assert config.train_cfg.max_epochs * steps == 300


@each("processes", [1, 3, 8])
def test_processes_share_the_images_of_an_epoch(processes, drawn):
    """Each of them takes 300 steps of one image of the 6."""
    config = config_of(drawn, Choices(batch_size=1), processes)
    assert config.train_cfg.max_epochs * -(-6 // processes) == 300


def test_many_images_keep_twelve_epochs(drawn, tmp_path):
    root = shutil.copytree(drawn, tmp_path / "many")
    file = root / "annotations/instances_train2017.json"
    content = json.loads(file.read_text())
    content["images"] *= 20
    file.write_text(json.dumps(content))
    config = config_of(root)
    assert config.train_cfg.max_epochs == config.param_scheduler[1].end == 12
    assert config.train_cfg.val_interval == config.param_scheduler[0].end == 1


def test_choices(drawn):
    choices = Choices(epochs=3, batch_size=2, lr=0.01, image_size=96)
    config = config_of(drawn, choices)
    assert config.train_cfg.max_epochs == config.param_scheduler[1].end == 3
    assert config.train_cfg.val_interval == config.param_scheduler[0].end == 1
    assert config.train_dataloader.batch_size == 2 and config.val_dataloader.batch_size == 1
    assert config.optim_wrapper.optimizer.lr == 0.01
    for part in ("train", "val", "test"):
        scales = [step.scale for step in config.dataset(part).pipeline if step.type == "Resize"]
        assert scales == [(96, 96)]


def test_faults_of_folders(drawn, tmp_path):
    root = one_file(drawn, tmp_path / "mine")
    (root / "images").rename(root / "pictures")
    with pytest.raises(HypvisionError, match="which is in none of"):
        config_of(root)
    (root / "annotations/instances_default.json").rename(root / "annotations/instances_val.json")
    (root / "pictures").rename(root / "val")
    with pytest.raises(HypvisionError, match="no annotations of training images"):
        config_of(root)


@each("name", ["Annotations", "labels", "JPEGImages", "obj_train_data"])
def test_boxes_of_other_layouts_are_no_classes(name, tmp_path):
    (tmp_path / name / name).mkdir(parents=True)
    with pytest.raises(HypvisionError, match=f"has '{name}'.*data convert"):
        config_of(tmp_path / name)
    (tmp_path / f"{name}.zip").write_bytes(b"PK")
    with pytest.raises(HypvisionError, match="is an archive. Unpack it"):
        config_of(tmp_path / f"{name}.zip")


@each("ending", [".json", ".xml"])
def test_boxes_beside_images_are_named(ending, drawn, tmp_path):
    """As LabelMe and labelImg write them."""
    root = tmp_path / ending
    root.mkdir()
    shutil.copy(next(drawn.rglob("*.jpg")), root / "a.jpg")
    (root / f"a{ending}").write_text("{}")
    with pytest.raises(HypvisionError, match=f"has 'a{ending}'.*data convert"):
        config_of(root)


def test_check_names_file_and_line(drawn, tmp_path, monkeypatch, capsys):
    root = as_yolo(drawn, tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "mine"]) == 0 and "no faults" in capsys.readouterr().out
    file = next((root / "val/labels").iterdir())
    file.write_text("0 0.5 0.5 0.5 0.5\n9 0.5 0.5 0.1 0.1\n")
    with pytest.raises(SystemExit):
        main(["check", "mine"])
    told = capsys.readouterr()
    assert f"{file.name}', line 2, has the class 9" in told.out + told.err


@pytest.mark.slow
@each("name", ["roboflow", "yolo"])
def test_train_test_browse(name, drawn, tmp_path, monkeypatch, capsys):
    LAYOUTS[name](drawn, tmp_path / name / "mine")
    monkeypatch.chdir(tmp_path / name)
    small = ["--image-size", "64", "--epochs", "1", "--batch-size", "2"]
    assert main(["browse", "mine", "--samples", "2"]) == 0
    assert main(["train", "mine", *small]) == 0
    out = capsys.readouterr().out
    assert "found: " in out and "config: work_dirs/mine/config.py" in out
    weights = "work_dirs/mine/epoch_1.pth"
    for config in ("mine", "work_dirs/mine/config.py"):
        assert main(["test", config, weights]) == 0
        assert "coco/bbox_mAP" in capsys.readouterr().out
    model = ["--model", config, "--weights", weights, "--device", "cpu", "--out", "found"]
    assert main(["predict", str(next((tmp_path / name / "mine").rglob("*.jpg"))), *model]) == 0
    assert "knows 4 classes" in capsys.readouterr().out
