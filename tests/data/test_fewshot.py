"""The few-shot benchmark's data: 15 layouts, official shots, base and new classes, pickles that run
no code."""

import json
import pickle
import random
import shutil
import sys
import types
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cases import each
from helpers.fewshot_layouts import NAMES, SPLIT_SETS, aircraft, coop, folders, imagenet

from hypvision.data.fewshot import (
    LAYOUTS,
    FewShotDataset,
    Item,
    Split,
    draw_shots,
    load_split,
    take_subset,
)
from hypvision.data.fewshot.dataset import load_cell
from hypvision.data.fewshot.layouts import CROSS, DOMAINS, SETS, layout_of
from hypvision.data.fewshot.pickles import read_pickled_shots
from hypvision.data.fewshot.splits import class_names, write_split
from hypvision.io.errors import HypvisionError


def test_the_table_is_the_benchmarks():
    assert len(LAYOUTS) == 15 and len(SETS) == 11 and len(CROSS) == 10 and len(DOMAINS) == 4
    assert [LAYOUTS[name].classes for name in SETS] == [
        1000,
        100,
        37,
        196,
        102,
        101,
        100,
        397,
        47,
        10,
        101,
    ]
    assert LAYOUTS["food101"].template == "a photo of {}, a type of food."
    assert all(layout.template.count("{}") == 1 for layout in LAYOUTS.values())


@each("name", SPLIT_SETS)
def test_split_files(name, tmp_path):
    split = load_split(name, coop(tmp_path, name))
    assert [len(part) for part in split] == [30, 15, 10] and class_names(split.train) == NAMES
    assert all(Path(item.path).is_file() for part in split for item in part)


def test_imagenet_and_its_variants(tmp_path):
    for name in ("imagenet", *DOMAINS):
        imagenet(tmp_path, name)
    split = load_split("imagenet", tmp_path)
    assert [len(part) for part in split] == [15, 10, 10] and split.val == split.test
    assert class_names(split.train) == ["great apple", "bird", "cup", "dice", "elk"]
    for name in ("imagenetv2", "imagenet_sketch"):
        split = load_split(name, tmp_path)
        assert class_names(split.test)[0] == "great apple" and len(split.test) == 10
    for name in ("imagenet_a", "imagenet_r"):  # numbered among their own classes
        split = load_split(name, tmp_path)
        assert class_names(split.test) == ["bird", "cup", "dice"]
        assert {i.label for i in split.test} == {0, 1, 2}
    drawn = draw_shots(
        load_split("imagenet", tmp_path), 1, 1, layout_of("imagenet", tmp_path).val_is_drawn
    )
    assert len(drawn.train) == 5 and len(drawn.val) == 10
    gone = next((tmp_path / "imagenet/images/val").iterdir())
    gone.rename(tmp_path / gone.name)
    with pytest.raises(
        HypvisionError, match=rf"val' has no images of '{gone.name}' .*, the other part has some"
    ):
        load_split("imagenet", tmp_path)
    (tmp_path / gone.name).rename(gone)
    (tmp_path / "imagenet/classnames.txt").unlink()
    told = pytest.warns(
        UserWarning, match=r"no '.*classnames.txt', the benchmark's list of class names"
    )
    with (
        told,
        pytest.raises(
            HypvisionError, match="has a folder 'n00000001', which the class names do not list"
        ),
    ):
        load_split("imagenet", tmp_path)
    for part in ("train", "val"):
        (tmp_path / "imagenet/images" / part).rename(tmp_path / f"old {part}")
        folders(tmp_path, f"imagenet/images/{part}", ["n01443537", "n01440764"], 1)
    with pytest.warns(UserWarning, match="open_clip's names are used instead"):
        assert class_names(load_split("imagenet", tmp_path).train) == ["tench", "goldfish"]


def test_aircraft(tmp_path):
    split = load_split("fgvc_aircraft", aircraft(tmp_path))
    assert class_names(split.train) == ["707-320", "A380", "Cessna 172"]
    assert [len(p) for p in split] == [6, 6, 6]


