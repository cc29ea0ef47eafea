"""The procedural scenes and their three layouts on disk."""

import errno
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO
from torchvision.datasets import ImageFolder

from hypvision.data import TAXONOMY
from hypvision.data import export as export_module
from hypvision.data.export import export, run_length
from hypvision.data.shapes import make_scene
from hypvision.errors import HypvisionError


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(32, 120), st.integers(32, 120), st.sampled_from(["train", "val", "test"]))
def test_scenes_are_consistent_and_deterministic(index, height, width, split):
    scene, again = make_scene(index, split, (height, width)), make_scene(index, split, (height, width))
    assert np.array_equal(np.array(scene.image), np.array(again.image)) and scene.captions == again.captions
    assert scene.image.size == (width, height) and 1 <= len(scene.objects) <= 5
    assert scene.masks.sum(0).max() <= 1
    for item, mask in zip(scene.objects, scene.masks):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert item.box == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert item.area == mask.sum() > 0
    kinds, shapes = {item.kind for item in scene.objects}, {item.shape for item in scene.objects}
    for level, words, present in ((1, TAXONOMY.classes["kind"], kinds), (2, TAXONOMY.classes["shape"], shapes)):
        assert any(word in scene.captions[level] for word in words if word in present)
        assert not any(word in scene.contradictions[level].split() for word in present)


def test_run_length_of_known_masks():
    assert run_length(np.zeros((2, 3), bool))["counts"] == [6]
    assert run_length(np.array([[1, 0], [1, 0]], bool))["counts"] == [0, 2, 2]
    assert run_length(np.array([[0, 1], [1, 0]], bool))["counts"] == [1, 2, 1]


def test_imagefolder(tmp_path):
    root = export(tmp_path / "data", "imagefolder", 32, 16, 40)
    data = ImageFolder(root / "train")
    assert tuple(data.classes) == TAXONOMY.classes["shape"] and len(data) == 32
    assert data[0][0].size == (40, 40)


@pytest.mark.parametrize("level", ["kind", "shape"])
def test_ade_labels(tmp_path, level):
    root = export(tmp_path / "data", "ade", 3, 2, (40, 56), level=level)
    for i in range(3):
        labels = np.array(Image.open(root / "annotations/training" / f"{i:06d}.png"))
        scene = make_scene(i, "train", (40, 56))
        assert labels.shape == (40, 56) and labels.min() == 1
        assert set(np.unique(labels)) == {1, *(scene.labels(level) + 2)}


def test_coco_masks_decode_to_the_scene(tmp_path):
    root = export(tmp_path / "data", "coco", 3, 2, 64)
    truth = COCO(str(root / "annotations/instances_train2017.json"))
    for i in range(3):
        scene = make_scene(i, "train", 64)
        items = truth.loadAnns(truth.getAnnIds(imgIds=[i]))
        assert len(items) == len(scene.objects)
        for item, mask, thing in zip(items, scene.masks, scene.objects):
            assert np.array_equal(truth.annToMask(item).astype(bool), mask)
            assert item["area"] == mask.sum()
            category = truth.loadCats([item["category_id"]])[0]
            assert (category["name"], category["supercategory"]) == (thing.shape, thing.kind)
    captions = json.loads((root / "annotations/captions_val2017.json").read_text())["annotations"]
    assert [c["level"] for c in captions] == [0, 1, 2, 3] * 2


def test_the_same_export_again_does_nothing_and_others_are_refused(tmp_path):
    root = export(tmp_path / "data", "imagefolder", 16, 16, 32)
    before = (root / "dataset.json").stat().st_mtime_ns
    export(tmp_path / "data", "imagefolder", 16, 16, 32)
    assert (root / "dataset.json").stat().st_mtime_ns == before
    with pytest.raises(HypvisionError, match="train.*--overwrite"):
        export(tmp_path / "data", "imagefolder", 32, 16, 32)
    export(tmp_path / "data", "imagefolder", 32, 16, 32, overwrite=True)
    assert len(ImageFolder(root / "train")) == 32
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(HypvisionError, match="not a data set"):
        export(tmp_path / "mine", "ade", overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_what_breaks_off_leaves_nothing(tmp_path, monkeypatch, error):
    def broken(root, *_):
        (root / "half").write_text("x")
        raise error

    monkeypatch.setitem(export_module.LAYOUTS, "ade", broken)
    with pytest.raises(HypvisionError if isinstance(error, OSError) else KeyboardInterrupt):
        export(tmp_path / "data", "ade", 2, 2, 32)
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments(tmp_path):
    with pytest.raises(HypvisionError, match="layout"):
        export(tmp_path / "data", "voc")
    with pytest.raises(HypvisionError):
        export(tmp_path / "data", "ade", train=-1)
    assert list(tmp_path.iterdir()) == []
