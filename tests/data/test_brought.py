"""Data that people bring from other tools, one table of cases: what is read, and what is told."""

import io
import json
import re
import tarfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

pytest.importorskip("mmengine")
from helpers.cases import each

from hypvision.clip.segmentation.segment import parse_classes
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.data.label_maps import read_label_map
from hypvision.data.multi_label import MultiLabelDataset
from hypvision.data.tables import ImageTableDataset, has_several_labels
from hypvision.inference.sources import find_sources
from hypvision.io.errors import HypvisionError
from hypvision.io.images import image_size, open_image

VIEW = dict(input_size=8)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png", "c.png", "d.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    return tmp_path


# Images of 16 bits


def deep(path, largest, mode=np.uint16):
    values = np.linspace(0, largest, 64).reshape(8, 8).astype(mode)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


@each(
    "largest, white, seen, told",
    [
        (4000, "auto", 4000 * 255 // 4095, "4095 (12 bits) is white"),
        (4000, 4095, 4000 * 255 // 4095, None),
        (4000, None, 4000 // 257, "set white=4095"),
        (200, "auto", 200, "255 (8 bits) is white"),
        (60000, None, 60000 // 257, None),
        (60000, 4095, 255, None),
    ],
)
def test_range_of_16_bits(largest, white, seen, told, tmp_path):
    root = tmp_path / f"{largest}-{white}"
    for name in ("cat/1.png", "cat/2.tif", "dog/1.png"):
        deep(root / name, largest)
    data = ImageFolderDataset(str(root), VIEW, white=white)
    for index in range(3):
        assert np.asarray(data.read(index)).max() == seen
    notes = " ".join(data.usage.notes)
    assert told in notes if told else not notes
    with pytest.warns(match=re.escape(told)) if told else nullcontext():
        (frame,) = find_sources([root / "dog/1.png"], white=white)
    assert np.asarray(frame.open()).max() == seen


@each("bits, told", [(12, True), (16, False)])
def test_colours_of_16_bits(bits, told, tmp_path):
    cv2 = pytest.importorskip("cv2")
    values = np.linspace(0, 2**bits - 1, 192).reshape(8, 8, 3).astype(np.uint16)
    for name in ("cat/1.png", "dog/1.tif"):
        (tmp_path / f"{bits}/{name}").parent.mkdir(parents=True)
        assert cv2.imwrite(str(tmp_path / f"{bits}/{name}"), values)
        data = ImageFolderDataset(str(tmp_path / f"{bits}"), VIEW)
        assert ("only the upper 8 bits" in " ".join(data.usage.notes)) == told


def test_range_of_16_bits_is_checked(folder):
    (folder / "t.csv").write_text("a.png,cat\n")
    with pytest.raises(HypvisionError, match=r"4095 of 12 bits\), got 0"):
        ImageTableDataset(str(folder), str(folder / "t.csv"), VIEW, white=0)


def test_range_of_16_bits_in_the_reader_of_boxes_and_label_maps(tmp_path):
    pytest.importorskip("mmdet")
    from hypvision.data.usage import Usage
    from hypvision.openmmlab.images import LoadShownImage, tell_depth

    path = deep(tmp_path / "a.png", 4000)
    usage = Usage("x")
    for white, seen, told in ((4095, 4000 * 255 // 4095, False), (65535, 15, True)):
        step = LoadShownImage(white=white)
        assert step.transform(dict(img_path=str(path)))["img"].max() == seen
        usage.notes.clear()
        tell_depth([step], [str(path)], usage)
        assert bool(usage.notes) == told


# Names of classes


@each(
    "text, names",
    [
        ("cat, dog,owl", ["cat", "dog", "owl"]),
        ("cat\ndog\r\nowl\n", ["cat", "dog", "owl"]),
        ('"cat, black", dog', ["cat, black", "dog"]),
        ("cat,\ndog,\n", ["cat", "dog"]),
        ("cat; dog", "not by semicolons"),
        ('"cat, dog', "Close the quotes"),
    ],
)
def test_class_names_of_the_command_line(text, names):
    if isinstance(names, list):
        assert parse_classes(text) == names
        return
    with pytest.raises(HypvisionError, match=names):
        parse_classes(text)


# TIFF files of several pages


def test_pages_of_tiff(tmp_path):
    pages = [Image.new("L", (8, 6), value) for value in (10, 20, 30)]
    pages[0].save(tmp_path / "three.tif", save_all=True, append_images=pages[1:])
    for read in (open_image, read_label_map, image_size):
        with pytest.raises(HypvisionError, match="TIFF of 3 pages"):
            read(tmp_path / "three.tif")
    pages[0].save(tmp_path / "one.tif")
    assert read_label_map(tmp_path / "one.tif").max() == 10
    # a small copy beside the image, as cameras and viewers write it, is no page
    small = pages[1].resize((4, 3))
    small.encoderinfo = dict(tiffinfo={254: 1})
    pages[0].save(tmp_path / "copy.tif", save_all=True, append_images=[small])
    with Image.open(tmp_path / "copy.tif") as opened:
        assert opened.n_frames == 2
        opened.seek(1)
        reduced = opened.tag_v2.get(254)
    if reduced == 1:
        assert read_label_map(tmp_path / "copy.tif").shape == (6, 8)


# Cells of a column of labels

CELLS = {
    "semicolons": ("cat;owl", "", "dog", "cat", None),
    "commas": ('"cat,owl"', "", "dog", "cat", "separated by ','"),
    "bars": ("cat|owl", "", "dog", "cat", r"separated by '\|'"),
    "spaces": ("cat owl", "dog", "owl dog", "cat", "separated by spaces"),
    "lists of Python": ("\"['cat', 'owl']\"", "[]", "['dog']", "['cat']", None),
}


@each("kind", CELLS)
def test_cells_of_labels(kind, folder):
    *cells, told = CELLS[kind]
    rows = "".join(f"{name}.png,{cell}\n" for name, cell in zip("abcd", cells))
    (folder / "t.csv").write_text(f"image,labels\n{rows}")
    data = MultiLabelDataset(str(folder), str(folder / "t.csv"), VIEW)
    assert data.metainfo["classes"] == ("cat", "dog", "owl")
    second, third = [0, 0, 0], [0, 1, 0]
    if kind == "spaces":
        second, third = [0, 1, 0], [0, 1, 1]
    assert data.labels.tolist() == [[1, 0, 1], second, third, [1, 0, 0]]
    assert bool(data.usage.notes) == bool(told)


@each(
    "cell, options, outcome",
    [
        ("cat fur", {}, "'cat fur', which may be one name or several"),
        ("cat fur", dict(separator=" "), ("cat", "dog", "fur")),
        ("cat fur", dict(separator=";"), ("cat fur", "dog")),
        ("NaN", {}, "line 2: the label is 'NaN'"),
        ("nan", {}, "line 2: the label is 'nan'"),
        ("[cat", {}, "line 2: '.cat' is not a list"),
        ("red fur", {}, "Put ';' between names, or call the column 'label'"),
    ],
)
def test_cells_that_are_asked_for(cell, options, outcome, folder):
    (folder / "t.csv").write_text(f"image,labels\na.png,{cell}\nb.png,dog\n")
    if isinstance(outcome, tuple):
        data = MultiLabelDataset(str(folder), str(folder / "t.csv"), VIEW, **options)
        assert data.metainfo["classes"] == outcome
        return
    with pytest.raises(HypvisionError, match=outcome):
        MultiLabelDataset(str(folder), str(folder / "t.csv"), VIEW, **options)


# Shards that are cut off


def test_shards_that_are_cut_off(tmp_path):
    pytest.importorskip("webdataset")
    from hypvision.data.shards import ImageShards, find_shards

    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    path = tmp_path / "0.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(6):
            for name, data in ((f"{number}.png", picture.getvalue()), (f"{number}.cls", b"0")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    whole = path.read_bytes()
    assert not ImageShards(str(path), VIEW, ["cat"]).usage.left_out()
    # between two samples, within a header, and within an image
    for samples, end in ((3, 2048 * 3), (3, 2048 * 3 + 100), (3, 2048 * 3 + 520)):
        path.write_bytes(whole[:end])
        usage = ImageShards(str(path), VIEW, ["cat"]).usage
        assert usage.used["samples"] == samples and usage.left_out() == 1, end
        assert "the tar file is cut off" in str(usage)
    with pytest.raises(HypvisionError, match="There is no shard"):
        find_shards(str(tmp_path / "{0..1}.tar"))


# Tables with one label an image

TABLES = {
    "Kaggle": ("t.csv", "id,label\na,cat\nb,dog\nc,cat\n"),
    "Hugging Face": ("metadata.csv", "file_name,label\na.png,cat\nb.png,dog\nc.png,cat\n"),
    "Hugging Face, lines of JSON": (
        "metadata.jsonl",
        "".join(
            json.dumps(dict(file_name=f"{name}.png", label=label)) + "\n"
            for name, label in zip("abc", ("cat", "dog", "cat"))
        ),
    ),
    "Roboflow": ("_classes.csv", "filename, cat, dog\na.png, 1, 0\nb.png, 0, 1\nc.png, 1, 0\n"),
    "True and False": ("t.csv", "image,cat,dog\na.png,True,False\nb.png,False,True\nc.png,True,"
    "False\n"),
    "floats": ("t.csv", "image,cat,dog\na.png,1.0,0.0\nb.png,0.0,1.0\nc.png,1.0,0.0\n"),
    "pandas' index": ("t.csv", ",image,label\n0,a.png,cat\n1,b.png,dog\n2,c.png,cat\n"),
    "tabs": ("t.tsv", "image\tlabel\na.png\tcat\nb.png\tdog\nc.png\tcat\n"),
    "semicolons": ("t.csv", "image;label\na.png;cat\nb.png;dog\nc.png;cat\n"),
    "no header": ("t.csv", "a.png,cat\nb.png,dog\nc.png,cat\n"),
    "other names": ("t.csv", "filename,breed\na.png,cat\nb.png,dog\nc.png,cat\n"),
}  # fmt: skip


@each("kind", TABLES)
def test_tables_with_one_label(kind, folder):
    name, text = TABLES[kind]
    (folder / name).write_text(text)
    data = ImageTableDataset(str(folder), str(folder / name), VIEW)
    assert data.metainfo["classes"] == ("cat", "dog") and data.labels.tolist() == [0, 1, 0]
    assert [path.rpartition("/")[2] for path in data.paths] == ["a.png", "b.png", "c.png"]
    assert data[0]["inputs"].shape == (3, 8, 8)


@each("kind", ["True and False", "floats", "Roboflow"])
def test_marks_of_several_labels(kind, folder):
    (folder / "t.csv").write_text(TABLES[kind][1])
    data = MultiLabelDataset(str(folder), str(folder / "t.csv"), VIEW)
    assert data.labels.tolist() == [[1, 0], [0, 1], [1, 0]]


@each(
    "text, message",
    [
        ("id,label\na,cat\nb,NaN\n", "line 3: the label is 'NaN'"),
        ("id,label\na,cat\na,dog\n", "line 3: the image 'a' has the label 'dog', and 'cat'"),
        ("id,x,y\na,cat,2\n", "none of label, labels.* Rename the column to 'label'"),
        ("photo,label\na,cat\n", "none of image, .* Rename the column to 'image'"),
        ("id,cat,dog\na,1,0\nb,0,0\n", "line 3: 0 classes are marked. Mark one with 1"),
        ("id,cat,dog\na,1,1\n", "2 classes are marked"),
        ("id,label\nx,cat\n", "None of the 1 images"),
        ("id,label\na,cat,9\n", "the number of cells is 3, not 2"),
        ("id,id\na,cat\n", "the column 'id' more than once"),
        ("id,class,xmin,ymin,xmax,ymax\na,cat,1,1,3,3\n", "has boxes"),
        ("id,labels\na,cat fur\nb,cat\n", "'cat fur', which may be several"),
        ("id,tags\na,cat fur\nb,fur dog\nc,dog cat\n", "'cat fur', ..., which may be several"),
        ("id,label\na,\"['cat', 'fur']\"\nb,dog\n", "'fur'.*, which may be several"),
    ],
)
def test_wrong_tables(text, message, folder):
    (folder / "t.csv").write_text(text)
    with pytest.raises(HypvisionError, match=message):
        ImageTableDataset(str(folder), str(folder / "t.csv"), VIEW)


@each(
    "text, several",
    [
        ("id,cat,dog\na,1,1\nb,0,1\n", True),
        ("id,cat,dog\na,1,0\nb,0,1\n", False),
        ("id,cat,dog\na,0,0\nb,0,1\n", False),
        ("id,labels\na,cat;fur\nb,dog\n", True),
        ("id,tags\na,cat|fur\nb,dog\n", True),
        ("id,label\na,cat;fur\nb,dog\n", False),  # the name of one class
        ("id,label\na,\"['cat', 'fur']\"\nb,dog\n", True),
        ("id,labels\na,cat fur\nb,cat\n", False),  # an error says that it is unclear
        ("id,label,is_valid\na,0,1\nb,1,1\n", False),  # another column is no class
        ("id,cat,dog,is_valid\na,1,0,1\nb,0,1,1\n", False),
        ("id,labels,xmin,ymin,xmax,ymax\na,cat;fur,1,1,3,3\n", False),  # boxes
    ],
)
def test_tables_with_several_labels(text, several, folder):
    (folder / "t.csv").write_text(text)
    assert has_several_labels(folder / "t.csv") == several


@each(
    "name, text",
    [
        ("t.csv", "id,labels\na,cat;fur\nb,dog\nc,fur\n"),
        ("t.csv", "Image,Labels,width\na,cat;fur,8\nb,dog,8\nc,fur,8\n"),
        (
            "t.jsonl",
            '{"file_name": "a.png", "labels": ["cat", "fur"]}\n'
            '{"file_name": "b.png", "labels": ["dog"]}\n'
            '{"file_name": "c.png", "labels": ["fur"]}\n',
        ),
    ],
)
def test_several_labels_in_tables_of_other_tools(name, text, folder):
    (folder / name).write_text(text)
    assert has_several_labels(folder / name)
    data = MultiLabelDataset(str(folder), str(folder / name), VIEW, indices=[0, 2])
    assert data.metainfo["classes"] == ("cat", "dog", "fur")
    assert data.labels.tolist() == [[1, 0, 1], [0, 0, 1]]
    assert [Path(path).name for path in data.paths] == ["a.png", "c.png"]


@each("kind", [ImageTableDataset, MultiLabelDataset])
def test_parts_of_a_table(kind, folder):
    table = folder / "t.csv"
    table.write_text("id,labels,split\na,cat,Train\nb,dog,train\nc,owl,test\n")
    data = kind(str(folder), str(table), VIEW, part="train")
    assert data.metainfo["classes"] == ("cat", "dog") and len(data) == 2
    assert not data.usage.notes
    test = kind(str(folder), str(table), VIEW, part="test")
    assert [Path(path).name for path in test.paths] == ["c.png"]
    [note] = kind(str(folder), str(table), VIEW).usage.notes
    assert "'split'" in note and "part='train'" in note
    with pytest.raises(HypvisionError, match="no image to 'val'"):
        kind(str(folder), str(table), VIEW, part="val")
    table.write_text("id,labels\na,cat\nb,dog\n")
    with pytest.raises(HypvisionError, match="no column that says"):
        kind(str(folder), str(table), VIEW, part="val")


def test_parts_of_lines_of_json(folder):
    table = folder / "t.jsonl"
    rows = [dict(image="a.png", labels=["cat"], split="train"),
            dict(image="b.png", labels=["cat", "dog"], split="val")]  # fmt: skip
    table.write_text("\n".join(map(json.dumps, rows)))
    data = MultiLabelDataset(str(folder), str(table), VIEW, part="val")
    assert [Path(path).name for path in data.paths] == ["b.png"]


def test_a_class_column_with_other_values_is_named(folder):
    (folder / "t.csv").write_text("id,cat,width\na,1,640\nb,0,480\n")
    with pytest.raises(HypvisionError, match="'640' is neither 1 nor 0. If the column 'width'"):
        MultiLabelDataset(str(folder), str(folder / "t.csv"), VIEW)


def test_a_column_beside_the_labels_is_no_class(folder):
    (folder / "t.csv").write_text("id,label,rotten\na,0,1\nb,1,0\nc,1,1\n")
    data = ImageTableDataset(str(folder), str(folder / "t.csv"), VIEW)
    assert data.metainfo["classes"] == ("0", "1") and data.labels.tolist() == [0, 1, 1]


@each("kind", [ImageTableDataset, MultiLabelDataset])
def test_names_that_differ_in_capitals_are_told(kind, folder):
    (folder / "t.csv").write_text("id,labels\na,Red  apple\nb,red apple\nc,dog\n")
    options = dict(separator=";") if kind is MultiLabelDataset else {}
    data = kind(str(folder), str(folder / "t.csv"), VIEW, **options)
    assert len(data.metainfo["classes"]) == 3
    assert "'Red  apple' and 'red apple' differ by" in " ".join(data.usage.notes)


@each("head", ["label", "labels", "tags"])
def test_names_with_spaces(head, folder):
    (folder / "t.csv").write_text(f"id,{head}\na,red apple\nb,green apple\nc,dog\n")
    data = ImageTableDataset(str(folder), str(folder / "t.csv"), VIEW)
    assert data.metainfo["classes"] == ("dog", "green apple", "red apple")


def test_a_name_with_a_separator_is_told(folder):
    (folder / "t.csv").write_text('id,label\na,"cat, black"\nb,dog\n')
    data = ImageTableDataset(str(folder), str(folder / "t.csv"), VIEW)
    assert data.metainfo["classes"] == ("cat, black", "dog")
    assert "'cat, black' is the name of one class" in " ".join(data.usage.notes)


def test_numbers_as_labels_are_in_their_order(folder):
    (folder / "t.csv").write_text("id,label\na,10\nb,2\nc,0\nlost,2\n")
    data = ImageTableDataset(str(folder), str(folder / "t.csv"), VIEW, indices=[0, 1])
    assert data.metainfo["classes"] == ("0", "2", "10") and data.labels.tolist() == [2, 1]
    assert data.usage.left_out("images") == 1  # the one that is lost; not that of the other part


# Sentences that say what a file is


def test_what_cannot_be_read_is_called_what_it_is(tmp_path):
    texts = PngInfo()
    texts.add_text("prompt", "x" * 2**21, zip=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "texts.png", pnginfo=texts)
    (tmp_path / "film.mts").write_bytes(b"G" * 1000)
    for name, said in (("texts.png", "the texts beside its pixels"), ("film.mts", "is a video")):
        with pytest.raises(HypvisionError, match=said):
            open_image(tmp_path / name)
