"""Proxy-Anchor against its formula, and the losses of pytorch-metric-learning on our distances."""

import math

import pytest
import torch

from hypvision.errors import HypvisionError
from hypvision.geometry import Euclidean, Lorentz, PoincareBall
from hypvision.losses import MetricLoss, ProxyAnchorLoss, hyperbolic_distance


def data(dim=5):
    return torch.randn(12, dim), torch.arange(12) // 3


def test_proxy_anchor_by_its_formula():
    x, labels = data()
    loss = ProxyAnchorLoss(6, 5, margin=0.1, alpha=32)
    cosine = [[torch.cosine_similarity(a, p, dim=0).item() for p in loss.proxies] for a in x]
    positive = negative = 0.0
    for p in range(6):
        own = [row[p] for row, y in zip(cosine, labels) if y == p]
        others = [row[p] for row, y in zip(cosine, labels) if y != p]
        positive += math.log(1 + sum(math.exp(-32 * (s - 0.1)) for s in own))
        negative += math.log(1 + sum(math.exp(32 * (s + 0.1)) for s in others))
    assert loss(x, labels).item() == pytest.approx(positive / 4 + negative / 6, rel=1e-5)
    assert torch.equal(loss(3 * x, labels).round(decimals=3), loss(x, labels).round(decimals=3))  # directions alone


def test_proxy_anchor_equals_that_of_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, labels = data()
    ours, theirs = ProxyAnchorLoss(6, 5), losses.ProxyAnchorLoss(6, 5)
    theirs.proxies.data = ours.proxies.data.clone()
    torch.testing.assert_close(ours(x, labels), theirs(x, labels))


def test_labels_beyond_the_classes_are_told():
    x, labels = data()
    with pytest.raises(ValueError, match="3 class proxies.*3"):
        ProxyAnchorLoss(3, 5)(x, labels)


@pytest.mark.parametrize(
    "name", ["MultiSimilarityLoss", "ProxyNCALoss", "SoftTripleLoss", "SupConLoss", "ProxyAnchorLoss"]
)
@pytest.mark.parametrize("manifold", [PoincareBall(0.1), Lorentz(2.0)], ids=["ball", "lorentz"])
@pytest.mark.parametrize("distance", ["angular", "hyperbolic"])
def test_losses_train_on_both_distances(name, manifold, distance):
    pytest.importorskip("pytorch_metric_learning")
    vectors, labels = data()
    vectors.requires_grad_()
    loss = MetricLoss(name, manifold, 4, 5, distance)
    value = loss(manifold.from_tangent0(vectors), labels)
    value.backward()
    assert value.isfinite() and vectors.grad.abs().sum() > 0 and vectors.grad.isfinite().all()


def test_hyperbolic_distance_is_that_of_the_manifold():
    pytest.importorskip("pytorch_metric_learning")
    manifold, ball = Lorentz(2.0), PoincareBall(2.0)
    x, y = manifold.random(4, 3), manifold.random(5, 3)
    distance = hyperbolic_distance(manifold)
    torch.testing.assert_close(distance(x[:, 1:], y[:, 1:]), manifold.cdist(x, y))
    torch.testing.assert_close(distance.pairwise_distance(x[:, 1:], y[:4, 1:]), manifold.dist(x, y[:4]))
    torch.testing.assert_close(
        hyperbolic_distance(manifold, similarity=True)(x[:, 1:], y[:, 1:]), -manifold.cdist(x, y)
    )
    # the same points in the ball
    loss = MetricLoss("SupConLoss", ball, distance="hyperbolic")
    torch.testing.assert_close(loss.vectors(ball.from_lorentz(x)), x[:, 1:], atol=1e-4, rtol=1e-4)


def test_supcon_on_distances_by_its_formula():
    pytest.importorskip("pytorch_metric_learning")
    manifold = Lorentz(1.0)
    x, labels = manifold.random(6, 3), torch.tensor([0, 0, 1, 1, 2, 2])
    logits = (-manifold.cdist(x, x) / 0.2).masked_fill(torch.eye(6, dtype=torch.bool), -torch.inf)
    expected = -logits.log_softmax(1)[torch.arange(6), torch.tensor([1, 0, 3, 2, 5, 4])].mean()
    found = MetricLoss("SupConLoss", manifold, distance="hyperbolic", temperature=0.2)(x, labels)
    torch.testing.assert_close(found, expected)


def test_mistakes_are_explained(monkeypatch):
    with pytest.raises(HypvisionError, match="'angular' or 'hyperbolic'"):
        MetricLoss("ProxyAnchorLoss", Lorentz(), 3, 4, distance="near")
    with pytest.raises(HypvisionError, match="needs hyperbolic embeddings"):
        MetricLoss("SupConLoss", Euclidean(), 3, 4, distance="hyperbolic")
    with pytest.raises(HypvisionError, match="does not accept.*colour"):
        MetricLoss("ProxyAnchorLoss", Lorentz(), 3, 4, colour=1)
    pytest.importorskip("pytorch_metric_learning")
    with pytest.raises(HypvisionError, match="MultiSimilarityLoss"):
        MetricLoss("MultiSimilartyLoss", Lorentz(), 3, 4)
