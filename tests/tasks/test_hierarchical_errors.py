"""The errors in a tree of classes against a second implementation."""

import random

import pytest
import torch
from helpers.cases import each
from references.hierarchical_errors import above, errors

pytest.importorskip("mmengine")
pytest.importorskip("open_clip")
from hypvision.tasks.contrastive_metrics import HierarchicalErrors

SMALL = {"a": "r", "b": "r", "a1": "a", "a2": "a", "b1": "b"}


def test_the_reference_has_the_published_values():
    """A wrong sibling: two edges, and no wrong ancestor."""
    assert errors(SMALL, ["a2"], ["a1"]) == dict(tie=2, lca=1, jaccard=1, precision=1, recall=1)
    assert errors(SMALL, ["a1"], ["a1"]) == dict(tie=0, lca=1, jaccard=1, precision=1, recall=1)
    assert errors(SMALL, ["b1"], ["a1"]) == dict(
        tie=4, lca=2, jaccard=1 / 3, precision=0.5, recall=0.5
    )


def measured(parents, classes, predicted, true):
    metric = HierarchicalErrors({name: above(parents, name)[::-1] for name in classes})
    metric.dataset_meta = dict(classes=classes)
    scores = torch.nn.functional.one_hot(
        torch.tensor([classes.index(name) for name in predicted]), len(classes)
    )
    samples = [
        dict(scores=row, label=classes.index(name), index=0)
        for row, name in zip(scores.float(), true)
    ]
    metric.process(None, samples)
    return metric.evaluate(len(samples))


def grown(seed):
    """A random tree of 60 nodes and its leaves, of any depth."""
    draw = random.Random(seed)
    parents = {
        f"n{number}": f"n{draw.randrange(max(0, number - 15), number)}" for number in range(1, 60)
    }
    return parents, sorted(set(parents) - set(parents.values()))


@each("seed", range(5))
def test_random_trees_as_in_the_reference(seed):
    parents, classes = grown(seed)
    draw = random.Random(seed)
    predicted, true = (draw.choices(classes, k=40) for _ in range(2))
    found, expected = measured(parents, classes, predicted, true), errors(parents, predicted, true)
    assert found == pytest.approx(expected)


@each("seed", range(3))
def test_edges_as_in_the_reference(seed):
    parents, classes = grown(seed)
    for guess, truth in zip(classes, classes[1:]):
        assert (
            measured(parents, classes, [guess], [truth])["tie"]
            == errors(parents, [guess], [truth])["tie"]
        )
