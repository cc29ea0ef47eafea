"""Scenes of emoji: boxes and masks are exact, captions name what is there, boxes hold what their
words say."""

import dataclasses
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from helpers.emoji import make_emoji
from PIL import Image

pytest.importorskip("mmengine")

from hypvision.data.emoji_scenes import EmojiScenes, cut_out
from hypvision.io.errors import HypvisionError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    (folder / "photos").mkdir()
    for shade, size in ((60, (50, 40)), (120, (80, 120))):
        Image.new("RGB", size, (shade, shade, shade)).save(folder / "photos" / f"{shade}.png")
    return make_emoji(folder / "emoji"), folder / "photos"


def test_masks_are_what_differs_from_the_photo(folders):
    data = EmojiScenes(*folders, length=20, augmented=False, count=(2, 3))
    counts = set()
    for index in range(20):
        image, objects = data.scene(index)
        counts.add(len(objects))
        shown = np.ptp(image.astype(int), axis=-1) > 0  # photos are grey, these emoji are coloured
        union = np.any([placed.mask for placed in objects], axis=0)
        assert (shown <= union).all() and shown[union].mean() > 0.9
        for first, second in zip(objects, objects[1:]):
            assert not (first.mask & second.mask).any()
        left, top, right, bottom = objects[-1].box  # nothing covers the last one
        rows, columns = np.nonzero(objects[-1].mask)
        assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == (
            left,
            top,
            right,
            bottom,
        )
        assert 0 <= left < right <= 96 and 0 <= top < bottom <= 96
    assert counts == {2, 3}


def test_captions_and_boxes(folders):
    data = EmojiScenes(*folders, length=40, boxes=True, general=(0.0, 0.0))
    for index in range(40):
        sample, objects = data[index], data.scene(index).objects
        names = [data.emoji[placed.emoji].name for placed in objects]
        assert sorted(sample["caption"].replace(" and a ", ", a ").split(", ")) == sorted(
            f"a {name}" for name in names
        )
        assert sample["box_caption"] in names and sample["inputs"].shape == sample[
            "box_inputs"
        ].shape == (3, 96, 96)
        assert sample["inputs"].dtype == torch.uint8
    words = {
        EmojiScenes(*folders, boxes=True, general=(0.0, 1.0))[i]["box_caption"] for i in range(30)
    }
    assert words <= {"animal or plant", "person or body part"}


def test_the_first_boxes_of_each_scene(folders):
    data = EmojiScenes(*folders, length=20, count=(1, 3), boxes=2, general=(0.0, 0.0))
    counts = set()
    for index in range(20):
        sample, objects = data[index], data.scene(index).objects[:2]
        names = [data.emoji[placed.emoji].name for placed in objects]
        counts.add(sample["box_count"])
        assert sample["box_count"] == len(names)
        assert sample["box_caption"] == [*names, ""][:2]
        drawn = sample["box_inputs"].flatten(1).any(1).tolist()
        assert sample["box_inputs"].shape == (2, 3, 96, 96) and drawn == [True, len(names) == 2]
    assert counts == {1, 2}


@pytest.mark.parametrize("boxes", [False, True, 2])
def test_a_cache_gives_what_was_drawn(folders, tmp_path, boxes):
    plain = EmojiScenes(*folders, length=3, size=32, boxes=boxes)
    cached = EmojiScenes(*folders, length=3, size=32, boxes=boxes, cache=tmp_path / "cache")
    for data in (cached, cached, pickle.loads(pickle.dumps(cached))):
        for index in (0, 2, 0):
            drawn, found = plain[index], data[index]
            assert found.keys() == drawn.keys() and all(
                np.array_equal(found[key], drawn[key]) for key in drawn
            )
    cached[1]["inputs"].zero_()
    assert cached[1]["inputs"].any() and len(pickle.dumps(cached)) < 100_000
    EmojiScenes(*folders, length=3, size=32, boxes=boxes, seed=1, cache=tmp_path / "cache")[0]
    assert len([*(tmp_path / "cache").iterdir()]) == 2  # other settings, other samples


def test_a_cache_follows_its_images_and_keeps_long_captions_whole(folders, tmp_path):
    photos = shutil.copytree(folders[1], tmp_path / "photos")
    build = partial(
        EmojiScenes, folders[0], photos, length=2, size=32, count=(1, 1), cache=tmp_path / "cache"
    )
    dark = build()[0]["inputs"]
    for path in photos.iterdir():
        Image.new("RGB", (60, 60), "white").save(path)
    data = build()
    assert data[0]["inputs"].float().mean() > dark.float().mean() + 50
    data.emoji = [
        dataclasses.replace(item, name="x" * 500, classname="x" * 500) for item in data.emoji
    ]
    assert data[1]["caption"] == data[1]["caption"] == "a " + "x" * 500


def test_samples_repeat_and_splits_differ(folders):
    one, two = EmojiScenes(*folders, length=3), EmojiScenes(*folders, length=9)
    assert all(
        torch.equal(one[i]["inputs"], two[i]["inputs"]) and one[i]["caption"] == two[i]["caption"]
        for i in (0, 2)
    )
    assert not torch.equal(EmojiScenes(*folders, seed=1)[0]["inputs"], one[0]["inputs"])
    assert all(
        "test" in EmojiScenes(*folders, split="test", general=(0.0, 0.0))[i]["caption"]
        for i in range(3)
    )


def test_white_inside_is_not_paper():
    pixels = np.full((20, 20, 3), 255, dtype=np.uint8)
    pixels[4:16, 4:16] = 0
    pixels[8:12, 8:12] = 255
    mask = cut_out(pixels)
    assert mask[4:16, 4:16].all() and mask.sum() == 144


def test_no_images_of_a_style(folders):
    with pytest.raises(HypvisionError, match=r"No style of \['none'\]"):
        EmojiScenes(*folders, styles=["none"])
