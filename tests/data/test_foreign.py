"""Files of strangers: whatever stands in a field of their JSON, XML or YAML, and whatever lies in
the place of a file, a reader gives a sentence or an answer."""

import base64
import copy
import io
import json
import os
import threading
from functools import partial

import pytest
import yaml
from helpers.cases import each
from PIL import Image

from hypvision.checkpoints.index import read_index
from hypvision.checkpoints.read import read_file
from hypvision.data import (
    archives,
    caption_folder,
    classes,
    convert,
    hypernyms,
    multi_label,
    published,
    shard_index,
    shards,
    tables,
    yolo,
    zero_shot,
)
from hypvision.data.fewshot import pickles, splits
from hypvision.data.masks import decode
from hypvision.data.prepare import prepare
from hypvision.io import files, images
from hypvision.io.errors import HypvisionError, explain_machine

LONG = "9" * 5000  # digits: Python makes no number of so many
WRONG = (
    None, True, 0, -1, 0.5, 1e308, 10**400, "", "x", "\0", "\ud800", "../x", LONG, [], ["x"],
    [["x"]], [[[1]]], {}, {"x": ["y"]},
)  # fmt: skip


def picture(place, size=(60, 40)):
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (20, 90, 160)).save(place)


def png(size=(4, 3)):
    buffer = io.BytesIO()
    Image.new("L", size, 255).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def shape(kind, points, **more):
    return dict(label="cat", shape_type=kind, points=points, group_id=None, **more)


LABELME = dict(
    imagePath="a.png", imageHeight=40, imageWidth=60,
    shapes=[
        shape("polygon", [[1, 1], [9, 1], [9, 9]]), shape("rectangle", [[1, 1], [9, 9]]),
        shape("circle", [[20, 20], [25, 20]]), shape("mask", [[2, 2], [6, 5]], mask=png()),
    ],
)  # fmt: skip
CREATEML = [
    dict(image="a.png", annotations=[
        dict(label="cat", coordinates=dict(x=20, y=20, width=5, height=5))
    ])
]  # fmt: skip
YOLO = dict(names=["cat", "dog"], nc="2", path=".", train="images", kpt_shape=["2", "2"])
COCO = dict(
    images=[dict(id=key, file_name=f"{key}.png", height=40, width=60) for key in (1, 2)],
    categories=[dict(id=1, name="cat", supercategory="animal")],
    annotations=[
        dict(id=1, image_id=1, category_id=1, bbox=[1, 1, 5, 5], area=25, iscrowd=0, caption="a",
             segmentation=[[1, 1, 6, 1, 6, 6]]),
        dict(id=2, image_id=1, category_id=1, bbox=[0, 0, 60, 40], area=9, iscrowd=1, caption="x",
             segmentation=dict(size=[40, 60], counts=[0, 2400])),
    ],
)  # fmt: skip
KARPATHY = dict(images=[dict(split="test", filename="a.png", sentences=[dict(raw="a cat")])])
PC59 = dict(
    images=[dict(image_id=1, file_name="a.jpg", height=40, width=60, phase="val")],
    annos=[dict(image_id=1, category_id=2, segmentation=[[1, 1, 6, 1, 6, 6]])],
)  # fmt: skip
SPLIT = dict(train=[["a.png", 0, "cat"], ["b.png", 1, "dog"]], val=[], test=[["a.png", 0, "cat"]])
COUNTS = {"kind": {"a.tar": dict(bytes=1, modified=1, samples=1, left_out=[["no image", "k"]])}}


def written(name, dump=json.dumps):
    def write(folder, content):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dump(content), errors="surrogateescape")
        return folder / name

    return write


def lines(content):
    return "\n".join(map(json.dumps, content if isinstance(content, list) else [content]))


def converted(file):
    return convert.convert(file.parent, file.parent / "out")


def of_yolo(file):
    data = yolo.read_yolo(file)
    return yolo.yolo_as_coco(data, "train")


def as_boxes(file):
    pytest.importorskip("mmdet")
    from hypvision.tasks.own_boxes import boxes_config

    return boxes_config(file.parents[1])


def checked_coco(file):
    pytest.importorskip("mmdet")
    from hypvision.openmmlab.datasets.detection import CheckedCOCO

    return CheckedCOCO(str(file), masks=True)


def class_tree(file):
    from hypvision.losses.class_tree import ClassTree

    return ClassTree(["cat", "dog"], file)


