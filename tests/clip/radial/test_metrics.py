"""Metrics of chains against the reference implementation: to the last image, with ties, several
chains, any step."""

from itertools import groupby

import numpy as np
import pytest
import torch
from helpers.cases import each
from references import radial as reference

from hypvision.clip.radial.metrics import chain_metrics, kendall_tau, walk
from hypvision.clip.spaces import Sphere


def case(n, images, depth=4, dim=8, words=10_000, seed=0, whole=False):
    """Chains of made-up words, with embeddings that are more specific the deeper; ``whole``: of
    small whole numbers."""
    rng = np.random.default_rng(seed)
    texts = [[f"w{rng.integers(words)}" for _ in range(depth)] for _ in range(n)]
    owners = list(range(images)) + rng.integers(images, size=n - images).tolist()
    if whole:
        return (
            texts,
            owners,
            rng.integers(-2, 3, (n, depth, dim)),
            rng.integers(-2, 3, (images, dim)),
            np.zeros(dim),
        )
    e = rng.normal(size=(n, depth, dim)) * np.linspace(0.3, 1, depth)[:, None] + rng.normal(
        size=dim
    )
    v = rng.normal(size=(images, dim)) + rng.normal(size=dim)
    return texts, owners, e, v, rng.normal(size=dim)


def order_aware_recall(predicted, chains):
    """The longest rising run of levels, as a share of the levels, in plain steps."""
    levels = [
        next(c.index(text) for c in chains if text in c)
        for text in predicted
        if any(text in c for c in chains)
    ]
    levels = [level for level, _ in groupby(levels)] if len(chains) > 1 else levels
    best = run = 0
    for before, level in zip([-1, *levels], levels):
        run = run + 1 if level > before else 1
        best = max(best, run)
    return best / len(chains[0])


def measure(texts, owners, e, v, root, steps):
    e, v, root = (torch.as_tensor(x, dtype=torch.float32) for x in (e, v, root))
    return chain_metrics(texts, e, owners, v, Sphere(root), steps)


@each("steps", [50, 7, 1])
@each(
    "options",
    [
        dict(n=30, images=30),
        dict(n=40, images=17),
        dict(n=25, images=9, words=40),
        dict(n=12, images=12, depth=2),
        dict(n=12, images=5, depth=7),
        dict(
            n=40, images=13, words=30, dim=2, whole=True
        ),  # many texts are equally near and equally similar
        dict(n=1, images=1),
    ],
)
def test_every_image_and_chain_is_as_in_the_reference(options, steps):
    given = case(**options)
    texts, owners, e, v, root = given
    expected = reference.chain_metrics(texts, e.astype(np.float32), owners, v.astype(np.float32),
                                       root.astype(np.float32), steps)  # fmt: skip
    found = measure(*given, steps)
    assert found.predicted == expected[3]
    for ours, theirs in zip((found.precision, found.recall, found.tau), expected):
        assert np.allclose(ours, theirs, rtol=0, atol=1e-12)
    for image, (predicted, share) in enumerate(zip(found.predicted, found.ordered_recall)):
        assert share == order_aware_recall(
            predicted, [t for t, owner in zip(texts, owners) if owner == image]
        )
    means = found.summary()
    assert means["d_corr"] == pytest.approx(np.mean(expected[2]), abs=1e-12)
    assert means["precision"] == pytest.approx(np.mean(expected[0]), abs=1e-12)


def test_kendall():
    found = kendall_tau(
        torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1], [1, 2, 4, 3], [1, 1, 1, 1], [2, 1, 4, 3]])
    )
    assert np.allclose(found, [1, -1, 2 / 3, 1, 1 / 3])


def test_the_walk_begins_at_the_most_general_text_and_ends_with_all():
    similarity = torch.tensor([[0.1, 0.9, 0.5, 0.9]])
    radii = torch.tensor([0.5, 1.0, 0.25, 0.75])
    assert walk(similarity, radii, 7)[0].tolist() == [2] * 4 + [3] * 2 + [1]  # of equals the first


@each(
    "predicted, chains, share",
    [("abcd", ["abcd"], 1.0), ("axcbd", ["abcd"], 0.5), ("dcba", ["abcd"], 0.25),
     ("bcxd", ["abcd"], 0.75), ("x", ["abcd"], 0.0), ("", ["abcd"], 0.0),
     ("abfg", ["abcd", "efgh"], 0.75),
     ("aebd", ["abcd", "efgh"], 0.75)],  # a and e are both first: taken as one
)  # fmt: skip
def test_order_aware_recall_by_hand(predicted, chains, share):
    assert order_aware_recall(predicted, chains) == share


def test_shapes_that_do_not_fit_are_told():
    with pytest.raises(ValueError, match="as many embeddings"):
        chain_metrics(
            [["a", "b"]], torch.ones(1, 2, 3), ["x"], torch.ones(2, 3), Sphere(torch.ones(3))
        )
