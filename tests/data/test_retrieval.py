"""The retrieval data sets in their published layouts, what they say when something is wrong, and
the sampler."""

import json
import shutil
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.cases import each
from helpers.retrieval_layouts import write_cars, write_cub, write_folder, write_inshop, write_sop
from PIL import Image

pytest.importorskip("mmengine")
from mmengine.dataset import DefaultSampler

from hypvision.data.retrieval import (
    CUB200,
    Cars196,
    InShop,
    RetrievalFolder,
    StanfordOnlineProducts,
    car_maker,
)
from hypvision.data.samplers import MPerClassBatchSampler
from hypvision.io.errors import HypvisionError

EVAL = dict(input_size=32, crop_pct=1.0)
KINDS = {
    "cub": (CUB200, write_cub),
    "cars": (Cars196, write_cars),
    "sop": (StanfordOnlineProducts, write_sop),
    "inshop": (InShop, write_inshop),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*published are")


def build(name, root, split="train", **options):
    if name == "cars":
        pytest.importorskip("scipy")
    kind, write = KINDS[name]
    return kind(write(root, **options), EVAL, split)


@each("name", KINDS)
def test_splits_have_the_images_and_classes_of_their_lists(name, tmp_path):
    train = build(name, tmp_path)
    test = KINDS[name][0](tmp_path, EVAL, "test")
    for data, classes in ((train, 4), (test, 3)):
        assert Counter(data.labels.tolist()) == dict.fromkeys(range(classes), 4)
        assert data.usage.used == {"images": 4 * classes} and not data.usage.left_out()
        named = (
            98 if name == "cars" else classes
        )  # its names are in one table, whether there are images or not
        assert len(data.metainfo["classes"]) == len(data.metainfo["ancestors"]) == named
    assert not set(train.metainfo["classes"]) & set(test.metainfo["classes"])
    assert not set(train.paths) & set(test.paths)
    # an image's colour is that of its class
    first, second, other = (np.asarray(test.read(i)).mean((0, 1)) for i in (0, 1, len(test) - 1))
    if name != "inshop":
        assert abs(first - second).max() < 10 < abs(first - other).max()
    sample = test[5]
    assert sample["inputs"].shape == (3, 32, 32)
    assert sample["index"] == 5
    assert sample["label"] == test.labels[5]


def test_ancestors(tmp_path):
    assert build("cub", tmp_path / "cub").metainfo["ancestors"] == tuple(
        (name,) for name in ("sparrow", "albatross") * 2
    )
    assert set(build("sop", tmp_path / "sop").metainfo["ancestors"]) == {("bicycle",), ("cabinet",)}
    assert set(build("inshop", tmp_path / "shop").metainfo["ancestors"]) == {
        ("WOMEN", "Dresses"),
        ("MEN", "Denim"),
    }
    if pytest.importorskip("scipy"):
        cars = build("cars", tmp_path / "cars")
        assert cars.metainfo["ancestors"][0] == ("BMW",)
        assert cars.metainfo["classes"][0].startswith("BMW Model1")


def test_inshop_has_queries_first_in_both_layouts(tmp_path):
    flat, nested = (build("inshop", tmp_path / str(n), "test", nested=n) for n in (False, True))
    assert flat.metainfo["queries"] == 6 and len(flat) == 12
    assert [p.rpartition("img/")[2] for p in flat.paths] == [
        p.rpartition("img/")[2] for p in nested.paths
    ]
    assert all(int(p[-14:-12].strip("/")) % 2 == (i < 6) for i, p in enumerate(flat.paths))
    assert set(flat.labels[:6]) == set(flat.labels[6:]) == {0, 1, 2}


def test_cars_in_the_layout_of_later_copies(tmp_path):
    plain, devkit = (build("cars", tmp_path / str(d), "test", devkit=d) for d in (False, True))
    assert Counter(plain.labels.tolist()) == Counter(devkit.labels.tolist())
    assert plain.metainfo == devkit.metainfo
    assert {p.split("/")[-2] for p in devkit.paths} == {"cars_train", "cars_test"}


@each("name", KINDS)
def test_missing_files_are_named_with_their_source(name, tmp_path):
    kind, _ = KINDS[name]
    with pytest.raises(HypvisionError, match="does not exist.*comes from http.*data_root"):
        kind(tmp_path / "nowhere", EVAL)
    data = build(name, tmp_path / "data")
    victim = data.paths[2]
    shutil.copy(victim, tmp_path / "kept")
    (data.root / victim).unlink()
    with pytest.raises(HypvisionError, match="1 of the 16 images.*missing.*http"):
        kind(data.root, EVAL)
    shutil.copy(tmp_path / "kept", victim)
    with pytest.raises(HypvisionError, match="has the splits train and test, not 'val'"):
        kind(data.root, EVAL, "val")
    lists = {
        "cub": "images.txt",
        "cars": "cars_annos.mat",
        "sop": "Ebay_train.txt",
        "inshop": "list_eval_partition.txt",
    }
    (data.root / lists[name]).unlink()
    with pytest.raises(HypvisionError, match=f"{lists[name]}' does not exist.*http"):
        kind(data.root, EVAL)


def test_broken_lists_and_images_are_told(tmp_path):
    data = build("inshop", tmp_path / "shop")
    listing = data.root / "list_eval_partition.txt"
    listing.write_text(listing.read_text().replace("query", "quiz"))
    with pytest.raises(HypvisionError, match="'quiz'"):
        InShop(data.root, EVAL)
    data = build("sop", tmp_path / "sop")
    (data.root / "Ebay_train.txt").write_text("header\n1 2 3\n")
    with pytest.raises(HypvisionError, match="'1 2 3', but expected are 4 words"):
        StanfordOnlineProducts(data.root, EVAL)
    (data.root / "Ebay_train.txt").write_bytes("gar\xe7on\n".encode("latin-1"))
    with pytest.raises(HypvisionError, match="is not text in UTF-8"):
        StanfordOnlineProducts(data.root, EVAL)
    data = build("cub", tmp_path / "cub")
    with open(data.paths[0], "wb") as file:
        file.write(b"no image")
    with pytest.raises(HypvisionError, match="cannot be read"):
        data[0]
    if pytest.importorskip("scipy"):
        data = build("cars", tmp_path / "cars")
        (data.root / "cars_annos.mat").write_bytes(b"no mat file")
        with pytest.raises(HypvisionError, match="cars_annos.mat' cannot be read"):
            Cars196(data.root, EVAL)


@pytest.mark.filterwarnings("default")
def test_class_numbers_and_annotations_are_checked(tmp_path):
    savemat = pytest.importorskip("scipy.io").savemat
    cub, sop = write_cub(tmp_path / "cub"), write_sop(tmp_path / "sop")
    (cub / "classes.txt").write_text("one 001.Bird_1_Sparrow\n")
    with pytest.raises(HypvisionError, match="classes.txt' has the label 'one'"):
        CUB200(str(cub), EVAL)
    (sop / "Ebay_train.txt").write_text(
        "image_id class_id super_class_id path\n1 first 1 bicycle_final/1_0.JPG\n"
    )
    with pytest.raises(HypvisionError, match="Ebay_train.txt' has the label 'first'"):
        StanfordOnlineProducts(str(sop), EVAL)
    cars = write_cars(tmp_path / "cars", devkit=True)
    savemat(cars / "cars_test_annos_withlabels.mat", dict(other=1))
    with pytest.raises(HypvisionError, match="no 'annotations', it has other"):
        Cars196(str(cars), EVAL)
    table = np.zeros((1, 2), dtype=[("fname", object), ("bbox_x1", object)])
    table[0, :] = ("000001.jpg", 1)
    savemat(cars / "cars_test_annos_withlabels.mat", dict(annotations=table))
    with pytest.raises(HypvisionError, match="annotation without 'class'"):
        Cars196(str(cars), EVAL)


@each("model, maker", [
    ("Aston Martin V8 Vantage Coupe 2012", "Aston Martin"),
    ("AM General Hummer SUV 2000", "AM General"), ("Land Rover LR2 SUV 2012", "Land Rover"),
    ("Acura RL Sedan 2012", "Acura"), ("smart fortwo Convertible 2012", "smart"),
    ("Mercedes-Benz S-Class Sedan 2012", "Mercedes-Benz"),
])  # fmt: skip
def test_makers_of_cars(model, maker):
    assert car_maker(model) == maker


def test_a_partial_copy_is_told(tmp_path):
    with pytest.warns(UserWarning, match="16 images of 4 classes.*5864 of 100"):
        build("cub", tmp_path)


def test_folders_as_a_stand_in(tmp_path):
    root = write_folder(tmp_path, ("cat", "dog", "ship"), images=9)
    above = dict(cat=("animal",), dog=("animal",), ship=("vehicle",))
    data = RetrievalFolder(
        root, EVAL, classes=("ship", "cat"), ancestors=above, per_class=3, cache=True
    )
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1] and data.metainfo["classes"] == (
        "ship",
        "cat",
    )
    assert data.metainfo["ancestors"] == (("vehicle",), ("animal",))
    assert data.metainfo["queries"] is None
    assert [p[-8:] for p in data.paths[:3]] == ["0000.png", "0004.png", "0008.png"]
    with pytest.raises(HypvisionError, match="no entry for the class 'dog'"):
        RetrievalFolder(root, EVAL, ancestors=dict(cat=("animal",)))
    with pytest.raises(HypvisionError, match="equally many"):
        RetrievalFolder(root, EVAL, ancestors=dict(above, cat=("animal", "pet")))


