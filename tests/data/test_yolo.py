"""YOLO's layout: what ``data.yaml`` may say, and what is wrong in a file of labels."""

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image
from pycocotools import mask as coco_mask

from hypvision.data.usage import Usage
from hypvision.data.yolo import find_yaml, label_file, read_yolo, yolo_as_coco
from hypvision.io.errors import HypvisionError


def make(root, labels, yaml="names: [cat, dog]\ntrain: images/train\n", part="train"):
    """An image of 40 x 20 for each text of labels (None: no file), and the ``data.yaml``."""
    for number, text in enumerate(labels):
        for folder in ("images", "labels"):
            (root / folder / part).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20), (90, 60, 30)).save(root / f"images/{part}/{number}.png")
        if text is not None:
            (root / f"labels/{part}/{number}.txt").write_text(text)
    (root / "data.yaml").write_text(yaml)
    return root / "data.yaml"


def test_boxes_in_pixels(tmp_path):
    yaml = make(tmp_path, ["1 0.5 0.5 0.25 0.5\n\n0 0.95 0.5 0.1001 1\n", None, ""])
    usage = Usage("here")
    content = yolo_as_coco(read_yolo(yaml), "train", usage)
    first, second = content["annotations"]
    assert first["bbox"] == [15, 5, 10, 10] and first["area"] == 100
    assert first["category_id"] == 1 and "segmentation" not in first
    assert sum(second["bbox"][::2]) == 40  # rounding put its right side beyond the image
    assert [item["name"] for item in content["categories"]] == ["cat", "dog"]
    assert len(content["images"]) == 3 and "1 of 3 images" in usage.notes[0]


def test_outlines_are_polygons_with_their_area(tmp_path):
    yaml = make(tmp_path, ["0 0.1 0.1 0.6 0.1 0.6 0.6 0.1 0.9\n1 0 0 1 0 1 1\n"])
    content = yolo_as_coco(read_yolo(yaml), "train")
    for item in content["annotations"]:
        xs, ys = np.array(item["segmentation"][0]).reshape(-1, 2).T
        assert item["bbox"] == pytest.approx([xs.min(), ys.min(), np.ptp(xs), np.ptp(ys)])
        scaled = [value * 50 for value in item["segmentation"][0]]
        painted = coco_mask.area(coco_mask.frPyObjects([scaled], 1000, 2000))[0]
        assert item["area"] == pytest.approx(painted / 2500, rel=0.01)


def test_boxes_among_outlines_make_all_of_them_boxes(tmp_path):
    yaml = make(tmp_path, ["0 0.1 0.1 0.6 0.1 0.6 0.6\n1 0.5 0.5 0.1 0.1\n"])
    usage = Usage("here")
    items = yolo_as_coco(read_yolo(yaml), "train", usage)["annotations"]
    assert not any("segmentation" in item for item in items) and len(items) == 2
    assert "1 objects have outlines and 1 are boxes" in usage.notes[0]


@each("line, said", [
    ("2 0.5 0.5 0.1 0.1", "class 2; the classes are 0 to 1"),
    ("-1 0.5 0.5 0.1 0.1", "class -1"),
    ("0.5 0.5 0.5 0.1 0.1", "class 0.5"),
    ("0 15 5 10 10", "coordinate 15; expected are shares"),
    ("0 -0.2 0.5 0.1 0.1", "coordinate -0.2"),
    ("0 0.1 0.1 0.2 0.2 0.3 0.3 0.4", "8 numbers"),
    ("0 0.5 0.5 0.1 0.1 0.9", "6 numbers"),
    ("0 0.5 0.5 0.1", "4 numbers"),
    ("cat 0.5 0.5 0.1 0.1", "not numbers alone"),
    ("0 nan 0.5 0.1 0.1", "not numbers alone"),
])  # fmt: skip
def test_a_wrong_line(line, said, tmp_path):
    yaml = make(tmp_path, [f"0 0.5 0.5 0.1 0.1\n{line}\n"])
    with pytest.raises(HypvisionError, match=f"0.txt', line 2, .*{said}"):
        yolo_as_coco(read_yolo(yaml), "train")


