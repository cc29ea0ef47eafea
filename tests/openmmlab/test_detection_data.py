"""Faults in the boxes of COCO's JSON and VOC's XML alike: what is left out is counted, what is
wrong is told."""

import json
import math
import pickle
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from xml.etree.ElementTree import Element, ElementTree, SubElement

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image

pytest.importorskip("mmdet")
from mmdet.registry import DATASETS

from hypvision.data.annotations import FAULTS
from hypvision.io.errors import HypvisionError
from hypvision.openmmlab.coco_metric import CheckedCocoMetric
from hypvision.openmmlab.datasets import detection

WIDTH, HEIGHT = 96, 72
GOOD = dict(box=(10, 20, 40, 60))
READERS = ("COCO", "VOC")
LOAD = [dict(type="LoadImageFromFile"), dict(type="mmdet.LoadAnnotations", with_bbox=True)]
WITH_MASKS = [LOAD[0], dict(type="mmdet.LoadAnnotations", with_bbox=True, with_mask=True)]


def write_coco(root, images, classes=("cat", "dog")):
    """An annotation file of COCO's format; ``images`` are lists of objects with corners as
    ``box``."""
    content = dict(
        images=[], annotations=[], categories=[dict(id=k, name=x) for k, x in enumerate(classes, 1)]
    )
    for number, objects in enumerate(images):
        content["images"].append(
            dict(id=number, file_name=f"{number}.png", width=WIDTH, height=HEIGHT)
        )
        for item in objects:
            left, top, right, bottom = item["box"]
            content["annotations"].append(
                dict(
                    {key: item[key] for key in ("area", "iscrowd", "segmentation") if key in item},
                    id=len(content["annotations"]) + 1,
                    image_id=number,
                    category_id=classes.index(item.get("name", "cat")) + 1,
                    bbox=[left, top, right - left, bottom - top],
                )
            )
    (root / "train.json").write_text(json.dumps(content))


def write_voc(root, images, size=(WIDTH, HEIGHT)):
    """The same as VOC's XML, which counts pixels from 1."""
    for folder in ("JPEGImages", "Annotations"):
        (root / folder).mkdir(exist_ok=True)
    for number, objects in enumerate(images):
        tree = Element("annotation")
        if size is not None:
            entry = SubElement(tree, "size")
            for key, value in zip(("width", "height"), size):
                SubElement(entry, key).text = str(value)
        for item in objects:
            entry = SubElement(tree, "object")
            SubElement(entry, "name").text = item.get("name", "cat")
            if "difficult" in item:
                SubElement(entry, "difficult").text = item["difficult"]
            box = SubElement(entry, "bndbox")
            for key, value in zip(("xmin", "ymin", "xmax", "ymax"), item["box"]):
                SubElement(box, key).text = str(value if item.get("raw") else value + 1)
        ElementTree(tree).write(root / f"Annotations/{number}.xml")
    (root / "train.txt").write_text("\n".join(map(str, range(len(images)))))


def build(root, reader, **options):
    common = dict(
        data_root=f"{root}/", metainfo=dict(classes=("cat", "dog")),
        filter_cfg=dict(filter_empty_gt=True), pipeline=LOAD, _scope_="mmdet",
    )  # fmt: skip
    own = {
        "COCO": dict(
            type="CocoDataset", ann_file="train.json", data_prefix=dict(img="JPEGImages/")
        ),
        "VOC": dict(type="XMLDataset", ann_file="train.txt", data_prefix=dict(sub_data_root="")),
    }[reader]
    return DATASETS.build({**common, **own, **options})


@pytest.fixture
def make(tmp_path):
    """A function that writes images and annotations; returns the folder."""

    def write(reader, *images, size=(WIDTH, HEIGHT), **options):
        (tmp_path / "JPEGImages").mkdir()
        for number in range(len(images)):
            Image.fromarray(np.full((HEIGHT, WIDTH, 3), 90, np.uint8)).save(
                tmp_path / f"JPEGImages/{number}.png"
            )
        write_coco(tmp_path, images, **options) if reader == "COCO" else write_voc(
            tmp_path, images, size, **options
        )
        return tmp_path

    return write


# Reason of a fault: an object that has it, and the readers that know it
EXAMPLES = {
    "negative width or height": (dict(box=(40, 20, 10, 60)), READERS),
    "no width or no height": (dict(box=(10, 20, 40, 20)), READERS),
    "outside the image": (dict(box=(10, 80, 40, 90)), READERS),
    "narrower or lower than a pixel": (dict(box=(10, 20, 10.5, 60)), ("COCO",)),
    "area 0 or less: correct it, or remove the key": (dict(GOOD, area=0), ("COCO",)),
    "crowd": (dict(GOOD, iscrowd=1), ("COCO",)),
    "difficult": (dict(GOOD, difficult="1"), ("VOC",)),
}
CASES = [(reader, reason) for reason, (_, readers) in EXAMPLES.items() for reader in readers]


