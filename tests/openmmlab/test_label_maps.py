"""mmseg's metric in hypvision's form, against values by hand."""

import pytest
import torch

pytest.importorskip("mmseg")
from hypvision.openmmlab.label_maps import LabelMapIoUMetric


def measure(truth, predicted, **options):
    metric = LabelMapIoUMetric(iou_metrics=["mIoU", "mDice", "mFscore"], **options)
    metric.dataset_meta = dict(classes=("road", "car", "sky"))
    sample = dict(
        pred_sem_seg=dict(data=torch.tensor([predicted])),
        gt_sem_seg=dict(data=torch.tensor([truth])),
    )
    metric.process({}, [sample])
    return metric.evaluate(1)


def test_a_class_that_is_never_hit_has_a_score_of_zero():
    """Roads 2/3 by Dice and by F-score, cars 0 by both; mmseg's own F-score of cars is NaN, which
    leaves 67."""
    for predicted in ([[0, 0, 0, 0]], [[0, 0, 0, 2]]):
        found = measure([[0, 0, 1, 1]], predicted)
        road = 2 * 2 / (2 + sum(label == 0 for label in predicted[0]))
        classes = 2 + (
            2 in predicted[0]
        )  # mmseg counts sky, which was found and is not there, as 0 in IoU and Dice
        assert found["mDice"] == pytest.approx(100 * road / classes, abs=0.01)
        assert found["mFscore"] == pytest.approx(100 * road / 2, abs=0.01)


def test_what_is_hit_is_as_in_mmseg():
    from mmseg.evaluation import IoUMetric

    truth, predicted = [[0, 0, 1, 1, 2, 2]], [[0, 1, 1, 1, 2, 0]]
    own = IoUMetric(iou_metrics=["mIoU", "mDice", "mFscore"])
    own.dataset_meta = dict(classes=("road", "car", "sky"))
    own.process(
        {},
        [
            dict(
                pred_sem_seg=dict(data=torch.tensor([predicted])),
                gt_sem_seg=dict(data=torch.tensor([truth])),
            )
        ],
    )
    assert measure(truth, predicted) == pytest.approx(own.evaluate(1), abs=0.01)


@pytest.mark.slow
def test_a_map_of_25_megapixels_is_counted_exactly():
    """float32 stops at 2**24 pixels of a class, which gave this map an accuracy of 100 %."""
    truth = torch.zeros(5000, 5000, dtype=torch.uint8)
    predicted = truth.clone()
    predicted[:490] = 1
    metric = LabelMapIoUMetric(iou_metrics=["mIoU"])
    metric.dataset_meta = dict(classes=("road", "car"))
    metric.process(
        {}, [dict(pred_sem_seg=dict(data=predicted[None]), gt_sem_seg=dict(data=truth[None]))]
    )
    assert metric.evaluate(1)["aAcc"] == pytest.approx(90.2)


def test_labels_of_no_class_are_left_out_as_in_mmseg():
    from mmseg.evaluation import IoUMetric

    truth, predicted = torch.randint(0, 7, (2, 40, 50))
    truth[truth == 6], predicted[predicted > 3] = 255, 3
    for found, known in zip(
        *(m.intersect_and_union(predicted, truth, 4, 255) for m in (LabelMapIoUMetric, IoUMetric))
    ):
        assert found.dtype == torch.int64 and found.tolist() == known.tolist()