def test_splits_drawn_from_folders(tmp_path):
    """Sizes and names by the benchmark's rule; the second time the same, from the file that was
    written."""
    folders(
        tmp_path,
        "caltech-101/101_ObjectCategories",
        ["BACKGROUND_Google", "Faces", "Faces_easy", "Motorbikes", "ant"],
    )
    folders(tmp_path, "eurosat/2750", ["AnnualCrop", "SeaLake"])
    split = load_split("caltech101", tmp_path)
    assert class_names(split.train) == ["face", "motorbike", "ant"]
    assert [len(part) for part in split] == [15, 6, 9]
    assert len({item.path for part in split for item in part}) == 30
    assert load_split("caltech101", tmp_path) == split
    assert (tmp_path / "caltech-101/split_drawn_Caltech101.json").is_file()
    assert class_names(load_split("eurosat", tmp_path).train) == ["Annual Crop Land", "Sea or Lake"]
    folders(tmp_path, "eurosat/2750", ["River"])  # the file does not know it
    with pytest.raises(
        HypvisionError, match="'River' only here.*split_drawn_EuroSAT.json.*or remove the file"
    ):
        load_split("eurosat", tmp_path)
    (tmp_path / "eurosat/split_drawn_EuroSAT.json").unlink()
    assert class_names(load_split("eurosat", tmp_path).train) == [
        "Annual Crop Land",
        "River",
        "Sea or Lake",
    ]


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")


def test_splits_of_lists_by_their_authors(tmp_path):
    """A fifth of the training images is for validation, the test images are the official ones."""
    rows = [
        f"{breed}_{i} {label} 1 1"
        for label, breed in ((1, "Abyssinian"), (2, "great_Pug"))
        for i in range(10)
    ]
    lines(tmp_path / "oxford_pets/annotations/trainval.txt", ["# a comment", *rows])
    lines(tmp_path / "oxford_pets/annotations/test.txt", ["great_Pug_77 2 1 1"])
    split = load_split("oxford_pets", tmp_path)
    assert class_names(split.train) == ["abyssinian", "great_pug"]
    assert [len(part) for part in split] == [16, 4, 1]
    assert split.test == [
        Item(str(tmp_path / "oxford_pets/images/great_Pug_77.jpg"), 1, "great_pug")
    ]
    assert load_split("oxford_pets", tmp_path) == split  # from the file that was written

    folder = tmp_path / "sun397"
    lines(folder / "ClassName.txt", ["/a/abbey", "/c/church/indoor"])
    lines(
        folder / "Training_01.txt",
        [f"/c/church/indoor/{i}.jpg" for i in range(5)] + ["/a/abbey/1.jpg"],
    )
    lines(folder / "Testing_01.txt", ["/a/abbey/2.jpg"])
    split = load_split("sun397", tmp_path)
    assert class_names(split.train) == ["abbey", "indoor church"]
    assert [len(part) for part in split] == [5, 1, 1]
    assert split.test[0].path == str(folder / "SUN397/a/abbey/2.jpg")

    folder = tmp_path / "ucf101/ucfTrainTestlist"
    lines(folder / "classInd.txt", ["1 ApplyEyeMakeup", "2 TaiChi"])
    videos = [
        f"{name}/v_{name}_g0{i}.avi {n}"
        for n, name in ((1, "ApplyEyeMakeup"), (2, "TaiChi"))
        for i in range(5)
    ]
    lines(folder / "trainlist01.txt", videos)
    lines(folder / "testlist01.txt", ["TaiChi/v_TaiChi_g09.avi"])
    split = load_split("ucf101", tmp_path)
    assert class_names(split.train) == ["Apply_Eye_Makeup", "Tai_Chi"]
    assert [len(part) for part in split] == [8, 2, 1]
    assert split.test[0].path.endswith("ucf101/UCF-101-midframes/Tai_Chi/v_TaiChi_g09.jpg")
    (tmp_path / "ucf101/split_drawn_UCF101.json").unlink()
    lines(folder / "testlist01.txt", ["TaiCho/v.avi"])
    with pytest.raises(HypvisionError, match="'TaiCho/v.avi' of a class that classInd.txt lacks"):
        load_split("ucf101", tmp_path)


