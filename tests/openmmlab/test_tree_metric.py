"""Rates of a segmenter where near classes of a tree are right, against counts by hand."""

import pytest
from helpers.cases import each

pytest.importorskip("mmseg")
import torch

from hypvision.losses.class_tree import ClassTree
from hypvision.openmmlab.tree_metric import TreeIoUMetric, near_classes

NAMES = ("cat", "dog", "fish", "car", "train", "sky")
TREE = {"organism": {"mammal": ["cat", "dog"], "fish": []}, "vehicle": ["car", "train"], "sky": []}
SIBLINGS = {"cat": "cat dog", "dog": "cat dog", "fish": "cat dog fish", "sky": "sky"}
SIBLINGS |= dict.fromkeys(("car", "train"), "car train")
COUSINS = SIBLINGS | dict.fromkeys(("cat", "dog"), "cat dog fish")


def measured(truth, found):
    metric = TreeIoUMetric(TREE)
    metric.dataset_meta = dict(classes=NAMES)
    for labels in zip(truth, found):  # an image each
        maps = [torch.tensor(part)[None, None] for part in labels]
        names = ("gt_sem_seg", "pred_sem_seg")
        metric.process({}, [{name: dict(data=part) for name, part in zip(names, maps)}])
    return metric.compute_metrics(metric.results)


def by_hand(truth, found, near):
    """Each prediction that is near its label becomes the label; then the usual rates."""
    pairs = [
        (t, t if NAMES[f] in near[NAMES[t]].split() else f)
        for labels, guesses in zip(truth, found)
        for t, f in zip(labels, guesses)
        if t != 255
    ]
    ious, precisions = [], []
    for k in range(len(NAMES)):
        both = sum(t == k and f == k for t, f in pairs)
        either = sum(t == k or f == k for t, f in pairs)
        guessed = sum(f == k for _, f in pairs)
        ious += [both / either] if either else []
        precisions += [both / guessed] if guessed else []
    right = sum(t == f for t, f in pairs) / len(pairs)
    return 100 * sum(ious) / len(ious), 100 * right, 100 * sum(precisions) / len(precisions)


def test_who_is_near():
    for table, near in zip(near_classes(ClassTree(NAMES, TREE)), (SIBLINGS, COUSINS)):
        found = {
            name: " ".join(other for other, yes in zip(NAMES, row) if yes)
            for name, row in zip(NAMES, table.tolist())
        }
        assert found == near


@each("seed", range(3))
def test_near_predictions_are_those_of_the_label(seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 5 + seed // 2, (2, 3, 20), generator=generator)
    truth, found = drawn.tolist()
    truth[0][:4] = [255] * 4
    rates = measured(truth, found)
    for kind, near in (("sibling", SIBLINGS), ("cousin", COUSINS)):
        names = [f"{kind}_{name}" for name in ("mIoU", "aAcc", "mPrecision")]
        assert [rates[name] for name in names] == pytest.approx(by_hand(truth, found, near))
    assert rates["cousin_aAcc"] > rates["sibling_aAcc"]
