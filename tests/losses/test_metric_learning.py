"""Proxy-Anchor against its formula, and the losses of pytorch-metric-learning on our distances."""

import math
import zlib

import numpy as np
import pytest
import torch
from helpers.cases import each

from hypvision.geometry import Euclidean, Lorentz, PoincareBall
from hypvision.io.errors import HypvisionError
from hypvision.losses import (
    MetricLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SupConLoss,
    clip_to_ball,
    hyperbolic_distance,
)

LOSSES = ("MultiSimilarityLoss", "ProxyNCALoss", "SoftTripleLoss", "SupConLoss", "ProxyAnchorLoss")


def data(dim=5):
    return torch.randn(12, dim), torch.arange(12) // 3


@pytest.mark.parametrize("samples", [12, 1])
def test_proxy_anchor_by_its_formula(samples):
    x, labels = (column[:samples] for column in data())
    loss = ProxyAnchorLoss(6, 5, margin=0.1, alpha=32)
    cosine = [[torch.cosine_similarity(a, p, dim=0).item() for p in loss.proxies] for a in x]
    positive = negative = 0.0
    for p in range(6):
        own = [row[p] for row, y in zip(cosine, labels) if y == p]
        others = [row[p] for row, y in zip(cosine, labels) if y != p]
        positive += math.log(1 + sum(math.exp(-32 * (s - 0.1)) for s in own))
        negative += math.log(1 + sum(math.exp(32 * (s + 0.1)) for s in others))
    assert loss(x, labels).item() == pytest.approx(
        positive / len(set(labels.tolist())) + negative / 6, rel=1e-5
    )
    assert torch.equal(
        loss(3 * x, labels).round(decimals=3), loss(x, labels).round(decimals=3)
    )  # directions alone


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


@each("name", LOSSES)
@each("manifold", [PoincareBall(0.1), Lorentz(2.0)])
@each("distance", ["angular", "hyperbolic"])
def test_losses_train_on_both_distances(name, manifold, distance):
    pytest.importorskip("pytorch_metric_learning")
    vectors, labels = data()
    vectors.requires_grad_()
    loss = MetricLoss(name, manifold, 4, 5, distance)
    value = loss(manifold.from_tangent0(vectors), labels)
    value.backward()
    assert value.isfinite() and vectors.grad.abs().sum() > 0 and vectors.grad.isfinite().all()


def _between_and_within(name, manifold, **options):
    """Mean distances of points of different and of equal classes, before and after 60 steps of free
    points."""
    torch.manual_seed(0)
    vectors = (0.5 * torch.randn(24, 4)).requires_grad_()
    labels = torch.arange(24) % 6
    loss = MetricLoss(name, manifold, 6, 4, "hyperbolic", **options)
    optimizer = torch.optim.Adam([vectors, *loss.parameters()], lr=0.02)
    own = labels[:, None] == labels
    same = own & ~torch.eye(24, dtype=torch.bool)
    found = []
    for step in range(61):
        points = manifold.from_tangent0(vectors)
        if step % 60 == 0:
            distances = manifold.cdist(points, points).detach()
            found.append((distances[~own].mean().item(), distances[same].mean().item()))
        optimizer.zero_grad()
        loss(points, labels).backward()
        optimizer.step()
    return found


@pytest.mark.quick(
    "lorentz-ProxyAnchorLoss",
    "ball-SupConLoss",
    "lorentz-SoftTripleLoss",
    "ball-MultiSimilarityLoss",
)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("manifold", [PoincareBall(0.1), Lorentz(1.0)], ids=["ball", "lorentz"])
def test_classes_part_on_hyperbolic_distances_by_default(name, manifold):
    pytest.importorskip("pytorch_metric_learning")
    (between, within), (between_after, within_after) = _between_and_within(name, manifold)
    assert between_after > 1.2 * between
    assert within_after < 0.7 * between_after and within < 1.2 * between  # of no class before


def test_options_for_cosines_let_the_points_meet():
    """What the test above can see: the library's defaults attract alone."""
    pytest.importorskip("pytorch_metric_learning")
    given = dict(alpha=2, beta=50, base=-0.5)
    (between, _), (after, _) = _between_and_within("MultiSimilarityLoss", Lorentz(1.0), **given)
    assert after < 0.8 * between