def test_splits_of_matlab_files(tmp_path):
    io = pytest.importorskip("scipy.io")
    folder = tmp_path / "oxford_flowers"
    folder.mkdir()
    labels = np.array([[2] * 10 + [1] * 20], dtype=np.uint8)
    io.savemat(folder / "imagelabels.mat", {"labels": labels})
    (folder / "cat_to_name.json").write_text('{"1": "pink primrose", "2": "sword lily"}')
    split = load_split("oxford_flowers", tmp_path)
    assert class_names(split.train) == ["pink primrose", "sword lily"]
    assert [len(part) for part in split] == [15, 6, 9]
    assert all(
        (int(Path(i.path).stem[-5:]) <= 10) == (i.label == 1) for part in split for i in part
    )

    folder = tmp_path / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    names = np.array([["Audi TT Coupe 2012", "smart fortwo 2012"]], dtype=object)
    io.savemat(folder / "devkit/cars_meta.mat", {"class_names": names})
    fields = [("fname", object), ("class", object)]
    for file, count in (("devkit/cars_train_annos.mat", 10), ("cars_test_annos_withlabels.mat", 3)):
        rows = np.array([[(f"{i:05}.jpg", 1 + i % 2) for i in range(count)]], dtype=fields)
        io.savemat(folder / file, {"annotations": rows})
    split = load_split("stanford_cars", tmp_path)
    assert class_names(split.train) == ["2012 Audi TT Coupe", "2012 smart fortwo"]
    assert [len(part) for part in split] == [8, 2, 3]
    assert split.test[1] == Item(str(folder / "cars_test/00001.jpg"), 1, "2012 smart fortwo")
    (folder / "split_drawn_StanfordCars.json").unlink()
    (folder / "devkit/cars_meta.mat").write_bytes(b"no Matlab file")
    with pytest.raises(HypvisionError, match="cars_meta.mat' cannot be read"):
        load_split("stanford_cars", tmp_path)


def test_data_of_ones_own(tmp_path):
    for part in ("train", "test"):
        folders(tmp_path, f"mine/{part}", ["c1", "c2", "big_dog"], 2)
    (tmp_path / "mine/classnames.txt").write_text("c2 red car\nc1 tree\n")
    (tmp_path / "mine/template.txt").write_text("a drawing of a {}.\n")
    split = load_split("mine", tmp_path)
    assert class_names(split.train) == ["red car", "tree", "big dog"] and not split.val
    assert layout_of("mine", tmp_path).template == "a drawing of a {}."
    coop(tmp_path, "other", classes=2)
    assert class_names(load_split("other", tmp_path).train) == NAMES[:2]


# Shots
# --------------------------------------------------------------------------------------------------


def official_shots(train, val, shots, seed, repeat=False):
    """The official rule, on Python's own generator; ``repeat`` is Tip-Adapter's."""
    random.seed(seed)

    def draw(items, count, repeat=False):
        tracker = defaultdict(list)
        for item in items:
            tracker[item.label].append(item)
        found = []
        for own in tracker.values():
            if len(own) >= count:
                found.extend(random.sample(own, count))
            else:
                found.extend(random.choices(own, k=count) if repeat else own)
        return found

    return draw(train, shots, repeat), draw(val, min(shots, 4))