def test_every_fault_has_an_example():
    assert list(EXAMPLES) == [fault.reason for fault in FAULTS]


@pytest.mark.parametrize("reader,reason", CASES)
def test_boxes_that_are_left_out_are_counted(make, reader, reason):
    spoilt, _ = EXAMPLES[reason]
    one = dict(metainfo=dict(classes=("cat",)), ignored="others")
    data = build(make(reader, [GOOD, spoilt], [GOOD]), reader, **one)
    usage = data.usage
    assert (
        usage.used == dict(images=2, boxes=2, classes=1)
        and usage.left_out() == usage.left_out("boxes") == 1
    )
    place = "0.png, annotation 2" if reader == "COCO" else "0.xml, object 2"
    assert str(usage).endswith(
        f"used 2 of 2 images, 2 of 3 boxes, 1 of 1 classes. Left out: 1 boxes ({reason}: {place})."
    ), str(usage)
    sample = data[0]
    wanted = sample["gt_bboxes"].tensor[~sample["gt_ignore_flags"]].numpy()
    np.testing.assert_array_equal(wanted, [GOOD["box"]])
    assert len(sample["gt_bboxes"]) == 1 + (reason in ("crowd", "difficult"))


@each("name", ["VOCDataset", "LVISV1Dataset", "OpenImagesDataset"])
def test_workers_find_the_checked_formats_of_mmdet(name):
    kind = DATASETS.get(name)
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert kind.__name__ == name and issubclass(kind, detection.CountedDataset)


COCO_LIKE = sorted(
    name
    for name, kind in DATASETS.module_dict.items()
    if issubclass(kind, detection.CocoDataset)
    and not issubclass(kind, detection._PanopticDataset)
    and "open_vocabulary" not in kind.__module__  # it has the classes of its vocabulary
)


@pytest.mark.parametrize("name", COCO_LIKE)
def test_every_coco_like_data_set_counts(make, monkeypatch, name):
    monkeypatch.setitem(
        sys.modules, "lvis", SimpleNamespace(LVIS=detection.COCO)
    )  # the package that LVIS's class asks for
    classes = tuple(DATASETS.get(name).METAINFO.get("classes") or ("cat", "dog"))
    objects = [dict(box=box, name=classes[0], area=1200) for box in (GOOD["box"], (10, 80, 40, 90))]
    root, options = (
        make("COCO", objects, [], classes=classes),
        dict(type=name, metainfo=dict(classes=classes)),
    )
    if name == "V3DetDataset":
        (root / "names.txt").write_text("\n".join(classes))
        options["label_file"] = "names.txt"
    if name == "LVISV1Dataset":  # whose files say the folder, too
        content = json.loads((root / "train.json").read_text())
        for image in content["images"]:
            image["coco_url"] = f"http://images.cocodataset.org/JPEGImages/{image['file_name']}"
        (root / "train.json").write_text(json.dumps(content))
        options["data_prefix"] = dict(img="")
    usage = build(root, "COCO", **options).usage
    assert usage.used == dict(images=1, boxes=1, classes=1) and usage.left_out("images") == 1, str(
        usage
    )
    assert usage.left_out("boxes") == 1 and usage.left_out("classes") == len(classes) - 1


def write_base(root):
    boxes = [dict(bbox=[10, 20, 40, 60], bbox_label=0, ignore_flag=0)]
    rows = [
        dict(img_path=f"{name}.png", img_id=name, height=HEIGHT, width=WIDTH, instances=boxes)
        for name in "01"
    ]
    (root / "truth.json").write_text(
        json.dumps(dict(metainfo=dict(classes=["cat"]), data_list=rows))
    )
    return dict(
        ann_file="truth.json",
        data_prefix=dict(img_path="JPEGImages/"),
        metainfo=dict(classes=("cat",)),
    )


def write_odvg(root):
    anno = dict(instances=[dict(bbox=[10, 20, 40, 60], label=0, category="cat")])
    rows = [
        dict(filename=f"{name}.png", height=HEIGHT, width=WIDTH, detection=anno) for name in "01"
    ]
    (root / "truth.json").write_text("\n".join(map(json.dumps, rows)))
    (root / "labels.json").write_text(json.dumps({"0": "cat"}))
    return dict(ann_file="truth.json", label_map_file="labels.json", return_classes=True)


