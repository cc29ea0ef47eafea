"""mmseg's metric in hypvision's form, against values by hand."""

import pytest
import torch

pytest.importorskip("mmseg")
from hypvision.openmmlab.label_maps import LabelMapIoUMetric


def measure(truth, predicted, **options):
    metric = LabelMapIoUMetric(iou_metrics=["mIoU", "mDice", "mFscore"], **options)
    metric.dataset_meta = dict(classes=("road", "car", "sky"))
    sample = dict(pred_sem_seg=dict(data=torch.tensor([predicted])), gt_sem_seg=dict(data=torch.tensor([truth])))
    metric.process({}, [sample])
    return metric.evaluate(1)


def test_a_class_that_is_never_hit_has_a_score_of_zero():
    """Roads 2/3 by Dice and by F-score, cars 0 by both; mmseg's own F-score of cars is NaN, which leaves 67."""
    for predicted in ([[0, 0, 0, 0]], [[0, 0, 0, 2]]):
        found = measure([[0, 0, 1, 1]], predicted)
        road = 2 * 2 / (2 + sum(label == 0 for label in predicted[0]))
        classes = 2 + (2 in predicted[0])  # mmseg counts sky, which was found and is not there, as 0 in IoU and Dice
        assert found["mDice"] == pytest.approx(100 * road / classes, abs=0.01)
        assert found["mFscore"] == pytest.approx(100 * road / 2, abs=0.01)


def test_what_is_hit_is_as_in_mmseg():
    from mmseg.evaluation import IoUMetric

    truth, predicted = [[0, 0, 1, 1, 2, 2]], [[0, 1, 1, 1, 2, 0]]
    own = IoUMetric(iou_metrics=["mIoU", "mDice", "mFscore"])
    own.dataset_meta = dict(classes=("road", "car", "sky"))
    own.process(
        {}, [dict(pred_sem_seg=dict(data=torch.tensor([predicted])), gt_sem_seg=dict(data=torch.tensor([truth])))]
    )
    assert measure(truth, predicted) == own.evaluate(1)
