"""Retrieval metrics against loops over queries, and the blocks they are computed in."""

import math

import numpy as np
import pytest
import torch
from helpers.cases import each

pytest.importorskip("mmengine")
from hypvision.geometry import Lorentz
from hypvision.io.errors import HypvisionError
from hypvision.tasks.metric_learning_metrics import (
    RetrievalMetric,
    evaluate_retrieval,
    lca_heights,
    nearest,
)

SPACES = ("lorentz", "cosine", "euclidean")


def points(count, space, dim=6):
    x = torch.randn(count, dim)
    return Lorentz(1.0).expmap0(x) if space == "lorentz" else x


def distances(x, y, space):
    """In float64, one pair at a time."""
    x, y = x.double(), y.double()
    if space == "lorentz":
        return torch.stack([Lorentz(1.0).dist(a.expand_as(y), y) for a in x])
    if space == "cosine":
        return torch.stack([1 - torch.cosine_similarity(a[None], y) for a in x])
    return torch.stack([(a - y).norm(dim=1) for a in x])


def by_hand(order, query_labels, gallery_labels, recall, heights=None):
    """The metrics from each query's ranking, in plain Python."""
    sums = {f"recall@{k}": 0 for k in recall} | {"r_precision": 0, "map@r": 0}
    able = tall = wrong = 0
    for ranking, label in zip(order, query_labels):
        hits = [gallery_labels[j] == label for j in ranking]
        for k in recall:
            sums[f"recall@{k}"] += any(hits[:k])
        r = sum(hits)
        if r:
            able += 1
            sums["r_precision"] += sum(hits[:r]) / r
            sums["map@r"] += sum(sum(hits[: i + 1]) / (i + 1) for i in range(r) if hits[i]) / r
        if heights is not None:
            height = heights[label][gallery_labels[ranking[0]]]
            tall, wrong = tall + height, wrong + (not hits[0])
    out = {
        key: 100 * value / (len(order) if "recall" in key else able) for key, value in sums.items()
    }
    return out | (
        {} if heights is None else {"height@1": tall / len(order), "mistake_height": tall / wrong}
    )


ANCESTORS = (
    ("animal", "pet"),
    ("animal", "pet"),
    ("animal", "wild"),
    ("vehicle", "car"),
    ("vehicle", "ship"),
)
HEIGHTS = [[0, 1, 2, 3, 3], [1, 0, 2, 3, 3], [2, 2, 0, 3, 3], [3, 3, 3, 0, 2], [3, 3, 3, 2, 0]]


def test_heights_by_hand():
    assert lca_heights(ANCESTORS).tolist() == HEIGHTS
    assert lca_heights([(), ()]).tolist() == [[0, 1], [1, 0]]
    assert lca_heights([("a",), ("a",), ("b",)]).tolist() == [[0, 1, 2], [1, 0, 2], [2, 2, 0]]


@each("space", SPACES)
@each("blocks", [{}, dict(query_block=7, gallery_block=5)])
def test_among_each_other_equals_the_loops(space, blocks):
    x, labels = points(60, space), torch.randint(5, (60,))
    labels[0] = 5  # alone in its class
    ancestors, heights = (
        (*ANCESTORS, ("vehicle", "car")),
        lca_heights((*ANCESTORS, ("vehicle", "car"))).tolist(),
    )
    d = distances(x, x, space).fill_diagonal_(math.inf)
    order = [row[:-1] for row in d.argsort(1).tolist()]
    expected = by_hand(order, labels.tolist(), labels.tolist(), (1, 3, 10), heights)
    found = evaluate_retrieval(
        x, labels, recall=(1, 3, 10, 60), space=space, ancestors=ancestors, **blocks
    )
    assert found == pytest.approx(expected, rel=1e-6) and found["recall@1"] < found["recall@10"]


def test_queries_against_a_gallery_equal_the_loops():
    x, y = points(20, "lorentz"), points(45, "lorentz")
    labels, gallery = torch.randint(5, (20,)), torch.randint(1, 5, (45,))
    order = distances(x, y, "lorentz").argsort(1).tolist()
    expected = by_hand(order, labels.tolist(), gallery.tolist(), (1, 2), HEIGHTS)
    found = evaluate_retrieval(
        x, labels, y, gallery, (1, 2), ancestors=ANCESTORS, query_block=6, gallery_block=8
    )
    assert found == pytest.approx(expected, rel=1e-6)


def test_perfect_and_hopeless_embeddings():
    labels = torch.arange(12) // 3
    perfect = torch.nn.functional.one_hot(labels).float() + 0.01 * torch.randn(12, 4)
    found = evaluate_retrieval(
        perfect, labels, recall=(1,), space="cosine", ancestors=ANCESTORS[:4]
    )
    assert found == {
        "recall@1": 100,
        "r_precision": 100,
        "map@r": 100,
        "height@1": 0,
        "mistake_height": 0,
    }
    shuffled = torch.arange(12) % 3  # the neighbours are never of the class
    found = evaluate_retrieval(perfect, shuffled, recall=(1,), space="cosine")
    assert found["recall@1"] == 0 and "height@1" not in found


