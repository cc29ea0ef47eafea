"""The open-vocabulary test sets from tiny copies of the published layouts."""

import json

import numpy as np
import pytest
from helpers.cases import each
from PIL import Image

from hypvision.cli import main
from hypvision.data.classes import load_classes, official_ids
from hypvision.data.prepare import PREPARED, prepare
from hypvision.io.errors import HypvisionError


def photo(path, size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path)


def label(path):
    return np.array(Image.open(path)).tolist()


def test_ade847(tmp_path):
    folder = tmp_path / "in/images/ADE/validation/street"
    photo(folder / "a.jpg")
    ids = official_ids("ade847")
    seg = np.zeros((4, 6, 3), dtype=np.uint8)
    for column, category in enumerate((ids[0], ids[300], ids[846], 1)):  # 1 is in no list
        seg[:, column, 0], seg[:, column, 1] = category // 256 * 10 + 7, category % 256
    Image.fromarray(seg).save(folder / "a_seg.png")
    assert 1 not in ids
    assert prepare("ade847", tmp_path / "in", tmp_path / "out") == 1
    found = label(tmp_path / "out/annotations/validation/a.tif")
    assert (
        found[0][:4] == [0, 300, 846, 65535]
        and (tmp_path / "out/images/validation/a.jpg").is_file()
    )
    photo(folder / "b.jpg", (1600, 1030))
    Image.new("RGB", (1600, 1030)).save(folder / "b_seg.png")
    assert prepare("ade847", tmp_path / "in", tmp_path / "out") == 2  # goes on where it stopped
    for path in ("images/validation/b.jpg", "annotations/validation/b.tif"):
        assert Image.open(tmp_path / "out" / path).size == (795, 512)


def test_pc59(tmp_path):
    from hypvision.data.masks import run_length

    photo(tmp_path / "in/JPEGImages/x.jpg")
    ids = official_ids("pc59")
    masks = [np.zeros((4, 6), dtype=bool) for _ in range(3)]
    masks[0][:, :4] = masks[1][:, 2:5] = masks[2][3] = True  # later ones lie over earlier ones
    annotations = [
        dict(image_id=7, category_id=category, segmentation=run_length(mask))
        for category, mask in zip((ids[1], ids[59], 1), masks)  # 1 is none of the 59
    ]
    images = [dict(image_id=7, file_name="x.jpg", height=4, width=6, phase="val"),
              dict(image_id=8, file_name="y.jpg", height=4, width=6, phase="train")]  # fmt: skip
    (tmp_path / "in/trainval_merged.json").write_text(
        json.dumps(dict(images=images, annos=annotations))
    )
    assert prepare("pc59", tmp_path / "in", tmp_path / "out") == 1
    assert label(tmp_path / "out/annotations/validation/x.png") == [[0, 0, 58, 58, 58, 255]] * 3 + [
        [255] * 6
    ]
    assert len(load_classes("pc59")) == 59


def test_pc459(tmp_path):
    from scipy.io import savemat

    photo(tmp_path / "in/JPEGImages/x.jpg", (2, 1))
    (tmp_path / "in/trainval").mkdir()
    savemat(
        str(tmp_path / "in/trainval/x.mat"), dict(LabelMap=np.array([[1, 459]], dtype=np.uint16))
    )
    (tmp_path / "in/pascalcontext_val.txt").write_text("x\n")
    assert prepare("pc459", tmp_path / "in", tmp_path / "out") == 1
    assert label(tmp_path / "out/annotations/validation/x.tif") == [[0, 458]]
    savemat(
        str(tmp_path / "in/trainval/x.mat"), dict(LabelMap=np.array([[0, 459]], dtype=np.uint16))
    )
    with pytest.raises(HypvisionError, match="labels from 0 to 459"):
        prepare("pc459", tmp_path / "in", tmp_path / "new")