def test_folders_search_in_a_gallery_and_lists_come_from_files(tmp_path):
    write_folder(tmp_path / "test", ("cat", "dog", "ship"), images=3)
    write_folder(tmp_path / "train", ("cat", "dog", "eel", "ship"), images=5)
    above = dict(cat=["animal"], dog=["animal"], ship=["vehicle"])
    (tmp_path / "split.json").write_text(json.dumps(dict(test=["ship", "cat"], above=above)))
    folders = dict(root=str(tmp_path / "test"), gallery=str(tmp_path / "train"), transform=EVAL)
    lists = dict(classes=f"{tmp_path}/split.json:test", ancestors=f"{tmp_path}/split.json:above")
    data = RetrievalFolder(**folders, **lists, cache=True)
    assert data.metainfo["queries"] == 6
    assert data.labels.tolist() == [1] * 3 + [0] * 3 + [1] * 5 + [0] * 5
    assert data.metainfo["ancestors"] == (("vehicle",), ("animal",))
    assert data[15]["inputs"].shape[0] == 3
    assert ["train" in path for path in data.paths] == [False] * 6 + [True] * 10
    assert len(RetrievalFolder(**folders, **lists, per_class=2)) == 8
    (tmp_path / "above.json").write_text(json.dumps(above))
    assert RetrievalFolder(**folders, ancestors=f"{tmp_path}/above.json").metainfo["classes"] == (
        "cat",
        "dog",
        "ship",
    )
    with pytest.raises(HypvisionError, match="has no folder for the classes 'eel'"):
        RetrievalFolder(**{**folders, "root": folders["gallery"], "gallery": folders["root"]})
    for wrong in (f"{tmp_path}/split.json:val", f"{tmp_path}/none.json:test"):
        with pytest.raises(HypvisionError, match="has no 'val'|no file '.*none.json"):
            RetrievalFolder(**folders, classes=wrong)


