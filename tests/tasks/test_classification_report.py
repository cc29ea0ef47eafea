"""The report of a classifier, from predictions made by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
pytest.importorskip("matplotlib")
from hypvision.tasks.classification_report import ClassificationReport


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Figures cost half a second each; tests/viz has them."""
    for name in ("confusion_figure", "bars_figure"):
        monkeypatch.setattr(
            f"hypvision.tasks.classification_report.{name}", lambda *_: Image.new("RGB", (9, 9))
        )


CLASSES = ("ant", "bee", "cow", "doe")
GROUPS = dict(ant=["insect"], bee=["insect"], cow=["mammal"], doe=["mammal"])
# true class, scores
PREDICTIONS = [
    (0, (0.9, 0.1, 0.0, 0.0)), (0, (0.2, 0.8, 0.0, 0.0)), (0, (0.4, 0.6, 0.0, 0.0)),
    (1, (0.1, 0.9, 0.0, 0.0)), (2, (0.97, 0.0, 0.03, 0.0)), (2, (0.0, 0.0, 1.0, 0.0)),
    (None, (1.0, 0.0, 0.0, 0.0)), (3, (math.nan,) * 4),
]  # fmt: skip


def report(ancestors=None, meta=(), predictions=PREDICTIONS):
    metric = ClassificationReport(ancestors)
    metric.dataset_meta = dict(classes=CLASSES, **dict(meta))
    read = lambda index: Image.new("RGB", (8, 8), (index, 0, 0))  # noqa: E731
    metric.dataset = SimpleNamespace(read=read, name=lambda index: f"{index}.png")
    samples = [
        dict(index=i, label=y, scores=torch.tensor(s)) for i, (y, s) in enumerate(predictions)
    ]
    metric.process({}, samples)
    assert metric.evaluate(len(samples)) == {}
    return {part.name: part for part in metric.parts}


def test_counts_and_classes():
    parts = report()
    rows = {row[0]: row[1:] for row in parts["confusion"].table}
    assert rows["true"] == CLASSES and rows["ant"] == (1, 2, 0, 0) and rows["bee"] == (0, 1, 0, 0)
    assert rows["cow"] == (1, 0, 1, 0) and rows["doe"] == (0, 0, 0, 0)  # not finite: in no row
    assert parts["confused"].table[1:] == [
        ("ant", "bee", 2, pytest.approx(200 / 3)),
        ("cow", "ant", 1, 50.0),
    ]
    table = {row[0]: row[1:] for row in parts["classes"].table[1:]}
    assert table["ant"] == pytest.approx((3, 100 / 3, 50, 40)) and table["bee"] == pytest.approx(
        (1, 100, 100 / 3, 50)
    )
    assert (
        table["doe"][0] == 0
        and math.isnan(table["doe"][3])
        and parts["classes"].table[-1][0] == "doe"
    )
    assert "distances" not in parts


def test_the_most_confident_mistake_comes_first():
    part = report()["mistakes"]
    assert [row[:3] for row in part.table[1:]] == [
        ("4.png", "cow", "ant"), ("1.png", "ant", "bee"), ("2.png", "ant", "bee"),
    ]  # fmt: skip
    assert part.text.startswith("3 of 6 images are wrong.")
    colours = [part.picture.getpixel((26 + 242 * i, 26)) for i in range(3)]
    assert [colour[0] for colour in colours] == [4, 1, 2]


@pytest.mark.parametrize("of_data", [False, True])
def test_distances_in_the_tree(of_data):
    meta = dict(ancestors=tuple(tuple(GROUPS[name]) for name in CLASSES)) if of_data else {}
    parts = report(None if of_data else GROUPS, meta)
    # two mistakes between insects, one of a mammal for an insect; one of three other classes is a
    # sibling
    assert parts["distances"].table[1:] == [
        (2, 2, pytest.approx(200 / 3), 1.0),
        (4, 1, pytest.approx(100 / 3), 2.0),
    ]
    assert "2.67 on average over 3 mistakes" in parts["distances"].text
    assert "would be 3.33 away" in parts["distances"].text
    assert parts["confused"].table[2] == ("cow", "ant", 1, 50.0, 4)


def test_a_tree_that_lacks_a_class_or_has_leaves_of_many_depths_is_left_out():
    assert "distances" not in report(dict(ant=["insect"], bee=["insect"], cow=["mammal"]))
    assert "distances" not in report({**GROUPS, "doe": ["mammal", "deer"]})


def test_nothing_wrong_and_nothing_known():
    parts = report(GROUPS, predictions=[PREDICTIONS[0]])
    assert (
        parts["mistakes"].text == "0 of 1 images are wrong." and parts["distances"].table[1][1] == 0
    )
    assert report(predictions=[PREDICTIONS[6]])[""].text.startswith("No image has a label")
