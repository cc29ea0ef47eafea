"""The report of a segmenter, from label maps made by hand."""

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
pytest.importorskip("matplotlib")
from hypvision.openmmlab.segmentation_report import SegmentationReport, label_borders
from hypvision.viz import evaluation


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Figures cost half a second each; tests/viz has them."""
    monkeypatch.setattr(
        "hypvision.tasks.classification_report.confusion_figure",
        lambda *_: Image.new("RGB", (9, 9)),
    )


def report(folder, maps, more=None, **options):
    metric = SegmentationReport(**options)
    metric.dataset_meta = dict(classes=("sky", "road", "car"))
    for i, (truth, found) in enumerate(maps):
        truth, found = torch.tensor(truth), torch.tensor(found)
        Image.new("RGB", (truth.shape[1], truth.shape[0]), (100, 100, 100)).save(
            folder / f"{i}.png"
        )
        sample = {"pred_sem_seg": dict(data=found[None]), "gt_sem_seg": dict(data=truth[None])}
        metric.process({}, [sample | (more or {}) | {"img_path": str(folder / f"{i}.png")}])
    assert metric.evaluate(len(maps)) == {}
    return {part.name: part for part in metric.parts}


def test_pixels_are_counted_but_those_without_truth(tmp_path):
    maps = [([[0, 0, 1], [1, 255, 1]], [[0, 1, 1], [1, 2, 0]]), ([[2, 2]], [[2, 1]])]
    parts = report(tmp_path, maps)
    assert [row[1:] for row in parts["confusion"].table[1:]] == [(1, 1, 0), (1, 2, 0), (0, 1, 1)]
    table = {row[0]: row[1:] for row in parts["classes"].table[1:]}
    assert table["sky"] == pytest.approx((2, 100 / 3, 50, 50)) and table["road"] == pytest.approx(
        (3, 40, 200 / 3, 50)
    )
    assert table["car"] == pytest.approx((2, 50, 50, 100))
    # of the first image sky has 1/3 and road 2/4, of the second car 1/2
    assert [row[1] for row in parts["mistakes"].table[1:]] == pytest.approx(
        [100 * (1 / 3 + 1 / 2) / 2, 50]
    )


def test_the_worst_images_are_drawn_and_no_others(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        evaluation,
        "mistake_sheet",
        lambda tiles, **rest: drawn.extend(tiles) or tiles[0].pictures[1],
    )
    found = [[0] * (12 - wrong) + [1] * wrong for wrong in range(12)]
    parts = report(tmp_path, [([[0] * 12], [row]) for row in found])
    assert [tile.lines[0].split()[-1] for tile in drawn] == [
        f"{wrong}.png" for wrong in range(11, 1, -1)
    ]
    assert drawn[0].lines[0] == "mean IoU 8.3 %   11.png" and {
        len(tile.pictures) for tile in drawn
    } == {3}
    right = drawn[-1].pictures
    assert (
        right[1].getpixel((0, 0)) == right[2].getpixel((0, 0)) != right[2].getpixel((219, 0))
    )  # road, where sky is
    assert [row[1] for row in parts["mistakes"].table[1:]] == pytest.approx(
        [100 * (12 - wrong) / 12 for wrong in range(11, -1, -1)]
    )


def test_other_ignored_labels_and_logits_that_are_not_finite(tmp_path):
    parts = report(tmp_path, [([[0, 3]], [[0, 1]])], ignore_index=3)
    assert parts["mistakes"].text == "Every image is segmented without a mistake."
    metric = SegmentationReport()
    sample = dict(
        pred_sem_seg=dict(data=torch.zeros(1, 1, 1)), gt_sem_seg=dict(data=torch.zeros(1, 1, 1))
    )
    metric.process(
        {}, [sample | dict(seg_logits=dict(data=torch.full((3, 1, 1), float("nan"))), img_path="x")]
    )
    assert metric.evaluate(1) == {} and "No image has a label map" in metric.parts[0].text


def test_borders_lie_between_labelled_pixels_of_two_classes():
    truth = np.array([[0, 0, 1, 255, 2], [0, 0, 1, 255, 2]])
    assert label_borders(truth, truth != 255).tolist() == [[False, True, True, False, False]] * 2
    assert (
        label_borders(truth.T, truth.T != 255).T.tolist()
        == label_borders(truth, truth != 255).tolist()
    )


def test_maps_of_hyperbolic_pixels_are_rated_and_drawn(tmp_path, monkeypatch):
    """Of 40 pixels the last ten are wrong and uncertain, and the border is at the 20th."""
    drawn = []
    monkeypatch.setattr(
        evaluation, "mistake_sheet", lambda tiles, **_: drawn.extend(tiles) or tiles[0].pictures[-1]
    )
    truth = [[0] * 20 + [1] * 20]
    found = [[0] * 20 + [1] * 10 + [2] * 10]
    wrong = torch.tensor(found) != torch.tensor(truth)
    away = (torch.arange(40) - 19.5).abs()[None]
    logits = torch.zeros(3, 1, 40)
    logits[0] = torch.linspace(0, 9, 40)  # the first pixels have the highest entropy
    maps = dict(uncertainty=0.1 + 0.5 * wrong.float(), radius=away)
    more = {name: dict(data=value[None]) for name, value in maps.items()}
    parts = report(tmp_path, [(truth, found)], more | dict(seg_logits=dict(data=logits)))
    rows = {row[:2]: row[2:] for row in parts["uncertainty"].table[1:]}
    assert rows["wrong pixels", "uncertainty"] == pytest.approx((100, 100))
    assert rows["wrong pixels", "entropy of the softmax"][0] == 0
    assert len(rows) == 5
    for reach in (2, 5, 10):
        near = rows[f"within {reach} pixels of a border", "boundary map"]
        assert near == pytest.approx((100, 100))
    assert len(drawn[0].pictures) == 5
    assert "uncertainty" not in report(tmp_path, [(truth, found)])