def test_many_wrong_lines_are_counted_and_the_same_line_counts_once(tmp_path):
    yaml = make(tmp_path, ["7 0 0 0 0\n8 0 0 0 0\n"] * 5)
    with pytest.raises(HypvisionError, match="There are 10 such lines"):
        yolo_as_coco(read_yolo(yaml), "train")
    yaml = make(tmp_path / "twice", ["0 0.5 0.5 0.1 0.1\n" * 2])
    usage = Usage("here")
    assert len(yolo_as_coco(read_yolo(yaml), "train", usage)["annotations"]) == 1
    assert usage.left_out("boxes") == 1


def test_key_points_leave_the_boxes(tmp_path):
    yaml = "names: [cat]\ntrain: images/train\nkpt_shape: [2, 3]\n"
    made = make(tmp_path, ["0 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.6 1\n"], yaml)
    usage = Usage("here")
    assert len(yolo_as_coco(read_yolo(made), "train", usage)["annotations"]) == 1
    assert "key points" in usage.notes[0]


@each("train", [
    "images/train", "[images/train, images/more]", "train.txt", "../images/train", "./images/train",
    "images\\train",
])  # fmt: skip
@each("path", ["", "path: /no/such/folder\n", "path: .\n"])
def test_places(train, path, tmp_path):
    yaml = make(tmp_path, ["", ""], f"{path}names: {{0: cat, 1: dog}}\nnc: 2\ntrain: {train}\n")
    make(tmp_path, [""], yaml.read_text(), "more")
    (tmp_path / "train.txt").write_text("./images/train/0.png\n\nimages/train/1.png\n")
    data = read_yolo(yaml)
    assert data.names == ("cat", "dog") and len(data.images["train"]) == 2 + ("more" in train)
    assert find_yaml(tmp_path) == yaml


def test_a_path_below_the_file(tmp_path):
    make(tmp_path / "mine", [""], "")
    (tmp_path / "other.yml").write_text("names: [cat]\npath: mine\ntrain: images/train\n")
    [image] = read_yolo(find_yaml(tmp_path)).images["train"]
    assert image == tmp_path / "mine/images/train/0.png"
    assert label_file(image) == tmp_path / "mine/labels/train/0.txt"
    assert label_file(tmp_path / "flat/0.png") == tmp_path / "flat/0.txt"


@each("yaml, said", [
    ("train: images/train", "no names"),
    ("names: [cat]\nnc: 2\ntrain: images/train", "nc: 2, but 1 names"),
    ("names: {1: cat}\ntrain: images/train", "numbers its names 1"),
    ("names: [cat]\ntrain: elsewhere", "there is no"),
    ("names: [cat]\ntrain: list.txt", "line 2, names 'gone.png'"),
    ("names: [cat]", "names no train data"),
    ("names: [cat", "cannot be read as YAML"),
])  # fmt: skip
def test_a_wrong_yaml(yaml, said, tmp_path):
    made = make(tmp_path, [""], yaml)
    (tmp_path / "list.txt").write_text("images/train/0.png\ngone.png\n")
    with pytest.raises(HypvisionError, match=said):
        read_yolo(made)


def test_names_lead_nowhere_else_and_cost_nothing(tmp_path):
    """Names in data stay in its folder, and a few bytes ask for no gigabytes."""
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("a password\n")
    file = folder / "data.yaml"
    for text in (
        "names: [a]\ntrain: ../secret.txt\n",
        f"names: [a]\npath: {tmp_path}\ntrain: secret.txt\n",
    ):
        file.write_text(text)
        with pytest.raises(HypvisionError, match="lies outside") as caught:
            read_yolo(file)
        assert "password" not in str(caught.value)
    lines = ["a0: &x0 [lol]"] + [f"a{i}: &x{i} [{f'*x{i - 1}, ' * 20}]" for i in range(1, 9)]
    file.write_text("\n".join([*lines, "names: [*x8]", "train: images"]))
    with pytest.raises(HypvisionError, match="alias"):
        read_yolo(file)
    for names in ("[[a]]", "{0: [a]}"):
        file.write_text(f"names: {names}\ntrain: images\n")
        with pytest.raises(HypvisionError, match="names of classes"):
            read_yolo(file)