def of_suite(name):
    return lambda file: zero_shot.READERS[name](file, file.parent)


JSON_READERS = {
    "LabelMe": (LABELME, written("a.json"), converted),
    "CreateML": (CREATEML, written("a.json"), converted),
    "YOLO": (YOLO, written("data.yaml", lambda content: yaml.safe_dump(content)), of_yolo),
    "COCO in a folder": (COCO, written("annotations/instances_train.json"), as_boxes),
    "COCO": (COCO, written("a.json"), checked_coco),
    "COCO's captions": (COCO, written("a.json"), of_suite("coco")),
    "Karpathy's split": (KARPATHY, written("a.json"), of_suite("flickr30k")),
    "SugarCrepe": (
        {"0": dict(filename="a.png", caption="a", negative_caption="b")}, written("a.json"),
        of_suite("sugar_crepe"),
    ),
    "classes": (["cat", "dog"], written("a.json"), classes.load_classes),
    "numbered classes": ({"cat": 0, "dog": 1}, written("a.json"), classes.load_classes),
    "tree": ({"animal": {"cat": {}, "dog": {}}}, written("a.json"), class_tree),
    "split": (SPLIT, written("a.json"), lambda file: splits.read_split(file, file.parent)),
    "counts": (
        COUNTS, written("shards.json"),
        lambda file: shard_index.count_shards([file.parent / "a.tar"], "kind", lambda _: (1, [])),
    ),
    "labels": (
        [dict(image="a.png", labels=["cat"])], written("a.jsonl", lines), multi_label.read_table,
    ),
    "table": (
        [dict(image="a.png", label="cat")], written("a.jsonl", lines),
        lambda file: tables.read_cells(file, "Expected: a table"),
    ),
    "captions": (
        [dict(image="a.png", caption="a cat", boxes=[dict(box=[1, 1, 5, 5], words="x")])],
        written("captions.jsonl", lines), lambda file: caption_folder.read_captions(file.parent),
    ),
    "texts": ([dict(caption="a cat", image="a.png")], written("a.jsonl", lines),
              hypernyms.read_captions),
}  # fmt: skip


def places(content, place=()):
    """The way to each value in nested lists and dicts."""
    yield place
    pairs = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in pairs if isinstance(content, (dict, list)) else ():
        yield from (
            places(value, (*place, key)) if isinstance(value, (dict, list)) else [(*place, key)]
        )


def replaced(content, place, value):
    if not place:
        return value
    content = copy.deepcopy(content)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return content


def a_folder(root):
    for name in "a12":
        picture(root / f"{name}.png")
    picture(root / "images/a.png")
    (root / "a.tar").write_bytes(b"")
    (root / "labels").mkdir()
    (root / "labels/a.txt").write_text("0 0.5 0.5 0.1 0.1 0.5 0.5 0.6 0.6\n")
    return root


@pytest.fixture
def folder(tmp_path):
    return a_folder(tmp_path)


def what_fails(kind, folder, values):
    """What comes of these values in each field, as far as no sentence says it."""
    content, write, reader = JSON_READERS[kind]
    reader(write(folder, content))  # is right
    failed = []
    for place in places(content):
        for value in values:
            file = write(folder, replaced(content, place, value))
            for made in folder.glob("out/*"):
                made.unlink()
            try:
                reader(file)
            except Exception as error:
                if isinstance(error, HypvisionError) or explain_machine(error):
                    continue  # what a command prints as a sentence
                failed.append(f"{place} = {value!r:.40}: {type(error).__name__}: {error!s:.100}")
    return "\n".join(failed)


@each("kind", ["LabelMe", "CreateML", "YOLO", "split", "counts", "tree", "numbered classes"])
def test_some_values_in_any_field(kind, tmp_path_factory):
    folder = a_folder(tmp_path_factory.mktemp("data"))
    assert not what_fails(kind, folder, [10**400, LONG, ["x"]])


@pytest.mark.slow
@pytest.mark.parametrize("kind", JSON_READERS)
def test_any_value_in_any_field(kind, folder):
    assert not what_fails(kind, folder, WRONG)


VOC = (
    "<annotation><filename>{}</filename><size><width>{}</width><height>{}</height></size>"
    "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin>"
    "<xmax>{}</xmax><ymax>{}</ymax></bndbox></object></annotation>"
)
RIGHT = ["a.png", "60", "40", "cat", "0", "1", "1", "9", "9"]


