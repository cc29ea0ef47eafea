"""The procedural scenes in their three layouts on disk, and scenes of emoji in two."""

import errno
import json

import numpy as np
import pytest
from helpers.emoji import make_emoji
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO
from torchvision.datasets import ImageFolder

from hypvision.cli import main
from hypvision.data import TAXONOMY
from hypvision.data import export as export_module
from hypvision.data.emoji_export import export_emoji
from hypvision.data.export import export
from hypvision.data.masks import run_length
from hypvision.data.shapes import make_scene
from hypvision.io.errors import HypvisionError


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(32, 120),
    st.integers(32, 120),
    st.sampled_from(["train", "val", "test"]),
)
def test_scenes_are_consistent_and_deterministic(index, height, width, split):
    scene, again = (
        make_scene(index, split, (height, width)),
        make_scene(index, split, (height, width)),
    )
    assert (
        np.array_equal(np.array(scene.image), np.array(again.image))
        and scene.captions == again.captions
    )
    assert scene.image.size == (width, height) and 1 <= len(scene.objects) <= 5
    assert scene.masks.sum(0).max() <= 1
    for item, mask in zip(scene.objects, scene.masks):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert item.box == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert item.area == mask.sum() > 0
    kinds, shapes = {item.kind for item in scene.objects}, {item.shape for item in scene.objects}
    for level, words, present in (
        (1, TAXONOMY.classes["kind"], kinds),
        (2, TAXONOMY.classes["shape"], shapes),
    ):
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


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]
)
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


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Coloured emoji, and grey photos of another shade for each split."""
    pytest.importorskip("mmengine")
    folder = tmp_path_factory.mktemp("sources")
    for split, shade in (("train", 60), ("test", 120)):
        (folder / "photos" / split).mkdir(parents=True)
        Image.new("RGB", (70, 60), (shade,) * 3).save(folder / "photos" / split / "grey.png")
    return dict(emoji=make_emoji(folder / "emoji", styles=("noto",)), photos=folder / "photos")


def _scenes(sources, split, length, **options):
    from hypvision.data.emoji_scenes import EmojiScenes

    photos = sources["photos"] / {"train": "train", "val": "test"}[split]
    return EmojiScenes(
        sources["emoji"], photos, split, length=length, augmented=split == "train", **options
    )


@pytest.mark.parametrize(
    ("level", "field"), [("group", "group"), ("class", "classname"), ("name", "name")]
)
def test_label_maps_of_emoji(tmp_path, sources, level, field):
    root = export_emoji(tmp_path / "data", **sources, train=2, val=3, size=64, level=level)
    classes = (root / "classes.txt").read_text().splitlines()
    known = [
        getattr(item, field)
        for split in ("train", "val")
        for item in _scenes(sources, split, 1).emoji
    ]
    assert classes[0] == "photo" and sorted(classes[1:]) == sorted(set(known))
    for split, length, shade in (("train", 2, 60), ("val", 3, 120)):
        data = _scenes(sources, split, length, size=64)
        for i in range(length):
            labels = np.array(Image.open(root / split / "masks" / f"{i:06d}.png"))
            seen = np.full((64, 64), "photo", dtype=object)
            for placed in data.scene(i).objects:
                seen[placed.mask] = getattr(data.emoji[placed.emoji], field)
            assert np.array_equal(np.array(classes, dtype=object)[labels], seen)
            image = np.array(Image.open(root / split / "images" / f"{i:06d}.jpg")).astype(int)
            assert abs(image - data.scene(i).image).mean() < 8  # JPEG changes colours a little
            far = abs(image - shade).max(-1) > 60  # what can only be an emoji
            assert far.any() and (labels[far] > 0).mean() > 0.99
        assert len(list((root / split / "images").iterdir())) == length


def test_validation_scenes_of_known_emoji_and_of_another_style(tmp_path, sources):
    from hypvision.data.emoji import read_emoji

    emoji = make_emoji(tmp_path / "emoji", styles=("twemoji",))
    photos, few = sources["photos"], dict(train=1, val=8, size=64, level="name", val_emoji="train")
    root = export_emoji(tmp_path / "data", emoji, photos, styles=("twemoji",), **few)
    known = {item.name for item in read_emoji(emoji, "train")[0]}
    classes = np.array((root / "classes.txt").read_text().splitlines())
    shown = {
        name
        for path in (root / "val/masks").iterdir()
        for name in classes[np.unique(Image.open(path))]
    }
    assert shown - {"photo"} <= known and len(shown) > 2
    with pytest.raises(HypvisionError, match=r"No style of \['noto'\]"):
        export_emoji(tmp_path / "none", emoji, photos, **few)


def test_classes_of_emoji_come_in_the_order_of_their_labels(tmp_path, sources):
    root = export_emoji(tmp_path / "data", **sources, train=1, val=1, size=48, level="class")
    data = _scenes(sources, "train", 1)
    shown = {
        item.classname for split in ("train", "val") for item in _scenes(sources, split, 1).emoji
    }
    assert (root / "classes.txt").read_text().splitlines()[1:] == [
        n for n in data.metainfo["classes"] if n in shown
    ]


def test_boxes_of_emoji(tmp_path, sources):
    root = export_emoji(tmp_path / "data", **sources, layout="coco", train=1, val=4, size=96)
    truth, data = COCO(str(root / "annotations/instances_val2017.json")), _scenes(sources, "val", 4)
    for i in range(4):
        items, objects = truth.loadAnns(truth.getAnnIds(imgIds=[i])), data.scene(i).objects
        assert len(items) == len(objects) >= 2
        for item, placed in zip(items, objects):
            mask = truth.annToMask(item).astype(bool)
            assert np.array_equal(mask, placed.mask) and item["area"] == mask.sum()
            rows, columns = np.nonzero(mask)
            left, top = columns.min(), rows.min()
            assert item["bbox"] == [left, top, columns.max() + 1 - left, rows.max() + 1 - top]
            assert (
                truth.loadCats([item["category_id"]])[0]["name"] == data.emoji[placed.emoji].group
            )
        with Image.open(root / "val2017" / truth.loadImgs([i])[0]["file_name"]) as image:
            assert image.size == (96, 96)


@pytest.mark.parametrize("layout", ["masks", "coco"])
def test_emoji_of_one_seed_are_the_same_files(tmp_path, sources, layout):
    def files(name, seed):
        root = export_emoji(
            tmp_path / name, **sources, layout=layout, train=2, val=1, size=48, seed=seed
        )
        return {
            path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()
        }

    first, other = files("one", 3), files("other", 4)
    assert files("two", 3) == first and first.keys() == other.keys()
    assert not any(first[name] == other[name] for name in first if name.suffix == ".jpg")
    before = (tmp_path / "one/dataset.json").stat().st_mtime_ns
    assert files("one", 3) == first and (tmp_path / "one/dataset.json").stat().st_mtime_ns == before
    with pytest.raises(HypvisionError, match=r"\(seed\).*--overwrite"):
        files("one", 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(layout="ade"), "layout must be one of 'masks', 'coco'"),
        (dict(level="kind"), "level must be one of 'name', 'class', 'group'"),
        (dict(val=0), "val must be an integer of at least 1"),
        (dict(emoji="nowhere"), "There is no file '.*nowhere/splits/classes.json'"),
        (dict(photos="nowhere"), "no folder 'nowhere/train'"),
    ],
)
def test_emoji_of_bad_arguments(tmp_path, sources, changed, message):
    with pytest.raises(HypvisionError, match=message):
        export_emoji(tmp_path / "data", **(sources | changed))
    assert list(tmp_path.iterdir()) == []


def test_emoji_by_the_command(tmp_path, sources, capsys):
    places = [f"--{name}={path}" for name, path in sources.items()]
    command = ["data", "make", str(tmp_path / "data"), "--train=1", "--val=1"]
    assert main([*command, *places, "--size=48"]) == 0
    assert (tmp_path / "data/masks/classes.txt").exists() and (
        tmp_path / "data/coco/val2017"
    ).is_dir()
    for words, message in (
        (places[:1], "--emoji has an effect only with --photos"),
        ([*places, "--size=48x64"], "square"),
        ([*places, "--layout=ade"], "--layout must be one of"),
        ([*places, "--level=shape"], "--level must be one of"),
        (["--level=group"], "--level must be one of"),
    ):
        assert main([*command, *words]) == 2
        assert message in capsys.readouterr().err
