"""Files of kinds that people bring, one table of cases: XML in other encodings, names in either
form of Unicode, modes of TIFF and JPEG, equal files in two parts, and samples of webdataset."""

import gzip
import io
import json
import tarfile
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("mmengine")
from helpers.cases import each

from hypvision.data.caption_folder import CaptionFolder
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.data.label_maps import find_pairs, read_label_map
from hypvision.data.multi_label import MultiLabelDataset
from hypvision.data.tables import ImageTableDataset
from hypvision.data.twins import note_of, paths_of, twins
from hypvision.data.usage import Listing, Usage
from hypvision.data.voc_xml import read_xml
from hypvision.io.errors import HypvisionError
from hypvision.io.images import open_channels, open_image

VIEW = dict(input_size=8)


@pytest.fixture
def fresh(tmp_path):
    """A new folder for each case."""
    return lambda: Path(tempfile.mkdtemp(dir=tmp_path))


def picture(value=0, kind="PNG", size=8):
    out = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(out, kind)
    return out.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


# XML


@each(
    "declared, stored, outcome",
    [
        ("utf-8", "utf-8", "狗"),
        ("utf-8", "utf-8-sig", "狗"),
        ("utf-16", "utf-16", "狗"),
        ("gbk", "gbk", "狗"),
        ("shift_jis", "shift_jis", "狗"),
        ("big5", "big5", "狗"),
        ("iso-8859-1", "latin-1", "é"),
        ("windows-1252", "cp1252", "é"),
        (None, "utf-8", "狗"),
        (None, "gbk", "is not text in UTF-8"),
        ("utf-8", "gbk", "is not text in utf-8"),
        ("klingon", "utf-8", "is not text in klingon"),
        ("gbk", "cut", "is damaged: it is not valid XML"),
    ],
)
def test_encodings_of_xml(declared, stored, outcome, fresh):
    tmp_path = fresh()
    name = outcome if len(outcome) == 1 else "狗"
    first = f'<?xml version="1.0" encoding="{declared}"?>\n' if declared else ""
    text = f"{first}<annotation><object><name>{name}</name></object></annotation>"
    encoded = text[:-9].encode("gbk") if stored == "cut" else text.encode(stored)
    path = write(tmp_path / "a.xml", encoded)
    if len(outcome) == 1:
        assert read_xml(path).findtext("object/name") == outcome
        return
    with pytest.raises(HypvisionError, match=outcome) as told:
        read_xml(path)
    assert "a.xml" in str(told.value)


def test_voc_in_gbk_with_images_of_any_ending(tmp_path):
    pytest.importorskip("mmdet")
    from hypvision.openmmlab.datasets.detection import CheckedVOCDataset

    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>6</xmax><ymax>6</ymax></bndbox>"
    text = f'<?xml version="1.0" encoding="gbk"?><annotation><object><name>狗</name>{box}'
    other = unicodedata.normalize("NFD", "é")
    write(tmp_path / f"Annotations/{other}.xml", f"{text}</object></annotation>".encode("gbk"))
    write(tmp_path / f"JPEGImages/{other}.JPG", picture(9, "JPEG"))
    (tmp_path / "list.txt").write_text("é\n", encoding="utf-8")
    data = CheckedVOCDataset(
        data_root=str(tmp_path), ann_file="list.txt", data_prefix=dict(sub_data_root=""),
        metainfo=dict(classes=("狗",)), pipeline=[],
    )  # fmt: skip
    info = data.get_data_info(0)
    assert len(info["instances"]) == 1 and open_image(info["img_path"]).size == (8, 8)


# Names

FORMS = [("NFC", "NFD"), ("NFD", "NFC"), ("NFC", "NFC")]


