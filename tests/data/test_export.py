"""Scenes of emoji on photos in their two layouts on disk."""

import errno

import numpy as np
import pytest
from helpers.emoji import make_emoji
from PIL import Image
from pycocotools.coco import COCO

from hypvision.cli import main
from hypvision.data import emoji_export
from hypvision.data.emoji_export import export_emoji
from hypvision.data.masks import run_length
from hypvision.io.errors import HypvisionError


def test_run_length_of_known_masks():
    assert run_length(np.zeros((2, 3), bool))["counts"] == [6]
    assert run_length(np.array([[1, 0], [1, 0]], bool))["counts"] == [0, 2, 2]
    assert run_length(np.array([[0, 1], [1, 0]], bool))["counts"] == [1, 2, 1]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Coloured emoji, and grey photos of another shade for each split."""
    pytest.importorskip("mmengine")
    folder = tmp_path_factory.mktemp("sources")
    for split, shade in (("train", 60), ("test", 120)):
        (folder / "photos" / split).mkdir(parents=True)
        Image.new("RGB", (70, 60), (shade,) * 3).save(folder / "photos" / split / "grey.png")
    return dict(emoji=make_emoji(folder / "emoji", styles=("noto",)), photos=folder / "photos")


def test_another_export_into_the_same_folder_is_refused(tmp_path, sources):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(HypvisionError, match="not a data set"):
        export_emoji(tmp_path / "mine", **sources, overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()
    few = dict(train=1, val=1, size=48)
    export_emoji(tmp_path / "data", **sources, **few)
    with pytest.raises(HypvisionError, match="train.*--overwrite"):
        export_emoji(tmp_path / "data", **sources, **dict(few, train=2))
    export_emoji(tmp_path / "data", **sources, **dict(few, train=2), overwrite=True)
    assert len(list((tmp_path / "data/train/images").iterdir())) == 2


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]
)
def test_what_breaks_off_leaves_nothing(tmp_path, sources, monkeypatch, error):
    def broken(root, *_):
        (root / "half").write_text("x")
        raise error

    monkeypatch.setitem(emoji_export._WRITERS, "masks", broken)
    with pytest.raises(HypvisionError if isinstance(error, OSError) else KeyboardInterrupt):
        export_emoji(tmp_path / "data", **sources, train=1, val=1, size=48)
    assert list(tmp_path.iterdir()) == []


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
        (places[:1], "--photos"),
        ([*places, "--size=48x64"], "--size"),
        ([*places, "--layout=ade"], "--layout"),
        ([*places, "--level=shape"], "--level"),
    ):
        assert main([*command, *words]) == 2
        assert message in capsys.readouterr().err
