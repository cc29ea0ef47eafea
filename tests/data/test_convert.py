"""``hypvision data convert``: each format into COCO's, read by pycocotools."""

import base64
import contextlib
import io
import json

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image
from pycocotools.coco import COCO

from hypvision.cli import main
from hypvision.data.convert import convert
from hypvision.data.usage import Usage
from hypvision.io.errors import HypvisionError

SIZE = (60, 40)
BOX = [10, 5, 20, 30]  # left, top, width, height of the one cat
XML = """<?xml version="1.0" encoding="latin-1"?>
<annotation><filename>{name}.png</filename><size><width>60</width><height>40</height></size>
<object><name>cat</name><bndbox><xmin>11</xmin><ymin>6</ymin><xmax>31</xmax><ymax>36</ymax></bndbox>
</object><object><name>dög</name><difficult>1</difficult>
<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object></annotation>"""


def image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", SIZE, (20, 90, 160)).save(path)
    return path


def read(path):
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(path)
    for item in coco.imgs.values():
        assert (item["width"], item["height"]) == SIZE
    return coco


def names(coco):
    return {item["name"]: number for number, item in coco.cats.items()}


def cat(coco):
    [item] = coco.loadAnns(coco.getAnnIds(catIds=[names(coco)["cat"]]))
    return item


def labelme(root, shapes, name="a", **more):
    image(root / f"{name}.png")
    content = dict(imagePath=f"{name}.png", imageHeight=40, imageWidth=60, shapes=shapes)
    (root / f"{name}.json").write_text(json.dumps({**content, **more}))
    return root


def shape(points, label="cat", kind="polygon", **more):
    return dict(label=label, points=points, shape_type=kind, **more)


def test_yolo(tmp_path):
    for part in ("train", "val"):
        image(tmp_path / f"images/{part}/a.png")
        file = tmp_path / f"labels/{part}/a.txt"
        file.parent.mkdir(parents=True)
        file.write_text(f"1 {20 / 60} {20 / 40} {20 / 60} {30 / 40}\n")
    yaml = "names: [dog, cat]\ntrain: images/train\nval: images/val\n"
    (tmp_path / "data.yaml").write_text(yaml)
    written = convert(tmp_path, tmp_path / "annotations")
    assert [one.file.name for one in written] == ["instances_train.json", "instances_val.json"]
    coco = read(written[1].file)
    assert cat(coco)["bbox"] == pytest.approx(BOX) and list(names(coco)) == ["dog", "cat"]
    assert coco.imgs[1]["file_name"] == "images/val/a.png"


@each("lists", [True, False])
def test_voc(lists, tmp_path):
    root = tmp_path / str(lists)
    for name in ("a", "b"):
        image(root / f"JPEGImages/{name}.png")
        (root / "Annotations").mkdir(exist_ok=True)
        (root / f"Annotations/{name}.xml").write_text(XML.format(name=name), encoding="latin-1")
    if lists:
        (root / "ImageSets/Main").mkdir(parents=True)
        for part, name in (("train", "a"), ("val", "b")):
            (root / f"ImageSets/Main/{part}.txt").write_text(name)
    written = convert(root, root / "annotations")
    assert [one.images for one in written] == ([1, 1] if lists else [2])
    coco = read(written[-1].file)
    number = max(coco.imgs)
    assert coco.imgs[number]["file_name"] == "JPEGImages/b.png"
    found = coco.loadAnns(coco.getAnnIds(imgIds=[number]))
    assert [item["bbox"] for item in found] == [BOX, [0, 0, 4, 4]]
    assert [item["iscrowd"] for item in found] == [0, 1] and "dög" in names(coco)