@each("disk, listed", FORMS)
def test_forms_of_unicode(disk, listed, fresh):
    """A list made on one system, files unpacked on another."""
    tmp_path = fresh()
    on_disk, name = (unicodedata.normalize(form, "caf\u00e9") for form in (disk, listed))
    root = tmp_path / "data"
    for part, other in (("train", on_disk), ("val", name)):
        for folder in (other, "dog"):
            write(root / part / folder / f"{on_disk}.png", picture(7))
    train = ImageFolderDataset(str(root / "train"), VIEW)
    val = ImageFolderDataset(str(root / "val"), VIEW, classes=str(root / "train"))
    alone = ImageFolderDataset(str(root / "val"), VIEW)
    named = ImageFolderDataset(str(root / "train"), VIEW, classes=[name, "dog"])
    for data in (val, alone):
        assert data.metainfo["classes"] == train.metainfo["classes"] and len(data) == 2
    assert named.metainfo["classes"] == (name, "dog") and len(named) == 2
    images = root / "train" / on_disk
    (tmp_path / "list.txt").write_text(f"{name}/{name}.png 0\ndog/{name}.png 1\n", "utf-8")
    (tmp_path / "one.csv").write_text(f"image,label\n{name}.png,cat\n", "utf-8")
    (tmp_path / "more.csv").write_text(f"image,labels\n{name}.png,cat\n", "utf-8")
    write(tmp_path / f"words/images/{on_disk}.png", picture(7))
    (tmp_path / "words/captions.csv").write_text(f"image,caption\n{name}.png,a cat\n", "utf-8")
    sets = [
        ImageFolderDataset(str(root / "train"), VIEW, str(tmp_path / "list.txt")),
        ImageTableDataset(str(images), str(tmp_path / "one.csv"), VIEW),
        MultiLabelDataset(str(images), str(tmp_path / "more.csv"), VIEW),
        CaptionFolder(str(tmp_path / "words"), VIEW),
    ]
    (tmp_path / "own.csv").write_text(f"image,label\n{name}.png,{name}\n", "utf-8")
    sets += [
        kind(str(images), str(tmp_path / "own.csv"), VIEW, classes=[on_disk])
        for kind in (ImageTableDataset, MultiLabelDataset)
    ]
    for data in (train, val, named, *sets):
        assert data.read(0).size == (8, 8) and not data.usage.left_out()
    write(tmp_path / f"maps/{name}.png", picture())
    pairs = find_pairs(images, tmp_path / "maps", Usage("x"), (".png", ".png"), names=[name])
    assert len(pairs) == 1
    assert Listing().find(str(root / "train" / name / f"{name}.png")) is not None


# Modes

COLOUR = (200, 100, 50)
READERS = {
    "open_image": open_image,
    "one channel": lambda path: open_channels(path, 1).convert("RGB"),
    "a data set": lambda path: ImageFolderDataset(str(path.parent.parent), VIEW).read(0),
    "boxes": lambda path: _boxes(path),
}


def _boxes(path):
    pytest.importorskip("mmdet")
    from hypvision.openmmlab.images import read_bgr

    return Image.fromarray(read_bgr(path)[..., ::-1])


def moded(path, mode):
    image = Image.new("RGB", (8, 8), COLOUR)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("F", (8, 8), 0.5) if mode == "F" else image.convert(mode)
    kind = {"lzw.tif": "tiff_lzw", "jpeg.tif": "jpeg"}.get(path.name)
    options = {} if path.name == "lzw.tif" else dict(quality=100)
    image.save(path, **options, **(dict(compression=kind) if kind else {}))
    return path


@each("reader", READERS)
@each(
    "name, mode, told",
    [
        ("a.tif", "RGB", None),
        ("lzw.tif", "YCbCr", None),
        ("jpeg.tif", "YCbCr", None),
        ("raw.tif", "YCbCr", "YCbCr without compression"),
        ("a.tif", "CMYK", None),
        ("a.jpg", "CMYK", None),
        ("a.jpg", "YCbCr", None),
        ("a.tif", "F", "mode F, whose white and black are not"),
    ],
)
def test_modes_of_images(reader, name, mode, told, fresh):
    tmp_path = fresh()
    path = moded(tmp_path / "cat" / name, mode)
    if told:
        with pytest.raises(HypvisionError, match=told) as error:
            READERS[reader](path)
        assert name in str(error.value)
        return
    seen = np.asarray(READERS[reader](path)).astype(int)
    wanted = COLOUR
    if reader == "one channel":
        wanted = [Image.new("RGB", (1, 1), COLOUR).convert("L").getpixel((0, 0))] * 3
    assert abs(seen - wanted).max() <= 6


@each(
    "name, mode, outcome",
    [
        ("a.tif", "CMYK", "coloured image"),
        ("lzw.tif", "YCbCr", "coloured image"),
        ("raw.tif", "YCbCr", "YCbCr without compression"),
        ("a.tif", "F", "number .0.5., which is no class number"),
    ],
)
def test_modes_of_label_maps(name, mode, outcome, fresh):
    tmp_path = fresh()
    with pytest.raises(HypvisionError, match=outcome):
        read_label_map(moded(tmp_path / name, mode))


# Equal files


