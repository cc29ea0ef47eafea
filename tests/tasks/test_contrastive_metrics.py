"""Zero-shot accuracy, hierarchical errors and retrieval, against counts by hand."""

import math

import pytest
import torch
from helpers.cases import each

pytest.importorskip("open_clip")

from hypvision.clip.spaces import Hyperboloid, HyperboloidProduct, Sphere
from hypvision.geometry import lorentz
from hypvision.io.errors import HypvisionError
from hypvision.tasks.contrastive_metrics import (
    HierarchicalErrors,
    ImageTextRetrieval,
    ZeroShotAccuracy,
    cone_metrics,
)

TREE = {
    "dog": ["animal", "mammal"],
    "cat": ["animal", "mammal"],
    "crow": ["animal", "bird"],
    "cup": ["thing"],
}


def samples(guesses, labels):
    scores = torch.eye(4)[guesses] + 0.5 * torch.eye(4)[[(g + 1) % 4 for g in guesses]]
    return [dict(scores=row, label=label) for row, label in zip(scores, labels)]


def measured(metric, found):
    metric.dataset_meta = dict(classes=tuple(TREE))
    metric.process(None, found)
    return metric.compute_metrics(metric.results)


def test_hierarchical_errors():
    found = measured(
        HierarchicalErrors(TREE), samples([0, 1, 2, 3], [0, 0, 0, 0])
    )  # dog, cat, crow, cup for a dog
    assert found["tie"] == pytest.approx((0 + 2 + 4 + 5) / 4)
    # Under the root, of which all are: root, animal, mammal twice; root, animal, bird; root, thing.
    assert found["lca"] == pytest.approx((1 + 1 + 2 + 2) / 4)
    assert found["jaccard"] == pytest.approx((1 + 1 + 2 / 4 + 1 / 4) / 4)
    assert found["precision"] == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4)
    assert found["recall"] == pytest.approx((1 + 1 + 2 / 3 + 1 / 3) / 4)
    with pytest.raises(HypvisionError, match="'cat' are 'animal', which is not a list"):
        HierarchicalErrors({"cat": "animal"})
    assert all(math.isnan(value) for value in HierarchicalErrors(TREE).compute_metrics([]).values())
    with pytest.raises(HypvisionError, match="lacks 1 classes, e.g. 'cup'"):
        measured(
            HierarchicalErrors({k: v for k, v in TREE.items() if k != "cup"}), samples([0], [0])
        )


@pytest.mark.parametrize("c", [0.4, [0.7, 0.2]])
def test_cones_tell_true_pairs_by_what_lies_inside(c):
    """Against the share of pairs in which the true one is deeper inside, and sorted precisions."""
    torch.manual_seed(0)
    space = Hyperboloid(c) if isinstance(c, float) else HyperboloidProduct(torch.tensor(c), 3)
    features = 0.6 * torch.randn(40, 6, dtype=torch.float64)
    noise = torch.randn(40, 6, dtype=torch.float64)
    true = torch.arange(40) % 3 == 0
    texts = space.embed(features, "text")
    images = space.embed(noise + 1.5 * true[:, None] * features, "image")
    found = cone_metrics(space, texts, images, true)
    angle = space.exterior_angle(texts, images)
    for name, outside in (("cone", angle - space.half_aperture(texts)), ("angle", angle)):
        inner = -outside
        deeper = (inner[true][:, None] > inner[~true]).double().mean()
        assert found[f"{name}_auc"] == pytest.approx(float(deeper)) and 0.5 < deeper < 1
        order = true[inner.argsort(descending=True)]
        precision = order.cumsum(0)[order] / (order.nonzero()[:, 0] + 1)
        assert found[f"{name}_ap"] == pytest.approx(float(precision.double().mean()))
    assert found["cone_auc"] != found["angle_auc"]
    assert math.isnan(cone_metrics(space, texts, images, true & False)["cone_auc"])


@pytest.mark.parametrize("root", [["r"], []])
def test_errors_of_the_official_code(root, tmp_path):
    """On its tree of three leaves, whether the root has a name or not; and a class that is itself
    the root."""
    tree = {"a1": [*root, "a"], "a2": [*root, "a"], "b1": [*root, "b"]}
    for guess, numbers in {
        0: (0, 1, 1, 1, 1),
        1: (2, 1, 1, 1, 1),
        2: (4, 2, 1 / 3, 1 / 2, 1 / 2),
    }.items():
        metric = HierarchicalErrors(tree)
        metric.dataset_meta = dict(classes=tuple(tree))
        metric.process(None, [dict(scores=torch.eye(3)[guess], label=0)])
        assert metric.compute_metrics(metric.results) == pytest.approx(
            dict(zip(metric.NAMES, numbers))
        )
    (tmp_path / "pairs.tsv").write_text("a1\ta\n")
    metric = HierarchicalErrors(str(tmp_path / "pairs.tsv"))
    metric.dataset_meta = dict(classes=("a", "a1"))
    metric.process(
        None, [dict(scores=torch.eye(2)[0], label=1)]
    )  # the general class for the special one
    assert metric.compute_metrics(metric.results) == dict(
        tie=1.0, lca=1.0, jaccard=0.0, precision=1.0, recall=0.0
    )


