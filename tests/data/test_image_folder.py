"""Image folders, list files and CIFAR batches; what they say when something is wrong."""

import hashlib
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
from hypvision.data.image_folder import CIFARDataset, ImageFolderDataset, build_transform
from hypvision.io.errors import HypvisionError

EVAL = dict(input_size=16, crop_pct=1.0)


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", (16, 16), (100 * number, 50 * i, 0)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_folders_become_classes_in_sorted_order(folder):
    data = ImageFolderDataset(folder, EVAL)
    assert data.metainfo["classes"] == ("cat", "dog")
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    sample = data[4]
    assert sample["inputs"].shape == (3, 16, 16) and sample["label"] == 1 and sample["index"] == 4
    assert data.name(4).endswith("dog/1.png")


class Counting(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counting.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("how", ["classes", "folders"])
def test_many_classes_are_not_compared_with_each_other(tmp_path, how):
    """Each with a few, not with all: 100,000 folders took half an hour."""
    names = [Counting(f"{number:03d}") for number in range(200)]
    for name in names:
        (tmp_path / name).mkdir()
        Image.new("RGB", (16, 16)).save(tmp_path / name / "0.png")
    Counting.compared = 0
    options = (
        dict(classes=names[::-1])
        if how == "classes"
        else dict(folders={name: name for name in names})
    )
    data = ImageFolderDataset(tmp_path, EVAL, **options)
    assert data.labels.tolist() == (
        list(range(200))[::-1] if how == "classes" else list(range(200))
    )
    assert Counting.compared < 40 * len(names)


@pytest.mark.parametrize("indices", [64, [], [0.5], [-1], [0, 10_000], "10", [True, False]])
def test_numbers_of_images_are_a_list_of_them(folder, indices):
    with pytest.raises(HypvisionError, match="indices"):
        ImageFolderDataset(folder, EVAL, indices=indices)


def test_cache_and_subset_give_the_same_images(folder):
    plain, cached = (
        ImageFolderDataset(folder, EVAL),
        ImageFolderDataset(folder, EVAL, cache=True, indices=[1, 5]),
    )
    assert len(cached) == 2
    for i, index in enumerate([1, 5]):
        assert (
            torch.equal(cached[i]["inputs"], plain[index]["inputs"])
            and cached[i]["label"] == plain[index]["label"]
        )


def test_list_file(folder):
    listing = folder / "train.txt"
    listing.write_text("dog/2.png 1\n\ncat/0.png 0\n")
    data = ImageFolderDataset(folder, EVAL, ann_file=listing, classes=["cat", "dog"])
    assert data.labels.tolist() == [1, 0] and data.name(0).endswith("dog/2.png")


def test_bad_list_file(folder):
    for content, said in (
        (b"cat/0.png 7", "0 to 1"),
        (b"cat/0.png", "line 1"),
        (b"cat/0.png x", "line 1"),
        (b"", "no images"),
        (
            "chi\xean/0.png 0\n".encode("latin-1"),
            "list.txt', the list of images, is not text in UTF-8",
        ),
    ):
        (folder / "list.txt").write_bytes(content)
        with pytest.raises(HypvisionError, match=said):
            ImageFolderDataset(folder, EVAL, ann_file=folder / "list.txt", classes=["cat", "dog"])


def test_images_of_a_list_file_are_checked_before_the_training(folder):
    """Missing files, files listed twice and classes without images are counted, as in class
    folders."""
    listing = folder / "train.txt"
    listing.write_text("dog/2.png 3\ncat/0.png 0\nnope/0.png 2\n./cat/0.png 0\ncat/9.png 0\n")
    data = ImageFolderDataset(folder, EVAL, ann_file=listing)
    assert data.labels.tolist() == [3, 0] and data.paths == [
        str(folder / "dog/2.png"),
        str(folder / "cat/0.png"),
    ]
    said = str(data.usage)
    assert (
        f"'{listing}': used 2 of 5 files, 2 of 4 classes" in said
        and "2 classes (without images: 1, 2)" in said
    )
    assert (
        f"2 files (missing on disk: {folder}/nope/0.png, line 3, {folder}/cat/9.png, line 5)"
        in said
    )
    assert "1 files (listed twice: ./cat/0.png, lines 2 and 4)" in said
    listing.write_text("cat/0.png 0\n\ndog/0.png 1\ncat/0.png 1\n")
    with pytest.raises(
        HypvisionError, match=r"train.txt' gives 'cat/0.png' the label 0 in line 1 and 1 in line 4"
    ):
        ImageFolderDataset(folder, EVAL, ann_file=listing)
    listing.write_text("a/cat/0.png 0\n")
    with pytest.raises(
        HypvisionError, match=r"None of the 1 images of the list '.*train.txt' exists.*'root'"
    ):
        ImageFolderDataset(folder, EVAL, ann_file=listing)


def test_wrong_layout(folder):
    with pytest.raises(HypvisionError, match=r"nowhere' does not exist.*cat/0001.jpg.*data_root"):
        ImageFolderDataset(folder / "nowhere", EVAL)
    with pytest.raises(HypvisionError, match="no folder for the classes 'cow'"):
        ImageFolderDataset(folder, EVAL, classes=["cat", "cow"])
    with pytest.raises(HypvisionError, match="no sub-folders"):
        ImageFolderDataset(folder, EVAL, classes=[])
    (folder / "empty").mkdir()
    with pytest.raises(HypvisionError, match="class without images.*empty"):
        ImageFolderDataset(folder, EVAL)
    with pytest.raises(HypvisionError, match="no sub-folders"):
        ImageFolderDataset(folder / "empty", EVAL)


def test_a_part_that_lacks_classes_has_the_labels_of_the_whole(tmp_path, folder):
    part = tmp_path / "part"
    shutil.copytree(folder / "dog", part / "dog")
    whole = tmp_path / "whole"
    for name in ("cat", "dog", "eel"):
        shutil.copytree(folder / "cat", whole / name)
    data = ImageFolderDataset(part, EVAL, classes=str(whole))
    assert data.labels.tolist() == [1, 1, 1] and data.metainfo["classes"] == ("cat", "dog", "eel")
    (tmp_path / "list.txt").write_text("dog/0.png 2\n")
    data = ImageFolderDataset(part, EVAL, ann_file=tmp_path / "list.txt", classes=str(whole))
    assert data.labels.tolist() == [2] and len(data.metainfo["classes"]) == 3
    with pytest.raises(HypvisionError, match="none of the 1 classes: .*cat.*eel"):
        ImageFolderDataset(whole, EVAL, classes=str(part))
    with pytest.raises(HypvisionError, match="nowhere' does not exist"):
        ImageFolderDataset(part, EVAL, classes=str(tmp_path / "nowhere"))


def test_corrupt_image_is_named(folder):
    path = folder / "cat" / "0.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(HypvisionError, match=r"cat/0\.png' cannot be read"):
        ImageFolderDataset(folder, EVAL)[0]


def test_transforms():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8))
    strongest = dict(
        input_size=32, is_training=True, pad_crop=4, auto_augment="rand-m10-inc1-n8", re_prob=1.0
    )
    transform = build_transform(strongest)
    for _ in range(20):  # timm's strongest posterise, which Pillow refuses, is among the operations
        assert transform(image).shape == (3, 32, 32)
    with pytest.raises(HypvisionError, match="create_transform does not accept.*sharpness"):
        build_transform(dict(input_size=32, sharpness=2))
    with pytest.raises(HypvisionError, match="is_training"):
        build_transform(dict(input_size=32, pad_crop=4))
    small = dict(
        input_size=32,
        is_training=True,
        pad_crop=0,
        hflip=0.0,
        vflip=1.0,
        color_jitter=None,
        normalize=False,
    )
    assert np.array_equal(build_transform(small)(image).permute(1, 2, 0), np.asarray(image)[::-1])
    large = image.resize(
        (96, 64), Image.Resampling.NEAREST
    )  # its short side becomes 32: a crop has all rows
    square = build_transform({**small, "vflip": 0.0})(large)
    columns = np.asarray(large.resize((48, 32), Image.Resampling.BILINEAR))
    assert any(np.array_equal(square.permute(1, 2, 0), columns[:, x : x + 32]) for x in range(17))
    white = Image.new("RGB", (32, 32), "white")
    for mode, darkest in dict(reflect={255}, constant={0, 255}).items():
        padded = build_transform({**small, "pad_crop": 4, "pad_mode": mode})
        assert set(torch.cat([padded(white).flatten() for _ in range(20)]).tolist()) == darkest
    with pytest.raises(
        HypvisionError, match="pad_mode must be one of 'reflect', 'constant', got 'zeros'"
    ):
        build_transform({**small, "pad_mode": "zeros"})
    with pytest.raises(HypvisionError, match="does not accept.*pad_mode"):
        build_transform(dict(input_size=32, is_training=True, pad_mode="constant"))
    for key, value in dict(scale=(0.5, 1.0), ratio=(1.0, 1.0), train_crop_mode="rkrc").items():
        with pytest.raises(
            HypvisionError,
            match=f"'{key}', which shape .* 'pad_crop' replaces that crop. Leave out",
        ):
            build_transform({**small, key: value})