def write_open_images(root):
    (root / "classes.csv").write_text("/m/1,cat\n/m/2,dog\n")
    rows = [f"{name},xclick,/m/1,1,0.1,0.4,0.2,0.8,0,0,0,0,0" for name in "01"]
    (root / "truth.json").write_text("\n".join(["ImageID,..."] + rows))
    (root / "tree.json").write_text(json.dumps(dict(LabelName="root", Subcategory=[])))
    metas = [dict(filename=f"{name}.jpg", ori_shape=(HEIGHT, WIDTH, 3)) for name in "01"]
    (root / "metas.json").write_text(json.dumps(metas))  # a pickle in mmdet, which is not read here
    (root / "JPEGImages/0.png").rename(root / "JPEGImages/0.jpg")
    files = {
        key: f"{root}/{name}"
        for key, name in (("label_file", "classes.csv"), ("hierarchy_file", "tree.json"))
    }
    return dict(files, ann_file="truth.json", meta_file=f"{root}/metas.json")


def write_panoptic(root, names=("person", "banner")):
    content = dict(images=[], annotations=[], categories=[])
    content["categories"] = [
        dict(id=k + 1, name=x, isthing=int(k == 0)) for k, x in enumerate(names)
    ]
    for name in "01":
        content["images"].append(
            dict(id=int(name), file_name=f"{name}.png", height=HEIGHT, width=WIDTH)
        )
        segments = [
            dict(id=k, category_id=1, area=area, bbox=[1, 1, 9, 9], iscrowd=0)
            for k, area in ((1, 81), (2, 0))
        ]
        content["annotations"].append(
            dict(image_id=int(name), file_name=f"{name}.png", segments_info=segments)
        )
    (root / "truth.json").write_text(json.dumps(content))
    return dict(ann_file="truth.json", data_prefix=dict(img="JPEGImages/", seg="JPEGImages/"))


# Formats that mmdet's own code reads: how files are written, what is used, what is left out beside
# one image
STOCK = {
    "BaseDetDataset": (write_base, dict(images=1, boxes=1, classes=1), {}),
    "ODVGDataset": (write_odvg, dict(images=1, boxes=1, classes=1), {}),
    "OpenImagesDataset": (write_open_images, dict(images=1, boxes=1, classes=1), dict(classes=1)),
    "CocoPanopticDataset": (
        write_panoptic,
        dict(images=1, segments=1, classes=1),
        dict(segments=2, classes=132),
    ),
}
ELSEWHERE = {  # these need packages, or read other files by the same code
    "ADE20KPanopticDataset", "CrowdHumanDataset", "DODDataset", "DSDLDetDataset",
    "Flickr30kDataset", "MDETRStyleRefCocoDataset", "OpenImagesChallengeDataset",
    "WIDERFaceDataset",
}  # fmt: skip


def test_every_format_of_mmdet_is_counted():
    base = detection.CountedDataset.__base__
    kinds = {name: kind for name, kind in DATASETS.module_dict.items() if issubclass(kind, base)}
    kinds = {
        name: kind
        for name, kind in kinds.items()
        if "open_vocabulary" not in kind.__module__ and "shapes" not in kind.__module__
    }  # have no files
    assert [
        name for name, kind in kinds.items() if not issubclass(kind, detection.CountedDataset)
    ] == []
    stock = {name for name, kind in kinds.items() if issubclass(kind, detection._StockDataset)}
    assert stock == set(STOCK) | ELSEWHERE


@pytest.mark.parametrize("name", STOCK)
def test_formats_that_mmdet_reads_are_counted(make, name):
    write, used, left_out = STOCK[name]
    root = make("COCO", [])
    options = dict(
        dict(type=name, metainfo=None, data_prefix=dict(img="JPEGImages/")), **write(root)
    )
    usage = build(root, "COCO", **options).usage
    assert usage.used == used and usage.left_out("images") == 1, str(usage)
    assert {kind: usage.left_out(kind) for kind in left_out} == left_out, str(usage)
    (root / "truth.json").write_text('[{"nothing": 1}]')
    with pytest.raises(HypvisionError, match="truth.json' (cannot be read as|lacks|is damaged)"):
        build(root, "COCO", **options)