def test_multi_similarity_on_distances_by_its_formula():
    pytest.importorskip("pytorch_metric_learning")
    manifold, labels = Lorentz(2.0), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    x = manifold.random(7, 3)
    s = (-manifold.cdist(x, x)).tolist()

    def expected(base):
        total = 0.0
        for i in range(7):
            own = [s[i][j] for j in range(7) if labels[j] == labels[i] and j != i]
            others = [s[i][j] for j in range(7) if labels[j] != labels[i]]
            total += math.log(1 + sum(math.exp(base - v) for v in own))
            total += math.log(1 + sum(math.exp(5 * (v - base)) for v in others)) / 5
        return total / 7

    mean = sum(s[i][j] for i in range(7) for j in range(7) if i != j) / 42
    found = MetricLoss("MultiSimilarityLoss", manifold, distance="hyperbolic")(x, labels)
    assert found.item() == pytest.approx(expected(mean), rel=1e-4)
    found = MetricLoss("MultiSimilarityLoss", manifold, distance="hyperbolic", base=-1.5)(x, labels)
    assert found.item() == pytest.approx(expected(-1.5), rel=1e-4)


def test_proxy_anchor_on_distances_by_its_formula():
    pytest.importorskip("pytorch_metric_learning")
    manifold, (_, labels) = Lorentz(1.0), data()
    x = manifold.random(12, 5)
    loss = MetricLoss("ProxyAnchorLoss", manifold, 6, 5, "hyperbolic")
    d = manifold.cdist(x, manifold.from_space(loss.loss.proxies)).tolist()
    b = sum(map(sum, d)) / 72
    positive = negative = 0.0
    for p in range(6):
        positive += math.log(
            1 + sum(math.exp(3.2 * (d[i][p] - b + 1)) for i in range(12) if labels[i] == p)
        )
        negative += math.log(
            1 + sum(math.exp(3.2 * (b - d[i][p] + 1)) for i in range(12) if labels[i] != p)
        )
    assert loss(x, labels).item() == pytest.approx(positive / 4 + negative / 6, rel=1e-4)


def test_soft_triple_on_distances_by_its_formula():
    """The similarity to a class is a mean over its ten centres, weighted by a softmax; then a
    cross-entropy."""
    pytest.importorskip("pytorch_metric_learning")
    manifold, (_, labels) = Lorentz(1.0), data()
    x = manifold.random(12, 5)
    loss = MetricLoss("SoftTripleLoss", manifold, 4, 5, "hyperbolic")
    s = -manifold.cdist(x, manifold.from_space(loss.loss.fc.T)).view(12, 4, 10)
    near = (s * s.exp()).sum(-1) / s.exp().sum(-1)
    total = 0.0
    for row, y in zip(near.tolist(), labels.tolist()):
        own = math.exp(2 * (row[y] - 0.1))
        total -= math.log(own / (own + sum(math.exp(2 * row[k]) for k in range(4) if k != y)))
    assert loss(x, labels).item() == pytest.approx(total / 12, rel=1e-4)


def test_hyperbolic_distance_is_that_of_the_manifold():
    pytest.importorskip("pytorch_metric_learning")
    manifold, ball = Lorentz(2.0), PoincareBall(2.0)
    x, y = manifold.random(4, 3), manifold.random(5, 3)
    distance = hyperbolic_distance(manifold)
    torch.testing.assert_close(distance(x[:, 1:], y[:, 1:]), manifold.cdist(x, y))
    torch.testing.assert_close(
        distance.pairwise_distance(x[:, 1:], y[:4, 1:]), manifold.dist(x, y[:4])
    )
    torch.testing.assert_close(
        hyperbolic_distance(manifold, similarity=True)(x[:, 1:], y[:, 1:]), -manifold.cdist(x, y)
    )
    centred = hyperbolic_distance(manifold, centred=True)
    between, within = manifold.cdist(x, y), manifold.cdist(x, x)
    torch.testing.assert_close(centred(x[:, 1:], y[:, 1:]), between - between.mean())
    torch.testing.assert_close(
        centred(x[:, 1:]), within - within.sum() / 12
    )  # of four points from three others
    # the same points in the ball
    loss = MetricLoss("SupConLoss", ball, distance="hyperbolic")
    torch.testing.assert_close(loss.vectors(ball.from_lorentz(x)), x[:, 1:], atol=1e-4, rtol=1e-4)