# The sampler


def sampler(labels, batch_size=8, rank=0, world_size=1, epoch=0, **options):
    data = SimpleNamespace(labels=labels, metainfo=dict(classes=tuple("abcdefghij")))
    base = SimpleNamespace(dataset=data, seed=7, epoch=epoch, rank=rank, world_size=world_size)
    return MPerClassBatchSampler(base, batch_size, **options)


def test_batches_hold_m_of_each_class():
    labels = np.repeat(np.arange(6), 10)
    batches = list(sampler(labels, 8, m=2))
    assert len(batches) == 60 // 8
    for batch in batches:
        assert sorted(Counter(labels[batch].tolist()).values()) == [2, 2, 2, 2]
        assert len(set(batch)) == 8  # without replacement
    assert {i for batch in batches for i in batch} <= set(range(60))


def test_processes_share_a_batch_without_sharing_classes():
    labels = np.repeat(np.arange(10), 6)
    parts = [list(sampler(labels, 6, rank, 3, m=2)) for rank in range(3)]
    assert {len(part) for part in parts} == {60 // 18}
    for batches in zip(*parts):
        assert set(Counter(labels[np.concatenate(batches)].tolist()).values()) == {2}


def test_epochs_differ_and_seeds_repeat():
    labels = np.repeat(np.arange(6), 10)
    assert list(sampler(labels)) == list(sampler(labels)) != list(sampler(labels, epoch=1))


def test_short_classes():
    labels = [0, 0, 0, 1, 1, 1, 2]
    with pytest.raises(HypvisionError, match="class 'c' has 1 images, fewer than the 2.*'repeat'"):
        sampler(labels, 4, m=2)
    repeated = next(iter(sampler(labels, 6, m=2, short_classes="repeat")))
    assert repeated.count(6) == 2


def test_impossible_batches_are_told():
    labels = [0, 0, 1, 1]
    with pytest.raises(HypvisionError, match="batch of 3 images cannot hold 2"):
        sampler(labels, 3, m=2)
    with pytest.raises(HypvisionError, match="needs 3 classes; the training data has 2"):
        sampler(labels, 6, m=2)
    with pytest.raises(HypvisionError, match="short_classes"):
        sampler(labels, 4, m=2, short_classes="ignore")


def test_under_mmengine(tmp_path):
    """Built by the Runner's own function, with the epoch set by its hook."""
    from mmengine.runner import Runner

    root = write_folder(tmp_path, ("cat", "dog", "ship"), images=4)
    loader = Runner.build_dataloader(
        dict(
            batch_size=4,
            num_workers=0,
            dataset=dict(type="RetrievalFolder", root=str(root), transform=EVAL),
            sampler=dict(type="DefaultSampler", shuffle=True),
            batch_sampler=dict(type="MPerClassBatchSampler", m=2),
            collate_fn=dict(type="default_collate"),
        ),
        seed=0,
    )
    assert isinstance(loader.batch_sampler.sampler, DefaultSampler) and len(loader) == 3
    batches = [batch["label"].tolist() for batch in loader]
    assert all(set(Counter(labels).values()) == {2} for labels in batches)


def test_classes_by_patterns(tmp_path):
    for name in ("dotted red cross", "plain blue cross", "plain blue car"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "0.png")
    above = {name: (name.split()[-1],) for name in ("dotted red cross", "plain blue cross")}
    data = RetrievalFolder(tmp_path, EVAL, classes=("* cross",), ancestors=above)
    assert data.metainfo["classes"] == ("dotted red cross", "plain blue cross")
    assert data.metainfo["ancestors"] == (("cross",),) * 2
    with pytest.raises(HypvisionError, match="matches the class pattern '. ring'"):
        RetrievalFolder(tmp_path, EVAL, classes=("* ring",))
    with pytest.raises(HypvisionError, match="There is no file 'wordnet'"):
        RetrievalFolder(tmp_path, EVAL, ancestors="wordnet")