@pytest.mark.parametrize("shuffled", [False, True])
def test_official_shots(shuffled):
    sizes = [3, 20, 17, 1, 40, 16, 9, 8, 25, 30, 5]  # 11 classes, some with fewer images than shots
    items = [
        Item(f"{label}/{i}.jpg", label, str(label))
        for label, size in enumerate(sizes)
        for i in range(size)
    ]
    val = [
        Item(f"v{label}/{i}.jpg", label, str(label))
        for label in range(11)
        for i in range(label % 6)
    ]
    if shuffled:
        random.Random(7).shuffle(items)
    split, seen = Split(items, val, []), set()
    for seed in (1, 2, 3):
        for shots in (1, 2, 4, 8, 16):
            found = draw_shots(split, shots, seed)
            assert (found.train, found.val) == official_shots(items, val, shots, seed)
            assert len(found.train) == sum(min(size, shots) for size in sizes)
            seen.add(tuple(item.path for item in found.train))
            found = draw_shots(split, shots, seed, repeat=True)
            assert (found.train, found.val) == official_shots(items, val, shots, seed, repeat=True)
            assert Counter(item.label for item in found.train) == dict.fromkeys(range(11), shots)
    assert len(seen) == 15
    first = [
        item.path
        for item in draw_shots(Split([i for i in items if i.label == 1], [], []), 2, 1).train
    ]
    if (
        not shuffled
    ):  # a number of the generator itself: random.seed(1); random.sample(range(20), 2) is [4, 18]
        assert first == ["1/4.jpg", "1/18.jpg"]
    with pytest.raises(HypvisionError, match="shots must be an integer of at least 1"):
        draw_shots(split, 0, 1)


@pytest.mark.parametrize("classes, base", [(37, 19), (10, 5)])
def test_base_and_new(classes, base):
    items = [Item(str(label), label, f"c{label}") for label in reversed(range(classes))]
    split = Split(items, items, items)
    first, second = take_subset(split, "base"), take_subset(split, "new")
    assert sorted(i.label for i in first.train) == list(range(base))
    assert class_names(first.train)[0] == "c0"
    assert sorted(i.label for i in second.test) == list(range(classes - base))
    assert class_names(second.test)[0] == f"c{base}"
    with pytest.raises(HypvisionError, match="no 'new' classes"):
        take_subset(Split(items[:1], [], []), "new")
    with pytest.raises(HypvisionError, match="subset must be one of 'all', 'base', 'new'"):
        take_subset(split, "old")


def test_base_and_all_see_the_same_shots(tmp_path):
    coop(tmp_path)
    every = load_cell(tmp_path, "caltech101", 2, 1).train
    base = load_cell(tmp_path, "caltech101", 2, 1, "base").train
    assert {i.path for i in base} == {i.path for i in every if i.label < 3} and len(base) == 6
    assert load_cell(tmp_path, "caltech101", 2, 2).train != every