def test_createml(tmp_path):
    for part in ("train", "valid"):
        image(tmp_path / part / "a.jpg")
        box = dict(x=20, y=20, width=20, height=30)
        entry = dict(image="a.jpg", annotations=[dict(label="cat", coordinates=box)])
        (tmp_path / part / "_annotations.createml.json").write_text(json.dumps([entry]))
    written = convert(tmp_path, tmp_path / "annotations")
    assert [one.file.name for one in written] == ["instances_train.json", "instances_val.json"]
    assert cat(read(written[0].file))["bbox"] == BOX


PIXELS = """filename,width,height,class,xmin,ymin,xmax,ymax
a.png,60,40,cat,10,5,30,35
a.png,60,40,dog,0,0,5,5
"""
PARTS = """ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsGroupOf
a,xclick,/m/01,1,0.16666667,0.5,0.125,0.875,0
a,xclick,/m/02,1,0,0.1,0,0.1,1
gone,xclick,/m/02,1,0,0.1,0,0.1,0
"""


@each("text, crowds, lost", [(PIXELS, 0, 0), (PARTS, 1, 1)])
def test_tables_of_boxes(text, crowds, lost, tmp_path):
    tmp_path = tmp_path / str(crowds)
    image(tmp_path / "train/a.png")
    (tmp_path / "train/boxes.csv").write_text(text)
    (tmp_path / "train/class-descriptions.csv").write_text("/m/01,cat\n/m/02,dog\n")
    usage = Usage(tmp_path)
    [written] = convert(tmp_path, tmp_path / "annotations", usage)
    assert written.file.name == "instances_train.json" and written.objects == 2
    coco = read(written.file)
    assert cat(coco)["bbox"] == pytest.approx(BOX, abs=1e-4)
    assert set(names(coco)) == {"cat", "dog"}
    assert sum(item["iscrowd"] for item in coco.anns.values()) == crowds
    assert usage.left_out("images") == lost


@each("text, said", [
    (PIXELS.replace("dog,0,0", "dog,x,0"), "line 3"),
    (PIXELS.replace("dog", ""), "line 3 has no name of a class"),
    (PIXELS.replace("60,40", "61,40"), "61 x 40 pixels"),
    (PIXELS.replace("a.png", "b.png"), "None of the 1 images"),
    (PIXELS.replace("class", "sort"), "none of label"),
    (PIXELS + "\n", "other.csv"),
])  # fmt: skip
def test_faults_of_tables(text, said, tmp_path):
    image(tmp_path / "a.png")
    if said == "other.csv":  # a second table of the same image
        (tmp_path / said).write_text(PIXELS)
    (tmp_path / "boxes.csv").write_text(text)
    with pytest.raises(HypvisionError, match=said):
        convert(tmp_path, tmp_path / "annotations")
    assert not (tmp_path / "annotations").exists()


def test_other_xml_is_named(tmp_path):
    image(tmp_path / "a.png")
    (tmp_path / "a.xml").write_text("<annotations><image name='a.png'/></annotations>")
    with pytest.raises(HypvisionError, match="no annotation of VOC .*CVAT"):
        convert(tmp_path, tmp_path / "out")


def test_labelme(tmp_path):
    pixels = np.zeros((6, 8), dtype=bool)
    pixels[1:, :5] = True
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    text = base64.b64encode(buffer.getvalue()).decode()
    shapes = [
        shape([[10, 5], [30, 5], [30, 35], [10, 35]]),
        shape([[30, 35], [10, 5]], "box", "rectangle"),
        shape([[30, 20], [30, 30]], "disc", "circle"),
        shape([[4, 3], [11, 8]], "mask", "mask", mask=text),
        shape([[1, 1]], "dot", "point"),
        shape([[0, 0], [5, 0], [5, 5]], "two", group_id=1),
        shape([[20, 20], [25, 20], [25, 25]], "two", group_id=1),
    ]
    usage = Usage(tmp_path)
    [written] = convert(labelme(tmp_path, shapes), tmp_path / "annotations", usage)
    assert written.objects == 5 and usage.left_out("objects") == 1
    coco = read(written.file)
    own = names(coco)
    found = {name: coco.loadAnns(coco.getAnnIds(catIds=[own[name]])) for name in own}
    areas = dict(cat=600, box=600, disc=np.pi * 100, mask=25, two=25)
    for name, area in areas.items():
        [item] = found[name]
        assert item["area"] == pytest.approx(area, rel=0.01)
        assert coco.annToMask(item).sum() == pytest.approx(area, rel=0.2)
    assert found["cat"][0]["bbox"] == found["box"][0]["bbox"] == BOX
    assert found["two"][0]["bbox"] == [0, 0, 25, 25] and len(found["two"][0]["segmentation"]) == 2
    drawn = coco.annToMask(found["mask"][0])
    assert drawn[4:9, 4:9].all() and drawn.sum() == 25


