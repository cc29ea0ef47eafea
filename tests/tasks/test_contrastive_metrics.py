"""Zero-shot accuracy, hierarchical errors and retrieval, against counts by hand."""

import math

import pytest
import torch

pytest.importorskip("open_clip")

from hypvision.clip.spaces import Hyperboloid, Sphere
from hypvision.errors import HypvisionError
from hypvision.geometry import lorentz
from hypvision.tasks.contrastive_metrics import HierarchicalErrors, ImageTextRetrieval, ZeroShotAccuracy

TREE = {"dog": ["animal", "mammal"], "cat": ["animal", "mammal"], "crow": ["animal", "bird"], "cup": ["thing"]}


def samples(guesses, labels):
    scores = torch.eye(4)[guesses] + 0.5 * torch.eye(4)[[(g + 1) % 4 for g in guesses]]
    return [dict(scores=row, label=label) for row, label in zip(scores, labels)]


def measured(metric, found):
    metric.dataset_meta = dict(classes=tuple(TREE))
    metric.process(None, found)
    return metric.compute_metrics(metric.results)


def test_hierarchical_errors():
    found = measured(HierarchicalErrors(TREE), samples([0, 1, 2, 3], [0, 0, 0, 0]))  # dog, cat, crow, cup for a dog
    assert found["tie"] == pytest.approx((0 + 2 + 4 + 5) / 4)
    assert found["lca"] == pytest.approx((1 + 2 + 3 + 3) / 4)
    assert found["jaccard"] == pytest.approx((1 + 2 / 4 + 1 / 5 + 0) / 4)
    assert found["precision"] == pytest.approx((1 + 2 / 3 + 1 / 3 + 0) / 4)
    assert found["recall"] == pytest.approx((1 + 2 / 3 + 1 / 3 + 0) / 4)
    assert all(math.isnan(value) for value in HierarchicalErrors(TREE).compute_metrics([]).values())
    with pytest.raises(HypvisionError, match="lacks 1 classes, e.g. 'cup'"):
        measured(HierarchicalErrors({k: v for k, v in TREE.items() if k != "cup"}), samples([0], [0]))


def test_zero_shot_accuracy():
    found = measured(ZeroShotAccuracy(topk=(1, 2)), samples([0, 1, 2, 3], [0, 2, 0, 0]))
    assert found == {"top1": 25.0, "top2": 75.0}


@pytest.mark.parametrize("space", [Sphere(), Hyperboloid(0.7)])
def test_retrieval(space):
    torch.manual_seed(0)
    images, texts = torch.randn(12, 6), torch.randn(12, 6)
    captions = [f"text {i % 9}" for i in range(12)]  # three captions belong to two images each
    images, texts = space.embed(images, "image"), space.embed(texts[[i % 9 for i in range(12)]], "text")
    found = measured(
        ImageTextRetrieval(topk=(1, 3)),
        [dict(image=x, text=y, caption=c, space=space) for x, y, c in zip(images, texts, captions)],
    )

    def near(x, y):
        return float(lorentz.dist(x, y, 0.7)) if isinstance(space, Hyperboloid) else -float(x @ y)

    for k in (1, 3):
        hits = [i % 9 in sorted(range(9), key=lambda t: near(images[i], texts[t]))[:k] for i in range(12)]
        assert found[f"image_to_text_r{k}"] == pytest.approx(100 * sum(hits) / 12)
        hits = [
            any(i % 9 == t for i in sorted(range(12), key=lambda i: near(images[i], texts[t]))[:k]) for t in range(9)
        ]
        assert found[f"text_to_image_r{k}"] == pytest.approx(100 * sum(hits) / 9)
