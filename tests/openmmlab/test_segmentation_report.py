"""The report of a segmenter, from label maps made by hand."""

import pytest
import torch
from PIL import Image

pytest.importorskip("mmengine")
pytest.importorskip("matplotlib")
from hypvision.openmmlab.segmentation_report import SegmentationReport
from hypvision.viz import evaluation


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Figures cost half a second each; tests/viz has them."""
    monkeypatch.setattr(
        "hypvision.tasks.classification_report.confusion_figure",
        lambda *_: Image.new("RGB", (9, 9)),
    )


def report(folder, maps, **options):
    metric = SegmentationReport(**options)
    metric.dataset_meta = dict(classes=("sky", "road", "car"))
    for i, (truth, found) in enumerate(maps):
        truth, found = torch.tensor(truth), torch.tensor(found)
        Image.new("RGB", (truth.shape[1], truth.shape[0]), (100, 100, 100)).save(
            folder / f"{i}.png"
        )
        sample = {"pred_sem_seg": dict(data=found[None]), "gt_sem_seg": dict(data=truth[None])}
        metric.process({}, [sample | {"img_path": str(folder / f"{i}.png")}])
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
