"""What names need as a hierarchy: distances against closed forms, ranks against a plain count."""

from __future__ import annotations

import itertools
import json
import math

import closure_study as study
import numpy as np
import pytest
import torch
from helpers.cases import each

from hypvision.data.closures import closure_of
from hypvision.io.errors import HypvisionError

CHAINS = [
    ("thing", "animal", "dog", "poodle"),
    ("thing", "animal", "dog", "pug"),
    ("thing", "animal", "cat"),
    ("thing", "plant", "oak"),
    ("thing", "plant", "elm"),
]
CLOSURE = closure_of(CHAINS)


def test_distances_are_their_formulas():
    name = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    ancestor = torch.tensor([0.5, 3.0, -1.0, 2.0], dtype=torch.float64)
    assert study.scalar(name, ancestor).item() == pytest.approx(0.25 + 25 + 2.25 - 2)
    assert study.order(name, ancestor).item() == pytest.approx(1 + 0.25)
    flat = math.acosh(
        math.cosh(1) * math.cosh(2) - math.sinh(1) * math.sinh(2) * math.cos(math.pi / 2)
    )
    vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    assert study.hyperbolic(vectors[0], vectors[1]).item() == pytest.approx(flat)
    lifted = torch.tensor([[1.0, 0.0, 9.0], [0.0, 2.0, 4.0]], dtype=torch.float64)
    assert study.hyperbolic_scalar(lifted[0], lifted[1]).item() == pytest.approx(flat - 4)


def test_a_box_inside_another_is_near_and_one_beside_is_far():
    def row(centre, half):
        return torch.tensor([centre, math.log(math.expm1(half))], dtype=torch.float64)

    small, large, beside = row(0.0, 20.0), row(5.0, 100.0), row(300.0, 50.0)
    # ends that are far apart in units of the Gumbel scale are hard, but for the softplus's shift
    assert study.box(small, large).item() == pytest.approx(0, abs=1e-6)
    widths = (2 * 20 - 2 * study.GAMMA) / (2 * 100 - 2 * study.GAMMA)
    assert study.box(large, small).item() == pytest.approx(-math.log(widths), rel=1e-6)
    assert study.box(small, beside).item() > 100


@each("share", [0.0, 0.5, 1.0])
def test_parents_are_known_and_a_share_of_the_others(share):
    known = study.known_pairs(CLOSURE, share, seed=1)
    parents = {tuple(pair) for pair in CLOSURE.parents().tolist()}
    further = [tuple(pair) not in parents for pair in CLOSURE.pairs.tolist()]
    assert known[~np.array(further)].all()
    assert known[further].sum() == round(share * sum(further))


@each("share", [0.0, 0.5, 1.0])
def test_ranks_are_those_of_a_plain_count(share):
    count = len(CLOSURE.names)
    distances = torch.rand(count, count, generator=torch.Generator().manual_seed(0)).double()
    known = study.known_pairs(CLOSURE, share, seed=0)
    asked = np.ones_like(known) if share == 1 else ~known
    ancestors = CLOSURE.ancestors()
    places = []
    for name, ancestor in CLOSURE.pairs[asked].tolist():
        others = set(range(count)) - ancestors[name] - {name}
        nearer = [other for other in others if distances[name, other] <= distances[name, ancestor]]
        places.append(1 + len(nearer))
    found = study.ranks(distances, CLOSURE, known)
    assert found["mean_rank"] == pytest.approx(np.mean(places))


def test_two_numbers_hold_a_tree_as_intervals_on_a_line():
    """A coordinate and a radius: ancestors are intervals around what lies below them."""
    places = dict(poodle=0, pug=1, cat=3, oak=6, elm=7, dog=0.5, animal=1.5, plant=6.5, thing=4.9)
    radius = dict(thing=5.0, animal=2.5, dog=0.8, plant=1.0)
    rows = torch.tensor(
        [[places[name], radius.get(name, 0.1) ** 2] for name in CLOSURE.names], dtype=torch.float64
    )
    distances = study.scalar(rows.unsqueeze(1), rows.unsqueeze(0))
    inside = distances <= 0
    for name, ancestor in itertools.permutations(range(len(rows)), 2):
        assert inside[name, ancestor] == (ancestor in CLOSURE.ancestors()[name])


@each("method", ["scalar", "flat-scalar", "order", "box", "hyperbolic-scalar", "distance"])
def test_a_small_hierarchy_is_learned(method, monkeypatch):
    monkeypatch.setattr(study, "BATCH", 8)
    rate = 0.5 if method == "distance" else 0.1
    found = study.train(CLOSURE, method, 4, 1.0, rate, seed=0)
    assert found["mean_rank"] < 1.3  # a constant or random distance has about 3


def test_runs_are_kept_and_the_best_rate_is_taken(tmp_path, monkeypatch, capsys):
    path = tmp_path / "tree.csv"
    rows = [f"{CLOSURE.names[below]}\t{CLOSURE.names[above]}" for below, above in CLOSURE.pairs]
    path.write_text("\n".join(rows))
    other = tmp_path / "other.csv"
    other.write_text("\n".join(rows[:-1]))
    asked = []

    def fake(closure, method, numbers, share, rate, seed):
        asked.append((len(closure.pairs), rate, seed))
        return dict(mean_rank=1 + abs(rate - 0.03) + seed, map=0.5, seconds=1.0)

    monkeypatch.setattr(study, "train", fake)
    words = f"--methods scalar --numbers 2 --seeds 2 --results {tmp_path / 'found.json'}".split()
    study.main([str(path), str(other), *words])
    full = len(CLOSURE.pairs)
    # all rates on the first file; the best one, 0.03, with the other seed and on the other file
    tried = [(full, rate, 0) for rate in (0.01, 0.03, 0.1, 0.3)]
    assert asked == [*tried, (full, 0.03, 1), (full - 1, 0.03, 0), (full - 1, 0.03, 1)]
    asked.clear()
    study.main([str(path), str(other), *words])
    assert asked == []
    printed = capsys.readouterr().out
    assert "| squared flat distance less a number | 1.50 (1.00 to 2.00) / 0.500 |" in printed
    assert len(json.loads((tmp_path / "found.json").read_text())) == 7


def test_a_file_that_is_none_is_told(tmp_path):
    with pytest.raises(HypvisionError, match=r"none\.csv"):
        study.main([str(tmp_path / "none.csv"), "--results", str(tmp_path / "found.json")])