def test_cifar_says_where_to_get_it(tmp_path):
    with pytest.raises(
        HypvisionError, match=r"cifar-10-batches-py' does not exist.*cifar-10-python.tar.gz"
    ):
        CIFARDataset(tmp_path, EVAL)
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(HypvisionError, match="not complete"):
        CIFARDataset(tmp_path, EVAL, name="cifar100")
    with pytest.raises(HypvisionError, match="'cifar10', 'cifar100', got 'svhn'"):
        CIFARDataset(tmp_path, EVAL, name="svhn")


def test_cifar_batches(tmp_path, monkeypatch):
    from torchvision.datasets import CIFAR10

    place = tmp_path / CIFAR10.base_folder
    place.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (4, 3072), dtype=np.uint8)
    content = pickle.dumps(dict(data=pixels, labels=[3, 1, 0, 2]))
    (place / "test_batch").write_bytes(content)
    names = pickle.dumps(dict(label_names=["a", "b", "c", "d"]))
    (place / "batches.meta").write_bytes(names)
    digest = lambda data: hashlib.md5(data).hexdigest()  # noqa: E731
    monkeypatch.setattr(CIFAR10, "train_list", [])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", digest(content)]])
    monkeypatch.setattr(
        CIFAR10, "meta", dict(filename="batches.meta", key="label_names", md5=digest(names))
    )
    data = CIFARDataset(tmp_path, EVAL, train=False, indices=[2, 0])
    assert data.labels.tolist() == [0, 3] and data.metainfo["classes"] == ("a", "b", "c", "d")
    expected = pixels[2].reshape(3, 32, 32).transpose(1, 2, 0)
    assert np.array_equal(np.asarray(data.read(0)), expected) and data.name(0).endswith("#2")
    with pytest.raises(HypvisionError, match="indices"):
        CIFARDataset(tmp_path, EVAL, train=False, indices=[2, 4])