@each("place", range(len(RIGHT)))
def test_any_text_in_xml(place, folder):
    for value in ("", "x", "-1", "1e999", "nan", LONG, "../x", "<x>1</x>", "&amp;"):
        words = [*RIGHT]
        words[place] = value
        file = written("a.xml", lambda text: text)(folder, VOC.format(*words))
        for made in folder.glob("out/*"):
            made.unlink()
        try:
            converted(file)
        except (HypvisionError, OSError) as error:
            assert isinstance(error, HypvisionError) or explain_machine(error), value


def test_words_in_xml_that_expand_without_end(folder):
    """A thousand millions of letters, in few lines of entities."""
    entities = '<!ENTITY a0 "aaaaaaaaaa">' + "".join(
        f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 9)
    )
    text = f"<!DOCTYPE x [{entities}]>" + VOC.format(*RIGHT[:3], "&a8;", *RIGHT[4:])
    with pytest.raises(HypvisionError, match="not valid XML"):
        converted(written("a.xml", lambda text: text)(folder, text))


# What is no file


FILE_READERS = {
    **{kind: (write, reader) for kind, (_, write, reader) in JSON_READERS.items()},
    "VOC": (written("a.xml"), converted),
    "Matlab": (written("a.mat"), lambda file: published.read_matlab(file, "x")),
    "tar": (written("b.tar"), archives.Files),
    "zip": (written("b.zip"), archives.Files),
    "official shots": (
        written("s.pkl"), lambda file: pickles.read_pickled_shots(file, "jpg", file.parent)
    ),
    "bytes of an image": (written("b.png"), files.read_bytes),
    "lines": (written("b.txt"), lambda file: files.read_lines(file, "a list")),
    "an image": (written("b.png"), images.open_image),
    "a shard": (
        written("b.tar"), lambda file: shards.CaptionShards(str(file), shuffle=0)
    ),
    "weights": (written("b.safetensors"), read_file),
    "an index": (written("index.yml"), read_index),
}  # fmt: skip


@each("kind", FILE_READERS)
def test_a_pipe_is_refused_at_once(kind, tmp_path, tmp_path_factory):
    """A reader that opened it would wait for a writer for ever."""
    folder = tmp_path_factory.mktemp("pipe")
    picture(folder / "1.png")
    (folder / "a.tar").write_bytes(b"")
    write, reader = FILE_READERS[kind]
    file = write(folder, {})
    file.unlink()
    os.mkfifo(file)
    said = []

    def work():
        try:
            reader(file)
        except Exception as error:
            said.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits"
    assert said and isinstance(said[0], HypvisionError), said


# What is larger than it looks


def rle(side):
    return dict(size=[side, side], counts=[0, side * side])


def labelme_with(mask, **more):
    content = copy.deepcopy(LABELME) | more
    content["shapes"] = [shape("mask", [[2, 2], [6, 5]], mask=mask)]
    return content


def pc59_with(folder, **more):
    content = copy.deepcopy(PC59)
    content["images"][0] |= more.pop("image", {})
    content["annos"][0] |= more
    picture(folder / "JPEGImages/a.jpg")
    (folder / "trainval_merged.json").write_text(json.dumps(content))
    return lambda: prepare("pc59", folder, folder / "out")


def coco_with(folder, side):
    content = copy.deepcopy(COCO)
    content["images"][0] |= dict(height=side, width=side)
    content["annotations"] = [dict(content["annotations"][0], segmentation=rle(side))]
    file = written("a.json")(folder, content)
    return lambda: checked_coco(file)


BOMBS = {
    "a mask of LabelMe": lambda folder: partial(
        converted, written("a.json")(folder, labelme_with(png((13_400, 13_400))))
    ),
    "a canvas of LabelMe": lambda folder: partial(
        converted,
        written("a.json")(folder, labelme_with(png(), imageHeight=10**6, imageWidth=10**6)),
    ),
    "run lengths of pc59": lambda folder: pc59_with(folder, segmentation=rle(10**6)),
    "an image of pc59": lambda folder: pc59_with(folder, image=dict(height=10**6, width=10**6)),
    "run lengths of COCO": lambda folder: coco_with(folder, 10**6),
    "a mask alone": lambda folder: partial(decode, rle(10**6), 40, 60),
}


@each("kind", BOMBS)
def test_a_mask_of_too_many_pixels_is_refused(kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bomb")
    picture(folder / "a.png")
    with pytest.raises(HypvisionError):
        BOMBS[kind](folder)()
