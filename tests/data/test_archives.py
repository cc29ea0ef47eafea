"""``hypvision data prepare`` from archives as they are published, here small ones."""

import hashlib
import io
import json
import tarfile
import zipfile

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image
from scipy.io import savemat

from hypvision.data import archives
from hypvision.data.prepare import prepare
from hypvision.io.errors import HypvisionError


@pytest.fixture(autouse=True)
def no_sums(monkeypatch):
    """The archives here are not the published ones."""
    monkeypatch.setattr(archives, "SUMS", {})


def test_archives_may_be_large(tmp_path):
    """ImageNet's training images are one file of 138 GB."""
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    with (tmp_path / "train.tar").open("r+b") as file:
        file.truncate(9 * 2**30)  # sparse
    assert archives.Files(tmp_path / "train.tar").names == ["a.txt"]


def jpeg(value, size=(8, 6)):
    buffer = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(buffer, "JPEG")
    return buffer.getvalue()


def png(array):
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(array, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def tar(files, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def packed(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def write(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def content(root):
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


TRAIN = {"n01/n01_1.JPEG": jpeg(1), "n01/n01_2.JPEG": jpeg(2), "n02/n02_1.JPEG": jpeg(3)}
VAL = {f"ILSVRC2012_val_0000000{number}.JPEG": jpeg(number + 10) for number in (1, 2, 3)}
SORTED = {
    **{f"train/{name}": data for name, data in TRAIN.items()},
    **{f"val/{c}/{name}": data for c, (name, data) in zip(("n02", "n01", "n02"), VAL.items())},
}


def devkit():
    """The ids of the file do not have the order of the classes, as in the published one."""
    buffer = io.BytesIO()
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O")]
    rows = np.array([(2, "n01", "cat"), (1, "n02", "dog"), (3, "n03", "animal")], dtype=kind)
    savemat(buffer, dict(synsets=rows.reshape(-1, 1)))
    root = "ILSVRC2012_devkit_t12/data/"
    truth = b"1\n2\n1\n"
    return {
        f"{root}meta.mat": buffer.getvalue(),
        f"{root}ILSVRC2012_validation_ground_truth.txt": truth,
    }


def classes_apart():
    """The training archive: one of an archive for each class."""
    inner = {}
    for wnid in ("n01", "n02"):
        own = {name.split("/")[1]: data for name, data in TRAIN.items() if name.startswith(wnid)}
        inner[f"{wnid}.tar"] = tar(own)
    return tar(inner)


SOURCES = {
    "published": lambda: {
        "ILSVRC2012_img_train.tar": classes_apart(),
        "ILSVRC2012_img_val.tar": tar(VAL),
        "ILSVRC2012_devkit_t12.tar.gz": tar(devkit(), "w:gz"),
    },
    "timm": lambda: {
        "train.tar": tar(TRAIN),
        "val.tar": tar(
            {name.removeprefix("val/"): x for name, x in SORTED.items() if "val/" in name}
        ),
    },
    "flat": lambda: {
        **{f"train/{name}": data for name, data in TRAIN.items()},
        **{f"val/{name}": data for name, data in VAL.items()},
        **devkit(),
    },
}


@each("name", SOURCES)
def test_imagenet(name, tmp_path):
    source = write(tmp_path / name, SOURCES[name]())
    out = tmp_path / f"{name}-out"
    assert prepare("imagenet", source, out) == 6
    assert content(out) == SORTED
    (out / "train/n01/n01_1.JPEG").write_bytes(b"kept")
    prepare("imagenet", source, out)  # what is there is not written again
    assert (out / "train/n01/n01_1.JPEG").read_bytes() == b"kept"


@each("change, said", [
    (dict(drop="ILSVRC2012_devkit_t12.tar.gz"), "none of ILSVRC2012_devkit"),
    (dict(drop="ILSVRC2012_img_val.tar"), "none of ILSVRC2012_img_val.tar"),
    (dict(put=("ILSVRC2012_img_val.tar", tar({"other.JPEG": jpeg(1)}))), "devkit does not know"),
    (dict(put=("ILSVRC2012_img_train.tar", b"no archive")), "damaged"),
    (dict(put=("ILSVRC2012_img_train.tar", tar({"n01.tar": b"x" * 600}))), "n01.tar' in .*damaged"),
    (dict(put=("ILSVRC2012_img_train.tar", tar({"a.JPEG": jpeg(1)}))), "not lie in the folder"),
])  # fmt: skip
def test_imagenet_that_lacks_something(change, said, tmp_path):
    files = SOURCES["published"]()
    files.pop(change.get("drop"), None)
    files.update([change["put"]] if "put" in change else [])
    source = write(tmp_path / str(abs(hash(said))), files)
    with pytest.raises(HypvisionError, match=said):
        prepare("imagenet", source, tmp_path / "out")


def test_sums(tmp_path, monkeypatch):
    files = SOURCES["published"]()
    source = write(tmp_path / "in", files)
    sums = {
        "ILSVRC2012_img_train.tar": hashlib.md5(files["ILSVRC2012_img_train.tar"]).hexdigest(),
        "ILSVRC2012_img_val.tar": hashlib.sha1(files["ILSVRC2012_img_val.tar"]).hexdigest(),
    }
    monkeypatch.setattr(archives, "SUMS", sums)
    assert prepare("imagenet", source, tmp_path / "out") == 6
    monkeypatch.setattr(archives, "SUMS", {**sums, "ILSVRC2012_img_val.tar": "0" * 40})
    with pytest.raises(HypvisionError, match="img_val.tar' has the sum .* published file has 0000"):
        prepare("imagenet", source, tmp_path / "new")


ADE = {
    "ADEChallengeData2016/images/training/a.jpg": jpeg(1),
    "ADEChallengeData2016/images/validation/b.jpg": jpeg(2),
    "ADEChallengeData2016/annotations/training/a.png": png(np.ones((6, 8))),
    "ADEChallengeData2016/annotations/validation/b.png": png(np.ones((6, 8))),
    "ADEChallengeData2016/sceneCategories.txt": b"a street",
}


@each("form", ["zip", "folder"])
def test_ade20k(form, tmp_path):
    files = {"ADEChallengeData2016.zip": packed(ADE)} if form == "zip" else ADE
    out = tmp_path / f"{form}-out"
    assert prepare("ade20k", write(tmp_path / form, files), out) == 4
    assert content(out) == {name: data for name, data in ADE.items() if not name.endswith("txt")}


def test_ade_panoptic(tmp_path):
    semantic = np.full((6, 8), 4)  # floor
    semantic[:3] = 1  # wall
    semantic[0, 0] = 0
    semantic[4:, 6:] = 13  # a person without an instance
    instances = np.zeros((6, 8, 3), dtype=np.uint8)
    instances[2:4, 1:3] = (4, 1, 0)  # person: class 13 of the 150
    instances[2:4, 5:6] = (4, 2, 0)
    instances[5, 0] = (100, 3, 0)  # flag: class 150
    ade = {**ADE, "ADEChallengeData2016/annotations/validation/b.png": png(semantic)}
    source = write(tmp_path / "in", {
        "ADEChallengeData2016.zip": packed(ade),
        "annotations_instance.tar": tar({"annotations_instance/validation/b.png": png(instances)}),
    })  # fmt: skip
    assert prepare("ade-panoptic", source, tmp_path / "out") == 1
    found = json.loads((tmp_path / "out/ade20k_panoptic_val.json").read_text())
    [entry] = found["annotations"]
    ids = np.asarray(Image.open(tmp_path / "out/ade20k_panoptic_val" / entry["file_name"]))[..., 0]
    names = {item["id"]: item["name"] for item in found["categories"]}
    things = {item["name"] for item in found["categories"] if item["isthing"]}
    assert len(names) == 150 and len(things) == 100 and {"person", "flag", "bed"} <= things
    assert not {"wall", "floor", "sky"} & things
    segments = {item["id"]: item for item in entry["segments_info"]}
    said = sorted((names[item["category_id"]], item["area"]) for item in segments.values())
    assert said == [("flag", 1), ("floor", 16), ("person", 2), ("person", 4), ("wall", 20)]
    for number, item in segments.items():
        rows, columns = np.nonzero(ids == number)
        assert item["area"] == len(rows)
        assert item["bbox"] == [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
    assert ids[0, 0] == 0 and (ids[4:, 6:] == 0).all()


def test_coco_stuff(tmp_path):
    values = np.array([[0, 10, 12, 89], [91, 181, 255, 90]])
    source = write(tmp_path / "in", {
        "train2017.zip": packed({"train2017/1.jpg": jpeg(1), "train2017/2.jpg": jpeg(2)}),
        "val2017.zip": packed({"val2017/3.jpg": jpeg(3)}),
        "stuffthingmaps_trainval2017.zip": packed(
            {"train2017/1.png": png(values), "val2017/3.png": png(values)}
        ),
    })  # fmt: skip
    assert prepare("coco-stuff", source, tmp_path / "out") == 4
    files = content(tmp_path / "out")
    assert set(files) == {
        "images/train2017/1.jpg", "images/val2017/3.jpg",
        "annotations/train2017/1_labelTrainIds.png", "annotations/val2017/3_labelTrainIds.png",
    }  # fmt: skip
    mapped = np.asarray(Image.open(io.BytesIO(files["annotations/val2017/3_labelTrainIds.png"])))
    assert mapped.tolist() == [[0, 10, 11, 79], [80, 170, 255, 255]]
    assert sorted(set(archives.stuff_table().tolist())) == [*range(171), 255]


def test_tiny_imagenet_in_its_zip(tmp_path):
    root = "tiny-imagenet-200/"
    files = {
        f"{root}wnids.txt": b"n01\nn02\n",
        f"{root}train/n01/images/n01_0.JPEG": jpeg(1),
        f"{root}train/n02/images/n02_0.JPEG": jpeg(2),
        f"{root}val/images/val_0.JPEG": jpeg(3),
        f"{root}val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t9\t9\n",
    }
    source = write(tmp_path / "in", {"tiny-imagenet-200.zip": packed(files)})
    for number, place in enumerate((source, source / "tiny-imagenet-200.zip")):
        assert prepare("tiny-imagenet", place, tmp_path / f"out{number}") == 3
        assert content(tmp_path / f"out{number}")["val/n02/val_0.JPEG"] == jpeg(3)
    assert set(content(source)) == {"tiny-imagenet-200.zip"}


# What is in them


def marked(content, local, central, value):
    """A zip archive with two bytes of the head of each member changed."""
    content = bytearray(content)
    for start, place in ((b"PK\3\4", local), (b"PK\1\2", central)):
        found = content.find(start)
        while found >= 0:
            content[found + place : found + place + 2] = value
            found = content.find(start, found + 4)
    return bytes(content)


ONE = {"a.jpg": b"x" * 100}


@each("name, content, said", [
    ("a.zip", marked(packed(ONE), 6, 8, b"\1\0"), "password"),
    ("a.zip", marked(packed(ONE), 8, 10, b"\x63\0"), "packed in a way"),
    ("a.zip", packed({"a.jpg": bytes(2001)}), "more than 2,000 bytes"),
    ("a.tar", tar({"a.jpg": bytes(2001)}), "more than 2,000 bytes"),
    ("a.tar.gz", tar({"a.jpg": bytes(2001)}, "w:gz"), "more than 2,000 bytes"),
    ("a.tar.xz", tar({"a.jpg": bytes(2001)}, "w:xz"), "more than 2,000 bytes"),
    ("a.tar.gz", tar(ONE, "w:gz")[:-30], "damaged"),
    ("a.tar.bz2", tar(ONE, "w:bz2")[:60], "damaged"),
    ("a.tar.xz", tar(ONE, "w:xz")[:60], "damaged"),
    ("a.zip", packed(ONE)[:-30], "damaged"),
])  # fmt: skip
def test_a_member_that_cannot_be_read(name, content, said, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST", 2000)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HypvisionError, match=said):
        archives.Files(tmp_path / name).read("a.jpg")


def test_an_archive_of_a_class_has_the_same_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LARGEST", 2000)
    inner = tar({"n1/a.JPEG": bytes(2001)})
    (tmp_path / "train.tar").write_bytes(tar({"n1.tar": inner}))
    pictures = archives.imagenet(tmp_path)
    _, write_to = next(pictures)
    with pytest.raises(HypvisionError, match="more than 2,000 bytes"):
        write_to(tmp_path / "a.JPEG")