def test_equal_images_of_two_parts(tmp_path):
    for part, folder, name, value in (
        ("train", "cat", "1", 1), ("train", "dog", "2", 2), ("train", "dog", "twice", 2),
        ("val", "cat", "copied", 1), ("val", "dog", "3", 3),
    ):  # fmt: skip
        write(tmp_path / part / folder / f"{name}.png", picture(value))
    # of equal size and beginning
    for part, end in (("train", b"1"), ("val", b"2")):
        write(tmp_path / part / "cat/long.png", picture(9) + bytes(2**17) + end)
    parts = {part: ImageFolderDataset(str(tmp_path / part), VIEW) for part in ("train", "val")}
    files = {part: [*paths_of(data)] for part, data in parts.items()}
    train, val = (tmp_path / name for name in ("train/cat/1.png", "val/cat/copied.png"))
    assert twins(files) == {("train", "val"): [(str(train), str(val))]}
    assert twins(files, most=1) == {}
    assert twins({"train": files["train"], "val": [str(train), "none.png"]}) == {
        ("train", "val"): [(str(train), str(train))]
    }
    (pairs,) = twins(files).values()
    said = note_of("train", "val", pairs)
    assert said.startswith("val: 1 files are equal to files of train") and str(val) in said


def test_check_tells_equal_images(tmp_path):
    from hypvision.engine.checking import check
    from hypvision.tasks.own_folder import config_of

    for part, values in (("train", (1, 2)), ("val", (1, 3))):
        for folder, value in zip(("cat", "dog"), values):
            for number in range(3):
                write(tmp_path / part / folder / f"{part}{number}.png", picture(value + 9 * number))
    report = check(config_of(str(tmp_path)))
    notes = " ".join(report.notes)
    assert "val: 3 files are equal to files of train" in notes and "val0.png" in notes


# Shards

LABELS = {
    "numbers": ([b"0", b"1"], "cls"),
    "names": ([b"cat", b"dog\n"], "cls"),
    "numbers in JSON": ([json.dumps(dict(label=n)).encode() for n in (0, 1)], "json"),
    "names in JSON": ([json.dumps({"class": n}).encode() for n in ("cat", "dog")], "json"),
}


def tar(path, samples, kind="png"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, files in enumerate(samples):
            for ending, content in files.items():
                info = tarfile.TarInfo(f"{number}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    content = out.getvalue()
    return write(path, gzip.compress(content) if path.suffix != ".tar" else content)


@each("labels", LABELS)
@each("name, kind", [("0.tar", "png"), ("0.tar.gz", "gif"), ("0.tgz", "jpg")])
def test_samples_of_webdataset(labels, name, kind, fresh):
    tmp_path = fresh()
    pytest.importorskip("webdataset")
    from hypvision.data.shards import ImageShards

    contents, ending = LABELS[labels]
    image = {"jpg": "JPEG"}.get(kind, kind.upper())
    tar(tmp_path / name, [{kind: picture(9, image), ending: content} for content in contents])
    data = ImageShards(str(tmp_path), VIEW, ["cat", "dog"], shuffle=0)
    assert [sample["label"] for sample in data] == [0, 1] and not data.usage.left_out()
    assert next(iter(data))["inputs"].shape == (3, 8, 8)


@each(
    "files, told",
    [
        (dict(cls=b"owl"), "the label 'owl', which is none of the classes"),
        (dict(cls=b"2"), "a label beyond the classes"),
        (dict(json=b"{}"), "no label"),
        (dict(json=b"{"), "damaged JSON"),
        (dict(cls=b"\xff"), "text that is not UTF-8"),
        ({}, "no label"),
    ],
)
def test_samples_that_are_left_out(files, told, fresh):
    tmp_path = fresh()
    pytest.importorskip("webdataset")
    from hypvision.data.shards import ImageShards

    good = dict(png=picture(1), cls=b"0")
    tar(tmp_path / "0.tar.gz", [good, dict(png=picture(2), **files)])
    data = ImageShards(str(tmp_path), VIEW, ["cat", "dog"], shuffle=0)
    assert data.total == 1 and told in str(data.usage)


@each("size", [0.3, 0.9])
def test_packed_shards_that_are_cut_off(size, fresh):
    tmp_path = fresh()
    pytest.importorskip("webdataset")
    from hypvision.data.shards import ImageShards

    noise = np.random.default_rng(0)
    images = []
    for _ in range(6):
        out = io.BytesIO()
        Image.fromarray(noise.integers(0, 255, (32, 32, 3), np.uint8)).save(out, "PNG")
        images.append(out.getvalue())
    path = tmp_path / "0.tar.gz"
    tar(path, [dict(png=image, cls=b"0") for image in images])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size * len(whole))])
    data = ImageShards(str(path), VIEW, ["cat"], shuffle=0)
    assert 0 < data.total < 6 and "the tar file is cut off" in str(data.usage)
    path.write_bytes(gzip.compress(gzip.decompress(whole)[: 4096 * 3]))  # tar cut off, then packed
    assert "the tar file is cut off" in str(ImageShards(str(path), VIEW, ["cat"]).usage)