@each("space", SPACES)
def test_faiss_finds_the_same(space):
    pytest.importorskip("faiss")
    x = points(40, space)
    itself = torch.arange(40)
    for gallery, exclude in ((x, itself), (points(30, space), None)):
        one, other = (
            torch.cat(
                [n for _, n in nearest(x, gallery, 9, space, exclude, query_block=16, backend=b)]
            )
            for b in ("torch", "faiss")
        )
        assert torch.equal(one, other)


def true_neighbours(x, space):
    """The nearest other point by differences of coordinates in float64, in which nothing
    cancels."""
    x = x.double()
    if space == "cosine":
        x = x / x.norm(dim=1, keepdim=True)
    if space == "lorentz":
        d = torch.stack([Lorentz(1.0).dist(a.expand_as(x), x) for a in x])
    else:
        d = (x[:, None] - x).norm(dim=2)
    return d.fill_diagonal_(math.inf)


def shifted(space):
    """150 points of 30 classes that are near to each other and far from the origin, float32."""
    base = torch.randn(30, 8, dtype=torch.float64)[torch.arange(150) // 5]
    base += 0.3 * torch.randn(150, 8, dtype=torch.float64)
    if space != "lorentz":
        return (base + 1000).float()
    ray = torch.nn.functional.normalize(0.02 * base + torch.eye(8, dtype=torch.float64)[0])
    return Lorentz(1.0).expmap0((8 + 0.1 * base[:, :1]) * ray).float()


def nearer(x, space, **options):
    """The share of points whose neighbour is the nearest, but for round-off of the coordinates
    themselves."""
    distances, itself = true_neighbours(x, space), torch.arange(len(x))
    found = torch.cat([numbers for _, numbers in nearest(x, x, 1, space, itself, **options)])[:, 0]
    return float((distances[itself, found] <= 1.001 * distances.min(1).values).double().mean())


@each("space", SPACES)
def test_points_far_from_the_origin_keep_their_neighbours(space):
    x = shifted(space)
    assert nearer(x, space) == 1 and nearer(x, space, gallery_block=40, query_block=16) == 1
    labels = torch.arange(150) // 5
    order = [row[:-1] for row in true_neighbours(x, space).argsort(1).tolist()]
    expected = by_hand(order, labels.tolist(), labels.tolist(), (1, 5))
    assert evaluate_retrieval(x, labels, recall=(1, 5), space=space) == pytest.approx(
        expected, abs=1.0
    )


@each("space", SPACES)
def test_faiss_keeps_them_too(space):
    pytest.importorskip("faiss")
    assert nearer(shifted(space), space, backend="faiss") > 0.99


@each("c", [0.1, 1.0, 4.0])
def test_points_of_any_curvature(c):
    x = Lorentz(c).expmap0(2 * torch.randn(100, 5) / c**0.5)
    true = torch.stack(
        [Lorentz(c).dist(a.expand_as(x), x.double()) for a in x.double()]
    ).fill_diagonal_(math.inf)
    found = torch.cat([numbers for _, numbers in nearest(x, x, 3, "lorentz", torch.arange(100))])
    assert torch.equal(found, true.topk(3, largest=False).indices)


def test_a_large_class_asks_for_many_neighbours_of_its_own_queries_alone(monkeypatch):
    from hypvision.tasks import metric_learning_metrics

    x, asked = torch.randn(300, 4), []
    labels = torch.cat([torch.zeros(100), 1 + torch.arange(200) // 4]).long()[torch.randperm(300)]
    whole = evaluate_retrieval(x, labels, recall=(1, 4), space="cosine", query_block=300)

    def counted(*args, **options):
        for rows, numbers in nearest(*args, **options):
            asked.append(numbers.numel())
            yield rows, numbers

    monkeypatch.setattr(metric_learning_metrics, "nearest", counted)
    parts = evaluate_retrieval(x, labels, recall=(1, 4), space="cosine", query_block=50)
    assert parts == pytest.approx(whole) and asked == [200] * 4 + [50 * 99] * 2


def test_faiss_is_asked_thousands_at_once(monkeypatch):
    """Until its results would take too much memory; without faiss itself: an index that counts."""
    import sys
    from types import SimpleNamespace

    sizes = []

    class Index:
        def __init__(self, _):
            self.rows = []

        def add(self, rows):
            self.rows.append(rows)

        def search(self, rows, k):
            sizes.append((len(rows), k))
            scores = rows @ np.concatenate(self.rows).T
            found = np.argsort(-scores, 1)[:, :k]
            return np.take_along_axis(scores, found, 1), found

    monkeypatch.setitem(sys.modules, "faiss", SimpleNamespace(IndexFlatIP=Index))
    x, gallery = torch.randn(8300, 2), torch.randn(2100, 2)
    list(nearest(x, gallery[:50], 4, "cosine", backend="faiss"))
    assert sizes == [(8192, 4), (108, 4)]
    sizes.clear()
    list(nearest(x[:2100], gallery, 2000, "cosine", backend="faiss"))
    assert sizes == [(2048, 2000), (52, 2000)]
    found = evaluate_retrieval(x[:200], torch.arange(200) // 9, space="cosine", backend="faiss")
    assert found == pytest.approx(
        evaluate_retrieval(x[:200], torch.arange(200) // 9, space="cosine")
    )


def test_blocks_cover_all_queries_and_bad_names_are_told():
    x = points(10, "cosine")
    chosen = [c for c, _ in nearest(x, x, 3, "cosine", query_block=4)]
    assert [c.tolist() for c in chosen] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert next(iter(nearest(x, x, 99, "cosine")))[1].shape == (10, 10)
    for options in (dict(space="taxicab"), dict(backend="magic")):
        with pytest.raises(ValueError, match="(space|backend) must be one of"):
            next(iter(nearest(x, x, 3, **options)))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_gallery():
    """The peak beyond the embeddings depends on the block, so 60,000 x 60,000 needs what 6,000 x
    6,000 needs."""
    from bench.common import peak_bytes

    def peak(count):
        x, labels = points(count, "lorentz", 64), torch.arange(count) // 5
        return peak_bytes(
            lambda: evaluate_retrieval(
                x, labels, recall=(1, 100), query_block=64, gallery_block=512
            )
        )

    small, large = peak(1500), peak(6000)
    # what does grow is a handful of numbers for each image
    assert large - small < 4500 * 64 and large < 0.05 * 6000 * 6000 * 4


def metric_of(samples, queries=None, **options):
    metric = RetrievalMetric(recall=(1, 2), device="cpu", **options)
    metric.dataset_meta = dict(classes=tuple("abcde"), ancestors=ANCESTORS, queries=queries)
    for sample in samples:
        metric.process(None, [sample])
    return metric


def test_the_metric_sorts_splits_and_writes(tmp_path):
    x, labels = points(30, "lorentz"), torch.randint(5, (30,))
    samples = [
        dict(embedding=x[i], space="lorentz", label=int(labels[i]), index=i)
        for i in torch.randperm(30).tolist()
    ]
    out = tmp_path / "deep" / "embeddings.first.npz"
    found = metric_of(samples, out_file=str(out.with_suffix(""))).evaluate(30)
    assert found == pytest.approx(evaluate_retrieval(x, labels, recall=(1, 2), ancestors=ANCESTORS))
    with np.load(out) as file:
        assert np.array_equal(file["embeddings"], x.numpy()) and np.array_equal(
            file["labels"], labels.numpy()
        )
    found = metric_of(samples, queries=10).evaluate(30)
    parts = (x[:10], labels[:10], x[10:], labels[10:], (1, 2))
    assert found == pytest.approx(evaluate_retrieval(*parts, ancestors=ANCESTORS))
    left = [
        sample for sample in samples if sample["index"] not in (3, 7)
    ]  # a loader may drop the last batch
    seen = [i for i in range(10) if i not in (3, 7)]
    found = metric_of(left, queries=10).evaluate(28)
    expected = evaluate_retrieval(
        x[seen], labels[seen], x[10:], labels[10:], (1, 2), ancestors=ANCESTORS
    )
    assert found == pytest.approx(expected)
    with pytest.raises(HypvisionError, match="30 of which are queries: both queries and a gallery"):
        metric_of(samples, queries=30).evaluate(30)


def test_the_encoder_is_measured_beside_the_head():
    x, labels = points(30, "lorentz"), torch.randint(5, (30,))
    features = points(30, "cosine")
    samples = [
        dict(embedding=x[i], features=features[i], space="lorentz", label=int(labels[i]), index=i)
        for i in range(30)
    ]
    found = metric_of(samples, queries=10, encoder=True).evaluate(30)
    shared = dict(recall=(1, 2), ancestors=ANCESTORS)
    head = evaluate_retrieval(x[:10], labels[:10], x[10:], labels[10:], **shared)
    encoder = (features[:10], labels[:10], features[10:], labels[10:])
    encoder = evaluate_retrieval(*encoder, space="cosine", **shared)
    expected = head | {f"encoder_{name}": value for name, value in encoder.items()}
    assert found == pytest.approx(expected)
