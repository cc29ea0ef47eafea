"""Embedded closures: a small hierarchy is recovered, and its figures are those of the
definition."""

import json

import numpy as np
import pytest
import torch

from hypvision.cli import main
from hypvision.data.closures import Closure, read_closure
from hypvision.geometry import Euclidean, Lorentz, ManifoldParameter
from hypvision.losses.graph import complete_tree
from hypvision.optim import RiemannianSGD
from hypvision.tasks import closures
from hypvision.tasks.closures import closure_ranks, default_steps, embed_closure


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A file of the parents in a tree of 40 names."""
    path = tmp_path_factory.mktemp("tree") / "my_tree.tsv"
    parents = enumerate(complete_tree(3, 3))
    path.write_text(
        "".join(f"n{name:02}\tn{parent:02}\n" for name, parent in parents if parent >= 0)
    )
    return path


def test_figures_are_those_of_the_definition(tree):
    closure = read_closure(tree, transitive=True)
    points = Lorentz(1.0).from_tangent0(
        torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()
    )
    distances = Lorentz(1.0).cdist(points, points).numpy()
    ranks, precision = [], []
    for name, above in enumerate(closure.ancestors()):
        others = [
            d for other, d in enumerate(distances[name]) if other != name and other not in above
        ]
        ranks += [1 + sum(d <= distances[name, ancestor] for d in others) for ancestor in above]
        near = sorted((set(range(40)) - {name}), key=lambda other: distances[name, other])
        places = [place for place, other in enumerate(near, 1) if other in above]
        if above:
            precision.append(np.mean([n / place for n, place in enumerate(places, 1)]))
    found = closure_ranks(points, Lorentz(1.0), closure)
    assert found["mean_rank"] == pytest.approx(np.mean(ranks)) and found["map"] == pytest.approx(
        np.mean(precision)
    )


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


def test_the_number_of_steps_suits_the_size(tmp_path, capsys):
    """A handful of names needs no minute, and the command says how far it is."""
    file = tmp_path / "few.tsv"
    file.write_text("cat\tmammal\nmammal\tanimal\ndog\tmammal\neagle\tanimal\n")
    closure = read_closure(file, transitive=True)
    steps = default_steps(closure)
    assert 300 < steps < 500
    many = Closure(closure.names, np.tile(closure.pairs, (1000, 1)))
    assert default_steps(many) == 2500
    out = tmp_path / "out"
    assert main(["metric", "closure", str(file), "--transitive", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"embedding {steps}/{steps}" in said.err
    found = json.loads(said.out.splitlines()[0])
    assert found["mean_rank"] == found["map"] == 1.0


def test_figures_do_not_depend_on_parts(tree, monkeypatch):
    closure, space = read_closure(tree, transitive=True), Lorentz(1.0)
    points = space.from_tangent0(
        torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()
    )
    whole = closure_ranks(points, space, closure)
    monkeypatch.setattr(closures, "PART", 3 * points.numel())
    assert closure_ranks(points, space, closure) == pytest.approx(whole)


def test_an_ancestor_is_no_negative():
    # both names of the only pair are all that can be drawn: nothing pushes them apart
    points = embed_closure(Closure(["a", "b"], np.array([[0, 1]])), steps=50)
    assert Lorentz(1.0).dist0(points).max() < 5 * closures.SPREAD


def test_no_step_is_longer_than_the_limit():
    star = Closure(
        [str(name) for name in range(60)], np.array([[name, 0] for name in range(1, 60)])
    )
    space = Lorentz(1.0)
    start = space.from_tangent0(
        torch.zeros(60, 2).index_fill(0, torch.arange(1), 1.0)
    )  # the ancestor is away
    points = ManifoldParameter(start.clone(), space)
    optimizer = RiemannianSGD([points], lr=1000.0)
    closures.fit_closure(star, points, optimizer, space, steps=1)
    assert space.dist(start, points).max().item() == pytest.approx(closures.REACH, rel=1e-4)


def test_each_step_is_watched_and_threads_are_as_before(tree):
    closure = read_closure(tree, transitive=True)
    threads = torch.get_num_threads()
    seen = []
    last = []

    def watch(step, points):
        seen.append((step, torch.get_num_threads()))
        last[:] = [points.clone()]

    points = embed_closure(closure, steps=3, watch=watch)
    assert seen == [(0, 1), (1, 1), (2, 1)]
    assert torch.get_num_threads() == threads
    assert torch.allclose(last[0].double(), points, atol=1e-5)