def test_hyp_vit_by_the_number_of_the_specification():
    """Two classes of three views, clipped into a ball, with exact distances."""
    seed = zlib.crc32(b"features") & 0x7FFFFFFF
    features = np.random.RandomState(seed).standard_normal((6, 6)).astype(np.float32)
    ball = PoincareBall(0.1)
    points = clip_to_ball(torch.from_numpy(features), ball, 2.3, riemannian=False)
    options = dict(distance="hyperbolic", temperature=0.2)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    total = MetricLoss("SupConLoss", ball, reduction="sum", **options)(points, labels)
    assert float(total) == pytest.approx(38.3945, abs=1e-4)
    mean = MetricLoss("SupConLoss", ball, **options)(points, labels)
    assert float(total) == pytest.approx(9 * float(mean), rel=1e-6)


def reference_supcon(distances, views, temperature=0.2):
    """Rows of one class follow each other: cross-entropies of view pairs, the diagonal masked by
    1e9."""
    index = torch.arange(len(distances)).view(-1, views)
    total = 0.0
    for i in range(views):
        for j in range(views):
            if i != j:
                other = -distances[index[:, i]][:, index[:, j]]
                own = -distances[index[:, i]][:, index[:, i]] - 1e9 * torch.eye(
                    len(index), dtype=distances.dtype
                )
                logits = torch.cat([other, own], 1) / temperature
                total += torch.nn.functional.cross_entropy(logits, torch.arange(len(index)))
    return total / views**2


@pytest.mark.parametrize("views", [2, 3])
def test_supcon_on_distances_by_its_formula(views):
    torch.manual_seed(0)
    manifold = Lorentz(2.0)
    x = manifold.random(4 * views, 3, dtype=torch.float64).requires_grad_()
    labels = torch.tensor([5, 1, 3, 0]).repeat_interleave(views)
    expected = reference_supcon(torch.stack([manifold.dist(a, x) for a in x.unbind()]), views)
    loss = MetricLoss("SupConLoss", manifold, distance="hyperbolic")
    torch.testing.assert_close(loss(x, labels), expected)
    gradients = [
        torch.autograd.grad(v, x, retain_graph=True)[0] for v in (loss(x, labels), expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)
    # in any order of the classes
    order = torch.arange(4 * views).view(4, views).t().flatten()
    torch.testing.assert_close(loss(x[order], labels[order]), expected)


def test_hyp_vit_on_the_sphere_by_its_formula():
    """The recipes with the options of their page: cosines in place of distances, in 128
    dimensions, summed over the pairs of three views."""
    from hypvision.engine.config import load_config

    options = {
        "model.neck.geometry": "euclidean",
        "model.metric_loss.distance": "angular",
        "model.metric_loss.temperature": 0.1,
    }
    model = load_config("hypvit_vit-small_1xb900-50i_cub200", options).model
    assert (model.neck.geometry, model.neck.dim, model.neck.last_norm) == ("euclidean", 128, False)
    loss = MetricLoss(**model.metric_loss, manifold=Euclidean())
    torch.manual_seed(0)
    x = (3 * torch.randn(12, 5, dtype=torch.float64)).requires_grad_()
    labels = torch.arange(4).repeat_interleave(3)
    unit = x / x.square().sum(1, keepdim=True).sqrt()
    expected = 9 * reference_supcon(-(unit @ unit.T), 3, temperature=0.1)
    found = loss(x, labels)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(value, x)[0] for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)


def test_supcon_needs_views_of_every_class():
    with pytest.raises(ValueError, match=r"same number of samples.*\[1, 2\]"):
        SupConLoss()(torch.randn(3, 4), torch.tensor([0, 0, 1]))
    with pytest.raises(ValueError, match="at least 2"):
        SupConLoss()(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"same number of samples.*\[\]"):
        SupConLoss()(torch.randn(0, 4), torch.empty(0, dtype=torch.long))
    with pytest.raises(HypvisionError, match="does not accept.*colour"):
        MetricLoss("SupConLoss", Lorentz(), colour=1)


