"""Embedded closures: a small hierarchy is recovered, and its figures are those of the definition."""

import json

import numpy as np
import pytest
import torch

from hypvision.cli import main
from hypvision.data.closures import Closure, read_closure
from hypvision.errors import HypvisionError
from hypvision.geometry import Euclidean, Lorentz
from hypvision.losses.graph import complete_tree
from hypvision.tasks import closures
from hypvision.tasks.closures import closure_ranks, embed_closure


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A file of the parents in a tree of 40 names."""
    path = tmp_path_factory.mktemp("tree") / "my_tree.tsv"
    parents = enumerate(complete_tree(3, 3))
    path.write_text("".join(f"n{name:02}\tn{parent:02}\n" for name, parent in parents if parent >= 0))
    return path


def test_figures_are_those_of_the_definition(tree):
    closure = read_closure(tree, transitive=True)
    points = Lorentz(1.0).from_tangent0(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double())
    distances = Lorentz(1.0).cdist(points, points).numpy()
    ranks, precision = [], []
    for name, above in enumerate(closure.ancestors()):
        others = [d for other, d in enumerate(distances[name]) if other != name and other not in above]
        ranks += [1 + sum(d <= distances[name, ancestor] for d in others) for ancestor in above]
        near = sorted((set(range(40)) - {name}), key=lambda other: distances[name, other])
        places = [place for place, other in enumerate(near, 1) if other in above]
        if above:
            precision.append(np.mean([n / place for n, place in enumerate(places, 1)]))
    found = closure_ranks(points, Lorentz(1.0), closure)
    assert found["mean_rank"] == pytest.approx(np.mean(ranks)) and found["map"] == pytest.approx(np.mean(precision))


def test_training_finds_the_hierarchy(tree):
    closure, space = read_closure(tree, transitive=True), Lorentz(1.0)
    points = embed_closure(closure, dim=5, steps=300)
    assert points.dtype == torch.float64 and points.shape == (40, 6)
    found = closure_ranks(points, space, closure)
    assert found["mean_rank"] < 1.5 and found["map"] > 0.9
    # the general is in the middle: the root nearest to the centre of all
    assert space.dist(points, space.centroid(points)).argmin() == closure.names.index("n00")
    again = [embed_closure(closure, dim=5, steps=10) for _ in range(2)]
    assert torch.equal(*again)
    flat = embed_closure(closure, dim=5, steps=10, space=Euclidean())
    assert flat.shape == (40, 5)


def test_command(tree, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--transitive", "--steps", "20", "--dim", "3"]
    assert main(["metric", "closure", str(tree), *options, "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[0])
    assert printed == json.loads((out / "closure.json").read_text())
    assert printed["names"] == 40 and printed["pairs"] == 3 + 2 * 9 + 3 * 27 and printed["dim"] == 3
    rows = (out / "points.csv").read_text().splitlines()
    assert rows[0] == "name,x1,x2,x3" and len(rows) == 41
    # the Poincare ball of curvature 1
    ball = np.array([[float(x) for x in row.split(",")[1:]] for row in rows[1:]])
    points = embed_closure(read_closure(tree, transitive=True), dim=3, steps=20)
    assert np.allclose(ball, Lorentz(1.0).to_poincare(points), atol=1e-6)
    assert (out / "disk.png").read_bytes().startswith(b"\x89PNG")


def test_too_many_names(monkeypatch):
    monkeypatch.setattr(closures, "LARGEST", 2)
    with pytest.raises(HypvisionError, match="3 names, but at most 2 are allow"):
        embed_closure(Closure(["a", "b", "c"], np.array([[0, 1], [2, 1]])))
