"""Names in lists, tables and annotations that lead out of the folder of the data, through every
reader of them."""

import json
from pathlib import Path

import pytest
from helpers.cases import each
from helpers.retrieval_layouts import write_sop
from PIL import Image

from hypvision.data.caption_folder import CaptionFolder
from hypvision.data.fewshot.layouts import load_split
from hypvision.data.image_folder import ImageFolderDataset
from hypvision.data.multi_label import MultiLabelDataset
from hypvision.data.prepare import prepare
from hypvision.data.retrieval import StanfordOnlineProducts
from hypvision.io.errors import HypvisionError
from hypvision.io.files import inside

EVAL = dict(input_size=32, crop_pct=1.0)
pytestmark = pytest.mark.filterwarnings("ignore:.*published are")


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def image_list(root, name):
    write(root / "list.txt", f"{name} 0\nb.png 1\n")
    return ImageFolderDataset(str(root), EVAL, ann_file=str(root / "list.txt"))


def multi_label(root, name):
    write(root / "t.csv", f"image,labels\n{name},cat\n")
    return MultiLabelDataset(str(root), str(root / "t.csv"), EVAL)


def captions(root, name):
    write(root / "captions.csv", f"image,caption\n{name},a cat\n")
    return CaptionFolder(root)


def products(root, name):
    write_sop(root)
    table = root / "Ebay_train.txt"
    head, first, *rest = table.read_text().splitlines()
    table.write_text("\n".join([head, " ".join([*first.split()[:3], name]), *rest]))
    return StanfordOnlineProducts(str(root), EVAL)


def split(root, name):
    rows = [[name, 0, "cat"]]
    write(root / "own/split.json", json.dumps(dict(train=rows, val=[], test=rows)))
    return load_split("own", root)


def pets(root, name):
    rows = [f"{Path(name).with_suffix('')} 1 1 1", *(f"Pug_{i} 1 1 1" for i in range(10))]
    write(root / "oxford_pets/annotations/trainval.txt", "\n".join(rows))
    write(root / "oxford_pets/annotations/test.txt", rows[-1])
    return load_split("oxford_pets", root)


def detection(root, **options):
    pytest.importorskip("mmdet")
    from mmdet.registry import DATASETS

    import hypvision.openmmlab.datasets.detection  # noqa: F401

    common = dict(
        data_root=str(root),
        metainfo=dict(classes=("cat",)),
        pipeline=[dict(type="LoadImageFromFile")],
    )
    return DATASETS.build(dict(common, **options, _scope_="mmdet"))


def coco(root, name):
    images = [dict(id=1, file_name=name, height=8, width=8)]
    boxes = [dict(id=1, image_id=1, category_id=1, bbox=[1, 1, 4, 4])]
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name="cat")])
    write(root / "a.json", json.dumps(content))
    return detection(root, type="CocoDataset", ann_file="a.json", data_prefix=dict(img="images"))


def voc_xml(root, name):
    write(root / "train.txt", str(Path(name).with_suffix("")))
    return detection(
        root, type="XMLDataset", ann_file="train.txt", data_prefix=dict(sub_data_root="")
    )


def semantic(root, name):
    pytest.importorskip("mmseg")
    from mmseg.registry import DATASETS

    import hypvision.openmmlab.datasets.segmentation  # noqa: F401

    write(root / "val.txt", str(Path(name).with_suffix("")))
    return DATASETS.build(dict(type="BaseSegDataset", data_root=str(root), ann_file="val.txt",
    _scope_="mmseg",
                               data_prefix=dict(img_path="images"), pipeline=[]))  # fmt: skip


def prepared(root, name):
    write(root / "ImageSets/Segmentation/val.txt", str(Path(name).with_suffix("")))
    return prepare("voc20", root, root.parent / "out")


# The reader, and the folder that its names start from.
READERS = dict(
    list=(image_list, "."), labels=(multi_label, "."), captions=(captions, "images"),
    products=(products, "."), split=(split, "own/images"), pets=(pets, "oxford_pets/images"),
    coco=(coco, "images"), voc=(voc_xml, "Annotations"), semantic=(semantic, "images"),
    prepare=(prepared, "JPEGImages"),
)  # fmt: skip


@each("way", ["absolute", "up", "up from a link"])
@each("reader", READERS)
def test_no_reader_leaves_the_folder(tmp_path, reader, way, monkeypatch):
    root, secret = tmp_path / "data", tmp_path / "other/secret.jpg"
    read, place = READERS[reader]
    for path in (
        root / place / "b.png",
        root / "b.png",
        root / "SegmentationClassAug/l.png",
        secret,
    ):
        picture(path)
    write(secret.with_suffix(".xml"), "<annotation/>")
    (root / place / "far").symlink_to(secret.parent)
    up = "/".join([".."] * (len((root / place).resolve().parts) - len(tmp_path.parts)))
    name = {
        "absolute": str(secret),
        "up": f"{up}/other/secret.jpg",
        "up from a link": f"far/../{up}/other/secret.jpg",
    }
    with pytest.raises(
        HypvisionError,
        match="lies outside of|no image|there is no|leads to another folder|does not exist",
    ) as told:
        read(root, name[way])
    if "lies outside of" in str(told.value):
        assert "HYPVISION_ALLOW_OUTSIDE" in str(told.value)
        monkeypatch.setenv("HYPVISION_ALLOW_OUTSIDE", str(secret.parent))
        try:
            read(root, name[way])
        except HypvisionError as error:  # of other lists and files that are missing here
            assert "lies outside of" not in str(error)


def test_folders_that_are_links_and_files_below_are_read(tmp_path, monkeypatch):
    picture(tmp_path / "disk/a/b.png")
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    path = str(tmp_path / "data/a/../a/b.png")
    assert inside([path], tmp_path / "data") == [path]
    own = str(tmp_path / "data")  # the folder itself, as a data.yaml with "train: ." names it
    assert inside([own, f"{own}/."], tmp_path / "data") == [own, f"{own}/."]
    monkeypatch.chdir(tmp_path / "disk")
    assert inside(["a/b.png"], "") == ["a/b.png"] == inside(["a/b.png"], "a")
    with pytest.raises(HypvisionError, match="lies outside of"):
        inside(["a/b.png", "a\0"[:2] + "/\0/x"], "a")


def test_links_in_the_folder_are_followed(tmp_path):
    """Folders and files of data are often links to another disk; who owns the folder made them."""
    picture(tmp_path / "disk/a.png")
    root = tmp_path / "data"
    root.mkdir()
    (root / "far").symlink_to(tmp_path / "disk")
    (root / "b.png").symlink_to(tmp_path / "disk/a.png")
    assert len(image_list(root, "far/a.png")) == 2