# Pickles
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A pickle of the official record, made by a class of its name."""
    name = "dassl.data.datasets.base_dataset"
    module = types.ModuleType(name)

    class Datum:
        def __init__(self, impath, label, classname):
            self._impath, self._label, self._domain, self._classname = impath, label, 0, classname

    Datum.__module__, Datum.__qualname__ = name, "Datum"
    module.Datum = Datum
    for part in ("dassl", "dassl.data", "dassl.data.datasets"):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setitem(sys.modules, name, module)

    def write(rows, protocol=pickle.HIGHEST_PROTOCOL):
        path = tmp_path / "shot_1-seed_1.pkl"
        content = {part: [Datum(*row) for row in own] for part, own in rows.items()}
        path.write_bytes(pickle.dumps(content, protocol))
        return path

    return write


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_official_pickles(official, protocol, tmp_path):
    root = "/data/someone/caltech-101/101_ObjectCategories"
    path = official({"train": [(f"{root}/ant/7.jpg", 1, "ant")], "val": []}, protocol)
    found = read_pickled_shots(path, "101_ObjectCategories", "here")
    assert found == {"train": [Item("here/ant/7.jpg", 1, "ant")], "val": []}


def test_a_cell_from_official_pickles(official, tmp_path):
    coop(tmp_path)
    path = official({"train": [("/x/101_ObjectCategories/cup/train1.png", 2, "cup"),
                               ("/x/101_ObjectCategories/elk/train0.png", 4, "elk")],
                               "val": []})  # fmt: skip
    split = load_cell(tmp_path, "caltech101", 1, 1, pickles=str(path.parent))
    assert [i.name for i in split.train] == ["cup", "elk"] and Path(split.train[0].path).is_file()
    elsewhere = ("of/caltech101", f"{tmp_path}/of/{{dataset}}")
    for name, pickles in (("caltech-101/split_fewshot", "split_fewshot"), elsewhere):
        (tmp_path / name).mkdir(parents=True)
        path = path.rename(tmp_path / name / path.name)
        assert load_cell(tmp_path, "caltech101", 1, 1, pickles=pickles) == split
    with pytest.raises(
        HypvisionError, match="caltech-101/split_fewshot/shot_1-seed_1.pkl' cannot be read"
    ):
        load_cell(tmp_path, "caltech101", 1, 1, pickles="split_fewshot")


def test_pickles_run_no_code(official, tmp_path):
    path, mark = tmp_path / "evil.pkl", tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return Path.touch, (mark,)

    for content in ({"train": [Evil()]}, Evil(), {"train": [types.SimpleNamespace(_impath="a")]}):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(HypvisionError, match="were not read: it asks for") as caught:
            read_pickled_shots(path, "images", ".")
        assert "\n" not in str(caught.value) and not mark.exists()
    for content in (b"", b"\x80\x04", b"garbage", pickle.dumps([1]), pickle.dumps({"train": [1]})):
        path.write_bytes(content)
        with pytest.raises(HypvisionError, match="not what the official code saves|cannot be read"):
            read_pickled_shots(path, "images", ".")
    out = official({"train": [("/x/images/../../etc/passwd", 0, "a")]})
    with pytest.raises(HypvisionError, match="leads out"):
        read_pickled_shots(out, "images", ".")
    with pytest.raises(HypvisionError, match="cannot be read: No such file"):
        read_pickled_shots(tmp_path / "none.pkl", "images", ".")
    path.write_bytes(b"\x80\x02K\x01r\xff\xff\xff\x0f.")  # room for 2^28 objects: gigabytes
    with pytest.raises(HypvisionError, match="remembers more objects"):
        read_pickled_shots(path, "images", ".")


# The data set
# --------------------------------------------------------------------------------------------------


def test_samples(tmp_path):
    coop(tmp_path)
    data = FewShotDataset(str(tmp_path), "caltech101", shots=2, subset="new", size=32)
    assert len(data) == 4
    assert data.metainfo["classes"] == ("dice", "elk")
    assert data.metainfo["template"] == "a photo of a {}."
    sample = data[3]
    assert sample["inputs"].shape == (3, 32, 32)
    assert sample["inputs"].dtype == torch.uint8
    assert sample["label"] == 1
    assert not torch.equal(data[0]["inputs"], data[0]["inputs"])  # augmented
    test = FewShotDataset(str(tmp_path), "caltech101", part="test", size=32)
    assert len(test) == 10 and torch.equal(test[0]["inputs"], test[0]["inputs"])


def test_broken_images_are_named_and_left_out_on_request(tmp_path):
    coop(tmp_path)
    bad = tmp_path / "caltech-101/101_ObjectCategories/bird/test1.png"
    bad.write_bytes(b"no image")
    data = FewShotDataset(str(tmp_path), "caltech101", part="test")
    with pytest.raises(HypvisionError, match=r"bird/test1.png' cannot be read.*--skip-broken"):
        [data[i] for i in range(len(data))]
    with pytest.warns(UserWarning, match="Left out.*bird/test1.png"):
        data = FewShotDataset(str(tmp_path), "caltech101", part="test", skip_broken=True)
    assert "9 of 10 files. Left out: 1 files (cannot be read" in str(data.usage)
    assert len(data) == 9 and [data[i]["label"] for i in range(9)].count(1) == 1


def _as_folders(root, train, test):
    for part, names in (("train", train), ("test", test)):
        folders(root, f"mine/{part}", names, 1)


def _as_split_file(root, train, test):
    names = list(dict.fromkeys([*train, *test]))
    rows = {
        part: [[f"{name}.png", names.index(name), name] for name in own]
        for part, own in (("train", train), ("test", test))
    }
    (root / "mine").mkdir()
    (root / "mine/split.json").write_text(json.dumps(rows))


@pytest.mark.parametrize("write", [_as_folders, _as_split_file])
def test_a_class_with_another_name_in_the_test_data(tmp_path, write):
    """Both lists are shown, and which two names may mean the same."""
    write(tmp_path, ["apple", "banana", "cherry"], ["apple", "Banana", "cherry"])
    said = "'Banana' only here.*: 3 classes, 'banana' only there. 'Banana' is called 'banana' there"
    with pytest.raises(HypvisionError, match=f"test.*: 3 classes, {said}.*call it the same in all"):
        load_split("mine", tmp_path)


@each("part", ["train", "test", "val"])
def test_class_folders_one_folder_too_deep(tmp_path, part):
    _as_folders(tmp_path, NAMES[:3], NAMES[:3])
    place = tmp_path / "mine" / part
    shutil.copytree(tmp_path / "mine/train", tmp_path / "copy")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(tmp_path / "copy", place / "data")
    with pytest.raises(
        HypvisionError,
        match=rf"one class 'data'.*one folder deeper. Move what is in '{place}/data' up",
    ):
        load_split("mine", tmp_path)


def row(path, label=0, name="b"):
    return [path, label, name]


SPLITS = {  # what a split file holds, and what the error mentions
    "": "cannot be read as JSON",
    "[]": "of another form",
    '{"train": [["a"]]}': "of another form",
    '{"train": [["a", "x", "b"]]}': "of another form",
    json.dumps(dict(train=[row("a")], val=[], test=[])): "'test'",
    json.dumps(
        dict(train=[row("a")], val=[row("c", 2, "d")], test=[row("b"), row("e", 1, "f")])
    ): "'f' only here.*training images of 'f'",
    json.dumps(dict(train=[row("a")], val=[], test=[row("b"), row("e", 1)])): "'b'.*'.*/e'",
}


def test_mistakes_in_split_files_are_explained(tmp_path):
    (tmp_path / "sun397").mkdir()
    with pytest.raises(HypvisionError, match="split_zhou_SUN397.json.*ClassName.txt"):
        load_split("sun397", tmp_path)
    for content, mentioned in SPLITS.items():
        (tmp_path / "sun397/split_zhou_SUN397.json").write_text(content)
        with pytest.raises(HypvisionError, match=mentioned) as caught:
            load_split("sun397", tmp_path)
        assert "\n" not in str(caught.value)
    content = json.dumps(dict(train=[row("a")], val=[], test=[row("b")]))
    (tmp_path / "sun397/split_zhou_SUN397.json").write_text(content)
    data = FewShotDataset(str(tmp_path), "sun397", part="test")
    with pytest.raises(HypvisionError, match=f"'{data.paths[0]}'.*--skip-broken"):
        data[0]


def test_mistakes_in_folders_are_explained(tmp_path):
    def fails(mentioned, name):
        with pytest.raises(HypvisionError, match=mentioned) as caught:
            load_split(name, tmp_path)
        assert "\n" not in str(caught.value)

    fails("imagenet, caltech101", "flowers")
    fails("'dtd'.*'.*/dtd'.*--root", "dtd")
    (tmp_path / "mine").mkdir()
    fails("split.json", "mine")
    folders(tmp_path, "mine/train", ["a"], 1)
    folders(tmp_path, "mine/test", ["a", "b"], 1)
    fails("'b' only here.*training images of 'b'", "mine")
    (tmp_path / "mine/train/b").mkdir()
    fails("class without images: 'b'", "mine")
    with pytest.raises(HypvisionError, match="part must be one of 'train', 'val', 'test'"):
        FewShotDataset(str(tmp_path), "mine", part="training")


def test_splits_are_written_as_they_are_read(tmp_path):
    coop(tmp_path)
    split = load_split("caltech101", tmp_path)
    write_split(tmp_path / "again.json", split, tmp_path / "caltech-101/101_ObjectCategories")
    found = json.loads((tmp_path / "again.json").read_text())
    assert found["val"][0] == ["apple/val0.png", 0, "apple"]