@each("shapes, more, said", [
    ([shape([[1, 1], [2, 2]])], {}, "shape 1 has the points .* Expected: 3"),
    ([shape([[1, 1], [2, 2], [3, "x"]])], {}, "shape 1 has the points"),
    ([shape([[1, 1], [9, 2], [3, 9]], "")], {}, "no name of a class"),
    ([shape([[1, 1], [2, 2]], kind="mask", mask="!")], {}, "mask that cannot be read"),
    ([], dict(imageHeight=41), "says that its image is 60 x 41 pixels"),
    ([], dict(imagePath="gone.png"), "gone.png', which does not exist"),
    ([], dict(imagePath="../../a.png"), "lies outside"),
])  # fmt: skip
def test_faults(shapes, more, said, tmp_path):
    labelme(tmp_path, shapes, **more)
    with pytest.raises(HypvisionError, match=said):
        convert(tmp_path, tmp_path / "annotations")
    assert not (tmp_path / "annotations").exists()


def test_nothing_is_overwritten_and_mixtures_are_refused(tmp_path, capsys):
    root = labelme(tmp_path / "mine", [shape([[10, 5], [30, 5], [30, 35]])])
    assert main(["data", "convert", str(root), str(root / "annotations")]) == 0
    assert "instances_default.json: 1 images, 1 objects, 1 classes" in capsys.readouterr().out
    file = root / "annotations/instances_default.json"
    before = file.read_bytes()
    convert(root, root / "annotations")  # the same again
    labelme(root, [shape([[10, 5], [30, 5], [30, 36]])])
    with pytest.raises(HypvisionError, match="exists and has other content"):
        convert(root, root / "annotations")
    assert file.read_bytes() == before
    (root / "a.xml").write_text(XML.format(name="a"), encoding="latin-1")
    with pytest.raises(HypvisionError, match="LabelMe and VOC"):
        convert(root, root / "other")
    with pytest.raises(HypvisionError, match="is a file"):
        convert(root / "a.xml", root / "other")
    with pytest.raises(HypvisionError, match="no kind that is known"):
        convert(image(tmp_path / "bare/a.png").parent, root / "other")


def test_an_image_outside_is_of_the_part_of_its_annotation(tmp_path, monkeypatch):
    """Where ``HYPVISION_ALLOW_OUTSIDE`` allows it; a folder may also be named by a way around."""
    image(tmp_path / "photos/b.png")
    labelme(tmp_path / "data/val", [shape([[1, 1], [9, 1], [9, 9]])])
    labelme(
        tmp_path / "data/train", [shape([[1, 1], [9, 1], [9, 9]])], imagePath="../../photos/b.png"
    )
    with pytest.raises(HypvisionError, match="lies outside"):
        convert(tmp_path / "data", tmp_path / "out")
    monkeypatch.setenv("HYPVISION_ALLOW_OUTSIDE", str(tmp_path / "photos"))
    written = convert(tmp_path / "photos/../data", tmp_path / "out")
    assert [(one.file.name, one.images) for one in written] == [
        ("instances_train.json", 1), ("instances_val.json", 1)
    ]  # fmt: skip
