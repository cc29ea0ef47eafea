"""Images of Hi-Mapper's tree: maps of the model, the disk, the command."""

import numpy as np
import pytest
import timm
import torch
from helpers.shapes.images import make_scene
from PIL import Image

from hypvision.cli import main
from hypvision.geometry import lorentz
from hypvision.io.errors import HypvisionError
from hypvision.viz.hierarchy_tree import (
    _rows,
    disk_positions,
    draw_disk,
    draw_parts,
    draw_tree,
    explain,
    explain_hierarchy,
    letter,
    node_colours,
    node_name,
    part_maps,
)

SMALL = dict(backbone="vit_tiny_patch16_224", patch_size=8, embed_dim=48, depth=1, num_heads=2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return timm.create_model("himapper", img_size=64, dynamic_img_size=True, **SMALL)


def test_maps_are_shares_of_the_image(model):
    model.train()
    maps, out = part_maps(model, torch.randn(2, 3, 64, 96))
    assert [tuple(level.shape) for level in maps] == [(2, n, 8, 12) for n in (32, 16, 8, 4)]
    assert all(
        torch.allclose(level.sum((-2, -1)), torch.ones(2, level.shape[1]), atol=1e-5)
        for level in maps
    )
    torch.testing.assert_close(maps[0].flatten(2), out["attention"][0], rtol=1e-5, atol=0)
    assert model.training and model.mapper.eval_noise == "mean"
    with pytest.raises(HypvisionError, match="no hierarchy"):
        part_maps(torch.nn.Linear(1, 1), torch.randn(1, 3, 64, 64))


def test_colours_are_families():
    colours = node_colours([32, 16, 8, 4])
    assert [len(set(level)) for level in colours] == [32, 16, 8, 4]
    hues = [max(range(3), key=lambda i: c[i]) for c in colours[3]]
    assert len(set(hues)) > 1


def test_positions_keep_distances_from_the_origin():
    c, generator = 0.4, torch.Generator().manual_seed(0)
    spaces = [torch.randn(n, 16, generator=generator) * 0.7 for n in (8, 4)]
    points = [lorentz.expmap0(v, c) for v in spaces]
    places = disk_positions(points, c)
    for place, point in zip(places, points):
        radius = 2 * torch.atanh(place.norm(dim=1)) / c**0.5
        torch.testing.assert_close(radius.float(), lorentz.dist0(point, c), rtol=1e-4, atol=1e-5)


def test_colour_is_where_a_node_is_the_strongest():
    """Two leaves below a coarsest node: red where the map is the larger one, pale elsewhere."""
    image = Image.new("RGB", (64, 64), "red")
    left = torch.ones(2, 4, 4)
    left[0, :, :2], left[1, :, 2:] = 2, 1.5
    drawing = np.asarray(draw_tree(image, [left, left[:1]], leaf=64), dtype=int)
    red = (drawing == [255, 0, 0]).all(-1)
    right = np.nonzero(red.any(0))[0].max()  # the right side of the second leaf, without its border
    column = red[:, right - 20]
    assert 50 < column.sum() <= 64, "the right half of the second leaf alone"
    first = red[:, right - 50]
    assert 50 < first.sum() <= 64 and np.nonzero(first)[0].max() < np.nonzero(column)[0].min()


def test_names_tell_the_way_from_the_coarsest_node():
    names = ["A", "A1", "A12", "D2", "D211"]
    places = [(0, 0), (0, 1), (1, 2), (7, 1), (28, 3)]
    assert [node_name(*place) for place in places] == names


def test_only_winning_nodes_and_their_ancestors_are_shown():
    generator = torch.Generator().manual_seed(0)
    for size in (2, 5):
        maps = [torch.rand(n, size, size, generator=generator) for n in (32, 16, 8, 4)]
        won = [
            np.bincount(level.flatten(1).argmax(0).numpy(), minlength=len(level)) for level in maps
        ]
        shown = _rows(won)
        ends = []
        for l, (level, counts) in enumerate(zip(shown, won)):
            winners = {node for node, count in enumerate(counts) if count}
            below = shown[l - 1] if l else {}
            assert set(level) == winners | {node // 2 for node in below}
            assert [level[node] for node in sorted(level)] == sorted(level.values())
            for node, place in level.items():
                children = [below[n] for n in (2 * node, 2 * node + 1) if n in below]
                if children:
                    assert place == sum(children) / len(children)
                else:
                    ends.append(place)
        assert sorted(ends) == list(range(len(ends)))


def test_edges_of_the_tree_do_not_cross():
    """Whatever wins, parents have the order of their children: no two edges of a level cross."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        won = [torch.randint(0, 2, (n,), generator=generator).numpy() for n in (32, 16, 8, 4)]
        shown = _rows(won)
        for below, level in zip(shown, shown[1:]):
            edges = sorted((place, level[node // 2]) for node, place in below.items())
            assert [end for _, end in edges] == sorted(end for _, end in edges)


def test_all_views(model):
    scene = make_scene(0, size=(64, 96)).image
    images = explain_hierarchy(model, scene, size=64)
    assert set(images) == {"tree", "parts", "levels", "disk"}
    with pytest.raises(HypvisionError, match="no clusters: leave out stage"):
        explain(model, scene, size=64, stage=0)
    assert images["tree"].width > 4 * 64 and images["disk"].size == (640, 694)
    flat = timm.create_model("himapper", img_size=64, geometry="euclidean", **SMALL)
    assert set(explain_hierarchy(flat, scene.resize((64, 64)), size=64)) == {
        "tree",
        "parts",
        "levels",
    }
    with pytest.raises(HypvisionError, match="does not accept images of 96 x 64"):
        explain_hierarchy(flat, scene, size=64)


def test_command(tmp_path):
    make_scene(0, size=(64, 96)).image.save(tmp_path / "scene.png")
    arguments = (
        f"explain {tmp_path / 'scene.png'} --model deit_tiny_patch16_224_himapper --size 64"
    ).split()
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["scene_disk.png", "scene_levels.png", "scene_parts.png", "scene_tree.png"]

    arguments[3] = "himapper"
    weights = timm.create_model("himapper", img_size=32, **SMALL, num_classes=10)
    torch.save(
        {"state_dict": {f"backbone.{n}": v for n, v in weights.state_dict().items()}},
        tmp_path / "w.pth",
    )
    small = [
        "backbone=vit_tiny_patch16_224",
        "patch_size=8",
        "embed_dim=48",
        "depth=1",
        "num_heads=2",
        "img_size=32",
    ]
    options = [
        *f"--weights {tmp_path / 'w.pth'} --out {tmp_path / 'new'} --model-args".split(),
        *small,
    ]
    assert main([*arguments, *options]) == 0 and len(list((tmp_path / "new").iterdir())) == 4


def test_far_nodes_lie_within_the_disk_and_have_letters():
    """Radii from 8 to 40, of which the rim would show nothing: each level keeps its order."""
    angles = torch.arange(4) * 1.5
    unit = torch.stack([angles.cos(), angles.sin()], 1)
    points = [
        lorentz.expmap0(radius * unit.repeat_interleave(count, 0).double(), 1.0)
        for radius, count in ((30, 2), (8, 1))
    ]
    pixels = np.asarray(draw_disk(points, 1.0), dtype=int)
    rows, columns = np.nonzero(np.ptp(pixels, axis=-1) > 60)  # what is coloured
    radii = np.hypot(rows - 320, columns - 320) / 308
    assert radii.max() < 0.97 and radii.min() < 0.4
    assert [letter(node) for node in (0, 3, 26)] == ["A", "D", "27"]


def test_parts_are_outlined_in_the_colours_of_their_nodes():
    left = torch.zeros(2, 4, 4)
    left[0, :, :2], left[1, :, 2:] = 1, 1
    drawing = np.asarray(draw_parts(Image.new("RGB", (64, 64), "gray"), [left], side=200))
    first, second = node_colours([2])[0]
    assert (drawing == first).all(-1).sum() == (drawing == second).all(-1).sum() == 5 * 200
    halves = drawing[10:210, 10:110], drawing[10:210, 110:210]
    assert all((half == 255).all(-1).any() for half in halves)  # their letters


def test_two_dimensions_are_drawn_without_loss():
    angles = torch.arange(6) * 1.0
    flat = torch.stack([angles.cos(), angles.sin()], 1) * torch.linspace(0.2, 2, 6)[:, None]
    (place,) = disk_positions([lorentz.expmap0(flat, 1.0)], 1.0)
    expected = torch.tanh(flat.norm(dim=1) / 2)[:, None] * flat / flat.norm(dim=1, keepdim=True)
    torch.testing.assert_close(
        place @ place.T, (expected @ expected.T).double(), rtol=1e-4, atol=1e-5
    )