def test_folders_of_other_names_than_the_classes(tmp_path):
    """As photos of shops under the words of a network of ImageNet."""
    for name in ("Red-Pepper", "Green-Pepper", "Zucchini", "Milk"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a.png")
    folders = {
        "Red-Pepper": "bell pepper",
        "Green-Pepper": "bell pepper",
        "Zucchini": "zucchini, courgette",
    }
    data = ImageFolderDataset(
        str(tmp_path), dict(input_size=8), classes="imagenet", folders=folders
    )
    labels = {Path(path).parent.name: int(label) for path, label in zip(data.paths, data.labels)}
    assert labels == {
        "Red-Pepper": 945,
        "Green-Pepper": 945,
        "Zucchini": 939,
    }  # ILSVRC's own numbers
    names = data.metainfo["classes"]
    assert len(set(names)) == 1000 and names[134] == "crane" and names[517] == "crane (n03126707)"
    assert "none of the classes: Milk" in str(data.usage)
    with pytest.raises(
        HypvisionError, match="'bell peper', which is none.*Did you mean bell pepper"
    ):
        ImageFolderDataset(
            str(tmp_path),
            dict(input_size=8),
            classes="imagenet",
            folders={"Zucchini": "bell peper"},
        )
    with pytest.raises(
        HypvisionError, match="no folder for the classes 'Leek'.*Found: 'Green-Pepper'"
    ):
        ImageFolderDataset(str(tmp_path), dict(input_size=8), folders={"Leek": "leek"})
    (tmp_path / "list.txt").write_text("Milk/a.png 0\n")
    with pytest.raises(HypvisionError, match="'folders' and 'ann_file'.*Leave out the other"):
        ImageFolderDataset(
            str(tmp_path), dict(input_size=8), str(tmp_path / "list.txt"), folders=folders
        )