def test_proxy_nca_by_its_formula():
    """As Proxy-Anchor, but sums over the proxies of a sample, both terms divided by the size of the
    batch."""
    x, labels = data()
    loss = ProxyNCALoss(6, 5)
    cosine = [[torch.cosine_similarity(a, p, dim=0) for p in loss.proxies] for a in x]
    total = 0.0
    for row, y in zip(cosine, labels):
        total += torch.log(1 + torch.exp(-32 * (row[y] - 0.1)))
        total += torch.log(1 + sum(torch.exp(32 * (s + 0.1)) for p, s in enumerate(row) if p != y))
    torch.testing.assert_close(loss(x, labels), total / 12)
    gradients = [
        torch.autograd.grad(v, loss.proxies, retain_graph=True)[0]
        for v in (loss(x, labels), total / 12)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    manifold = Lorentz(1.0)
    points = manifold.random(12, 5)
    wrapped = MetricLoss("ProxyNCALoss", manifold, 6, 5, "hyperbolic")
    d = manifold.cdist(points, manifold.from_space(wrapped.loss.proxies)).tolist()
    b, total = sum(map(sum, d)) / 72, 0.0
    for row, y in zip(d, labels):
        total += math.log(1 + math.exp(3.2 * (row[y] - b + 1)))
        total += math.log(1 + sum(math.exp(3.2 * (b - v + 1)) for p, v in enumerate(row) if p != y))
    assert wrapped(points, labels).item() == pytest.approx(total / 12, rel=1e-4)
    wrapped = MetricLoss("ProxyNCALoss", Euclidean(), 6, 5)
    wrapped.loss.load_state_dict(loss.state_dict())
    assert torch.equal(wrapped(x, labels), loss(x, labels))


def test_mistakes_are_explained(monkeypatch):
    with pytest.raises(HypvisionError, match="distance must be one of 'angular', 'hyperbolic'"):
        MetricLoss("ProxyAnchorLoss", Lorentz(), 3, 4, distance="near")
    with pytest.raises(HypvisionError, match="needs hyperbolic embeddings"):
        MetricLoss("SupConLoss", Euclidean(), 3, 4, distance="hyperbolic")
    with pytest.raises(HypvisionError, match="does not accept.*colour"):
        MetricLoss("ProxyAnchorLoss", Lorentz(), 3, 4, colour=1)
    pytest.importorskip("pytorch_metric_learning")
    with pytest.raises(HypvisionError, match="CircleLoss.*distance='angular'"):
        MetricLoss("CircleLoss", Lorentz(), 3, 4, distance="hyperbolic")
    with pytest.raises(HypvisionError, match="Did you mean MultiSimilarityLoss"):
        MetricLoss("MultiSimilartyLoss", Lorentz(), 3, 4)
    with pytest.raises(HypvisionError, match="no loss 'Hinge'. Known: AngularLoss, "):
        MetricLoss("Hinge", Lorentz(), 3, 4)


def library_losses():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    return sorted(name for name, value in vars(losses).items() if isinstance(value, type))


@pytest.mark.parametrize("distance", ["angular", "hyperbolic"])
def test_every_loss_of_the_library_works_or_says_why_not(distance):
    refused = {}
    for name in library_losses():
        manifold = Lorentz(c=1.0)
        points = manifold.expmap0(0.5 * torch.randn(8, 16)).detach().requires_grad_()
        try:
            loss = MetricLoss(name, manifold, num_classes=4, dim=16, distance=distance)
        except HypvisionError as error:
            refused[name] = str(error)
            continue
        loss(points, torch.arange(4).repeat(2)).backward()
        assert points.grad.isfinite().all() and points.grad.abs().sum() > 0, name
    assert {
        "VICRegLoss",
        "ManifoldLoss",
        "SelfSupervisedLoss",
        "RankedListLoss",
        "GenericPairLoss",
    } <= set(refused)
    works = {
        "MarginLoss",
        "TripletMarginLoss",
        "MultiSimilarityLoss",
        "ContrastiveLoss",
        "NTXentLoss",
    }
    assert not works & set(refused)
    angles = {"CosFaceLoss", "SubCenterArcFaceLoss", "ArcFaceLoss", "HistogramLoss", "P2SGradLoss"}
    assert angles <= set(refused) if distance == "hyperbolic" else not angles & set(refused)
    assert all(
        "hyperbolic" in text or "arguments" in text or "so it cannot train" in text
        for text in refused.values()
    )
