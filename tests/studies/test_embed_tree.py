"""The experiment of docs/geometry.md on a small tree, and the images beside it; its numbers are not
tested."""

import argparse
import importlib.util
import math
import sys
from pathlib import Path

import embed_tree as bench
import pytest
import torch
from bench.common import write_section
from PIL import Image

from hypvision.geometry import Lorentz, poincare
from hypvision.io.errors import HypvisionError
from hypvision.losses.graph import complete_tree, graph_map, tree_distances

ROOT = Path(__file__).parents[2]


def arguments(text):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(text.split())


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{bench.MARKS[0]}\nold\n{bench.MARKS[1]}\nafter\n")
    return path


def test_the_command_writes_a_table_and_an_image(page, tmp_path, capsys):
    pytest.importorskip("geoopt")
    image = tmp_path / "new" / "tree.png"
    options = f"--depth 2 --steps 5 --seeds 2 --rates 0.1 0.3 --write {page} --image {image}"
    bench.run(arguments(options))
    text = page.read_text()
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and "hypvision" in line or "geoopt" in line
    ]
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "13 nodes" in text
    assert len([row for row in rows if row.startswith("|")]) == 4
    assert "Euclidean plane, Adam" in text
    assert rows[-1] in capsys.readouterr().out
    assert Image.open(image).size[0] > 700


def test_the_search_keeps_the_rate_with_the_lowest_loss(monkeypatch):
    calls = []

    def fake(method, hops, rate, seed, steps, rows, bar):
        calls.append((rate, seed))
        return bench.Run(None, {0.1: 2.0, 0.3: 1.0, 1.0: math.nan}[rate], 0.5, 0.5, 1.0)

    monkeypatch.setattr(bench, "train", fake)
    results = bench.compare(["euclid"], None, [0.1, 0.3, 1.0], 3, 1, 1)
    assert results["euclid"][0] == 0.3 and len(results["euclid"][1]) == 3
    assert calls == [(0.1, 0), (0.3, 0), (1.0, 0), (0.3, 1), (0.3, 2)]


def test_all_distances_are_those_of_the_space():
    space = Lorentz(1.0)
    x = space.random(300, 2, dtype=torch.float64)
    assert torch.allclose(bench.all_distances(x, space), space.cdist(x, x), atol=1e-6)


@pytest.mark.parametrize("parents", [complete_tree(3, 4), [-1, 0, 0, 1, 1, 3, 2, 2, 2, 4]])
def test_the_drawing_by_rule_has_the_depths_and_no_crossing(parents):
    tangents = bench.built(parents)
    hops = tree_distances(parents)
    assert torch.allclose(tangents.norm(dim=1), hops[0].double())
    edges = [(tangents[node], tangents[parent]) for node, parent in enumerate(parents) if node]

    def side(a, b, c):
        return float((b - a)[0] * (c - a)[1] - (b - a)[1] * (c - a)[0])

    for number, (a, b) in enumerate(edges):
        for c, d in edges[:number]:
            if {*map(tuple, (a.tolist(), b.tolist()))} & {*map(tuple, (c.tolist(), d.tolist()))}:
                continue
            crosses = side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
            assert not crosses, (a, b, c, d)


def test_the_hyperbolic_plane_has_room_for_the_drawing_by_rule():
    parents = complete_tree(3, 4)
    near = tree_distances(parents) == 1
    found = {}
    for name in ("euclid", "lorentz", "ball"):
        space = bench.METHODS[name].manifold
        points = space.from_tangent0(bench.built(parents))
        found[name] = graph_map(bench.all_distances(points, space), near)
    assert found["lorentz"] == found["ball"] == 1 and found["euclid"] < 0.5


def test_bad_options_are_told(page, tmp_path, monkeypatch):
    for options, words in (
        ("--steps 0", "--steps must be at least 1"),
        ("--rates -1", "--rates must be positive"),
        ("--branching 9 --depth 9", "over 5000 nodes"),
    ):
        with pytest.raises(HypvisionError, match=words):
            bench.run(arguments(options))
    with pytest.raises(HypvisionError, match="cannot be read"):
        write_section(tmp_path / "none.md", bench.MARKS, "text")
    page.write_text("no marks")
    with pytest.raises(HypvisionError, match="lacks the marks"):
        write_section(page, bench.MARKS, "text")
    monkeypatch.setitem(sys.modules, "geoopt", None)
    with pytest.raises(HypvisionError, match=r"'geoopt', which is not installed. Run .*\[dev\]"):
        bench.run(arguments("--methods geoopt"))


@pytest.fixture
def images():
    spec = importlib.util.spec_from_file_location(
        "draw_geometry", ROOT / "studies" / "draw_geometry.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_triangle_obeys_gauss_and_bonnet(images, tmp_path):
    missing = math.pi - images.angle_sum(images.CORNERS)
    places, vectors, turned = images.carried(images.CORNERS)
    assert missing > 0.5 and abs(turned) == pytest.approx(missing, rel=1e-9)
    lengths = poincare.norm(torch.from_numpy(places), torch.from_numpy(vectors), 1.0)
    assert torch.allclose(lengths, torch.full_like(lengths, 0.25))
    images.draw(tmp_path / "lines.png")
    assert Image.open(tmp_path / "lines.png").width > 800