@pytest.mark.parametrize("reader,reason", CASES)
def test_nothing_but_faults_is_an_error(make, reader, reason):
    spoilt, _ = EXAMPLES[reason]
    root = make(reader, [spoilt])
    for empty in (True, False):
        with pytest.raises(
            HypvisionError, match=f"to learn from.*{re.escape(reason)}: 0.*Correct '.*train"
        ):
            build(root, reader, filter_cfg=dict(filter_empty_gt=empty))
    assert len(build(root, reader, test_mode=True)) == 1


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 1e300, 10**400], ids=["nan", "inf", "huge", "beyond"]
)
def test_numbers_that_are_none(make, reader, value):
    root = make(reader, [GOOD], [GOOD, dict(box=(10, 20, 40, value))])
    place = {
        "COCO": r"train\.json', annotation 3 \(annotations\[2\]\) has the box "
        r".*\[left, top, width, height\]",
        "VOC": r"1\.xml', object 2 \('cat'\) has the box .*xmin, ymin, xmax and ymax in <bndbox>",
    }[reader]
    with pytest.raises(HypvisionError, match=place + ", four finite numbers"):
        build(root, reader)


@pytest.mark.parametrize("reader", READERS)
def test_shares_of_the_image(make, reader):
    share = dict(box=(0.1, 0.2, 0.5, 0.75), raw=True)
    root = make(reader, [share, share])
    for test_mode in (True, False):
        with pytest.raises(
            HypvisionError, match=r"lie between 0 and 1: they are shares of the image.*Multiply"
        ):
            build(root, reader, test_mode=test_mode)


def test_corners_instead_of_width_and_height(make):
    root = make("COCO", [GOOD])
    content = json.loads((root / "train.json").read_text())
    (item,) = content["annotations"]
    for box, wrong in (
        ([60, 50, 90, 70], True),
        ([60, 50, 40, 70], False),
        ([6, 5, 30, 50], False),
    ):
        content["annotations"] = [dict(item, bbox=box)]
        (root / "train.json").write_text(json.dumps(content))
        with (
            pytest.raises(HypvisionError, match="Subtract left and top") if wrong else nullcontext()
        ):
            build(root, "COCO")


def test_an_image_of_several_ids_is_told(make, caplog):
    root = make("COCO", [GOOD], [GOOD])
    content = json.loads((root / "train.json").read_text())
    content["images"][1]["file_name"] = "0.png"
    (root / "train.json").write_text(json.dumps(content))
    assert len(build(root, "COCO")) == 2
    assert "lists 1 images under several ids, which count several times" in caplog.text


@pytest.mark.parametrize("reader", READERS)
def test_images_that_are_left_out_are_counted(make, reader):
    root = make(reader, [GOOD], [], [GOOD, GOOD], [GOOD])
    (root / "JPEGImages/3.png").unlink()
    if reader == "COCO":
        content = json.loads((root / "train.json").read_text())
        content["images"].append(content["images"][0])
        (root / "train.json").write_text(json.dumps(content))
    else:
        (root / "train.txt").write_text((root / "train.txt").read_text() + "\n0\n")
    data = build(root, reader)
    assert (
        data.usage.used == dict(images=2, boxes=3, classes=1) and data.usage.left_out("images") == 3
    )
    reasons = {reason for _, _, reason, _ in data.usage.rows()}
    assert ("classes", 1, "without boxes", "dog") in data.usage.rows()
    assert reasons == {
        "used",
        "without boxes",
        "listed twice",
        "missing on disk",
        "without objects, see filter_empty_gt",
    }
    assert len(build(root, reader, filter_cfg=None)) == 3
    with pytest.raises(
        HypvisionError,
        match=r"1 of the 4 images of '.*train.*' do not exist, the first is '.*3\.\w+'",
    ):
        build(root, reader, test_mode=True)


@pytest.mark.parametrize("reader", READERS)
def test_names_of_the_file_and_of_the_config(make, reader):
    root = make(reader, [GOOD, dict(GOOD, name="dog")])
    if reader == "VOC":  # names are known as objects only
        assert len(build(root, reader, metainfo=dict(classes=("dog", "cow", "cat")))) == 1
    else:
        with pytest.raises(HypvisionError, match="train.json' .*'cow'.*ignored="):
            build(root, reader, metainfo=dict(classes=("dog", "cow", "cat")))
    with pytest.raises(HypvisionError, match="'dog'.*metainfo=dict.*ignored="):
        build(root, reader, metainfo=dict(classes=("cat",)))
    for ignored in ("others", ("dog",)):
        usage = build(root, reader, metainfo=dict(classes=("cat",)), ignored=ignored).usage
        assert (
            usage.used["boxes"] == 1 and ("boxes", 1, "of ignored classes", "dog") in usage.rows()
        )
    with pytest.raises(HypvisionError, match="'cat'.*classes="):
        build(root, reader, metainfo=dict(classes="cat"))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("turned", [True, False])
