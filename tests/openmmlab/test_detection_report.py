"""The report of a detector, from boxes made by hand."""

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmdet")
pytest.importorskip("matplotlib")
from hypvision.openmmlab.detection_report import DetectionReport, match_boxes


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Figures cost half a second each; tests/viz has them."""
    monkeypatch.setattr(
        "hypvision.tasks.classification_report.confusion_figure",
        lambda *_: Image.new("RGB", (9, 9)),
    )


A, B, FAR = [0.0, 0, 40, 40], [50.0, 0, 90, 40], [0.0, 60, 30, 90]


def moved(box, pixels):
    return [box[0] + pixels, box[1], box[2] + pixels, box[3]]


def sample(folder, number, truth, found):
    """``truth``: (box, label, crowd); ``found``: (box, label, score)."""
    Image.new("RGB", (100, 100)).save(folder / f"{number}.png")
    boxes, labels, scores = (list(column) for column in zip(*found)) if found else ([], [], [])
    instances = [dict(bbox=box, bbox_label=label, ignore_flag=crowd) for box, label, crowd in truth]
    return dict(
        pred_instances=dict(bboxes=torch.tensor(boxes).reshape(-1, 4), labels=torch.tensor(labels,
        dtype=torch.long),
                            scores=torch.tensor(scores)),
        img_id=number, ori_shape=(100, 100), instances=instances,
        img_path=str(folder / f"{number}.png"),
    )  # fmt: skip


def report(samples):
    metric = DetectionReport()
    metric.dataset_meta = dict(classes=("cat", "dog", "emu"))
    metric.process({}, samples)
    assert metric.evaluate(len(samples)) == {}
    return {part.name: part for part in metric.parts}


def test_counts_curves_and_classes(tmp_path):
    parts = report([
        # a cat found, a second box on it, a dog called cat, a box on nothing, one below threshold
        sample(tmp_path, 0, [(A, 0, 0), (B, 1, 0)],
               [(A, 0, 0.9), (moved(A, 4), 0, 0.8), (B, 0, 0.7), (FAR, 1, 0.6), (B, 1, 0.1)]),
        # a cat missed; a box in a crowd of dogs is neither right nor wrong
        sample(tmp_path, 1, [(A, 0, 0), (B, 1, 1)], [(moved(B, 2), 1, 0.9)]),
    ])  # fmt: skip
    rows = {row[0]: row[1:] for row in parts["confusion"].table}
    assert rows["true"] == ("cat", "dog", "emu", "(missed)")
    assert rows["cat"] == (1, 0, 0, 1) and rows["dog"] == (1, 0, 0, 0)
    assert rows["emu"] == (0, 0, 0, 0) and rows["(no object)"] == (1, 1, 0, 0)
    assert parts["confused"].table[1:] == [("dog", "cat", 1, 100.0)]
    table = {row[0]: row[1:] for row in parts["classes"].table[1:]}
    # cats: of the boxes in the order of their scores the first is right, and one of two objects is
    # found
    assert table["cat"][1] == pytest.approx(100 * 51 / 101) and table["cat"][3:] == (2, 1, 0, 1, 1)
    # dogs: that in the crowd does not count, one on nothing comes before the right one
    assert table["dog"][1] == pytest.approx(50) and table["dog"][3:] == (1, 0, 1, 0, 1)
    assert np.isnan(table["emu"][0]) and table["emu"][3:] == (0, 0, 0, 0, 0)
    curve = [row[2:] for row in parts["precision_recall"].table[1:] if row[:2] == ("cat", 0.5)]
    np.testing.assert_allclose(curve, [(i / 100, i <= 50) for i in range(101)], atol=1e-9)
    assert not any(row[0] == "emu" for row in parts["precision_recall"].table)
    assert [row[1:] for row in parts["mistakes"].table[1:]] == [(0, 1, 2), (1, 0, 0)]


def test_images_in_order_of_their_mistakes(tmp_path):
    samples = [
        sample(tmp_path, 0, [(A, 0, 0)], [(A, 0, 0.9)]),
        sample(tmp_path, 1, [(A, 0, 0)], [(A, 0, 0.9), (FAR, 1, 0.4)]),
        sample(tmp_path, 2, [(A, 0, 0), (B, 0, 0)], [(A, 0, 0.9)]),
        sample(tmp_path, 3, [(A, 0, 0)], []),
    ]
    part = report(samples)["mistakes"]
    assert [row[0].rpartition("/")[2] for row in part.table[1:]] == [
        "2.png",
        "3.png",
        "1.png",
        "0.png",
    ]
    assert part.text.startswith("1 of 4 images have no mistake.") and part.picture is not None


def test_pairs_of_one_class_come_first():
    truth, found = np.array([[0, 0, 40, 40]]), np.array([[0, 0, 40, 40], [2, 0, 40, 40]])
    crowd = np.array([False])
    matches = match_boxes(truth, np.array([1]), crowd, found, np.array([0, 1]))
    assert matches.pairs == [(0, 1)] and matches.false == [0] and matches.missed == []
    matches = match_boxes(truth, np.array([2]), crowd, found, np.array([0, 1]))
    assert matches.pairs == [(0, 0)] and matches.false == [1]  # else the one of larger overlap


def test_without_objects_and_boxes(tmp_path):
    parts = report([sample(tmp_path, 0, [], [])])
    assert parts["mistakes"].text == "Every object is found, and nothing else."
    assert parts[""].text == "There is no object in the test data."
