"""Objects and scenes: what is promised of order, labels, masks, parts and repeatability."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hypvision.cli import main
from hypvision.data import shapes as module
from hypvision.data.drawing import PARTS
from hypvision.data.shapes import (
    SPLITS,
    TAXONOMY,
    ShapesClassification,
    ShapesScenes,
    make_object,
    make_scene,
)
from hypvision.data.taxonomy import LEVELS
from hypvision.io.errors import HypvisionError


def test_this_version_draws_what_it_drew():
    """VERSION goes up when this changes: exported copies and published results rest on it."""
    assert module.VERSION == 1
    names = [TAXONOMY.classes["instance"][make_object(i, "train", 32)[1]] for i in range(4)]
    assert names == FIRST_OBJECTS
    assert make_scene(0, "train", 64).captions[2:] == FIRST_CAPTIONS


FIRST_OBJECTS = [
    "dotted red cross",
    "dotted blue pentagon",
    "dotted blue tree",
    "checkered purple crescent",
]
FIRST_CAPTIONS = ("a face", "a dotted blue face left of a striped green face")


def test_seeds_and_splits_and_indices_differ():
    images = {
        make_object(i, split, 32, seed)[0].tobytes()
        for i in (0, 1)
        for split in SPLITS
        for seed in (0, 1)
    }
    assert len(images) == 12


def test_order_is_balanced_at_every_level():
    labels = ShapesClassification("train", 768, 32, level="instance").targets
    for start in (0, 384):
        assert sorted(labels[start : start + 384]) == list(range(384))
    shapes = TAXONOMY.ancestors("shape", of="instance")[labels]
    for start in range(0, 768, 16):
        assert sorted(shapes[start : start + 16]) == list(range(16))
    kinds = TAXONOMY.ancestors("kind", of="instance")[labels].reshape(-1, 4)
    assert all(len(set(row)) == 4 for row in kinds.tolist())
    assert labels[:384] != labels[384:]


def test_labels_of_all_levels_and_transforms():
    for level in LEVELS:
        data = ShapesClassification("val", 20, 32, level=level, transform=np.array)
        for i in range(20):
            drawn, label = data[i]
            assert drawn.shape == (32, 32, 3) and data.targets[i] == label
        assert data[-1][1] == data[19][1]
        with pytest.raises(IndexError):
            data[20]


def test_workers_draw_the_same():
    data = ShapesClassification(
        "train", 12, 32, transform=lambda image: torch.from_numpy(np.array(image))
    )
    images = torch.cat([batch for batch, _ in DataLoader(data, batch_size=4, num_workers=2)])
    assert torch.equal(images, torch.stack([data[i][0] for i in range(12)]))


def test_the_object_is_where_its_colour_is():
    """A plain object stands out: the pixels far from grey make up the area that its shape should
    have."""
    found = 0
    for i in range(384):
        drawn, label = make_object(i, "train", 64)
        texture, _, shape = TAXONOMY.instances[label]
        if (texture, shape) == ("plain", "disk"):
            found += 1
            colourful = np.ptp(drawn.astype(int), axis=2) > 50
            radius = np.sqrt(colourful.sum() / np.pi) / 64
            assert 0.27 < radius < 0.45
    assert found == 6


@pytest.mark.parametrize("size", [32, (32, 240), (200, 48)])
def test_scenes_keep_what_they_promise(monkeypatch, size):
    height, width = (size, size) if isinstance(size, int) else size
    drawn = []
    rasterise = module.rasterise

    def recording(sprite, *sizes):
        drawn.append((sprite, rasterise(sprite, *sizes)))
        return drawn[-1][1]

    monkeypatch.setattr(module, "rasterise", recording)
    for index in range(12):
        drawn.clear()
        scene = make_scene(index, "train", size)
        assert len({item.kind for item in scene.objects}) <= 3  # one kind is always missing
        assert np.array_equal(scene.masks.sum(0), scene.instances > 0)
        for item, mask in zip(scene.objects, scene.masks):
            # The sprite that this object came from: the one that covers all of its pixels.
            whole = np.zeros((height, width), bool)
            fits = []
            for sprite, stamp in drawn:
                whole[:] = False
                whole[stamp.window] = stamp.inside
                if (mask <= whole).all() and (sprite.shape, sprite.colour) == (
                    item.shape,
                    item.colour,
                ):
                    fits.append((mask.sum() / whole.sum(), sprite))
            visible, sprite = max(fits, key=lambda pair: pair[0])
            assert visible >= 0.5
            assert sprite.radius <= sprite.x <= width - sprite.radius
            assert sprite.radius <= sprite.y <= height - sprite.radius
        for level in LEVELS:
            labels, semantic = scene.labels(level), scene.semantic_at(level)
            assert (semantic[scene.instances == 0] == 0).all()
            for number, (label, item) in enumerate(zip(labels, scene.objects), start=1):
                assert (semantic[scene.instances == number] == label + 1).all()
                assert TAXONOMY.classes[level][label] == (
                    item.name if level == "instance" else getattr(item, level)
                )
        assert np.array_equal(scene.semantic, scene.semantic_at("shape"))
        assert scene.boxes.tolist() == [list(item.box) for item in scene.objects]


def test_parts_lie_in_their_wholes():
    seen = set()
    for index in range(60):
        scene = make_scene(index, "val", 64)
        assert (scene.parts[scene.instances == 0] == 0).all()
        for item, mask in zip(scene.objects, scene.masks):
            names = {PARTS[number - 1] for number in np.unique(scene.parts[mask]) if number}
            assert all(name.startswith(f"{item.shape}/") for name in names)
            assert bool(names) == (item.kind == "composite") and (item.kind != "composite") == (
                not scene.parts[mask].any()
            )
            seen |= names
    assert seen == set(PARTS)


def test_scenes_as_a_data_set():
    data = ShapesScenes(
        "test", 3, (40, 56), seed=1, transform=lambda scene: (scene.image.size, len(scene.objects))
    )
    assert len(data) == 3 and [data[i] for i in range(3)] == [
        ((56, 40), len(make_scene(i, "test", (40, 56), 1).objects)) for i in range(3)
    ]


def test_mistakes():
    for arguments, message in (
        (dict(split="dev"), "split must be one of 'train', 'val', 'test', got 'dev'"),
        (dict(size=31), "height must be an integer of at least 32, got 31"),
        (dict(size=(64, 20)), "width must be an integer of at least 32, got 20"),
        (dict(size=64.0), "height must be an integer of at least 32, got 64.0"),
        (dict(seed=-1), "seed must be an integer from 0 to .*, got -1"),
        (dict(index=2**32), "index must be .*, got 4294967296"),
    ):
        for draw in (make_object, make_scene):
            with pytest.raises(HypvisionError, match=message):
                draw(**{"index": 0, **arguments})


def test_make_data_command(tmp_path, capsys):
    out = tmp_path / "shapes"
    command = [
        "data",
        "make",
        str(out),
        "--train",
        "4",
        "--val",
        "2",
        "--size",
        "40x56",
        "--level",
        "instance",
    ]
    assert main(command) == 0
    assert sorted(path.name for path in out.iterdir()) == ["ade", "coco", "imagefolder"]
    assert "coco: " in capsys.readouterr().out
    from PIL import Image

    labels = np.array(
        Image.open(out / "ade/annotations/training/000000.png")
    )  # 384 classes need 16 bits
    scene = make_scene(0, "train", (40, 56))
    assert np.array_equal(labels, scene.semantic_at("instance") + 1) and labels.max() > 255
    assert main([*command, "--seed", "1"]) == 2
    assert "other parameters (seed)" in capsys.readouterr().err
    assert main(["data", "make", str(tmp_path / "x"), "--size", "big"]) == 2
    assert "HEIGHTxWIDTH" in capsys.readouterr().err and not (tmp_path / "x").exists()