def test_the_size_is_that_of_the_image(make, reader, turned):
    """Sides that are swapped; a photo that its camera turned."""
    root = make(reader, [GOOD])
    image = Image.open(root / "JPEGImages/0.png")
    image.load()
    exif = image.getexif()
    if turned:
        exif[0x0112] = 6
    image.resize((WIDTH, HEIGHT) if turned else (HEIGHT, WIDTH)).save(
        root / "JPEGImages/0.png", exif=exif
    )
    remedy = (
        r"stored it as 96 x 72 with a note to turn it \(EXIF\)"
        if turned
        else "Take the image that was annotated"
    )
    with pytest.raises(
        HypvisionError, match=rf"0\.png' is 72 x 96 pixels .* annotation says 96 x 72 .*{remedy}"
    ):
        build(root, reader)[0]


@pytest.mark.parametrize("size", [None, (0, 0), ("", "wide")])
def test_a_size_that_is_not_in_the_xml_is_that_of_the_image(make, size):
    data = build(make("VOC", [GOOD], size=size), "VOC")
    assert data.get_data_info(0)["height"] == HEIGHT and data[0]["img_shape"] == (HEIGHT, WIDTH)


WRONG_ENTRIES = [  # the list, what is wrong in its second entry, what the error mentions
    ("images", dict(height=0), "(0, 96)"),
    ("images", dict(width="96"), "(72, '96')"),
    ("images", dict(width=10**400), "(72, 1000"),
    ("images", dict(file_name=7), "file_name 7"),
    ("images", dict(id=0), "'0.png'"),
    ("images", dict(id=[1]), "[1]"),
    ("annotations", dict(category_id={}), "'category_id': {}"),
    ("annotations", dict(area="large"), "'large'"),
    ("annotations", dict(area=math.nan), "nan"),
    ("annotations", dict(id="two"), "annotation two"),
    ("annotations", dict(id=1), "annotation 1 "),
    ("annotations", dict(iscrowd="no"), "'no'"),
    ("annotations", dict(bbox=[1, 2, True, 4]), "[1, 2, True, 4]"),
]


@pytest.mark.parametrize(("kind", "changes", "mentioned"), WRONG_ENTRIES)
def test_entries_of_coco(make, kind, changes, mentioned):
    root = make("COCO", [GOOD], [GOOD])
    content = json.loads((root / "train.json").read_text())
    content[kind][1].update(changes)
    (root / "train.json").write_text(json.dumps(content))
    with pytest.raises(HypvisionError, match=rf"train\.json'.*{kind}\[1\]") as caught:
        build(root, "COCO")
    assert mentioned in str(caught.value)


def test_masks_are_looked_at_where_they_are_used(make):
    triangle = [[10, 20, 40, 20, 40, 60]]
    root = make(
        "COCO", [dict(GOOD, segmentation=triangle), dict(GOOD, segmentation=[[1, 2, 3, 4]]), GOOD]
    )
    assert len(build(root, "COCO")[0]["gt_bboxes"]) == 3
    CheckedCocoMetric(str(root / "train.json"), metric="bbox")
    message = r"train\.json', annotation 2: .* 4 numbers .*2 faults"
    with pytest.raises(HypvisionError, match=message):
        build(root, "COCO", pipeline=WITH_MASKS)
    with pytest.raises(HypvisionError, match=message):
        CheckedCocoMetric(str(root / "train.json"), metric=["bbox", "segm"])


def test_boxes_that_are_none_are_no_truth(make):
    spoilt = [example for example, _ in EXAMPLES.values()]
    root = make("COCO", [GOOD, *spoilt])
    metric = CheckedCocoMetric(str(root / "train.json"), metric="bbox")
    metric.dataset_meta = dict(classes=("cat", "dog"))
    assert len(metric._coco_api.dataset["annotations"]) == 1 + len(spoilt) - sum(
        fault.no_box for fault in FAULTS
    )


def test_an_object_of_id_0_can_be_found(make):
    root = make("COCO", [GOOD], [GOOD])
    content = json.loads((root / "train.json").read_text())
    for item in content["annotations"]:
        item["id"] -= 1
    (root / "train.json").write_text(json.dumps(content))
    metric = CheckedCocoMetric(str(root / "train.json"), metric="bbox")
    metric.dataset_meta = dict(classes=("cat", "dog"))
    box, score, label = np.array([GOOD["box"]], float), np.ones(1), np.zeros(1, int)
    found = [({}, dict(img_id=number, bboxes=box, scores=score, labels=label)) for number in (0, 1)]
    assert metric.compute_metrics(found)["bbox_mAP"] == pytest.approx(1)