def test_trees_of_breeds_and_of_wordnet(tmp_path):
    """The same tree in three forms, and a name with two parents."""
    expected = measured(
        HierarchicalErrors({**TREE, "cup": ["thing"]}), samples([0, 1, 2, 3], [0, 0, 3, 2])
    )
    edges = {
        (above, below)
        for name, groups in TREE.items()
        for above, below in zip(groups, [*groups[1:], name])
    }
    (tmp_path / "class_hierarchy.txt").write_text(
        "".join(f"{above} {below}\n" for above, below in edges)
    )
    (tmp_path / "node_names.txt").write_text("dog\tdog, hound\n")
    (tmp_path / "pairs.tsv").write_text("".join(f"{below}\t{above}\n" for above, below in edges))
    for tree in (tmp_path, tmp_path / "pairs.tsv"):
        found = measured(HierarchicalErrors(str(tree)), samples([0, 1, 2, 3], [0, 0, 3, 2]))
        assert found == pytest.approx(expected)
    with (tmp_path / "pairs.tsv").open("a") as file:
        file.write("dog\tpet\ncat\tpet\npet\tthing\n")
    found = measured(HierarchicalErrors(str(tmp_path / "pairs.tsv")), samples([0, 3], [1, 0]))
    # cat by mammal or pet: 2 edges; both have mammal, animal, pet, thing and the root above them.
    # dog, pet, thing, cup: 3 edges; a cup has thing and the root.
    assert found["tie"] == pytest.approx((2 + 3) / 2) and found["jaccard"] == pytest.approx(
        (1 + 2 / 5) / 2
    )
    (tmp_path / "tree.json").write_text('{"dog": "animal"}')
    with pytest.raises(HypvisionError, match="'dog' must be a list"):
        HierarchicalErrors(str(tmp_path / "tree.json"))


def test_zero_shot_accuracy():
    found = measured(ZeroShotAccuracy(topk=(1, 2)), samples([0, 1, 2, 3], [0, 2, 0, 0]))
    assert found == {
        "top1": 25.0,
        "top2": 75.0,
        "macro": pytest.approx(100 / 3 / 4),
    }  # 0: 1 of 3; 2: 0; 1 and 3 never


def test_both_means_of_classes():
    """Nine of ten of one class are right, none of two of the other; against torchmetrics'
    definition, by hand."""
    found = measured(ZeroShotAccuracy(), samples([0] * 9 + [1] + [0, 0], [0] * 10 + [1, 1]))
    assert found == pytest.approx({"top1": 100 * 9 / 12, "macro": 100 * (0.9 + 0) / 2})


@each("space", [Sphere(), Hyperboloid(0.7), HyperboloidProduct(torch.tensor([0.7, 0.2]), 3)])
def test_retrieval(space):
    torch.manual_seed(0)
    images, texts = torch.randn(12, 6), torch.randn(12, 6)
    captions = [f"text {i % 9}" for i in range(12)]  # three captions belong to two images each
    images, texts = (
        space.embed(images, "image"),
        space.embed(texts[[i % 9 for i in range(12)]], "text"),
    )
    found = measured(
        ImageTextRetrieval(topk=(1, 3)),
        [dict(image=x, text=y, caption=c, space=space) for x, y, c in zip(images, texts, captions)],
    )

    def near(x, y):
        if isinstance(space, HyperboloidProduct):  # PHyCLIP's similarity is the sum of products
            parts = zip(x.double().split(4), y.double().split(4))
            return float(sum(a[0] * b[0] - a[1:] @ b[1:] for a, b in parts))
        return float(lorentz.dist(x, y, 0.7)) if isinstance(space, Hyperboloid) else -float(x @ y)

    for k in (1, 3):
        hits = [
            i % 9 in sorted(range(9), key=lambda t: near(images[i], texts[t]))[:k]
            for i in range(12)
        ]
        assert found[f"image_to_text_r{k}"] == pytest.approx(100 * sum(hits) / 12)
        hits = [
            any(i % 9 == t for i in sorted(range(12), key=lambda i: near(images[i], texts[t]))[:k])
            for t in range(9)
        ]
        assert found[f"text_to_image_r{k}"] == pytest.approx(100 * sum(hits) / 9)


def test_any_caption_of_an_image_counts():
    """Image a has three captions, b one; each text is nearest to the image that it should be, but
    one of a's."""
    space, images = Sphere(), {"a": torch.tensor([1.0, 0]), "b": torch.tensor([0, 1.0])}
    angles = {"a1": 10.0, "a2": 30.0, "a3": 80.0, "b1": 60.0}
    texts = {
        name: torch.tensor([math.cos(math.radians(x)), math.sin(math.radians(x))])
        for name, x in angles.items()
    }
    pairs = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")]
    found = measured(
        ImageTextRetrieval(topk=(1, 2)),
        [dict(image=images[i], text=texts[t], caption=t, name=i, space=space) for i, t in pairs],
    )
    # From a: a1. From b: a3, b1. Of the texts a3 alone is nearer to the other image.
    assert found == dict(
        image_to_text_r1=50, image_to_text_r2=100, text_to_image_r1=75, text_to_image_r2=100
    )