@pytest.mark.parametrize(
    "name,expected", [("voc20", [[255, 0, 19, 255]]), ("voc20b", [[20, 0, 19, 255]])]
)
def test_voc(tmp_path, name, expected, capsys):
    photo(tmp_path / "in/JPEGImages/x.jpg", (4, 1))
    (tmp_path / "in/ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "in/ImageSets/Segmentation/val.txt").write_text("x\n")
    (tmp_path / "in/SegmentationClassAug").mkdir()
    Image.fromarray(np.array([[0, 1, 20, 255]], dtype=np.uint8)).save(
        tmp_path / "in/SegmentationClassAug/x.png"
    )
    assert main(["data", "prepare", name, str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert label(tmp_path / "out/annotations/validation/x.png") == expected
    assert f"{name}: 1 images" in capsys.readouterr().out


@each("name", PREPARED)
def test_label_maps_have_the_size_of_their_images(tmp_path, name):
    """Of every set: the labels are 4 x 2 pixels, the image 4 x 3 and then 2 x 4 with a mark that
    turns it."""
    from scipy.io import savemat

    from hypvision.data.masks import run_length

    labels, root = np.ones((2, 4), dtype=np.uint8), tmp_path / "in"
    place = root / ("images/ADE/validation/x.jpg" if name == "ade847" else "JPEGImages/x.jpg")
    photo(place, (4, 3))
    for folder in ("trainval", "SegmentationClassAug", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    savemat(str(root / "trainval/x.mat"), dict(LabelMap=labels))
    Image.fromarray(np.dstack([labels] * 3)).save(place.with_name("x_seg.png"))
    Image.fromarray(labels).save(root / "SegmentationClassAug/x.png")
    for names in ("ImageSets/Segmentation/val.txt", "pascalcontext_val.txt"):
        (root / names).write_text("x")
    mask = dict(image_id=1, category_id=2, segmentation=run_length(labels.astype(bool)))
    content = dict(images=[dict(image_id=1, file_name="x.jpg", height=2, width=4)], annos=[mask])
    (root / "trainval_merged.json").write_text(json.dumps(content))
    for size, shown, orientation in (((4, 3), "4 x 3", 1), ((4, 2), "2 x 4", 6)):
        image = Image.new("RGB", size)
        exif = image.getexif()
        exif[0x0112] = orientation
        image.save(place, exif=exif)
        with pytest.raises(
            HypvisionError, match=rf"label map '.*' is 4 x 2 pixels, but its .*x.jpg' has {shown}"
        ):
            prepare(name, root, tmp_path / "out")
    photo(place, (4, 2))
    assert prepare(name, root, tmp_path / "out") == 1
    if name == "pc59":
        content["images"][0]["height"] = 3
        (root / "trainval_merged.json").write_text(json.dumps(content))
        with pytest.raises(
            HypvisionError, match=r"has a mask of 4 x 2 pixels for 'x.jpg', which has 4 x 3"
        ):
            prepare(name, root, tmp_path / "new")


@pytest.mark.parametrize(
    ("value", "message"), [(21, "label 21; expected are 0 to 20"), (254, "label 254")]
)
def test_numbers_outside_of_vocs_labels_are_an_error(tmp_path, value, message):
    voc(tmp_path / "in", ["x"])
    Image.fromarray(np.array([[0, 1, value, 255]], dtype=np.uint8)).save(
        tmp_path / "in/SegmentationClassAug/x.png"
    )
    with pytest.raises(HypvisionError, match=message):
        prepare("voc20", tmp_path / "in", tmp_path / "out")


def test_class_numbers_of_ade847_are_colours(tmp_path):
    photo(tmp_path / "images/ADE/validation/a.jpg")
    Image.new("L", (6, 4)).save(tmp_path / "images/ADE/validation/a_seg.png")
    with pytest.raises(HypvisionError, match=r"a_seg.png' has Pillow's mode L; the published"):
        prepare("ade847", tmp_path, tmp_path / "out")


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(HypvisionError, match="name must be one of 'ade847'"):
        prepare("ade", tmp_path, tmp_path / "out")
    with pytest.raises(HypvisionError, match="does not exist. Check SOURCE"):
        prepare("voc20", tmp_path / "none", tmp_path / "out")
    with pytest.raises(HypvisionError, match="val.txt' does not exist"):
        prepare("voc20", tmp_path, tmp_path / "out")


def test_damaged_files_are_named(tmp_path):
    def fails(match, name):
        with pytest.raises(HypvisionError, match=match):
            prepare(name, tmp_path, tmp_path / "out")

    (tmp_path / "images/ADE/validation").mkdir(parents=True)
    fails("lists no images of ade847", "ade847")
    for folder in ("ImageSets/Segmentation", "SegmentationClassAug", "trainval"):
        (tmp_path / folder).mkdir(parents=True)
    photo(tmp_path / "JPEGImages/x.jpg")
    for name in (
        "ImageSets/Segmentation/val.txt",
        "pascalcontext_val.txt",
        "SegmentationClassAug/x.png",
        "trainval/x.mat",
    ):
        (tmp_path / name).write_text("x\n")
    fails("SegmentationClassAug/x.png' cannot be read: the file is damaged, or none of", "voc20")
    fails("trainval/x.mat' cannot be read", "pc459")
    for list_, name in (
        ("ImageSets/Segmentation/val.txt", "voc20"),
        ("pascalcontext_val.txt", "pc459"),
    ):
        (tmp_path / list_).write_bytes("gar\xe7on\n".encode("latin-1"))
        fails(f"{list_}', the list of images, is not text in UTF-8", name)
    for content in (
        "{", "{}", '{"images": [{}], "annotations": []}', '{"images": [], "annotations": [{}]}',
        '{"images": 3, "annotations": []}', '{"images": [3], "annotations": []}',
        '{"images": [], "annotations": 3}', '{"images": [{"file_name": 3}], "annotations": []}',
        "[]",
        '{"images": [{"file_name": "x.jpg"}], "annotations": []}',
    ):  # fmt: skip
        (tmp_path / "trainval_merged.json").write_text(content)
        fails("trainval_merged.json' cannot be read", "pc59")


def voc(folder, names):
    """A tiny copy of VOC whose list has these names."""
    for name in names:
        photo(folder / f"JPEGImages/{name}.jpg", (4, 1))
        path = folder / f"SegmentationClassAug/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.array([[0, 1, 20, 255]], dtype=np.uint8)).save(path)
    (folder / "ImageSets/Segmentation").mkdir(parents=True)
    (folder / "ImageSets/Segmentation/val.txt").write_text("\n".join(names))


@each("name", ["../../../../evil", "deep/x", "/tmp/evil", ".."])
def test_nothing_is_written_or_read_outside(tmp_path, name):
    """Names in a list led out of OUT, and out of SOURCE: a file of the reader's would have been
    copied."""
    voc(tmp_path / "a/b/c/in", ["x"])
    photo(tmp_path / "a/evil.jpg", (4, 1))
    Image.new("L", (4, 1)).save(tmp_path / "a/evil.png")
    (tmp_path / "a/b/c/in/ImageSets/Segmentation/val.txt").write_text(name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(HypvisionError, match="leads to another folder|does not exist"):
        prepare("voc20", tmp_path / "a/b/c/in", tmp_path / "a/b/c/out")
    assert sorted(tmp_path.rglob("*")) == before


def test_links_in_the_output_are_not_followed(tmp_path):
    voc(tmp_path / "in", ["x"])
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").write_text("old")
    (tmp_path / "out/annotations").mkdir(parents=True)
    (tmp_path / "out/annotations/validation").symlink_to(tmp_path / "victim")
    with pytest.raises(HypvisionError, match="leads out of the folder"):
        prepare("voc20", tmp_path / "in", tmp_path / "out")
    (tmp_path / "out/annotations/validation").unlink()
    (tmp_path / "out/images/validation").mkdir(parents=True)
    (tmp_path / "out/images/validation/x.jpg").symlink_to(tmp_path / "victim/file")
    with pytest.raises(HypvisionError, match="leads out of the folder|is a link"):
        prepare("voc20", tmp_path / "in", tmp_path / "out")
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["file"]
    assert (tmp_path / "victim/file").read_text() == "old"


def test_cifar_as_published(tmp_path, monkeypatch, capsys):
    """The pixels and classes of the archive, as torchvision reads them; a second call writes what
    is missing."""
    import hashlib
    import pickle

    from torchvision.datasets import CIFAR10

    from hypvision.data.image_folder import ImageFolderDataset

    batches = tmp_path / "in" / CIFAR10.base_folder
    batches.mkdir(parents=True)
    random = np.random.default_rng(0)
    lists = {}
    for file in ("data_batch_1", "test_batch"):
        pixels = random.integers(0, 255, (4, 3072), dtype=np.uint8)
        content = pickle.dumps(dict(data=pixels, labels=[1, 0, 1, 1]))
        (batches / file).write_bytes(content)
        lists[file] = [[file, hashlib.md5(content).hexdigest()]]
    names = pickle.dumps(dict(label_names=["cat", "dog"]))
    (batches / "batches.meta").write_bytes(names)
    meta = dict(filename="batches.meta", key="label_names", md5=hashlib.md5(names).hexdigest())
    monkeypatch.setattr(CIFAR10, "meta", meta)
    monkeypatch.setattr(CIFAR10, "train_list", lists["data_batch_1"])
    monkeypatch.setattr(CIFAR10, "test_list", lists["test_batch"])
    out = tmp_path / "out"
    for _ in range(2):
        assert main(["data", "prepare", "cifar10", str(tmp_path / "in"), str(out)]) == 0
        assert "cifar10: 8 images" in capsys.readouterr().out
        (out / "test/dog/00000.png").unlink()
    assert main(["data", "prepare", "cifar10", str(tmp_path / "in"), str(out)]) == 0
    for part in ("train", "test"):
        data = ImageFolderDataset(str(out / part), dict(input_size=32))
        official = CIFAR10(tmp_path / "in", train=part == "train")
        assert data.metainfo["classes"] == ("cat", "dog") and len(data) == 4
        for path, label in zip(data.paths, data.labels):
            number = int(path[-9:-4])
            assert np.array_equal(np.array(Image.open(path)), official.data[number])
            assert label == official.targets[number]


def test_tiny_imagenet(tmp_path):
    source = tmp_path / "tiny-imagenet-200"
    for wnid in ("n02", "n01"):
        photo(source / f"train/{wnid}/images/{wnid}_0.JPEG", (64, 64))
    for name in ("val_0.JPEG", "val_1.JPEG"):
        photo(source / "val/images" / name, (64, 64))
    (source / "wnids.txt").write_text("n02\nn01\n")
    table = source / "val/val_annotations.txt"
    table.write_text("val_0.JPEG\tn02\t0\t0\t9\t9\nval_1.JPEG\tn01\t0\t0\t9\t9\n")
    for number, place in enumerate((source, tmp_path)):
        assert prepare("tiny-imagenet", place, tmp_path / f"out{number}") == 4
    found = sorted(
        path.relative_to(tmp_path / "out1").as_posix()
        for path in (tmp_path / "out1").rglob("*.JPEG")
    )
    assert found == [
        "train/n01/n01_0.JPEG",
        "train/n02/n02_0.JPEG",
        "val/n01/val_1.JPEG",
        "val/n02/val_0.JPEG",
    ]
    table.write_text("val_0.JPEG\tn03\n")
    with pytest.raises(HypvisionError, match="n03"):
        prepare("tiny-imagenet", source, tmp_path / "new")
    table.write_text("../up.JPEG\tn01\n")
    with pytest.raises(HypvisionError, match="up.JPEG"):
        prepare("tiny-imagenet", source, tmp_path / "new")
